"""What the gateway remembers: pages without gaps, small records, nothing for ever."""

import tracemalloc
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from berthmaster.control.gateway.core.workload_index import MAX_EXAMINED, WorkloadIndex
from berthmaster.lib.lifecycle.fold import Verdict
from berthmaster.lib.messages.api import ListReply, ListRequest, WorkloadView
from berthmaster.lib.messages.families import EVENTS, encode
from berthmaster.lib.messages.workload import (
    Carried,
    Divide,
    Divided,
    JobRequest,
    Part,
    PartPlace,
    Placed,
    PodSet,
    WorkloadEvent,
)
from tests.support.lives import CLAIMED
from tests.unit.control.gateway.stories import cancelled, claimed, job, placed, submitted, succeeded


def offer_all(view: WorkloadIndex, *events: WorkloadEvent, start: int = 1) -> None:
    for sequence, event in enumerate(events, start):
        offered = view.offer(event, sequence, float(sequence))
        assert offered is not None
        assert offered[0] is Verdict.COUNTED


def listed(view: WorkloadIndex, asked: ListRequest) -> ListReply:
    """A page, without anything that came in between."""
    steps = view.listed("ann", asked)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            reply: ListReply = end.value
            return reply


def ids(view: WorkloadIndex, **request: object) -> list[str]:
    asked = ListRequest(**request)  # type: ignore[arg-type] # fields of the request
    found: list[str] = []
    while True:
        page = listed(view, asked)
        found += [w.id for w in page.workloads]
        if not page.next_before:
            return found
        asked = msgspec.structs.replace(asked, before=page.next_before)


def carried(name: str) -> Carried:
    return Carried(
        tenant="ann",
        id=name,
        after=0,
        at_s=0.0,
        by="berth recover",
        cluster="c1",
        workload=msgspec.structs.replace(CLAIMED, request=job(name), cluster="c1"),
    )


def test_carried_workload_is_shown_as_it_stands() -> None:
    view = WorkloadIndex()
    offer_all(view, carried("back"), start=1_000_001)
    (shown,) = listed(view, ListRequest()).workloads
    assert (shown.id, shown.state, shown.cluster, shown.attempt) == ("back", "claimed", "c1", 2)
    assert (view.open_of("ann"), view.waiting["default"]) == (1, 0)


def test_event_ahead_freezes_until_an_ending_that_counts() -> None:
    view = WorkloadIndex()
    offer_all(view, submitted(job("a")), placed(job("a"), 1))
    ahead = view.offer(claimed(job("a"), 3), 4, 4.0)
    assert ahead is not None
    assert ahead[0] is Verdict.AHEAD
    assert view.frozen("ann", "a") == "events of it are missing from the log"
    assert view.offer(cancelled(job("a"), 2), 5, 5.0) is None  # it lost its race
    assert view.offer(succeeded(job("a"), 5), 6, 6.0, void=True) is None
    assert (view.frozen_count, view.open_count) == (1, 1)
    ended = view.offer(succeeded(job("a"), 6), 7, 7.0)
    assert ended is not None
    assert ended[0] is Verdict.COUNTED
    assert (view.frozen_count, view.open_count, view.ended_count) == (0, 0, 1)


def test_what_is_left_of_an_ended_workload_is_not_shown() -> None:
    view = WorkloadIndex()
    left: list[WorkloadEvent] = [placed(job("a"), 1), claimed(job("a"), 2)]
    for at, event in enumerate(left, 2):
        offered = view.offer(event, at, float(at))
        assert offered is not None
        assert offered[0] is Verdict.AHEAD
    assert listed(view, ListRequest()).workloads == ()
    offer_all(view, succeeded(job("a"), 3), start=4)
    assert [one.state for one in listed(view, ListRequest()).workloads] == ["succeeded"]
    assert view.frozen_count == 0


def test_a_page_shows_open_and_ended_workloads_with_all_counts() -> None:
    view = WorkloadIndex()
    wish = job("b", queue="research", priority=3, pod_sets=(PodSet(count=2, gpus=4),))
    offer_all(view, submitted(job("a")), submitted(wish), cancelled(job("a"), 1))
    assert listed(view, ListRequest()) == ListReply(
        workloads=(
            WorkloadView(
                tenant="ann",
                id="b",
                state="queued",
                queue="research",
                priority=3,
                gpus=8.0,
                pods=2,
                submitted_at_s=2.0,
                changed_at_s=2.0,
                sequence=2,
            ),
            WorkloadView(
                tenant="ann",
                id="a",
                state="cancelled",
                queue="default",
                pods=1,
                submitted_at_s=1.0,
                changed_at_s=3.0,
                sequence=3,
            ),
        ),
        counts={"queued": 1, "cancelled": 1},
    )
    assert ids(view, queue="research") == ["b"]


def test_a_divided_job_is_one_of_those_that_are_open_and_its_parts_wait_for_nothing() -> None:
    view = WorkloadIndex()
    of = Part(job="train", attempt=1, number=0, clusters=("c1",), pods=(1,))
    part = job("train--1-0", part=of)
    offer_all(view, submitted(job("train")), submitted(part), submitted(job("next")))
    assert (view.open_of("ann"), view.waiting["default"]) == (2, 2)
    offer_all(view, placed(part, 2), start=4)
    assert (view.open_of("ann"), view.waiting["default"]) == (2, 2)
    offer_all(view, cancelled(part, 4, attempt=1), cancelled(job("train"), 1), start=5)
    assert (view.open_of("ann"), view.waiting["default"], view.open_count) == (1, 1, 1)


def test_a_divided_job_is_listed_and_counted_as_one_and_its_parts_for_who_asks_for_them() -> None:
    view = WorkloadIndex()
    whole = job("train", labels={"team": "nlp"}, divide=Divide())
    of = Part(job="train", attempt=1, number=0, clusters=("c1", "c2"), pods=(1, 1))
    places = tuple(PartPlace(id=f"train--1-{n}", cluster=f"c{n + 1}", pods=1) for n in (0, 1))
    parts = [job(each.id, labels=whole.labels, part=of) for each in places]
    head: dict[str, Any] = {"tenant": "ann", "id": "train", "at_s": 0.0, "by": "resolver"}
    divided = Divided(**head, after=1, attempt=1, parts=places, decision=1)
    offer_all(view, submitted(whole), divided, *map(submitted, parts))
    assert ids(view) == ids(view, limit=1, labels={"team": "nlp"}) == ["train"]
    (shown,) = listed(view, ListRequest()).workloads
    assert (shown.state, shown.clusters, shown.parts) == ("placed", ("c1", "c2"), places)
    assert listed(view, ListRequest()).counts == {"placed": 1}
    assert ids(view, parts=True) == ["train--1-1", "train--1-0", "train"]

    # When all have ended and when all that is left are tombstones.
    ended = [cancelled(part, at + 3) for at, part in enumerate(parts)]
    last = cancelled(whole, 2, attempt=1)
    offer_all(view, *ended, last, start=5)
    left = WorkloadIndex()
    offer_all(left, *ended, last, start=5)
    for each in (view, left):
        assert ids(each) == ["train"]
        assert listed(each, ListRequest()).counts == {"cancelled": 1}
        assert sorted(ids(each, parts=True)) == ["train", "train--1-0", "train--1-1"]

    # One whose job a damaged log has lost is not hidden.
    alone = WorkloadIndex()
    offer_all(alone, submitted(parts[0]))
    assert ids(alone) == ["train--1-0"]


def test_an_id_that_lives_again_is_listed_once_in_its_new_place() -> None:
    view = WorkloadIndex()
    offer_all(view, submitted(job("a")), submitted(job("b")), cancelled(job("a"), 1))
    assert view.offer(placed(job("a"), 1), 4, 4.0) is None  # nothing follows an ending …
    offer_all(view, submitted(job("a", priority=1)), start=5)  # … but a new life
    assert ids(view) == ["a", "b"]
    assert listed(view, ListRequest()).counts == {"queued": 2}
    assert (view.open_count, view.ended_count) == (2, 0)


def test_a_tombstone_is_an_ended_workload() -> None:
    view = WorkloadIndex()
    offer_all(view, succeeded(job("a"), 7), start=9)
    (shown,) = listed(view, ListRequest()).workloads
    assert shown == WorkloadView(
        tenant="ann",
        id="a",
        state="succeeded",
        attempt=1,
        cluster="c1",
        submitted_at_s=1.0,
        changed_at_s=9.0,
        sequence=9,
    )


def test_records_are_dropped_by_age_and_a_bounded_number_at_a_time() -> None:
    view = WorkloadIndex()
    for n in range(10):
        request = job(f"j-{n}")
        offer_all(view, submitted(request), cancelled(request, 2 * n + 1), start=2 * n + 1)
    assert view.forget(11.0, limit=3) == 3
    assert view.forget(11.0, limit=3) == 2  # those that ended at 2, 4, 6, 8 and 10
    assert view.forget(11.0) == 0
    assert ids(view) == [f"j-{n}" for n in range(9, 4, -1)]
    assert listed(view, ListRequest()).counts == {"cancelled": 5}


def test_records_are_dropped_by_number_the_oldest_endings_first() -> None:
    view = WorkloadIndex()
    open_one = job("open")
    offer_all(view, submitted(open_one), start=1)
    for n in range(6):
        request = job(f"j-{n}")
        offer_all(view, submitted(request), cancelled(request, 2 * n + 2), start=2 * n + 2)
    assert view.forget(0.0, most=6) == 0
    assert view.forget(0.0, most=2, limit=3) == 3
    assert view.forget(0.0, most=2) == 1
    assert ids(view) == ["j-5", "j-4", "open"]
    assert (view.ended_count, view.open_count) == (2, 1)
    assert view.forget(0.0, most=0) == 2
    assert ids(view) == ["open"]


def test_a_search_that_finds_little_ends_its_page_and_can_be_continued() -> None:
    view = WorkloadIndex()
    offer_all(view, submitted(job("old")))
    total = MAX_EXAMINED + 10
    for n in range(total):
        request = job(f"j-{n}")
        offer_all(view, submitted(request), cancelled(request, 2 * n + 2), start=2 * n + 2)
    page = listed(view, ListRequest(states=("queued", "cancelled"), queue="research"))
    assert (page.workloads, page.next_before > 0) == ((), True)
    assert ids(view, states=("queued", "succeeded")) == ["old"]
    assert listed(view, ListRequest(states=("queued",))).next_before == 0  # looks at one


def test_a_page_of_long_entries_stays_below_what_a_reply_may_hold() -> None:
    view = WorkloadIndex()
    models = tuple(f"{n:03}" + "m" * 313 for n in range(32))
    for n in range(1000):
        request = job(f"j-{n}", pod_sets=(PodSet(gpus=1, gpu_models=models),))
        offer_all(view, submitted(request), start=n + 1)
    page = listed(view, ListRequest(limit=1000))
    assert 10 < len(page.workloads) < 1000
    assert len(encode(page)) < 500_000
    assert len(ids(view, limit=1000)) == 1000


def test_an_ended_workload_costs_some_hundred_bytes() -> None:
    count = 5000
    events = []
    for n in range(count):
        request = job(f"train-{n}", pod_sets=(PodSet(gpus=1, gpu_models=("A100",)),))
        events += [encode(submitted(request)), encode(cancelled(request, 2 * n + 1))]
    view = WorkloadIndex()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for sequence, data in enumerate(events, 1):
            view.offer(EVENTS.decode(data), sequence, float(sequence))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert view.ended_count == count
    assert (after - before) / count < 700


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.booleans()), max_size=60), st.integers(1, 5))
def test_pages_together_list_everything(steps: list[tuple[int, bool]], limit: int) -> None:
    view = WorkloadIndex()
    at: dict[str, tuple[int, int]] = {}  # id -> order, last sequence, of those that live
    ended: dict[str, int] = {}
    for sequence, (n, forget) in enumerate(steps, 1):
        name = f"j-{n}"
        if name in at:
            order, last = at.pop(name)
            offer_all(view, cancelled(job(name), last), start=sequence)
            ended[name] = order
        else:
            offer_all(view, submitted(job(name)), start=sequence)
            at[name] = (sequence, sequence)
            ended.pop(name, None)
        if forget:
            view.forget(1e9)
            ended.clear()
    orders = ended | {name: order for name, (order, _) in at.items()}
    assert ids(view, limit=limit) == sorted(orders, key=lambda name: -orders[name])
    assert ids(view, limit=limit, states=("queued",)) == sorted(at, key=lambda name: -at[name][0])
    counts = listed(view, ListRequest()).counts
    assert counts == {k: v for k, v in [("queued", len(at)), ("cancelled", len(ended))] if v}


def sized(name: str, **fields: Any) -> JobRequest:
    """One pod with 8 GiB of a GPU, as ``--gpus 8Gi`` has it."""
    pods = PodSet(gpus=1, gpu_milli=1, gpu_memory_mib=8192)
    return job(name, pod_sets=(pods,), **fields)


def charged(placed_as: Placed, milli: int) -> Placed:
    pods = tuple(msgspec.structs.replace(each, charged_milli=milli) for each in placed_as.pods)
    return msgspec.structs.replace(placed_as, pods=pods)


def test_view_shows_what_the_decision_charged() -> None:
    view, request = WorkloadIndex(), sized("train")
    offer_all(view, submitted(request))
    assert [each.gpus for each in listed(view, ListRequest()).workloads] == [0.001]
    offer_all(view, charged(placed(request, 1), 500), start=2)
    assert [each.gpus for each in listed(view, ListRequest()).workloads] == [0.5]
    offer_all(view, claimed(request, 2), succeeded(request, 3), start=3)
    assert [each.gpus for each in listed(view, ListRequest()).workloads] == [0.5]


def test_view_of_divided_job_adds_up_its_parts() -> None:
    view = WorkloadIndex()
    whole = sized("train", divide=Divide())
    places = tuple(PartPlace(id=f"train--1-{n}", cluster=f"c{n + 1}", pods=1) for n in (0, 1))
    of = Part(job="train", attempt=1, number=0, clusters=("c1", "c2"), pods=(1, 1))
    parts = [sized(each.id, part=of) for each in places]
    head: dict[str, Any] = {"tenant": "ann", "id": "train", "at_s": 0.0, "by": "resolver"}
    divided = Divided(**head, after=1, attempt=1, parts=places, decision=1)
    offer_all(view, submitted(whole), divided, *map(submitted, parts))
    offer_all(view, charged(placed(parts[0], 3), 500), charged(placed(parts[1], 4), 100), start=5)
    assert [each.gpus for each in listed(view, ListRequest()).workloads] == [0.6]

"""What the door makes of the log, and what it believes of whom."""

from typing import Any

import msgspec
import pytest

from berthmaster.control.door.core.log_view import (
    MAX_HEARD,
    Behind,
    Frozen,
    LogView,
    Refuse,
    Settle,
    Store,
    StoredHint,
    Unreadable,
)
from berthmaster.lib.kueue.jobs import job_name
from berthmaster.lib.lifecycle.attempts import MOST_ATTEMPTS
from berthmaster.lib.lifecycle.workload import key
from berthmaster.lib.messages.door import HubPods, HubWork, OwnWorkload, PlacementReceipt
from berthmaster.lib.messages.families import EVENTS, encode
from berthmaster.lib.messages.placement import HUB_CELL, PodBinding, Target
from berthmaster.lib.messages.workload import (
    Cancelled,
    CancelRequested,
    Carried,
    Checkpoint,
    Checkpointed,
    Claimed,
    Evicted,
    Failed,
    HubObject,
    JobRequest,
    Placed,
    PodSet,
    Progress,
    Progressed,
    Running,
    State,
    Submitted,
    Succeeded,
    WorkloadEvent,
)
from berthmaster.lib.nats.message_subjects import event_subject
from tests.support.lives import CLAIMED

RED, BLUE = "red", "blue"
PODS = (PodBinding(pod="main-0", node="n1", gpus=(0,)),)
ODD = ("cancel", "lost", "-", "a.b *>")  # a cluster may be called anything


def head(after: int, name: str = "train", **more: Any) -> dict[str, Any]:
    return {"tenant": "acme", "id": name, "after": after, "at_s": 0.0, "by": "x"} | more


class Log:
    """Stores what it is given, as a server without guards would."""

    def __init__(self, window: int = 100) -> None:
        self.view = LogView(window)
        self.last = 0
        self.data: dict[int, bytes] = {}

    def store(self, event: WorkloadEvent) -> str:
        self.last += 1
        self.data[self.last] = encode(event)
        return self.view.take(event_subject(event), self.last, 100.0, self.data[self.last])

    def submit(
        self,
        name: str = "train",
        cell: str = "all",
        pod_sets: tuple[PodSet, ...] = (PodSet(),),
        origin: HubObject | None = None,
        **more: Any,
    ) -> int:
        job = JobRequest(id=name, pod_sets=pod_sets, **more)
        self.store(Submitted(**head(0, name), request=job, digest="d", cell=cell, origin=origin))
        return self.last

    def place(
        self,
        cluster: str,
        name: str = "train",
        *,
        attempt: int = 1,
        cell: str = "all",
        pod_sets: tuple[PodSet, ...] = (PodSet(),),
        target: Target = Target(),  # noqa: B008
        **more: Any,
    ) -> Placed:
        """Submitted if need be, and placed."""
        after = self.submit(name, cell, pod_sets, **more) if attempt == 1 else self.last
        placed = Placed(
            **head(after, name),
            cluster=cluster,
            attempt=attempt,
            pods=PODS,
            request=JobRequest(id=name, pod_sets=pod_sets),
            decision=1,
            cell=cell,
            target=target,
        )
        self.store(placed)
        return placed

    def hint(self, sequence: int, *, held: bool = False) -> StoredHint:
        event = EVENTS.decode(self.data[sequence])
        receipt = None
        if isinstance(event, Placed):
            receipt = PlacementReceipt(
                tenant=event.tenant,
                id=event.id,
                cluster=event.cluster,
                attempt=event.attempt,
                request=event.request,
                digest="d",
                pods=event.pods,
                decision=event.decision,
                sequence=sequence,
                submitted_sequence=event.after,
                submitted_at_s=100.0,
                placed_at_s=100.0,
            )
        return StoredHint(sequence, self.data[sequence], held, receipt)


def at_work() -> Log:
    """A view that has caught up with a log in which one job is over."""
    log = Log()
    log.submit("old")
    log.store(Cancelled(**head(1, "old"), digest="d", submitted_at_s=1.0))
    log.view.caught_up()
    return log


def claimed(after: int, cluster: str = RED, attempt: int = 1, name: str = "train") -> Claimed:
    by = f"executor/{cluster}"
    fields = head(after, name, by=by, cluster=cluster, attempt=attempt)
    return Claimed(**fields, executor=by)


def succeeded(after: int, cluster: str = RED, attempt: int = 1, name: str = "train") -> Succeeded:
    by = f"executor/{cluster}"
    return Succeeded(
        **head(after, name, by=by), cluster=cluster, attempt=attempt, digest="d", submitted_at_s=1.0
    )


def test_a_cluster_hears_of_its_own_placements_wishes_and_endings_by_others() -> None:
    log = at_work()
    log.place(RED)
    placed = log.last
    assert log.store(claimed(placed)) == ""  # its own word, and there is news of none
    assert log.store(CancelRequested(**head(log.last), cluster=RED)) == RED
    wish = log.last
    evicted = Evicted(**head(wish, by="resolver"), cluster=RED, attempt=1, reason="lost")
    assert log.store(evicted) == RED
    assert log.view.since(RED, placed - 1, 10**6) == [
        log.hint(placed),
        log.hint(wish),
        log.hint(log.last),
    ]
    assert log.view.since(RED, wish, 10**6) == [log.hint(log.last)]
    assert log.view.since(RED, log.last, 10**6) == []
    assert log.view.since(BLUE, 0, 10**6) == []
    assert log.view.listed(RED, "", 10**6) == ([], "")


def test_what_a_claimant_said_itself_is_no_news() -> None:
    log = at_work()
    log.place(RED)
    log.store(claimed(log.last))
    own = Evicted(**head(log.last, by="executor/red"), cluster=RED, attempt=1, reason="node gone")
    assert log.store(own) == ""


def test_the_list_has_what_is_open_page_by_page_with_the_wishes() -> None:
    log = at_work()
    sequences = {}
    for name in ("c", "a", "b"):
        log.place(RED, name)
        sequences[name] = log.last
    log.place(BLUE, "elsewhere")
    log.store(claimed(sequences["a"], name="a"))
    log.store(CancelRequested(**head(log.last, "a"), cluster=RED))
    first, mark = log.view.listed(RED, "", 1)
    assert first == [log.hint(sequences["a"], held=True), log.hint(log.last)]
    second, mark = log.view.listed(RED, mark, 1)
    assert (second, mark) == ([log.hint(sequences["b"])], key("acme", "b"))
    assert log.view.listed(RED, mark, 1) == ([log.hint(sequences["c"])], "")


def test_of_what_goes_by_way_of_a_hub_an_executor_tells_what_the_job_says_and_no_more() -> None:
    log = at_work()
    log.place(RED, cell=HUB_CELL)
    assert log.view.listed(RED, "", 10**6) == ([], "")
    assert log.view.story(RED, "acme", "train") is None
    by_hub = Refuse("it goes by way of a hub, whose reconciler tells what becomes of it")
    assert log.view.check(RED, claimed(log.last), again=False) == by_hub
    log.store(claimed(log.last))
    log.store(Running(**here(log), pods=()))
    assert log.view.check(RED, succeeded(log.last), again=False) == by_hub

    said = Progressed(**here(log), progress=Progress(step=5))
    assert log.view.check(RED, said, again=False) == Store()
    saved = Checkpointed(**here(log), checkpoint=Checkpoint(step=4, uri="s3://me:pw@runs/4"))
    assert log.view.check(RED, saved, again=False) == Refuse(
        "checkpoint.uri: it names a user and a password, or is not one line"
    )
    elsewhere = msgspec.structs.replace(said, cluster=BLUE)
    assert log.view.check(BLUE, elsewhere, again=False) == Refuse("not placed in this cluster")
    for _ in range(2 * MAX_HEARD):
        log.store(Progressed(**here(log), progress=Progress(step=5)))
    once_more = Progressed(**here(log), progress=Progress(step=5))
    assert isinstance(log.view.check(RED, once_more, again=False), Refuse)


def test_what_karmada_sends_is_no_executors_business() -> None:
    log = at_work()
    log.place(RED, target=Target(via="hub", namespace="team"))
    assert log.view.listed(RED, "", 10**6) == ([], "")
    theirs = HubPods(namespace="team", job=job_name("acme", "train"))
    assert log.view.hub_work(RED, theirs) is None
    not_here = Refuse("not placed in this cluster")
    assert log.view.check(RED, claimed(log.last), again=False) == not_here
    log.store(claimed(log.last))
    assert log.view.check(RED, succeeded(log.last), again=False) == not_here


def test_pods_of_a_hub_are_known_where_their_workload_is_placed_and_while_it_is() -> None:
    log = at_work()
    origin = HubObject(namespace="team", name="job-train-1a2b3", owner="Job/train")
    two = (PodSet(name="head"), PodSet(name="workers", count=2))
    log.place(RED, cell=HUB_CELL, origin=origin, pod_sets=two)
    theirs = HubPods(namespace="team", workload="job-train-1a2b3", job="train")
    found = log.view.hub_work(RED, theirs)
    assert found == HubWork(
        tenant="acme", id="train", attempt=1, sequence=log.last, pod_sets=("head", "workers")
    )
    # Not by the name of a Job that people made, not in another namespace, not from elsewhere.
    for cluster, asked in (
        (RED, HubPods(namespace="team", job="train")),
        (RED, HubPods(namespace="other", workload="job-train-1a2b3")),
        (RED, HubPods(namespace="team")),
        (BLUE, theirs),
    ):
        assert log.view.hub_work(cluster, asked) is None

    # Ours are known by the name of the Job that we made, in the namespace in which that is.
    log.place(RED, "direct", cell=HUB_CELL, target=Target(via="hub", namespace="team"))
    ours = HubPods(namespace="team", workload="job-direct-4c5d6", job=job_name("acme", "direct"))
    direct = log.view.hub_work(RED, ours)
    assert direct is not None
    assert direct.id == "direct"
    assert log.view.hub_work(RED, msgspec.structs.replace(ours, namespace="other")) is None

    # Given back, and placed elsewhere.
    log.store(claimed(found.sequence))
    log.store(Evicted(**head(log.last), cluster=RED, attempt=1, reason="preempted"))
    assert log.view.hub_work(RED, theirs) is None
    log.place(BLUE, attempt=2, cell=HUB_CELL)
    there = log.view.hub_work(BLUE, theirs)
    assert there is not None
    assert there.attempt == 2
    log.store(claimed(log.last, BLUE, 2))
    log.store(succeeded(log.last, BLUE, 2))
    assert log.view.hub_work(BLUE, theirs) is None


def test_a_cursor_older_than_the_window_or_than_the_door_is_of_no_use() -> None:
    log = Log(window=2)
    log.place(RED, "early")
    log.view.caught_up()
    born = log.last
    assert not log.view.follows(RED, born - 1)
    assert log.view.follows(RED, born)
    for name in ("one", "two", "three"):
        log.place(RED, name)
    oldest = log.last - 4
    assert not log.view.follows(RED, oldest - 1)  # the first was dropped from the window
    assert log.view.follows(RED, oldest)
    assert [one.sequence for one in log.view.since(RED, oldest, 10**6)] == [log.last - 2, log.last]
    assert log.view.follows(BLUE, born)


@pytest.mark.parametrize("cluster", [RED, *ODD])
def test_an_executors_life_is_stored_step_by_step(cluster: str) -> None:
    log = at_work()
    log.place(cluster)
    first = claimed(log.last, cluster)
    assert log.view.check(cluster, first, again=False) == Store()
    log.store(first)
    runs = Running(**head(log.last), cluster=cluster, attempt=1, pods=PODS)
    assert log.view.check(cluster, runs, again=False) == Store()
    log.store(runs)
    assert log.view.check(cluster, succeeded(log.last, cluster), again=False) == Store()
    log.store(succeeded(log.last, cluster))
    assert log.view.open == 0
    late = log.view.check(cluster, runs, again=False)
    assert late == Refuse("after: something else has happened")


@pytest.mark.parametrize("other", [BLUE, *ODD])
@pytest.mark.parametrize("again", [False, True])
def test_nobody_ends_another_clusters_job(other: str, again: bool) -> None:
    log = at_work()
    log.place(RED)
    log.store(claimed(log.last))
    view, last = log.view, log.last
    forged = succeeded(last, other)
    assert view.check(other, forged, again=again) == Refuse("not placed in this cluster")
    assert view.check(other, succeeded(10**9, other), again=again) == Behind()
    old = view.check(other, succeeded(0, other), again=again)
    assert old == (Settle() if again else Refuse("after: something else has happened"))
    about = view.check(other, succeeded(last, RED), again=again)
    assert isinstance(about, Refuse)
    assert about.why.startswith("cluster: ")
    nobody = view.check(other, succeeded(last, ""), again=again)
    assert isinstance(nobody, Refuse)
    assert view.story(other, "acme", "train") is None
    assert view.listed(other, "", 10**6) == ([], "")


def test_what_is_out_of_order_or_of_another_attempt_is_refused() -> None:
    log = at_work()
    log.place(RED)
    view = log.view
    runs = Running(**head(log.last), cluster=RED, attempt=1, pods=PODS)
    assert view.check(RED, runs, again=False) == Refuse(
        "attempt 1 of a workload that is placed cannot take running"
    )
    for attempt in (0, 2, 10**9):
        found = view.check(RED, claimed(log.last, attempt=attempt), again=False)
        assert isinstance(found, Refuse)
    log.store(claimed(log.last))
    again = view.check(RED, claimed(log.last), again=False)
    assert again == Refuse("attempt 1 of a workload that is claimed cannot take claimed")
    # A check stores nothing and leaves nothing behind.
    assert view.check(RED, succeeded(log.last), again=False) == Store()
    assert view.check(RED, succeeded(log.last), again=False) == Store()
    story = view.story(RED, "acme", "train")
    assert isinstance(story, OwnWorkload)
    assert (story.state, story.sequence) == ("claimed", log.last)


def test_before_its_placement_and_after_its_ending_a_job_is_nobodys() -> None:
    log = at_work()
    log.submit()
    assert isinstance(log.view.check(RED, succeeded(log.last), again=False), Refuse)
    cancelled = Cancelled(**head(log.last), cluster=RED, digest="d", submitted_at_s=1.0)
    assert isinstance(log.view.check(RED, cancelled, again=False), Refuse)
    unknown = log.view.check(RED, succeeded(1, name="never"), again=False)
    assert unknown == Refuse("after: something else has happened")


def test_told_again_what_stands_behind_its_guard_is_looked_up() -> None:
    log = at_work()
    log.place(RED)
    first = claimed(log.last)
    log.store(first)
    assert log.view.check(RED, first, again=True) == Settle()
    log.store(succeeded(log.last))
    assert log.view.check(RED, first, again=True) == Settle()


def carried(cluster: str, **changes: Any) -> Carried:
    request = JobRequest(id="train")
    work = msgspec.structs.replace(
        CLAIMED, request=request, digest="d", cluster=cluster, pods=PODS, **changes
    )
    return Carried(
        **head(0, by="berth recover"), workload=work, cluster=cluster if changes == {} else ""
    )


def test_carried_workload_is_listed_as_claimed_and_its_executor_goes_on() -> None:
    log = at_work()
    assert log.store(carried(RED)) == RED
    ((hint,), _) = log.view.listed(RED, "", 10**6)
    assert (hint.sequence, hint.held, hint.receipt is not None) == (log.last, True, True)
    placed = EVENTS.decode(hint.event)
    assert isinstance(placed, Placed)
    assert (placed.cluster, placed.attempt, placed.pods, placed.decision) == (RED, 2, PODS, 4)
    assert placed.request == JobRequest(id="train")
    story = log.view.story(RED, "acme", "train")
    assert isinstance(story, OwnWorkload)
    assert (story.state, story.sequence, story.attempt) == ("claimed", log.last, 2)
    assert log.view.check(RED, succeeded(log.last, attempt=2), again=False) == Store()


def test_carried_workload_that_is_placed_is_a_hint_that_nobody_holds() -> None:
    log = at_work()
    work = msgspec.structs.replace(CLAIMED, state=State.PLACED, claimed_at_s=0.0, executor="")
    assert log.store(Carried(**head(0), workload=work, cluster=CLAIMED.cluster)) == CLAIMED.cluster
    ((hint,), _) = log.view.listed(CLAIMED.cluster, "", 10**6)
    assert (hint.held, hint.receipt is not None) == (False, True)


def test_carried_workload_without_a_place_is_no_hint() -> None:
    log = at_work()
    assert log.store(carried(RED, state=State.QUEUED)) == ""
    assert log.view.listed(RED, "", 10**6) == ([], "")
    assert log.view.open == 1


def test_frozen_workload_ends_by_its_ending() -> None:
    log = at_work()
    log.place(RED)
    log.last += 1  # lost
    assert log.store(Running(**here(log), pods=PODS)) == ""
    assert isinstance(log.view.story(RED, "acme", "train"), Frozen)
    assert log.view.has(RED, "acme/train", 1)
    stale = Cancelled(**head(log.last - 2), digest="d", submitted_at_s=1.0)
    log.store(stale)
    assert isinstance(log.view.story(RED, "acme", "train"), Frozen)
    log.store(succeeded(log.last))
    assert log.view.story(RED, "acme", "train") is None
    assert (log.view.open, log.view.frozen, log.view.frozen_in) == (0, {}, {})
    assert log.view.had(RED, "acme/train", 1)


def test_a_story_has_nothing_of_other_clusters() -> None:
    log = at_work()
    log.place(BLUE)
    log.store(claimed(log.last, BLUE))
    log.store(
        Evicted(
            **head(log.last, by="executor/blue"), cluster=BLUE, attempt=1, reason="node blue-7 died"
        )
    )
    log.place(RED, attempt=2)
    story = log.view.story(RED, "acme", "train")
    assert isinstance(story, OwnWorkload)
    assert (story.cluster, story.attempt, story.evictions, story.state) == (RED, 2, 1, "placed")
    assert b"blue" not in encode(story)
    assert log.view.story(BLUE, "acme", "train") is None


def test_a_job_whose_story_cannot_be_read_is_frozen_for_its_cluster_only() -> None:
    log = at_work()
    log.place(RED)
    log.last += 1
    with pytest.raises(Unreadable, match="noted"):
        log.view.take(
            "berth.workload.acme.train.noted.-", log.last, 1.0, b'{"type":"workload.noted.v7"}'
        )
    assert isinstance(log.view.story(RED, "acme", "train"), Frozen)
    assert isinstance(log.view.check(RED, claimed(log.last - 1), again=True), Frozen)
    assert log.view.story(BLUE, "acme", "train") is None
    assert log.view.check(BLUE, claimed(log.last, BLUE), again=True) == Refuse(
        "not placed in this cluster"
    )
    assert log.view.listed(RED, "", 10**6) == ([], "")
    # What follows is not folded, and others go on.
    assert log.store(claimed(log.last)) == ""
    log.place(RED, "other")


def test_an_event_under_anothers_subject_is_void_and_the_next_honest_one_counts() -> None:
    log = at_work()
    log.place(RED)
    log.last += 1
    lie = encode(succeeded(log.last - 1, BLUE))
    assert log.view.take("berth.workload.acme.train.succeeded.red", log.last, 1.0, lie) == ""
    told = log.view.story(RED, "acme", "train")
    assert isinstance(told, OwnWorkload)
    assert (told.state, told.sequence) == ("placed", log.last)
    assert isinstance(log.view.check(RED, claimed(log.last), again=False), Store)


def test_a_late_event_opens_no_ended_workload_anew() -> None:
    log = at_work()
    log.submit()
    log.store(Failed(**head(log.last), digest="d", submitted_at_s=1.0))
    assert log.view.open == 0
    log.submit()  # stored in spite of its guard, as a stale writer's may be
    assert log.view.open == 0


def test_what_a_cluster_may_add_to_one_story_is_bounded() -> None:
    log = at_work()
    log.place(RED)
    log.store(claimed(log.last))
    long = "x" * 10_000
    for event in (
        Evicted(**here(log), reason=long),
        Evicted(**here(log), reason="x", blameless=True),
        Failed(**here(log), digest="another", submitted_at_s=1.0),
        Running(**here(log, cause=long), pods=PODS),
    ):
        assert isinstance(log.view.check(RED, event, again=False), Refuse), event
    for _ in range(200):
        runs = Running(**here(log), pods=PODS)
        assert log.view.check(RED, runs, again=False) == Store()
        log.store(runs)
    once_more = log.view.check(RED, Running(**here(log), pods=PODS), again=False)
    assert once_more == Refuse("pods: told 200 times in one attempt")
    assert log.view.check(RED, succeeded(log.last), again=False) == Store()


def test_a_gang_that_gives_way_to_another_is_to_blame_for_nothing_and_not_for_ever() -> None:
    log = at_work()

    def blameless(attempt: int) -> object:
        fields = head(log.last, by="executor/red", cluster=RED, attempt=attempt)
        event = Evicted(**fields, reason="it gives way", blameless=True)
        answer = log.view.check(RED, event, again=False)
        log.store(event)
        return answer

    for attempt in range(1, MOST_ATTEMPTS + 2):
        log.place(RED, attempt=attempt, pod_sets=(PodSet(count=2),))
        log.store(claimed(log.last, attempt=attempt))
        told = blameless(attempt)
        assert (told == Store()) is (attempt <= MOST_ATTEMPTS), (attempt, told)
    # Neither is one that runs, nor one of a single pod.
    again = MOST_ATTEMPTS + 2
    log.place(RED, attempt=again, pod_sets=(PodSet(count=2),))
    log.store(claimed(log.last, attempt=again))
    log.store(Running(**head(log.last, by="executor/red", cluster=RED, attempt=again), pods=PODS))
    assert isinstance(blameless(again), Refuse)


def test_one_eviction_more_than_the_request_allows_is_no_eviction() -> None:
    log = at_work()
    for attempt in range(1, 12):
        log.place(RED, attempt=attempt)
        log.store(claimed(log.last, attempt=attempt))
        evicted = Evicted(**here(log, attempt=attempt), reason="x")
        allowed = log.view.check(RED, evicted, again=False)
        assert (allowed == Store()) == (attempt <= 10), attempt
        log.store(evicted)


def here(log: Log, **more: Any) -> dict[str, Any]:
    return head(log.last, by="executor/red", cluster=RED, attempt=1) | more


def test_a_letter_names_no_workload_of_others() -> None:
    log = at_work()
    log.place(RED)
    assert log.view.concerns(RED, "acme/train")
    assert not log.view.concerns(BLUE, "acme/train")
    assert not log.view.concerns(RED, "")


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("name", ["", "x" * 600])
def test_a_name_that_no_subject_holds_is_refused(name: str, again: bool) -> None:
    found = at_work().view.check(RED, claimed(1, name=name), again=again)
    assert isinstance(found, Refuse)
    assert found.why.startswith("tenant, id: ")


def test_a_failure_is_given_back_as_often_as_its_request_is_tried_again() -> None:
    log = at_work()
    for attempt in range(1, 4):
        log.place(RED, attempt=attempt, retries=2, no_retry_exit_codes=(3,))
        log.store(claimed(log.last, attempt=attempt))
        failed = Evicted(**here(log, attempt=attempt), reason="x", fault="exit", exit_code=1)
        final = Evicted(**here(log, attempt=attempt), reason="x", fault="exit", exit_code=3)
        assert (log.view.check(RED, failed, again=False) == Store()) == (attempt <= 2), attempt
        assert isinstance(log.view.check(RED, final, again=False), Refuse)
        log.store(failed)

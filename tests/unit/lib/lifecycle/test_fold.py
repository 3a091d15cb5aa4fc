"""The fold: what becomes of each event, and what a workload is after it."""

import copy

import pytest

from berthmaster.lib.lifecycle.fold import Verdict, is_whole, offer
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Workload, key, request_digest
from berthmaster.lib.messages.api import RecordedEvent
from berthmaster.lib.messages.families import JOB_REQUESTS
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import (
    Admitted,
    Cancelled,
    CancelRequested,
    Carried,
    CarriedWorkload,
    Claimed,
    Evicted,
    Failed,
    Placed,
    Progressed,
    Reprioritized,
    Running,
    Submitted,
    Succeeded,
    Withdrawn,
    WorkloadEvent,
)
from tests.support.lives import (
    CLAIMED,
    CLUSTER,
    DIGEST,
    ID,
    PODS,
    REQUEST,
    TENANT,
    fitting,
    lived,
    new,
)


def test_a_whole_life_adds_up_to_one_workload() -> None:
    workload = lived(
        Submitted, Reprioritized, Placed, Claimed, Admitted, Running, CancelRequested, Cancelled
    )
    assert workload == Workload(
        tenant=TENANT,
        id=ID,
        state=State.CANCELLED,
        sequence=80,
        changed_at_s=8.0,
        request=REQUEST,
        digest=DIGEST,
        priority=7,
        submitted_sequence=10,
        submitted_at_s=1.0,
        attempt=1,
        cluster=CLUSTER,
        pods=PODS,
        decision=1,
        placed_at_s=3.0,
        claimed_at_s=4.0,
        running_at_s=6.0,
        executor="executor/1",
        cancel_requested=True,
        reason="over",
    )
    assert workload.key == key(TENANT, ID) == "team-a/train-1"


def test_a_second_attempt_forgets_the_first_but_not_that_it_was_evicted() -> None:
    workload = lived(Submitted, Placed, Claimed, Running, Evicted, Placed)
    assert (workload.attempt, workload.evictions, workload.reason) == (2, 1, "node lost")
    assert (workload.executor, workload.claimed_at_s, workload.running_at_s) == ("", 0.0, 0.0)
    assert (workload.placed_at_s, workload.decision) == (6.0, 2)


def test_of_two_writers_that_saw_the_same_the_first_stored_counts_and_the_other_is_void() -> None:
    workload = lived(Submitted, Placed)
    claimed, withdrawn = fitting(Claimed, workload), fitting(Withdrawn, workload)
    assert offer(workload, claimed, 30, 3.0) is Verdict.COUNTED
    before = copy.deepcopy(workload)

    assert offer(workload, withdrawn, 40, 4.0) is Verdict.VOID

    before.sequence = 40
    assert workload == before


def test_a_void_event_does_not_keep_the_next_writer_out() -> None:
    workload = lived(Submitted, Placed)
    stale = fitting(Withdrawn, workload)
    offer(workload, fitting(Claimed, workload), 30, 3.0)
    offer(workload, stale, 40, 4.0)

    # The server compares the guard with 40 now, and so does the fold.
    running = fitting(Running, workload)
    assert running.after == 40
    assert offer(workload, running, 50, 5.0) is Verdict.COUNTED
    assert workload.state is State.RUNNING


def test_an_impossible_event_does_not_keep_the_next_writer_out_either() -> None:
    workload = lived(Submitted)
    assert offer(workload, fitting(Running, workload), 20, 2.0) is Verdict.IMPOSSIBLE
    assert offer(workload, fitting(Placed, workload), 30, 3.0) is Verdict.COUNTED


def test_told_twice_nothing_changes() -> None:
    workload, events = new(), []
    kinds: tuple[type[WorkloadEvent], ...] = (Submitted, Placed, Claimed, Running, Succeeded)
    for number, kind in enumerate(kinds, 1):
        event = fitting(kind, workload)
        events.append((event, 10 * number))
        offer(workload, event, 10 * number, float(number))
    before = copy.deepcopy(workload)
    for event, sequence in events:
        assert offer(workload, event, sequence, 99.0) is Verdict.REPEATED
    assert workload == before


@pytest.mark.parametrize("kind", [Withdrawn, Claimed])
@pytest.mark.parametrize("change", [{"attempt": 1}, {"attempt": 3}, {"cluster": "c2"}], ids=str)
def test_an_event_of_another_attempt_than_the_open_one_is_impossible(
    kind: type[WorkloadEvent], change: dict[str, object]
) -> None:
    workload = lived(Submitted, Placed, Withdrawn, Placed)
    assert offer(workload, fitting(kind, workload, **change), 50, 5.0) is Verdict.IMPOSSIBLE
    assert workload.state is State.PLACED


@pytest.mark.parametrize("kind", [Admitted, Running, Evicted, Succeeded, Failed, Cancelled])
@pytest.mark.parametrize("change", [{"attempt": 0}, {"attempt": 2}, {"cluster": "c2"}], ids=str)
def test_only_the_attempt_that_was_claimed_can_go_on_or_end(
    kind: type[WorkloadEvent], change: dict[str, object]
) -> None:
    workload = lived(Submitted, Placed, Claimed)
    assert offer(workload, fitting(kind, workload, **change), 40, 4.0) is Verdict.IMPOSSIBLE
    assert workload.state is State.CLAIMED


def test_a_wish_to_cancel_is_for_the_cluster_that_holds_the_workload() -> None:
    workload = lived(Submitted, Placed, Claimed)
    elsewhere = fitting(CancelRequested, workload, cluster="c2")
    assert offer(workload, elsewhere, 40, 4.0) is Verdict.IMPOSSIBLE
    assert not workload.cancel_requested


@pytest.mark.parametrize("attempt", [0, 1, 3])
def test_a_placement_opens_the_next_attempt_and_no_other(attempt: int) -> None:
    workload = lived(Submitted, Placed, Withdrawn)
    placed = fitting(Placed, workload, attempt=attempt)
    assert offer(workload, placed, 40, 4.0) is Verdict.IMPOSSIBLE


def test_a_wish_to_cancel_outlives_the_attempt_that_was_evicted_meanwhile() -> None:
    workload = lived(Submitted, Placed, Claimed, CancelRequested, Evicted)
    assert (workload.state, workload.cancel_requested) == (State.QUEUED, True)

    # A resolver that did not look placed it anew: its next executor still learns of the wish.
    offer(workload, fitting(Placed, workload), 60, 6.0)
    offer(workload, fitting(Claimed, workload), 70, 7.0)
    assert (workload.state, workload.cancel_requested) == (State.CLAIMED, True)


def test_pods_that_moved_are_where_they_are_now_and_ran_from_the_first_time() -> None:
    workload = lived(Submitted, Placed, Claimed, Running)
    there = (PodBinding(pod="main-0", node="n2", gpus=(3,)),)
    offer(workload, fitting(Running, workload, pods=there), 50, 5.0)
    assert (workload.pods, workload.running_at_s) == (there, 4.0)


def recorded(*events: tuple[int, WorkloadEvent]) -> list[RecordedEvent]:
    return [RecordedEvent(sequence=at, stored_at_s=0.0, event=event) for at, event in events]


# The table at the top of fold.py, a test for each row


def known() -> Workload:
    """A workload that runs, and whose last event stands under 40."""
    return lived(Submitted, Placed, Claimed, Running)


def tombstone(after: int = 70, attempt: int = 3, cluster: str = "c9") -> Succeeded:
    return Succeeded(
        tenant=TENANT,
        id=ID,
        after=after,
        at_s=0.0,
        by="test",
        attempt=attempt,
        cluster=cluster,
        digest=DIGEST,
        submitted_at_s=1.0,
        reason="done",
    )


def test_next_event_counts_if_table_allows_it() -> None:
    workload = known()
    assert offer(workload, fitting(Evicted, workload), 55, 5.0) is Verdict.COUNTED
    assert (workload.state, workload.sequence, workload.changed_at_s) == (State.QUEUED, 55, 5.0)


def test_next_event_without_row_is_impossible_and_moves_sequence() -> None:
    workload, expected = known(), known()
    assert offer(workload, fitting(Placed, workload), 55, 5.0) is Verdict.IMPOSSIBLE
    expected.sequence = 55
    assert workload == expected


@pytest.mark.parametrize("after", [31, 55, 60, 10**9])
@pytest.mark.parametrize("kind", [Succeeded, Cancelled, Evicted, Progressed])
def test_event_behind_or_not_below_itself_is_void(kind: type[WorkloadEvent], after: int) -> None:
    workload, expected = known(), known()
    assert offer(workload, fitting(kind, workload, after=after), 55, 5.0) is Verdict.VOID
    expected.sequence = 55
    assert workload == expected


@pytest.mark.parametrize("kind", [Evicted, Progressed, Placed, Submitted])
def test_event_ahead_changes_nothing(kind: type[WorkloadEvent]) -> None:
    workload = known()
    assert offer(workload, fitting(kind, workload, after=47), 55, 5.0) is Verdict.AHEAD
    assert workload == known()


@pytest.mark.parametrize(
    ("attempt", "cluster", "counts"),
    [(1, CLUSTER, True), (1, "", True), (2, "c9", True), (1, "c9", False), (0, CLUSTER, False)],
)
def test_ending_ahead_counts_for_open_or_later_attempt(
    attempt: int, cluster: str, counts: bool
) -> None:
    workload = known()
    ending = tombstone(after=47, attempt=attempt, cluster=cluster)
    verdict = offer(workload, ending, 55, 5.0)
    assert verdict is (Verdict.COUNTED if counts else Verdict.VOID)
    assert workload.state is (State.SUCCEEDED if counts else State.RUNNING)
    assert workload.sequence == 55


@pytest.mark.parametrize("after", [0, 31, 40, 47, 60])
def test_event_of_applied_sequence_is_repeated(after: int) -> None:
    workload = known()
    for sequence in (38, 40):
        event = fitting(Evicted, workload, after=after)
        assert offer(workload, event, sequence, 5.0) is Verdict.REPEATED
    assert workload == known()


@pytest.mark.parametrize(
    "before", [(), (Submitted,), (Submitted, Placed, Claimed, Running), (Submitted, Cancelled)]
)
def test_carried_replaces_whatever_was_known(before: tuple[type[WorkloadEvent], ...]) -> None:
    workload = lived(*before)
    assert offer(workload, fitting(Carried, workload), 1_000_055, 5.0) is Verdict.COUNTED
    fields = {name: getattr(CLAIMED, name) for name in CarriedWorkload.__struct_fields__}
    assert workload == Workload(
        tenant=TENANT, id=ID, sequence=1_000_055, changed_at_s=5.0, **fields
    )
    for kind in (Running, Succeeded):
        at = workload.sequence + 10
        assert offer(workload, fitting(kind, workload), at, 6.0) is Verdict.COUNTED
    assert (workload.state, workload.attempt) == (State.SUCCEEDED, 2)


@pytest.mark.parametrize("after", [0, 47])
def test_submitted_begins_an_unknown_workload(after: int) -> None:
    workload = new()
    assert offer(workload, fitting(Submitted, workload, after=after), 55, 5.0) is Verdict.COUNTED
    assert (workload.state, workload.sequence) == (State.QUEUED, 55)
    assert (workload.submitted_sequence, workload.submitted_at_s) == (55, 5.0)


def test_submitted_not_below_itself_begins_nothing() -> None:
    workload = new()
    assert offer(workload, fitting(Submitted, workload, after=55), 55, 5.0) is Verdict.VOID
    assert workload.state is State.NEW


def test_tombstone_is_an_ended_workload_that_keeps_its_id_used() -> None:
    workload = new()
    assert offer(workload, tombstone(), 80, 8.0) is Verdict.COUNTED
    assert workload == Workload(
        tenant=TENANT,
        id=ID,
        state=State.SUCCEEDED,
        sequence=80,
        changed_at_s=8.0,
        digest=DIGEST,
        submitted_at_s=1.0,
        attempt=3,
        cluster="c9",
        reason="done",
    )
    assert offer(workload, fitting(Submitted, workload), 90, 9.0) is Verdict.IMPOSSIBLE


def test_other_event_of_an_unknown_workload_is_ahead() -> None:
    workload = new()
    left = recorded(*((at, fitting(Running, known(), after=at - 10)) for at in (40, 50)))
    for one in left:
        assert offer(workload, one.event, one.sequence, 4.0) is Verdict.AHEAD
    assert workload == new()


@pytest.mark.parametrize("kind", [Running, Cancelled])
def test_first_event_that_is_no_submission_is_impossible(kind: type[WorkloadEvent]) -> None:
    workload = new()
    event = fitting(kind, known(), after=0)
    assert offer(workload, event, 55, 5.0) is Verdict.IMPOSSIBLE
    assert workload == Workload(tenant=TENANT, id=ID, sequence=55)


def test_ended_workload_does_not_end_again() -> None:
    workload = lived(Submitted, Cancelled)
    assert offer(workload, tombstone(after=20), 30, 3.0) is Verdict.IMPOSSIBLE
    assert offer(workload, tombstone(after=10), 40, 4.0) is Verdict.VOID
    assert offer(workload, tombstone(after=45), 50, 5.0) is Verdict.VOID
    assert offer(workload, tombstone(after=99), 60, 6.0) is Verdict.VOID
    assert (workload.state, workload.reason) == (State.CANCELLED, "over")


@pytest.mark.parametrize("kind", [Submitted, Succeeded, Evicted, Carried])
@pytest.mark.parametrize("state", ["unknown", "running", "ended"])
def test_void_event_moves_the_sequence_only(kind: type[WorkloadEvent], state: str) -> None:
    """Its content is another workload's, whatever it names."""
    kinds: dict[str, tuple[type[WorkloadEvent], ...]] = {
        "unknown": (),
        "running": (Submitted, Placed, Claimed, Running),
        "ended": (Submitted, Cancelled),
    }
    for after in (0, 40, 47, 60):
        workload, expected = lived(*kinds[state]), lived(*kinds[state])
        event = fitting(kind, workload, after=after)
        assert offer(workload, event, 55, 5.0, void=True) is Verdict.VOID
        expected.sequence = 55
        assert workload == expected


@pytest.mark.parametrize("cluster", ["c9", "cancel", "lost", "-", "…", ""])
@pytest.mark.parametrize("kind", [Withdrawn, Claimed, Admitted, Running, Evicted, Succeeded])
def test_event_of_foreign_cluster_is_impossible(kind: type[WorkloadEvent], cluster: str) -> None:
    workload = lived(Submitted, Placed, Claimed)
    if cluster == "" and kind is Succeeded:
        return  # of a workload that never was placed
    foreign = fitting(kind, workload, cluster=cluster)
    before = copy.deepcopy(workload)
    assert offer(workload, foreign, 100, 9.0) is Verdict.IMPOSSIBLE
    before.sequence = 100
    assert workload == before
    assert offer(workload, fitting(Running, workload), 110, 9.0) is Verdict.COUNTED


# Histories


def test_history_is_whole_from_its_beginning_and_without_a_gap() -> None:
    kinds: tuple[type[WorkloadEvent], ...] = (Submitted, Placed, Claimed, Running, Succeeded)
    history = recorded(
        *((10 * n, fitting(kind, new(), after=10 * (n - 1))) for n, kind in enumerate(kinds, 1))
    )
    assert not is_whole([])
    assert [is_whole(history[:count]) for count in range(1, 6)] == [True] * 5
    assert [is_whole([*history[:count], history[-1]]) for count in range(4)] == [False] * 4
    assert not is_whole(history[1:])
    # A loser between two events is no gap, and the next one stands behind it.
    void, behind = recorded(
        (25, fitting(Placed, new(), after=10)), (30, fitting(Claimed, new(), after=25))
    )
    assert is_whole([*history[:2], void, behind])
    assert is_whole([*history[:2], *recorded((25, tombstone(after=10**9)))])


def test_history_in_a_recovered_log_is_whole_from_carried() -> None:
    carried = (1_000_020, fitting(Carried, new()))
    running = (1_000_030, fitting(Running, new(), attempt=2, after=1_000_020))
    assert is_whole(recorded(carried, running))
    assert not is_whole(recorded(running))


# Digest


def digest(body: bytes) -> str:
    return request_digest(JOB_REQUESTS.decode(body))


def test_a_digest_is_of_the_content_and_not_of_its_spelling() -> None:
    short = digest(b'{"id":"a","labels":{"x":"1","y":"2"},"expected_duration_s":60}')
    spelled_out = digest(
        b'{ "labels":{"y":"2","x":"1"}, "queue":"default", "priority":0, '
        b'"pod_sets":[{"gpu_milli":1000}],'
        b'"run":{"image":""}, "clusters":[],"expected_duration_s":6e1,"deadline_s":null,"id":"a"}'
    )
    assert short == spelled_out


@pytest.mark.parametrize(
    "other",
    [
        b'{"id":"b"}',
        b'{"id":"a","priority":1}',
        b'{"id":"a","pod_sets":[{"gpus":1}]}',
        b'{"id":"a","pod_sets":[{},{"name":"ps"}]}',
        b'{"id":"a","labels":{"x":""}}',
        b'{"id":"a","deadline_s":1}',
    ],
)
def test_another_content_has_another_digest(other: bytes) -> None:
    assert digest(other) != digest(b'{"id":"a"}')


def test_digests_stay_as_they_are_in_tombstones() -> None:
    assert digest(b'{"id":"a"}') == "dbd3279c69aed6e413f8387d07a84378"
    assert (
        digest(b'{"id":"a","pod_sets":[{"gpus":8,"gpu_models":["T4"]}]}')
        == "db86b330ba6e4e763ca292950d1b61c0"
    )

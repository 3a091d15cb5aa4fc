"""Stories of the fold: races, repeats, gaps, attempts."""

import copy

import msgspec
import pytest

from berthmaster.lifecycle.digest import request_digest
from berthmaster.lifecycle.fold import Verdict, heard, is_whole, judged_story, offer
from berthmaster.lifecycle.states import State
from berthmaster.lifecycle.workload import Workload, key
from berthmaster.messages.api import RecordedEvent
from berthmaster.messages.families import JOB_REQUESTS
from berthmaster.messages.placement import PodBinding
from berthmaster.messages.workload import (
    Admitted,
    Cancelled,
    CancelRequested,
    Claimed,
    Divided,
    Evicted,
    Failed,
    Placed,
    Recovered,
    Reprioritized,
    Running,
    Submitted,
    Succeeded,
    Withdrawn,
    WorkloadEvent,
)
from tests.support.lives import CLUSTER, DIGEST, ID, PODS, REQUEST, TENANT, fitting, lived, new


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


# Tombstones and gaps


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


def test_a_tombstone_alone_is_an_ended_workload_that_keeps_its_id_used() -> None:
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
    submitted = fitting(Submitted, workload)
    assert offer(workload, submitted, 90, 9.0) is Verdict.IMPOSSIBLE


def test_a_reader_that_slept_through_the_purge_sees_the_ending() -> None:
    # 1. it has folded up to running, attempt 1;
    asleep = lived(Submitted, Placed, Claimed, Running)
    # 2. while it sleeps: evicted, placed, claimed, succeeded, archived, purged to the ending;
    # 3. it wakes, and the next that its stream has is the ending.
    # By itself that could be a lie. The story says what it is: nothing stands before it.
    assert offer(asleep, tombstone(), 80, 8.0) is Verdict.MISSED
    story = [RecordedEvent(sequence=80, stored_at_s=8.0, event=tombstone())]
    _, [verdict] = judged_story(TENANT, ID, story)
    assert offer(asleep, tombstone(), 80, 8.0, judged=verdict) is Verdict.COUNTED
    assert (asleep.state, asleep.live, asleep.ended) == (State.SUCCEEDED, False, True)
    assert (asleep.attempt, asleep.cluster, asleep.sequence) == (3, "c9", 80)


@pytest.mark.parametrize("after", [30, 31, 1_000_000_000])
@pytest.mark.parametrize("kind", [Succeeded, Failed, Cancelled, Running, Claimed])
def test_event_after_future_is_void(kind: type[WorkloadEvent], after: int) -> None:
    workload = lived(Submitted, Placed)
    before = copy.deepcopy(workload)
    forged = msgspec.structs.replace(fitting(kind, workload), after=after)

    assert offer(workload, forged, 30, 3.0) is Verdict.VOID

    before.sequence = 30
    assert workload == before
    assert offer(workload, fitting(Claimed, workload), 40, 4.0) is Verdict.COUNTED


def test_a_forged_ending_alone_uses_no_id() -> None:
    workload = new()
    assert offer(workload, tombstone(after=80), 80, 8.0) is Verdict.VOID
    assert workload.state is State.NEW


def test_what_names_a_later_event_makes_no_gap_in_a_story() -> None:
    submitted = RecordedEvent(sequence=10, stored_at_s=1.0, event=fitting(Submitted, new()))
    forged = RecordedEvent(sequence=20, stored_at_s=2.0, event=tombstone(after=10**9))
    gap = RecordedEvent(sequence=20, stored_at_s=2.0, event=tombstone(after=19))
    assert is_whole((submitted, forged))
    assert not is_whole((submitted, gap))


def story_of(*events: tuple[int, WorkloadEvent]) -> list[RecordedEvent]:
    return [RecordedEvent(sequence=at, stored_at_s=0.0, event=event) for at, event in events]


def whole(*kinds: type[WorkloadEvent]) -> tuple[list[RecordedEvent], Workload]:
    """A life in tens, and what it comes to."""
    workload, events = new(), []
    for at, kind in enumerate(kinds, 1):
        event = fitting(kind, workload)
        events.append((10 * at, event))
        assert offer(workload, event, 10 * at, 0.0) is Verdict.COUNTED
    return story_of(*events), workload


def heard_live(story: list[RecordedEvent]) -> tuple[Workload, list[Verdict]]:
    """By a reader that hears each event by itself."""
    work = new()
    return work, [offer(work, one.event, one.sequence, one.stored_at_s) for one in story]


@pytest.mark.parametrize("kind", [Succeeded, Failed, Cancelled, Running, Claimed, Evicted])
@pytest.mark.parametrize("after", [31, 44, 999])
def test_lie_behind_gap_becomes_void(kind: type[WorkloadEvent], after: int) -> None:
    story, workload = whole(Submitted, Placed, Claimed)
    state = workload.state
    lie = msgspec.structs.replace(fitting(kind, lived(Submitted, Placed, Claimed)), after=after)
    verdict = offer(workload, lie, 45, 4.0)
    assert verdict is (Verdict.VOID if after >= 45 else Verdict.MISSED)
    judged, verdicts = judged_story(TENANT, ID, [*story, *story_of((45, lie))])
    assert verdicts[-1] is Verdict.VOID
    offer(workload, lie, 45, 4.0, judged=verdicts[-1])
    assert (workload.state, workload.sequence) == (state, 45) == (judged.state, judged.sequence)
    honest = fitting(Running, workload)
    assert offer(workload, honest, 50, 5.0) is Verdict.COUNTED


@pytest.mark.parametrize("cluster", ["c9", "cancel", "lost", "-", "…", ""])
@pytest.mark.parametrize("kind", [Withdrawn, Claimed, Admitted, Running, Evicted, Succeeded])
def test_event_of_foreign_cluster_is_void(kind: type[WorkloadEvent], cluster: str) -> None:
    workload = lived(Submitted, Placed, Claimed)
    if cluster == "" and kind is Succeeded:
        return  # of a workload that never was placed
    forged = msgspec.structs.replace(fitting(kind, workload), cluster=cluster)
    before = copy.deepcopy(workload)
    assert offer(workload, forged, 100, 9.0) is Verdict.IMPOSSIBLE
    before.sequence = 100
    assert workload == before
    assert offer(workload, fitting(Running, workload), 110, 9.0) is Verdict.COUNTED


def test_of_a_workload_that_nobody_knows_only_an_ending_counts() -> None:
    workload = new()
    running = fitting(Running, lived(Submitted, Placed, Claimed), after=30)
    assert offer(workload, running, 40, 4.0) is Verdict.VOID
    assert offer(workload, fitting(Submitted, workload, after=40), 50, 5.0) is Verdict.COUNTED


def test_a_submit_behind_somebody_s_lie_begins_a_life_for_a_reader_that_kept_no_lie() -> None:
    lie = fitting(Running, lived(Submitted, Placed, Claimed), after=30)
    submitted = fitting(Submitted, new(), after=40)
    assert offer(new(), submitted, 50, 5.0) is Verdict.MISSED
    _, verdicts = judged_story(TENANT, ID, story_of((40, lie), (50, submitted)))
    assert verdicts == [Verdict.VOID, Verdict.COUNTED]
    workload = new()
    assert offer(workload, submitted, 50, 5.0, judged=verdicts[1]) is Verdict.COUNTED
    assert (workload.state, workload.sequence) == (State.QUEUED, 50)


def test_behind_what_a_damaged_log_has_lost_an_ending_counts_and_nothing_else_does() -> None:
    story, _ = whole(Submitted, Placed, Claimed)
    running = fitting(Running, lived(Submitted, Placed, Claimed), after=35)
    for event, expected in ((running, Verdict.MISSED), (tombstone(after=35), Verdict.COUNTED)):
        told = [*story, *story_of((45, event))]
        assert judged_story(TENANT, ID, told, lambda at: 31 <= at <= 40)[1][-1] is expected
        assert judged_story(TENANT, ID, told)[1][-1] is Verdict.VOID


def test_a_beginning_behind_a_lost_lie_begins_a_life_and_nobody_elses_does() -> None:
    lost = (35).__eq__
    submitted = fitting(Submitted, new(), after=35)
    work, verdicts = judged_story(TENANT, ID, story_of((45, submitted)), lost)
    assert (work.state, verdicts) == (State.QUEUED, [Verdict.COUNTED])
    # It is no beginning where something before it counts, or may have.
    live, _ = whole(Submitted, Placed, Claimed)
    assert (
        judged_story(TENANT, ID, [*live, *story_of((45, submitted))], lost)[1][-1] is Verdict.MISSED
    )
    running = fitting(Running, lived(Submitted, Placed, Claimed), after=35)
    unknown = story_of((37, running), (45, fitting(Submitted, new(), after=35)))
    assert judged_story(TENANT, ID, unknown, lost)[1] == [Verdict.VOID, Verdict.VOID]


def test_a_life_that_begins_behind_a_lost_lie_is_not_what_is_left_of_an_ended_one() -> None:
    """What a stranger says of its end counts for no reader, however much of it each has heard."""
    early = fitting(Claimed, lived(Submitted, Placed), after=999)
    story = story_of((12, early))
    work = Workload(tenant=TENANT, id=ID, sequence=30)  # the second lie, which is lost later
    for at, kind in ((93, Submitted), (98, Placed), (99, Claimed), (100, Running)):
        event = fitting(kind, work)
        story += story_of((at, event))
        assert offer(work, event, at, 0.0) is Verdict.COUNTED
    story += story_of((101, fitting(Cancelled, work, cluster="nowhere")))
    counted = [Verdict.VOID, *[Verdict.COUNTED] * 4, Verdict.IMPOSSIBLE]
    for is_lost in ((30).__eq__, lambda _: False):  # an archivist knows nothing of losses
        for length in range(2, len(story) + 1):
            told = heard(story, story[length - 1].sequence)
            assert judged_story(TENANT, ID, told, is_lost)[1] == counted[:length]
    assert judged_story(TENANT, ID, story)[0].state is State.RUNNING


def test_a_stranger_does_not_end_what_was_brought_back_if_what_that_builds_on_is_lost() -> None:
    """Twice damaged: it is frozen, and its own ending ends it."""
    back = fitting(Recovered, new(), after=15, attempt=1)
    running = fitting(Running, lived(Submitted, Placed, Claimed), after=20)
    own = fitting(Succeeded, lived(Submitted, Placed, Claimed), after=40)
    lie = msgspec.structs.replace(own, after=30, cluster="nowhere")
    told = story_of((20, back), (30, running), (40, lie), (50, own))
    work, verdicts = judged_story(TENANT, ID, told[:-1], (15).__eq__)
    assert (work.state, verdicts) == (State.NEW, [Verdict.MISSED, Verdict.VOID, Verdict.VOID])
    work, verdicts = judged_story(TENANT, ID, told, (15).__eq__)
    assert (work.state, verdicts[-2:]) == (State.SUCCEEDED, [Verdict.VOID, Verdict.COUNTED])


def test_behind_a_gap_a_stranger_does_not_end_what_its_claimant_tells_of() -> None:
    """Its placement is lost: it is frozen, and its own ending ends it."""
    life, work = whole(Submitted, Placed, Claimed, Running)
    lie = fitting(Failed, work, cluster="nowhere")
    for left, lost in (([0, 3], (20, 30)), ([0, 2, 3], (20,)), ([0, 1, 3], (30,))):
        told = [*(life[at] for at in left), *story_of((50, lie))]
        found, verdicts = judged_story(TENANT, ID, told, lost.__contains__)
        assert (found.state, verdicts[-2:]) == (
            State.PLACED if 1 in left else State.QUEUED,
            [Verdict.MISSED] * 2,
        )
        own = fitting(Succeeded, lived(Submitted, Placed, Claimed, Running), after=50)
        found, verdicts = judged_story(TENANT, ID, [*told, *story_of((60, own))], lost.__contains__)
        assert (found.state, verdicts[-2:]) == (State.SUCCEEDED, [Verdict.VOID, Verdict.COUNTED])


@pytest.mark.parametrize("after", [40, 50])
def test_behind_a_gap_a_stranger_does_not_end_the_attempt_before_it(after: int) -> None:
    """Its claim is lost, and its placement stands: nobody says behind the gap whose it is."""
    life, work = whole(Submitted, Placed, Claimed, Running)
    asked = fitting(Reprioritized, work)
    told = [*life[:2], *(story_of((50, asked)) if after == 50 else ())]
    end = fitting(Failed, work, after=after)
    later = msgspec.structs.replace(end, attempt=work.attempt + 1, cluster="another")
    for ending, counts in (
        (end, True),
        (later, True),  # of one that is lost
        (msgspec.structs.replace(end, cluster="nowhere"), False),
        (msgspec.structs.replace(later, attempt=work.attempt - 1), False),
    ):
        story = [*told, *story_of((60, ending))]
        found, verdicts = judged_story(TENANT, ID, story, (30, 40).__contains__)
        assert found.state is (State.FAILED if counts else State.PLACED)
        assert verdicts[-1] is (Verdict.COUNTED if counts else Verdict.MISSED)


@pytest.mark.parametrize("kind", [Claimed, Admitted, Running, Evicted, Placed])
def test_behind_a_gap_nobody_takes_the_attempt_that_stands_before_it(
    kind: type[Claimed | Admitted | Running | Evicted | Placed],
) -> None:
    """It names a number that is lost, so that it might build on that: but the attempt's placement
    stands, and it never changes hands. Of one that is lost it may say whose it was."""
    life, work = whole(Submitted, Placed, Claimed, Running)
    claimed = lived(Submitted, Placed)
    of = {Placed: lived(Submitted), Claimed: claimed}.get(kind, work)
    for attempt in (work.attempt, work.attempt + 1):
        taken = msgspec.structs.replace(
            fitting(kind, of, after=45), attempt=attempt, cluster="nowhere"
        )
        end = fitting(Failed, work, after=50)
        ending = msgspec.structs.replace(end, attempt=attempt, cluster="nowhere")
        told = [*life, *story_of((50, taken), (60, ending))]
        found, verdicts = judged_story(TENANT, ID, told, (45).__eq__)
        believed = attempt > work.attempt
        assert found.state is (State.FAILED if believed else State.RUNNING)
        assert verdicts[-1] is (Verdict.COUNTED if believed else Verdict.MISSED)


@pytest.mark.parametrize("kind", [Evicted, Divided])
def test_stranger_ends_no_divided_job(kind: type[Evicted | Divided]) -> None:
    """It waits, or its parts run: who decides about it ends it, or whoever held it."""
    life, work = whole(Submitted, Placed, Claimed, Running)
    evicted = fitting(Evicted, work)
    last = lived(Submitted, Placed, Claimed, Running, Evicted)
    told = [life[0], *story_of((50, evicted))]
    if kind is Divided:
        told += story_of((60, fitting(Divided, last)))
        last = lived(Submitted, Placed, Claimed, Running, Evicted, Divided)
    end = fitting(Failed, last)
    for cluster, state in (("nowhere", State.QUEUED), ("", State.FAILED)):
        ending = msgspec.structs.replace(end, cluster=cluster, attempt=last.attempt)
        story = [*told, *story_of((70, msgspec.structs.replace(ending, after=told[-1].sequence)))]
        found, verdicts = judged_story(TENANT, ID, story, (20, 30, 40).__contains__)
        assert found.state is state
        assert (verdicts[-1] is Verdict.COUNTED) == (state is State.FAILED)


def test_behind_a_gap_an_ending_follows_on_a_lie_that_builds_on_another_s_number() -> None:
    life, work = whole(Submitted, Placed, Claimed, Running)
    told = [life[0], life[3], *story_of((45, fitting(Evicted, work, after=25, cluster="nowhere")))]
    own = fitting(Succeeded, work, after=45)
    found, verdicts = judged_story(TENANT, ID, [*told, *story_of((50, own))], (30).__eq__)
    assert found.state is State.SUCCEEDED
    assert verdicts == [Verdict.COUNTED, Verdict.VOID, Verdict.VOID, Verdict.COUNTED]


def test_what_is_left_of_a_life_says_whose_its_end_may_be() -> None:
    """Its beginning is lost. Whoever was given the attempt and claimed it ends it, or nobody."""
    life, work = whole(Submitted, Placed, Claimed, Running)
    lie = fitting(Cancelled, work, cluster="nowhere")
    told = [*life[1:], *story_of((50, lie))]
    for work, verdicts in (judged_story(TENANT, ID, told), heard_live(told)):
        assert (work.state, verdicts) == (State.NEW, [Verdict.VOID] * 4)
    # By its own ending it ends, behind the lie as well; and it is brought back.
    own = fitting(Succeeded, lived(Submitted, Placed, Claimed, Running), after=50)
    for work, verdicts in (
        judged_story(TENANT, ID, [*told, *story_of((60, own))]),
        heard_live([*told, *story_of((60, own))]),
    ):
        assert (work.state, verdicts[-1]) == (State.SUCCEEDED, Verdict.COUNTED)
    recovered = fitting(Recovered, new(), attempt=1, after=50)
    for work, verdicts in (
        judged_story(TENANT, ID, [*told, *story_of((60, recovered))]),
        heard_live([*told, *story_of((60, recovered))]),
    ):
        assert (work.state, verdicts[-1]) == (State.CLAIMED, Verdict.COUNTED)


def test_a_placement_that_is_not_the_first_of_what_is_left_says_whose_the_attempt_is() -> None:
    """Also while nobody has claimed it, and once it was withdrawn."""
    first = fitting(Withdrawn, lived(Submitted, Placed), after=20)
    placed = fitting(Placed, lived(Submitted), after=40, attempt=2, cluster="c9")
    back = fitting(Withdrawn, lived(Submitted, Placed), after=50, attempt=2, cluster="c9")
    left = story_of((40, first), (50, placed), (60, back))
    for told in (left[:2], left):
        end = tombstone(after=told[-1].sequence)
        for attempt, cluster, counts in (
            (2, "nowhere", False),
            (1, "c9", False),
            (2, "c9", True),
            (2, "", True),
        ):
            ending = msgspec.structs.replace(end, attempt=attempt, cluster=cluster)
            whole = [*told, *story_of((70, ending))]
            for _, verdicts in (judged_story(TENANT, ID, whole), heard_live(whole)):
                expected = Verdict.COUNTED if counts else Verdict.VOID
                assert verdicts[-1] is expected, (attempt, cluster)
    # As the first of what is left it may have lost its race.
    whole = [*left[1:], *story_of((70, tombstone(after=60, attempt=1, cluster="c1")))]
    assert judged_story(TENANT, ID, whole)[1][-1] is Verdict.COUNTED


@pytest.mark.parametrize(
    "left",
    [(20, 50), (30, 50), (20, 30, 45, 50), (20, 30, 45, 46, 50)],
    ids=["not claimed", "not placed", "placed anew meanwhile", "placed anew, and claimed"],
)
def test_ending_without_known_holder_counts(left: tuple[int, ...]) -> None:
    """The first of what is left may have lost its race, and a hole may hide another attempt."""
    placed, claimed = (fitting(kind, lived(Submitted), after=0) for kind in (Placed, Claimed))
    placed = msgspec.structs.replace(placed, after=10)
    claimed = msgspec.structs.replace(claimed, after=20, attempt=1)
    again = msgspec.structs.replace(claimed, after=45, attempt=2, cluster="c9")
    there = {
        20: placed,
        30: claimed,
        45: fitting(Running, new(), after=40, attempt=2, cluster="c9"),
        46: again,
    }
    told = story_of(*((at, there[at]) for at in left[:-1]))
    told += story_of((50, tombstone(after=left[-2], attempt=2)))
    for work, verdicts in (judged_story(TENANT, ID, told), heard_live(told)):
        assert (work.state, verdicts[-1]) == (State.SUCCEEDED, Verdict.COUNTED)


def test_what_a_damaged_log_has_lost_is_made_good_by_what_was_recovered() -> None:
    recovered = fitting(Recovered, new(), attempt=2, evictions=1, submitted_at_s=1.0)
    assert isinstance(recovered, Recovered)
    workload = new()
    assert offer(workload, recovered, 50, 5.0) is Verdict.COUNTED
    assert workload == Workload(
        tenant=TENANT,
        id=ID,
        state=State.CLAIMED,
        sequence=50,
        changed_at_s=5.0,
        request=REQUEST,
        digest=DIGEST,
        submitted_sequence=50,
        submitted_at_s=1.0,
        attempt=2,
        evictions=1,
        cluster=CLUSTER,
        pods=PODS,
        decision=1,
        claimed_at_s=5.0,
        executor="executor/1",
    )
    for kind in (Running, Succeeded):
        at = workload.sequence + 10
        assert offer(workload, fitting(kind, workload), at, 6.0) is Verdict.COUNTED
    assert workload.state is State.SUCCEEDED


@pytest.mark.parametrize("left", [(), (10,), (10, 20), (10, 30, 40), (20, 40), (40,)])
def test_recovered_counts_behind_any_remains(left: tuple[int, ...]) -> None:
    """Of a life of four events some are lost; then its executor's report, and how it ended."""
    story = [one for one in whole(Submitted, Placed, Claimed, Running)[0] if one.sequence in left]
    last = story[-1].sequence if story else 0
    lost = {10, 20, 30, 40} - set(left)
    recovered = fitting(Recovered, new(), attempt=1, after=last)
    told = [
        *story,
        *story_of((50, recovered), (60, tombstone(after=50, attempt=1, cluster=CLUSTER))),
    ]
    verdicts: list[Verdict] = []
    for length, state in ((len(told) - 1, State.CLAIMED), (len(told), State.SUCCEEDED)):
        workload, verdicts = judged_story(TENANT, ID, told[:length], lost.__contains__)
        assert (workload.state, workload.attempt) == (state, 1)
        assert Verdict.MISSED not in verdicts
        assert verdicts[len(story) :] == [Verdict.COUNTED] * (length - len(story))
        assert is_whole(told[:length])
    # A reader that heard each as it came, and asked for the story where it heard of a gap.
    workload = new()
    for one, verdict in zip(told, verdicts, strict=True):
        heard = offer(workload, one.event, one.sequence, 1.0)
        if heard is Verdict.MISSED:
            heard = offer(workload, one.event, one.sequence, 1.0, judged=verdict)
        assert heard in (verdict, Verdict.REPEATED)
    assert workload.state is State.SUCCEEDED


@pytest.mark.parametrize(
    "changes",
    [{"attempt": 1, "cluster": "other"}, {"attempt": 0}],
    ids=["in another cluster", "an earlier one"],
)
def test_an_attempt_that_the_log_knows_better_is_not_recovered(changes: dict[str, object]) -> None:
    workload = lived(Submitted, Placed, Claimed)
    event = fitting(Recovered, workload, **changes)
    assert offer(workload, event, 40, 4.0) is Verdict.IMPOSSIBLE
    given_back = lived(Submitted, Placed, Withdrawn)
    assert offer(given_back, fitting(Recovered, given_back, attempt=1), 40, 4.0) is (
        Verdict.IMPOSSIBLE
    )


def test_any_other_event_behind_a_gap_changes_nothing_and_asks_for_a_reload() -> None:
    workload = lived(Submitted, Placed)
    before = copy.deepcopy(workload)
    running = fitting(Running, workload, after=30)
    assert offer(workload, running, 40, 4.0) is Verdict.MISSED
    assert workload == before


def test_an_ended_workload_does_not_end_again_whatever_comes() -> None:
    workload = lived(Submitted, Cancelled)
    assert offer(workload, tombstone(after=20), 30, 3.0) is Verdict.IMPOSSIBLE
    assert offer(workload, tombstone(after=10), 40, 4.0) is Verdict.VOID
    assert offer(workload, tombstone(after=99), 100, 5.0) is Verdict.VOID
    assert (workload.state, workload.reason) == (State.CANCELLED, "over")


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


def test_a_story_is_whole_from_its_beginning_and_without_a_gap_void_events_or_not() -> None:
    kinds: tuple[type[WorkloadEvent], ...] = (Submitted, Placed, Claimed, Running, Succeeded)
    story = [
        RecordedEvent(
            sequence=10 * n, stored_at_s=0.0, event=fitting(kind, new(), after=10 * (n - 1))
        )
        for n, kind in enumerate(kinds, 1)
    ]
    assert not is_whole([])
    assert [is_whole(story[:count]) for count in range(1, 6)] == [True] * 5
    # Archived from the newest on, the ending stays; or a reader that came too late.
    assert [is_whole([*story[:count], story[-1]]) for count in range(4)] == [False] * 4
    assert not is_whole(story[1:])
    # A loser between two events is no gap, and the next one stands behind it.
    void = RecordedEvent(sequence=25, stored_at_s=0.0, event=fitting(Placed, new(), after=10))
    behind = RecordedEvent(sequence=30, stored_at_s=0.0, event=fitting(Claimed, new(), after=25))
    assert is_whole([*story[:2], void, behind])


def test_an_ending_behind_events_that_build_on_what_is_lost_ends_the_life() -> None:
    """A block in the middle is lost; what stands behind it says how it all ended."""
    life, _ = whole(Submitted, Placed, Claimed, Running, Succeeded)
    left = [life[0], *life[3:]]
    lost = {one.sequence for one in life[1:3]}.__contains__
    work, verdicts = judged_story(TENANT, ID, left[:-1], lost)
    assert (work.state, verdicts) == (State.QUEUED, [Verdict.COUNTED, Verdict.MISSED])
    work, verdicts = judged_story(TENANT, ID, left, lost)
    assert (work.state, work.attempt) == (State.SUCCEEDED, 1)
    assert verdicts == [Verdict.COUNTED, Verdict.VOID, Verdict.COUNTED]
    # Whoever has heard of less judges less, and whoever names another event is not believed.
    assert heard(left, left[1].sequence) == left[:-1]
    stranger = msgspec.structs.replace(
        left[-1], event=msgspec.structs.replace(left[-1].event, after=left[-1].sequence + 5)
    )
    assert judged_story(TENANT, ID, [*left[:-1], stranger], lost)[0].state is State.QUEUED


def test_what_an_operator_gives_up_has_ended_if_its_story_lacks_something_and_else_not() -> None:
    life, _ = whole(Submitted, Placed, Claimed, Running)
    given_up = RecordedEvent(
        sequence=99,
        stored_at_s=99.0,
        event=Cancelled(
            tenant=TENANT,
            id=ID,
            after=life[-1].sequence,
            at_s=99.0,
            by="gateway",
            attempt=1,
            cluster=CLUSTER,
            digest=DIGEST,
            submitted_at_s=1.0,
            reason="given up by an operator: nobody has it",
            given_up=True,
        ),
    )
    lost = {life[1].sequence}.__contains__
    left = [life[0], *life[2:], given_up]
    for is_lost in (lost, lambda _: False):  # an archivist knows nothing of losses
        work, verdicts = judged_story(TENANT, ID, left, is_lost)
        assert (work.state, work.reason) == (
            State.CANCELLED,
            "given up by an operator: nobody has it",
        )
        assert verdicts == [Verdict.COUNTED, Verdict.VOID, Verdict.VOID, Verdict.COUNTED]
    work, verdicts = judged_story(TENANT, ID, [*life, given_up], lost)
    assert (work.state, verdicts[-1]) == (State.RUNNING, Verdict.VOID)
    # A reader that has followed all of it asks for the whole story first.
    work = Workload(tenant=TENANT, id=ID)
    for one in life:
        offer(work, one.event, one.sequence, one.stored_at_s)
    assert offer(work, given_up.event, 99, 99.0) is Verdict.MISSED
    assert (work.state, work.sequence) == (State.RUNNING, life[-1].sequence)

"""The executor's core alone: what goes in, what comes out, whole values."""

import msgspec
import pytest

from berthmaster.lib.lifecycle.attempts import MOST_ATTEMPTS
from berthmaster.lib.lifecycle.instructions import (
    Answered,
    Append,
    Refused,
    Reload,
    Reloaded,
    Stored,
    Unknown,
)
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Workload, key, request_digest
from berthmaster.lib.messages.door import HeldAttempt
from berthmaster.lib.messages.placement import PodBinding, Target
from berthmaster.lib.messages.runtimes import PodTemplate, RuntimeUse, RuntimeVolume
from berthmaster.lib.messages.workload import (
    Cancelled,
    CancelRequested,
    Claimed,
    Evicted,
    EvictionRequested,
    Failed,
    JobRequest,
    Part,
    Placed,
    PodSet,
    Running,
    Succeeded,
    WorkloadEvent,
)
from berthmaster.worker.executor.core.cluster_protocol import (
    Attempt,
    CreatePods,
    DeletePods,
    PodEvent,
    PodsCompleted,
    PodsFailed,
    PodsFound,
    PodsGone,
    PodsQuiet,
    PodsRefused,
    PodsRunning,
    PodsWaiting,
    StopPods,
)
from berthmaster.worker.executor.core.events import (
    Acknowledge,
    ClusterReached,
    Freeze,
    HintSeen,
    Instruction,
    Listed,
    Tick,
)
from berthmaster.worker.executor.core.executor import FROZEN_LOOK_S, HOLD_BACK_S, Executor
from berthmaster.worker.executor.core.job import FinalResult, How, Job
from berthmaster.worker.executor.core.limits import Limits
from berthmaster.worker.executor.core.log_events import LogEvents

REQUEST = JobRequest(id="train", deadline_s=60)
PODS = (PodBinding(pod="main-0", node="n1", gpus=(3,)),)
TRAIN = Attempt("acme", "train", 1)
NAME = "executor/berlin"


def placed(attempt: int = 1, after: int = 4) -> Placed:
    return Placed(
        tenant="acme",
        id="train",
        after=after,
        at_s=0,
        by="resolver",
        cluster="berlin",
        attempt=attempt,
        pods=PODS,
        request=REQUEST,
        decision=1,
        submitted_at_s=7,
    )


def claim(ref: str, *, after: int, at_s: float, attempt: int = 1) -> Append:
    return Append(
        ref=ref,
        event=Claimed(
            tenant="acme",
            id="train",
            after=after,
            at_s=at_s,
            by=NAME,
            cluster="berlin",
            attempt=attempt,
            executor=NAME,
        ),
    )


def work(state: State, **more: object) -> Workload:
    known: dict[str, object] = {
        "sequence": 9,
        "request": REQUEST,
        "digest": "d",
        "attempt": 1,
        "cluster": "berlin",
        "pods": PODS,
        "submitted_at_s": 7.0,
        "executor": NAME,
        "claimed_at_s": 100.0,
    }
    return Workload(tenant="acme", id="train", state=state, **(known | more))  # type: ignore[arg-type]


def running_executor() -> Executor:
    """It runs the workload; the log is at 7."""
    executor = Executor("berlin")
    executor.handle(HintSeen(1, placed(), 5), 100)
    executor.handle(Answered(ref="1", outcome=Stored(6)), 101)
    executor.handle(PodsRunning(TRAIN, PODS), 102)
    executor.handle(Answered(ref="2", outcome=Stored(7)), 103)
    return executor


def test_a_placement_is_claimed_then_created_then_told_to_run_and_to_have_succeeded() -> None:
    executor = Executor("berlin")

    # The hint's own sequence guards the claim; nothing is made or acknowledged before it is stored.
    assert executor.handle(HintSeen(1, placed(), 5), 100) == [claim("1", after=5, at_s=100)]

    # The deadline runs from the claim. The hint is done once the pods are ordered.
    assert executor.handle(Answered(ref="1", outcome=Stored(6)), 101) == [
        CreatePods(TRAIN, NAME, PODS, REQUEST, stop_after_s=59, asked_at_s=101),
        Acknowledge(1),
    ]

    moved = (PodBinding(pod="main-0", node="n1", gpus=(5,)),)
    running = Running(
        tenant="acme",
        id="train",
        after=6,
        at_s=102,
        by=NAME,
        cluster="berlin",
        attempt=1,
        pods=moved,
    )
    assert executor.handle(PodsRunning(TRAIN, moved), 102) == [Append(ref="2", event=running)]
    assert executor.handle(PodsRunning(TRAIN, moved), 103) == []  # told twice
    assert executor.handle(Answered(ref="2", outcome=Stored(8)), 104) == []

    ending = Succeeded(
        tenant="acme",
        id="train",
        after=8,
        at_s=150,
        by=NAME,
        cluster="berlin",
        attempt=1,
        digest=request_digest(REQUEST),
        submitted_at_s=7,
    )
    assert executor.handle(PodsCompleted(TRAIN), 150) == [Append(ref="3", event=ending)]

    # The object is removed only now: until here it was what a restart would have known it by.
    assert executor.handle(Answered(ref="3", outcome=Stored(9)), 151) == [
        DeletePods(TRAIN, "ended")
    ]
    assert executor.jobs == 0


def test_a_hint_told_twice_is_acted_on_once() -> None:
    executor = Executor("berlin")
    executor.handle(HintSeen(1, placed(), 5), 100)
    assert executor.handle(HintSeen(2, placed(), 5), 100) == []
    assert executor.handle(Answered(ref="1", outcome=Stored(6)), 100) == [
        CreatePods(TRAIN, NAME, PODS, REQUEST, stop_after_s=60, asked_at_s=100),
        Acknowledge(1),
        Acknowledge(2),
    ]
    assert executor.handle(HintSeen(3, placed(), 5), 100) == [Acknowledge(3)]


def test_a_hint_for_another_cluster_is_none() -> None:
    assert Executor("paris").handle(HintSeen(1, placed(), 5), 100) == [Acknowledge(1)]


def test_what_a_hub_has_made_is_not_made_here_too() -> None:
    by_hub = msgspec.structs.replace(placed(), target=Target(via="hub"))
    assert Executor("berlin").handle(HintSeen(1, by_hub, 5), 100) == [Acknowledge(1)]


def refused(reloaded: Workload | None) -> list[Instruction]:
    """What an executor does whose claim was refused, having read the log."""
    executor = Executor("berlin")
    executor.handle(HintSeen(1, placed(), 5), 100)
    read = Reload(ref="2", tenant="acme", id="train")
    assert executor.handle(Answered(ref="1", outcome=Refused(9)), 101) == [read]
    return executor.handle(Reloaded(ref="2", workload=reloaded), 102)


def test_a_refused_claim_is_dropped_if_the_placement_is_over_or_somebody_elses() -> None:
    assert refused(None) == [Acknowledge(1)]
    assert refused(work(State.QUEUED)) == [Acknowledge(1)]  # withdrawn
    assert refused(work(State.CANCELLED)) == [Acknowledge(1)]
    assert refused(work(State.PLACED, cluster="paris", attempt=2)) == [Acknowledge(1)]
    assert refused(work(State.CLAIMED, executor="executor/other")) == [Acknowledge(1)]


def test_a_refused_claim_is_tried_again_behind_a_new_priority() -> None:
    assert refused(work(State.PLACED, executor="")) == [claim("3", after=9, at_s=102)]


def test_a_refused_claim_of_an_attempt_that_is_over_turns_to_the_attempt_that_is_open() -> None:
    assert refused(work(State.PLACED, executor="", attempt=2)) == [
        claim("3", after=9, at_s=102, attempt=2)
    ]


def test_a_claim_of_unknown_outcome_that_was_stored_goes_on() -> None:
    executor = Executor("berlin")
    executor.handle(HintSeen(1, placed(), 5), 100)
    read = Reload(ref="2", tenant="acme", id="train")
    assert executor.handle(Answered(ref="1", outcome=Unknown("lost")), 110) == [read]
    assert executor.handle(Reloaded(ref="2", workload=work(State.CLAIMED)), 111) == [
        CreatePods(
            TRAIN,
            NAME,
            PODS,
            REQUEST,
            stop_after_s=49,  # claimed at 100
            asked_at_s=111,
            claimed_before=True,
        ),
        Acknowledge(1),
    ]


def test_a_wish_to_cancel_stops_the_pods_and_is_told_when_they_are_gone() -> None:
    executor = running_executor()
    wish = CancelRequested(
        tenant="acme", id="train", after=7, at_s=0, by="gw", cluster="berlin", reason="typo"
    )
    assert executor.handle(HintSeen(2, wish, 8), 110) == [Acknowledge(2), StopPods(TRAIN, "typo")]
    ending = Cancelled(
        tenant="acme",
        id="train",
        after=8,
        at_s=111,
        by=NAME,
        cluster="berlin",
        attempt=1,
        digest=request_digest(REQUEST),
        submitted_at_s=7,
        reason="typo",
    )
    assert executor.handle(PodsGone(TRAIN, "typo"), 111) == [Append(ref="3", event=ending)]


def test_one_that_runs_for_longer_than_it_may_is_stopped_and_has_failed() -> None:
    executor = Executor("berlin")
    executor.handle(PodsFound(TRAIN), 0)
    limited = msgspec.structs.replace(REQUEST, max_run_s=100.0)
    running = work(State.RUNNING, request=limited, running_at_s=10.0, ran_s=30.0)
    executor.handle(PodsRunning(TRAIN, running.pods), 11)
    executor.handle(Reloaded(ref="1", workload=running), 11)
    assert executor.handle(Tick(), 79) == []
    assert executor.next_due_s is not None
    assert executor.next_due_s <= 80
    why = "it ran for longer than its max_run_s, 100 s"
    assert executor.handle(Tick(), 80) == [StopPods(TRAIN, why)]
    (told,) = executor.handle(PodsGone(TRAIN, why), 81)
    assert isinstance(told, Append)
    assert isinstance(told.event, Failed)
    assert told.event.reason == why


def test_running_job_without_progress_for_too_long_is_evicted_as_stalled() -> None:
    executor = Executor("berlin")
    executor.handle(PodsFound(TRAIN), 0)
    limited = msgspec.structs.replace(REQUEST, stalls_after_s=600.0)
    running = work(State.RUNNING, request=limited, running_at_s=10.0)
    executor.handle(PodsRunning(TRAIN, running.pods), 11)
    executor.handle(Reloaded(ref="1", workload=running), 11)
    assert executor.handle(PodsQuiet(TRAIN, 599.0), 620) == []
    why = "no new progress line for 610 s, and its stalls_after_s is 600 s"
    assert executor.handle(PodsQuiet(TRAIN, 610.0), 631) == [StopPods(TRAIN, why)]
    (told,) = executor.handle(PodsGone(TRAIN, why), 632)
    assert isinstance(told, Append)
    assert isinstance(told.event, Evicted)
    assert (told.event.fault, told.event.reason) == ("stalled", why)


def test_silence_is_no_fault_of_a_job_without_that_limit() -> None:
    executor = Executor("berlin")
    executor.handle(PodsFound(TRAIN), 0)
    running = work(State.RUNNING, running_at_s=10.0)
    executor.handle(PodsRunning(TRAIN, running.pods), 11)
    executor.handle(Reloaded(ref="1", workload=running), 11)
    assert executor.handle(PodsQuiet(TRAIN, 1e9), 20) == []


def order_to_make_room(after: int) -> EvictionRequested:
    return EvictionRequested(
        tenant="acme",
        id="train",
        after=after,
        at_s=0,
        by="resolver",
        cluster="berlin",
        attempt=1,
        reason="another's guarantee",
        decision=2,
    )


def made_room(after: int, at_s: float) -> Evicted:
    return Evicted(
        tenant="acme",
        id="train",
        after=after,
        at_s=at_s,
        by=NAME,
        cluster="berlin",
        attempt=1,
        reason="another's guarantee",
        blameless=True,
    )


def test_an_order_to_make_room_stops_the_pods_and_counts_against_nobody() -> None:
    executor = running_executor()
    stop = StopPods(TRAIN, "another's guarantee")
    assert executor.handle(HintSeen(2, order_to_make_room(7), 8), 110) == [Acknowledge(2), stop]
    assert executor.handle(PodsGone(TRAIN, "another's guarantee"), 111) == [
        Append(ref="3", event=made_room(8, 111))
    ]
    stored = Answered(ref="3", outcome=Stored(9))
    assert executor.handle(stored, 112) == [DeletePods(TRAIN, "ended")]


def test_who_was_killed_while_pods_end_to_make_room_reads_so_in_the_log() -> None:
    executor = Executor("berlin")
    assert executor.handle(PodsFound(TRAIN), 0) == [Reload(ref="1", tenant="acme", id="train")]
    assert executor.handle(PodsGone(TRAIN, "another's guarantee"), 1) == []
    leaving = work(State.RUNNING, leaving="another's guarantee", evictions=10)
    assert executor.handle(Reloaded(ref="1", workload=leaving), 2) == [
        Append(ref="2", event=made_room(9, 2))  # though one eviction more would have been too many
    ]


def test_a_job_that_completes_before_it_makes_room_has_succeeded() -> None:
    executor = running_executor()
    told = executor.handle(PodsCompleted(TRAIN), 109)
    assert [type(each.event) for each in told if isinstance(each, Append)] == [Succeeded]
    # The order was stored first: the ending is refused, the log read, and the ending told again.
    assert executor.handle(HintSeen(2, order_to_make_room(7), 8), 110) == [Acknowledge(2)]
    read = executor.handle(Answered(ref="3", outcome=Refused(8)), 111)
    assert read == [Reload(ref="4", tenant="acme", id="train")]
    leaving = work(State.RUNNING, leaving="another's guarantee", evictions=0)
    again = executor.handle(Reloaded(ref="4", workload=leaving), 112)
    assert [type(each.event) for each in again if isinstance(each, Append)] == [Succeeded]


def test_what_is_told_while_the_log_is_read_is_read_again_if_that_was_from_before() -> None:
    """Nobody tells it a second time: pods would run on, and a gang's part would never begin."""
    executor = Executor("berlin")
    executor.handle(HintSeen(1, placed(), 5), 100)
    read = Reload(ref="2", tenant="acme", id="train")
    assert executor.handle(Answered(ref="1", outcome=Refused(6)), 101) == [read]
    assert executor.handle(HintSeen(2, order_to_make_room(6), 10), 102) == [Acknowledge(2)]
    before = Reloaded(ref="2", workload=work(State.CLAIMED, sequence=6))
    again = executor.handle(before, 103)
    assert Reload(ref="3", tenant="acme", id="train") in again
    leaving = work(State.CLAIMED, sequence=10, leaving="another's guarantee", evictions=0)
    done = executor.handle(Reloaded(ref="3", workload=leaving), 104)
    assert Reload(ref="4", tenant="acme", id="train") not in done  # once is enough


def test_a_wish_that_the_log_does_not_bear_out_stops_nothing() -> None:
    executor = running_executor()
    void = CancelRequested(tenant="acme", id="train", after=3, at_s=0, by="gw", cluster="berlin")
    read = Reload(ref="3", tenant="acme", id="train")
    assert executor.handle(HintSeen(2, void, 8), 110) == [Acknowledge(2), read]
    work_on = work(State.RUNNING, cancel_requested=False)
    assert executor.handle(Reloaded(ref="3", workload=work_on), 111) == []
    assert executor.jobs == 1


def test_an_attempt_that_somebody_ended_is_left_and_nothing_is_appended() -> None:
    executor = running_executor()
    lost = Evicted(
        tenant="acme",
        id="train",
        after=7,
        at_s=0,
        by="resolver",
        cluster="berlin",
        attempt=1,
        reason="cluster lost",
    )
    read = Reload(ref="3", tenant="acme", id="train")
    assert executor.handle(HintSeen(2, lost, 8), 200) == [Acknowledge(2), read]
    assert executor.handle(Reloaded(ref="3", workload=work(State.QUEUED)), 201) == [
        DeletePods(TRAIN, "not ours (any more)")
    ]
    assert executor.jobs == 0


def test_a_placed_hint_of_a_later_attempt_is_believed_only_if_the_log_says_so() -> None:
    executor = running_executor()
    read = Reload(ref="3", tenant="acme", id="train")
    assert executor.handle(HintSeen(2, placed(attempt=2, after=99), 100), 200) == [read]
    assert executor.handle(Reloaded(ref="3", workload=work(State.RUNNING)), 201) == []
    assert executor.jobs == 1


def test_pods_found_at_the_start_are_adopted_or_removed_as_the_log_says() -> None:
    read = Reload(ref="1", tenant="acme", id="train")
    for state, answer in (
        (State.RUNNING, []),
        (State.QUEUED, [DeletePods(TRAIN, "not ours (any more)")]),
        (State.SUCCEEDED, [DeletePods(TRAIN, "not ours (any more)")]),
    ):
        executor = Executor("berlin")
        assert executor.handle(PodsFound(TRAIN), 100) == [read]
        assert executor.handle(PodsRunning(TRAIN, PODS), 100) == []
        assert executor.handle(Reloaded(ref="1", workload=work(state)), 101) == answer


def test_what_is_held_is_read_with_its_receipt_which_a_restart_finds_with_the_object() -> None:
    executor = Executor("berlin")
    executor.handle(HintSeen(1, placed(), 5, "signed"), 100)
    (ordered, *_) = executor.handle(Answered(ref="1", outcome=Stored(6)), 101)
    assert isinstance(ordered, CreatePods)
    assert ordered.receipt == "signed"
    again = Executor("berlin")
    read = Reload(ref="1", tenant="acme", id="train", receipt="signed")
    assert again.handle(PodsFound(TRAIN, "signed"), 100) == [read]
    # Claimed by an earlier life, and nothing made yet: its receipt comes with the story.
    third = Executor("berlin")
    third.handle(HintSeen(1, placed(), 5), 100)
    third.handle(Answered(ref="1", outcome=Refused(6)), 101)
    claimed = Reloaded(ref="2", workload=work(State.CLAIMED), receipt="signed")
    (ordered, *_) = third.handle(claimed, 102)
    assert isinstance(ordered, CreatePods)
    assert ordered.receipt == "signed"


def test_what_runs_and_came_back_into_the_log_as_claimed_is_told_to_run_again() -> None:
    executor = running_executor()
    names = frozenset({key("acme", "train")})
    # A list of the same log that names it changes nothing; one that calls it nobody's, or of
    # another log, whose numbers may be lower, makes it read.
    assert executor.handle(Listed(names, 99), 110) == []
    assert executor.handle(Listed(frozenset(), 2), 110) == []
    (read,) = executor.handle(Listed(names, 2, renewed=True), 111)
    assert isinstance(read, Reload)
    back = Reloaded(ref=read.ref, workload=work(State.CLAIMED))
    (told,) = executor.handle(back, 112)
    assert isinstance(told, Append)
    assert isinstance(told.event, Running)
    executor = running_executor()
    (read,) = executor.handle(Listed(names, 99, unheld=names), 111)
    assert isinstance(read, Reload)
    # What is refused is ended with the door's reason.
    gone = Reloaded(ref=read.ref, workload=None, why="another job has its id")
    assert executor.handle(gone, 112) == [DeletePods(TRAIN, "another job has its id")]


def test_what_was_being_read_when_the_log_became_another_one_is_read_again() -> None:
    executor = running_executor()
    names = frozenset({key("acme", "train")})
    (before,) = executor.handle(Listed(names, 99, unheld=names), 111)
    assert isinstance(before, Reload)
    assert executor.handle(Listed(names, 2, renewed=True), 112) == []
    story = work(State.RUNNING)  # as the log had it that is no more
    (again,) = executor.handle(Reloaded(ref=before.ref, workload=story), 113)
    assert isinstance(again, Reload)
    (told,) = executor.handle(Reloaded(ref=again.ref, workload=work(State.CLAIMED)), 114)
    assert isinstance(told, Append)
    assert isinstance(told.event, Running)


def test_of_two_attempts_found_only_the_later_can_be_open() -> None:
    later = Attempt("acme", "train", 2)
    for order in ((TRAIN, later), (later, TRAIN)):
        executor = Executor("berlin")
        done = [one for attempt in order for one in executor.handle(PodsFound(attempt), 100)]
        assert DeletePods(TRAIN, "a later attempt was made") in done
        assert executor.jobs == 1


def test_a_story_that_cannot_be_read_freezes_its_workload() -> None:
    executor = running_executor()
    executor.handle(PodsCompleted(TRAIN), 150)
    assert executor.handle(Answered(ref="3", outcome=Refused(8)), 151) == [
        Reload(ref="4", tenant="acme", id="train")
    ]
    assert executor.handle(Reloaded(ref="4", workload=None, failed="unknown tag"), 152) == [
        Freeze("acme", "train", "unknown tag")
    ]
    # Its pods are heard of, and nothing is done about them.
    assert executor.handle(PodsGone(TRAIN), 153) == []
    # It is read again when anybody tells of it, and now and then; it is told once.
    again = Reload(ref="5", tenant="acme", id="train")
    assert executor.handle(HintSeen(9, placed(), 5), 154) == [Acknowledge(9), again]
    assert executor.handle(HintSeen(10, placed(), 5), 155) == [Acknowledge(10)]
    assert executor.handle(Reloaded(ref="5", workload=None, failed="unknown tag"), 156) == []
    assert executor.handle(Tick(), 156 + FROZEN_LOOK_S - 1) == []
    again = Reload(ref="6", tenant="acme", id="train")
    assert executor.handle(Tick(), 156 + FROZEN_LOOK_S) == [again]
    # A person has declared void what could not be read: what its pods came to is told.
    read = Reloaded(ref="6", workload=work(State.RUNNING))
    [told] = executor.handle(read, 300)
    assert isinstance(told, Append)
    assert isinstance(told.event, Succeeded)


def test_pods_of_a_frozen_workload_that_was_given_up_are_removed() -> None:
    executor = running_executor()
    [reload] = executor.handle(Listed(frozenset(), 90), 110)
    assert isinstance(reload, Reload)
    lost = Reloaded(ref=reload.ref, workload=None, failed="lost")
    assert executor.handle(lost, 111) == [Freeze("acme", "train", "lost")]
    # Neither its limits nor those of others end it meanwhile.
    assert executor.handle(PodsFailed(TRAIN, "OOMKilled", 137), 112) == []
    [reload] = executor.handle(Listed(frozenset(), 91), 113)
    assert isinstance(reload, Reload)
    gone = Reloaded(ref=reload.ref, workload=None)
    assert executor.handle(gone, 114) == [DeletePods(TRAIN, "not ours (any more)")]
    assert executor.jobs == 0


def test_a_placement_that_the_hub_s_kueue_carries_out_is_left_alone() -> None:
    executor = Executor("berlin", NAME)
    by_the_hub = msgspec.structs.replace(placed(), cell="hub")
    assert executor.handle(HintSeen(1, by_the_hub, 5), now_s=0) == [Acknowledge(1)]
    assert executor.jobs == 0


# A cluster that does not answer


def test_nothing_is_claimed_while_the_cluster_does_not_answer_and_all_when_it_does() -> None:
    executor = running_executor()
    assert executor.handle(ClusterReached("no connection"), 110) == []
    other = msgspec.structs.replace(placed(), id="other")
    assert executor.handle(HintSeen(2, other, 20), 111) == []
    # What runs is told of as ever.
    [told] = executor.handle(PodsCompleted(TRAIN), 112)
    assert isinstance(told, Append)
    assert isinstance(told.event, Succeeded)

    [claimed] = executor.handle(ClusterReached(""), 113)
    assert isinstance(claimed, Append)
    assert (claimed.event.id, claimed.event.after, type(claimed.event)) == ("other", 20, Claimed)
    assert executor.handle(ClusterReached(""), 114) == []  # the claim is under way


def test_what_was_withdrawn_while_the_cluster_was_away_is_let_go_and_its_hint_is_done() -> None:
    executor = Executor("berlin")
    executor.handle(ClusterReached("no connection"), 99)
    assert executor.handle(HintSeen(1, placed(), 5), 100) == []
    assert executor.next_due_s == 100 + HOLD_BACK_S
    assert executor.handle(Tick(), 100 + HOLD_BACK_S) == [
        Reload(ref="1", tenant="acme", id="train")
    ]
    withdrawn = work(State.QUEUED, cluster="", executor="")
    assert executor.handle(Reloaded(ref="1", workload=withdrawn), 116) == [Acknowledge(1)]
    assert executor.jobs == 0
    assert executor.handle(ClusterReached(""), 120) == []


def test_what_is_still_ours_after_a_while_stays_held_back_and_is_claimed_in_the_end() -> None:
    executor = Executor("berlin")
    executor.handle(ClusterReached("no connection"), 99)
    executor.handle(HintSeen(1, placed(), 5), 100)
    executor.handle(Tick(), 115)
    still = work(State.PLACED, sequence=5, executor="")
    assert executor.handle(Reloaded(ref="1", workload=still), 116) == []
    assert executor.handle(Tick(), 131) == [Reload(ref="2", tenant="acme", id="train")]
    assert executor.handle(ClusterReached(""), 131.5) == []  # the reading is under way
    [claimed] = executor.handle(Reloaded(ref="2", workload=still), 132)
    assert claimed == claim("3", after=5, at_s=132)


def test_a_clock_that_was_ahead_for_a_moment_does_not_keep_an_ending_back() -> None:
    """Its timer went off while the clock was ahead, and nothing could be written just then."""
    executor = running_executor()
    executor.handle(PodsGone(TRAIN, "GpuLost"), 104)  # evictions are read first
    again = Reloaded(ref="3", workload=work(State.RUNNING, sequence=7, evictions=3))
    assert executor.handle(again, 124) == []  # a pause; the clock is 20 s ahead
    assert executor.next_due_s is not None
    assert 124 < executor.next_due_s < 130

    lost = executor.handle(Tick(), 131)  # the clock jumps again: the timer is spent on a write
    assert [type(step) for step in lost] == [Append]
    ref = lost[0].ref  # type: ignore[union-attr]
    [read] = executor.handle(Answered(ref=ref, outcome=Unknown("no answer in time")), 105)
    assert isinstance(read, Reload)
    same = Reloaded(ref=read.ref, workload=work(State.RUNNING, sequence=7, evictions=3))
    assert executor.handle(same, 105) == []

    assert executor.next_due_s <= 105 + 5
    [told] = executor.handle(Tick(), executor.next_due_s)
    assert isinstance(told, Append)
    assert isinstance(told.event, Evicted | Failed)


def read_back(now_s: float, read_at_s: float, **more: object) -> list[Instruction]:
    """What an executor does that began anew and reads what the life before it had claimed at 100 s.
    ``now_s``: its own clock; ``read_at_s``: the server's when that was read."""
    executor = Executor("berlin")
    executor.handle(HintSeen(1, placed(), 5), now_s)
    executor.handle(Answered(ref="1", outcome=Refused(9)), now_s)
    claimed = work(State.CLAIMED, evictions=0, **more)
    return executor.handle(Reloaded(ref="2", workload=claimed, now_s=read_at_s), now_s)


def test_who_begins_anew_with_a_clock_that_is_behind_makes_no_pods_beyond_their_deadline() -> None:
    """It was away for 45 s, and its machine lost its clock. Others believe the deadline."""
    pods = CreatePods(
        TRAIN, NAME, PODS, REQUEST, stop_after_s=15, asked_at_s=-155, claimed_before=True
    )
    assert read_back(-155, read_at_s=145) == [pods, Acknowledge(1)]

    # 65 s are more than it had: nothing is made at all.
    [told] = read_back(-135, read_at_s=165)
    assert isinstance(told, Append)
    assert isinstance(told.event, Evicted)
    assert told.event.fault == "deadline"

    # A clock that is ahead makes it only shorter; where nobody told the time, ours is all there is.
    assert read_back(150, read_at_s=120)[0] == pods._replace(stop_after_s=10, asked_at_s=150)
    assert read_back(120, read_at_s=0)[0] == pods._replace(stop_after_s=40, asked_at_s=120)


def test_whose_clock_went_back_while_it_claimed_asks_how_long_ago_that_was() -> None:
    """It claimed with a clock that was 300 s ahead, and the answer took 50 s."""
    executor = Executor("berlin")
    assert executor.handle(HintSeen(1, placed(), 5), 400) == [claim("1", after=5, at_s=400)]
    [read] = executor.handle(Answered(ref="1", outcome=Stored(6)), 150)
    assert isinstance(read, Reload)
    claimed = work(State.CLAIMED, evictions=0)  # at 100 s, by the log
    [pods, done] = executor.handle(Reloaded(ref=read.ref, workload=claimed, now_s=150), 150)
    assert isinstance(pods, CreatePods)
    assert (pods.stop_after_s, done) == (10, Acknowledge(1))


# Gangs


def gang(name: str, *, priority: int = 0, count: int = 4) -> JobRequest:
    return JobRequest(id=name, priority=priority, pod_sets=(PodSet(count=count),))


def with_gangs(*requests: tuple[JobRequest, float]) -> Executor:
    """All of them claimed and made, at 100 s. (request, when it was submitted)"""
    executor = Executor("berlin", limits=Limits(start_s=300, gang_s=30))
    for number, (request, submitted_at_s) in enumerate(requests):
        event = msgspec.structs.replace(
            placed(), id=request.id, request=request, submitted_at_s=submitted_at_s
        )
        [append] = executor.handle(HintSeen(number, event, 5), 100)
        assert isinstance(append, Append)
        executor.handle(Answered(ref=append.ref, outcome=Stored(6)), 100)
    return executor


def half(executor: Executor, name: str, bound: int, now_s: float) -> None:
    executor.handle(PodsWaiting(Attempt("acme", name, 1), "no room", bound), now_s)


def stopped(done: list[Instruction]) -> list[str]:
    return [one.attempt.id for one in done if isinstance(one, StopPods)]


def test_of_two_gangs_that_are_half_started_the_younger_gives_way_without_blame() -> None:
    executor = with_gangs((gang("young"), 50.0), (gang("old"), 40.0))
    half(executor, "young", 2, 101)
    half(executor, "old", 2, 102)
    assert executor.next_due_s == 131
    assert stopped(executor.handle(Tick(), 131)) == []  # the other still gets on, perhaps
    done = executor.handle(Tick(), 132)
    why = "half started for 30 s, as another gang is: it gives way: no room"
    assert done == [StopPods(Attempt("acme", "young", 1), why)]

    [append] = executor.handle(PodsGone(Attempt("acme", "young", 1), why), 133)
    assert isinstance(append, Append | Reload)
    if isinstance(append, Reload):  # how often it was evicted was not known
        workload = work(State.CLAIMED, request=gang("young"), evictions=0)
        workload = msgspec.structs.replace(workload, id="young", sequence=6)
        [append] = executor.handle(Reloaded(ref=append.ref, workload=workload), 133)[-1:]
    assert isinstance(append, Append)
    assert isinstance(append.event, Evicted)
    assert (append.event.blameless, append.event.reason) == (True, why)

    # The other has its time anew, and nobody is left who would give way to it.
    assert stopped(executor.handle(Tick(), 200)) == []


def test_priority_goes_before_age_and_who_gets_on_is_left_alone() -> None:
    requests = [gang("first"), gang("urgent", priority=5), gang("single", count=1)]
    executor = with_gangs(*((request, 40.0 + n) for n, request in enumerate(requests)))
    half(executor, "first", 1, 101)
    half(executor, "urgent", 1, 101)
    half(executor, "single", 1, 101)
    half(executor, "urgent", 2, 120)  # it gets on
    assert stopped(executor.handle(Tick(), 140)) == []
    assert stopped(executor.handle(Tick(), 150)) == ["first"]


def test_one_gang_that_is_half_started_waits_for_what_others_hold() -> None:
    executor = with_gangs((gang("alone"), 40.0))
    half(executor, "alone", 3, 101)
    assert stopped(executor.handle(Tick(), 300)) == []
    # Until the limit of its start, and then with blame.
    assert stopped(executor.handle(Tick(), 401)) == ["alone"]


def test_who_has_given_way_too_often_is_to_blame() -> None:
    says = LogEvents(NAME, "berlin")
    request = gang("train")
    verdict = FinalResult(How.EVICTED, "it gives way", blameless=True)
    for attempt, state, blameless in (
        (MOST_ATTEMPTS, State.CLAIMED, True),
        (MOST_ATTEMPTS, State.RUNNING, False),
        (MOST_ATTEMPTS + 1, State.CLAIMED, False),
    ):
        job = Job(attempt=Attempt("acme", "train", attempt), logged=state, request=request)
        ending = says.ending(job, verdict, 1.0)
        assert isinstance(ending, Evicted)
        assert ending.blameless is blameless


def own_failure(work_: Workload, *events: PodEvent) -> WorkloadEvent:
    """What the executor writes in the end of an attempt that it finds running after a restart."""
    executor = Executor("berlin")
    executor.handle(PodsFound(TRAIN), 100)
    executor.handle(Reloaded(ref="1", workload=work_), 101)
    done: list[Instruction] = []
    for event in events:
        done += executor.handle(event, 102)
    while not (written := [each.event for each in done if isinstance(each, Append)]):
        assert executor.next_due_s is not None
        done = executor.handle(Tick(), executor.next_due_s)
    return written[-1]


FLAKY = JobRequest(id="train", retries=2, backoff_s=30.0, no_retry_exit_codes=(3,))


@pytest.mark.parametrize(
    ("failures", "code", "reason"),
    [
        (0, 1, "failure 1 of at most 3, tried again after 30 s: exited"),
        (1, 1, "failure 2 of at most 3, tried again after 60 s: exited"),
        (2, 1, None),
        (0, 3, None),
    ],
)
def test_a_failure_of_its_own_is_given_back_while_it_is_to_be_tried_again(
    failures: int, code: int, reason: str | None
) -> None:
    found = work(State.RUNNING, request=FLAKY, failures=failures, submitted_at_s=7.0)
    failed = PodsFailed(TRAIN, "exited", code, "exit", "n1")
    event = own_failure(found, failed, PodsGone(TRAIN))
    if reason is None:
        assert isinstance(event, Failed)
        assert event.reason == "exited"
    else:
        assert isinstance(event, Evicted)
        assert (event.reason, event.blameless) == (reason, False)
    assert (event.fault, event.node, event.exit_code) == ("exit", "n1", code)


def test_a_job_that_can_start_nowhere_has_failed_when_that_is_clear() -> None:
    refused = PodsRefused(TRAIN, 'secret "acme.wandb" not found', "not_started", "n1")
    for repeats, kind in ((0, Evicted), (1, Evicted), (2, Failed)):
        found = work(
            State.CLAIMED,
            request=FLAKY,
            last_fault="not_started" if repeats else "",
            repeats=repeats,
            evictions=repeats,
            submitted_at_s=7.0,
        )
        event = own_failure(found, refused, PodsGone(TRAIN))
        assert type(event) is kind
        assert isinstance(event, Evicted | Failed)
        assert 'secret "acme.wandb" not found' in event.reason
        assert (event.fault, event.node) == ("not_started", "n1")
    # Another kind of end in between begins anew.
    found = work(
        State.CLAIMED, request=FLAKY, last_fault="node_lost", repeats=2, submitted_at_s=7.0
    )
    assert isinstance(own_failure(found, refused, PodsGone(TRAIN)), Evicted)


def test_a_job_that_no_cluster_can_run_has_failed_at_once_with_the_api_servers_words() -> None:
    words = 'Job.batch "train-1" is invalid: spec.template: Invalid value: "a b"'
    refused = PodsRefused(TRAIN, words, "not_started", hopeless=True)
    retried = JobRequest(id="train", retries=100, max_evictions=1000)
    found = work(State.CLAIMED, request=retried, submitted_at_s=7.0)
    event = own_failure(found, refused, PodsGone(TRAIN))
    assert isinstance(event, Failed)
    assert (event.reason, event.fault, event.exit_code) == (words, "not_started", None)


def test_pods_that_wait_without_a_word_may_wait_for_what_their_runtime_mounts() -> None:
    mounted = RuntimeVolume(name="k", mount_path="/k", secret="acme.mpi-ssh")
    used = RuntimeUse(version="v", template=PodTemplate(volumes=(mounted,)), digest="d")
    asked = JobRequest(id="train", runtime_used=used)
    job = Job(attempt=TRAIN, request=asked)
    why = "not all pods ran within 60 s"
    told = (
        f"{why}: no reason is told; its runtime mounts Secret acme.mpi-ssh, which may not be there"
    )
    assert Limits().too_late(job) == told
    job.waits_for = "0/3 nodes are available"
    assert Limits().too_late(job) == f"{why}: 0/3 nodes are available"
    assert Limits().too_late(Job(attempt=TRAIN, request=REQUEST)) == why


def test_held_is_what_the_cluster_has_an_object_of_or_is_about_to() -> None:
    executor = Executor("berlin")
    executor.handle(HintSeen(1, placed(), 5, "receipt"), 100)
    held = [HeldAttempt(tenant="acme", id="train", attempt=1, receipt="receipt", executor=NAME)]
    assert executor.held == held  # the answer to its claim may come at any moment
    executor.handle(Answered(ref="1", outcome=Stored(6)), 101)
    assert executor.held == held
    executor.handle(PodsRunning(TRAIN, PODS), 102)
    executor.handle(Answered(ref="2", outcome=Unknown("damaged")), 103)
    executor.handle(PodsCompleted(TRAIN), 104)
    assert executor.held == held  # it has ended, and cannot say so
    executor.handle(Reloaded(ref="3", workload=work(State.RUNNING)), 105)
    executor.handle(Answered(ref="4", outcome=Stored(10)), 106)
    assert executor.held == []


def test_held_without_an_object_leaves_out_parts_of_a_gang_and_refused_claims() -> None:
    executor = Executor("berlin")
    executor.handle(HintSeen(1, placed(), 5, "receipt"), 100)
    executor.handle(Answered(ref="1", outcome=Refused(7)), 101)
    executor.handle(Reloaded(ref="2", workload=work(State.QUEUED)), 102)
    assert executor.held == []
    part = Part(job="all", attempt=1, number=0, clusters=("berlin", "paris"), pods=(1, 1))
    request = msgspec.structs.replace(REQUEST, part=part)
    other = Executor("berlin")
    other.handle(HintSeen(1, msgspec.structs.replace(placed(), request=request), 5, "r"), 100)
    assert other.held == []  # claimed, it would still have to wait for the other parts


def test_held_of_an_elastic_job_names_the_pods_that_it_has_by_now() -> None:
    elastic = msgspec.structs.replace(REQUEST, pod_sets=(PodSet(count=2, max_count=4),))
    more = (*PODS, PodBinding(pod="main-3", node="n3", gpus=(1,)))
    job = Job(attempt=TRAIN, request=elastic, observed=PODS, resize_ordered=more)
    assert job.resizable_pods == more
    assert Job(attempt=TRAIN, request=REQUEST, observed=PODS).resizable_pods == ()


def test_found_and_frozen_attempts_are_held() -> None:
    executor = Executor("berlin")
    [reload] = executor.handle(PodsFound(TRAIN, "kept"), 100)
    assert isinstance(reload, Reload)
    held = [HeldAttempt(tenant="acme", id="train", attempt=1, receipt="kept", executor=NAME)]
    assert executor.held == held
    executor.handle(Reloaded(ref=reload.ref, workload=None, failed="unreadable"), 101)
    assert executor.held == held

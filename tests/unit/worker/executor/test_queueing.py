"""The core where the cluster has a queue of its own, and what it says of pods that do not run."""

from typing import Any

from berthmaster.lib.lifecycle.instructions import (
    Answered,
    Append,
    Refused,
    Reload,
    Reloaded,
    Stored,
)
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Workload, key
from berthmaster.lib.messages.placement import PodBinding, Target
from berthmaster.lib.messages.workload import Admitted, Evicted, JobRequest, Placed, Running
from berthmaster.worker.executor.core.cluster_protocol import (
    Attempt,
    CreatePods,
    DeletePods,
    PodsAdmitted,
    PodsFound,
    PodsGone,
    PodsQueued,
    PodsRunning,
    PodsWaiting,
    StopPods,
)
from berthmaster.worker.executor.core.events import Acknowledge, HintSeen, Listed, Tick
from berthmaster.worker.executor.core.executor import BACK_IN_QUEUE, Executor
from berthmaster.worker.executor.core.limits import Limits

REQUEST = JobRequest(id="train")
PODS = (PodBinding(pod="main-0", node="n1"),)
TRAIN = Attempt("acme", "train", 1)
KEY = key("acme", "train")
NAME = "executor/berlin"
QUEUE = Target(via="worker", namespace="team", local_queue="gpu")
LIMITS = Limits(start_s=60, queue_s=300)


def head(**more: Any) -> dict[str, Any]:
    return {"tenant": "acme", "id": "train", "by": NAME, "cluster": "berlin", "attempt": 1} | more


def placed(target: Target = QUEUE) -> Placed:
    fields = head(after=4, at_s=0, by="resolver", pods=PODS, request=REQUEST, decision=1)
    return Placed(**fields, submitted_at_s=7, target=target)


def claimed(target: Target = QUEUE) -> Executor:
    """It has ordered the pods at 100; the log is at 6."""
    executor = Executor("berlin", limits=LIMITS)
    executor.handle(HintSeen(1, placed(target), 5), 100)
    assert executor.handle(Answered(ref="1", outcome=Stored(6)), 100) == [
        CreatePods(TRAIN, NAME, PODS, REQUEST, None, None, target),
        Acknowledge(1),
    ]
    return executor


def work(state: State, **more: Any) -> Workload:
    known: dict[str, Any] = {
        "sequence": 9,
        "request": REQUEST,
        "digest": "d",
        "attempt": 1,
        "cluster": "berlin",
        "pods": PODS,
        "target": QUEUE,
        "submitted_at_s": 7.0,
        "executor": NAME,
    }
    return Workload(tenant="acme", id="train", state=state, **(known | more))


def evicted(executor: Executor, event: PodsGone, now_s: float) -> str:
    """The reason that it tells when no pod is left; how often it was evicted is in the log."""
    steps = executor.handle(event, now_s)
    if isinstance(steps[0], Reload):
        held = work(State.CLAIMED)
        steps = executor.handle(Reloaded(ref=steps[0].ref, workload=held), now_s)
    [step] = steps
    assert isinstance(step, Append)
    assert isinstance(step.event, Evicted)
    return step.event.reason


def test_what_the_queue_lets_in_is_told_before_it_runs() -> None:
    executor = claimed()
    assert executor.handle(PodsQueued(TRAIN), 101) == []
    admitted = Admitted(**head(after=6, at_s=150))
    assert executor.handle(PodsAdmitted(TRAIN), 150) == [Append(ref="2", event=admitted)]
    # It runs before the log has answered: one write at a time, in order.
    assert executor.handle(PodsRunning(TRAIN, PODS), 151) == []
    running = Running(**head(after=7, at_s=152), pods=PODS)
    assert executor.handle(Answered(ref="2", outcome=Stored(7)), 152) == [
        Append(ref="3", event=running)
    ]
    assert executor.handle(PodsAdmitted(TRAIN), 153) == []  # told twice


def test_what_the_queue_does_not_let_in_is_given_back_after_its_own_limit() -> None:
    executor = claimed()
    executor.handle(PodsQueued(TRAIN), 100)
    assert executor.handle(Tick(), 399) == []
    why = "its cluster's queue did not let it in within 300 s"
    assert executor.handle(Tick(), 400) == [StopPods(TRAIN, why)]
    assert evicted(executor, PodsGone(TRAIN, why), 401) == why


def test_pods_have_their_own_limit_from_the_admission_on() -> None:
    executor = claimed()
    executor.handle(PodsAdmitted(TRAIN), 350)
    executor.handle(Answered(ref="2", outcome=Stored(7)), 350)
    executor.handle(PodsWaiting(TRAIN, "0/3 nodes are available"), 351)
    assert executor.handle(Tick(), 409) == []
    why = "not all pods ran within 60 s: 0/3 nodes are available"
    assert executor.handle(Tick(), 410) == [StopPods(TRAIN, why)]


def test_without_a_queue_the_limit_counts_from_the_order_and_the_reason_is_the_last_word() -> None:
    executor = claimed(Target(namespace="team"))
    executor.handle(PodsWaiting(TRAIN, "no room"), 101)
    executor.handle(PodsWaiting(TRAIN, ""), 102)
    assert executor.handle(Tick(), 160) == [StopPods(TRAIN, "not all pods ran within 60 s")]


def test_what_its_queue_takes_back_is_given_back_before_and_after_a_restart() -> None:
    executor = claimed()
    executor.handle(PodsAdmitted(TRAIN), 150)
    executor.handle(Answered(ref="2", outcome=Stored(7)), 150)
    assert executor.handle(PodsQueued(TRAIN), 200) == [StopPods(TRAIN, BACK_IN_QUEUE)]
    assert evicted(executor, PodsGone(TRAIN, BACK_IN_QUEUE), 201) == BACK_IN_QUEUE

    # A new life sees it queued and reads in the log that it had been let in.
    for state in (State.ADMITTED, State.RUNNING):
        again = Executor("berlin", limits=LIMITS)
        read = Reload(ref="1", tenant="acme", id="train")
        assert again.handle(PodsFound(TRAIN), 300) == [read]
        assert again.handle(PodsQueued(TRAIN), 300) == []
        stop = [StopPods(TRAIN, BACK_IN_QUEUE)]
        assert again.handle(Reloaded(ref="1", workload=work(state)), 301) == stop
    # One that never was let in goes on waiting.
    again = Executor("berlin", limits=LIMITS)
    again.handle(PodsFound(TRAIN), 300)
    again.handle(PodsQueued(TRAIN), 300)
    assert again.handle(Reloaded(ref="1", workload=work(State.CLAIMED)), 301) == []
    assert again.handle(Tick(), 599) == []
    assert [type(s) for s in again.handle(Tick(), 600)] == [StopPods]


def test_an_attempt_that_ran_and_whose_pods_are_nowhere_is_not_to_be_made_again() -> None:
    executor = Executor("berlin", limits=LIMITS)
    for state, ran in ((State.CLAIMED, False), (State.ADMITTED, True), (State.RUNNING, True)):
        executor = Executor("berlin", limits=LIMITS)
        executor.handle(HintSeen(0, placed(), 5), 100)
        executor.handle(Answered(ref="1", outcome=Refused(9)), 101)
        order = CreatePods(TRAIN, NAME, PODS, REQUEST, None, None, QUEUE, ran, claimed_before=True)
        steps = executor.handle(Reloaded(ref="2", workload=work(state)), 102)
        assert steps == [order, Acknowledge(0)]
    assert evicted(executor, PodsGone(TRAIN), 103) == "its pods vanished from the cluster"


# What the list of all that is open says


def test_a_claim_of_an_earlier_life_is_listed_refused_and_then_carried_out() -> None:
    executor = Executor("berlin", limits=LIMITS)
    (claim,) = executor.handle(HintSeen(0, placed(), 5), 100)
    assert isinstance(claim, Append)
    assert executor.handle(Listed(frozenset({KEY}), 7), 100) == []
    (reload,) = executor.handle(Answered(ref=claim.ref, outcome=Refused()), 101)
    assert isinstance(reload, Reload)
    steps = executor.handle(Reloaded(ref=reload.ref, workload=work(State.CLAIMED)), 102)
    assert [type(step) for step in steps] == [CreatePods, Acknowledge]


def test_what_is_held_and_not_listed_is_read_again_unless_it_is_younger_than_the_list() -> None:
    executor = claimed()
    assert executor.handle(Listed(frozenset({KEY}), 90), 200) == []
    assert executor.handle(Listed(frozenset(), 5), 200) == []
    (reload,) = executor.handle(Listed(frozenset(), 90), 200)
    assert isinstance(reload, Reload)
    gone = executor.handle(Reloaded(ref=reload.ref, workload=None), 201)
    assert gone == [DeletePods(TRAIN, "not ours (any more)")]
    assert executor.jobs == 0

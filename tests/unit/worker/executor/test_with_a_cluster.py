"""The executor with an emulated cluster and a log in memory, in virtual time."""

from typing import Any

import pytest

from berthmaster.lab.emulator.disturbance import Nature
from berthmaster.lab.emulator.world import Phase
from berthmaster.lib.lifecycle.instructions import Append, Reload
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import Cancelled, Evicted, Failed, Reprioritized, Running
from berthmaster.worker.executor.core.cluster_protocol import (
    Attempt,
    CreatePods,
    DeletePods,
    PodsGone,
)
from berthmaster.worker.executor.core.limits import Limits
from tests.support.one_cluster import TENANT, Play, job

TRAIN = Attempt(TENANT, "train", 1)


def empty(play: Play) -> bool:
    nodes = play.cluster.world.nodes.values()
    return not play.cluster.world.groups and all(
        n.gpu_free_milli == [1000] * 8 and not n.pods for n in nodes
    )


def test_a_job_runs_for_its_duration_and_leaves_nothing_behind() -> None:
    play = Play(Nature(speed=10))
    play.start(job(lasts_s=100), PodBinding(pod="main-0", node="n1"))
    running = play.log.last("train")
    assert isinstance(running, Running)
    assert running.pods == (PodBinding(pod="main-0", node="n1", gpus=(0,)),)  # the kubelet chose
    play.after(9)
    assert play.log.load("train").state is State.RUNNING
    play.after(2)
    assert play.log.kinds("train") == ["Submitted", "Placed", "Claimed", "Running", "Succeeded"]
    assert play.log.last("train").at_s == 1010
    assert empty(play)
    assert play.hints == {}


def test_a_job_that_fails_by_itself_has_failed() -> None:
    play = Play(Nature(failure_share=1))
    play.start(job(lasts_s=100))
    play.after(101)
    ending = play.log.last("train")
    assert isinstance(ending, Failed)
    assert (ending.exit_code, ending.reason) == (1, "pod train-1-main-0 exited with 1")
    assert empty(play)


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (PodBinding(pod="main-0", node="n1", gpus=(0,)), "OutOfnvidia.com/gpu: pod main-0 on n1"),
        (PodBinding(pod="main-0", node="n9"), "NodeUnknown: pod main-0 on n9"),
        (PodBinding(pod="other-0", node="n2"), "InvalidPod: pod other-0 on n2"),
    ],
)
def test_what_a_kubelet_refuses_is_evicted_with_its_reason(pod: PodBinding, reason: str) -> None:
    play = Play()
    play.start(job("first"), PodBinding(pod="main-0", node="n1", gpus=(0,)))
    play.start(job(), pod)
    play.after(1)
    evicted = play.log.last("train")
    assert isinstance(evicted, Evicted)
    assert evicted.reason == reason
    assert list(play.cluster.world.groups) == [Attempt(TENANT, "first", 1)]


def test_a_gang_of_which_one_pod_is_refused_holds_nothing() -> None:
    play = Play()
    pods = [PodBinding(pod=f"main-{i}", node="n1", gpus=(i,)) for i in range(8)]
    play.start(job(count=9), *pods, PodBinding(pod="main-8", node="n1"))
    play.after(1)
    assert play.log.kinds("train") == ["Submitted", "Placed", "Claimed", "Evicted"]
    assert empty(play)


def test_one_eviction_too_many_is_a_failure_and_each_is_told_later_than_the_one_before() -> None:
    play = Play()
    play.submit(job(max_evictions=3))
    told_s = []
    for _ in range(4):
        play.place("train", PodBinding(pod="main-0", node="gone"))
        began_s = play.now_s
        play.after(10)
        told_s.append(round(play.log.last("train").at_s - began_s, 3))
    assert told_s == [0.0, 0.1, 0.2, 0.4]
    ending = play.log.last("train")
    assert isinstance(ending, Failed)
    assert ending.reason == "evicted 4 times, at last: NodeUnknown: pod main-0 on gone"
    assert play.log.load("train").evictions == 3


def test_an_eviction_of_what_a_person_wants_cancelled_is_a_cancellation() -> None:
    play = Play(Nature(start_delay_s=30), limits=Limits(start_s=10))
    play.start(job())
    play.cancel("train")
    play.after(1)
    assert isinstance(play.log.last("train"), Cancelled)
    assert empty(play)


def test_pods_that_do_not_run_in_time_are_evicted() -> None:
    play = Play(Nature(start_delay_s=30), limits=Limits(start_s=10))
    play.start(job())
    play.after(9)
    assert play.log.load("train").state is State.CLAIMED
    play.after(2)
    evicted = play.log.last("train")
    assert isinstance(evicted, Evicted)
    assert evicted.reason == "not all pods ran within 10 s"
    assert empty(play)


def test_the_cluster_itself_enforces_the_deadline() -> None:
    play = Play()
    play.start(job(lasts_s=100, deadline_s=50))
    play.after(51)
    evicted = play.log.last("train")
    assert isinstance(evicted, Evicted)
    assert (evicted.reason, evicted.at_s) == ("deadline", 1050)
    assert empty(play)


def test_a_gpu_that_dies_takes_its_job_along() -> None:
    play = Play(Nature(gpu_deaths_per_hour=600, seed=2))
    play.start(job(count=2, gpus=8, lasts_s=1e6), *whole_nodes())
    play.after(600)
    evicted = play.log.last("train")
    assert isinstance(evicted, Evicted)
    assert evicted.reason.startswith("GpuLost: pod main-")
    assert not play.cluster.world.groups


def whole_nodes() -> tuple[PodBinding, PodBinding]:
    return (PodBinding(pod="main-0", node="n1"), PodBinding(pod="main-1", node="n2"))


def test_a_new_priority_in_between_only_costs_another_try() -> None:
    play = Play()
    play.start(job())
    play.log.append(
        Reprioritized(
            tenant=TENANT,
            id="train",
            after=play.log.load("train").sequence,
            at_s=0,
            by="gateway",
            priority=9,
        )
    )
    play.after(101)
    assert play.log.kinds("train")[-2:] == ["Reprioritized", "Succeeded"]


def test_a_job_whose_cluster_was_declared_lost_is_stopped_when_the_executor_wakes_late() -> None:
    """1. it runs; 2. its executor sleeps; 3. a person declares the cluster lost, the workload is
    evicted and runs elsewhere; 4. the executor wakes as the pods complete."""
    play = Play()
    play.start(job(lasts_s=100))
    play.log.append(
        Evicted(
            tenant=TENANT,
            id="train",
            after=play.log.load("train").sequence,
            at_s=0,
            by="resolver",
            cluster="berlin",
            attempt=1,
            reason="cluster lost",
        )
    )
    play.after(101)
    assert play.log.kinds("train")[-2:] == ["Running", "Evicted"]
    assert DeletePods(TRAIN, "not ours (any more)") in play.performed
    assert empty(play)


def test_a_bus_that_is_away_for_hours_ends_no_job_and_the_ending_is_told_afterwards() -> None:
    play = Play()
    play.start(job("long", lasts_s=20_000), PodBinding(pod="main-0", node="n2"))
    play.start(job("train", lasts_s=100))
    play.bus = lambda instruction: "away"
    play.after(10_000)
    assert play.cluster.world.groups[TRAIN].phase is Phase.COMPLETED
    assert play.log.load("train").state is State.RUNNING
    assert play.log.load("long").state is State.RUNNING
    play.bus_is_back()
    assert play.log.kinds("train")[-1] == "Succeeded"
    play.after(20_000)
    assert play.log.kinds("long")[-1] == "Succeeded"
    assert empty(play)


class LosesEveryOther:
    """A bus that loses every other answer after storing."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, instruction: Append | Reload) -> str:
        if isinstance(instruction, Reload):
            return "good"
        self.count += 1
        return "lost" if self.count % 2 else "good"


def test_lost_answers_repeat_nothing() -> None:
    play = Play(bus=LosesEveryOther())
    play.start(job())
    play.after(101)
    assert play.log.kinds("train") == ["Submitted", "Placed", "Claimed", "Running", "Succeeded"]
    assert empty(play)


def endings(play: Play) -> list[str]:
    return [k for k in play.log.kinds("train") if k in ("Succeeded", "Failed", "Cancelled")]


SCRIPTS: dict[str, dict[str, Any]] = {
    "succeeds": {},
    "fails": {"nature": Nature(failure_share=1)},
    "starts slowly": {"nature": Nature(start_delay_s=30)},
    "never starts": {"nature": Nature(start_delay_s=300), "limits": Limits(start_s=10)},
}


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_killed_executor_ends_each_job_once(script: str, cancelled: bool) -> None:
    """The executor is killed after each of its instructions in turn, and restarted at once."""
    for steps in range(14):
        play = Play(**SCRIPTS[script], kill_after=steps)
        play.start(job(lasts_s=100, max_evictions=0))
        if cancelled:
            play.after(5)
            if play.log.load("train").state in (State.CLAIMED, State.RUNNING):
                play.cancel("train")
        play.after(1000)
        assert len(endings(play)) == 1, (steps, play.log.kinds("train"))
        assert play.log.kinds("train").count("Claimed") == 1
        assert empty(play), steps
        assert play.hints == {}
        assert play.executor.jobs == 0


def test_killed_between_claim_and_create_the_pods_are_made_after_all() -> None:
    play = Play(kill_after=1)  # the claim is stored, then the process dies
    play.start(job())
    assert play.log.load("train").state is State.RUNNING
    assert play.log.kinds("train") == ["Submitted", "Placed", "Claimed", "Running"]


def test_a_deadline_that_passed_while_everything_was_down_is_told_without_making_pods() -> None:
    play = Play()
    play.submit(job(deadline_s=50))
    play.bus = lambda i: "lost" if isinstance(i, Append) else "away"  # claimed, and not known
    play.place("train", PodBinding(pod="main-0", node="n1"))
    play.run()
    play.now_s += 100
    play.restart()
    play.bus_is_back()
    play.after(1)
    evicted = play.log.last("train")
    assert isinstance(evicted, Evicted)
    assert evicted.reason == "deadline"
    assert play.cluster.pods_started == 0


def test_pods_that_vanish_are_an_eviction() -> None:
    play = Play()
    play.start(job())
    play.cluster.perform(DeletePods(TRAIN, "somebody else's doing"), play.now_s)
    play._keep()
    play.inbox.append(PodsGone(TRAIN))
    play.after(1)
    evicted = play.log.last("train")
    assert isinstance(evicted, Evicted)
    assert evicted.reason == "its pods vanished from the cluster"


def test_an_unreadable_story_leaves_the_pods_alone() -> None:
    play = Play()
    play.start(job())
    play.log.unreadable.add(play.log.load("train").key)
    play.restart()
    play.after(1000)
    assert [f.why for f in play.frozen] == ["unknown tag"]
    assert list(play.cluster.world.groups) == [TRAIN]


def test_a_clock_that_is_behind_does_not_let_pods_outlive_their_deadline() -> None:
    """The claim's answer was lost; it is read back with the server's time, ahead of ours."""
    play = Play(bus=lambda _: "lost")
    play.submit(job(lasts_s=1000, deadline_s=60))
    play.place("train", PodBinding(pod="main-0", node="n1", gpus=(0,)))
    play.run()
    play.now_s -= 300
    play.bus_is_back()
    [create] = [step for step in play.performed if isinstance(step, CreatePods)]
    assert create.stop_after_s == 60

"""An executor that changes how many pods an attempt has: emulated cluster, virtual time."""

import pytest

from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import Resized
from berthmaster.worker.executor.core.limits import Limits
from tests.support.one_cluster import Play, job

LIMITS = Limits()


def pods(*gpus: int, node: str = "n1") -> list[PodBinding]:
    return [PodBinding(pod=f"main-{at}", node=node, gpus=(gpu,)) for at, gpu in enumerate(gpus)]


def free(play: Play, node: str = "n1") -> list[int]:
    return play.cluster.world.nodes[node].gpu_free_milli


def running(count: int = 3, **bounds: int) -> Play:
    play = Play()
    play.start(job(count=count, lasts_s=10_000, **bounds), *pods(*range(count)))  # type: ignore[arg-type]
    play.after(1)
    assert play.log.load("train").state is State.RUNNING
    return play


def test_it_shrinks_and_says_so_when_no_other_pod_is_left() -> None:
    play = running(3, min_count=1)
    play.resize("train", *pods(0, 1))
    before = play.log.load("train")
    assert (len(before.pods), [each.pod for each in before.resizing]) == (3, ["main-0", "main-1"])
    play.run()
    told = play.log.last("train")
    assert isinstance(told, Resized)
    assert (told.pods, told.reason) == (tuple(pods(0, 1)), "")
    assert free(play) == [0, 0] + 6 * [1000]
    now = play.log.load("train")
    assert now.request is not None
    assert (now.request.pod_sets[0].count, now.resizing) == (2, ())


def test_it_grows_and_ends_with_all_that_it_has() -> None:
    play = running(2, max_count=4)
    play.resize("train", *pods(0, 1, 2, 3))
    play.run()
    assert free(play)[:4] == [0, 0, 0, 0]
    assert isinstance(play.log.last("train"), Resized)
    play.cancel("train")
    play.run()
    assert free(play) == 8 * [1000]


def test_of_new_pods_that_do_not_run_in_time_it_lets_go_again_and_says_why() -> None:
    play = running(2, max_count=4)
    play.start(job("other", lasts_s=10_000), PodBinding(pod="main-0", node="n1", gpus=(3,)))
    play.after(1)
    play.resize("train", *pods(0, 1, 2, 3))  # whoever decided that knew less than the kubelet
    play.run()
    assert play.log.load("train").resizing != ()
    assert play.log.load("train").state is State.RUNNING
    play.after(LIMITS.start_s + 1)
    told = play.log.last("train")
    assert isinstance(told, Resized)
    assert [each.pod for each in told.pods] == ["main-0", "main-1", "main-2"]
    assert told.reason == ("not all pods ran within 60 s: OutOfnvidia.com/gpu: pod main-3 on n1")
    assert play.log.load("train").state is State.RUNNING


@pytest.mark.parametrize("kill_after", range(4))
@pytest.mark.parametrize("target", [(0,), (0, 1, 2, 3)], ids=["shrink", "grow"])
def test_executor_killed_at_each_step_completes(kill_after: int, target: tuple[int, ...]) -> None:
    play = running(2, min_count=1, max_count=4)
    play.kill_after = kill_after
    play.resize("train", *pods(*target))
    play.run()
    play.after(5)
    assert play.log.load("train").resizing == ()
    assert play.log.load("train").pods == tuple(pods(*target))
    assert play.log.kinds("train").count("Resized") == 1
    assert free(play) == len(target) * [0] + (8 - len(target)) * [1000]

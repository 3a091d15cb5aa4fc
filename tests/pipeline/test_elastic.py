"""An elastic job of real processes: its executor ends and starts some, the rest find together."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from berthmaster.lib.lifecycle.pods import index_of
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import Resized, RunSpec
from berthmaster.worker.executor.core.affinity import Offers
from berthmaster.worker.executor.core.cluster_protocol import (
    ClusterInstruction,
    CreatePods,
    DeletePods,
    PodEvent,
    PodsGone,
    PodsRunning,
    ResizePods,
    StopPods,
)
from berthmaster.worker.executor.core.manifest import Style, document
from tests.support.one_cluster import Play, job
from tests.support.patience import Patience
from tests.support.ports import kept_port

MEMBER = Path(__file__).with_name("member.py")


class Processes:
    """A cluster whose pods are processes of this machine, told what the Job's template says."""

    next_due_s = None

    def __init__(self) -> None:
        self.port = kept_port()
        self.pods: dict[str, subprocess.Popen[str]] = {}
        self.steps: list[tuple[int, int, int]] = []  # number, members, sum
        self.env: dict[str, str] = {}

    def perform(self, order: ClusterInstruction, now_s: float) -> list[PodEvent]:
        match order:
            case CreatePods():
                spec = document(order, None, Offers(), Style())["spec"]["template"]["spec"]
                [container] = spec["containers"]
                self.env = {e["name"]: e["value"] for e in container["env"] if "value" in e}
                self._start(order.pods)
                return [PodsRunning(order.attempt, order.pods)]
            case ResizePods():
                self._end({each.pod for each in order.pods})
                self._start(order.pods)
                return [PodsRunning(order.attempt, order.pods)]
            case StopPods():
                self._end(set())
                return [PodsGone(order.attempt, order.reason)]
            case DeletePods():
                self._end(set())
                return []

    def _start(self, pods: tuple[PodBinding, ...]) -> None:
        for each in pods:
            if each.pod not in self.pods:
                env = self.env | {"JOB_COMPLETION_INDEX": str(index_of(each.pod))}
                argv = [sys.executable, str(MEMBER), str(self.port)]
                self.pods[each.pod] = subprocess.Popen(
                    argv, env=env, stdout=subprocess.PIPE, text=True
                )

    def _end(self, kept: set[str]) -> None:
        for name in sorted(self.pods.keys() - kept):
            with self.pods.pop(name) as process:
                process.terminate()

    def until_members(self, number: int) -> None:
        """Until a step was made by so many, of every one a number."""
        leader, patience = self.pods["main-0"], Patience(f"a step by {number}")
        assert leader.stdout is not None
        while not self.steps or self.steps[-1][1] != number:
            patience.look(self.steps[-5:])
            step, members, total = map(int, leader.stdout.readline().split())
            self.steps.append((step, members, total))

    def take_journal(self) -> list[object]:
        return []

    def advance(self, now_s: float) -> list[PodEvent]:
        return []


@pytest.fixture
def processes() -> Iterator[Processes]:
    found = Processes()
    yield found
    found._end(set())


def test_processes_that_lose_members_go_on_and_take_new_ones_in(processes: Processes) -> None:
    play = Play()
    play.cluster = processes  # type: ignore[assignment]
    request = job(count=4, min_count=2, max_count=5)
    request = msgspec.structs.replace(request, run=RunSpec(image="example.org/train:1"))
    pods = [PodBinding(pod=f"main-{n}", node="n1") for n in range(5)]
    play.start(request, *pods[:4])
    processes.until_members(4)
    told = ("BERTH_COUNT", "BERTH_MIN_COUNT", "BERTH_MAX_COUNT", "PET_NNODES")
    assert [processes.env[name] for name in told] == ["4", "2", "5", "2:5"]

    play.resize("train", *pods[:2])
    play.run()
    assert isinstance(play.log.last("train"), Resized)
    processes.until_members(2)
    play.resize("train", *pods)
    play.run()
    processes.until_members(5)

    # No step was lost or made twice, and each has the numbers of all who made it.
    numbers = [step for step, _, _ in processes.steps]
    assert numbers == list(range(1, len(numbers) + 1))
    # On the way from one number to another others may meet for a moment.
    assert {(4, 10), (2, 3), (5, 15)} <= {(members, total) for _, members, total in processes.steps}
    play.cancel("train")
    play.run()
    assert play.log.kinds("train")[-1] == "Cancelled"
    assert processes.pods == {}

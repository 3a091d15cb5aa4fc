"""A seeded storm on a hub and three workers: two queues that borrow from each other and take back,
two flavors, priorities, modes switched, managers, API servers and the reconciler killed, and before
Kubernetes 1.36 the webhook that clears nominations.

BERTH_STORM_SEED and BERTH_STORM_JOBS make another storm, or a longer one. It prints how long each
step took.
"""

import contextlib
import functools
import os
import random
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest

from berthmaster.lab.controlplane.api import ApiError, Unreachable
from berthmaster.lab.controlplane.kueue import builders
from berthmaster.lab.controlplane.kueue.objects import GROUP, QUEUE_LABEL
from berthmaster.lab.controlplane.kueue.setup import API, Kueue, Options
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.lifecycle.workload import Key
from tests.cluster.multikueue_bus import Bus
from tests.cluster.multikueue_workers import Census, inventories
from tests.cluster.multikueueing import Rig

SEED: Final = int(os.environ.get("BERTH_STORM_SEED", "1"))
JOBS: Final = int(os.environ.get("BERTH_STORM_JOBS", "24"))
OURS: Final = "berthmaster.io/dispatcher"
DISPATCHERS: Final = {"dispatch": OURS, "observe": "AllAtOnce"}
MODELS: Final = {"a100": "NVIDIA-A100", "t4": "Tesla-T4"}
GPUS: Final = {"worker-1": ("a100", 12), "worker-2": ("t4", 12), "worker-3": ("a100", 8)}
POLL_S: Final = 0.25
pytestmark = pytest.mark.timeout(1800)


def quotas(a100: int, t4: int) -> dict[str, dict[str, str | int]]:
    return {
        "a100": {"cpu": "1000", "memory": "1Ti", "nvidia.com/gpu": a100},
        "t4": {"cpu": "1000", "memory": "1Ti", "nvidia.com/gpu": t4},
    }


@pytest.fixture
def rig(planes: Planes, namespace: str, tmp_path: Path) -> Iterator[Rig]:
    for worker in planes.workers:
        model, gpus = GPUS[worker.name]
        make_nodes(worker, [gpu_node("a", model=MODELS[model], gpus=gpus)])
    workers = {
        name: quotas(*((gpus, 0) if model == "a100" else (0, gpus)))
        for name, (model, gpus) in GPUS.items()
    }
    options = Options(dispatcher=OURS)
    with (
        Bus(tmp_path) as bus,
        Kueue(planes, namespace, options=options, quotas=quotas(10, 6), worker_quotas=workers) as k,
    ):
        rig = Rig(k, bus, tmp_path)
        rig.flags = ("--patience-s", "6")
        rig.limits = {"silent_s": 4.0, "trap_s": 20.0}
        share_with_a_second_queue(k)
        try:
            yield rig
        finally:
            rig.kill()


def share_with_a_second_queue(k: Kueue) -> None:
    """On the hub half of the cohort's quota is its own, which it takes back. On workers it has none
    and borrows: there the first queue owns all."""
    for plane in k.planes:
        hub = plane.role == "hub"
        name = f"{k.namespace}-second"
        amounts = quotas(10, 6) if hub else quotas(0, 0)
        second = builders.cluster_queue(name, amounts, checks=[k.check] if hub else [])
        plane.api.apply(second)
        preemption = {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"}
        shared: dict[str, object] = {"cohortName": f"{k.namespace}-cohort"}
        for queue in (k.cluster_queue, name):
            spec = shared | ({"preemption": preemption} if hub else {})
            plane.api.merge(f"{API}/clusterqueues/{queue}", {"spec": spec})
        plane.api.apply(builders.local_queue(k.namespace, "second", name))
        for value in PRIORITIES:
            plane.api.apply(builders.priority_class(f"storm-{value}", value))


PRIORITIES: Final = (0, 50, 100)


class Watch:
    """Polls the hub: when each job was first seen at each step, and which were preempted."""

    def __init__(self, k: Kueue) -> None:
        self._k = k
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="storm's watch")
        self.steps: dict[str, dict[str, float]] = {}  # job -> step -> when, of its last attempt
        self.preempted: set[str] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(POLL_S):
            with contextlib.suppress(ApiError, Unreachable):
                self._look_at_workloads()

    def _look_at_workloads(self) -> None:
        now_s = time.monotonic()
        for workload in self._k.planes.hub.api.items(
            f"{API}/namespaces/{self._k.namespace}/workloads"
        ):
            job = workload["metadata"]["ownerReferences"][0]["name"]
            status = workload.get("status") or {}
            true = {c["type"]: c for c in status.get("conditions", ()) if c["status"] == "True"}
            if true.get("Evicted", {}).get("reason") == "Preempted":
                self.preempted.add(job)
            steps = self.steps.setdefault(job, {})
            if "QuotaReserved" not in true:
                steps.clear()
            else:
                steps.setdefault("reserved", now_s)
                if status.get("nominatedClusterNames") or status.get("clusterName"):
                    steps.setdefault("nominated", now_s)
                if status.get("clusterName"):
                    steps.setdefault("admitted", now_s)

    def table(self) -> list[str]:
        """From QuotaReserved to each step, over all jobs, in seconds."""
        lines = [f"{len(self.preempted)} preempted on the hub"]
        for step in ("nominated", "admitted"):
            took = sorted(one[step] - one["reserved"] for one in self.steps.values() if step in one)
            if took:
                p95 = took[int(0.95 * (len(took) - 1))]
                lines.append(
                    f"reserved to {step}: median {statistics.median(took):.1f} s, p95 {p95:.1f} s"
                )
        return lines


class Trouble:
    """What is done to them, one after another, in a seeded order."""

    def __init__(self, rig: Rig, chance: random.Random) -> None:
        self._rig = rig
        self.mode = "dispatch"
        workers = [plane.name for plane in rig.k.planes.workers]
        self._all = [
            lambda: rig.restart(self.mode),
            lambda: self._manager("hub"),
            lambda: self._manager(chance.choice(workers)),
            lambda: self._api_server(chance.choice(workers)),
            lambda: self._api_server("hub"),
            self._switch,
            self._switch,
        ]
        if rig.k.clearing is not None:  # before Kubernetes 1.36
            self._all += [self._webhook, self._webhook]
        chance.shuffle(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def next(self) -> None:
        """One of them; returns when whoever was killed is there again."""
        self._all.pop()()

    def _manager(self, name: str) -> None:
        self._rig.k.kill_manager(name)
        time.sleep(0.5)
        self._rig.k.start_manager(name)

    def _api_server(self, name: str) -> None:
        plane = self._rig.k.planes[name]
        plane.crash_api_server()
        plane.start_api_server()

    def _webhook(self) -> None:
        clearing = self._rig.k.clearing
        assert clearing is not None
        clearing.kill()
        time.sleep(3.0)  # admissions and evictions are refused meanwhile, and tried again
        clearing.start()

    def _switch(self) -> None:
        self.mode = "observe" if self.mode == "dispatch" else "dispatch"
        self._rig.stop()
        self._rig.k.kill_manager("hub")
        self._rig.k.restart_manager("hub", dispatcher=DISPATCHERS[self.mode])
        self._rig.start(self.mode)


def submit(rig: Rig, chance: random.Random, name: str) -> None:
    """A job of either queue, of some priority; what an API server that is away did not take is
    asked for again."""
    queue = chance.choice((rig.k.queue, "second"))
    labels = {f"{GROUP}/priority-class": f"storm-{chance.choice(PRIORITIES)}"}
    requests = {"cpu": "1", "nvidia.com/gpu": str(chance.choice((1, 2, 4)))}
    run_s = str(chance.randint(2, 6))
    body = builders.job(rig.k.namespace, name, queue, requests=requests, run_s=run_s, labels=labels)
    assert body["metadata"]["labels"][QUEUE_LABEL] == queue
    path = f"/apis/batch/v1/namespaces/{rig.k.namespace}/jobs"

    def taken() -> bool:
        try:
            rig.k.planes.hub.api.create(path, body)
        except (ApiError, Unreachable):
            found = None
            with contextlib.suppress(ApiError, Unreachable):
                found = rig.k.job(name)
            return found is not None
        return True

    rig.until(taken, f"{name} is taken")


def test_a_storm_ends_with_every_job_where_it_should_once(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(SEED)
    trouble = Trouble(rig, chance)
    rig.start()
    rig.ready()
    jobs = [f"job-{number}" for number in range(JOBS)]
    every = max(1, JOBS // len(trouble))
    with inventories(rig), Census(rig.k) as census, Watch(rig.k) as watch:
        for number, job in enumerate(jobs):
            submit(rig, chance, job)
            if number % every == every - 1 and len(trouble):
                trouble.next()
        while len(trouble):
            trouble.next()
        names: dict[str, Key] = {}
        for job in jobs:
            rig.until(lambda j=job: rig.k.has(j, "Finished"), f"{job} is over")  # type: ignore[misc]
            names[job] = rig.name(job)
        for job, name in names.items():
            told = functools.partial(rig.bus.kinds, name)
            rig.until(lambda t=told: "succeeded" in "".join(t()[-1:]), f"{job} is told")  # type: ignore[misc]
    with capsys.disabled():
        print("\n" + "\n".join(watch.table()))
    assert census.twice == set()
    for job, name in names.items():
        story = rig.bus.kinds(name)
        assert sum(kind.startswith(("succeeded", "failed", "cancelled")) for kind in story) == 1, (
            job,
            story,
        )
        succeeded = census.succeeded.get(job, set())
        seen = f"{job}: {story}, pods that succeeded: {succeeded}"
        # Kueue may take back a job in the second in which it ends: then it runs once more.
        taken_back = any(kind.startswith("evicted") for kind in story) or job in watch.preempted
        assert len(succeeded) == 1 or (succeeded and taken_back), seen
        where = {worker for worker, _ in succeeded}
        # Kueue may take the end of a worker that was away while its nomination was taken back, and
        # leaves the cluster's name as it is: the worker's own report tells where the job ended.
        assert story[-1] in {"succeeded unknown", *(f"succeeded {each}" for each in where)}, seen
    rig.nothing_wrong()

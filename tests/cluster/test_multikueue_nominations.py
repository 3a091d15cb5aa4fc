"""Nominations on real API servers: one at a time, whatever was there before; a second dispatcher;
and without NATS only where a Workload may go."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from berthmaster.lab.controlplane.api import ApiError
from berthmaster.lab.controlplane.kueue.setup import API, Kueue, Options
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.planes import Planes
from tests.cluster.multikueue_workers import Census, each_ends_once
from tests.cluster.multikueueing import USER, Bus, Rig

ONE, TWO, THREE = WORKERS = ("worker-1", "worker-2", "worker-3")
OURS = "berthmaster.io/dispatcher"
NUDGED = "berthmaster.io/nudged-at"
RIVAL = "rival"
FIGHT_S = 15.0


@pytest.fixture
def rig(planes: Planes, namespace: str, tmp_path: Path) -> Iterator[Rig]:
    for worker in planes.workers:
        make_nodes(worker, [gpu_node(f"{worker.name}-node", model="NVIDIA-A100", gpus=8)])
    with (
        Bus(tmp_path) as bus,
        Kueue(planes, namespace, options=Options(dispatcher=OURS)) as k,
    ):
        rig = Rig(k, bus, tmp_path)
        for name in WORKERS:
            bus.worker(name)
            bus.queue(name, k)
        try:
            yield rig
        finally:
            rig.kill()


def test_what_all_at_once_has_sent_everywhere_is_taken_back_and_runs_in_one_place(
    rig: Rig,
) -> None:
    """Copies wait in three workers that open at the same moment: with all of them nominated two
    would start the job."""
    rig.k.restart_manager("hub", dispatcher="AllAtOnce")
    for name in WORKERS:
        rig.k.stop_queue(name, "Hold")
    with Census(rig.k) as census:
        names = {f"job-{n}": rig.submit(f"job-{n}", run_s="3") for n in range(4)}
        for job in names:
            rig.until(lambda j=job: len(rig.k.copies(j)) == len(WORKERS), f"{job} is everywhere")  # type: ignore[misc]
            for name in WORKERS:
                rig.bus.copy(name, rig.k, job)
        rig.k.kill_manager("hub")
        rig.start()
        for job in names:
            rig.until(lambda j=job: rig.k.nominated(j) == [], f"{job} is nominated nowhere")  # type: ignore[misc]
        rig.k.start_manager("hub", Options(dispatcher=OURS))
        for job, key in names.items():
            rig.until(lambda j=job: rig.k.copies(j) == [], f"{job} has no copies")  # type: ignore[misc]
            assert rig.k.nominated(job) == []
            assert "has to go first" in rig.bus.why(key).summary
            for name in WORKERS:
                rig.bus.copy(name, rig.k, job, gone=True)
        for job in names:
            rig.until(lambda j=job: len(rig.k.copies(j)) == 1, f"{job} is sent once")  # type: ignore[misc]
        for name in WORKERS:
            rig.k.stop_queue(name, "None")
        each_ends_once(rig, census, names)


class Rival:
    """A second dispatcher: whatever is nominated, in its place it writes its own choice."""

    def __init__(self, k: Kueue, job: str, choice: list[str]) -> None:
        self._k, self._job, self._choice = k, job, choice
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._insist, name=RIVAL)
        self.writes = 0

    def __enter__(self) -> "Rival":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _insist(self) -> None:
        while not self._over.wait(0.05):
            workload = self._k.workload(self._job)
            if workload is None or self._k.nominated(self._job) == self._choice:
                continue
            path = f"{self._k.path(workload['metadata']['name'])}/status"
            with contextlib.suppress(ApiError):
                self._k.planes.hub.api.call(
                    "PATCH",
                    path,
                    {"status": {"nominatedClusterNames": self._choice}},
                    content_type="application/merge-patch+json",
                    query={"fieldManager": RIVAL},
                )
                self.writes += 1


def test_a_second_dispatcher_is_named_and_not_fought_and_nobody_is_evicted_for_it(
    rig: Rig,
) -> None:
    for name in WORKERS:
        rig.k.stop_queue(name, "Hold")
    rig.flags = ("--patience-s", "120")
    rig.bus.worker(ONE, free=8)
    rig.bus.worker(TWO, free=4)
    rig.bus.worker(THREE, free=2)
    rig.start()
    with Census(rig.k) as census:
        names = {"train": rig.submit("train", run_s="3")}
        rig.until(lambda: rig.k.nominated("train") == [ONE], "nominated")
        mark = rig.k.planes.hub.audit.mark()
        with Rival(rig.k, "train", [THREE]) as rival:
            rig.until(
                lambda: (
                    f"{RIVAL} has written its nomination" in rig.bus.why(names["train"]).summary
                ),
                "why names it",
            )
            rig.until(lambda: rig.events("train", "SecondDispatcher"), "an event")
            threading.Event().wait(FIGHT_S)
        calls = rig.k.planes.hub.audit.calls(since=mark, user=USER, verb="patch")
        patches = [c for c in calls if c.resource == "workloads.kueue.x-k8s.io/status"]
        assert rival.writes > 0
        assert len(patches) <= 10, [c.status for c in patches]
        (*_, note) = rig.events("train", "SecondDispatcher")
        assert note.startswith(f"{RIVAL} has written its nomination as well")
        assert rig.story("train") == ["submitted", f"placed {ONE}", f"claimed {ONE}"]
        for name in WORKERS:
            rig.k.stop_queue(name, "None")
        each_ends_once(rig, census, names)
        assert rig.bus.folds[names["train"]].evictions == 0


def test_while_nats_is_silent_a_selector_is_kept_and_a_short_life_is_told_afterwards(
    rig: Rig,
) -> None:
    for name, zone, gpus in ((ONE, "a", 8), (TWO, "b", 8), (THREE, "c", 2)):
        rig.bus.worker(name, free=gpus, labels={"zone": zone})
    api = rig.k.planes.hub.api
    queue = f"{API}/clusterqueues/{rig.k.cluster_queue}"

    def only(zone: str) -> None:
        selector = {"berthmaster.io/cluster-selector": f"zone={zone}"}
        api.merge(queue, {"metadata": {"annotations": selector}})

    only("c")
    rig.start()
    with Census(rig.k) as census:
        names = {"before": rig.submit("before", run_s="1")}
        rig.until_told("before", f"succeeded {THREE}")
        rig.bus.pause()
        names["short"] = rig.submit("short", run_s="1")
        rig.until(lambda: rig.k.has("short", "Finished"), "it ends")
        assert rig.k.cluster_of("short") == THREE
        only("nowhere")
        names["waits"] = rig.submit("waits", run_s="1")
        rig.until(lambda: rig.events("waits", "StandsStill"), "an event")
        (note, *_) = rig.events("waits", "StandsStill")
        assert f"{ONE}: its labels do not match zone=nowhere" in note
        assert rig.k.nominated("waits") == []
        rig.bus.resume()
        rig.until(lambda: rig.bus.kinds(names["short"]), "the log knows of it")
        rig.until_told("short", f"placed {THREE}", f"claimed {THREE}", f"succeeded {THREE}")
        ended = rig.bus.folds[names["short"]].reason
        assert ended.endswith("(it began and ended while the log could not be written)")
        assert rig.k.nominated("waits") == []
        only("b")
        each_ends_once(rig, census, names)
        assert rig.bus.kinds(names["waits"])[-1] == f"succeeded {TWO}"


def test_workload_nominated_before_the_managers_start_is_written_and_runs(rig: Rig) -> None:
    """Kueue's manager puts what is there at its start behind all news, for minutes under load."""
    rig.flags = ("--patience-s", "120")
    rig.limits = {"silent_s": 3.0, "hub_mute_s": 60.0}
    for name in WORKERS:
        rig.bus.worker(name, free={ONE: 8}.get(name, 2))
    jobs = [f"job-{n}" for n in range(3)]
    with Census(rig.k) as census:
        names = {job: rig.submit(job, run_s="3") for job in jobs}
        for job in jobs:
            rig.until(lambda j=job: rig.k.has(j, "QuotaReserved"), f"{job} has quota")  # type: ignore[misc]
            rig.until(lambda j=job: _check_waits(rig.k, j), f"{job} has its check")  # type: ignore[misc]
        rig.k.kill_manager("hub")
        mark = rig.k.planes.hub.audit.mark()
        rig.start()
        for job in jobs:
            rig.until(lambda j=job: rig.k.nominated(j), f"{job} is nominated")  # type: ignore[misc]
            rig.until(lambda j=job: NUDGED in _annotations(rig.k, j), f"{job} is written")  # type: ignore[misc]
        rig.k.start_manager("hub", Options(dispatcher=OURS))
        each_ends_once(rig, census, names)
    calls = rig.k.planes.hub.audit.calls(since=mark, user=USER, verb="patch")
    written = [c.name for c in calls if c.resource == "workloads.kueue.x-k8s.io"]
    assert len(written) == len(jobs), written


def _check_waits(k: Kueue, job: str) -> bool:
    return k.state_of(job, k.check) == "Pending"


def _annotations(k: Kueue, job: str) -> dict[str, str]:
    workload = k.workload(job)
    return workload["metadata"].get("annotations", {}) if workload is not None else {}


def test_history_of_job_behind_silent_agent_names_no_wrong_cluster(rig: Rig) -> None:
    """The first worker's agent is up and reports no copy: Kueue may run a job there although the
    nomination was taken back."""
    rig.flags = ("--patience-s", "3")
    rig.limits = {"silent_s": 3.0, "trap_s": 60.0}
    for name in WORKERS:
        rig.bus.worker(name, free={ONE: 8, TWO: 4}.get(name, 2))
    rig.k.stop_queue(ONE, "Hold")
    rig.start()
    with Census(rig.k) as census:
        names = {f"job-{n}": rig.submit(f"job-{n}", run_s="1") for n in range(4)}
        first = names["job-0"]
        rig.until(lambda: f"evicted {ONE}" in rig.bus.kinds(first), "it was taken back")
        rig.k.stop_queue(ONE, "None")
        each_ends_once(rig, census, names)

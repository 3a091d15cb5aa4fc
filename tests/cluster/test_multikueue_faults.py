"""The reconciler against real API servers when things break: kills at each step, managers and
workers that go away, evictions, the missing gate, modes switched under load, what its rights
deny."""

import contextlib
import http
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from berthmaster.hub.multikueue.core.deciding.traps import KUEUE_SILENT, NOT_CLEARED, SILENT_WORDS
from berthmaster.lab.controlplane.api import ApiError
from berthmaster.lab.controlplane.kueue.setup import API, Kueue, Options
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.planes import Planes
from tests.cluster.multikueueing import USER, Bus, Rig, running_in

ONE, TWO, THREE = "worker-1", "worker-2", "worker-3"
WORKERS = (ONE, TWO, THREE)
OURS = "berthmaster.io/dispatcher"


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    with Bus(tmp_path) as bus:
        yield bus


@contextlib.contextmanager
def rigged(
    planes: Planes, namespace: str, bus: Bus, folder: Path, options: Options, **how: object
) -> Iterator[Rig]:
    for worker in planes.workers:
        make_nodes(worker, [gpu_node(f"{worker.name}-node", model="NVIDIA-A100", gpus=8)])
    with Kueue(planes, namespace, options=options, **how) as k:  # type: ignore[arg-type]
        rig = Rig(k, bus, folder)
        for name in WORKERS:
            bus.worker(name)
            bus.queue(name, k)
        try:
            yield rig
        finally:
            rig.kill()


@pytest.fixture
def rig(planes: Planes, namespace: str, bus: Bus, tmp_path: Path) -> Iterator[Rig]:
    with rigged(planes, namespace, bus, tmp_path, Options(dispatcher=OURS)) as rig:
        yield rig


def ended_once(rig: Rig, job: str) -> None:
    """It ran to its end in one place, and the log tells one life."""
    rig.until(lambda: any("succeeded" in kind for kind in rig.story(job)), f"{job} ends")
    story = rig.story(job)
    assert sum("succeeded" in kind for kind in story) == 1, story
    rig.until(
        lambda: running_in(rig.k, job, WORKERS) in ([], [rig.k.cluster_of(job)]),
        f"{job} runs nowhere else",
    )


def test_killed_at_each_step_of_a_dispatch_it_goes_on_and_nothing_runs_twice(rig: Rig) -> None:
    rig.start()
    for step in ("submitted", "placed", "claimed", "admitted", "running"):
        job = f"killed-at-{step}"
        rig.submit(job, run_s="2")
        name = rig.name(job)

        def reached(step: str = step, name: str = name) -> bool:
            return any(kind.startswith(step) for kind in rig.bus.kinds(name))  # type: ignore[arg-type]

        rig.until(reached, f"{job} is {step}")
        rig.restart()
    for step in ("submitted", "placed", "claimed", "admitted", "running"):
        ended_once(rig, f"killed-at-{step}")
    rig.nothing_wrong()


def test_the_modes_can_be_switched_under_load_and_every_job_ends_once(rig: Rig) -> None:
    jobs = []
    for number, (mode, dispatcher) in enumerate(
        (
            ("dispatch", OURS),
            ("observe", "AllAtOnce"),
            ("dispatch", OURS),
            ("observe", "AllAtOnce"),
            ("dispatch", OURS),
        )
    ):
        if rig.process is None:
            rig.start(mode)
        else:
            rig.stop()
            rig.k.restart_manager("hub", dispatcher=dispatcher)
            rig.start(mode)
        rig.ready()
        for each in range(2):
            jobs.append(f"job-{number}-{each}")
            rig.submit(jobs[-1], run_s="3")
            rig.until(lambda: rig.story(jobs[-1]), "it is known on the bus")
    for job in jobs:
        ended_once(rig, job)
    rig.nothing_wrong()


def test_the_hub_s_manager_is_killed_and_what_waits_goes_on(rig: Rig) -> None:
    rig.start()
    rig.submit("before")
    rig.until(lambda: rig.k.cluster_of("before"), "it runs")
    rig.k.kill_manager("hub")
    rig.k.submit("during", requests={"cpu": "1", "nvidia.com/gpu": "1"})
    time.sleep(1.0)
    rig.k.start_manager("hub")
    rig.until(lambda: rig.k.cluster_of("during"), "the second runs")
    rig.until(lambda: (rig.story("before") or [""])[-1].startswith("running"), "the first runs on")
    rig.nothing_wrong()


def test_a_worker_s_eviction_is_told_and_the_job_goes_elsewhere(rig: Rig) -> None:
    rig.bus.worker(ONE, free=8)
    rig.bus.worker(TWO, free=4)
    rig.bus.worker(THREE, free=2)
    rig.start()
    rig.submit("train")
    rig.until_told("train", f"admitted {ONE}", f"running {ONE}")
    rig.k.stop_queue(ONE, "HoldAndDrain")
    rig.bus.queue(ONE, rig.k, stopped=True, stop_policy="Hold")
    rig.until_told("train", f"admitted {TWO}", f"running {TWO}")
    assert f"evicted {ONE}" in rig.story("train")
    assert running_in(rig.k, "train", WORKERS) == [TWO]
    rig.nothing_wrong()


def test_a_worker_that_is_gone_while_nominated_is_followed_by_another(rig: Rig) -> None:
    rig.bus.worker(ONE, free=8)
    rig.bus.worker(TWO, free=4)
    rig.bus.worker(THREE, free=2)
    rig.k.planes[ONE].crash_api_server()
    rig.start()
    rig.submit("train")
    rig.until(lambda: rig.k.cluster_of("train") == TWO, "it runs in the other")
    rig.until_told("train", f"admitted {TWO}", f"running {TWO}")
    rig.nothing_wrong()


def test_a_cluster_added_while_a_job_waits_takes_it(rig: Rig) -> None:
    rig.k.set_clusters([ONE])
    rig.bus.queue(ONE, rig.k, gpus=0)
    rig.start()
    name = rig.submit("train")
    rig.until(lambda: rig.events("train", "NoCluster"), "an event")
    assert "none of 1 clusters can take it" in rig.bus.why(name).summary
    assert rig.bus.why(name).filtered == {
        ONE: (
            f"ClusterQueue {rig.k.cluster_queue} grants 0 nvidia.com/gpu at most, 1 are asked for"
        )
    }
    rig.k.set_clusters([ONE, THREE])
    rig.until_told("train", f"admitted {THREE}", f"running {THREE}")
    rig.nothing_wrong()


def test_a_hub_whose_kueue_is_dead_is_told_and_its_jobs_go_on_when_it_is_back(rig: Rig) -> None:
    # Its silence counts from the start on, and on a busy machine a nomination takes a while.
    rig.flags = ("--patience-s", "12")
    rig.limits = {"hub_mute_s": 10.0}
    rig.k.submit("train", run_s="2")
    rig.k.until(lambda: rig.k.state_of("train") == "Pending", "MultiKueue's check")
    rig.k.until(lambda: rig.k.has("train", "QuotaReserved"), "quota, without which nobody is sent")
    rig.k.kill_manager("hub")
    rig.start()
    rig.until(lambda: rig.k.nominated("train"), "nominated")
    first = rig.k.nominated("train")
    name = rig.name("train")

    def silent_s() -> int:
        found = re.search(r"Kueue has written nothing for (\d+) s while 1 waits", summary())
        return int(found[1]) if found else 0

    def summary() -> str:
        return rig.bus.why(name).summary

    rig.until(lambda: silent_s() >= 16, "it is told, and for longer than patience lasts")
    assert rig.k.nominated("train") == first  # nobody is sent elsewhere meanwhile
    assert rig.events("train", KUEUE_SILENT) == [SILENT_WORDS]
    rig.k.start_manager("hub")
    ended_once(rig, "train")
    rig.nothing_wrong()


def test_where_nothing_clears_nominations_the_trap_is_told_and_its_cure_works(
    planes: Planes, namespace: str, bus: Bus, tmp_path: Path
) -> None:
    options = Options(dispatcher=OURS, policy=False)
    with rigged(planes, namespace, bus, tmp_path, options) as rig:
        rig.start()
        name = rig.submit("train")
        rig.until(lambda: rig.k.nominated("train"), "nominated")
        (where,) = rig.k.nominated("train")
        rig.until(lambda: rig.k.has("train", "Admitted", where), "the worker admits it")
        rig.bus.copy(where, rig.k, "train", quota_reserved=True, admitted=True)
        rig.until(lambda: rig.events("train", NOT_CLEARED), "the trap is told")
        (note,) = rig.events("train", NOT_CLEARED)
        assert "hub.mode=dispatch of our chart" in note
        assert "hub.mode=dispatch of our chart" in rig.bus.why(name).summary
        assert rig.k.nominated("train") == [where]  # nowhere else: it runs there
        rig.k.apply_policy()
        rig.k.restart_manager("hub")
        rig.until_told("train", f"admitted {where}", f"running {where}")
        rig.nothing_wrong()


def test_while_the_bus_is_away_jobs_are_sent_by_what_was_known_before(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    with (
        Bus(tmp_path) as bus,
        rigged(planes, namespace, bus, tmp_path, Options(dispatcher=OURS)) as rig,
    ):
        rig.start()
        rig.submit("before")
        rig.until(lambda: rig.k.cluster_of("before"), "it runs")
        for worker in (ONE, TWO):
            bus.worker(worker, free=0)  # the first of the order, too
        rig.submit("known")
        rig.until(lambda: rig.k.cluster_of("known") == THREE, "it is known who is full")
        bus.pause()
        rig.k.submit("during", requests={"cpu": "1", "nvidia.com/gpu": "1"})
        rig.until(lambda: rig.k.cluster_of("during") == THREE, "the one with room has it")
        bus.resume()
        rig.until_told("during", f"admitted {THREE}", f"running {THREE}")
        rig.nothing_wrong()


def test_what_the_rights_of_a_mode_do_not_name_is_denied(rig: Rig) -> None:
    api = rig.k.planes.hub.api_for(USER)
    rig.submit("train")
    workload = rig.k.workload("train")
    assert workload is not None
    path = rig.k.path(workload["metadata"]["name"])
    config = f"{API}/multikueueconfigs/{rig.k.config}"
    jobs = f"/apis/batch/v1/namespaces/{rig.k.namespace}/jobs"
    always = {
        "GET": ["/api/v1/namespaces/kueue-system/secrets", "/api/v1/nodes", "/api/v1/pods"],
        "DELETE": [
            path,
            config,
            f"{API}/clusterqueues/{rig.k.cluster_queue}",
            f"{API}/multikueueclusters/{ONE}",
            f"{API}/admissionchecks/{rig.k.check}",
            f"/api/v1/namespaces/{rig.k.namespace}",
        ],
        "PATCH": [
            f"{API}/clusterqueues/{rig.k.cluster_queue}",
            f"{API}/multikueueclusters/{ONE}",
            f"{API}/namespaces/{rig.k.namespace}/localqueues/{rig.k.queue}",
            f"{API}/admissionchecks/{rig.k.check}",
            f"{jobs}/train",
        ],
        "POST": [
            f"{API}/namespaces/{rig.k.namespace}/workloads",
            f"{API}/clusterqueues",
            f"/api/v1/namespaces/{rig.k.namespace}/pods",
        ],
    }
    only = {
        "observe": {
            "PATCH": [path, f"{path}/status", config, f"{jobs}/train/status"],
            "DELETE": [f"{jobs}/train"],
        },
        "dispatch": {"PATCH": [config]},
    }
    for mode, denied in only.items():
        rig.bind(mode)
        for method in ("GET", "DELETE", "PATCH", "POST"):
            for where in always[method] + denied.get(method, []):
                rig.until(
                    lambda m=method, w=where: forbidden(api, m, w),  # type: ignore[misc]
                    f"{mode}: {method} {where} is denied",
                )
        assert api.items(f"{API}/workloads") is not None


def forbidden(api: object, method: str, path: str) -> bool:
    kinds = {"PATCH": "application/merge-patch+json"}
    try:
        api.call(  # type: ignore[attr-defined]
            method,
            path,
            None if method in ("GET", "DELETE") else {"metadata": {}},
            **({"content_type": kinds[method]} if method in kinds else {}),
            query={"dryRun": "All"},
        )
    except ApiError as error:
        return error.status == http.HTTPStatus.FORBIDDEN
    return False

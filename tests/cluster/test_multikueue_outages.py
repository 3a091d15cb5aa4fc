"""The reconciler on real API servers that crash, forget, crawl, are fought over and go away.

After each story every job has ended exactly once and had exactly one pod, the log counts every
event, and ``why`` has said what was waited for in the meantime.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from berthmaster.hub.multikueue.apiserver.watch import WATCHED
from berthmaster.hub.multikueue.core.deciding.traps import NOT_CLEARED
from berthmaster.lab.controlplane.api import ApiError
from berthmaster.lab.controlplane.kueue import builders
from berthmaster.lab.controlplane.kueue.setup import API, Kueue, Options
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.fleet import NodeReport
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.errors import BusError
from tests.cluster.multikueue_bus import Bus
from tests.cluster.multikueue_workers import Census, each_ends_once, inventories
from tests.cluster.multikueueing import USER, Rig

ONE, TWO, THREE = "worker-1", "worker-2", "worker-3"
OURS = "berthmaster.io/dispatcher"
GPUS = {ONE: 8, TWO: 5, THREE: 3}
GROUP: Final = "kueue.x-k8s.io"
OLD: Final = "what the hub shows may be old"
AWAY_S: Final = 60.0
SLOW_S: Final = 2.0
FURY_S: Final = 10.0  # for so long a storm writes faster than anybody can who looks first
STORM_PERIOD_S: Final = 0.6  # then, to each Workload: as often as leaves a slow writer a chance


@pytest.fixture
def bare(planes: Planes, namespace: str, tmp_path: Path) -> Iterator[Rig]:
    """Workers of 8, 5 and 3 GPUs of which nobody tells anything yet."""
    for worker in planes.workers:
        make_nodes(worker, [gpu_node("a", model="NVIDIA-A100", gpus=GPUS[worker.name])])
    with (
        Bus(tmp_path) as bus,
        Kueue(planes, namespace, options=Options(dispatcher=OURS)) as k,
    ):
        rig = Rig(k, bus, tmp_path)
        try:
            yield rig
        finally:
            rig.kill()


@pytest.fixture
def rig(bare: Rig) -> Rig:
    """What workers say is said by the test."""
    for name, gpus in GPUS.items():
        bare.bus.worker(name, gpus=gpus, free=gpus)
        bare.bus.queue(name, bare.k)
    return bare


def until_why(rig: Rig, name: Key, words: str) -> None:
    """Until `why` says so."""
    rig.until(lambda: words in rig.bus.why(name).summary, f"why {name} says {words!r}")


def test_the_hub_s_api_server_dies_at_each_step_of_a_dispatch_and_nothing_is_lost(rig: Rig) -> None:
    hub = rig.k.planes.hub
    rig.start()
    rig.ready()
    names: dict[str, Key] = {}
    with Census(rig.k) as census:
        for step in ("submitted", "claimed", "admitted"):
            for job in (f"before-{step}", f"at-{step}"):
                names[job] = rig.submit(job, run_s="4")
            last = names[f"at-{step}"]
            rig.until(
                lambda s=step, n=last: any(kind.startswith(s) for kind in rig.bus.kinds(n)),  # type: ignore[misc]
                f"the last one is {step}",
            )
            hub.crash_api_server()
            until_why(rig, last, OLD)
            hub.start_api_server()
            rig.until(lambda n=last: OLD not in said(rig, n), "the hub is heard again")  # type: ignore[misc]
        each_ends_once(rig, census, names)


def said(rig: Rig, name: Key) -> str:
    """What `why` says of one that may have ended."""
    with contextlib.suppress(BusError, TimeoutError):
        if not rig.bus.kinds(name)[-1].startswith("succeeded"):
            return rig.bus.why(name).summary
    return ""


def test_what_happened_before_the_history_expired_is_made_up_for_by_listing(rig: Rig) -> None:
    """Nobody looks while a job ends, one is deleted, and one is made; then the past is 410 Gone."""
    hub = rig.k.planes.hub
    door = hub.proxy()
    rig.kubeconfig = hub.kubeconfig_for(USER, via=door)
    rig.start()
    rig.ready()
    names = {"ends": rig.submit("ends", run_s="6")}
    deleted = rig.submit("deleted")
    with Census(rig.k) as census:
        for job in ("ends", "deleted"):
            rig.until(
                lambda j=job: (rig.story(j) or [""])[-1].startswith("running"),  # type: ignore[misc]
                f"{job} runs",
            )
        where = rig.k.cluster_of("deleted")
        door.close()
        until_why(rig, deleted, OLD)
        names["made"] = rig.submit("made", run_s="4")
        rig.until(lambda: rig.k.has("ends", "Finished"), "it ends behind our back")
        remove(rig, "deleted")
        hub.forget_history()
        mark = hub.audit.mark()
        assert rig.bus.kinds(deleted)[-1] == f"running {where}"
        assert rig.bus.kinds(names["made"]) == []

        door.open()
        rig.until(lambda: rig.bus.kinds(deleted)[-1] == f"cancelled {where}", "it is cancelled")
        rig.until(lambda: rig.bus.kinds(names["made"]), "the new one is known")
        each_ends_once(rig, census, names)
    kinds = {".".join(filter(None, (one.resource.plural, one.resource.group))) for one in WATCHED}

    def listed() -> set[str]:
        return {call.resource for call in hub.audit.calls(since=mark, user=USER, verb="list")}

    # Each mirror tries again in its own time: the jobs need not wait for the last of them.
    rig.until(lambda: listed() >= kinds, "every kind is listed anew")
    assert listed() == kinds


def remove(rig: Rig, job: str) -> None:
    """Delete a Job on the hub, and its Workload with it."""
    api = rig.k.planes.hub.api
    workload = rig.k.workload(job)
    assert workload is not None
    api.delete(f"/apis/batch/v1/namespaces/{rig.k.namespace}/jobs/{job}")
    path = rig.k.path(workload["metadata"]["name"])
    with contextlib.suppress(ApiError):  # garbage collection may come before us
        api.delete(path)
    rig.until(lambda: api.find(path) is None, f"{job} is gone")


def test_a_hub_that_takes_two_seconds_a_call_is_slow_and_nothing_worse(rig: Rig) -> None:
    hub = rig.k.planes.hub
    rig.kubeconfig = hub.kubeconfig_for(USER, via=hub.proxy(delay_s=SLOW_S))
    rig.start()
    rig.ready()
    mark = hub.audit.mark()
    with Census(rig.k) as census:
        names = {f"job-{n}": rig.submit(f"job-{n}", run_s="4") for n in range(5)}
        last = names["job-4"]
        rig.until(lambda: "claimed" in "".join(rig.bus.kinds(last)[-1:]), "its turn")
        assert "about to be nominated to " in rig.bus.why(last).summary
        each_ends_once(rig, census, names)
    calls = hub.audit.calls(since=mark, user=USER)
    patches = [c for c in calls if (c.verb, c.resource) == ("patch", f"workloads.{GROUP}/status")]
    assert len(names) <= len(patches) <= 3 * len(names)  # slow, and not tried again and again


class Storm:
    """Somebody who writes something new into Workloads' statuses all the time, until they have a
    cluster: furiously at first."""

    def __init__(self, k: Kueue) -> None:
        self._k = k
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._rage, name="storm")
        self.writes = 0

    def __enter__(self) -> "Storm":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _rage(self) -> None:
        api = self._k.planes.hub.api
        path = f"{API}/namespaces/{self._k.namespace}/workloads"
        began_s = time.monotonic()
        for number in itertools.count():
            furious = time.monotonic() < began_s + FURY_S
            if self._over.wait(0.02 if furious else STORM_PERIOD_S):
                return
            for workload in api.items(path):
                if (workload.get("status") or {}).get("clusterName"):
                    continue
                with contextlib.suppress(ApiError):
                    self._write(workload["metadata"]["name"], number)
                    self.writes += 1

    def _write(self, name: str, number: int) -> None:
        condition = {
            "type": "Storm",
            "status": "True",
            "reason": "Storm",
            "message": f"wave {number}",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        body = {
            "apiVersion": f"{GROUP}/v1beta2",
            "kind": "Workload",
            "metadata": {"name": name, "namespace": self._k.namespace},
            "status": {"conditions": [condition]},
        }
        self._k.planes.hub.api.call(
            "PATCH",
            f"{self._k.path(name)}/status",
            body,
            content_type="application/apply-patch+yaml",
            query={"fieldManager": "storm", "force": "true"},
        )


def test_in_a_storm_of_writes_to_their_status_workloads_are_nominated_all_the_same(
    rig: Rig,
) -> None:
    """A call takes a tenth of a second, so that nearly every write comes too late at first."""
    hub = rig.k.planes.hub
    rig.kubeconfig = hub.kubeconfig_for(USER, via=hub.proxy(delay_s=0.1))
    rig.start()
    rig.ready()
    mark = hub.audit.mark()
    names: dict[str, Key] = {}
    with Census(rig.k) as census, Storm(rig.k) as storm:
        for number in range(3):
            names[f"job-{number}"] = rig.submit(f"job-{number}", run_s="4")
        for name in names.values():
            rig.until(lambda n=name: rig.bus.kinds(n), "it is known")  # type: ignore[misc]

        def conflicts() -> list[object]:
            calls = hub.audit.calls(since=mark, user=USER, verb="patch")
            return [call for call in calls if call.status == 409]

        def too_late() -> bool:
            """Whoever was nominated before the storm rose met none of it: another job does."""
            if not conflicts() and all(rig.bus.kinds(name)[1:] for name in names.values()):
                another = f"job-{len(names)}"
                names[another] = rig.submit(another, run_s="4")
                rig.until(lambda: rig.bus.kinds(names[another]), "it is known")
            return bool(conflicts())

        rig.until(too_late, "a write that came too late")
        summaries = {said(rig, name) for name in names.values()}
        each_ends_once(rig, census, names)
        assert storm.writes > len(names)
    ways = (
        "waits for quota",
        "waits: it does not have the check ",  # Kueue too comes second in a storm
        "about to be nominated to",
        "nominated to",
        "on worker-",
        "running on",
    )
    odd = [text for text in summaries if text and not text.startswith((*ways, "admitted on"))]
    assert odd == []


def test_a_worker_is_gone_for_a_minute_while_jobs_run_and_are_sent_there(bare: Rig) -> None:
    rig, k = bare, bare.k
    rig.start()
    rig.ready()
    with inventories(rig), Census(k) as census:
        names = {job: rig.submit(job, run_s="20") for job in ("runs-1", "runs-2")}
        for job in names:
            rig.until_told(job, f"admitted {ONE}", f"running {ONE}")
        names["on-its-way"] = rig.submit("on-its-way", run_s="4")
        way = names["on-its-way"]
        rig.until(lambda: f"claimed {ONE}" in rig.bus.kinds(way), "it is sent there")
        k.planes[ONE].crash_api_server()
        back_s = time.monotonic() + AWAY_S

        until_why(rig, names["runs-1"], f"{ONE} is silent")
        names["meanwhile"] = rig.submit("meanwhile", run_s="4")
        rig.until(lambda: rig.bus.kinds(names["meanwhile"])[-1] == f"succeeded {TWO}", "it ends")
        # Unless it was let in there just before: then nobody knows that it does not run.
        let_in = f"admitted {ONE}" in rig.bus.kinds(way) or NOT_CLEARED in rig.log.read_text()
        if not let_in:
            rig.until(lambda: rig.bus.kinds(way)[-1] == f"succeeded {TWO}", "it went elsewhere")
            assert f"evicted {ONE}" in rig.bus.kinds(way)
        for job in ("runs-1", "runs-2"):  # nobody knows better: it is said to run there
            assert rig.bus.kinds(names[job])[-1] == f"running {ONE}"
        time.sleep(max(0.0, back_s - time.monotonic()))
        k.planes[ONE].start_api_server()
        each_ends_once(rig, census, names)

        # And it is one of them again.
        k.wait_active()
        rig.until(lambda: not silent(rig), "it is heard")
        kueue_admits(rig, ONE)
        went: list[str] = []
        while f"succeeded {ONE}" not in went:  # on a busy machine it may seem silent once more
            assert len(went) < 5, went
            job = f"afterwards-{len(went)}"
            names[job] = rig.submit(job, run_s="4")
            each_ends_once(rig, census, names)
            went.append(rig.bus.kinds(names[job])[-1])


def kueue_admits(rig: Rig, worker: str) -> None:
    """A manager that lost its API server may take half a minute to come back."""
    k, api = rig.k, rig.k.planes[worker].api
    path = f"/apis/batch/v1/namespaces/{k.namespace}/jobs"
    api.create(path, builders.job(k.namespace, "local", k.queue, run_s="1", on_hub=False))

    def started() -> bool:
        job = api.find(f"{path}/local")
        return job is not None and not job["spec"]["suspend"]

    rig.until(started, "a local job starts")


def silent(rig: Rig) -> bool:
    """Whether the first worker's sign of life is old."""
    return rig.bus.facts[subjects.alive(ONE)].stored_at_s < time.time() - 3.0


def test_a_second_after_free_gpus_change_a_job_goes_to_the_new_best_cluster(bare: Rig) -> None:
    """Demo two, with inventories that see the change by themselves: a node is cordoned, foreign
    pods come, the node is open again."""
    rig, planes = bare, bare.k.planes
    rig.start()
    rig.ready()
    with inventories(rig):

        def goes_to(best: str, job: str) -> None:
            told_s = time.monotonic()
            rig.until(lambda: sees_best(rig, best), "the inventory has told the change")
            time.sleep(max(0.3, told_s + 1.0 - time.monotonic()))
            rig.submit(job)
            rig.until(lambda: rig.k.cluster_of(job), f"{job} has a cluster")
            assert rig.k.cluster_of(job) == best, rig.bus.decisions[-1].placements
            (placed,) = (kind for kind in rig.story(job) if kind.startswith("placed"))
            assert placed == f"placed {best}"

        goes_to(ONE, "at-first")
        node = "/api/v1/nodes/a"
        planes[ONE].api.merge(node, {"spec": {"unschedulable": True}})
        goes_to(TWO, "cordoned")
        pods = f"/api/v1/namespaces/{rig.k.namespace}/pods"
        planes[TWO].api.create(pods, foreign_pod(gpus=3))
        rig.until(
            lambda: planes[TWO].api.get(f"{pods}/theirs")["spec"].get("nodeName"), "it is bound"
        )
        goes_to(THREE, "crowded")
        planes[ONE].api.merge(node, {"spec": {"unschedulable": False}})
        goes_to(ONE, "open-again")
    rig.nothing_wrong()


def sees_best(rig: Rig, best: str) -> bool:
    """Whether the bus says that this cluster has most GPUs to give, whoever has how many."""
    free: dict[str, int] = {}
    for seen in list(rig.bus.facts.values()):
        if isinstance(node := seen.fact, NodeReport):
            used = sum(gpu.foreign_milli for gpu in node.gpus) // 1000
            free[node.cluster] = (len(node.gpus) - used) if node.schedulable else 0
    return max(free, key=lambda name: free[name]) == best


def foreign_pod(*, gpus: int) -> dict[str, object]:
    """A pod of somebody who does not use Kueue."""
    amount = {"nvidia.com/gpu": str(gpus)}
    container = {"name": "main", "image": "none", "resources": {"limits": amount}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "theirs"},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }

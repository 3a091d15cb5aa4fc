"""Real API servers: quota to nomination, a node's change to its score, API calls, memory.

A hub and three workers of lab/controlplane, a Kueue on each, and everything of ours as `berth up
--hub --worker` runs it on one machine. What is measured is seen by a client's own watches, and
counted by the API servers' own audit logs. BERTH_BENCH_STEADY_S=600 watches the steady
state for as long as the budget says.
"""

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from operator import contains
from pathlib import Path
from typing import Any, Final

from berthmaster.client.client import Client
from berthmaster.lab.controlplane.api import Unreachable
from berthmaster.lab.controlplane.build import find
from berthmaster.lab.controlplane.compiling import Unavailable
from berthmaster.lab.controlplane.kueue import builders
from berthmaster.lab.controlplane.kueue.managers import Options
from berthmaster.lab.controlplane.kueue.setup import Kueue
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lab.controlplane.projects import KUEUE, find_project
from berthmaster.lib.access.permissions import inbox_prefix
from berthmaster.lib.messages.fleet import ClusterScore, NodeReport
from berthmaster.lib.runtime.process_setup import end_with_parent

NAMESPACE: Final = "bench"
WORKLOADS: Final = 500
AT_ONCE: Final = 20  # jobs made side by side
NODES: Final = 1000
PODS: Final = 10_000
CHANGES: Final = 200  # of nodes
STEADY_S: Final = float(os.environ.get("BERTH_BENCH_STEADY_S", "60"))
START_LIMIT_S: Final = 90.0
STALL_LIMIT_S: Final = 120.0  # without any job's end; a manager batches by the second
QUOTAS: Final = {"default": {"cpu": "100000", "nvidia.com/gpu": "100000"}}
OURS: Final = "berthmaster-"
NOTES: list[str] = []

BUDGETS = {
    "kubernetes_fact_p99_ms": ("<=", 200.0),
    "kubernetes_steady_calls_count": ("<=", 0.0),
}


# ---- everything of ours, as `berth up` runs it


class Up:
    """One `berth up` against real clusters."""

    def __init__(self, process: "subprocess.Popen[bytes]", folder: Path, view: dict[str, Any]):
        self.process = process
        self.folder = folder
        self.view = view

    def client(self) -> Client:
        """A connection as operator."""
        return Client.connect(
            self.view["url"],
            creds_file=Path(self.view["creds_file"]),
            inbox_prefix=inbox_prefix("operator"),
            timeout_s=30.0,
        )

    def resident_mib(self) -> dict[str, float]:
        """Of each process, by name."""
        found = {}
        for each in self.view["processes"]:
            status = Path(f"/proc/{each['pid']}/status").read_text()
            line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
            found[each["name"]] = int(line.split()[1]) / 1024
        return found


@contextmanager
def up(folder: Path, planes: Planes, *flags: str) -> Iterator[Up]:
    """Everything up, and gone at the end."""
    folder.mkdir(parents=True)
    argv = [sys.executable, "-m", "berthmaster.cli.main", "up", "--json", "--data", str(folder)]
    argv += ["--hub", f"hub={planes.hub.kubeconfig}", "--namespaces", NAMESPACE, *flags]
    for worker in planes.workers:
        argv += ["--worker", f"{worker.name}={worker.kubeconfig}"]
    said_path, errors_path = folder / "said.jsonl", folder / "errors.log"
    with said_path.open("wb") as said, errors_path.open("wb") as errors:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=errors,
            env={**os.environ, "HOME": str(folder)},
            preexec_fn=end_with_parent(),  # noqa: PLW1509 # takes no lock
        )
    try:
        deadline_s = time.monotonic() + START_LIMIT_S
        while not said_path.read_bytes().endswith(b"\n"):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"berth up did not come up: {errors_path.read_text()}")
            time.sleep(0.05)
        yield Up(process, folder, json.loads(said_path.read_bytes().splitlines()[0])["up"])
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


# ---- quota reserved → nominated


class Nominations(threading.Thread):
    """Watches the hub's Workloads: when each got its quota, and when it was nominated."""

    def __init__(self, hub: Plane) -> None:
        super().__init__(daemon=True, name="nominations")
        self.reserved: dict[str, float] = {}
        self.nominated: dict[str, float] = {}
        self.over = threading.Event()
        self._hub = hub

    def run(self) -> None:
        path = "/apis/kueue.x-k8s.io/v1beta2/workloads"
        while not self.over.is_set():
            with suppress(Unreachable):  # a burst of connections may cost this one
                for event in self._hub.api.watch(path, limit_s=30.0):
                    self._take(event["object"], time.monotonic())
                    if self.over.is_set():
                        return

    def _take(self, seen: Mapping[str, Any], now_s: float) -> None:
        name, status = seen["metadata"]["name"], seen.get("status", {})
        conditions = {c["type"]: c["status"] for c in status.get("conditions", ())}
        if conditions.get("QuotaReserved") == "True":
            self.reserved.setdefault(name, now_s)
        if status.get("nominatedClusterNames") or status.get("clusterName"):
            self.nominated.setdefault(name, now_s)


def jobs(planes: Planes, kueue: Kueue) -> None:
    """Make all of them on the hub, some side by side, as people do."""
    path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
    names = iter([f"job-{number}" for number in range(WORKLOADS)])

    def some() -> None:
        for name in names_of(names):
            requests = {"cpu": "1", "nvidia.com/gpu": "1"}
            document = builders.job(NAMESPACE, name, kueue.queue, requests=requests, run_s="1")
            planes.hub.api.create(path, document)

    lock = threading.Lock()

    def names_of(source: Iterator[str]) -> Iterator[str]:
        while True:
            with lock:
                name = next(source, "")
            if not name:
                return
            yield name

    threads = [threading.Thread(target=some) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(STALL_LIMIT_S)


def ours(planes: Planes, marks: Mapping[str, int]) -> list[tuple[str, str]]:
    """(verb, resource) of every call of our services since the marks, leases left out."""
    return [
        (call.verb, call.resource)
        for plane in planes
        for call in plane.audit.calls(since=marks[plane.name], user_agent=OURS)
        if not call.resource.startswith("leases")
    ]


def marks_of(planes: Planes) -> dict[str, int]:
    """Now, in every audit log."""
    return {plane.name: plane.audit.mark() for plane in planes}


def dispatch(planes: Planes, kueue: Kueue) -> dict[str, float]:
    """Jobs made with an API client on the hub, until all of them have ended."""
    watching = Nominations(planes.hub)
    watching.start()
    marks, began_s = marks_of(planes), time.monotonic()
    jobs(planes, kueue)
    path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
    ended, changed_s = 0, time.monotonic()
    while ended < WORKLOADS:
        before, ended = ended, _ended(planes.hub.api.items(path))
        if ended > before:
            changed_s = time.monotonic()
        elif time.monotonic() > changed_s + STALL_LIMIT_S:
            raise RuntimeError(f"{ended} of {WORKLOADS} jobs ended, then none:\n{left(planes)}")
        time.sleep(1.0)
    took_s = time.monotonic() - began_s
    watching.over.set()
    calls = [call for call in ours(planes, marks) if call[0] not in ("watch", "list")]
    waited = [
        1000 * (at_s - watching.reserved[name])
        for name, at_s in watching.nominated.items()
        if name in watching.reserved
    ]
    return {
        "kubernetes_workloads_count": float(len(waited)),
        "kubernetes_nominated_p50_ms": statistics.median(waited),
        "kubernetes_nominated_p99_ms": percentile(waited, 99),
        "kubernetes_calls_per_workload": len(calls) / WORKLOADS,
        "kubernetes_all_ended_s": took_s,
    }


def left(planes: Planes) -> str:
    """What has not ended, on the hub and on the workers, for whoever has to find out why."""
    lines = []
    for plane in planes:
        for kind in ("kueue.x-k8s.io/v1beta2", "batch/v1"):
            what = "jobs" if kind == "batch/v1" else "workloads"
            for each in plane.api.items(f"/apis/{kind}/namespaces/{NAMESPACE}/{what}"):
                status = each.get("status", {})
                conditions = status.get("conditions", [])
                if not any(c["type"] in ("Complete", "Failed", "Finished") for c in conditions):
                    lines.append(f"{plane.name} {what} {each['metadata']['name']}: {status}")
    return "\n".join(lines)


def _ended(found: Sequence[Mapping[str, Any]]) -> int:
    def over(job: Mapping[str, Any]) -> bool:
        conditions = job.get("status", {}).get("conditions", ())
        return any(
            c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in conditions
        )

    return sum(map(over, found))


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


# ---- nothing happens


def steady(planes: Planes) -> dict[str, float]:
    """API calls while nothing happens. A watch that the server ends is opened again: not counted
    as a call of ours, and neither are leases."""
    time.sleep(5.0)  # what the last jobs left is cleaned up
    marks = marks_of(planes)
    time.sleep(STEADY_S)
    calls = [call for call in ours(planes, marks) if call[0] != "watch"]
    if calls:
        NOTES.append(f"steady state: {sorted(set(calls))}")
    return {"kubernetes_steady_s": STEADY_S, "kubernetes_steady_calls_count": float(len(calls))}


# ---- a node's change → fact → score


class Heard:
    """The facts of one cluster as they come."""

    def __init__(self) -> None:
        self.nodes: dict[tuple[str, bool], float] = {}  # (node, schedulable) -> when
        self.scored: list[float] = []
        self._news = asyncio.Event()

    async def until(self, ask: Callable[[], bool], limit_s: float) -> None:
        """Wait for something to be heard. Raises TimeoutError."""
        async with asyncio.timeout(limit_s):
            while not ask():
                self._news.clear()
                await self._news.wait()

    async def follow(self, berth: Client, cluster: str, ready: asyncio.Event) -> None:
        """Until cancelled."""
        facts = berth.facts(nodes=True, cluster=cluster, caught_up=ready.set)
        async for seen in facts:
            now_s = time.monotonic()
            match seen.fact:
                case NodeReport():
                    self.nodes[seen.fact.node, seen.fact.schedulable] = now_s
                case ClusterScore():
                    self.scored.append(now_s)
            self._news.set()


@asynccontextmanager
async def hearing(berth: Client, cluster: str) -> AsyncIterator[Heard]:
    """What is told of a cluster within the block."""
    heard, ready = Heard(), asyncio.Event()
    task = asyncio.create_task(heard.follow(berth, cluster, ready))
    try:
        async with asyncio.timeout(60.0):
            await ready.wait()
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def node_changes(everything: Up, worker: Plane) -> dict[str, float]:
    """Nodes are cordoned in Kubernetes one after the other; when did the bus hear of it?"""
    told: list[float] = []
    scored: list[float] = []
    async with everything.client() as berth, hearing(berth, worker.name) as heard:
        await heard.until(lambda: len({node for node, _ in heard.nodes}) >= NODES, 60.0)
        for number in range(CHANGES):
            name = f"node-{number:04}"
            body = {"spec": {"unschedulable": True}}
            await asyncio.to_thread(worker.api.merge, f"/api/v1/nodes/{name}", body)
            changed_s = time.monotonic()  # the API server has answered
            wanted = (name, False)
            await heard.until(partial(contains, heard.nodes, wanted), 10.0)
            told.append(max(0.0, 1000 * (heard.nodes[wanted] - changed_s)))
            await asyncio.sleep(0.05)
            if after := [at_s for at_s in heard.scored if at_s >= changed_s]:
                scored.append(1000 * (after[0] - changed_s))
    return {
        "kubernetes_fact_p50_ms": statistics.median(told),
        "kubernetes_fact_p99_ms": percentile(told, 99),
        "kubernetes_score_p50_ms": statistics.median(scored) if scored else float("nan"),
        "kubernetes_score_seen_count": float(len(scored)),
    }


# ---- many pods


def many_pods(worker: Plane) -> None:
    """Pods that are bound already, so that no scheduler is measured."""
    numbers = iter(range(PODS))
    lock = threading.Lock()

    def some() -> None:
        while True:
            with lock:
                number = next(numbers, -1)
            if number < 0:
                return
            container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
            document = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"pod-{number}", "namespace": NAMESPACE},
                "spec": {"nodeName": f"node-{number % NODES:04}", "containers": [container]},
            }
            worker.api.create(f"/api/v1/namespaces/{NAMESPACE}/pods", document)

    threads = [threading.Thread(target=some) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def memory(everything: Up, worker: Plane) -> dict[str, float]:
    """Of the services of the cluster with the many nodes and pods, and of the hub's."""
    many_pods(worker)
    time.sleep(10.0)
    resident = everything.resident_mib()
    wanted = (f"inventory-{worker.name}", f"executor-{worker.name}", "multikueue", "resolver")
    return {
        f"kubernetes_{name.removesuffix('-' + worker.name)}_mib": resident[name]
        for name in wanted
        if name in resident
    }


def measure() -> dict[str, float]:
    """The figures, or none where no control plane can be had."""
    try:
        programs = find()
    except Unavailable as reason:
        NOTES.append(f"not measured: {reason}")
        return {}
    NOTES.append(f"Kueue: {find_project(KUEUE).words}")
    with tempfile.TemporaryDirectory(prefix="berth-kubernetes-") as text:
        folder = Path(text)
        with Planes(folder / "planes", workers=3, programs=programs) as planes:
            for plane in planes:
                plane.make_namespace(NAMESPACE)
            for worker in planes.workers:
                make_nodes(worker, [gpu_node(f"gpu-{n}") for n in range(8)])
            options = Options(dispatcher="berthmaster.io/dispatcher")
            with (
                Kueue(planes, NAMESPACE, options=options, quotas=QUOTAS) as kueue,
                up(folder / "up", planes, "--mode", "dispatch") as everything,
            ):
                figures = dispatch(planes, kueue) | steady(planes)
                busy = planes.workers[0]
                make_nodes(busy, [gpu_node(f"node-{n:04}") for n in range(NODES)])
                figures |= asyncio.run(node_changes(everything, busy))
                figures |= memory(everything, busy)
    return figures

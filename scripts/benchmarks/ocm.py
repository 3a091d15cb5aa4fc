"""Open Cluster Management: a node's change to its AddOnPlacementScore, and writes an hour.

A real API server (lab/controlplane), a real nats-server that syncs every write, the scorer and
`berth serve ocm` as processes of their own, and this process, which speaks for 20 clusters: the
telemetry of every node once a second, half of its GPUs working with noise, and the signs of life.
Then one node after the other gets or loses all its GPUs, and a watch of the API server says when
its cluster's score shows it. Writes in steady state are counted by the API server's audit log.

Beside it stand the figures of Open Cluster Management's own resource-usage-collect addon, which
looks every 60 s: a change waits for 0 to 60 s, each as likely, so half of them more than 30 s. That
is computed, not measured, and leaves out all that it needs then. BERTH_BENCH_STEADY_S=600 watches
the steady state for longer.
"""

import asyncio
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from berthmaster.lab.controlplane.api import Unreachable
from berthmaster.lab.controlplane.build import find
from berthmaster.lab.controlplane.compiling import Unavailable
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.messages.families import encode
from berthmaster.lib.messages.fleet import ClusterAlive
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.facts import FactWriter
from berthmaster.lib.nats.streams import ensure_streams
from berthmaster.lib.supervisor.embedded import Server
from scripts.benchmarks.scoring import connect, fact, percentile, process, rss_mib, telemetry

CLUSTERS: Final = 20
NODES: Final = 10  # of each cluster
GPUS: Final = 8  # of each node
CHANGES: Final = 150
CHANGE_EVERY_S: Final = (
    1.2  # each cluster every 24 s: two writes, first the room, then how idle it is
)
STEADY_S: Final = float(os.environ.get("BERTH_BENCH_STEADY_S", "180"))
SETTLE_S: Final = 45.0  # until the first scores are written and what follows them
ALIVE_S: Final = 2.0
LIMIT_S: Final = 60.0
RESYNC_S: Final = 60.0  # of Open Cluster Management's own addon
ROOT: Final = "/apis/cluster.open-cluster-management.io/v1alpha1/addonplacementscores"
NAME: Final = "gpuClusterAvailable"
NOTES: list[str] = []


def cluster_name(at: int) -> str:
    """Of one of them."""
    return f"cluster-{at:02}"


class Seen(threading.Thread):
    """Watches the scores: what each cluster's was last, and when it became so."""

    def __init__(self, hub: Plane) -> None:
        super().__init__(daemon=True, name="scores")
        self.values: dict[str, tuple[int, float]] = {}
        self.over = threading.Event()
        self._hub = hub

    def run(self) -> None:
        """Until ``over``."""
        while not self.over.is_set():
            with suppress(Unreachable):
                for event in self._hub.api.watch(ROOT, limit_s=300.0):
                    self._take(event["object"], time.perf_counter())

    def _take(self, thing: dict[str, Any], at_s: float) -> None:
        cluster = thing["metadata"]["namespace"]
        for one in thing.get("status", {}).get("scores", ()):
            before = self.values.get(cluster)
            if one["name"] == NAME and (before is None or before[0] != one["value"]):
                self.values[cluster] = (one["value"], at_s)


class Fleet:
    """Speaks for all clusters."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._writer = FactWriter(conn)
        self._chance = random.Random(7)
        self._counter = 0
        self.busy: dict[tuple[int, int], bool] = {}

    async def begin(self) -> None:
        """Every node reports."""
        await self._writer.begin(subjects.ALL_FLEET)
        for cluster in range(CLUSTERS):
            for node in range(NODES):
                await self.report(cluster, node, busy=node >= NODES // 2)

    async def report(self, cluster: int, node: int, *, busy: bool) -> None:
        """A node with all its GPUs taken, or none."""
        self.busy[cluster, node] = busy
        name, where = f"node-{node}", cluster_name(cluster)
        report = fact(where, name, self._writer.stamp(), GPUS, GPUS if busy else 0)
        await self._conn.publish(subjects.node(where, name), encode(report))

    async def live(self) -> None:
        """Signs of life, and telemetry of every node once a second, spread over it."""
        nodes = list(self.busy)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        sent = alive = 0
        while True:
            passed_s = loop.time() - began_s
            while sent < passed_s * len(nodes):
                await self._measure(*nodes[sent % len(nodes)])
                sent += 1
            while alive < passed_s / ALIVE_S:
                alive += 1
                for cluster in range(CLUSTERS):
                    where = cluster_name(cluster)
                    sign = ClusterAlive(
                        cluster=where,
                        stamp=self._writer.stamp(),
                        observed_at_s=time.time(),
                        interval_s=ALIVE_S,
                    )
                    await self._conn.publish(subjects.alive(where), encode(sign))
            await asyncio.sleep(0.01)

    async def _measure(self, cluster: int, node: int) -> None:
        self._counter += 1
        busy = self.busy[cluster, node]
        percents = [
            min(100.0, max(0.0, self._chance.gauss(80.0, 15.0))) if busy else 0.0
            for _ in range(GPUS)
        ]
        name, where = f"node-{node}", cluster_name(cluster)
        told = telemetry(where, name, self._counter, percents)
        await self._conn.publish(subjects.telemetry(where, name), encode(told))


def make_clusters(hub: Plane) -> None:
    """Their ManagedClusters and namespaces."""
    for at in range(CLUSTERS):
        name = cluster_name(at)
        hub.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        hub.api.apply(
            {
                "apiVersion": "cluster.open-cluster-management.io/v1",
                "kind": "ManagedCluster",
                "metadata": {"name": name},
                "spec": {"hubAcceptsClient": True},
            }
        )


def writes(hub: Plane, mark: int) -> int:
    """Calls of the service that wrote something, events for people among them."""
    counted = hub.audit.count(since=mark, user_agent="berthmaster-ocm")
    return sum(n for (_, verb, _), n in counted.items() if verb not in ("get", "list", "watch"))


async def change_all(fleet: Fleet, seen: Seen) -> list[float]:
    """Milliseconds from each change of a node until the API server's watch shows its score."""
    found: list[float] = []
    for at in range(CHANGES):
        cluster = at % CLUSTERS
        where = cluster_name(cluster)
        before = seen.values[where][0]
        began_s = time.perf_counter()
        await fleet.report(cluster, 0, busy=not fleet.busy[cluster, 0])
        while seen.values[where][0] == before:
            if time.perf_counter() - began_s > LIMIT_S:
                raise TimeoutError(f"{where}: its score did not change within {LIMIT_S} s")
            await asyncio.sleep(0.001)
        found.append(1000 * (seen.values[where][1] - began_s))
        await asyncio.sleep(max(0.0, began_s + CHANGE_EVERY_S - time.perf_counter()))
    return found


@contextmanager
def services(url: str, hub: Plane) -> Iterator[dict[str, Any]]:
    """The scorer and the service, as processes."""
    common = ("-m", "berthmaster.cli.main", "serve")
    told = ("--nats-url", url, "--http-port", "-1", "--log-level", "error")
    with (
        process(*common, "scorer", *told) as scorer,
        process(*common, "ocm", *told, "--kubeconfig", str(hub.kubeconfig)) as ocm,
    ):
        yield {"scorer": scorer, "ocm": ocm}


async def measure_on(url: str, hub: Plane) -> dict[str, float]:
    """Both measurements, one after the other."""
    async with await connect(url, "bench") as conn:
        await ensure_streams(conn)
        fleet = Fleet(conn)
        await fleet.begin()
        await asyncio.to_thread(make_clusters, hub)
        living = asyncio.create_task(fleet.live())
        seen = Seen(hub)
        seen.start()
        try:
            with services(url, hub) as running:
                began_s = time.perf_counter()
                while len(seen.values) < CLUSTERS:
                    if time.perf_counter() - began_s > LIMIT_S:
                        raise TimeoutError(f"{len(seen.values)} of {CLUSTERS} scores written")
                    await asyncio.sleep(0.05)
                first_s = time.perf_counter() - began_s
                await asyncio.sleep(SETTLE_S)
                took = await change_all(fleet, seen)
                await asyncio.sleep(SETTLE_S)
                mark = hub.audit.mark()
                await asyncio.sleep(STEADY_S)
                steady = await asyncio.to_thread(writes, hub, mark)
                rss = rss_mib(running["ocm"].pid)
        finally:
            seen.over.set()
            living.cancel()
            await asyncio.wait({living})
    an_hour = steady * 3600 / STEADY_S
    NOTES.append(
        f"steady state: {steady} writes in {STEADY_S:g} s for {CLUSTERS} clusters with "
        f"{CLUSTERS * NODES} nodes at 1 Hz; resync of OCM's own addon computed, not measured"
    )
    return {
        "ocm_node_change_to_score_written_p50_ms": percentile(took, 50),
        "ocm_node_change_to_score_written_p99_ms": percentile(took, 99),
        "ocm_own_addon_resync_p50_ms": 1000 * RESYNC_S * 0.5,
        "ocm_own_addon_resync_p99_ms": 1000 * RESYNC_S * 0.99,
        "ocm_first_scores_of_20_clusters_s": first_s,
        "ocm_steady_writes_per_hour": an_hour,
        "ocm_steady_writes_per_cluster_hour": an_hour / CLUSTERS,
        "ocm_service_rss_mib": rss,
    }


def measure() -> dict[str, float]:
    """Figures, or none with the reason where there is no control plane."""
    NOTES.clear()
    try:
        programs = find()
    except Unavailable as reason:
        NOTES.append(f"not measured: {reason}")
        return {}
    with tempfile.TemporaryDirectory(prefix="berth-bench-ocm-") as name:
        folder = Path(name)
        with (
            Planes(folder / "planes", workers=0, programs=programs) as planes,
            Server(folder / "nats") as server,
        ):
            return asyncio.run(measure_on(server.url, planes.hub))


if __name__ == "__main__":
    for figure, value in measure().items():
        sys.stdout.write(f"{figure:45} {value:12.2f}\n")
    sys.stdout.write("\n".join(NOTES) + "\n")

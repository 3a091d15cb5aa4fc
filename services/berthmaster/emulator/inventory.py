"""What an emulated cluster's inventory tells the fleet, and when. Pure.

Reports are facts, so only the last one of a node counts: changes of a node within an interval
become one report, the first goes out at once. Changes by foreign pods, health and refusals matter
to whoever places jobs and go first; our own pods are known from the log, and their reports share a
budget.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from berthmaster.emulator.fleets import ClusterSpec
from berthmaster.emulator.kubelet import Node
from berthmaster.emulator.world import World
from berthmaster.messages.fleet import (
    Amounts,
    ClusterProfile,
    GpuDevice,
    NodeReport,
    PodUse,
    Stamp,
)

PROPERTIES: Final[Mapping[str, str]] = {"berth/runtime": "emulated"}


def gpu_uuid(cluster: str, node: str, index: int) -> str:
    """The same for ever, as on a real board."""
    name = blake2b(f"{cluster}/{node}/{index}".encode(), digest_size=16).hexdigest()
    return f"GPU-{name[:8]}-{name[8:12]}-{name[12:16]}-{name[16:20]}-{name[20:]}"


def profile(spec: ClusterSpec, stamp: Stamp, now_s: float) -> ClusterProfile:
    """What the cluster is."""
    return ClusterProfile(
        cluster=spec.name,
        stamp=stamp,
        observed_at_s=now_s,
        labels=spec.labels,
        properties=dict(PROPERTIES),
        nodes=len(spec.nodes),
        gpus=spec.gpus,
    )


class Reports:
    """Makes the reports of one cluster's nodes; what never changes is made once."""

    def __init__(self, world: World) -> None:
        self._world = world
        spec = world.spec
        self._labels = {node.name: spec.node_labels(node) for node in spec.nodes}
        self._uuids = {
            node.name: tuple(gpu_uuid(spec.name, node.name, i) for i in range(node.gpus))
            for node in spec.nodes
        }
        self._healthy = {
            node.name: self._gpus(world.nodes[node.name], [0] * node.gpus, [0.0] * node.gpus)
            for node in spec.nodes
        }

    def uuids(self, node: str) -> tuple[str, ...]:
        """Of its GPUs, by index."""
        return self._uuids[node]

    def report(self, name: str, stamp: Stamp, now_s: float) -> NodeReport:
        """The node as it stands."""
        node = self._world.nodes[name]
        foreign, gpus = Amounts(), self._healthy[name]
        if node.foreign or any(node.gpu_back_s):
            foreign, gpus = self._disturbed(node)
        return NodeReport(
            cluster=self._world.spec.name,
            node=name,
            stamp=stamp,
            observed_at_s=now_s,
            ready=not node.ready_s,
            labels=self._labels[name],
            allocatable=node.spec.allocatable,
            foreign=foreign,
            gpus=gpus,
            pods=_pods(node),
        )

    def _disturbed(self, node: Node) -> tuple[Amounts, tuple[GpuDevice, ...]]:
        milli = [0] * node.spec.gpus
        cpu_milli = memory_mib = 0
        for came in node.foreign.values():
            cpu_milli += came.use.cpu_milli
            memory_mib += came.use.memory_mib
            for index in came.use.gpus:
                milli[index] += came.use.gpu_milli
        foreign = Amounts(cpu_milli=cpu_milli, memory_mib=memory_mib, gpu_milli=sum(milli))
        return foreign, self._gpus(node, milli, node.gpu_back_s)

    def _gpus(self, node: Node, milli: list[int], back_s: list[float]) -> tuple[GpuDevice, ...]:
        return tuple(
            GpuDevice(
                index=index,
                uuid=uuid,
                model=node.spec.model,
                memory_mib=node.memory_per_gpu_mib,
                healthy=not back_s[index],
                foreign_milli=milli[index],
            )
            for index, uuid in enumerate(self._uuids[node.spec.name])
        )


def _pods(node: Node) -> tuple[PodUse, ...]:
    return tuple(
        PodUse(
            tenant=attempt.tenant,
            workload=attempt.id,
            attempt=attempt.number,
            pod=pod,
            cpu_milli=seat.use.cpu_milli,
            memory_mib=seat.use.memory_mib,
            gpu_milli=seat.use.gpu_milli,
            gpus=seat.use.gpus,
        )
        for (attempt, pod), seat in node.pods.items()
    )


class Coalescer:
    """Which nodes to report now."""

    def __init__(self, interval_s: float, rate_per_s: float) -> None:
        """At most one report of a node per interval; at most ``rate_per_s`` of those that only
        our own pods have changed."""
        self._interval_s = interval_s
        self._rate_per_s = rate_per_s
        self._pending: dict[str, bool] = {}
        self._sent_s: dict[str, float] = {}
        self._budget = 1.0
        self._budget_s = 0.0

    def mark(self, dirty: Mapping[str, bool]) -> None:
        """These nodes have changed; True: by more than pods of ours."""
        for node, urgent in dirty.items():
            self._pending[node] = urgent or self._pending.get(node, False)

    @property
    def pending(self) -> int:
        """Nodes with changes that nobody has been told."""
        return len(self._pending)

    def due(self, now_s: float) -> list[str]:
        """Nodes to report now, urgent ones first, each once; they count as reported."""
        most = max(1.0, self._rate_per_s * self._interval_s)
        gained = (now_s - self._budget_s) * self._rate_per_s
        self._budget = min(most, self._budget + max(0.0, gained))
        self._budget_s = now_s
        ripe_s = now_s - self._interval_s
        ripe = [n for n in self._pending if self._sent_s.get(n, -1e18) <= ripe_s]
        chosen = [node for node in ripe if self._pending[node]]
        for node in ripe:
            if self._budget < 1:
                break
            if not self._pending[node]:
                self._budget -= 1
                chosen.append(node)
        for node in chosen:
            del self._pending[node]
            self._sent_s[node] = now_s
        return chosen

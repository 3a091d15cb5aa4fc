"""Facts of an emulated cluster. Pure; lib/nats/reporting.py decides when to publish them."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from berthmaster.lab.emulator.fleets import ClusterSpec
from berthmaster.lab.emulator.kubelet import EmulatedNode
from berthmaster.lab.emulator.world import World
from berthmaster.lib.messages.fleet import (
    Amounts,
    ClusterProfile,
    GpuDevice,
    NodeReport,
    PodUse,
    Stamp,
)

PROPERTIES: Final[Mapping[str, str]] = {"berth/runtime": "emulated"}


def gpu_uuid(cluster: str, node: str, index: int) -> str:
    """Return a constant UUID, as of a real board."""
    name = blake2b(f"{cluster}/{node}/{index}".encode(), digest_size=16).hexdigest()
    return f"GPU-{name[:8]}-{name[8:12]}-{name[12:16]}-{name[16:20]}-{name[20:]}"


def profile(spec: ClusterSpec, stamp: Stamp, now_s: float) -> ClusterProfile:
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
    """Builds the reports of one cluster's nodes, with constant values built once."""

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
        return self._uuids[node]

    def report(self, name: str, stamp: Stamp, now_s: float) -> NodeReport:
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

    def _disturbed(self, node: EmulatedNode) -> tuple[Amounts, tuple[GpuDevice, ...]]:
        milli = [0] * node.spec.gpus
        cpu_milli = memory_mib = 0
        for came in node.foreign.values():
            cpu_milli += came.use.cpu_milli
            memory_mib += came.use.memory_mib
            for index in came.use.gpus:
                milli[index] += came.use.gpu_milli
        foreign = Amounts(cpu_milli=cpu_milli, memory_mib=memory_mib, gpu_milli=sum(milli))
        return foreign, self._gpus(node, milli, node.gpu_back_s)

    def _gpus(
        self, node: EmulatedNode, milli: list[int], back_s: list[float]
    ) -> tuple[GpuDevice, ...]:
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


def _pods(node: EmulatedNode) -> tuple[PodUse, ...]:
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

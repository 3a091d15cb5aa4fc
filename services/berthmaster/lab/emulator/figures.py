"""GPU usage of emulated jobs, summed as in a real cluster (worker/job_metrics). Pure.

The pods' allocations on a node determine the GPUs of each pod.
"""

from typing import Final

import msgspec

from berthmaster.lab.emulator.kubelet import EmulatedNode
from berthmaster.lib.messages.telemetry import (
    GpuPodUse,
    GpuReading,
    JobFigures,
    NodeTelemetry,
    PodUsage,
)
from berthmaster.worker.job_metrics.core.meter import Meter
from berthmaster.worker.job_metrics.core.pods import JobName, Owner, Pod

IDLE_PERCENT: Final = 5.0
IDLE_LIMIT_S: Final = 1800.0
CPU_SHARE: Final = 0.6  # fraction of the requested CPU that a pod uses
MEMORY_SHARE: Final = 0.5


class EmulatedFigures:
    def __init__(self, cluster: str, epoch: int) -> None:
        self._meter = Meter(
            cluster, epoch=epoch, idle_percent=IDLE_PERCENT, idle_limit_s=IDLE_LIMIT_S
        )
        self._there: dict[str, set[str]] = {}  # node -> pods, as last seen

    def on_node(self, node: EmulatedNode, told: NodeTelemetry, now_s: float) -> None:
        """Apply one sample of a node with these pods."""
        pods: set[str] = set()
        uses: dict[int, list[tuple[str, int]]] = {}
        usage: list[PodUsage] = []
        for (attempt, name), seat in node.pods.items():
            if not seat.use.gpus:
                continue
            uid = f"{attempt.tenant}/{attempt.id}/{attempt.number}/{name}"
            pods.add(uid)
            if self._meter.book.get(uid) is None:
                job = Owner("Job", f"{attempt.id}-{attempt.number}", "")
                whose = JobName(attempt.tenant, job, attempt.tenant, attempt.id, attempt.number)
                self._meter.book.put(Pod(uid, attempt.tenant, name, told.node, whose))
            usage.append(
                PodUsage(
                    pod_uid=uid,
                    cpu_cores=CPU_SHARE * seat.use.cpu_milli / 1000,
                    memory_mib=MEMORY_SHARE * seat.use.memory_mib,
                )
            )
            for index in seat.use.gpus:
                uses.setdefault(index, []).append((uid, seat.use.gpu_milli))
        for gone in self._there.get(told.node, set()) - pods:
            self._meter.book.drop(gone)
        self._there[told.node] = pods
        gpus = tuple(_held(gpu, uses.get(gpu.index, [])) for gpu in told.gpus)
        told = msgspec.structs.replace(told, gpus=gpus, pods=tuple(usage))
        self._meter.on_node(told, now_s)

    def take(self, now_s: float) -> list[JobFigures]:
        return self._meter.take(now_s)


def _held(gpu: GpuReading, holders: list[tuple[str, int]]) -> GpuReading:
    """Return the sample split over its pods, in proportion to their allocations."""
    if not holders or gpu.utilization_percent is None:
        return gpu
    whole = sum(milli for _, milli in holders) or 1
    parts = tuple(
        GpuPodUse(
            pod_uid=uid,
            sm_percent=round(gpu.utilization_percent * milli / whole, 1),
            memory_mib=(gpu.memory_used_mib or 0) * milli // whole,
        )
        for uid, milli in holders
    )
    return msgspec.structs.replace(gpu, pods=parts)

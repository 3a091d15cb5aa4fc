"""One node as its kubelet sees it: free capacity, and admission of pods.

The kubelet decides last, as in Kubernetes, because the scheduler may have known less. The kubelet
counts managed and unmanaged pods alike, and never admits more than the node has.
"""

from enum import StrEnum

from berthmaster.lab.emulator.fleets import NodeSpec, gpu_memory_mib
from berthmaster.lab.emulator.records import ForeignCame, GpuUse, Seat
from berthmaster.worker.executor.core.cluster_protocol import Attempt


class Refusal(StrEnum):
    """The reason of a refused pod, in Kubernetes' terms where available."""

    CPU = "OutOfcpu"
    MEMORY = "OutOfmemory"
    GPU = "OutOfnvidia.com/gpu"
    GPU_UNHEALTHY = "GpuUnhealthy"
    NODE_NOT_READY = "NodeNotReady"
    NODE_UNKNOWN = "NodeUnknown"
    INVALID = "InvalidPod"


class EmulatedNode:
    """One node. Its free capacity follows from its pods."""

    __slots__ = (
        "cpu_free_milli",
        "foreign",
        "gpu_back_s",
        "gpu_free_milli",
        "memory_free_mib",
        "memory_per_gpu_mib",
        "pods",
        "ready_s",
        "spec",
    )

    def __init__(self, spec: NodeSpec) -> None:
        self.spec = spec
        self.cpu_free_milli = spec.cpu_milli
        self.memory_free_mib = spec.memory_mib
        self.gpu_free_milli = [1000] * spec.gpus
        self.gpu_back_s = [0.0] * spec.gpus  # time of a dead GPU's replacement; 0 = healthy
        self.memory_per_gpu_mib = gpu_memory_mib(spec.model)
        self.ready_s = 0.0  # time of readiness; 0 = ready
        self.pods: dict[tuple[Attempt, str], Seat] = {}
        self.foreign: dict[int, ForeignCame] = {}

    def admit(self, use: GpuUse, gpus_wanted: int) -> GpuUse | Refusal:
        """Return the pod's allocation: the GPUs that ``use`` names, or suitable ones."""
        if self.ready_s:
            return Refusal.NODE_NOT_READY
        if use.cpu_milli > self.cpu_free_milli:
            return Refusal.CPU
        if use.memory_mib > self.memory_free_mib:
            return Refusal.MEMORY
        if not use.gpus:
            return self._choose(use, gpus_wanted) if gpus_wanted else use
        if len(set(use.gpus)) != len(use.gpus) or len(use.gpus) != gpus_wanted:
            return Refusal.INVALID
        for index in use.gpus:
            if not 0 <= index < self.spec.gpus:
                return Refusal.GPU
            if self.gpu_back_s[index]:
                return Refusal.GPU_UNHEALTHY
            if self.gpu_free_milli[index] < use.gpu_milli:
                return Refusal.GPU
        return use

    def _choose(self, use: GpuUse, wanted: int) -> GpuUse | Refusal:
        """Choose the fullest suitable GPUs, as the device plugin's packing does."""
        suiting = [
            (free, index)
            for index, free in enumerate(self.gpu_free_milli)
            if free >= use.gpu_milli and not self.gpu_back_s[index]
        ]
        if len(suiting) < wanted:
            return Refusal.GPU
        chosen = sorted(index for _, index in sorted(suiting)[:wanted])
        return use._replace(gpus=tuple(chosen))

    def take(self, use: GpuUse) -> None:
        self._count(use, -1)

    def give_back(self, use: GpuUse) -> None:
        """Free a pod's allocation."""
        self._count(use, +1)

    def _count(self, use: GpuUse, sign: int) -> None:
        self.cpu_free_milli += sign * use.cpu_milli
        self.memory_free_mib += sign * use.memory_mib
        for index in use.gpus:
            self.gpu_free_milli[index] += sign * use.gpu_milli

    def state(self) -> tuple[object, ...]:
        """Return the whole state, for comparisons."""
        return (
            self.cpu_free_milli,
            self.memory_free_mib,
            tuple(self.gpu_free_milli),
            tuple(self.gpu_back_s),
            self.ready_s,
            tuple(sorted(self.pods.items())),
            tuple(sorted(self.foreign.items())),
        )

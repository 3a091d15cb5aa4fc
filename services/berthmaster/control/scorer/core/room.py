"""What one node has left, per resource and per GPU, as its report tells it.

Pure. Free = allocatable - withheld - foreign - ours. Whatever a report leaves in doubt is charged:
use that names no listed GPU (a node that lists fewer GPUs than run there, or knows only the number
in use) takes the freest ones, so that a doubtful report never makes a node look emptier.
"""

from collections.abc import Set

import msgspec

from berthmaster.control.scorer.core.mix import Mix, PodShape
from berthmaster.lib.engine.fleet.gpus import is_one_of
from berthmaster.lib.messages.fleet import NodeReport

WHOLE_MILLI = 1000
STUCK_UNIT = 1000  # stuck capacity is kept in 1/1000 milli: whole numbers add up without drift


class NodeRoom(msgspec.Struct, frozen=True):
    """One node: what it has, and, if pods may go there now, what is free."""

    usable: bool  # ready and schedulable
    cpu_milli: int  # allocatable
    memory_mib: int
    gpu_milli: int
    tpus: int
    free_cpu_milli: int = 0  # below 0: more runs there than the node says it has
    free_memory_mib: int = 0
    free_gpu_milli: int = 0
    free_tpus: int = 0
    left: tuple[tuple[str, int], ...] = ()  # (model, free milli) of each healthy GPU, never below 0
    devices: tuple[str, ...] = ()  # model of each GPU listed, healthy or not
    over_used: bool = False

    @property
    def has(self) -> tuple[int, int, int, int]:
        """Allocatable: cpu milli, MiB, GPU milli, TPUs."""
        return self.cpu_milli, self.memory_mib, self.gpu_milli, self.tpus

    @property
    def free(self) -> tuple[int, int, int, int]:
        """Free, in the same order."""
        return self.free_cpu_milli, self.free_memory_mib, self.free_gpu_milli, self.free_tpus

    @property
    def shared(self) -> tuple[bool, ...]:
        """Of each healthy GPU, whether it is taken in part: somebody else could share it."""
        return tuple(0 < milli < WHOLE_MILLI for _, milli in self.left)

    @property
    def left_milli(self) -> int:
        """Free milli of healthy GPUs."""
        return sum(milli for _, milli in self.left)


def reading_key(uuid: str, index: int) -> str:
    """What a GPU's telemetry and its entry in the report have in common."""
    return uuid or f"#{index}"


def faulty_indices(report: NodeReport, faulty: Set[str]) -> tuple[int, ...]:
    """Return the GPUs of a report that telemetry found faulty. ``faulty``: their keys.

    A device plugin counts and names none: of its GPUs those that it takes for unhealthy itself are
    some of the faulty ones, and only faulty GPUs beyond them are returned. For example, of 8 GPUs
    one is unhealthy by the plugin, and telemetry calls #3 lost: it is the same one.
    """
    if not faulty:
        return ()
    named = [gpu.index for gpu in report.gpus if gpu.uuid and gpu.uuid in faulty]
    counted = [gpu for gpu in report.gpus if not gpu.uuid]
    found = [gpu for gpu in counted if reading_key("", gpu.index) in faulty]
    known = sum(not gpu.healthy for gpu in counted)
    healthy = [gpu.index for gpu in found if gpu.healthy]
    return tuple(sorted(named + healthy[: max(0, len(found) - known)]))


def room_of(report: NodeReport) -> NodeRoom:
    """The node's room; GPUs that are not healthy have none."""
    allocatable = report.allocatable
    devices = tuple(gpu.model for gpu in report.gpus)
    if not (report.ready and report.schedulable):
        return NodeRoom(
            False,
            allocatable.cpu_milli,
            allocatable.memory_mib,
            allocatable.gpu_milli,
            allocatable.tpus,
            devices=devices,
        )
    cpu = allocatable.cpu_milli - report.foreign.cpu_milli
    memory = allocatable.memory_mib - report.foreign.memory_mib
    free_tpus = allocatable.tpus - report.foreign.tpus
    ours: dict[int, int] = {}
    for pod in report.pods:
        free_tpus -= pod.tpus
        cpu -= pod.cpu_milli
        memory -= pod.memory_mib
        for index in pod.gpus:
            ours[index] = ours.get(index, 0) + pod.gpu_milli
    usable_gpus = [gpu for gpu in report.gpus if gpu.healthy]
    left = [
        WHOLE_MILLI - gpu.withheld_milli - gpu.foreign_milli - ours.get(gpu.index, 0)
        for gpu in usable_gpus
    ]
    unlisted = sum(ours.values()) - sum(ours.get(gpu.index, 0) for gpu in report.gpus)
    doubt = (
        unlisted
        + max(0, report.foreign.gpu_milli - sum(gpu.foreign_milli for gpu in report.gpus))
        + max(0, WHOLE_MILLI * len(usable_gpus) - allocatable.gpu_milli)
    )
    debt = _charge(left, doubt)
    return NodeRoom(
        True,
        allocatable.cpu_milli,
        allocatable.memory_mib,
        allocatable.gpu_milli,
        allocatable.tpus,
        cpu,
        memory,
        sum(left) - debt,
        free_tpus,
        tuple((gpu.model, max(0, milli)) for gpu, milli in zip(usable_gpus, left, strict=True)),
        devices,
        min(cpu, memory, free_tpus, *left, 0) < 0 or debt > 0 or unlisted > 0,
    )


def _charge(left: list[int], doubt: int) -> int:
    """Take this much from the freest GPUs; what none could give is the debt."""
    while doubt > 0:
        at = max(range(len(left)), key=lambda i: (left[i], i), default=None)
        if at is None or left[at] <= 0:
            return doubt
        taken = min(left[at], doubt)
        left[at] -= taken
        doubt -= taken
    return 0


class ResourceUse(msgspec.Struct, frozen=True):
    """What a node's room is good for under one mix."""

    gang: tuple[tuple[str, int], ...] = ()  # (model, 1-GPU pods that fit now)
    stuck: int = 0  # free GPU capacity that the mix cannot use, in 1/1000 milli


def use_of(room: NodeRoom, mix: Mix) -> ResourceUse:
    """Judge a node's room by a mix."""
    if not room.left:
        return ResourceUse()
    whole: dict[str, int] = {}
    for model, milli in room.left:
        if milli == WHOLE_MILLI:
            whole[model] = whole.get(model, 0) + 1
    beside = min(
        _pods(room.free_cpu_milli, mix.gang_cpu_milli),
        _pods(room.free_memory_mib, mix.gang_memory_mib),
    )
    gang = tuple((model, min(count, beside)) for model, count in whole.items() if beside > 0)
    return ResourceUse(gang, stuck_of(room, mix))


def _pods(free: int, each: int) -> int:
    return max(0, free) // each if each > 0 else 1 << 30


def stuck_of(room: NodeRoom, mix: Mix) -> int:
    """FGD's F_n: the free GPU capacity that a typical pod cannot use, averaged over the mix."""
    total = room.left_milli
    if not total:
        return 0
    stuck = 0.0
    for pod in mix.pods:
        usable = _usable_milli(room, pod.shape, pod.memory_mib)
        stuck += pod.share * (total - usable)
    return min(round(stuck * STUCK_UNIT), total * STUCK_UNIT)


def _usable_milli(room: NodeRoom, shape: PodShape, memory_mib: int) -> int:
    """What is left on GPUs that are large enough for this pod, if the node can host it at all."""
    if shape.cpu_milli > room.free_cpu_milli or memory_mib > room.free_memory_mib:
        return 0
    fitting, usable, models = 0, 0, shape.models
    for model, milli in room.left:
        if milli >= shape.gpu_milli and (not models or is_one_of(models, model)):
            fitting += 1
            usable += milli
    return usable if fitting >= shape.gpus else 0

"""Sums and maxima over a cluster's nodes, updated by adding and removing one node at a time. Pure.

Every sum is of whole numbers, so that a removal restores exactly the sum before.

**Nodes.** The free capacity of one node, per resource and per GPU, by its report.

Free = allocatable - withheld - unmanaged - ours. Use of an unlisted GPU is charged to the freest
GPUs, so that an unclear report never makes a node look emptier. A node may list fewer GPUs than are
in use, or report only the number in use. Example: a node lists 8 GPUs of which none is in use, and
reports 1,000 milli of unmanaged use without an index. The node counts as having 7 free GPUs.
"""

import heapq
from collections.abc import Set

import msgspec

from berthmaster.control.scorer.core.mix import Mix, PodShape
from berthmaster.control.scorer.core.rules import Amount
from berthmaster.lib.engine.fleet.gpus import is_one_of
from berthmaster.lib.messages.fleet import NodeReport

WHOLE_MILLI = 1000
STUCK_UNIT = 1000  # 1/1000 milli: whole numbers add up without drift


class NodeRoom(msgspec.Struct, frozen=True):
    """Capacity of one node, and the free part if new pods may go there."""

    usable: bool  # ready and schedulable
    cpu_milli: int  # allocatable
    memory_mib: int
    gpu_milli: int
    tpus: int
    free_cpu_milli: int = 0  # below 0: the pods use more than the node reports to have
    free_memory_mib: int = 0
    free_gpu_milli: int = 0
    free_tpus: int = 0
    left: tuple[tuple[str, int], ...] = ()  # (model, free milli) of each healthy GPU, never below 0
    devices: tuple[str, ...] = ()  # model of each GPU listed, healthy or not
    over_used: bool = False

    @property
    def has(self) -> tuple[int, int, int, int]:
        """Return the allocatable amounts: cpu milli, MiB, GPU milli, TPUs."""
        return self.cpu_milli, self.memory_mib, self.gpu_milli, self.tpus

    @property
    def free(self) -> tuple[int, int, int, int]:
        """Return the free amounts, in the same order."""
        return self.free_cpu_milli, self.free_memory_mib, self.free_gpu_milli, self.free_tpus

    @property
    def shared(self) -> tuple[bool, ...]:
        """Return for each healthy GPU whether a part is allocated, so that another pod could share
        it.
        """
        return tuple(0 < milli < WHOLE_MILLI for _, milli in self.left)

    @property
    def left_milli(self) -> int:
        """Return the free milli of healthy GPUs."""
        return sum(milli for _, milli in self.left)


def reading_key(uuid: str, index: int) -> str:
    """Return the key of a GPU both in telemetry and in the node's report."""
    return uuid or f"#{index}"


def faulty_indices(report: NodeReport, faulty: Set[str]) -> tuple[int, ...]:
    """Return the GPUs of a report that telemetry found faulty. ``faulty``: their keys.

    A device plugin only counts its GPUs. The GPUs that the plugin itself reports as unhealthy are
    among the faulty ones, so only faulty GPUs beyond their number are returned. Example: of 8 GPUs
    one is unhealthy by the plugin, and telemetry reports #3 as lost: the same GPU.
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
    """Return the node's capacity. Unhealthy GPUs have none."""
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
    """Take ``doubt`` from the freest GPUs. Return the rest after all GPUs are empty."""
    while doubt > 0:
        at = max(range(len(left)), key=lambda i: (left[i], i), default=None)
        if at is None or left[at] <= 0:
            return doubt
        taken = min(left[at], doubt)
        left[at] -= taken
        doubt -= taken
    return 0


class ResourceUse(msgspec.Struct, frozen=True):
    """Usable part of a node's free capacity under one mix."""

    gang: tuple[tuple[str, int], ...] = ()  # (model, 1-GPU pods that fit now)
    stuck: int = 0  # free GPU capacity that the mix cannot use, in 1/1000 milli


def use_of(room: NodeRoom, mix: Mix) -> ResourceUse:
    """Judge a node's free capacity by a mix."""
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
    """Return FGD's F_n: the free GPU capacity that a typical pod cannot use, averaged over the
    mix.
    """
    total = room.left_milli
    if not total:
        return 0
    stuck = 0.0
    for pod in mix.pods:
        usable = _usable_milli(room, pod.shape, pod.memory_mib)
        stuck += pod.share * (total - usable)
    return min(round(stuck * STUCK_UNIT), total * STUCK_UNIT)


def _usable_milli(room: NodeRoom, shape: PodShape, memory_mib: int) -> int:
    """Return the free capacity of GPUs large enough for this pod, or 0 if the node cannot host the
    pod.
    """
    if shape.cpu_milli > room.free_cpu_milli or memory_mib > room.free_memory_mib:
        return 0
    fitting, usable, models = 0, 0, shape.models
    for model, milli in room.left:
        if milli >= shape.gpu_milli and (not models or is_one_of(models, model)):
            fitting += 1
            usable += milli
    return usable if fitting >= shape.gpus else 0


class Measured(msgspec.Struct, frozen=True):
    """Live telemetry of a node's healthy GPUs, summed."""

    gpus: int = 0  # number with a measured utilization
    idle: int = 0  # sum of their idle percentages, in 1/1000 percent
    calm: int = 0  # number of partly allocated ones that are not busy


class TotalsPart(msgspec.Struct, frozen=True):
    """Contribution of one node to its cluster."""

    room: NodeRoom
    use: ResourceUse = ResourceUse()
    measured: Measured = Measured()
    live: bool = False  # has live telemetry


class Largest:
    """Maximum of changing values, by a heap whose stale entries are skipped."""

    def __init__(self) -> None:
        self._values: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def put(self, key: str, value: int | None) -> None:
        """Set the value of a key. None removes the key."""
        if self._values.get(key) == value:
            return
        if value is None:
            del self._values[key]
            return
        self._values[key] = value
        heapq.heappush(self._heap, (-value, key))
        if len(self._heap) > 4 * len(self._values) + 64:
            self._heap = [(-known, name) for name, known in self._values.items()]
            heapq.heapify(self._heap)

    def value(self) -> int:
        """Return the largest value, at least 0."""
        while self._heap:
            negative, key = self._heap[0]
            if self._values.get(key) == -negative:
                return max(0, -negative)
            heapq.heappop(self._heap)
        return 0


class Totals:
    """Aggregates of one cluster."""

    def __init__(self) -> None:
        self.parts: dict[str, TotalsPart] = {}
        # allocatable of all nodes, then free on usable nodes: cpu milli, MiB, GPU milli, TPUs
        self.has = [0, 0, 0, 0]
        self.free = [0, 0, 0, 0]
        self.largest_has = [Largest(), Largest(), Largest(), Largest()]
        self.largest_free = [Largest(), Largest(), Largest(), Largest()]
        self.healthy_gpus = 0  # on usable nodes
        self.left_milli = 0
        self.stuck = 0
        self.idle = 0
        self.measured_gpus = 0
        self.shared_gpus = 0  # allocated in part
        self.calm_gpus = 0  # of those, measured and not busy
        self.live_nodes = 0
        self.over_used_nodes = 0
        self.devices: dict[str, int] = {}  # model -> GPUs listed
        self.gang: dict[str, int] = {}  # model -> 1-GPU pods that fit

    def put(self, node: str, part: TotalsPart | None) -> None:
        """Set the contribution of a node. None removes the node."""
        before = self.parts.get(node)
        if before is not None:
            self._add(before, -1)
        if part is None:
            self.parts.pop(node, None)
        else:
            self.parts[node] = part
            self._add(part, 1)
        self._track(node, before, part)

    def _add(self, part: TotalsPart, sign: int) -> None:
        room = part.room
        for at, amount in enumerate(room.has):
            self.has[at] += sign * amount
        for model in room.devices:
            _count(self.devices, model, sign)
        self.live_nodes += sign * part.live
        if not room.usable:
            return
        for at, amount in enumerate(room.free):
            self.free[at] += sign * amount
        self.healthy_gpus += sign * len(room.left)
        self.left_milli += sign * room.left_milli
        self.over_used_nodes += sign * room.over_used
        self.stuck += sign * part.use.stuck
        self.idle += sign * part.measured.idle
        self.measured_gpus += sign * part.measured.gpus
        self.shared_gpus += sign * sum(room.shared)
        self.calm_gpus += sign * part.measured.calm
        for model, pods in part.use.gang:
            _count(self.gang, model, sign * pods)

    def measure(self, node: str, measured: Measured, live: bool) -> None:
        """Take new telemetry of a known node. This is by far the most frequent change, so the
        fastest.
        """
        before = self.parts[node]
        self.live_nodes += live - before.live
        if before.room.usable:
            self.idle += measured.idle - before.measured.idle
            self.measured_gpus += measured.gpus - before.measured.gpus
            self.calm_gpus += measured.calm - before.measured.calm
        self.parts[node] = TotalsPart(before.room, before.use, measured, live)

    def _track(self, node: str, before: TotalsPart | None, after: TotalsPart | None) -> None:
        if before is not None and after is not None and before.room is after.room:
            return
        has = after.room.has if after is not None else (None,) * 4
        free = after.room.free if after is not None and after.room.usable else (None,) * 4
        for at in range(4):
            self.largest_has[at].put(node, has[at])
            self.largest_free[at].put(node, free[at])

    # In the units of scores

    def cluster_has(self) -> Amount:
        """Return the allocatable amounts of all nodes."""
        return _amount(self.has)

    def node_has(self) -> Amount:
        """Return the maximum of one node, for each resource."""
        return _amount([largest.value() for largest in self.largest_has])

    def cluster_free(self) -> Amount:
        """Return the free amounts on usable nodes."""
        return _amount(self.free)

    def node_free(self) -> Amount:
        """Return the maximum free amount on one usable node, for each resource alone, at least
        0.
        """
        return _amount([largest.value() for largest in self.largest_free])

    def idle_gpu_percent(self) -> float | None:
        """Return the measured idle percentage of healthy GPUs on usable nodes. An unmeasured GPU
        counts as busy: a silent node must not make its cluster look idler.
        """
        if not self.measured_gpus:
            return None
        return round(self.idle / (1000 * self.healthy_gpus), 3)

    def calm_gpu_percent(self) -> float | None:
        """Return the percentage of partly allocated GPUs that are measured and not busy. Without
        such GPUs the result is 100, as no pod is disturbed. Without telemetry the result is None.
        """
        if not self.measured_gpus:
            return None
        if not self.shared_gpus:
            return 100.0
        return round(100 * self.calm_gpus / self.shared_gpus, 3)

    def fragmentation_percent(self) -> float | None:
        """Return the percentage of free GPU capacity that the mix cannot use. None: no free
        capacity.
        """
        if not self.left_milli:
            return None
        return round(100 * self.stuck / (1000 * self.left_milli), 3)

    def largest_gang(self) -> dict[str, int]:
        """Return model -> 1-GPU pods that fit now. 0: the model exists, but no pod fits."""
        return {model: self.gang.get(model, 0) for model in sorted(self.devices)}


def _amount(values: list[int]) -> Amount:
    return Amount(values[0] / 1000, float(values[1]), values[2] / 1000, float(values[3]))


def _count(counts: dict[str, int], key: str, change: int) -> None:
    left = counts.get(key, 0) + change
    if left:
        counts[key] = left
    else:
        counts.pop(key, None)

"""Sums and maxima over a cluster's nodes, kept by adding and taking away one node at a time.

Pure. Every sum is of whole numbers, so that taking away restores exactly what was there before.
"""

import heapq

import msgspec

from berthmaster.control.scorer.core.room import NodeRoom, ResourceUse
from berthmaster.control.scorer.core.rules import Amount


class Measured(msgspec.Struct, frozen=True):
    """What live telemetry says of a node's healthy GPUs."""

    gpus: int = 0  # with a measured utilization
    idle: int = 0  # sum of their idle shares, in 1/1000 percent
    calm: int = 0  # of those that are taken in part, how many are not busy


class TotalsPart(msgspec.Struct, frozen=True):
    """Everything that one node contributes to its cluster."""

    room: NodeRoom
    use: ResourceUse = ResourceUse()
    measured: Measured = Measured()
    live: bool = False  # has live telemetry


class Largest:
    """The largest of values that come, change and go; a heap whose stale entries are skipped."""

    def __init__(self) -> None:
        self._values: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def put(self, key: str, value: int | None) -> None:
        """This key has this value now; None: it has none."""
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
        """The largest value, at least 0."""
        while self._heap:
            negative, key = self._heap[0]
            if self._values.get(key) == -negative:
                return max(0, -negative)
            heapq.heappop(self._heap)
        return 0


class Totals:
    """One cluster's aggregates."""

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
        self.shared_gpus = 0  # taken in part
        self.calm_gpus = 0  # of those, measured and not busy
        self.live_nodes = 0
        self.over_used_nodes = 0
        self.devices: dict[str, int] = {}  # model -> GPUs listed
        self.gang: dict[str, int] = {}  # model -> 1-GPU pods that fit

    def put(self, node: str, part: TotalsPart | None) -> None:
        """This node contributes this now; None: it is gone."""
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
        """New telemetry of a known node: by far the most frequent change, so the quickest."""
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
        """Allocatable of all nodes."""
        return _amount(self.has)

    def node_has(self) -> Amount:
        """The most that one node has of each resource."""
        return _amount([largest.value() for largest in self.largest_has])

    def cluster_free(self) -> Amount:
        """Free on usable nodes."""
        return _amount(self.free)

    def node_free(self) -> Amount:
        """The most that one usable node has free of each resource, each on its own; at least 0."""
        return _amount([largest.value() for largest in self.largest_free])

    def idle_gpu_percent(self) -> float | None:
        """Measured idle share of the healthy GPUs of usable nodes. A GPU that is not measured
        counts as busy: a node that falls silent must not make its cluster look idler."""
        if not self.measured_gpus:
            return None
        return round(self.idle / (1000 * self.healthy_gpus), 3)

    def calm_gpu_percent(self) -> float | None:
        """Of the GPUs that are taken in part, how many are measured and not busy; where there are
        none, nothing disturbs. None without any telemetry."""
        if not self.measured_gpus:
            return None
        if not self.shared_gpus:
            return 100.0
        return round(100 * self.calm_gpus / self.shared_gpus, 3)

    def fragmentation_percent(self) -> float | None:
        """Share of the free GPU capacity that the mix cannot use; None when nothing is free."""
        if not self.left_milli:
            return None
        return round(100 * self.stuck / (1000 * self.left_milli), 3)

    def largest_gang(self) -> dict[str, int]:
        """Model -> 1-GPU pods that fit now; 0 where a model is there and none fits."""
        return {model: self.gang.get(model, 0) for model in sorted(self.devices)}


def _amount(values: list[int]) -> Amount:
    return Amount(values[0] / 1000, float(values[1]), values[2] / 1000, float(values[3]))


def _count(counts: dict[str, int], key: str, change: int) -> None:
    left = counts.get(key, 0) + change
    if left:
        counts[key] = left
    else:
        counts.pop(key, None)

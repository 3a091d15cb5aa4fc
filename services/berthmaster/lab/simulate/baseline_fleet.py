"""The nodes of a fleet for the baselines: free CPU, memory and milli of each GPU.

Separate from the engine's arrays on purpose: a baseline that shared code with the compared engine
would share its faults. A rule of placement_rules.py scores nodes for one shape of pod. The highest
score wins, and ties go to the first node. Scores are cached by rule and shape, and updated only for
changed nodes.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from berthmaster.lab.emulator.fleets import ClusterSpec, gpu_memory_mib
from berthmaster.lib.messages.workload import JobRequest, PodSet

WHOLE: Final = 1000
NOWHERE: Final = -math.inf
ABSENT: Final = -1  # for GPUs that a node does not have

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Shape(NamedTuple):
    """A request to a node: equal shapes fit equally."""

    cpu: int
    memory: int
    gpus: int
    milli: int
    models: tuple[str, ...]
    gpu_memory: int
    labels: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, pods: PodSet) -> "Shape":
        return cls(
            pods.cpu_milli,
            pods.memory_mib,
            pods.gpus,
            pods.gpu_milli if pods.gpus else 0,
            pods.gpu_models,
            pods.gpu_memory_mib,
            tuple(sorted(pods.node_labels.items())),
        )

    @property
    def shares_a_gpu(self) -> bool:
        """Return whether the pod uses a fraction of one GPU, so that the choice of GPU matters."""
        return self.gpus == 1 and self.milli < WHOLE


class Allocation(NamedTuple):
    node: int
    cpu: int
    memory: int
    milli: int
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class FreeRoom:
    """Free capacity of some nodes, one row each."""

    cpu: Ints
    memory: Ints
    gpu: Ints  # milli by node and GPU; ABSENT = no such GPU

    def of(self, slots: Ints) -> "FreeRoom":
        """Return a copy of these nodes' rows."""
        return FreeRoom(self.cpu[slots], self.memory[slots], self.gpu[slots])

    def lesser(self, other: "FreeRoom") -> "FreeRoom":
        """Return the capacity that is free in both."""
        return FreeRoom(
            np.minimum(self.cpu, other.cpu),
            np.minimum(self.memory, other.memory),
            np.minimum(self.gpu, other.gpu),
        )

    def charge(self, row: int, allocation: Allocation, sign: int = -1) -> None:
        """Subtract an allocation from a row, or add it."""
        self.cpu[row] += sign * allocation.cpu
        self.memory[row] += sign * allocation.memory
        for index in allocation.gpus:
            self.gpu[row, index] += sign * allocation.milli

    def fits(self, shape: Shape) -> NDArray[np.bool_]:
        fits = (self.cpu >= shape.cpu) & (self.memory >= shape.memory)
        if shape.gpus:
            fits &= (self.gpu >= shape.milli).sum(axis=1) >= shape.gpus
        return fits


class PlacementRule(ABC):
    """Chooses the node of a pod among fitting ones, and the GPU of a fraction."""

    @abstractmethod
    def scores(self, slots: Ints, room: FreeRoom, shape: Shape) -> Floats:
        """Return the score of each node, with its free capacity row by row."""

    def gpus(self, slot: int, room: FreeRoom, shape: Shape) -> Floats:
        """Return the score of each GPU of a node for a fraction: the fullest wins."""
        del slot, shape
        fullest: Floats = -room.gpu[0].astype(np.float64)
        return fullest


class BaselineFleet:
    def __init__(self, clusters: Sequence[ClusterSpec]) -> None:
        specs = [(cluster, spec) for cluster in clusters for spec in cluster.nodes]
        self.models = np.array([spec.model for _, spec in specs])
        self._labels = [cluster.node_labels(spec) for cluster, spec in specs]
        self._memory_a_gpu = np.array(
            [gpu_memory_mib(spec.model) if spec.gpus else 0 for _, spec in specs], np.int64
        )
        self._names = [f"{cluster.name}/{spec.name}" for cluster, spec in specs]
        self.clusters: dict[str, slice] = {}
        for cluster in clusters:
            begin = sum(len(each.nodes) for each in clusters[: len(self.clusters)])
            self.clusters[cluster.name] = slice(begin, begin + len(cluster.nodes))
        columns = max((spec.gpus for _, spec in specs), default=0)
        self._whole = FreeRoom(
            np.array([spec.cpu_milli for _, spec in specs], np.int64),
            np.array([spec.memory_mib for _, spec in specs], np.int64),
            np.full((len(specs), columns), ABSENT, np.int64),
        )
        for slot, (_, spec) in enumerate(specs):
            self._whole.gpu[slot, : spec.gpus] = WHOLE
        self.all: Ints = np.arange(len(specs))
        self.room = self._whole.of(self.all)
        self.gpus = sum(spec.gpus for _, spec in specs)
        self._turn = 0
        self._changed = np.zeros(len(specs), np.int64)  # node -> turn of its last change
        self._scores: dict[tuple[PlacementRule, Shape], tuple[Floats, list[int]]] = {}
        self._suits: dict[
            tuple[tuple[str, ...], int, tuple[tuple[str, str], ...]], NDArray[np.bool_]
        ] = {}

    def name(self, slot: int) -> str:
        """Return cluster and node."""
        return self._names[slot]

    @property
    def free_milli(self) -> int:
        """Return the free milli of all GPUs."""
        return int(np.maximum(self.room.gpu, 0).sum())

    # Allocating and freeing

    def take(self, allocation: Allocation) -> None:
        """Allocate one pod."""
        self._charge(allocation, -1)

    def give_back(self, allocations: Iterable[Allocation]) -> None:
        """Free the allocations of pods."""
        for allocation in allocations:
            self._charge(allocation, +1)

    def _charge(self, allocation: Allocation, sign: int) -> None:
        self.room.charge(allocation.node, allocation, sign)
        self._turn += 1
        self._changed[allocation.node] = self._turn

    def overdrawn(self, allocation: Allocation) -> bool:
        """Return whether more was allocated on the node than it has."""
        room = self.room
        return bool(
            room.cpu[allocation.node] < 0
            or room.memory[allocation.node] < 0
            or any(room.gpu[allocation.node, index] < 0 for index in allocation.gpus)
        )

    # Finding capacity

    def suits(self, shape: Shape) -> NDArray[np.bool_]:
        """Return the nodes that could ever run the shape."""
        what = (shape.models if shape.gpus else (), shape.gpu_memory, shape.labels)
        known = self._suits.get(what)
        if known is None:
            known = np.array(
                [
                    all(labels.get(key) == value for key, value in shape.labels)
                    for labels in self._labels
                ],
                np.bool_,
            )
            if shape.gpus:
                known &= self._memory_a_gpu >= shape.gpu_memory
                if shape.models:
                    known &= np.isin(self.models, shape.models)
            self._suits[what] = known
        return known

    def scores(self, shape: Shape, rule: PlacementRule) -> Floats:
        """Return every node's score, NOWHERE for a node without space. Read-only."""
        known = self._scores.get((rule, shape))
        if known is None:
            values, seen, stale = np.full(len(self.all), NOWHERE), [0], self.all
            self._scores[rule, shape] = values, seen
        else:
            values, seen = known
            stale = np.flatnonzero(self._changed > seen[0])
        seen[0] = self._turn
        if len(stale):
            room = self.room.of(stale)
            fits = room.fits(shape) & self.suits(shape)[stale]
            values[stale] = np.where(fits, rule.scores(stale, room, shape), NOWHERE)
        return values

    def allocate(
        self, request: JobRequest, rule: PlacementRule, spare: "dict[int, FreeRoom] | None" = None
    ) -> tuple[Allocation, ...] | None:
        """Allocate all pods in one cluster, or change nothing.

        ``spare`` has nodes with less capacity for this job than the fleet shows.
        """
        for within in self.clusters.values():
            allocations: list[Allocation] = []
            for pods in sorted(
                request.pod_sets, key=lambda p: (-p.gpus * p.gpu_milli, -p.cpu_milli)
            ):
                shape = Shape.of(pods)
                for _ in range(pods.count):
                    found = self._best(shape, rule, within, spare)
                    if found is None:
                        break
                    self.take(found)
                    allocations.append(found)
                else:
                    continue
                break
            else:
                return tuple(allocations)
            self.give_back(allocations)
        return None

    def allocate_one(self, pods: PodSet, rule: PlacementRule) -> Allocation | None:
        """Allocate one pod of a set in any cluster."""
        found = self._best(Shape.of(pods), rule, slice(0, len(self.all)), None)
        if found is not None:
            self.take(found)
        return found

    def _best(
        self, shape: Shape, rule: PlacementRule, within: slice, spare: "dict[int, FreeRoom] | None"
    ) -> Allocation | None:
        values = self.scores(shape, rule)[within]
        if spare:
            values = values.copy()
            for slot in spare:
                at = slot - within.start
                if 0 <= at < len(values) and not self._now(slot, spare).fits(shape)[0]:
                    values[at] = NOWHERE
        best = int(values.argmax()) if len(values) else 0
        if not len(values) or values[best] == NOWHERE:
            return None
        slot = within.start + best
        gpus = _chosen(slot, self._now(slot, spare), shape, rule)
        return Allocation(slot, shape.cpu, shape.memory, shape.milli, gpus)

    def room_of(self, slot: int) -> FreeRoom:
        """Return a copy of one node's free capacity, in row 0."""
        return self.room.of(np.array([slot]))

    def _now(self, slot: int, spare: "dict[int, FreeRoom] | None") -> FreeRoom:
        room = self.room_of(slot)
        return room.lesser(spare[slot]) if spare and slot in spare else room


def _chosen(slot: int, room: FreeRoom, shape: Shape, rule: PlacementRule) -> tuple[int, ...]:
    """Return the GPUs of a pod on a node: the first whole ones, or the best for a fraction."""
    if not shape.gpus:
        return ()
    will_do = np.flatnonzero(room.gpu[0] >= shape.milli)
    if shape.shares_a_gpu:
        will_do = will_do[[int(rule.gpus(slot, room, shape)[will_do].argmax())]]
    elif shape.milli < WHOLE:
        will_do = np.sort(will_do[np.argsort(room.gpu[0][will_do], kind="stable")[: shape.gpus]])
    return tuple(will_do[: shape.gpus].tolist())

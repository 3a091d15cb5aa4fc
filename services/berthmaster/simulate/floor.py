"""The nodes of a fleet as the baselines see them: free CPU, memory and milli of each GPU.

It is separate from the engine's arrays on purpose: a baseline that shared the code of what it is
compared with would share its faults. Each rule of placement is a score of a node for one shape of
pod, the least wins, ties go to the first node. Scores are kept per rule and shape and brought up to
date only for nodes that changed since.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from berthmaster.emulator.fleets import ClusterSpec, NodeSpec, gpu_memory_mib
from berthmaster.messages.workload import JobRequest, PodSet

WHOLE: Final = 1000
NOWHERE: Final = math.inf


class Node:
    """One node and what is free on it."""

    __slots__ = ("cluster", "cpu", "gpu", "labels", "memory", "memory_a_gpu", "spec")

    def __init__(self, cluster: str, spec: NodeSpec, labels: dict[str, str]) -> None:
        self.cluster = cluster
        self.spec = spec
        self.labels = labels
        self.memory_a_gpu = gpu_memory_mib(spec.model) if spec.gpus else 0
        self.cpu = spec.cpu_milli
        self.memory = spec.memory_mib
        self.gpu = [WHOLE] * spec.gpus

    def empty(self) -> None:
        """Nothing runs on it."""
        self.cpu = self.spec.cpu_milli
        self.memory = self.spec.memory_mib
        self.gpu = [WHOLE] * self.spec.gpus


class Seat(NamedTuple):
    """What one pod has."""

    node: int
    cpu: int
    memory: int
    milli: int
    gpus: tuple[int, ...]


class Shape(NamedTuple):
    """What a node is asked for: equal shapes fit equally."""

    cpu: int
    memory: int
    gpus: int
    milli: int
    models: tuple[str, ...]
    gpu_memory: int
    labels: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, pods: PodSet) -> "Shape":
        """Of one pod of a set."""
        return cls(
            pods.cpu_milli,
            pods.memory_mib,
            pods.gpus,
            pods.gpu_milli if pods.gpus else 0,
            pods.gpu_models,
            pods.gpu_memory_mib,
            tuple(sorted(pods.node_labels.items())),
        )


Score = Callable[[Node, Shape], float]  # of a node on which the shape fits; the least is taken


def suits(node: Node, shape: Shape) -> bool:
    """Whether the shape could ever run there."""
    if shape.gpus and (
        (shape.models and node.spec.model not in shape.models)
        or node.memory_a_gpu < shape.gpu_memory
    ):
        return False
    return all(node.labels.get(key) == value for key, value in shape.labels)


def fits(node: Node, shape: Shape) -> bool:
    """Whether there is room now."""
    if node.cpu < shape.cpu or node.memory < shape.memory:
        return False
    if not shape.gpus:
        return True
    return sum(free >= shape.milli for free in node.gpu) >= shape.gpus


def choose(node: Node, shape: Shape) -> tuple[int, ...]:
    """The GPUs that a pod takes there: the fullest that will do."""
    will_do = [i for i, free in enumerate(node.gpu) if free >= shape.milli]
    will_do.sort(key=lambda i: (node.gpu[i], i))
    return tuple(sorted(will_do[: shape.gpus]))


class Floor:
    """All nodes."""

    def __init__(self, clusters: Sequence[ClusterSpec]) -> None:
        self.nodes = [
            Node(cluster.name, spec, cluster.node_labels(spec))
            for cluster in clusters
            for spec in cluster.nodes
        ]
        names = [node.cluster for node in self.nodes]
        self.clusters = {
            cluster.name: slice(
                names.index(cluster.name), names.index(cluster.name) + len(cluster.nodes)
            )
            for cluster in clusters
        }
        self.gpus = sum(node.spec.gpus for node in self.nodes)
        self._changed: list[int] = []  # nodes, in the order in which they changed
        self._boards: dict[tuple[Score, Shape], tuple[NDArray[np.float64], list[int]]] = {}
        self._suits: dict[tuple[tuple[str, ...], int, tuple[tuple[str, str], ...]], list[bool]] = {}

    @property
    def free_milli(self) -> int:
        """Of all GPUs."""
        return sum(sum(node.gpu) for node in self.nodes)

    # Taking and giving back

    def take(self, seat: Seat) -> None:
        """Charge one pod."""
        self._charge(seat, -1)

    def give_back(self, seats: Iterable[Seat]) -> None:
        """Free what pods had."""
        for seat in seats:
            self._charge(seat, +1)

    def _charge(self, seat: Seat, sign: int) -> None:
        node = self.nodes[seat.node]
        node.cpu += sign * seat.cpu
        node.memory += sign * seat.memory
        for index in seat.gpus:
            node.gpu[index] += sign * seat.milli
        self._changed.append(seat.node)

    def empty(self) -> None:
        """Nothing runs anywhere."""
        for number, node in enumerate(self.nodes):
            node.empty()
            self._changed.append(number)

    # Finding room

    def scores(self, shape: Shape, score: Score) -> NDArray[np.float64]:
        """Of every node, NOWHERE where the shape does not fit. Not to be written to."""
        board = self._boards.get((score, shape))
        if board is None:
            values = np.full(len(self.nodes), NOWHERE)
            stale: Iterable[int] = range(len(self.nodes))
            seen = [len(self._changed)]
            self._boards[score, shape] = values, seen
        else:
            values, seen = board
            stale = set(self._changed[seen[0] :])
            seen[0] = len(self._changed)
        suitable = self._suitable(shape)
        for number in stale:
            node = self.nodes[number]
            ok = suitable[number] and fits(node, shape)
            values[number] = score(node, shape) if ok else NOWHERE
        return values

    def _suitable(self, shape: Shape) -> list[bool]:
        what = (shape.models if shape.gpus else (), shape.gpu_memory, shape.labels)
        known = self._suits.get(what)
        if known is None:
            known = self._suits[what] = [suits(node, shape) for node in self.nodes]
        return known

    def seat(
        self, request: JobRequest, score: Score, spare: "dict[int, Node] | None" = None
    ) -> tuple[Seat, ...] | None:
        """Take room for all pods in one cluster, or leave all as it was. ``spare``: nodes on which
        there is less room for this job than it seems."""
        for within in self.clusters.values():
            seats: list[Seat] = []
            for pods in sorted(
                request.pod_sets, key=lambda p: (-p.gpus * p.gpu_milli, -p.cpu_milli)
            ):
                shape = Shape.of(pods)
                for _ in range(pods.count):
                    found = self._best(shape, score, within, spare)
                    if found is None:
                        break
                    self.take(found)
                    seats.append(found)
                else:
                    continue
                break
            else:
                return tuple(seats)
            self.give_back(seats)
        return None

    def _best(
        self, shape: Shape, score: Score, within: slice, spare: "dict[int, Node] | None"
    ) -> Seat | None:
        values = self.scores(shape, score)[within]
        if spare:
            values = values.copy()
            for number, node in spare.items():
                at = number - within.start
                if 0 <= at < len(values) and not (
                    values[at] < NOWHERE and fits(narrowed(self.nodes[number], node), shape)
                ):
                    values[at] = NOWHERE
        best = int(values.argmin()) if len(values) else 0
        if not len(values) or values[best] == NOWHERE:
            return None
        number = within.start + best
        node = self.nodes[number]
        if spare and number in spare:
            node = narrowed(node, spare[number])
        return Seat(number, shape.cpu, shape.memory, shape.milli, choose(node, shape))


def narrowed(node: Node, spare: Node) -> Node:
    """The room that there is now and will still be: the lesser of both."""
    both = Node(node.cluster, node.spec, node.labels)
    both.cpu = min(node.cpu, spare.cpu)
    both.memory = min(node.memory, spare.memory)
    both.gpu = [min(now, later) for now, later in zip(node.gpu, spare.gpu, strict=True)]
    return both


def copied(node: Node) -> Node:
    """The same room, to be changed."""
    other = Node(node.cluster, node.spec, node.labels)
    other.cpu, other.memory, other.gpu = node.cpu, node.memory, list(node.gpu)
    return other


def charge(node: Node, seat: Seat) -> None:
    """Take a seat's room of a copy."""
    node.cpu -= seat.cpu
    node.memory -= seat.memory
    for index in seat.gpus:
        node.gpu[index] -= seat.milli

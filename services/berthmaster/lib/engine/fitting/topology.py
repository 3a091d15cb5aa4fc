"""Topology of a gang: which nodes its pod sets may use, and how many.

Example: 16 pods request ``same: topology.kubernetes.io/zone``. Zone a has capacity for 20 pods, b
for 17 and c for 12. Zone b is tried first, then a. Zone c is left out.

Rules of this file:

- A domain is a value of a node label, or one node. Pod sets with the same label share one domain. A
  node without the label belongs to none.
- Domains with capacity for all pods (a bound, where several sets share one) are tried by least
  spare capacity, then by the better node. A cluster without a fit in the first ``PLACES_TRIED``
  domains counts as full, because a decision must end.
- A TPU slice of several nodes uses one node pool. Equal sets take one pool each.
- For few nodes: the next node holds all remaining pods, best score first, else as many as possible.
  For equal pods alone no other way needs fewer nodes.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, combinations, islice, product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from berthmaster.lib.engine.fleet.fleet import WHOLE, Fleet
from berthmaster.lib.engine.fleet.needs import NO_PLACE, Suitable, kind_of
from berthmaster.lib.engine.fleet.pieces import makes_slice, pieces_on, place_label
from berthmaster.lib.engine.fleet.shares import counted, wants_fraction
from berthmaster.lib.engine.scoring.score_cache import room_of
from berthmaster.lib.engine.scoring.value import NOT_HERE, Worth, score_nodes
from berthmaster.lib.messages.fleet import GpuDevice
from berthmaster.lib.messages.workload import MAX_PODS, ONE_NODE, PodSet

PLACES_TRIED: Final = 64
TOO_FEW_NODES: Final = "too few nodes for its pods, even if nothing ran there"
NO_LARGE_PLACE: Final = "no place large enough for its pods, even if nothing ran there"
TOO_FEW_HEALTHY: Final = "too few GPUs a node even if nothing ran there, as others are unhealthy"
TOO_LITTLE_CPU: Final = "too few CPUs a node, even if nothing ran there"
TOO_LITTLE_MEMORY: Final = "too little memory a node, even if nothing ran there"

Mask = NDArray[np.bool_]  # nodes of a cluster


def shaped(pod_sets: Sequence[PodSet]) -> bool:
    """Whether a set says how its pods are to stand to each other."""
    return any(pods.topology is not None or makes_slice(pods) for pods in pod_sets)


def choices(
    fleet: Fleet,
    cluster: int,
    pod_sets: Sequence[PodSet],
    suitables: Sequence[Suitable],
    worth: Worth,
) -> Iterator[tuple[Mask | None, ...]]:
    """Yield the nodes for each set, one choice of domains after another, best first."""
    of_label: dict[str, list[int]] = {}  # sets that share a domain
    of_kind: dict[bytes, list[int]] = {}  # equal slices, a domain each
    for index, pods in enumerate(pod_sets):
        if makes_slice(pods):
            of_kind.setdefault(kind_of(pods), []).append(index)
        elif pods.topology is not None and pods.topology.same:
            of_label.setdefault(pods.topology.same, []).append(index)
    ways: list[list[tuple[tuple[int, Mask], ...]]] = []  # options of each, best first
    for label, sets in of_label.items():
        found = _places(fleet, cluster, label, [(pod_sets[i], suitables[i]) for i in sets], worth)
        ways.append([tuple((i, mask) for i in sets) for mask in found])
    for sets in of_kind.values():
        first = pod_sets[sets[0]], suitables[sets[0]]
        found = _places(fleet, cluster, place_label(first[0]), [first], worth)
        several = islice(combinations(found, len(sets)), PLACES_TRIED)
        ways.append([tuple(zip(sets, masks, strict=True)) for masks in several])
    for chosen in islice(product(*ways), PLACES_TRIED):
        within: list[Mask | None] = [None] * len(pod_sets)
        for index, mask in chain.from_iterable(chosen):
            within[index] = mask
        yield tuple(within)


def _places(
    fleet: Fleet,
    cluster: int,
    label: str,
    sets: Sequence[tuple[PodSet, Suitable]],
    worth: Worth,
) -> list[Mask]:
    """Return domains that may have capacity for all these sets, best first."""
    at = slice(*fleet.span(cluster))
    count = at.stop - at.start
    place = np.arange(count)
    if label != ONE_NODE:
        place = np.full(count, NO_PLACE, np.int64)
        for _, suitable in sets:
            assert suitable.places is not None  # set for every set with a label
            place = np.maximum(place, suitable.places[at])
    inside = place > NO_PLACE
    if not inside.any():
        return []
    of_place = place[inside]
    places = int(of_place.max()) + 1

    def total(amounts: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.bincount(of_place, amounts[inside], places).astype(np.int64)

    fits = _together(fleet, at, sets, total)
    pods, suitable = max(sets, key=lambda each: each[0].count * max(1, each[0].gpus))
    spare = np.zeros(places, np.int64)
    for each, its in sets:
        room = np.minimum(room_of(fleet, each, its, at), most_a_node(each))
        left = total(room) - each.count
        fits &= left >= 0
        if each is pods:
            spare = left
    best = np.full(places, NOT_HERE, np.float32)
    np.maximum.at(best, of_place, score_nodes(fleet, pods, suitable, worth, at)[inside])
    found = np.flatnonzero(fits)
    order = np.lexsort((found, -best[found], spare[found]))
    return [place == number for number in found[order][:PLACES_TRIED].tolist()]


def _together(
    fleet: Fleet,
    at: slice,
    sets: Sequence[tuple[PodSet, Suitable]],
    total: Callable[[NDArray[np.int64]], NDArray[np.int64]],
) -> Mask:
    """Places with CPU, memory and GPUs for all pods of these sets: each set alone may fit."""
    cpu = sum(pods.count * pods.cpu_milli for pods, _ in sets)
    memory = sum(pods.count * pods.memory_mib for pods, _ in sets)
    milli = sum(pods.count * pods.gpus * pods.gpu_milli for pods, _ in sets)
    usable = fleet.arrays.open[at]
    fits: Mask = total(np.where(usable, np.maximum(fleet.arrays.cpu[at], 0), 0)) >= cpu
    fits &= total(np.where(usable, np.maximum(fleet.arrays.memory[at], 0), 0)) >= memory
    fits &= total(np.where(usable, fleet.arrays.milli[at], 0)) >= milli
    return fits


def most_a_node(pods: PodSet) -> int:
    """How many pods of the set one node may have."""
    limit = pods.topology.max_pods_a_node if pods.topology is not None else 0
    return limit or MAX_PODS


def never(
    fleet: Fleet, cluster: int, pod_sets: Sequence[PodSet], suitables: Sequence[Suitable]
) -> str:
    """Return why the cluster could not take a gang even when empty; "" if it might.

    For explanations only, because every suitable node is examined until the capacity suffices.
    Nodes that are not ready or cordoned count, because they may come back. Unhealthy GPUs do not
    count.
    """
    first, last = fleet.span(cluster)
    for pods, suitable in zip(pod_sets, suitables, strict=True):
        one_node = pods.topology is not None and pods.topology.same == ONE_NODE
        rooms: dict[int, int] = {}
        for slot in (first + np.flatnonzero(suitable.nodes[first:last])).tolist():
            place = slot if one_node else 0
            if suitable.places is not None:
                place = int(suitable.places[slot])
            rooms[place] = rooms.get(place, 0) + _empty_room(fleet, slot, pods, suitable)
            if rooms[place] >= pods.count:
                break
        else:
            if not any(rooms.values()) and (lack := _closest_lack(fleet, cluster, pods, suitable)):
                return lack
            same = ONE_NODE if one_node else place_label(pods)
            return f"{NO_LARGE_PLACE} ({same})" if same else TOO_FEW_NODES
    return TOO_FEW_NODES if len(pod_sets) > 1 and _exceed(fleet, cluster, pod_sets) else ""


def _empty_room(fleet: Fleet, slot: int, pods: PodSet, suitable: Suitable) -> int:
    """A bound on what the node would hold if nothing ran there."""
    report = fleet.report_at(slot)
    room = most_a_node(pods)
    if pods.cpu_milli:
        room = min(room, report.allocatable.cpu_milli // pods.cpu_milli)
    if pods.memory_mib:
        room = min(room, report.allocatable.memory_mib // pods.memory_mib)
    if pods.gpus:
        milli = suitable.milli(slot, pods)
        gpus = len(_usable_gpus(fleet, slot, pods, suitable))
        room = min(room, gpus * (WHOLE // milli) // pods.gpus)
    there = dict(pieces_on(report)) | {
        share.resource: share.count for share in report.shares if counted(share)
    }
    for name, count, nodes in suitable.pieces:
        if nodes is None or nodes[slot]:
            room = min(room, there.get(name, 0) // count)
    return room


def _usable_gpus(fleet: Fleet, slot: int, pods: PodSet, suitable: Suitable) -> list[GpuDevice]:
    """GPUs that pods of the set could have if nothing ran there."""
    may = None if suitable.gpus is None else suitable.gpus[slot]
    return [
        gpu
        for at, gpu in enumerate(fleet.report_at(slot).gpus)
        if gpu.healthy
        and (may is None or may[at])
        and not (gpu.parts_only and not wants_fraction(pods))
    ]


def _closest_lack(fleet: Fleet, cluster: int, pods: PodSet, suitable: Suitable) -> str:
    """Return the missing requirement on the node that comes closest; "" if unknown."""
    first, last = fleet.span(cluster)
    found: list[tuple[int, int, str]] = []
    for slot in (first + np.flatnonzero(suitable.nodes[first:last])).tolist():
        report = fleet.report_at(slot)
        there = report.allocatable
        usable = len(_usable_gpus(fleet, slot, pods, suitable))
        if usable < pods.gpus:
            ill = sum(not gpu.healthy for gpu in report.gpus)
            parts = sum(gpu.parts_only for gpu in report.gpus if gpu.healthy)
            others = [(ill, "unhealthy"), (0 if wants_fraction(pods) else parts, "shared or cut")]
            told = ", ".join(f"{number} {what}" for number, what in others if number)
            why = TOO_FEW_HEALTHY if not others[1][0] else f"{TOO_FEW_HEALTHY}, shared or cut"
            found.append((0, -usable, f"{why} ({usable} of {len(report.gpus)}: {told})"))
        elif there.cpu_milli < pods.cpu_milli:
            found.append((1, 0, f"{TOO_LITTLE_CPU} ({there.cpu_milli / 1000:g})"))
        elif there.memory_mib < pods.memory_mib:
            found.append((2, 0, f"{TOO_LITTLE_MEMORY} ({there.memory_mib} MiB)"))
    return max(found, default=(0, 0, ""), key=lambda each: (each[0], -each[1]))[2]


def _exceed(fleet: Fleet, cluster: int, pod_sets: Sequence[PodSet]) -> bool:
    """Return whether sets that fit alone exceed the nodes of the cluster together."""
    first, last = fleet.span(cluster)
    reports = [fleet.report_at(slot) for slot in range(first, last)]
    usable = [gpu for report in reports for gpu in report.gpus if gpu.healthy]
    whole = sum(not gpu.parts_only for gpu in usable)
    return (
        sum(p.count * p.cpu_milli for p in pod_sets) > sum(r.allocatable.cpu_milli for r in reports)
        or sum(p.count * p.memory_mib for p in pod_sets)
        > sum(r.allocatable.memory_mib for r in reports)
        or sum(p.count * p.gpus * p.gpu_milli for p in pod_sets) > WHOLE * len(usable)
        or sum(p.count * p.gpus for p in pod_sets if not wants_fraction(p)) > whole
    )


class Chooser:
    """Choose a node for each pod of a set in turn: the cheapest that the topology allows."""

    def __init__(
        self,
        fleet: Fleet,
        at: slice,
        pods: PodSet,
        suitable: Suitable,
        scores: NDArray[np.float32],
        within: Mask | None,
    ) -> None:
        self.scores = scores  # changed in place
        if within is not None:
            scores[~within] = NOT_HERE
        self._limit = most_a_node(pods)
        self._has: dict[int, int] = {}
        self._left = pods.count
        self._at = -1
        self._room: NDArray[np.int64] | None = None
        if pods.topology is not None and pods.topology.nodes == "fewest":
            room = np.minimum(room_of(fleet, pods, suitable, at), self._limit)
            self._room = np.where(scores > NOT_HERE, room, 0)

    def next(self) -> int:
        """Number of the node among the cluster's, or -1 if there is none."""
        at = self._at
        if self._room is None or at < 0 or self.scores[at] == NOT_HERE:
            scores = self.scores
            if self._room is not None:
                enough = self._room >= min(self._left, int(self._room.max(initial=0)))
                scores = np.where(enough, scores, np.float32(NOT_HERE))
            at = self._at = int(scores.argmax())
        return at if self.scores[at] > NOT_HERE else -1

    def took(self, at: int, score: np.float32 | float) -> None:
        self._left -= 1
        has = self._has[at] = self._has.get(at, 0) + 1
        self.scores[at] = score if has < self._limit else NOT_HERE
        if self._room is not None and self.scores[at] == NOT_HERE:
            self._room[at] = 0

"""How the pods of a gang are to stand to each other: which nodes they may share, and how many do.

Rules of this file:

- A place is what a label of nodes has as its value, or one node. Who names the same label shares
  one place; a node without the label is in none, whatever else it is.
- Of the places that have room for all pods (a bound where several sets share one) the one is tried
  first that has least to spare, then the one with the better node. A cluster that has no seat in
  the first ``PLACES_TRIED`` of them is taken to be full: a decision must end.
- A TPU slice of several nodes is in a node pool of its own: sets that are alike take as many pools
  as they are.
- Few nodes: the next node is one that holds all pods that are left, the best of those, else one
  that holds most of them. For equal pods on their own there is no way with fewer.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, combinations, islice, product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from berthmaster.engine.fleet.fleet import WHOLE, Fleet
from berthmaster.engine.fleet.needs import NO_PLACE, Suitable, kind_of
from berthmaster.engine.fleet.pieces import makes_slice, pieces_of, pieces_on, place_label
from berthmaster.engine.scoring.room import room_of
from berthmaster.engine.scoring.value import NOT_HERE, Worth, score_nodes
from berthmaster.messages.workload import MAX_PODS, ONE_NODE, PodSet

PLACES_TRIED: Final = 64
TOO_FEW_NODES: Final = "too few nodes for its pods, even if nothing ran there"
NO_LARGE_PLACE: Final = "no place large enough for its pods, even if nothing ran there"

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
    """The nodes that each set may use, for one choice of places after the other, best first."""
    of_label: dict[str, list[int]] = {}  # the sets that share a place
    of_kind: dict[bytes, list[int]] = {}  # slices that are alike, a place each
    for index, pods in enumerate(pod_sets):
        if makes_slice(pods):
            of_kind.setdefault(kind_of(pods), []).append(index)
        elif pods.topology is not None and pods.topology.same:
            of_label.setdefault(pods.topology.same, []).append(index)
    ways: list[list[tuple[tuple[int, Mask], ...]]] = []  # of each of them, best first
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
    """Places that may have room for all these sets, best first."""
    at = slice(*fleet.span(cluster))
    count = at.stop - at.start
    place = np.arange(count)
    if label != ONE_NODE:
        place = np.full(count, NO_PLACE, np.int64)
        for _, suitable in sets:
            assert suitable.places is not None  # as all that name a label
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
    """Why the cluster could not take a gang if it were empty, "" if each set alone could be had.
    It looks at every node: for people who ask, not for decisions."""
    first, last = fleet.span(cluster)
    for pods, suitable in zip(pod_sets, suitables, strict=True):
        if not shaped((pods,)):
            continue
        one_node = pods.topology is not None and pods.topology.same == ONE_NODE
        rooms: dict[int, int] = {}
        for slot in range(first, last):
            if suitable.nodes[slot]:
                place = slot if one_node else 0
                if suitable.places is not None:
                    place = int(suitable.places[slot])
                rooms[place] = rooms.get(place, 0) + _empty_room(fleet, slot, pods, suitable)
        if max(rooms.values(), default=0) < pods.count:
            same = ONE_NODE if one_node else place_label(pods)
            return f"{NO_LARGE_PLACE} ({same})" if same else TOO_FEW_NODES
    return ""


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
        room = min(room, len(report.gpus) * (WHOLE // milli) // pods.gpus)
    there = dict(pieces_on(report))
    for name, count in pieces_of(pods):
        room = min(room, there.get(name, 0) // count)
    return room


class Chooser:
    """The node for each pod of a set, one after the other: where it costs least, as far as its
    topology lets."""

    def __init__(
        self,
        fleet: Fleet,
        at: slice,
        pods: PodSet,
        suitable: Suitable,
        scores: NDArray[np.float32],
        within: Mask | None,
    ) -> None:
        self.scores = scores  # of the nodes of the cluster; they are changed
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
        """A pod went there, which scores so now."""
        self._left -= 1
        has = self._has[at] = self._has.get(at, 0) + 1
        self.scores[at] = score if has < self._limit else NOT_HERE
        if self._room is not None and self.scores[at] == NOT_HERE:
            self._room[at] = 0

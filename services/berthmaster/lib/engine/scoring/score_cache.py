"""Scorecards: scores of all nodes for one kind of pod, updated in place.

Between two pods of a kind few nodes change, so only those are scored again, at the next request for
the kind. Each card also keeps the best node of each cluster, and searches again only if that node
got worse. ``score_all`` and its maximum are the slow and simple twin for tests.

``PodCapacity`` counts in the same way how many pods of a kind nodes can hold, which decides whether
a gang can fit at all. It is counted for one set of pods alone. Then it is exact, as each pod takes
the same, be it CPU, a part of some GPU or GPUs of one domain; beside other pods it is a bound.

If compiled, one call into C updates a card with equal numbers.

Bounded: as many cards as a cache keeps, 4 bytes a node each, and 2 bytes a node for each capacity;
the card not asked for longest goes.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from berthmaster.lib.engine.fleet.fleet import WHOLE, Fleet
from berthmaster.lib.engine.fleet.needs import Suitable
from berthmaster.lib.engine.fleet.pieces import makes_slice
from berthmaster.lib.engine.fleet.shares import wants_fraction
from berthmaster.lib.engine.scoring.cluster_scores import Costs, fit_costs
from berthmaster.lib.engine.scoring.compiled import COMPILED, cards, nodes_of
from berthmaster.lib.engine.scoring.value import (
    LEFT_OVER_A_GPU,
    NEVER_SCARCE,
    NOT_HERE,
    At,
    Worth,
    free_of_each_domain,
    own_gpus,
    score_all,
    score_nodes,
    together,
)
from berthmaster.lib.messages.workload import MAX_PODS, PodSet, Topology


def room_of(fleet: Fleet, pods: PodSet, suitable: Suitable, at: At) -> NDArray[np.int64]:
    """Of some nodes, how many pods of the set each can hold; at most ``MAX_PODS``."""
    cpu = fleet.arrays.cpu[at]
    room = np.full(len(cpu), MAX_PODS, np.int64)
    if pods.cpu_milli:
        np.minimum(room, cpu // pods.cpu_milli, out=room)
    if pods.memory_mib:
        np.minimum(room, fleet.arrays.memory[at] // pods.memory_mib, out=room)
    if wants_fraction(pods):
        _parts(fleet, pods, suitable, at, room)
    elif pods.gpus:
        np.minimum(room, _whole(fleet, pods, suitable, at), out=room)
    if suitable.pieces:
        np.minimum(room, suitable.pods_by_pieces(fleet, at), out=room)
    open_ = suitable.nodes[at] & fleet.arrays.open[at] & (cpu >= pods.cpu_milli)
    open_ &= fleet.arrays.memory[at] >= pods.memory_mib  # overdrawn nodes have capacity for 0
    room[~open_ | (room < 0)] = 0
    return room


def _whole(fleet: Fleet, pods: PodSet, suitable: Suitable, at: At) -> NDArray[np.int64]:
    whole: NDArray[np.int64] = fleet.arrays.whole[at]
    if suitable.domains is not None:
        whole = (free_of_each_domain(fleet, suitable, at) // pods.gpus).sum(axis=1)
        return whole  # noqa: RET504 - its type is known
    if suitable.gpus is not None:
        whole = ((fleet.arrays.gpu[at] >= WHOLE) & suitable.gpus[at]).sum(axis=1)
    return whole // pods.gpus


def _parts(fleet: Fleet, pods: PodSet, suitable: Suitable, at: At, room: NDArray[np.int64]) -> None:
    free = np.maximum(fleet.arrays.gpu[at], 0)
    if suitable.gpus is not None:
        free = np.where(suitable.gpus[at], free, 0)
    need: int | NDArray[np.int64] = pods.gpu_milli
    if suitable.offered is not None:
        need = suitable.offered[at][:, np.newaxis]
    np.minimum(room, (free // need).sum(axis=1), out=room)


class PodCapacity:
    """Capacity of all nodes in pods, with a sum for each cluster."""

    __slots__ = ("_seen", "clusters", "layout", "nodes")

    def __init__(self) -> None:
        self.nodes: NDArray[np.int16] = np.zeros(0, np.int16)
        self.clusters: NDArray[np.int64] = np.zeros(0, np.int64)
        self.layout = -1  # layout of the fleet at the computation
        self._seen = 0  # where the log of touched slots ended

    def follow(
        self,
        fleet: Fleet,
        pods: PodSet,
        suitable: Suitable,
        nodes: "cards.Nodes | None" = None,
        ask: "cards.Ask | None" = None,
    ) -> None:
        """Update the counts. ``nodes``, ``ask``: inputs for C; None = use numpy."""
        if nodes is not None and ask is not None:
            self._follow_compiled(fleet, nodes, ask)
            return
        changed: NDArray[np.int64] | None = None
        if self.layout == fleet.layout:
            changed = fleet.touched.since(self._seen)
        self._seen = fleet.touched.end
        if changed is None or len(changed) > _FEW * len(self.nodes):
            self.layout = fleet.layout
            room = room_of(fleet, pods, suitable, slice(None))
            self.nodes = room.astype(np.int16)
            self.clusters = np.add.reduceat(room, fleet.arrays.starts) if len(room) else room
        elif len(changed):
            room = room_of(fleet, pods, suitable, changed)
            more = room - self.nodes[changed]
            self.nodes[changed] = room
            np.add.at(self.clusters, fleet.arrays.cluster_of[changed], more)

    def _follow_compiled(self, fleet: Fleet, nodes: "cards.Nodes", ask: "cards.Ask") -> None:
        seen, gone, end = self._seen, fleet.touched.forgotten, fleet.touched.end
        self._seen = end
        first = seen - gone
        if self.layout != fleet.layout:
            self.layout = fleet.layout
            self.nodes = np.zeros(len(fleet.names), np.int16)
            self.clusters = np.zeros(len(fleet.clusters), np.int64)
            first = -1
        if first != end - gone:
            into = self.nodes, self.clusters
            cards.room(nodes, ask, *into, MAX_PODS, max(first, -1), end - gone, gone)


CARDS_KEPT: Final = 160
_FREELY: Final = Topology()
_FEW: Final = 0.25  # of the nodes: when more have changed, all are scored


def ask_of(pods: PodSet, suitable: Suitable, worth: Worth) -> "cards.Ask | None":
    """Return a kind of pod for _cards.c; None for kinds that only numpy knows, such as GPUs of one
    domain. See ``score_nodes``.
    """
    if suitable.offered is not None or suitable.domains is not None or suitable.pieces:
        return None
    fraction = wants_fraction(pods)
    takes = pods.gpu_milli * (1.0 / WHOLE) if fraction else float(pods.gpus)
    slope, offset = together(pods.gpus)
    scarce = worth.cpu_milli_a_gpu > NEVER_SCARCE
    a_cpu = 1.0 / worth.cpu_milli_a_gpu if scarce else 0.0
    return cards.Ask(
        nodes=suitable.nodes,
        gpus=suitable.gpus,
        losses=worth.losses(pods.gpu_milli) if fraction else None,
        dear=worth.dear.factor,
        breaks=worth.dear.breaks(pods.gpus) if pods.gpus else None,
        cpu_milli=pods.cpu_milli,
        memory_mib=pods.memory_mib,
        gpu_count=pods.gpus,
        gpu_milli=pods.gpu_milli,
        takes=takes,
        left_over=LEFT_OVER_A_GPU,
        slope=slope,
        offset=offset,
        a_cpu=a_cpu,
        short_of_cpu=pods.cpu_milli * a_cpu - takes,
        own=own_gpus(pods),
    )


class Scorecard:
    """Of one kind of pod: every node's score, and the best node of each cluster."""

    __slots__ = ("ask", "best", "best_slot", "costs", "nodes", "room", "scores", "seen", "worth")

    def __init__(self, fleet: Fleet) -> None:
        self.scores: NDArray[np.float32] = np.empty(len(fleet.names), np.float32)
        # Of each cluster; NOT_HERE = no room. The slot is the first of the best.
        self.best: NDArray[np.float32] = np.empty(len(fleet.clusters), np.float32)
        self.best_slot: NDArray[np.int64] = np.empty(len(fleet.clusters), np.int64)
        self.worth: Worth | None = None  # worth used for the scores
        self.costs = Costs(0.0, 0.0)  # scale of the best nodes' scores, from the worth
        self.seen = 0  # where the log of touched slots ended
        self.room: PodCapacity | None = None  # computed for the first gang
        self.ask: cards.Ask | None = None  # input for C; None = use numpy
        self.nodes: cards.Nodes | None = None

    def room_for(self, fleet: Fleet, pods: PodSet, suitable: Suitable) -> PodCapacity:
        """How many pods of the kind nodes and clusters can hold, up to date."""
        if self.room is None:
            self.room = PodCapacity()
        self.room.follow(fleet, pods, suitable, self.nodes, self.ask)
        return self.room

    def follow(
        self,
        fleet: Fleet,
        pods: PodSet,
        suitable: Suitable,
        worth: Worth,
        nodes: "cards.Nodes | None",
    ) -> None:
        """Update the card. The layout of the fleet is unchanged since the card was begun.
        ``nodes``: arrays for C; None = use numpy.
        """
        self.nodes = nodes
        touched = fleet.touched
        seen, self.seen = self.seen, touched.end
        gone, holds = touched.forgotten, self._still_holds(pods, suitable, worth)
        if holds and nodes is not None and self.ask is not None and seen >= gone:
            if seen < self.seen:
                arrays = self.scores, self.best, self.best_slot
                cards.update(nodes, self.ask, *arrays, seen - gone, self.seen - gone, gone)
            return
        changed = touched.since(seen) if holds else None
        if changed is None or len(changed) > _FEW * len(self.scores):
            self._make(fleet, pods, suitable, worth, nodes)
        elif len(changed):
            self._update(fleet, pods, suitable, worth, changed)

    def _still_holds(self, pods: PodSet, suitable: Suitable, worth: Worth) -> bool:
        """Return whether learned data still gives the same scores."""
        if self.worth is worth:
            return True
        if self.worth is None or not self.worth.same_for(pods, suitable, worth):
            return False
        self._learn(pods, worth)
        return True

    def _learn(self, pods: PodSet, worth: Worth) -> None:
        self.worth, self.costs = worth, fit_costs(pods, worth)

    def _make(
        self,
        fleet: Fleet,
        pods: PodSet,
        suitable: Suitable,
        worth: Worth,
        nodes: "cards.Nodes | None",
    ) -> None:
        self._learn(pods, worth)
        self.ask = ask_of(pods, suitable, worth) if nodes is not None else None
        if nodes is not None and self.ask is not None:
            cards.make(nodes, self.ask, self.scores, self.best, self.best_slot)
            return
        self.scores[:] = score_all(fleet, pods, suitable, worth)
        for cluster in range(len(fleet.clusters)):
            self._look(fleet, cluster)

    def _update(
        self, fleet: Fleet, pods: PodSet, suitable: Suitable, worth: Worth, at: NDArray[np.int64]
    ) -> None:
        scores = score_nodes(fleet, pods, suitable, worth, at)
        self.scores[at] = scores
        best, best_slot = self.best, self.best_slot
        clusters = fleet.arrays.cluster_of[at]
        # Only where a best node changed, or a node is now as good as the best, is there news.
        news = scores >= best[clusters]
        news &= scores > NOT_HERE
        news |= best_slot[clusters] == at
        told = news.nonzero()[0]
        if not len(told):
            return
        again: set[int] = set()
        for slot, score, cluster in zip(
            at[told].tolist(), scores[told].tolist(), clusters[told].tolist(), strict=True
        ):
            if cluster in again:
                continue
            if slot == best_slot[cluster]:
                if score < best[cluster]:
                    again.add(cluster)
                else:
                    best[cluster] = score
            elif score > best[cluster] or (score == best[cluster] and slot < best_slot[cluster]):
                best[cluster], best_slot[cluster] = score, slot
        for cluster in again:
            self._look(fleet, cluster)

    def _look(self, fleet: Fleet, cluster: int) -> None:
        first, last = fleet.span(cluster)
        at = first + int(self.scores[first:last].argmax())
        self.best_slot[cluster], self.best[cluster] = at, self.scores[at]


def can_seat(
    fleet: Fleet, cluster: int, pod_sets: Sequence[PodSet], of_sets: Sequence[Scorecard]
) -> bool:
    """Whether C knows how to seat a gang in a cluster: by the GPUs' columns, where the pods need
    not stand to each other in any way but that a node has so many at most."""
    if not fleet.columns_only[cluster]:
        return False
    if any(card.ask is None or card.nodes is None for card in of_sets):
        return False
    return all(
        not makes_slice(pods)
        and (topology := pods.topology or _FREELY).same == ""
        and not topology.nodes
        and not topology.gpu_domain
        for pods in pod_sets
    )


def seats(
    span: tuple[int, int], sets: Sequence[tuple[PodSet, Scorecard]]
) -> list[list[tuple[int, tuple[int, ...]]]] | None:
    """Return slot and GPUs for each pod of these sets, by C; None without capacity for all."""
    asks = []
    for pods, card in sets:
        assert card.ask is not None  # checked by ``can_seat``
        most = (pods.topology or _FREELY).max_pods_a_node or MAX_PODS
        asks.append((card.ask, pods.count, most))
    nodes = sets[0][1].nodes
    assert nodes is not None
    return cards.seat(nodes, tuple(asks), *span)


def seat_of_one(fleet: Fleet, slot: int, card: Scorecard) -> tuple[int, ...] | None:
    """Return GPUs for one pod on a node, by C; None if unsupported or too small."""
    if card.ask is None or card.nodes is None:
        return None
    if not fleet.columns_only[fleet.arrays.cells.cluster_of[slot]]:
        return None
    found = cards.seat(card.nodes, ((card.ask, 1, 1),), slot, slot + 1)
    return found[0][0][1] if found is not None else None


class ScoreCache:
    """Cards of the requested kinds of pods."""

    def __init__(self, cards_kept: int = CARDS_KEPT, *, compiled: bool = COMPILED) -> None:
        self._cards: OrderedDict[bytes, Scorecard] = OrderedDict()
        self._kept = cards_kept
        self._compiled = compiled
        self._layout = -1  # layout of the fleet of the cards
        self._nodes: cards.Nodes | None = None

    def card(
        self, fleet: Fleet, kind: bytes, pods: PodSet, suitable: Suitable, worth: Worth
    ) -> Scorecard:
        """The card of a kind of pod, up to date. The fleet must be arranged."""
        if self._layout != fleet.layout:
            self._cards.clear()
            self._layout = fleet.layout
        nodes = self._nodes
        # A copied cache has the same layout and other arrays, so compare the arrays.
        if self._compiled and (nodes is None or nodes.cpu is not fleet.arrays.cpu):
            nodes = self._nodes = nodes_of(fleet)
        card = self._cards.get(kind)
        if card is None:
            card = self._cards[kind] = Scorecard(fleet)
            if len(self._cards) > self._kept:
                self._cards.popitem(last=False)
        else:
            self._cards.move_to_end(kind)
        card.follow(fleet, pods, suitable, worth, nodes)
        return card

    @property
    def array_bytes(self) -> int:
        rooms = sum(c.room.nodes.nbytes for c in self._cards.values() if c.room is not None)
        return rooms + sum(card.scores.nbytes for card in self._cards.values())

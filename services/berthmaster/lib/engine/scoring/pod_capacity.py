"""How many pods of a kind nodes can hold: what decides whether a gang can fit at all.

It is counted for one set of pods alone. Then it is exact, as each pod takes the same, be it CPU, a
part of some GPU or GPUs of one domain; beside other pods it is a bound. Like a card
(score_cache.py) it is kept up to date instead of made anew: two bytes a node, and a sum for each
cluster.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from berthmaster.lib.engine.fleet.fleet import WHOLE, Fleet
from berthmaster.lib.engine.fleet.needs import Suitable, wants_fraction
from berthmaster.lib.engine.scoring.compiled import cards
from berthmaster.lib.engine.scoring.value import At, free_of_each_domain
from berthmaster.lib.messages.workload import MAX_PODS, PodSet

_FEW: Final = 0.25  # of the nodes: when more have changed, all are counted


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
    open_ &= (
        fleet.arrays.memory[at] >= pods.memory_mib
    )  # who has less than nothing, has no room for 0
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
    """The same of all nodes, and of each cluster their sum."""

    __slots__ = ("_seen", "clusters", "layout", "nodes")

    def __init__(self) -> None:
        self.nodes: NDArray[np.int16] = np.zeros(0, np.int16)
        self.clusters: NDArray[np.int64] = np.zeros(0, np.int64)
        self.layout = -1  # of the fleet that it was made for
        self._seen = 0  # where the log of touched slots ended

    def follow(
        self,
        fleet: Fleet,
        pods: PodSet,
        suitable: Suitable,
        nodes: "cards.Nodes | None" = None,
        ask: "cards.Ask | None" = None,
    ) -> None:
        """Bring it up to date. ``nodes``, ``ask``: for C; None = numpy does it."""
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

"""Capacity of attempts on the nodes of one cluster, as arrays: where preemption is cheapest.

Of a hundred thousand attempts a decision examines a few dozen nodes closely
(``preemption.cheapest_on``). This module estimates all nodes at once with a fast lower bound: on
each node either the cheapest attempts go until enough is free, or one large attempt goes alone.

Example: a node has one GPU free and attempts of 1, 2 and 4 GPUs that cost 10, 30 and 35. For a pod
of four GPUs the first two would cost 40, the third alone 35. So the node costs 35.

Rules of this file:

- Quantities are summed, as if GPU fragments were contiguous. A node that looks cheap may fail the
  closer check, and then the next is examined.
- Costs are whole GPU milliseconds. Ties go to the first node, so the result does not depend on the
  order of events.
- A row is one attempt's capacity on one node. A gang has its full cost on each of its nodes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from berthmaster.lib.engine.fleet.fleet import WHOLE, Fleet
from berthmaster.lib.engine.queueing.preemption import Loss, PodNeed
from berthmaster.lib.lifecycle.workload import Key

_FIRST_ROWS: Final = 16
_MOST_COST: Final = 1 << 50  # GPU milliseconds; more is as bad
_GONE: Final = -1

Ints = NDArray[np.int64]


class Takes(NamedTuple):
    """Capacity of an attempt on one node."""

    gpu_milli: int
    cpu_milli: int
    memory_mib: int


class HeldParts:
    def __init__(self) -> None:
        self._keys: list[Key] = []  # by row
        self._rows: dict[Key, list[int]] = {}
        self._free: list[int] = []  # unused rows
        self._kinds: dict[tuple[str, int], int] = {}  # queue, priority -> number
        self._nodes: dict[str, int] = {}  # name -> number
        self._slots: Ints = np.zeros(0, np.int64)  # by node's number
        self._layout = -1  # layout of the fleet at the last update
        self._ints: Ints = np.zeros((6, _FIRST_ROWS), np.int64)
        self._floats: NDArray[np.float64] = np.zeros((3, _FIRST_ROWS))

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: Key) -> bool:
        return key in self._rows

    def add(
        self, key: Key, queue: str, priority: int, before: int, loss: Loss, on: Mapping[str, Takes]
    ) -> None:
        """Add an attempt's capacity. ``before``: at equal cost the smallest goes first."""
        kind = self._kinds.setdefault((queue, priority), len(self._kinds))
        rows = self._rows[key] = []
        for node, takes in on.items():
            number = self._nodes.setdefault(node, len(self._nodes))
            row = self._free.pop() if self._free else len(self._keys)
            if row == len(self._keys):
                self._keys.append(key)
                if row == self._ints.shape[1]:
                    self._ints = np.concatenate([self._ints, np.zeros_like(self._ints)], axis=1)
                    more = np.zeros_like(self._floats)
                    self._floats = np.concatenate([self._floats, more], axis=1)
            self._keys[row] = key
            self._ints[:, row] = (kind, number, before, *takes)
            self._floats[:, row] = (loss.gpus, loss.since_s, loss.every_s)
            rows.append(row)

    def drop(self, key: Key) -> None:
        """Remove the capacity of an attempt."""
        for row in self._rows.pop(key, ()):
            self._ints[0, row] = _GONE
            self._free.append(row)

    def cheapest_first(
        self,
        fleet: Fleet,
        need: PodNeed,
        may_go: Callable[[str, int], bool],
        now_s: float,
        restart_s: float,
        most: int,
        cluster: str,
    ) -> Iterator[tuple[str, list[Key]]]:
        """Nodes on which there may be room for a pod once some have gone, and who may, the cheapest
        first; ``most`` nodes at most. ``may_go``: those of a queue and priority."""
        count = len(self._keys)
        kinds = np.array([may_go(*kind) for kind in self._kinds], np.bool_)
        kind, number, before, milli, cpu, memory = self._ints[:, :count]
        if not kinds.any():
            return
        self.lay_out(fleet, cluster)
        slot = self._slots[number]
        rows = np.flatnonzero(kinds[kind] & (kind != _GONE) & (slot >= 0))
        rows = rows[fleet.arrays.open[slot[rows]]]
        if not len(rows):
            return
        cost = _costs(self._floats[:, rows], now_s, restart_s)
        order = np.lexsort((before[rows], cost, slot[rows]))
        rows, cost = rows[order], cost[order]
        slot = slot[rows]
        begins = np.flatnonzero(np.diff(slot, prepend=-1))  # each node's first row
        of_node = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(rows))))
        nodes = slot[begins]
        lacks = _lacking(fleet, nodes, need)
        parts = [amounts[rows] for amounts in (milli, cpu, memory)]
        least = np.minimum(
            _alone(parts, lacks, cost, of_node, begins),
            _together(parts, lacks, cost, of_node, begins),
        )
        ends = np.append(begins[1:], len(rows))
        for at in _smallest(least, most):
            mine = rows[begins[at] : ends[at]].tolist()
            yield fleet.names[int(nodes[at])][1], [self._keys[row] for row in mine]

    def lay_out(self, fleet: Fleet, cluster: str) -> None:
        """Find the slots of new nodes, or of all nodes after a change of the fleet's layout."""
        fleet.arrange()
        known = len(self._slots) if self._layout == fleet.layout else 0
        if known < len(self._nodes) or self._layout != fleet.layout:
            names = list(self._nodes)[known:]
            slots = (fleet.slot(cluster, name) for name in names)
            found = np.fromiter((-1 if s is None else s for s in slots), np.int64, len(names))
            self._slots = np.concatenate([self._slots[:known], found])
            self._layout = fleet.layout


def _costs(terms: NDArray[np.float64], now_s: float, restart_s: float) -> Ints:
    """GPU milliseconds, as ``preemption.lost_gpu_s`` has them in seconds."""
    gpus, since_s, every_s = terms
    ran_s = np.where(since_s > 0.0, np.maximum(now_s - since_s, 0.0), 0.0)
    whole = np.isinf(every_s)
    lost_s = np.where(whole, ran_s, np.remainder(ran_s, np.where(whole, 1.0, every_s)))
    cost = np.minimum(gpus * (lost_s + restart_s) * 1000.0, float(_MOST_COST))
    whole_ms: Ints = np.rint(cost).astype(np.int64)
    return whole_ms


def _lacking(fleet: Fleet, nodes: Ints, need: PodNeed) -> tuple[Ints, Ints, Ints]:
    """Return a lower bound of the missing quantities on each node.

    Free milli on shared GPUs count for a whole GPU too. Example: three fractions of 313 milli fill
    a GPU, and a whole one lacks 939 there.
    """
    arrays = fleet.arrays
    gpu_milli = need.gpus * need.gpu_milli - arrays.milli[nodes]
    if need.gpu_milli == WHOLE:
        gpu_milli = np.where(arrays.whole[nodes] < need.gpus, np.maximum(gpu_milli, 1), gpu_milli)
    return (
        gpu_milli,
        need.cpu_milli - arrays.cpu[nodes],
        need.memory_mib - arrays.memory[nodes],
    )


def _alone(
    parts: Iterable[Ints], lacks: Iterable[Ints], cost: Ints, of_node: Ints, begins: Ints
) -> Ints:
    """Return for each node the cost of the cheapest sufficient single attempt."""
    enough = np.ones(len(cost), np.bool_)
    for amounts, lacking in zip(parts, lacks, strict=True):
        enough &= (amounts >= lacking[of_node]) | (lacking[of_node] <= 0)
    found: Ints = np.minimum.reduceat(np.where(enough, cost, _MOST_COST + 1), begins)
    return found


def _together(
    parts: Iterable[Ints], lacks: Iterable[Ints], cost: Ints, of_node: Ints, begins: Ints
) -> Ints:
    """Return for each node the cost of the cheapest attempts until the sum suffices."""
    enough = np.ones(len(cost), np.bool_)
    for amounts, lacking in zip(parts, lacks, strict=True):
        enough &= _summed(amounts, of_node, begins) >= lacking[of_node]
    total = np.where(enough, _summed(cost, of_node, begins), _MOST_COST + 1)
    found: Ints = np.minimum.reduceat(total, begins)
    return found


def _summed(amounts: Ints, of_node: Ints, begins: Ints) -> Ints:
    """Return for each row the running sum within its node."""
    sums = np.cumsum(amounts)
    before: Ints = (sums[begins] - amounts[begins])[of_node]
    return sums - before


def _smallest(costs: Ints, most: int) -> list[int]:
    """Return the nodes with the lowest possible costs in order, first node first at ties."""
    there = np.flatnonzero(costs <= _MOST_COST)
    if len(there) > most:
        bound = np.partition(costs[there], most - 1)[most - 1]
        below = there[costs[there] < bound]
        alike = there[costs[there] == bound][: most - len(below)]
        there = np.concatenate([below, alike])
    numbers: list[int] = there[np.lexsort((there, costs[there]))].tolist()
    return numbers

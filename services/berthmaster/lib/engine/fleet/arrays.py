"""The fleet's free capacity as compact arrays, and a log of the nodes that changed.

Arrays over N nodes and G GPUs (the maximum of a node), nodes ordered by cluster and name:

- ``cpu``, ``memory``: int64 [N], free CPU milli and MiB; may be negative where foreign pods grew.
- ``gpu``: int64 [N, G], free milli of each GPU; ABSENT where there is none or it is unhealthy. In
  memory the first GPU of all nodes comes first, as readers of many nodes want it.
- ``whole``: int64 [N], GPUs with all 1000 milli free; ``milli``: int64 [N], sum of free milli.
- ``capacity_milli``: int64 [N], of healthy GPUs; ``a_gpu``: float64 [N], one GPU as a share of its
  node (1 without GPUs).
- ``open``: bool [N], ready, schedulable and not cordoned.
- ``pieces``: by resource, int64 [N], free units of counted shares (MIG slices, replicas).
- ``kind``: int64 [N], index into the fleet's ``kinds``, shared by equal nodes.

And over C clusters: ``free_milli`` and ``all_milli``, int64 [C], of its open nodes and of all;
``starts``: int64 [C], each one's first node. fleet.py fills them, and notes each slot that it fills
in ``Touched``.

Example: a score cache that has read the log up to entry 40 asks ``since(40)`` and scores only the
nodes that have changed since. Entries that are too old are forgotten: then it scores all nodes.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

ABSENT: Final = -1_000_000  # too little for any request, whatever is subtracted


class Arrays:
    """Arrays over nodes in a fixed order. New or changed nodes need new arrays."""

    __slots__ = (
        "a_gpu",
        "all_milli",
        "capacity_milli",
        "cells",
        "cluster_of",
        "cpu",
        "free_milli",
        "gpu",
        "kind",
        "memory",
        "milli",
        "open",
        "pieces",
        "starts",
        "whole",
    )

    def __init__(
        self,
        cluster_of: Sequence[int] = (),
        clusters: int = 0,
        width: int = 0,
        kind: Sequence[int] = (),
        resources: Iterable[str] = (),
    ) -> None:
        count = len(cluster_of)
        self.cluster_of: NDArray[np.int64] = np.array(cluster_of, np.int64)
        self.starts: NDArray[np.int64] = np.searchsorted(self.cluster_of, np.arange(clusters))
        self.cpu: NDArray[np.int64] = np.zeros(count, np.int64)
        self.memory: NDArray[np.int64] = np.zeros(count, np.int64)
        self.gpu: NDArray[np.int64] = np.full((width, count), ABSENT, np.int64).T
        self.whole: NDArray[np.int64] = np.zeros(count, np.int64)
        self.milli: NDArray[np.int64] = np.zeros(count, np.int64)
        self.capacity_milli: NDArray[np.int64] = np.zeros(count, np.int64)
        self.open: NDArray[np.bool_] = np.zeros(count, np.bool_)
        self.a_gpu: NDArray[np.float64] = np.ones(count, np.float64)
        self.kind: NDArray[np.int64] = np.array(kind, np.int64)
        self.pieces: dict[str, NDArray[np.int64]] = {
            name: np.zeros(count, np.int64) for name in sorted(resources)
        }
        self.free_milli: NDArray[np.int64] = np.zeros(clusters, np.int64)
        self.all_milli: NDArray[np.int64] = np.zeros(clusters, np.int64)
        self.cells = Cells(self)

    @property
    def nbytes(self) -> int:
        whole = [self.cpu, self.memory, self.gpu, self.whole, self.milli, self.capacity_milli]
        whole += [self.kind, self.cluster_of, *self.pieces.values()]
        return sum(array.nbytes for array in whole) + self.open.nbytes + self.a_gpu.nbytes


class Cells:
    """The arrays' memory, for reading and writing single numbers: a third of what numpy takes."""

    __slots__ = (
        "a_gpu",
        "all_milli",
        "capacity_milli",
        "cluster_of",
        "cpu",
        "free_milli",
        "gpu",
        "memory",
        "milli",
        "open",
        "whole",
        "width",
    )

    def __init__(self, arrays: Arrays) -> None:
        self.cpu = memoryview(arrays.cpu)  # type: ignore[arg-type]
        self.memory = memoryview(arrays.memory)  # type: ignore[arg-type]
        self.gpu: Any = memoryview(arrays.gpu)  # type: ignore[arg-type]
        self.width: int = arrays.gpu.shape[1]
        self.whole = memoryview(arrays.whole)  # type: ignore[arg-type]
        self.milli = memoryview(arrays.milli)  # type: ignore[arg-type]
        self.capacity_milli = memoryview(arrays.capacity_milli)  # type: ignore[arg-type]
        self.a_gpu: Any = memoryview(arrays.a_gpu)  # type: ignore[arg-type]
        self.open = memoryview(arrays.open)  # type: ignore[arg-type]
        self.free_milli = memoryview(arrays.free_milli)  # type: ignore[arg-type]
        self.all_milli = memoryview(arrays.all_milli)  # type: ignore[arg-type]
        self.cluster_of = memoryview(arrays.cluster_of)  # type: ignore[arg-type]


TOUCHED_KEPT: Final = 4096


class Touched:
    """Changed slots in order, up to a bounded length."""

    __slots__ = ("_at", "_newest", "_numbers", "_slots", "forgotten", "newest", "slots")

    def __init__(self, kept: int = TOUCHED_KEPT) -> None:
        self.slots: NDArray[np.int64] = np.zeros(2 * kept, np.int64)
        self._numbers: NDArray[np.int64] = np.arange(2 * kept)
        self.newest: NDArray[np.int64] = np.zeros(0, np.int64)  # [N], a slot's newest entry
        # The arrays' memory: single numbers are written in a third of the time.
        self._slots = memoryview(self.slots)  # type: ignore[arg-type]
        self._newest = memoryview(self.newest)  # type: ignore[arg-type]
        self._at = 0  # how many of the slots are written
        self.forgotten = 0  # number of dropped entries

    def arrange(self, nodes: int) -> None:
        """Slots have a new meaning: whoever follows the fleet makes everything anew."""
        self.forgotten += self._at
        self._at = 0
        self.newest = np.zeros(nodes, np.int64)
        self._newest = memoryview(self.newest)  # type: ignore[arg-type]

    @property
    def end(self) -> int:
        """Where the log ends now: to be asked ``since`` later."""
        return self.forgotten + self._at

    def add(self, slot: int) -> None:
        at = self._at
        self._slots[at] = slot
        self._newest[slot] = self.forgotten + at
        self._at = at + 1
        if self._at == len(self._slots):
            kept = self._at // 2
            self.slots[:kept] = self.slots[kept:]
            self.forgotten += kept
            self._at = kept

    def since(self, end: int) -> NDArray[np.int64] | None:
        """Return each slot changed since ``end`` once; None if the log no longer reaches back."""
        first = end - self.forgotten
        if first < 0:
            return None
        slots = self.slots[first : self._at]
        newest = self.newest[slots] == self._numbers[first : self._at] + self.forgotten
        found: NDArray[np.int64] = slots[newest]
        return found

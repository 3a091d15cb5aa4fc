"""Which nodes changed since somebody last looked: a bounded log of slots in the fleet's arrays.

A node is touched several times for each placement, and whoever follows looks seldom: a slot is told
once, however often it changed. That costs a look at what was written since, never one at the fleet.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

TOUCHED_KEPT: Final = 4096


class Touched:
    """The slots that changed, in order, as far back as it is worth to look."""

    __slots__ = ("_at", "_newest", "_numbers", "_slots", "forgotten", "newest", "slots")

    def __init__(self, kept: int = TOUCHED_KEPT) -> None:
        self.slots: NDArray[np.int64] = np.zeros(2 * kept, np.int64)
        self._numbers: NDArray[np.int64] = np.arange(2 * kept)
        self.newest: NDArray[np.int64] = np.zeros(0, np.int64)  # [N], a slot's newest entry
        # The arrays' memory: single numbers are written in a third of the time.
        self._slots = memoryview(self.slots)  # type: ignore[arg-type]
        self._newest = memoryview(self.newest)  # type: ignore[arg-type]
        self._at = 0  # how many of the slots are written
        self.forgotten = 0  # entries that were dropped

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
        """Each slot that changed since, once; None if that was too long ago."""
        first = end - self.forgotten
        if first < 0:
            return None
        slots = self.slots[first : self._at]
        newest = self.newest[slots] == self._numbers[first : self._at] + self.forgotten
        found: NDArray[np.int64] = slots[newest]
        return found

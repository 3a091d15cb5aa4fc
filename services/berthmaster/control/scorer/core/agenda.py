"""What is due when: the earliest time per key, cheap to move and cheap to ask.

Pure. A heap with stale entries that are skipped; rebuilt when they outnumber the live ones.
"""

import heapq
from typing import Generic, TypeVar

K = TypeVar("K")


class Agenda(Generic[K]):
    """At most one time per key."""

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._number = 0  # breaks ties in the order of entry: keys need not be comparable

    def __len__(self) -> int:
        return len(self._due)

    def set(self, key: K, at_s: float) -> None:
        """This key is due then, whatever was said before."""
        if self._due.get(key) == at_s:
            return
        self._due[key] = at_s
        self._number += 1
        heapq.heappush(self._heap, (at_s, self._number, key))
        if len(self._heap) > 4 * len(self._due) + 64:
            self._rebuild()

    def advance(self, key: K, at_s: float) -> None:
        """This key is due then or earlier."""
        known = self._due.get(key)
        if known is None or at_s < known:
            self.set(key, at_s)

    def drop(self, key: K) -> None:
        self._due.pop(key, None)

    def next_s(self) -> float | None:
        """When the next key is due."""
        while self._heap:
            at_s, _, key = self._heap[0]
            if self._due.get(key) == at_s:
                return at_s
            heapq.heappop(self._heap)
        return None

    def pop_due(self, now_s: float) -> list[K]:
        """The keys that are due by now, in order; they are no longer on the agenda."""
        due: list[K] = []
        while (at_s := self.next_s()) is not None and at_s <= now_s:
            key = heapq.heappop(self._heap)[2]
            del self._due[key]
            due.append(key)
        return due

    def _rebuild(self) -> None:
        self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
        heapq.heapify(self._heap)

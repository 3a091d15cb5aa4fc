"""Removal of a cluster from a MultiKueueConfig: mark, drain, settle, remove.

1. The hub marks the cluster as draining, and Berthmaster's dispatcher stops nominating it.

2. The configuration leaves nothing there: no Workload is placed or nominated there, and no worker
reports a copy.

3. For a settle period of ``settle_s``, no Workload passes the check, so that recent decisions
become visible (Kueue's own dispatchers ignore the mark). New Workloads in the cluster end the
period, and step 2 begins again.

4. The cluster is removed.

After a failed settle period comes a pause, so that a busy queue is not blocked for ever.
"""

from collections.abc import Collection
from typing import Final, NamedTuple

PAUSE_IN_BREATHS: Final = 4.0


class Breath(NamedTuple):
    """A settle period, during which no Workload passes."""

    clusters: frozenset[str]
    until_s: float


class Leaving:
    """The clusters that are about to leave each configuration."""

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._breaths: dict[str, Breath] = {}
        self._not_before_s: dict[str, float] = {}

    def holds(self, config: str) -> bool:
        """Return whether a settle period blocks the check."""
        return config in self._breaths

    def look(self, config: str, empty: Collection[str], now_s: float) -> frozenset[str]:
        """Return the clusters to remove now. ``empty`` are marked clusters without leftovers."""
        breath = self._breaths.get(config)
        if breath is None:
            if empty and now_s >= self._not_before_s.get(config, 0.0):
                self._breaths[config] = Breath(frozenset(empty), now_s + self._settle_s)
            return frozenset()
        left = breath.clusters & frozenset(empty)
        if not left:
            self.end(config, now_s, in_vain=True)
            return left
        self._breaths[config] = Breath(left, breath.until_s)
        return left if now_s >= breath.until_s else frozenset()

    def end(self, config: str, now_s: float, *, in_vain: bool) -> None:
        """End a settle period, successful or ``in_vain``."""
        if self._breaths.pop(config, None) is not None and in_vain:
            self._not_before_s[config] = now_s + PAUSE_IN_BREATHS * self._settle_s

    def forget(self) -> None:
        """End all settle periods, because not everything is known."""
        self._breaths.clear()

    def next_due_s(self, now_s: float) -> float:
        """Return the next end of a period or pause; infinite = none."""
        due = [breath.until_s for breath in self._breaths.values()]
        due += [at_s for at_s in self._not_before_s.values() if at_s > now_s]
        return min(due, default=float("inf"))

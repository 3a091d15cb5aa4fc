"""How a cluster leaves a MultiKueueConfig: marked, left by all, then out within one held breath.

1. It is marked as draining on the hub: our dispatcher nominates it no more.
2. Nothing of this configuration is there: no Workload has it or is nominated to it, and no worker
   reports a copy.
3. For ``settle_s`` nobody passes the check, so that whatever somebody just decided has had the time
   to show (Kueue's own dispatchers do not know of the mark). What shows up ends the breath, and 2
   begins anew.
4. It is taken out.

A breath that ended in vain is followed by a pause, so that a busy queue is not held for ever.
"""

from collections.abc import Collection
from typing import Final, NamedTuple

PAUSE_IN_BREATHS: Final = 4.0


class Breath(NamedTuple):
    """While nobody passes."""

    clusters: frozenset[str]
    until_s: float


class Leaving:
    """Who is about to leave which configuration."""

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._breaths: dict[str, Breath] = {}
        self._not_before_s: dict[str, float] = {}

    def holds(self, config: str) -> bool:
        """Whether nobody may pass now."""
        return config in self._breaths

    def look(self, config: str, empty: Collection[str], now_s: float) -> frozenset[str]:
        """``empty``: those that are marked and have nothing left. Who may be taken out now."""
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
        """They are out, or something came between."""
        if self._breaths.pop(config, None) is not None and in_vain:
            self._not_before_s[config] = now_s + PAUSE_IN_BREATHS * self._settle_s

    def forget(self) -> None:
        """Nobody leaves now: not all is known."""
        self._breaths.clear()

    def next_due_s(self, now_s: float) -> float:
        """When something ends by itself; infinite if nothing does."""
        due = [breath.until_s for breath in self._breaths.values()]
        due += [at_s for at_s in self._not_before_s.values() if at_s > now_s]
        return min(due, default=float("inf"))

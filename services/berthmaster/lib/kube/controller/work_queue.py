"""Which workloads are to be looked at, and when: what changed at once, the rest in its time.

What depends on the fleet is looked at when the fleet has moved, at most ten times a second: facts
come by the thousand, and each look ranks clusters.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Final

from berthmaster.lib.lifecycle.workload import Key

SWEEP_S: Final = 0.1  # what depends on the fleet is looked at again at most so often
IN_TURN: Final = 16  # workloads that a sweep takes of those that wait in turn


class WorkQueue:
    """Names of workloads, each once."""

    def __init__(self) -> None:
        self.fleet_moved = False
        self._ready: dict[Key, None] = {}
        self._due_s: dict[Key, float] = {}  # when time alone may change something
        self._on_fleet: dict[Key, None] = {}  # what changes in the fleet matter to
        self._in_turn: dict[Key, None] = {}  # the same, a few at each sweep
        self._swept_at_s = float("-inf")

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, names: Iterable[Key]) -> None:
        self._ready.update(dict.fromkeys(names))

    def add_at(self, name: Key, at_s: float) -> None:
        """Look at it then, in place of any other time."""
        self._due_s[name] = at_s

    def add_by(self, name: Key, at_s: float) -> None:
        """Look at it then at the latest."""
        self._due_s[name] = min(at_s, self._due_s.get(name, at_s))

    def add_on_fleet(self, name: Key, at_s: float) -> None:
        """Look at it when the fleet has moved, and then at the latest."""
        self._on_fleet[name] = None
        self._due_s[name] = at_s

    def add_in_turn(self, name: Key, at_s: float) -> None:
        """Look at it then at the latest, and earlier when the fleet has moved and its turn has
        come. For what may wait by the hundred: one sweep over all of it would take a second."""
        self._in_turn[name] = None
        self._due_s[name] = at_s

    def settled(self, name: Key) -> None:
        """It is being looked at: the fleet does not matter to it until it is said again."""
        self._on_fleet.pop(name, None)
        self._in_turn.pop(name, None)

    def forget(self, name: Key) -> None:
        self._due_s.pop(name, None)
        self._on_fleet.pop(name, None)
        self._in_turn.pop(name, None)

    def sweep(self, now_s: float) -> bool:
        """Whether the fleet has moved, and what depends on it is ready therefore."""
        if not self.fleet_moved or now_s - self._swept_at_s < SWEEP_S:
            return False
        self.fleet_moved = False
        self._swept_at_s = now_s
        self._ready.update(self._on_fleet)
        self._ready.update(dict.fromkeys(islice(self._in_turn, IN_TURN)))
        return True

    def take(self, now_s: float) -> list[Key]:
        """All that is ready or due, which is ready no more."""
        for name in [name for name, at_s in self._due_s.items() if at_s <= now_s]:
            del self._due_s[name]
            self._ready[name] = None
        names, self._ready = list(self._ready), {}
        return names

    def wake_at_s(self) -> float:
        """When time alone makes something ready."""
        first_s = min(self._due_s.values(), default=float("inf"))
        return min(first_s, self._swept_at_s + SWEEP_S) if self.fleet_moved else first_s

"""Which workloads are to be looked at, and when: what changed at once, the rest in its time.

What depends on the fleet is looked at when the fleet has moved, at most ten times a second: facts
come by the thousand, and each look ranks clusters.

**In flight.** What was asked of the shell and has not come back: one thing at a time for each
workload.

After an append, the fold must show what the log has before the workload is looked at again; for
that there is a time limit, since a write may be lost, or its effect purged.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final, Protocol, TypeVar

from berthmaster.lib.lifecycle.instructions import Append, Outcome, Refused, Stored
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.workload import WorkloadEvent

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


FOLD_LIMIT_S: Final = 1.0
PATIENT_AFTER: Final = 2  # refusals in a row; races are lost once
LONGEST_PAUSE_S: Final = 30.0
_NEVER: Final = 2**63


class Referred(Protocol):
    """A write that is known again by its ref."""

    @property
    def ref(self) -> str:
        """As ``InFlight.ref`` gave it."""


W = TypeVar("W", bound=Referred)


class InFlight:
    def __init__(self) -> None:
        self._number = 0
        self._busy: dict[Key, str] = {}
        self._requests: dict[str, tuple[Key, Any]] = {}
        self._fold_first: dict[Key, tuple[int, float]] = {}  # sequence, and when to give up
        self._refusals: dict[Key, int] = {}  # in a row

    def forget(self) -> None:
        """Nothing is under way as far as this replica knows; what is, is guarded."""
        self._busy.clear()
        self._requests.clear()
        self._fold_first.clear()
        self._refusals.clear()

    def busy(self, name: Key) -> bool:
        """Whether something is under way for a workload."""
        return name in self._busy

    def ref(self) -> str:
        """A name for the next instruction."""
        self._number += 1
        return f"{self._number}"

    def append(self, name: Key, event: WorkloadEvent) -> Append:
        append = Append(ref=self.ref(), event=event)
        self._busy[name] = append.ref
        self._requests[append.ref] = (name, append)
        return append

    def write(self, name: Key, write: W) -> W:
        self._busy[name] = write.ref
        self._requests[write.ref] = (name, write)
        return write

    def landed(self, ref: str) -> tuple[Key, Any] | None:
        """What came back; None if nobody waits for it any more."""
        found = self._requests.pop(ref, None)
        if found is None or self._busy.get(found[0]) != ref:
            return None
        del self._busy[found[0]]
        return found

    def fold_first(self, name: Key, after: int, outcome: Outcome, now_s: float) -> None:
        """What an append's outcome says that the log holds."""
        refusals = 0 if isinstance(outcome, Stored) else self._refusals.pop(name, 0) + 1
        if refusals:
            self._refusals[name] = refusals
        else:
            self._refusals.pop(name, None)
        if refusals > PATIENT_AFTER:  # what refuses it is nothing that the fold will show
            pause_s = min(FOLD_LIMIT_S * 2.0 ** (refusals - PATIENT_AFTER), LONGEST_PAUSE_S)
            self._fold_first[name] = (_NEVER, now_s + pause_s)
            return
        match outcome:
            case Stored(sequence):
                pass
            case Refused(last):
                sequence = max(last or 0, after + 1)
            case _:
                sequence = after + 1
        self._fold_first[name] = (sequence, now_s + FOLD_LIMIT_S)

    def wait_until_s(self, name: Key, folded: int, now_s: float) -> float | None:
        """Until when the fold is waited for; None if it shows what it should, or never will."""
        sequence, until_s = self._fold_first.get(name, (0, 0.0))
        if folded >= sequence or now_s >= until_s:
            self._fold_first.pop(name, None)
            return None
        return until_s

"""Which workloads to process, and when: changed ones at once, others at their time.

Workloads that depend on the fleet are processed when facts of the fleet change, at most ten times a
second. Facts arrive by the thousand, and each pass ranks clusters.

**In flight.** Instructions given to the shell and not answered yet, at most one for each workload.

After an append, the fold must reach the appended event before the workload is processed again. This
wait is limited, because a write may be lost, or its event purged.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final, Protocol, TypeVar

from berthmaster.lib.lifecycle.instructions import Append, Outcome, Refused, Stored
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.workload import WorkloadEvent

SWEEP_S: Final = 0.1  # minimum time between two passes for workloads that depend on the fleet
IN_TURN: Final = 16  # workloads in each sweep of those added in turn


class WorkQueue:
    """Names of workloads, each once."""

    def __init__(self) -> None:
        self.fleet_moved = False
        self._ready: dict[Key, None] = {}
        self._due_s: dict[Key, float] = {}  # next time at which a workload may change without input
        self._on_fleet: dict[Key, None] = {}  # workloads to process when the fleet changes
        self._in_turn: dict[Key, None] = {}  # the same, a few in each sweep
        self._swept_at_s = float("-inf")

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, names: Iterable[Key]) -> None:
        self._ready.update(dict.fromkeys(names))

    def add_at(self, name: Key, at_s: float) -> None:
        """Process the workload at this time, instead of any other time."""
        self._due_s[name] = at_s

    def add_by(self, name: Key, at_s: float) -> None:
        """Process the workload at this time or earlier."""
        self._due_s[name] = min(at_s, self._due_s.get(name, at_s))

    def add_on_fleet(self, name: Key, at_s: float) -> None:
        """Process the workload when the fleet changes, or at this time."""
        self._on_fleet[name] = None
        self._due_s[name] = at_s

    def add_in_turn(self, name: Key, at_s: float) -> None:
        """Process the workload at this time, or earlier in its turn when the fleet changes.

        For workloads that may wait by the hundred: one sweep over all would take a second.
        """
        self._in_turn[name] = None
        self._due_s[name] = at_s

    def settled(self, name: Key) -> None:
        """Drop the workload's dependence on the fleet while it is processed."""
        self._on_fleet.pop(name, None)
        self._in_turn.pop(name, None)

    def forget(self, name: Key) -> None:
        self._due_s.pop(name, None)
        self._on_fleet.pop(name, None)
        self._in_turn.pop(name, None)

    def sweep(self, now_s: float) -> bool:
        """Make workloads that depend on the fleet ready. Return whether the fleet changed."""
        if not self.fleet_moved or now_s - self._swept_at_s < SWEEP_S:
            return False
        self.fleet_moved = False
        self._swept_at_s = now_s
        self._ready.update(self._on_fleet)
        self._ready.update(dict.fromkeys(islice(self._in_turn, IN_TURN)))
        return True

    def take(self, now_s: float) -> list[Key]:
        """Remove and return all workloads that are ready or due."""
        for name in [name for name, at_s in self._due_s.items() if at_s <= now_s]:
            del self._due_s[name]
            self._ready[name] = None
        names, self._ready = list(self._ready), {}
        return names

    def wake_at_s(self) -> float:
        """Return the next time at which a workload becomes ready without input."""
        first_s = min(self._due_s.values(), default=float("inf"))
        return min(first_s, self._swept_at_s + SWEEP_S) if self.fleet_moved else first_s


FOLD_LIMIT_S: Final = 1.0
PATIENT_AFTER: Final = 2  # refusals in a row; a lost race gives only one
LONGEST_PAUSE_S: Final = 30.0
_NEVER: Final = 2**63


class Referred(Protocol):
    """A write that carries its ref."""

    @property
    def ref(self) -> str:
        """The ref from ``InFlight.ref``."""


W = TypeVar("W", bound=Referred)


class InFlight:
    def __init__(self) -> None:
        self._number = 0
        self._busy: dict[Key, str] = {}
        self._requests: dict[str, tuple[Key, Any]] = {}
        self._fold_first: dict[Key, tuple[int, float]] = {}  # expected sequence, and time limit
        self._refusals: dict[Key, int] = {}  # number in a row

    def forget(self) -> None:
        """Forget all instructions. The log's checks protect against those still in flight."""
        self._busy.clear()
        self._requests.clear()
        self._fold_first.clear()
        self._refusals.clear()

    def busy(self, name: Key) -> bool:
        """Return whether an instruction for the workload is in flight."""
        return name in self._busy

    def ref(self) -> str:
        """Return a ref for the next instruction."""
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
        """Return workload and instruction of an answer, or None if no longer expected."""
        found = self._requests.pop(ref, None)
        if found is None or self._busy.get(found[0]) != ref:
            return None
        del self._busy[found[0]]
        return found

    def fold_first(self, name: Key, after: int, outcome: Outcome, now_s: float) -> None:
        """Note the sequence that the log has reached, by an append's outcome."""
        refusals = 0 if isinstance(outcome, Stored) else self._refusals.pop(name, 0) + 1
        if refusals:
            self._refusals[name] = refusals
        else:
            self._refusals.pop(name, None)
        if refusals > PATIENT_AFTER:  # the fold will not show the reason of the refusals
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
        """Return until when to wait for the fold, or None if complete or timed out."""
        sequence, until_s = self._fold_first.get(name, (0, 0.0))
        if folded >= sequence or now_s >= until_s:
            self._fold_first.pop(name, None)
            return None
        return until_s

"""What was asked of the shell and has not come back: one thing at a time for each workload.

After an append, the fold must show what the log has before the workload is looked at again; for
that there is a time limit, since a write may be lost, or its effect purged.
"""

from typing import Any, Final, Protocol, TypeVar

from berthmaster.lib.lifecycle.instructions import Append, Outcome, Refused, Stored
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.workload import WorkloadEvent

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

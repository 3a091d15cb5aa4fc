"""What a person has said of a log that is not whole: what it lost, and which messages count for
nothing.

A message that no reader can read freezes its workload, or its cell where it is a decision: a newer
version may have written it. Where nobody has, a person declares it void. Then it is stored and
without effect, like every void event: only its number counts, since the server's guard knows it.
"""

from collections.abc import Iterable, Set
from typing import Final, NamedTuple

from berthmaster.messages.control import LogGap
from berthmaster.messages.workload import Reprioritized, WorkloadEvent

Gap = tuple[int, int]  # the first and the last number of what is missing

LOST: Final = "events of it are missing from the log"  # why a workload is frozen
DECLARED_BY: Final = "berth repair void"


class Flaws(NamedTuple):
    """Of one stream, as accepted."""

    missing: tuple[LogGap, ...] = ()
    void: Set[int] = frozenset()

    def is_lost(self, sequence: int) -> bool:
        """Whether the log has lost this one, and a person has accepted that."""
        return any(gap.first <= sequence <= gap.last for gap in self.missing)

    def is_void(self, sequence: int) -> bool:
        """Whether this one counts for nothing where it cannot be read."""
        return sequence in self.void


NO_FLAWS: Final = Flaws()


def frozen_words(why: str, name: str) -> str:
    """For people: that a workload is frozen, and what they can do about it."""
    if why == LOST:
        return f"frozen: {why}; `berth repair give-up {name}` ends it, if no cluster brings it back"
    shown = f"`berth repair inspect {name}` shows it"
    return f"frozen: an event of it cannot be understood ({why}); {shown}"


def flaws_of(missing: Iterable[LogGap] = (), void: Iterable[int] = ()) -> Flaws:
    """Of what control facts hold."""
    return Flaws(tuple(missing), frozenset(void))


def stand_in(tenant: str, workload_id: str) -> WorkloadEvent:
    """In place of an event that was declared void: it is folded as VOID, and must be."""
    return Reprioritized(
        tenant=tenant, id=workload_id, after=0, at_s=0.0, by=DECLARED_BY, priority=0
    )

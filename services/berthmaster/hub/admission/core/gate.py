"""Whether a Workload may pass a check of ours, and what is said of it. Pure.

Each attempt must pass anew: with every eviction Kueue sets the check back to Pending. Who was let
through is never called back: that would move a job. The contract is asked twice, of the mirror and
of what the API server has when it is written.
"""

from typing import NamedTuple

from berthmaster.lib.kueue.names import PENDING, READY
from berthmaster.lib.kueue.workloads import CheckState, Workload

MAX_MESSAGE_CHARS = 2000
MOST_NAMED = 20


class CheckVerdict(NamedTuple):
    """What a check says to all who wait at it."""

    passes: bool
    message: str  # why not, or where they may go
    held: bool = False  # for a moment: nobody passes, and nobody is told


class NewState(NamedTuple):
    """What to write: the state of one check of one Workload."""

    state: str
    message: str


def new_state(workload: Workload, check: str, standing: CheckVerdict) -> NewState | None:
    """What to write now; None = nothing."""
    found = waiting(workload, check)
    if found is None or standing.held:
        return None
    message = standing.message[:MAX_MESSAGE_CHARS]
    if standing.passes:
        return NewState(READY, message)
    return NewState(PENDING, message) if found.message != message else None


def waiting(workload: Workload, check: str) -> CheckState | None:
    """The check's state, if the Workload waits for nobody else before it."""
    if workload.metadata.deletion_timestamp or not workload.holds("QuotaReserved"):
        return None
    if workload.holds("Finished") or workload.holds("Evicted"):
        return None
    found = workload.check(check)
    return found if found is not None and found.state == PENDING else None


def listed(names: tuple[str, ...]) -> str:
    """Names for people, not all of too many."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more

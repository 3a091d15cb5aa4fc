"""Whether a Workload may pass a check, and the check's message. Pure.

Each attempt must pass again: with every eviction, Kueue resets the check to Pending. A passed
Workload is never called back, because that would move a job. The contract is checked twice: on the
mirror, and on the API server's object at the write.
"""

from typing import NamedTuple

from berthmaster.lib.kueue.names import PENDING, READY
from berthmaster.lib.kueue.workloads import CheckState, Workload

MAX_MESSAGE_CHARS = 2000
MOST_NAMED = 20


class CheckVerdict(NamedTuple):
    """The result of a check for all waiting Workloads."""

    passes: bool
    message: str  # reason for waiting, or the possible clusters
    held: bool = False  # True during a settle period: no Workload passes or gets a message


class NewState(NamedTuple):
    """The state to write for one check of one Workload."""

    state: str
    message: str


def new_state(workload: Workload, check: str, standing: CheckVerdict) -> NewState | None:
    """Return the state to write now; None = nothing."""
    found = waiting(workload, check)
    if found is None or standing.held:
        return None
    message = standing.message[:MAX_MESSAGE_CHARS]
    if standing.passes:
        return NewState(READY, message)
    return NewState(PENDING, message) if found.message != message else None


def waiting(workload: Workload, check: str) -> CheckState | None:
    """Return the check's state, if the Workload waits for nothing else before the check."""
    if workload.metadata.deletion_timestamp or not workload.holds("QuotaReserved"):
        return None
    if workload.holds("Finished") or workload.holds("Evicted"):
        return None
    found = workload.check(check)
    return found if found is not None and found.state == PENDING else None


def listed(names: tuple[str, ...]) -> str:
    """Return the names for a message, cut after the first ones."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more

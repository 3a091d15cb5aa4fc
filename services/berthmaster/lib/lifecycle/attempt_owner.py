"""The system that governs an attempt, makes its pods, and writes its events. Pure."""

from typing import Any, Final

from berthmaster.lib.lifecycle.states import ENDING_OF, Ending, State
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.workload import Placed


def sent_by_hub(placed: Placed) -> bool:
    """Return whether a hub creates the job object, in place of an executor.

    Kueue's objects have a decision cell of their own. The resolver decides for Karmada's.
    """
    return placed.target.via == "hub"


def is_ours_to_end(workload: Workload) -> bool:
    """Return whether a decision of ours may end the attempt: no Kueue governs it."""
    if workload.origin is not None:
        return workload.origin.system == "karmada"
    return workload.target.via == "direct"


MAX_REASON_CHARS: Final = 500


def event_head(work: Workload, by: str, now_s: float) -> dict[str, Any]:
    """Return the common fields of a new event of the workload."""
    return {
        "tenant": work.tenant,
        "id": work.id,
        "after": work.sequence,
        "at_s": now_s,
        "by": by,
        "cluster": work.cluster,
        "attempt": work.attempt,
    }


def ending_event(work: Workload, state: State, reason: str, by: str, now_s: float) -> Ending:
    """Return the event that ends a workload in this state."""
    head = event_head(work, by, now_s)
    if not work.live:
        head["cluster"] = ""  # pending, so no cluster's attempt ends
    head |= {"digest": work.digest, "submitted_at_s": work.submitted_at_s}
    return ENDING_OF[state](**head, reason=reason[:MAX_REASON_CHARS])

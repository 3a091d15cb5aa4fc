"""Events that whoever governs a workload writes about it, in one form for all. Pure."""

from typing import Any, Final

from berthmaster.lib.lifecycle.states import ENDING_OF, Ending, State
from berthmaster.lib.lifecycle.workload import Workload

MAX_REASON_CHARS: Final = 500


def head_of(work: Workload, by: str, now_s: float) -> dict[str, Any]:
    """What each of them begins with, as its fields."""
    return {
        "tenant": work.tenant,
        "id": work.id,
        "after": work.sequence,
        "at_s": now_s,
        "by": by,
        "cluster": work.cluster,
        "attempt": work.attempt,
    }


def ended(work: Workload, state: State, reason: str, by: str, now_s: float) -> Ending:
    """It is over. ``state``: how."""
    head = head_of(work, by, now_s)
    if not work.live:
        head["cluster"] = ""  # it waits, so no cluster's attempt ends
    head |= {"digest": work.digest, "submitted_at_s": work.submitted_at_s}
    return ENDING_OF[state](**head, reason=reason[:MAX_REASON_CHARS])

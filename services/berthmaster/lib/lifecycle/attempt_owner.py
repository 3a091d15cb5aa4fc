"""The system that governs an attempt, makes its pods, and writes its events. Pure."""

from collections.abc import Sequence
from typing import Any, Final

from berthmaster.lib.lifecycle.sizes import is_set_elastic
from berthmaster.lib.lifecycle.states import ENDING_OF, Ending, State
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.placement import Via
from berthmaster.lib.messages.workload import Placed, PodSet


def sent_by_hub(placed: Placed) -> bool:
    """Whether its object came by a hub, which has it made: no executor has anything to do with it.
    Of Kueue's a cell of its own decides, of Karmada's the resolver."""
    return placed.target.via == "hub"


def is_ours_to_end(workload: Workload) -> bool:
    """Whether a decision of ours may end its attempt: no Kueue, of a worker or of a hub, does."""
    if workload.origin is not None:
        return workload.origin.system == "karmada"
    return workload.target.via == "direct"


VOLCANO_JOB: Final = "VolcanoJob"  # as a cluster's profile names it among its kinds of jobs


def is_for_volcano(pod_sets: Sequence[PodSet], via: Via) -> bool:
    """Whether Volcano runs a job of these pod sets, where Volcano is asked to run jobs."""
    parted = any(pods.gpus and pods.gpu_milli != 1000 for pods in pod_sets)
    return via != "worker" and not parted and not any(map(is_set_elastic, pod_sets))


MAX_REASON_CHARS: Final = 500


def event_head(work: Workload, by: str, now_s: float) -> dict[str, Any]:
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


def ending_event(work: Workload, state: State, reason: str, by: str, now_s: float) -> Ending:
    """It is over. ``state``: how."""
    head = event_head(work, by, now_s)
    if not work.live:
        head["cluster"] = ""  # it waits, so no cluster's attempt ends
    head |= {"digest": work.digest, "submitted_at_s": work.submitted_at_s}
    return ENDING_OF[state](**head, reason=reason[:MAX_REASON_CHARS])

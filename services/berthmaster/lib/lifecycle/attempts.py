"""An attempt: the system that governs it, its object, and the fault that ended it. Pure.

- A failure of the job itself is retried as often as its request allows, after a pause that doubles.
- A fault of the cluster counts as an eviction. After ``SAME_WAY`` attempts in a row with the same
  end, such as a lost GPU, the job fails: the job may be the cause.
- A gang with capacity for only some of its pods gives way to another such gang, without blame for
  the cluster or the job. Executors may report this for gangs that do not run yet, up to
  ``MOST_ATTEMPTS`` attempts. Later reports count as evictions.
"""

from collections.abc import Sequence
from typing import Any, Final

from berthmaster.lib.lifecycle.pods import is_set_elastic
from berthmaster.lib.lifecycle.states import ENDING_OF, Ending, State
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.placement import Via
from berthmaster.lib.messages.workload import WHOLE_MILLI, Fault, JobRequest, Placed, PodSet


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


OWN: Final[frozenset[Fault]] = frozenset({"exit", "out_of_memory"})
CONTAGIOUS: Final[frozenset[Fault]] = frozenset({"not_started", "stalled", "node_lost", "gpu_lost"})
SAME_WAY: Final = 3
LONGEST_BACKOFF_S: Final = 3600.0
_MAX_DOUBLINGS: Final = 30


def backoff_s(request: JobRequest, failures: int) -> float:
    """Return the pause after this number of the job's own failures."""
    doubled = 2.0 ** min(max(0, failures - 1), _MAX_DOUBLINGS)
    return min(request.backoff_s * doubled, LONGEST_BACKOFF_S)


def is_tried_again(request: JobRequest, failures: int, exit_code: int | None) -> bool:
    """Return whether a failure of the job is retried, after ``failures`` earlier ones."""
    return failures < request.retries and exit_code not in request.no_retry_exit_codes


def repeats_after(fault: Fault, last_fault: Fault, repeats: int) -> int:
    """Return the number of attempts in a row that ended with this fault."""
    if fault not in CONTAGIOUS:
        return 0
    return repeats + 1 if fault == last_fault else 1


MOST_ATTEMPTS: Final = 20
_STARTING: Final = (State.CLAIMED, State.ADMITTED)


def may_give_way(request: JobRequest | None, state: State, attempt: int) -> bool:
    """Return whether an executor may evict this attempt without blame."""
    pods = sum(each.count for each in request.pod_sets) if request is not None else 0
    return pods > 1 and state in _STARTING and attempt <= MOST_ATTEMPTS


JOB_SET: Final = "JobSet"
VOLCANO_JOB: Final = "VolcanoJob"


def takes_pod_sets(kind: str, pod_sets: Sequence[PodSet], via: Via) -> bool:
    """Return whether a cluster with this kind runs a job with these pod sets.

    Volcano's Job has no Kueue queue, no elastic size, and no GPU fractions of other schedulers.
    """
    if kind == JOB_SET:
        return True
    parted = any(pods.gpus and pods.gpu_milli != WHOLE_MILLI for pods in pod_sets)
    whole = via != "worker" and not parted and not any(map(is_set_elastic, pod_sets))
    return kind == VOLCANO_JOB and whole

"""The cause of an attempt's end, and the consequences. Pure.

- A failure of the job itself is retried as often as its request allows, after a pause that doubles.
- A fault of the cluster counts as an eviction. After ``SAME_WAY`` attempts in a row with the same
  end, such as a lost GPU, the job fails: the job may be the cause.
- A gang with capacity for only some of its pods gives way to another such gang, without blame for
  the cluster or the job. Executors may report this for gangs that do not run yet, up to
  ``MOST_ATTEMPTS`` attempts. Later reports count as evictions.
"""

from typing import Final

from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.messages.workload import Fault, JobRequest

OWN: Final[frozenset[Fault]] = frozenset({"exit", "out_of_memory"})
CONTAGIOUS: Final[frozenset[Fault]] = frozenset({"not_started", "node_lost", "gpu_lost"})
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

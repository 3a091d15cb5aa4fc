"""When an attempt may end so that it counts for nobody, though an executor says it. Pure.

A gang of which some pods hold room and others wait for it gives way to another such gang: neither
its cluster nor the job is to blame. An executor may say so of gangs that do not run yet, and of no
workload more often than ``MOST_ATTEMPTS`` attempts allow: whatever goes round for longer counts as
evictions do, and ends as they end.
"""

from typing import Final

from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.messages.workload import JobRequest

MOST_ATTEMPTS: Final = 20
_STARTING: Final = (State.CLAIMED, State.ADMITTED)


def may_give_way(request: JobRequest | None, state: State, attempt: int) -> bool:
    """Whether an executor may evict this attempt without blame."""
    pods = sum(each.count for each in request.pod_sets) if request is not None else 0
    return pods > 1 and state in _STARTING and attempt <= MOST_ATTEMPTS

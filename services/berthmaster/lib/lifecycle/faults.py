"""Whose fault the end of an attempt was, and what follows from that. Pure.

A failure of the job itself is tried again as often as its request says, after a pause that doubles.
What its cluster did counts as an eviction. Some of that may still be the job's doing: one that can
start nowhere, or that loses a node or a GPU wherever it goes, has failed when it ended so
``SAME_WAY`` times in a row, so that it does not take the fleet with it.
"""

from typing import Final

from berthmaster.lib.messages.workload import Fault, JobRequest

OWN: Final[frozenset[Fault]] = frozenset({"exit", "out_of_memory"})
CONTAGIOUS: Final[frozenset[Fault]] = frozenset({"not_started", "node_lost", "gpu_lost"})
SAME_WAY: Final = 3
LONGEST_BACKOFF_S: Final = 3600.0
_MAX_DOUBLINGS: Final = 30


def backoff_s(request: JobRequest, failures: int) -> float:
    """From the last of so many failures of its own to the next attempt."""
    doubled = 2.0 ** min(max(0, failures - 1), _MAX_DOUBLINGS)
    return min(request.backoff_s * doubled, LONGEST_BACKOFF_S)


def is_tried_again(request: JobRequest, failures: int, exit_code: int | None) -> bool:
    """Whether a failure of its own is followed by another attempt. ``failures``: before it."""
    return failures < request.retries and exit_code not in request.no_retry_exit_codes


def repeats_after(fault: Fault, last_fault: Fault, repeats: int) -> int:
    """How many attempts in a row have ended that way then."""
    if fault not in CONTAGIOUS:
        return 0
    return repeats + 1 if fault == last_fault else 1

"""The best time to evict an attempt that must leave its place. Pure.

Rules of this file:

- An eviction costs the work since the last checkpoint plus a restart. An attempt that ends within
  that cost stays until its end.
- An attempt waits for its next checkpoint if that comes sooner than the unsaved work is long.
- No attempt waits beyond the last moment: the deadline minus the job's grace and some seconds.
"""

from typing import Final

from berthmaster.lib.engine.queueing.reservations import stated_end_s
from berthmaster.lib.lifecycle.run_times import unsaved_s
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.control import Cordon
from berthmaster.lib.messages.workload import Hold, Wish

WISH_S: Final = 3600.0  # after this time an unfulfilled move request lapses
USUAL_GRACE_S: Final = 30.0  # Kubernetes' default, for jobs without a grace period
ENDING_S: Final = 10.0  # beside the grace period: for the executor's news and the end of its pods
AFTER_CHECKPOINT_S: Final = 5.0  # tolerance of a stated checkpoint interval


def last_moment_s(workload: Workload, by_s: float | None) -> float:
    """Return the latest time of the eviction at which all pods end before the deadline."""
    if by_s is None:
        return float("inf")
    grace_s = workload.request.grace_s if workload.request is not None else None
    return by_s - (USUAL_GRACE_S if grace_s is None else grace_s) - ENDING_S


def best_at_s(workload: Workload, now_s: float, by_s: float | None, restart_s: float) -> float:
    """Return the time of the eviction; ``now_s`` means at once.

    Example: 500 s of unsaved work, a checkpoint every 600 s and 60 s to restart give 105 s from
    now. If the job also states an end in 300 s, the eviction waits for that end.
    """
    last_s = last_moment_s(workload, by_s)
    if now_s >= last_s or not workload.running_at_s:
        return now_s
    lost_s = unsaved_s(workload, now_s)
    end_s = stated_end_s(workload, now_s)
    if end_s is not None and end_s - now_s <= lost_s + restart_s and end_s <= last_s:
        return end_s
    every_s = workload.request.checkpoint_every_s if workload.request is not None else None
    if every_s is not None and lost_s < every_s:
        next_s = every_s - lost_s + AFTER_CHECKPOINT_S
        if next_s < lost_s and now_s + next_s <= last_s:
            return now_s + next_s
    return now_s


# In words


def said_by(asked: Hold | Wish) -> str:
    """Return the operator or user behind a hold or a move, with the reason."""
    return f"{asked.who}: {asked.reason}" if asked.reason else asked.who


def drain_words(drain: Cordon) -> str:
    what = f"node {drain.node} of {drain.cluster}" if drain.node else drain.cluster
    return f"{what} is drained" + (f": {drain.reason}" if drain.reason else "")

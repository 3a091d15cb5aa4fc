"""When an attempt that is to leave its place is best told to go. Pure.

Rules of this file:

- Going costs what has been done since its last checkpoint, and starting again. One that ends by
  itself before it would have made up for that stays until its end.
- One that writes its next checkpoint sooner than it has worked since the last waits for that.
- Whatever it would be best to wait for: nobody waits beyond the last moment, which is the grace
  that the job has, and some seconds, before the deadline.
"""

from typing import Final

from berthmaster.engine.queueing.reservations import stated_end_s
from berthmaster.lifecycle.fold import unsaved_s
from berthmaster.lifecycle.workload import Hold, Wish, Workload
from berthmaster.messages.control import Cordon

WISH_S: Final = 3600.0  # a move that could not be carried out for so long is wished for no more
USUAL_GRACE_S: Final = 30.0  # Kubernetes' own, where a job says none
ENDING_S: Final = 10.0  # beside its grace, for an executor to hear of it and to see the pods go
AFTER_CHECKPOINT_S: Final = 5.0  # an interval that is stated is kept about so well


def last_moment_s(workload: Workload, by_s: float | None) -> float:
    """When it must be told at the latest, so that nothing of it is left at the deadline."""
    if by_s is None:
        return float("inf")
    grace_s = workload.request.grace_s if workload.request is not None else None
    return by_s - (USUAL_GRACE_S if grace_s is None else grace_s) - ENDING_S


def best_at_s(workload: Workload, now_s: float, by_s: float | None, restart_s: float) -> float:
    """When to tell it; not after ``now_s`` = now.

    For example, one that has worked 500 s since its checkpoint, writes one every 600 s and needs
    60 s to start is told in 105 s; if it also says that it ends in 300 s, when it has ended.
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
    """Who wants it, and why."""
    return f"{asked.who}: {asked.reason}" if asked.reason else asked.who


def drain_words(drain: Cordon) -> str:
    what = f"node {drain.node} of {drain.cluster}" if drain.node else drain.cluster
    return f"{what} is drained" + (f": {drain.reason}" if drain.reason else "")

"""Who may be moved so that a job that waits fits, and whether that pays. Pure.

Nobody loses room by it: whoever is moved goes on in room that was free. Rules of this file:

- A queue says whose jobs may be moved for its own: nobody's (the usual one), its own, or those of
  queues of no higher priority too. Never those of a higher priority of their own in its queue.
- It would wait until the time at which it fits by the ends that are known; where nobody knows
  that, for as long again as it has waited. What is saved of that is all but what those who move
  need to go.
- The gain is that time, once for each GPU that waits. The cost is what all that move lose together
  (making_room.py: since the last checkpoint, starting again, and once more for each earlier move).
  It pays if the gain is so many times the cost as is set.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from berthmaster.lib.engine.queueing.leaving import ENDING_S, USUAL_GRACE_S
from berthmaster.lib.engine.queueing.making_room import Floors, gpus_of, in_common
from berthmaster.lib.engine.queueing.tree import Path
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.workload import JobRequest

_KEEPS_ALL: Final[tuple[str, Floors]] = ("rebalance", ())


class Beneficiary(NamedTuple):
    """A waiting job, and whom its queue may move for it."""

    path: Path  # its queue, the one above it, and so on
    priority: int
    rebalances: str  # never, queue, all


def may_move(for_: Beneficiary, other: Path, priority: int) -> tuple[str, Floors] | None:
    """Whether a job of this queue and priority may be moved for it. All queues keep what they
    have, so there is no floor to look at."""
    if for_.rebalances == "never":
        return None
    if other[0].queue == for_.path[0].queue:
        return _KEEPS_ALL if priority <= for_.priority else None
    if for_.rebalances != "all":
        return None
    common = in_common(for_.path, other)
    mine, theirs = for_.path[: len(for_.path) - common], other[: len(other) - common]
    if not mine or not theirs:
        return None  # a job that was in a queue before others came below it
    return _KEEPS_ALL if theirs[-1].priority <= mine[-1].priority else None


class Worth(NamedTuple):
    """What moving others is worth to a job that waits."""

    gpus: float
    waited_s: float
    saves_s: float

    @property
    def gain_gpu_s(self) -> float:
        """GPU seconds of waiting that are saved."""
        return self.gpus * self.saves_s


def worth_of(
    request: JobRequest,
    waited_s: float,
    begins_in_s: float | None,
    moved: Iterable[Workload],
) -> Worth:
    """``begins_in_s``: when it would begin by the ends that are known; None = nobody knows.

    For example, a job of 16 GPUs that would wait for 2,000 s yet, and others with a grace of 50 s:
    they need 60 s to go, so 1,940 s are saved, and 31,040 GPU seconds gained. If they lose 12,000
    together, that pays where the gain must be twice the cost.
    """
    left_s = waited_s if begins_in_s is None else begins_in_s
    return Worth(gpus_of(request), waited_s, max(0.0, left_s - _goes_in_s(moved)))


def _goes_in_s(moved: Iterable[Workload]) -> float:
    graces = (w.request.grace_s for w in moved if w.request is not None)
    return (
        max((USUAL_GRACE_S if grace is None else grace for grace in graces), default=0.0) + ENDING_S
    )

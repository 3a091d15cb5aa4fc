"""When an operator's hold, eviction, move or drain ends an attempt. Pure.

``requested_eviction`` decides about holds, evictions and moves, ``drain_eviction`` about drains.
Both return an ``Eviction`` at once, a ``Relocation`` that needs free capacity elsewhere first, or
why the attempt stays (``Stay``). The resolver and the hub's reconciler decide by these rules.

Example: a drain ends at 10,000 s, and a job has a grace period of 30 s. At 9,000 s the result is a
relocation, or the job stays if it is not preemptible. From 9,960 s on it is an eviction.

Rules of this file:

- A hold and an eviction are carried out at once. A move needs free capacity, and lapses after
  ``WISH_S``.
- A drain evicts at the last moment: its deadline minus the job's grace period and some seconds.
  Before that a job stays that is not preemptible or whose best time is still to come.
- An eviction costs the work since the last checkpoint plus a restart. An attempt that ends within
  that cost stays until its end.
- An attempt waits for its next checkpoint if that comes sooner than the unsaved work is long.
"""

from typing import Final, Literal, NamedTuple

from berthmaster.lib.engine.queueing.preemption import lost_gpu_s
from berthmaster.lib.lifecycle.workload import Workload, stated_end_s, unsaved_s
from berthmaster.lib.messages.control import Cordon
from berthmaster.lib.messages.placement import MoveOrder
from berthmaster.lib.messages.workload import AfterEviction, EvictionRequested, Hold, Wish

WISH_S: Final = 3600.0  # after this time an unfulfilled move request lapses
USUAL_GRACE_S: Final = 30.0  # Kubernetes' default, for jobs without a grace period
ENDING_S: Final = 10.0  # beside the grace period: for the executor's news and the end of its pods
AFTER_CHECKPOINT_S: Final = 5.0  # tolerance of a stated checkpoint interval


class Eviction(NamedTuple):
    """An eviction to order now."""

    why: Literal["asked", "held", "drain"]
    reason: str
    who: str  # requester: an operator or a tenant
    to: str = ""  # cluster with reserved capacity; "" = none


class Relocation(NamedTuple):
    """An eviction that first needs free capacity elsewhere."""

    why: Literal["asked", "drain"]
    request: str  # the move or drain, in words
    who: str
    to: str = ""  # the requested cluster; "" = any

    def into(self, cluster: str) -> Eviction:
        """Return the eviction once a cluster has reserved capacity."""
        reason = f"moved to {cluster} by {self.request}" if self.why == "asked" else self.request
        return Eviction(self.why, reason, self.who, cluster)


class Stay(NamedTuple):
    """An eviction was requested, and the attempt stays for now."""

    why: str
    until_s: float = float("inf")


def requested_eviction(workload: Workload, now_s: float) -> Eviction | Relocation | Stay | None:
    """Return the consequence of a hold, eviction or move request; None without a request."""
    hold, wish = workload.hold, workload.wish
    if hold is not None:
        return Eviction("held", f"held by {said_by(hold)}", hold.who)
    if wish is None:
        return None
    if wish.how == "evict":
        return Eviction("asked", f"evicted by {said_by(wish)}", wish.who)
    if now_s - wish.since_s > WISH_S:
        where = wish.to or "another cluster"
        return Stay(f"a move to {where} found no room for an hour and was given up")
    return Relocation("asked", said_by(wish), wish.who, wish.to)


def drain_eviction(
    workload: Workload, drain: Cordon, now_s: float, restart_s: float
) -> Eviction | Relocation | Stay:
    """Return the consequence of a drain for a running attempt."""
    last_s = last_moment_s(workload, drain.drain_by_s)
    if now_s >= last_s:
        return Eviction("drain", drain_words(drain), drain.set_by)
    if workload.request is not None and not workload.request.preemptible:
        return Stay("it is not preemptible", last_s)
    best_s = best_at_s(workload, now_s, drain.drain_by_s, restart_s)
    if best_s > now_s:
        return Stay(f"it ends or writes a checkpoint in {best_s - now_s:.0f} s", best_s)
    return Relocation("drain", drain_words(drain), drain.set_by)


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


# Records and words


def move_order(workload: Workload, eviction: Eviction, now_s: float, restart_s: float) -> MoveOrder:
    """Return the record of a decision that evicts an attempt for an operator."""
    return MoveOrder(
        tenant=workload.tenant,
        id=workload.id,
        attempt=workload.attempt,
        cluster=workload.cluster,
        lost_gpu_s=round(lost_gpu_s(workload, now_s, restart_s), 3),
        why=eviction.why,
        to=eviction.to,
        who=eviction.who,
    )


def eviction_requested(
    workload: Workload,
    reason: str,
    to: str = "",
    then: AfterEviction = "",
    *,
    cell: str,
    decision: int,
    now_s: float,
    decider: str,
) -> EvictionRequested:
    """Return the event that orders an eviction."""
    return EvictionRequested(
        tenant=workload.tenant,
        id=workload.id,
        after=workload.sequence,
        at_s=now_s,
        by=decider,
        cause=f"decision/{cell}/{decision}",
        cluster=workload.cluster,
        attempt=workload.attempt,
        reason=reason,
        decision=decision,
        cell=cell,
        to=to,
        then=then,
    )


def said_by(asked: Hold | Wish) -> str:
    """Return the operator or user behind a hold or a move, with the reason."""
    return f"{asked.who}: {asked.reason}" if asked.reason else asked.who


def drain_words(drain: Cordon) -> str:
    what = f"node {drain.node} of {drain.cluster}" if drain.node else drain.cluster
    return f"{what} is drained" + (f": {drain.reason}" if drain.reason else "")

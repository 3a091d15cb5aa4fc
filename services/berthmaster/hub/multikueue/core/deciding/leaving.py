"""Who leaves its worker because a person says so: held, evicted, moved, or on a cluster that is
drained.

Rules of this file:

- What people want is in the log (a wish) or among what operators set (a drain). Here it becomes an
  order of a decision; the step that follows from it tells Kueue, by a check of ours that says Retry
  (checks.py), and Kueue ends the attempt by its own protocol.
- A hold and an eviction are ordered at once. A move, and a drain before its last moment, is ordered
  once the other cluster has room, which counts as taken from then on (known/on_the_way.py).
- Without a check of ours in its ClusterQueue a Workload stays, and ``why`` says so.
"""

from typing import Final, NamedTuple

from berthmaster.hub.multikueue.core.deciding.shortlist import shortlist_for
from berthmaster.hub.multikueue.core.known.bus_state import BusState
from berthmaster.hub.multikueue.core.known.hub import Rules
from berthmaster.hub.multikueue.core.known.workload_view import WorkloadView
from berthmaster.hub.multikueue.settings import HubPolicy
from berthmaster.lib.engine.fleetview.components import FITS
from berthmaster.lib.engine.queueing.leaving import (
    WISH_S,
    best_at_s,
    drain_words,
    last_moment_s,
    said_by,
)
from berthmaster.lib.engine.queueing.making_room import lost_gpu_s
from berthmaster.lib.kueue.names import CHECK_CONTROLLER
from berthmaster.lib.kueue.workloads import KueueWorkload
from berthmaster.lib.lifecycle.states import HELD
from berthmaster.lib.lifecycle.workload import Wish, Workload
from berthmaster.lib.messages.control import Cordon
from berthmaster.lib.messages.placement import HUB_CELL, MoveOrder
from berthmaster.lib.messages.workload import EvictionRequested

RESTART_S: Final = 60.0  # that a job needs to be at work again
NO_CHECK: Final = (
    f"it stays: its ClusterQueue has no AdmissionCheck of {CHECK_CONTROLLER}, by which Kueue is "
    "told to move it; add one, or have Kueue evict it"
)


class Leave(NamedTuple):
    """It goes now."""

    why: str  # of a MoveOrder
    reason: str
    who: str
    to: str = ""  # the cluster where room is kept for it


class Stay(NamedTuple):
    """Somebody wants it to go, and it does not yet."""

    why: str
    until_s: float = float("inf")


def own_check(hub: KueueWorkload, rules: Rules | None) -> str:
    """The check of ours by which a Workload is moved; "" = it has none."""
    names = rules.own_checks if rules is not None else ()
    return next((name for name in names if hub.check(name) is not None), "")


def look(
    know: BusState, view: WorkloadView, policy: HubPolicy, now_s: float
) -> Leave | Stay | None:
    """Whether it goes now; None if nobody wants that, or it was told before."""
    bus, hub = view.bus, view.hub
    if bus is None or hub is None or bus.state not in HELD or bus.leaving or bus.cancel_requested:
        return None
    drain = know.view.drains.get((bus.cluster, ""))
    if bus.wish is None and drain is None and bus.hold is None:
        return None
    if policy.mode != "dispatch":
        return Stay(f"it stays: in mode {policy.mode} nothing is moved on the hub")
    if not own_check(hub, view.rules):
        return Stay(NO_CHECK)
    if bus.hold is not None:
        return Leave("held", f"held by {said_by(bus.hold)}", bus.hold.who)
    asked = _wished(know, view, bus.wish, policy, now_s) if bus.wish is not None else None
    if drain is None or isinstance(asked, Leave):
        return asked
    return _drained(know, view, bus, drain, policy, now_s)


def _wished(
    know: BusState, view: WorkloadView, wish: Wish, policy: HubPolicy, now_s: float
) -> Leave | Stay:
    if wish.how == "evict":
        return Leave("asked", f"evicted by {said_by(wish)}", wish.who)
    where = wish.to or "another cluster"
    if now_s - wish.since_s > WISH_S:
        return Stay(f"a move to {where} found no room for an hour and was given up")
    to = _elsewhere(know, view, wish.to, policy, now_s)
    if to:
        return Leave("asked", f"moved to {to} by {said_by(wish)}", wish.who, to)
    return Stay(f"{wish.who} wants it in {where}; it goes when there is room for all of it")


def _drained(
    know: BusState,
    view: WorkloadView,
    bus: Workload,
    drain: Cordon,
    policy: HubPolicy,
    now_s: float,
) -> Leave | Stay:
    words = drain_words(drain)
    last_s = last_moment_s(bus, drain.drain_by_s)
    if now_s >= last_s:
        return Leave("drain", words, drain.set_by)
    if bus.request is not None and not bus.request.preemptible:
        return Stay(f"{words}; it is not preemptible", last_s)
    best_s = best_at_s(bus, now_s, drain.drain_by_s, RESTART_S)
    if best_s > now_s:
        return Stay(f"{words}; it ends or writes a checkpoint in {best_s - now_s:.0f} s", best_s)
    to = _elsewhere(know, view, "", policy, now_s)
    if to:
        return Leave("drain", words, drain.set_by, to)
    return Stay(f"{words}; it waits for room elsewhere", last_s)


def _elsewhere(know: BusState, view: WorkloadView, to: str, policy: HubPolicy, now_s: float) -> str:
    """The best other cluster that has room now."""
    assert view.bus is not None
    for candidate in shortlist_for(know, view, policy, now_s).candidates:
        name = candidate.ref.name
        fits = candidate.tier == FITS and not candidate.last
        if fits and name != view.bus.cluster and to in ("", name):
            return name
    return ""


def order(bus: Workload, leave: Leave, now_s: float) -> MoveOrder:
    """What a decision says of it."""
    return MoveOrder(
        tenant=bus.tenant,
        id=bus.id,
        attempt=bus.attempt,
        cluster=bus.cluster,
        lost_gpu_s=round(lost_gpu_s(bus, now_s, RESTART_S), 3),
        why=leave.why,  # type: ignore[arg-type] # one of its literals: see above
        to=leave.to,
        who=leave.who,
    )


def event_of(
    bus: Workload, reason: str, number: int, now_s: float, decider: str, to: str = ""
) -> EvictionRequested:
    """What follows in the log from an order of a decision, be it to move or to make room."""
    return EvictionRequested(
        tenant=bus.tenant,
        id=bus.id,
        after=bus.sequence,
        at_s=now_s,
        by=decider,
        cause=f"decision/{HUB_CELL}/{number}",
        cluster=bus.cluster,
        attempt=bus.attempt,
        reason=reason,
        decision=number,
        cell=HUB_CELL,
        to=to,
    )

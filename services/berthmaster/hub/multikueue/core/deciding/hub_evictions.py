"""Evictions of hub Workloads that operators request: holds, evictions, moves and drains.

``decide_eviction`` returns the ``Eviction`` that is carried out now, or why the Workload stays.
lib/engine/queueing/eviction.py has the rules; the search for free capacity is the hub's own.

Example: an operator requests that Workload train moves to rome. While rome is full it stays. Once
rome has capacity, the decision holds a ``MoveOrder`` to rome, and Kueue ends the attempt.

Rules of this file:

- Requests are in the log (a hold, a move) or among what operators set (a drain). Here they become
  orders of a decision. The next step sets a check of ours to Retry (checks.py), and Kueue ends the
  attempt by its own protocol.
- The free capacity of a move or a drain counts as taken from then on (known/on_the_way.py).
- Without a check of ours in its ClusterQueue a Workload stays, and ``why`` says so.
"""

from typing import Final

from berthmaster.hub.multikueue.core.deciding.shortlist import shortlist_for
from berthmaster.hub.multikueue.core.known.bus_state import BusState
from berthmaster.hub.multikueue.core.known.hub import Rules
from berthmaster.hub.multikueue.core.known.workload_view import WorkloadView
from berthmaster.hub.multikueue.policy import HubPolicy
from berthmaster.lib.engine.fleetview.components import FITS
from berthmaster.lib.engine.queueing.eviction import (
    Eviction,
    Relocation,
    Stay,
    drain_eviction,
    drain_words,
    last_moment_s,
    requested_eviction,
)
from berthmaster.lib.kueue.names import CHECK_CONTROLLER
from berthmaster.lib.kueue.workloads import KueueWorkload
from berthmaster.lib.lifecycle.states import HELD

RESTART_S: Final = 60.0  # time from a restart to useful work
NO_CHECK: Final = (
    f"it stays: its ClusterQueue has no AdmissionCheck of {CHECK_CONTROLLER}, by which Kueue is "
    "told to move it; add one, or have Kueue evict it"
)


def own_check(hub: KueueWorkload, rules: Rules | None) -> str:
    """Return the Berthmaster check that evicts a Workload; "" without one."""
    names = rules.own_checks if rules is not None else ()
    return next((name for name in names if hub.check(name) is not None), "")


def decide_eviction(
    know: BusState, view: WorkloadView, policy: HubPolicy, now_s: float
) -> Eviction | Stay | None:
    """Return the eviction of a Workload, or why it stays; None without a request, or once the log
    has the eviction.
    """
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
    found = requested_eviction(bus, now_s)
    if isinstance(found, Relocation):
        where = found.to or "another cluster"
        why = f"{found.who} wants it in {where}; it goes when there is room for all of it"
        found = _placed(know, view, found, policy, now_s) or Stay(why)
    if drain is None or isinstance(found, Eviction):
        return found
    drained, words = drain_eviction(bus, drain, now_s, RESTART_S), drain_words(drain)
    match drained:
        case Relocation():
            stays = Stay(
                f"{words}; it waits for room elsewhere", last_moment_s(bus, drain.drain_by_s)
            )
            return _placed(know, view, drained, policy, now_s) or stays
        case Stay(why, until_s):
            return Stay(f"{words}; {why}", until_s)
    return drained


def _placed(
    know: BusState, view: WorkloadView, move: Relocation, policy: HubPolicy, now_s: float
) -> Eviction | None:
    """Return the eviction into the best other cluster with free capacity now; None without one."""
    assert view.bus is not None
    for candidate in shortlist_for(know, view, policy, now_s).candidates:
        name = candidate.ref.name
        fits = candidate.tier == FITS and not candidate.last
        if fits and name != view.bus.cluster and move.to in ("", name):
            return move.into(name)
    return None

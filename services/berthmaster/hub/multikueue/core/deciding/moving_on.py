"""Conditions to leave a nominated cluster for the next one: no admission in time, or never."""

from berthmaster.hub.multikueue.core.deciding.shortlist import (
    better_again,
    next_best,
    shortlist_for,
    why_out,
)
from berthmaster.hub.multikueue.core.deciding.traps import busy, hopeless
from berthmaster.hub.multikueue.core.known.avoided import NEGLECTED, taken_words
from berthmaster.hub.multikueue.core.known.bus_state import BusState
from berthmaster.hub.multikueue.core.known.workload_view import Memo, WorkloadView
from berthmaster.hub.multikueue.policy import HubPolicy
from berthmaster.lib.engine.fleetview.components import FITS
from berthmaster.lib.kueue.contract import forbidden


def in_vain(view: WorkloadView, memo: Memo, know: BusState, policy: HubPolicy, now_s: float) -> str:
    """Why waiting for the open attempt's cluster is in vain, or ""."""
    bus, hub, rules = view.bus, view.hub, view.rules
    if bus is None or hub is None or rules is None or view.admitted_copy is not None:
        return ""
    if not hub.active:
        return ""  # Kueue ends its attempt
    if view.heard_since_s > now_s:
        return ""  # nothing would follow: no old copy is removed, and no new one created
    if forbidden(hub, rules.check) or bus.cluster not in view.nominated:
        return ""
    if view.copy is not None and view.copy.blocked_by:
        return taken_words(bus.cluster, view.copy.blocked_by)
    if why := why_out(know, view, policy, now_s, bus.cluster):
        return f"{bus.cluster} {why}"
    if neglect := _neglected(view, know, policy, now_s):
        return neglect
    message = view.copy.message if view.copy is not None else ""
    if hopeless(view.copy):
        return message
    if busy(view.copy):
        shortlist = shortlist_for(know, view, policy, now_s)
        best = next_best(shortlist, {*memo.tried, bus.cluster}, policy, 0.0)
        fits = {c.ref.name for c in shortlist.candidates if c.tier == FITS}
        return message if best is not None and best[0] in fits else ""
    return ""


def another(view: WorkloadView, memo: Memo, know: BusState, policy: HubPolicy, now_s: float) -> str:
    """The cluster to try next, or ""."""
    since_s = memo.ready_at_s if memo.ready_at_s is not None else now_s
    shortlist = shortlist_for(know, view, policy, now_s)
    here = view.bus.cluster if view.bus is not None else ""
    alive = tuple(candidate for candidate in shortlist.candidates if not candidate.last)
    if not alive and shortlist.candidates:
        return ""  # a cluster with a dead Kueue is no better
    shortlist = shortlist._replace(candidates=alive)
    found = next_best(shortlist, {*memo.tried, here}, policy, now_s - since_s)
    if found is None:
        found = better_again(shortlist, {**memo.tried, here: now_s}, policy, now_s)
    return found[0] if found is not None else ""


def _neglected(view: WorkloadView, know: BusState, policy: HubPolicy, now_s: float) -> str:
    """Why Kueue seems to be dead there, if it does and another cluster does not; or ""."""
    bus, copy = view.bus, view.copy
    assert bus is not None
    neglected = copy is not None and know.attention.neglected_s(copy, now_s, policy.neglect_s)
    unsent = copy is None and now_s >= bus.claimed_at_s + policy.mute_s
    if not neglected and not (unsent and bus.cluster in know.demoted(policy, now_s)):
        return ""
    candidates = shortlist_for(know, view, policy, now_s).candidates
    if not any(not one.last and one.ref.name != bus.cluster for one in candidates):
        return ""
    if neglected:
        return f"{NEGLECTED} for {policy.neglect_s:g} s, while others are looked at"
    last = next((one.last for one in candidates if one.ref.name == bus.cluster), "")
    return f"no copy of it is there, and of {bus.cluster} was heard: {last}" if last else ""

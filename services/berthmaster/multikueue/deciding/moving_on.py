"""When a cluster that was nominated is left for the next one: not admitted, or never to be."""

from berthmaster.engine.scoring.parts.tier import FITS
from berthmaster.kueue.contract import forbidden
from berthmaster.multikueue.deciding.shortlist import next_best, shortlist_for
from berthmaster.multikueue.deciding.traps import busy, hopeless
from berthmaster.multikueue.known.bus_state import BusState
from berthmaster.multikueue.known.workload_view import Memo, WorkloadView
from berthmaster.multikueue.settings import HubPolicy


def in_vain(view: WorkloadView, know: BusState, policy: HubPolicy, now_s: float) -> str:
    """Why waiting for the open attempt's cluster is in vain, or ""."""
    bus, hub, rules = view.bus, view.hub, view.rules
    if bus is None or hub is None or rules is None or view.admitted_copy is not None:
        return ""
    if forbidden(hub, rules.check) or bus.cluster not in view.nominated:
        return ""
    shortlist = shortlist_for(know, view, policy, now_s)
    why = shortlist.filtered.get(bus.cluster, "")
    if why and bus.cluster not in {ref.name for ref in shortlist.unknown}:
        return f"{bus.cluster} {why}"
    message = view.copy.message if view.copy is not None else ""
    if hopeless(message):
        return message
    if busy(message):
        best = next_best(view, shortlist, policy, 0.0)
        fits = {c.ref.name for c in shortlist.candidates if c.tier == FITS}
        return message if best is not None and best[0] in fits else ""
    return ""


def has_another(
    view: WorkloadView, memo: Memo, know: BusState, policy: HubPolicy, now_s: float
) -> bool:
    """Whether there is a cluster to try next."""
    since_s = memo.ready_at_s if memo.ready_at_s is not None else now_s
    shortlist = shortlist_for(know, view, policy, now_s)
    return next_best(view, shortlist, policy, now_s - since_s) is not None

"""One Workload against the clusters of its MultiKueueConfig: candidates, best first, and reasons
for the others.

Filters, components and profiles are the engine's. gate.py adds the hub's filters. Clusters with
equal scores keep the order of the configuration. Clusters that report nothing, or no queues, are
*unknown*: Kueue may reach them all the same, so they are the last resort without other candidates.
Clusters whose Kueue ignores copies go behind all others (known/avoided.py).
"""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from berthmaster.hub.multikueue.core.deciding.gate import NO_REPORT, Asked, HubGate
from berthmaster.hub.multikueue.core.known.bus_state import BusState
from berthmaster.hub.multikueue.core.known.hub import ClusterRef, Rules
from berthmaster.hub.multikueue.core.known.requests import (
    by_resource,
    read_asks,
    read_required,
    read_sets,
    without_shares,
)
from berthmaster.hub.multikueue.core.known.workload_view import WorkloadView
from berthmaster.hub.multikueue.policy import HubPolicy
from berthmaster.lib.engine.fleet.clusters import SILENT, UNSCORED
from berthmaster.lib.engine.fleet.needs import Shape, shape_of
from berthmaster.lib.engine.fleetview.components import FITS
from berthmaster.lib.engine.fleetview.ranking import Weighting
from berthmaster.lib.engine.fleetview.shortlist import (
    ClusterSnapshot,
    Shortlist,
    filter_and_rank,
    filtered_for,
    why_unsuitable,
)
from berthmaster.lib.messages.placement import RankedCluster
from berthmaster.lib.messages.workload import JobRequest

MOST_AGE_S: Final = 1e9  # maximum age in a record
UNKNOWN_FOR: Final = (SILENT, UNSCORED, NO_REPORT)  # of such a cluster nothing is known
NO_RANKING: Final = "nothing is known of its clusters: next in the configuration's order"
TIER_WORDS: Final = (
    "fits now",
    "has quota, its GPUs are busy",
    "has quota, its nodes are yet to come",
    "has no quota left now",
)


class HubCandidate(NamedTuple):
    """A cluster that fits."""

    ref: ClusterRef
    tier: int  # one of lib/engine/fleetview/components.py's
    headroom: float  # GPUs, or CPU cores for requests without GPUs
    note: str = ""  # future nodes, described
    last: str = ""  # why it goes behind all others

    @property
    def words(self) -> str:
        if self.last:
            return f"goes last: {self.last}"
        note = f": {self.note}" if self.note else ""
        return f"{TIER_WORDS[self.tier]}{note}, room for {self.headroom:g}"


class HubShortlist(NamedTuple):
    """The clusters of a configuration, seen with one Workload's eyes."""

    candidates: tuple[HubCandidate, ...]  # best first
    filtered: dict[str, str]  # reason by cluster that is out
    unknown: tuple[ClusterRef, ...]  # clusters without any report
    fleet: Shortlist | None  # full result; None without rules
    gate: HubGate | None = None  # gate of this result

    @property
    def weighting(self) -> Weighting | None:
        """How the clusters were ranked."""
        return self.fleet.weighting if self.fleet is not None else None


class _Asking(NamedTuple):
    """The request of one Workload, and the hub's inputs for clusters."""

    rules: Rules
    request: JobRequest
    shape: Shape
    snapshot: ClusterSnapshot
    gate: HubGate


def _asking(know: BusState, view: WorkloadView, policy: HubPolicy, now_s: float) -> _Asking | None:
    """Return None where no rules hold, or log or hub do not have the Workload."""
    rules, bus, hub = view.rules, view.bus, view.hub
    if rules is None or bus is None or hub is None:
        return None
    request = by_resource(bus.request or JobRequest(id=bus.id))
    sets = read_sets(hub)
    asks = read_asks(hub, request, sets)
    required = read_required(hub, asks, sets)
    shares = know.share_names()
    request = without_shares(request, shares)
    namespace, queue = hub.metadata.namespace, hub.spec.queue_name
    kind, _ = hub.owner
    asked = Asked(bus.key, namespace, queue, request, asks, required, shares, kind)
    snapshot = know.snapshot(policy, now_s)
    gate = HubGate(know, snapshot, rules, asked, policy)
    return _Asking(rules, request, shape_of(request), snapshot, gate)


def shortlist_for(
    know: BusState, view: WorkloadView, policy: HubPolicy, now_s: float
) -> HubShortlist:
    """Return the clusters for one Workload."""
    asking = _asking(know, view, policy, now_s)
    if asking is None:
        return HubShortlist((), {}, (), None)
    rules, request, shape, snapshot, gate = asking
    found = filter_and_rank(know.view, snapshot, request, shape, gate)
    refs: dict[str, ClusterRef] = {}
    for ref in rules.clusters:
        refs.setdefault(ref.name, ref)
    score, clusters = found.candidates.found.values[0], found.candidates.clusters
    place = {name: number for number, name in enumerate(refs)}
    found.candidates.order.sort(
        key=lambda number: (
            bool(gate.last(clusters[number])),
            -score[number],
            place[clusters[number]],
        )
    )
    best = [candidate.cluster for candidate in found.candidates]
    filtered: dict[str, str] = {}
    unknown: list[ClusterRef] = []
    for ref in rules.clusters:
        if ref is not refs[ref.name]:
            filtered[ref.hub_name] = ref.closed
        elif ref.name not in best:
            why = gate.shut(ref.name)
            if not why:
                why = why_unsuitable(know.view.clusters.peek(ref.name), shape, gate.via)
            if not why:
                why = found.filtered.get(ref.name, "") or _unheard(know, ref.name, policy, now_s)
                if why in UNKNOWN_FOR:
                    unknown.append(ref)
            filtered[ref.name] = why
    candidates = tuple(
        HubCandidate(
            refs[name], int(gate.tier(name)), gate.headroom(name), gate.note(name), gate.last(name)
        )
        for name in best
    )
    return HubShortlist(candidates, filtered, tuple(unknown), found, gate)


def why_out(
    know: BusState, view: WorkloadView, policy: HubPolicy, now_s: float, cluster: str
) -> str:
    """Return why one cluster is no candidate, like a shortlist; "" if it is one, or unknown.

    For thousands of checks of Workloads that only wait, because a full shortlist ranks every
    cluster.
    """
    asking = _asking(know, view, policy, now_s)
    if asking is None:
        return ""
    gate, clusters = asking.gate, asking.snapshot.clusters
    why = gate.shut(cluster)
    why = why or why_unsuitable(know.view.clusters.peek(cluster), asking.shape, gate.via)
    if not why and cluster not in clusters:
        why = _unheard(know, cluster, policy, now_s)
    elif not why:
        filtered = filtered_for(know.view, asking.snapshot, asking.shape, by_hub=True)
        is_open = filtered.open[clusters.index(cluster)]
        why = gate.why_never(cluster) if is_open else filtered.why[cluster]
    return "" if why in UNKNOWN_FOR else why


def _unheard(know: BusState, cluster: str, policy: HubPolicy, now_s: float) -> str:
    """Return why a cluster without nodes and queues is out."""
    seen = know.view.clusters.view(
        cluster, now_s, stale_after_s=policy.stale_after_s, avoid_s=policy.avoid_s
    )
    return seen.closed or NO_REPORT


def ranking(
    shortlist: HubShortlist, chosen: str, know: BusState, policy: HubPolicy, now_s: float
) -> tuple[RankedCluster, ...]:
    """Return the ranking for a record: the chosen cluster with its score, then the best."""
    found = shortlist.fleet
    if found is None:
        return ()
    for candidate in found.candidates:
        if candidate.cluster == chosen:
            return found.ranking(candidate)
    age_s = max(0.0, now_s - know.view.clusters.peek(chosen).alive_at_s)
    age_s = round(min(age_s, MOST_AGE_S), 3)
    first = RankedCluster(cluster=chosen, score=0.0, parts={}, input_age_s=age_s)
    rest = found.ranking(found.candidates[0]) if found.candidates else ()
    return (first, *rest)[: policy.ranking_limit]


def kept_place(shortlist: HubShortlist, view: WorkloadView) -> HubCandidate | None:
    """Return the cluster with a reservation for a moved Workload, if it still fits."""
    to = view.bus.leads_to if view.bus is not None else ""
    return next((each for each in shortlist.candidates if each.ref.name == to), None)


def next_best(
    shortlist: HubShortlist, tried: Collection[str], policy: HubPolicy, silent_for_s: float
) -> tuple[str, str] | None:
    """Return the best cluster not tried yet with a note, or None."""
    for candidate in shortlist.candidates:
        if candidate.ref.name not in tried:
            return candidate.ref.name, candidate.words
    if shortlist.candidates or silent_for_s < policy.silent_s:
        return None
    for ref in shortlist.unknown:
        if ref.name not in tried:
            return ref.name, NO_RANKING
    return None


def better_again(
    shortlist: HubShortlist, tried: Mapping[str, float], policy: HubPolicy, now_s: float
) -> tuple[str, str] | None:
    """The best cluster that was tried a while ago and fits now. A place in line is lost by moving,
    so nothing less is a reason to."""
    for candidate in shortlist.candidates:
        left_at_s = tried.get(candidate.ref.name, float("inf"))
        fits = candidate.tier == FITS and not candidate.last
        if fits and now_s >= left_at_s + policy.patience_s:
            return candidate.ref.name, candidate.words
    return None

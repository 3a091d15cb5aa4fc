"""One request against the whole fleet: clusters that fit, their scores, and why others do not.

The same code answers for a decision, for "why not yet?" and for a dry run, so that an explanation
can never differ from what is done. It has three steps:

1. Filter. The filters of clusters (fleet/cluster_filters.py) find the same for all requests of a
   shape. What closes a cluster (silence, a cordon, its hub) is the same for all requests of a
   snapshot. So both are worked out once a snapshot. A ``Gate`` answers for each request again.
2. Rank (ranking.py).
3. Bind all pods in the best cluster that has places for them.

``ClusterSnapshot`` is what all requests of one decision have in common: the clusters as of one
time. What depends on no request is worked out once a snapshot, at its first use.
"""

from collections.abc import Hashable, Iterable
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from berthmaster.lib.engine.fitting.fit import Bound, bind_gang, bind_one
from berthmaster.lib.engine.fleet.cluster_filters import FILTERS, why_not_made
from berthmaster.lib.engine.fleet.clusters import Cluster
from berthmaster.lib.engine.fleet.needs import Shape, Suitable, prefers
from berthmaster.lib.engine.fleet.shares import wants_fraction
from berthmaster.lib.engine.fleetview.components import Gate, RankingInput
from berthmaster.lib.engine.fleetview.ranking import (
    Candidate,
    Candidates,
    RankingPolicy,
    Weighting,
    Weightings,
    rank,
)
from berthmaster.lib.engine.fleetview.view import FleetView
from berthmaster.lib.engine.scoring.cluster_scores import NOTHING, Floats
from berthmaster.lib.engine.scoring.cluster_table import ClusterTable
from berthmaster.lib.engine.scoring.pod_mix import Sampled
from berthmaster.lib.engine.scoring.score_cache import Scorecard
from berthmaster.lib.engine.scoring.value import Worth
from berthmaster.lib.messages.placement import Pressure, RankedCluster, Via
from berthmaster.lib.messages.workload import JobRequest

MOST_AGE_S: Final = 1e9  # maximum age in a record


class Filtered(NamedTuple):
    """Clusters out for requests of one shape, whatever their free capacity."""

    why: dict[str, str]  # cluster -> why
    open: NDArray[np.bool_]  # [C], the other clusters
    busy: dict[bytes, dict[str, str]]  # clusters with capacity -> reasons of all others
    shares: bool  # the shape asks for part of a GPU


class ClusterSnapshot:
    def __init__(
        self,
        policy: RankingPolicy,
        now_s: float,
        table: ClusterTable,
        worth: Worth,
        pressure: Pressure,
    ) -> None:
        seen = table.at(now_s, stale_after_s=policy.stale_after_s, avoid_s=policy.avoid_s)
        self.policy = policy
        self.now_s = now_s
        self.table = table
        self.worth = worth  # of holes, by the mix seen so far
        self.pressure = pressure  # scarcity of nodes
        self.clusters = table.names  # in the order of the fleet's arrays
        self.age_s = _ages_to_show(seen.age_s)  # for records
        self.closed = seen.closed  # number -> why the cluster takes no new placements
        self.open = table.open  # names of open clusters
        # By key of a shape, b"" = that asks nothing of clusters, and whether the hub makes copies.
        # Kept while the same clusters are closed.
        self.filtered: dict[Hashable, Filtered] = table.filtered
        self.weightings = Weightings(policy, table)


def snapshot_of(
    view: FleetView,
    policy: RankingPolicy,
    now_s: float,
    sampled: Sampled,
    *,
    pressure: Pressure,
    also: Iterable[str] = (),
) -> ClusterSnapshot:
    """Return all clusters as of now. ``sampled``: the mix of pods that holes are valued by.
    ``pressure``: which nodes are scarce. ``also``: clusters to be seen although they have no nodes,
    behind those that have some."""
    fleet, derived = view.fleet, view.derived
    fleet.arrange()
    more = [name for name in also if name not in fleet.clusters]
    layout = (fleet.layout, *more)
    derived.table.follow(view.clusters, [*fleet.clusters, *more], layout)
    cpu_a_gpu = derived.ledger.cpu_a_gpu()
    worth = derived.appraiser.under(pressure, fleet, sampled, cpu_a_gpu)
    return ClusterSnapshot(policy, now_s, derived.table, worth, pressure)


def _ages_to_show(age_s: Floats) -> list[float]:
    """Return ages as in records, in whole milliseconds."""
    ages: list[float] = (np.floor(np.minimum(age_s, MOST_AGE_S) * 1e3) / 1e3).tolist()
    return ages


BUSY: Final = "busy: no room now"
NO_NODES: Final = "has no nodes"
LESS_LIKED: Final = "has room on GPU models only that it likes less"
SHAPES_KEPT: Final = 4096
BUSY_KEPT: Final = 8  # cached sets of clusters with free capacity, for each shape


def filtered_for(
    view: FleetView, snapshot: ClusterSnapshot, shape: Shape, *, by_hub: bool
) -> Filtered:
    """Return clusters out for all requests of a shape, whatever their capacity."""
    known = snapshot.filtered.get((shape.key, by_hub))
    if known is not None:
        return known
    if len(snapshot.filtered) >= SHAPES_KEPT:
        snapshot.filtered.clear()
    shares = any(wants_fraction(pods) for pods in shape.pod_sets)
    if not snapshot.table.tainted and _passes_all(shape):
        usual = snapshot.filtered.get((b"", by_hub))
        if usual is None:  # the same for all such shapes
            usual = snapshot.filtered[b"", by_hub] = _filtered_by(snapshot, {}, shares=False)
        known = Filtered(usual.why, usual.open, {}, shares)
    else:
        unsuitable = snapshot.table.note(
            ("unsuitable", shape.key, by_hub),
            lambda: _unsuitable(view, snapshot, shape, "hub" if by_hub else "direct"),
        )
        known = _filtered_by(snapshot, unsuitable, shares=shares)
    snapshot.filtered[shape.key, by_hub] = known
    return known


def _filtered_by(
    snapshot: ClusterSnapshot, unsuitable: dict[int, str], *, shares: bool
) -> Filtered:
    """Combine closed clusters with ``unsuitable``, numbers of clusters ruled out by the request."""
    why = dict.fromkeys(snapshot.table.without_nodes, NO_NODES)
    out = snapshot.closed | unsuitable if unsuitable else snapshot.closed
    for number in sorted(out):
        why[snapshot.clusters[number]] = out[number]
    is_open = np.ones(len(snapshot.clusters), np.bool_)
    is_open[list(out)] = False
    return Filtered(why, is_open, {}, shares)


def _passes_all(shape: Shape) -> bool:
    """Whether no filter can rule out a cluster without taints."""
    return all(each.passes_all(*map(shape.fields.__getitem__, each.reads)) for each in FILTERS)


def _unsuitable(
    view: FleetView, snapshot: ClusterSnapshot, shape: Shape, via: Via
) -> dict[int, str]:
    """Return numbers of clusters ruled out by the request, with reasons."""
    found = {}
    for number, name in enumerate(snapshot.clusters):
        if why := why_unsuitable(view.clusters.peek(name), shape, via):
            found[number] = why
    return found


def why_unsuitable(cluster: Cluster, shape: Shape, via: Via) -> str:
    """Return why a cluster will not do for what the request says of clusters, or ""."""
    for each in FILTERS:
        if why := each.why_not(cluster, via, *map(shape.fields.__getitem__, each.reads)):
            return why
    return ""


def behind_gate(
    view: FleetView,
    snapshot: ClusterSnapshot,
    shape: Shape,
    gate: Gate,
    filtered: Filtered,
) -> Filtered:
    """Without the clusters whose own queueing would not let the request in."""
    why, is_open = dict(filtered.why), filtered.open.copy()
    for number in np.flatnonzero(is_open).tolist():
        name = snapshot.clusters[number]
        not_made = why_not_made(view.clusters.peek(name), gate.via, shape.pod_sets)
        if found := not_made or gate.why_not(name):
            why[name] = found
            is_open[number] = False
    return Filtered(why, is_open, {}, filtered.shares)


def with_busy(
    snapshot: ClusterSnapshot, filtered: Filtered, able: bytes, suitables: list[Suitable]
) -> dict[str, str]:
    """Return the reasons of closed clusters and of clusters without a suitable node with capacity.
    ``able``: a byte for each cluster with one.
    """
    known = filtered.busy.get(able)
    if known is None:
        known = dict(filtered.why)
        has_room: NDArray[np.bool_] = np.frombuffer(able, np.bool_)
        for number in np.flatnonzero(filtered.open & ~has_room).tolist():
            cluster = snapshot.clusters[number]
            whys = (s.why_not.get(cluster) for s in suitables)
            known[cluster] = next((why for why in whys if why), BUSY)
        if len(filtered.busy) >= BUSY_KEPT:
            filtered.busy.clear()
        filtered.busy[able] = known
    return known


_NO_GATE = Gate()


class Shortlist(NamedTuple):
    """The fleet, seen with one request's eyes."""

    snapshot: ClusterSnapshot
    candidates: Candidates  # best first
    filtered: dict[str, str]  # reason by cluster that is out
    suitables: list[Suitable]  # one a pod set
    cards: list[Scorecard]  # one a pod set

    @property
    def weighting(self) -> Weighting:
        return self.candidates.weighting

    def ranking(self, first: Candidate) -> tuple[RankedCluster, ...]:
        """Return the best clusters for a record, the chosen one first."""
        candidates, age_s = self.candidates, self.snapshot.age_s
        clusters, kept = candidates.clusters, self._kept(first.number)
        return tuple(
            [
                RankedCluster(
                    cluster=clusters[number],
                    score=score,
                    parts=parts,
                    input_age_s=age_s[number],
                )
                for number, (score, parts) in zip(kept, candidates.shown(kept), strict=True)
            ]
        )

    def _kept(self, first: int) -> list[int]:
        """Return numbers of the clusters in a record."""
        limit, clusters = self.snapshot.policy.ranking_limit, self.candidates.clusters
        kept = [first]
        for number in self.candidates.order:
            if len(kept) >= limit:
                break
            if number != first and clusters[number] not in self.filtered:
                kept.append(number)
        return kept


def filter_and_rank(
    view: FleetView,
    snapshot: ClusterSnapshot,
    request: JobRequest,
    shape: Shape,
    gate: Gate | None = None,
) -> Shortlist:
    """Return all clusters for a request.

    Preferred GPU models are used if a cluster has capacity of them for the whole request, else all
    accepted models. ``gate``: None if no cluster's own queue governs the request.
    """
    shortlist = _as_asked(view, snapshot, request, shape, gate)
    sets = shape.pod_sets
    may_prefer = (sets[0].prefer_gpu_models or len(sets) > 1) and prefers(shape)
    if may_prefer and not (gate is not None and gate.is_tiered):  # Kueue knows no preferences
        return _by_preference(view, snapshot, request, shape, gate, shortlist)
    return shortlist


def _by_preference(
    view: FleetView,
    snapshot: ClusterSnapshot,
    request: JobRequest,
    shape: Shape,
    gate: Gate | None,
    any_model: Shortlist,
) -> Shortlist:
    """Try preferred models on clusters that fit with any model."""
    if not any_model.candidates:
        return any_model
    for tried in view.derived.suitables.narrowed(view.fleet, shape):
        asked = msgspec.structs.replace(request, pod_sets=tried.pod_sets)
        found = _as_asked(view, snapshot, asked, tried, gate)
        gang = len(asked.pod_sets) > 1 or asked.pod_sets[0].count > 1
        if not found.candidates or (gang and bind(view, asked, found) is None):
            continue
        filtered = dict(any_model.filtered)
        clusters, able = found.candidates.clusters, set(found.candidates.order)
        for number in any_model.candidates.order:
            name = clusters[number]
            if number not in able:
                filtered[name] = LESS_LIKED
            elif name in found.filtered:
                filtered[name] = found.filtered[name]
        return found._replace(filtered=filtered)
    return any_model


def _as_asked(
    view: FleetView, snapshot: ClusterSnapshot, request: JobRequest, shape: Shape, gate: Gate | None
) -> Shortlist:
    by_hub = gate is not None and gate.via == "hub"
    filtered = filtered_for(view, snapshot, shape, by_hub=by_hub)
    is_tiered = gate is not None and gate.is_tiered
    weighting = snapshot.weightings.of(
        request,
        view.queues.get(request.queue),
        shares=filtered.shares,
        governed=gate is not None,
        tiered=is_tiered,
    )
    suitables: list[Suitable] = []
    cards: list[Scorecard] = []
    for index in range(len(shape.pod_sets)):
        suitable, card = view.card(shape, index, snapshot.worth)
        suitables.append(suitable)
        cards.append(card)
    if not snapshot.clusters:
        nothing = Candidates([], NOTHING, None, weighting, (), ())
        return Shortlist(snapshot, nothing, dict(filtered.why), suitables, cards)
    single = len(cards) == 1 and shape.pod_sets[0].count == 1
    if gate is not None:
        filtered = behind_gate(view, snapshot, shape, gate, filtered)
    may = filtered.open
    if not single and not is_tiered:
        may = may & _clusters_with_room(view, shape, cards, suitables)
    given = RankingInput(
        view.fleet, snapshot.table, snapshot.clusters, request, gate or _NO_GATE, cards
    )
    candidates = rank(given, weighting, may)
    why = with_busy(snapshot, filtered, candidates.found.able, suitables)
    if not single:
        why = dict(why)  # a caller may add reasons while binding
    return Shortlist(snapshot, candidates, why, suitables, cards)


def bind(
    view: FleetView, request: JobRequest, shortlist: Shortlist
) -> tuple[Candidate, Bound] | None:
    """Places for all pods, in the best cluster that has them. A gang's bound may have been too
    hopeful: then the next cluster is tried, and the first is noted as busy."""
    worth = shortlist.snapshot.worth
    for candidate in shortlist.candidates:
        if candidate.slot >= 0:
            binding, held = bind_one(
                view.fleet,
                candidate.slot,
                request.pod_sets[0],
                shortlist.suitables[0],
                worth,
                card=shortlist.cards[0],
            )
            return candidate, Bound((binding,), (held,))
        bound = bind_gang(
            view.fleet,
            candidate.number,
            request.pod_sets,
            shortlist.suitables,
            worth,
            shortlist.cards,
        )
        if bound is not None:
            return candidate, bound
        shortlist.filtered[candidate.cluster] = BUSY
    return None


def _clusters_with_room(
    view: FleetView, shape: Shape, cards: list[Scorecard], suitables: list[Suitable]
) -> NDArray[np.bool_]:
    """Return clusters that may hold each pod set alone: a bound, not a promise."""
    fleet = view.fleet
    fits = np.ones(len(fleet.clusters), np.bool_)
    for pods, suitable, card in zip(shape.pod_sets, suitables, cards, strict=True):
        fits &= card.room_for(fleet, pods, suitable).clusters >= pods.count
    return fits

"""One request against the whole fleet: which clusters could take it, how good, why not the rest.

The same code answers for a decision, for "why not yet?" and for a dry run, so that an explanation
can never differ from what is done: filter (filters.py), rank (ranking.py), bind.
"""

from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from berthmaster.lib.engine.fitting.fit import Bound, Scratch, bind_gang, bind_one
from berthmaster.lib.engine.fleet.needs import Shape, Suitable, prefers
from berthmaster.lib.engine.fleetview.components import RankingInput
from berthmaster.lib.engine.fleetview.filters import (
    BUSY,
    LESS_LIKED,
    behind_gate,
    filtered_for,
    with_busy,
)
from berthmaster.lib.engine.fleetview.queue_gate import Gate
from berthmaster.lib.engine.fleetview.ranking import Candidate, Candidates, rank
from berthmaster.lib.engine.fleetview.snapshot import ClusterSnapshot
from berthmaster.lib.engine.fleetview.view import FleetView
from berthmaster.lib.engine.fleetview.weighting import Weighting
from berthmaster.lib.engine.scoring.cluster_scores import NOTHING
from berthmaster.lib.engine.scoring.score_cache import Scorecard
from berthmaster.lib.messages.placement import RankedCluster
from berthmaster.lib.messages.workload import JobRequest

_NO_GATE = Gate()


class Shortlist(NamedTuple):
    """The fleet, seen with one request's eyes."""

    snapshot: ClusterSnapshot
    candidates: Candidates  # best first
    filtered: dict[str, str]  # cluster -> why it is out
    suitables: list[Suitable]  # one a pod set
    cards: list[Scorecard]  # one a pod set

    @property
    def weighting(self) -> Weighting:
        return self.candidates.weighting

    def ranking(self, first: Candidate) -> tuple[RankedCluster, ...]:
        """The best clusters as a record shows them, the chosen one first, as many as it keeps."""
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
        """Numbers of the clusters that a record keeps."""
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
    """All clusters for a request: by the GPU models that it prefers, if any of them has room for
    all of it, else by all that it takes. ``gate``: None where no cluster's own queue governs it."""
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
    """Only what could take it with any model can take it with those that it prefers."""
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
        why = dict(why)  # whoever binds it may find out more
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
            Scratch(view.fleet),
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
    """Which clusters could hold each pod set by itself: a bound, not a promise."""
    fleet = view.fleet
    fits = np.ones(len(fleet.clusters), np.bool_)
    for pods, suitable, card in zip(shape.pod_sets, suitables, cards, strict=True):
        fits &= card.room_for(fleet, pods, suitable).clusters >= pods.count
    return fits

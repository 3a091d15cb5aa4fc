"""One evaluation of one Placement: numbered phases over one frozen snapshot. Pure.

1. sets       clusters of the sets that are bound and requested
2. filters    predicates, then taints
3. scores     every prioritizer with a weight; an unknown score is 0, as with OCM, or the
              worst if the Placement says so
4. order      by weighted sum, highest first, then by name
5. selection  the first numberOfClusters; with a margin, a chosen cluster stays until another
              is ahead by more; if all measured scores are unknown, chosen clusters stay

The same snapshot gives the same outcome. The outcome includes every verdict.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from berthmaster.hub.placement.core.objects import CandidateCluster
from berthmaster.hub.placement.core.scheduling import sets
from berthmaster.hub.placement.core.scheduling.plugin import (
    LEAST,
    MOST,
    Filter,
    Prioritizer,
    Scored,
    Snapshot,
    earlier,
)
from berthmaster.hub.placement.core.scheduling.plugins import (
    addon,
    allocatable,
    balance,
    predicate,
    steady,
    tainttoleration,
)
from berthmaster.hub.placement.core.scheduling.request import Request, Weighted

FILTERS: Final[tuple[tuple[str, Filter], ...]] = (
    (predicate.NAME, predicate.keep),
    (tainttoleration.NAME, tainttoleration.keep),
)
BUILT_IN: Final[Mapping[str, Prioritizer]] = {
    balance.NAME: balance.score,
    steady.NAME: steady.score,
    allocatable.CPU: allocatable.score_cpu,
    allocatable.MEMORY: allocatable.score_memory,
}
# prioritizers that compare decisions, not clusters
UNMEASURED: Final = frozenset({balance.NAME, steady.NAME})
BLIND: Final = "nothing is known of what the clusters are compared by: who is chosen stays"
DESCRIPTIONS: Final[Mapping[str, str]] = {
    predicate.NAME: predicate.DESCRIPTION,
    tainttoleration.NAME: tainttoleration.DESCRIPTION,
    balance.NAME: balance.DESCRIPTION,
    steady.NAME: steady.DESCRIPTION,
    allocatable.CPU: allocatable.DESCRIPTION,
    allocatable.MEMORY: allocatable.DESCRIPTION,
    addon.NAME: addon.DESCRIPTION,
}


class Ranked(NamedTuple):
    """A cluster, its score, and each prioritizer's component in the order of ``weights`` below."""

    cluster: str
    total: int
    parts: tuple[int, ...] = ()


class ScheduleResult(NamedTuple):
    bindings: int  # number of valid bindings
    eligible: tuple[str, ...]  # names of the sets
    available: int  # number of clusters in those sets
    left_out: Mapping[str, int]  # number of excluded clusters, by filter
    weights: tuple[tuple[str, int], ...]
    ranked: tuple[Ranked, ...]  # all clusters that passed, best first
    selected: tuple[Ranked, ...]  # best first
    unscheduled: int = 0
    clusters: Mapping[str, CandidateCluster] = {}  # the selected clusters
    again_at_s: float | None = None
    notes: tuple[str, ...] = ()


def schedule(snapshot: Snapshot, request: Request) -> ScheduleResult:
    """Return the outcome for one Placement. Raises Misconfigured."""
    bound = sets.valid_bindings(snapshot)
    eligible = sets.eligible(bound, request.cluster_sets)
    clusters = sets.available(eligible, snapshot.sets, snapshot.clusters)
    available = len(clusters)
    left_out: dict[str, int] = {}
    notes: list[str] = list(request.notes)
    again_at_s: float | None = None
    for name, keep in FILTERS:
        verdict = keep(snapshot, request, clusters)
        left_out[name] = len(clusters) - len(verdict.passed)
        clusters = verdict.passed
        again_at_s = earlier(again_at_s, verdict.again_at_s)
        notes += verdict.notes
    totals = {cluster.name: 0 for cluster in clusters}
    parts: list[Mapping[str, int]] = []
    measuring: list[bool] = []  # per measuring prioritizer: whether any cluster is known
    for weighted in request.prioritizers:
        scored = _plugin(weighted)(snapshot, request, clusters)
        again_at_s = earlier(again_at_s, scored.again_at_s)
        notes += scored.notes
        if weighted.name not in UNMEASURED:
            measuring.append(not scored.blind)
        scores = _filled(scored, weighted.weight, worst=request.worst_if_unknown)
        parts.append(scores)
        for cluster, score in scores.items():
            totals[cluster] += weighted.weight * score
    ranked = tuple(
        Ranked(name, total, tuple(scores[name] for scores in parts))
        for name, total in sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    )
    blind = bool(measuring) and not any(measuring)
    selected = _selected(ranked, request, snapshot.decided, blind=blind)
    if blind and request.number is not None and snapshot.decided:
        notes.append(BLIND)
    return ScheduleResult(
        bindings=len(bound),
        eligible=eligible,
        available=available,
        left_out=left_out,
        weights=tuple((one.name, one.weight) for one in request.prioritizers),
        ranked=ranked,
        selected=selected,
        unscheduled=0 if request.number is None else request.number - len(selected),
        clusters={one.cluster: snapshot.clusters[one.cluster] for one in selected},
        again_at_s=again_at_s,
        notes=tuple(dict.fromkeys(notes)),
    )


def _plugin(weighted: Weighted) -> Prioritizer:
    if weighted.resource:
        return addon.prioritizer(weighted.resource, weighted.score)
    return BUILT_IN[weighted.name]


def _filled(scored: Scored, weight: int, *, worst: bool) -> Mapping[str, int]:
    """Return the scores with a value for unknown clusters too."""
    if not scored.unknown:
        return scored.scores
    instead = 0 if not worst else LEAST if weight > 0 else MOST
    return {**scored.scores, **dict.fromkeys(scored.unknown, instead)}


def _selected(
    ranked: tuple[Ranked, ...], request: Request, decided: frozenset[str], *, blind: bool
) -> tuple[Ranked, ...]:
    if request.number is None:
        return ranked
    if not request.margin and not blind:
        return ranked[: request.number]
    held = sorted(
        ranked,
        key=lambda one: (
            blind and one.cluster not in decided,
            -(one.total + (request.margin if one.cluster in decided else 0)),
            one.cluster not in decided,
            one.cluster,
        ),
    )
    chosen = frozenset(one.cluster for one in held[: request.number])
    return tuple(one for one in ranked if one.cluster in chosen)

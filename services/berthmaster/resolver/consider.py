"""One request against the whole fleet: which clusters could take it, how good, why not the rest.

The same code answers for a decision, for "why not yet?" and for a dry run, so that an explanation
can never differ from what is done.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from berthmaster.engine.board import Card
from berthmaster.engine.fit import (
    Scratch,
    Seating,
    pods_that_fit,
    seat_gang,
    seat_one,
)
from berthmaster.engine.needs import Suitable, tolerates
from berthmaster.engine.scores import ClusterView, Weights, packing_part, standing_parts
from berthmaster.engine.value import NOT_HERE, Worth
from berthmaster.messages.placement import RankedCluster, Target
from berthmaster.messages.workload import JobRequest
from berthmaster.resolver.quota import target_in, why_not
from berthmaster.resolver.settings import Policy
from berthmaster.resolver.state import Knowledge

BUSY: Final = "busy: no room now"
NOT_ASKED: Final = "not among the clusters asked for"
NO_LABELS: Final = "lacks the labels asked for"
TAINTED: Final = "is tainted"
NO_NODES: Final = "has no nodes"
NO_JOB_SETS: Final = "makes no JobSets, which several pod sets need"


Floats = NDArray[np.float64]


class Moment(NamedTuple):
    """What all requests of one decision have in common: the clusters as of one time."""

    policy: Policy
    views: list[ClusterView]  # in the order of the fleet's arrays
    standing: list[tuple[float, float]]  # of each, the parts that depend on no request: idle, fresh
    weights: Weights
    standing_sum: Floats  # [C], those parts times their weights
    worth: Worth  # of holes, by the mix seen so far
    shut: dict[bytes, "_Shut"]  # by shape: clusters that are out whatever their room
    drafted: dict[str, list[tuple[Target, JobRequest]]]  # cluster -> for its queue, by this draft


class _Shut(NamedTuple):
    why: dict[str, str]  # cluster -> why it is out
    open: NDArray[np.bool_]  # [C], not among them


class Candidate(NamedTuple):
    """A cluster that could take the request."""

    score: float
    cluster: str
    number: int  # among the fleet's clusters
    slot: int  # the node for a single pod; -1 for a gang
    fit: float
    room: float


class Considered(NamedTuple):
    """The fleet, seen with one request's eyes."""

    moment: Moment
    candidates: list[Candidate]  # best first
    filtered: dict[str, str]  # cluster -> why it is out
    suitables: list[Suitable]  # one a pod set
    cards: list[Card]  # one a pod set

    def ranked(self, candidate: Candidate) -> RankedCluster:
        """A candidate as a record shows it."""
        idle, fresh = self.moment.standing[candidate.number]
        parts = {"fit": candidate.fit, "room": candidate.room, "idle": idle, "fresh": fresh}
        return RankedCluster(
            cluster=candidate.cluster,
            score=round(candidate.score, 4),
            parts={name: round(part, 4) for name, part in parts.items()},
            input_age_s=round(self.moment.views[candidate.number].age_s, 3),
        )

    def ranking(self, first: Candidate) -> tuple[RankedCluster, ...]:
        """The best clusters, the chosen one first, as many as a record keeps."""
        others = [c for c in self.candidates if c is not first and c.cluster not in self.filtered]
        kept = others[: self.moment.policy.ranking_limit - 1]
        return tuple(self.ranked(candidate) for candidate in (first, *kept))


def moment_at(know: Knowledge, policy: Policy, now_s: float) -> Moment:
    """All clusters as of now."""
    fleet = know.fleet
    fleet.arrange()
    views = [
        know.clusters.view(name, now_s, stale_after_s=policy.stale_after_s, avoid_s=policy.avoid_s)
        for name in fleet.clusters
    ]
    standing = [standing_parts(view, stale_after_s=policy.stale_after_s) for view in views]
    weights = policy.weights
    parts = np.array(standing, np.float64).reshape(len(views), 2)
    standing_sum = weights.idle * parts[:, 0] + weights.fresh * parts[:, 1]
    worth = know.appraiser.of(know.mix)
    return Moment(policy, views, standing, weights, standing_sum, worth, {}, {})


def consider(know: Knowledge, moment: Moment, request: JobRequest, shape: bytes) -> Considered:
    """Filter and rank all clusters for a request."""
    fleet = know.fleet
    shut = _shut(know, moment, request, shape)
    filtered, is_open = dict(shut.why), shut.open
    setting = know.queues.get(request.queue)
    if setting is not None and setting.via != "direct":
        _refuse(know, moment, request, filtered)
        is_open = np.array([v.name not in filtered for v in moment.views], np.bool_)
    suitables: list[Suitable] = []
    cards: list[Card] = []
    for index, pods in enumerate(request.pod_sets):
        suitable, card = know.card(shape, index, pods, moment.worth)
        suitables.append(suitable)
        cards.append(card)
    considered = Considered(moment, [], filtered, suitables, cards)
    if not moment.views:
        return considered
    single = len(cards) == 1 and request.pod_sets[0].count == 1
    fits = (
        cards[0].best > NOT_HERE if single else _clusters_with_room(know, request, cards, suitables)
    )
    for number in np.flatnonzero(is_open & ~fits).tolist():
        cluster = fleet.clusters[number]
        whys = (s.why_not.get(cluster) for s in suitables)
        filtered[cluster] = next((why for why in whys if why), BUSY)
    numbers = np.flatnonzero(is_open & fits)
    if len(numbers):
        considered.candidates.extend(_rank(know, moment, request, cards, numbers))
    return considered


def _rank(
    know: Knowledge,
    moment: Moment,
    request: JobRequest,
    cards: list[Card],
    numbers: NDArray[np.int64],
) -> Iterator[Candidate]:
    """Clusters that could take the request, best first."""
    fleet, weights = know.fleet, moment.weights
    fit = packing_part(request.pod_sets[0], cards[0].best[numbers], moment.worth)
    for pods, card in zip(request.pod_sets[1:], cards[1:], strict=True):
        fit = np.minimum(fit, packing_part(pods, card.best[numbers], moment.worth))
    capacity = fleet.all_milli[numbers]
    room = 100.0 * np.maximum(fleet.free_milli[numbers], 0) / np.maximum(capacity, 1)
    room = np.minimum(room, 100.0)
    total = weights.fit + weights.room + weights.idle + weights.fresh
    score = weights.fit * fit + weights.room * room + moment.standing_sum[numbers]
    score = score / total if total > 0 else np.zeros(len(numbers))
    order = np.argsort(-score, kind="stable")  # clusters are in the order of their names
    numbers = numbers[order]
    at = numbers.tolist()
    single = len(cards) == 1 and request.pod_sets[0].count == 1
    slots = cards[0].best_slot[numbers].tolist() if single else [-1] * len(at)
    names = [fleet.clusters[number] for number in at]
    return map(
        Candidate,
        score[order].tolist(),
        names,
        at,
        slots,
        fit[order].tolist(),
        room[order].tolist(),
    )


def _shut(know: Knowledge, moment: Moment, request: JobRequest, shape: bytes) -> _Shut:
    """Why clusters are out whatever their room: the same for all requests of a shape."""
    known = moment.shut.get(shape)
    if known is None:
        why = dict.fromkeys(know.without_nodes(), NO_NODES)
        why |= {v.name: said for v in moment.views if (said := _closed(know, v, request))}
        is_open = np.array([v.name not in why for v in moment.views], np.bool_)
        known = moment.shut[shape] = _Shut(why, is_open)
    return known


def _refuse(know: Knowledge, moment: Moment, request: JobRequest, filtered: dict[str, str]) -> None:
    """Pass over clusters whose own queueing would not let the request in."""
    setting = know.queues.get(request.queue)
    for view in moment.views:
        name = view.name
        if name in filtered:
            continue
        waiting = (know.open[key] for key in know.unadmitted.get(name, ()))
        pending = [(w.target, w.request) for w in waiting if w.request is not None]
        pending += moment.drafted.get(name, ())
        why = why_not(know.clusters.get(name), target_in(setting, name), request, pending)
        if why:
            filtered[name] = why


def seat(
    know: Knowledge, request: JobRequest, considered: Considered
) -> tuple[Candidate, Seating] | None:
    """Places for all pods, in the best cluster that has them. A gang's bound may have been too
    hopeful: then the next cluster is tried, and the first is noted as busy."""
    worth = considered.moment.worth
    for candidate in considered.candidates:
        if candidate.slot >= 0:
            binding, held = seat_one(
                know.fleet, candidate.slot, request.pod_sets[0], considered.suitables[0], worth
            )
            return candidate, Seating((binding,), (held,))
        seating = seat_gang(
            know.fleet,
            candidate.number,
            request.pod_sets,
            considered.suitables,
            Scratch(know.fleet),
            worth,
            considered.cards,
        )
        if seating is not None:
            return candidate, seating
        considered.filtered[candidate.cluster] = BUSY
    return None


def _closed(know: Knowledge, view: ClusterView, request: JobRequest) -> str:
    """Why the cluster is out whatever room it has, or ""."""
    if request.clusters and view.name not in request.clusters:
        return NOT_ASKED
    cluster = know.clusters.get(view.name)
    if request.cluster_labels and not request.cluster_labels.items() <= cluster.labels.items():
        return NO_LABELS
    kinds = cluster.profile.job_kinds if cluster.profile is not None else None
    if kinds is not None and len(request.pod_sets) > 1 and "JobSet" not in kinds:
        return NO_JOB_SETS
    for taint in cluster.taints:
        if not all(tolerates(p.tolerations, taint) for p in request.pod_sets):
            return f"{TAINTED} ({taint.key})"
    return view.closed


def _clusters_with_room(
    know: Knowledge, request: JobRequest, cards: list[Card], suitables: list[Suitable]
) -> NDArray[np.bool_]:
    """Which clusters could hold each pod set by itself: a bound, not a promise."""
    fleet = know.fleet
    fits = np.ones(len(fleet.clusters), np.bool_)
    for pods, suitable, card in zip(request.pod_sets, suitables, cards, strict=True):
        room = pods_that_fit(fleet, pods, suitable, card.scores)
        fits &= np.add.reduceat(room, fleet.starts) >= pods.count
    return fits

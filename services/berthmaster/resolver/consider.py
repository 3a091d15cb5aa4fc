"""One request against the whole fleet: which clusters could take it, how good, why not the rest.

The same code answers for a decision, for "why not yet?" and for a dry run, so that an explanation
can never differ from what is done.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, overload

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
from berthmaster.engine.scores import ClusterView, packing_part, standing_parts
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
    standing_sum: Floats  # [C], of those, what they add to the score
    shares: tuple[float, float]  # of the score, that fit and room make
    room_a_milli: Floats  # [C], per cent of all its GPUs that a free milli is
    worth: Worth  # of holes, by the mix seen so far
    shut: dict[bytes, "_Shut"]  # by shape: clusters that are out whatever their room
    drafted: dict[str, list[tuple[Target, JobRequest]]]  # cluster -> for its queue, by this draft
    tainted: bool  # some cluster is
    shown: dict[int, tuple[float, float, float]]  # cluster -> idle, fresh, age as a record has them


class _Shut(NamedTuple):
    why: dict[str, str]  # cluster -> why it is out
    open: NDArray[np.bool_]  # [C], not among them
    busy: dict[bytes, dict[str, str]]  # which have room -> why all others are out


class Candidate(NamedTuple):
    """A cluster that could take the request."""

    score: float
    cluster: str
    number: int  # among the fleet's clusters
    slot: int  # the node for a single pod; -1 for a gang
    fit: float
    room: float


class Candidates(Sequence[Candidate]):
    """The clusters that could take a request, best first, written out as far as they are asked for:
    of a hundred, a decision looks at a few."""

    def __init__(
        self,
        clusters: list[str],
        order: list[int],
        score: list[float],
        slots: list[int] | None,
        fit: Floats,
        room: Floats,
    ) -> None:
        self.clusters = clusters
        self.order = order  # numbers of clusters
        self.score = score
        self.fit = fit
        self.room = room
        self._slots = slots

    def __len__(self) -> int:
        return len(self.order)

    @overload
    def __getitem__(self, at: int) -> Candidate: ...
    @overload
    def __getitem__(self, at: slice) -> list[Candidate]: ...
    def __getitem__(self, at: int | slice) -> Candidate | list[Candidate]:
        if isinstance(at, slice):
            return [self._candidate(number) for number in self.order[at]]
        return self._candidate(self.order[at])

    def only(self, cluster: str) -> "Candidates":
        """This one, if it is among them."""
        order = [number for number in self.order if self.clusters[number] == cluster]
        return Candidates(self.clusters, order, self.score, self._slots, self.fit, self.room)

    def clear(self) -> None:
        """None of them could, after all."""
        self.order.clear()

    def _candidate(self, number: int) -> Candidate:
        return Candidate(
            self.score[number],
            self.clusters[number],
            number,
            self._slots[number] if self._slots is not None else -1,
            float(self.fit[number]),
            float(self.room[number]),
        )


class Considered(NamedTuple):
    """The fleet, seen with one request's eyes."""

    moment: Moment
    candidates: Candidates  # best first
    filtered: dict[str, str]  # cluster -> why it is out
    suitables: list[Suitable]  # one a pod set
    cards: list[Card]  # one a pod set

    def ranking(self, first: Candidate) -> tuple[RankedCluster, ...]:
        """The best clusters as a record shows them, the chosen one first, as many as it keeps."""
        return tuple([self._ranked(number) for number in self._kept(first.number)])

    def _kept(self, first: int) -> list[int]:
        """Numbers of the clusters that a record keeps."""
        limit, clusters = self.moment.policy.ranking_limit, self.candidates.clusters
        kept = [first]
        for number in self.candidates.order:
            if len(kept) >= limit:
                break
            if number != first and clusters[number] not in self.filtered:
                kept.append(number)
        return kept

    def _ranked(self, number: int) -> RankedCluster:
        """Called for each cluster of each record: it makes nothing but that."""
        moment, candidates = self.moment, self.candidates
        shown = moment.shown.get(number)
        if shown is None:
            idle, fresh = moment.standing[number]
            shown = (round(idle, 4), round(fresh, 4), round(moment.views[number].age_s, 3))
            moment.shown[number] = shown
        idle, fresh, age_s = shown
        return RankedCluster(
            cluster=candidates.clusters[number],
            score=round(candidates.score[number], 4),
            parts={
                "fit": round(float(candidates.fit[number]), 4),
                "room": round(float(candidates.room[number]), 4),
                "idle": idle,
                "fresh": fresh,
            },
            input_age_s=age_s,
        )


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
    total = weights.fit + weights.room + weights.idle + weights.fresh
    scale = 1.0 / total if total > 0 else 0.0
    parts = np.array(standing, np.float64).reshape(len(views), 2)
    standing_sum = (weights.idle * scale) * parts[:, 0] + (weights.fresh * scale) * parts[:, 1]
    shares = (weights.fit * scale, weights.room * scale)
    room_a_milli = 100.0 / np.maximum(fleet.all_milli, 1)
    worth = know.appraiser.of(know.sampled())
    return Moment(
        policy,
        views,
        standing,
        standing_sum,
        shares,
        room_a_milli,
        worth,
        {},
        {},
        any(know.clusters.get(view.name).taints for view in views),
        {},
    )


def consider(know: Knowledge, moment: Moment, request: JobRequest, shape: bytes) -> Considered:
    """Filter and rank all clusters for a request."""
    shut = _shut(know, moment, request, shape)
    suitables: list[Suitable] = []
    cards: list[Card] = []
    for index, pods in enumerate(request.pod_sets):
        suitable, card = know.card(shape, index, pods, moment.worth)
        suitables.append(suitable)
        cards.append(card)
    if not moment.views:
        nothing = Candidates([], [], [], None, np.zeros(0), np.zeros(0))
        return Considered(moment, nothing, dict(shut.why), suitables, cards)
    single = len(cards) == 1 and request.pod_sets[0].count == 1
    if single:
        fits = cards[0].best > NOT_HERE
    else:
        fits = _clusters_with_room(know, request, cards, suitables)
    setting = know.queues.get(request.queue)
    if setting is not None and setting.via != "direct":
        why = dict(shut.why)
        _refuse(know, moment, request, why)
        shut = _Shut(why, np.array([v.name not in why for v in moment.views], np.bool_), {})
    fits &= shut.open
    filtered = dict(_out(know, shut, fits, suitables))
    candidates = _rank(know, moment, request, cards, fits)
    return Considered(moment, candidates, filtered, suitables, cards)


def _asks_nothing(request: JobRequest) -> bool:
    """Of clusters."""
    return not request.clusters and not request.cluster_labels and len(request.pod_sets) == 1


def _out(
    know: Knowledge, shut: _Shut, fits: NDArray[np.bool_], suitables: list[Suitable]
) -> dict[str, str]:
    """Why clusters are out: closed, or without a node that suits and has room."""
    key = fits.tobytes()
    known = shut.busy.get(key)
    if known is None:
        known = dict(shut.why)
        for number in np.flatnonzero(shut.open & ~fits).tolist():
            cluster = know.fleet.clusters[number]
            whys = (s.why_not.get(cluster) for s in suitables)
            known[cluster] = next((why for why in whys if why), BUSY)
        shut.busy[key] = known
    return known


def _rank(
    know: Knowledge,
    moment: Moment,
    request: JobRequest,
    cards: list[Card],
    fits: NDArray[np.bool_],
) -> Candidates:
    """Clusters that could take the request, best first."""
    fleet = know.fleet
    fit = packing_part(request.pod_sets[0], cards[0].best, moment.worth)
    for pods, card in zip(request.pod_sets[1:], cards[1:], strict=True):
        fit = np.minimum(fit, packing_part(pods, card.best, moment.worth))
    room = np.minimum(moment.room_a_milli * fleet.free_milli, 100.0)
    of_fit, of_room = moment.shares
    score = of_fit * fit + of_room * room + moment.standing_sum
    # Clusters are in the order of their names, which decides ties.
    order = np.where(fits, -score, np.inf).argsort(kind="stable").tolist()
    del order[int(np.count_nonzero(fits)) :]
    single = len(cards) == 1 and request.pod_sets[0].count == 1
    slots = cards[0].best_slot.tolist() if single else None
    return Candidates(fleet.clusters, order, score.tolist(), slots, fit, room)


def _shut(know: Knowledge, moment: Moment, request: JobRequest, shape: bytes) -> _Shut:
    """Why clusters are out whatever their room: the same for all requests of a shape."""
    known = moment.shut.get(shape)
    if known is None and shape and _asks_nothing(request) and not moment.tainted:
        usual = _shut(know, moment, request, b"")  # the same for all such shapes
        known = moment.shut[shape] = _Shut(usual.why, usual.open, {})
    if known is None:
        why = dict.fromkeys(know.without_nodes(), NO_NODES)
        why |= {v.name: said for v in moment.views if (said := _closed(know, v, request))}
        is_open = np.array([v.name not in why for v in moment.views], np.bool_)
        known = moment.shut[shape] = _Shut(why, is_open, {})
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

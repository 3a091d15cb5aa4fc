"""One request against the whole fleet: which clusters could take it, how good, why not the rest.

The same code answers for a decision, for "why not yet?" and for a dry run, so that an explanation
can never differ from what is done.
"""

from typing import Final, NamedTuple

import numpy as np

from berthmaster.engine.fit import (
    Scratch,
    Seating,
    pods_that_fit,
    seat_gang,
    seat_one,
    tightness,
)
from berthmaster.engine.needs import Suitable, gpu_milli, tolerates
from berthmaster.engine.scores import ClusterView, Weights, bounded, standing_parts, weighted
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


class Moment(NamedTuple):
    """What all requests of one decision have in common: the clusters as of one time."""

    policy: Policy
    views: list[ClusterView]  # in the order of the fleet's arrays
    standing: list[tuple[float, float]]  # of each, the parts that depend on no request: idle, fresh
    weights: Weights
    starts: list[int]  # first node of each cluster, and the number of nodes
    capacity_milli: list[int]
    shut: dict[bytes, dict[str, str]]  # shape -> clusters that are out whatever their room, and why
    drafted: dict[str, list[tuple[Target, JobRequest]]]  # cluster -> for its queue, by this draft


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
    capacity: list[int] = []
    if views:
        capacity = np.add.reduceat(fleet.capacity_milli, fleet.starts).tolist()
    starts = [*fleet.starts.tolist(), len(fleet.names)]
    return Moment(policy, views, standing, policy.weights, starts, capacity, {}, {})


def consider(know: Knowledge, moment: Moment, request: JobRequest, shape: bytes) -> Considered:
    """Filter and rank all clusters for a request."""
    fleet = know.fleet
    filtered = dict(_shut(know, moment, request, shape))
    setting = know.queues.get(request.queue)
    if setting is not None and setting.via != "direct":
        _refuse(know, moment, request, filtered)
    suitables = [
        know.suitables.of(fleet, shape, index, request.pod_sets[index])
        for index in range(len(request.pod_sets))
    ]
    candidates: list[Candidate] = []
    considered = Considered(moment, candidates, filtered, suitables)
    if not moment.views:
        return considered
    single = len(request.pod_sets) == 1 and request.pod_sets[0].count == 1
    if single:
        tight = tightness(fleet, request.pod_sets[0], suitables[0])
        fits = np.isfinite(np.minimum.reduceat(tight, fleet.starts)).tolist()
    else:
        tight = np.zeros(0)
        fits = _clusters_with_room(know, request, suitables)
    free = np.add.reduceat(np.where(fleet.open, fleet.milli, 0), fleet.starts).tolist()
    asked = gpu_milli(request)
    starts, weights = moment.starts, moment.weights
    for number, view in enumerate(moment.views):
        cluster = view.name
        if cluster in filtered:
            continue
        if not fits[number]:
            whys = (s.why_not.get(cluster) for s in suitables)
            filtered[cluster] = next((why for why in whys if why), BUSY)
            continue
        slot = -1
        if single:
            slot = starts[number] + int(tight[starts[number] : starts[number + 1]].argmin())
            share = _single_fit(know, request, slot)
        else:
            share = asked / free[number] if asked and free[number] > 0 else 0.0
        capacity = moment.capacity_milli[number]
        fit = bounded(100.0 * share)
        room = bounded(100.0 * free[number] / capacity) if capacity > 0 else 0.0
        idle, fresh = moment.standing[number]
        score = weighted(weights, fit=fit, room=room, idle=idle, fresh=fresh)
        candidates.append(Candidate(score, cluster, number, slot, fit, room))
    candidates.sort(key=lambda c: (-c.score, c.cluster))
    return considered


def _shut(know: Knowledge, moment: Moment, request: JobRequest, shape: bytes) -> dict[str, str]:
    """Why clusters are out whatever their room: the same for all requests of a shape."""
    known = moment.shut.get(shape)
    if known is None:
        known = dict.fromkeys(know.without_nodes(), NO_NODES)
        known |= {v.name: why for v in moment.views if (why := _closed(know, v, request))}
        moment.shut[shape] = known
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
    for candidate in considered.candidates:
        if candidate.slot >= 0:
            binding, held = seat_one(
                know.fleet, candidate.slot, request.pod_sets[0], considered.suitables[0]
            )
            return candidate, Seating((binding,), (held,))
        seating = seat_gang(
            know.fleet,
            candidate.number,
            request.pod_sets,
            considered.suitables,
            Scratch(know.fleet),
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
    know: Knowledge, request: JobRequest, suitables: list[Suitable]
) -> list[bool]:
    """Which clusters could hold each pod set by itself: a bound, not a promise."""
    fleet = know.fleet
    fits = np.ones(len(fleet.clusters), np.bool_)
    for pods, suitable in zip(request.pod_sets, suitables, strict=True):
        room = pods_that_fit(fleet, pods, suitable, tightness(fleet, pods, suitable))
        fits &= np.add.reduceat(room, fleet.starts) >= pods.count
    answer: list[bool] = fits.tolist()
    return answer


def _single_fit(know: Knowledge, request: JobRequest, slot: int) -> float:
    """The share of the node's free room that the pod fills."""
    pods = request.pod_sets[0]
    if pods.gpus:
        free = int(know.fleet.milli[slot])
        return pods.gpus * pods.gpu_milli / free if free > 0 else 0.0
    free = int(know.fleet.cpu[slot])
    return pods.cpu_milli / free if free > 0 else 0.0

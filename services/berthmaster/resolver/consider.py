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
from berthmaster.engine.needs import Suitable, gpu_milli, suitable_nodes, tolerates
from berthmaster.engine.scores import ClusterView, score_parts, weighted
from berthmaster.messages.placement import RankedCluster
from berthmaster.messages.workload import JobRequest
from berthmaster.resolver.settings import Policy
from berthmaster.resolver.state import Knowledge

BUSY: Final = "busy: no room now"
NOT_ASKED: Final = "not among the clusters asked for"
NO_LABELS: Final = "lacks the labels asked for"
TAINTED: Final = "is tainted"
NO_NODES: Final = "has no nodes"
_SUITABLE_LIMIT: Final = 4096  # shapes remembered


class Candidate(NamedTuple):
    """A cluster that could take the request."""

    number: int  # among the fleet's clusters
    slot: int  # the node for a single pod; -1 for a gang
    ranked: RankedCluster


class Considered(NamedTuple):
    """The fleet, seen with one request's eyes."""

    candidates: list[Candidate]  # best first
    filtered: dict[str, str]  # cluster -> why it is out
    suitables: list[Suitable]  # one a pod set


def views_at(know: Knowledge, policy: Policy, now_s: float) -> list[ClusterView]:
    """Every cluster at this moment, in the order of the fleet's arrays."""
    know.fleet.arrange()
    return [
        know.clusters.view(name, now_s, stale_after_s=policy.stale_after_s, avoid_s=policy.avoid_s)
        for name in know.fleet.clusters
    ]


def consider(
    know: Knowledge, policy: Policy, views: list[ClusterView], request: JobRequest, shape: bytes
) -> Considered:
    """Filter and rank all clusters for a request."""
    fleet = know.fleet
    filtered = {view.name: why for view in views if (why := _closed(know, view, request))}
    filtered |= dict.fromkeys(know.without_nodes(), NO_NODES)
    suitables = [_suitable(know, shape, index, request) for index in range(len(request.pod_sets))]
    if not fleet.clusters:
        return Considered([], filtered, suitables)
    single = len(request.pod_sets) == 1 and request.pod_sets[0].count == 1
    if single:
        pods = request.pod_sets[0]
        tight = tightness(fleet, pods, suitables[0])
        fits = np.isfinite(np.minimum.reduceat(tight, fleet.starts)).tolist()
    else:
        tight = np.zeros(0)
        fits = _clusters_with_room(know, request, suitables)
    free = np.add.reduceat(np.where(fleet.open, fleet.milli, 0), fleet.starts).tolist()
    capacity = np.add.reduceat(fleet.capacity_milli, fleet.starts).tolist()
    starts = [*fleet.starts.tolist(), len(fleet.names)]
    asked = gpu_milli(request)
    candidates: list[Candidate] = []
    for index, view in enumerate(views):
        if view.name in filtered:
            continue
        if not fits[index]:
            whys = (s.why_not.get(view.name) for s in suitables)
            filtered[view.name] = next((why for why in whys if why), BUSY)
            continue
        slot = -1
        if single:
            slot = starts[index] + int(tight[starts[index] : starts[index + 1]].argmin())
            fit = _single_fit(know, request, slot)
        else:
            fit = min(1.0, asked / free[index]) if asked and free[index] > 0 else 0.0
        parts = score_parts(
            view,
            fit=fit,
            free_milli=free[index],
            capacity_milli=capacity[index],
            stale_after_s=policy.stale_after_s,
        )
        ranked = RankedCluster(
            cluster=view.name,
            score=weighted(parts, policy.weights),
            parts=parts,
            input_age_s=round(view.age_s, 3),
        )
        candidates.append(Candidate(index, slot, ranked))
    candidates.sort(key=lambda c: (-c.ranked.score, c.ranked.cluster))
    return Considered(candidates, filtered, suitables)


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
        considered.filtered[candidate.ranked.cluster] = BUSY
    return None


def _closed(know: Knowledge, view: ClusterView, request: JobRequest) -> str:
    """Why the cluster is out whatever room it has, or ""."""
    if request.clusters and view.name not in request.clusters:
        return NOT_ASKED
    profile = know.clusters.get(view.name).profile
    if request.cluster_labels:
        labels = profile.labels if profile is not None else {}
        if not request.cluster_labels.items() <= labels.items():
            return NO_LABELS
    if profile is not None:
        for taint in profile.taints:
            if not all(tolerates(p.tolerations, taint) for p in request.pod_sets):
                return f"{TAINTED} ({taint.key})"
    return view.closed


def _suitable(know: Knowledge, shape: bytes, index: int, request: JobRequest) -> Suitable:
    known = know.suitable.get((shape, index))
    if known is not None and known.layout == know.fleet.layout:
        return known
    if len(know.suitable) >= _SUITABLE_LIMIT:
        know.suitable.clear()
    made = know.suitable[shape, index] = suitable_nodes(know.fleet, request.pod_sets[index])
    return made


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

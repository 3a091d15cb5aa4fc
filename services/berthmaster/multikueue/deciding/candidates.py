"""One workload against the clusters of its MultiKueueConfig: who could take it, in what order, why
not the rest.

Order of the questions (the first that says no is the reason told): does Kueue reach it; is it asked
for; is it open; does it have the queue; can the queue ever grant it; can its nodes ever hold it.
What is left is ranked by tier, then by room.

- Tiers: fits now; has quota, and is busy; has quota, and no nodes yet (autoscaling); has no quota
  left now.
- Room is the lesser of free GPUs and quota left, both less what is on its way there (CPU cores for
  what asks for no GPU). Equal room: the idler, the fresher, the configuration's order.
- *Unknown* clusters are those that say nothing, or nothing of their queues. They are no candidates,
  and yet Kueue may reach them: the last resort when nobody else is.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from berthmaster.engine.fitting.fit import pods_that_fit, tightness
from berthmaster.engine.fleet.cluster_view import ClusterView, bounded, standing_parts
from berthmaster.engine.fleet.clusters import SILENT, UNSCORED
from berthmaster.engine.fleet.needs import Suitable, gpu_milli, shape_of
from berthmaster.engine.fleet.taints import tolerates
from berthmaster.kueue.asks import asks_of
from berthmaster.kueue.quota import Answer, Quotas, closed, promises, queue_of
from berthmaster.lifecycle.fold import Key, Workload
from berthmaster.messages.fleet import QueueReport
from berthmaster.messages.placement import RankedCluster
from berthmaster.messages.workload import JobRequest
from berthmaster.multikueue.deciding.job_manifest import place_of
from berthmaster.multikueue.known.hub import ClusterRef, Rules
from berthmaster.multikueue.known.state import Knowledge
from berthmaster.multikueue.settings import Policy

FITS: Final = 0
BUSY: Final = 1
NO_NODES: Final = 2
NO_QUOTA: Final = 3
TIER_WORDS: Final = (
    "fits now",
    "has quota, its GPUs are busy",
    "has quota, its nodes are yet to come",
    "has no quota left now",
)
NOT_ASKED: Final = "not among the clusters asked for"
NO_LABELS: Final = "lacks the labels asked for"
NO_REPORT: Final = "reports no queues"


class Asked(NamedTuple):
    """What is looked for, and for whom."""

    name: Key
    tenant: str
    namespace: str
    local_queue: str
    request: JobRequest


class Candidate(NamedTuple):
    """A cluster that could take it."""

    ref: ClusterRef
    tier: int
    room: float  # GPUs, or CPU cores for what asks for none
    idle: float
    fresh: float
    age_s: float

    @property
    def words(self) -> str:
        """For people."""
        return f"{TIER_WORDS[self.tier]}, room for {self.room:g}"


class Considered(NamedTuple):
    """The clusters of a configuration, seen with one workload's eyes."""

    candidates: tuple[Candidate, ...]  # best first
    filtered: dict[str, str]  # cluster -> why it is out
    unknown: tuple[ClusterRef, ...]  # of those, the ones of which nothing is known
    age_s: dict[str, float]

    def ranking(self, first: str, limit: int) -> tuple[RankedCluster, ...]:
        """As a record keeps it: the chosen one first, with the score that it has, then the best."""
        most = max((c.room for c in self.candidates), default=0.0)
        ranked = [_ranked(c, most) for c in self.candidates]
        chosen = [r for r in ranked if r.cluster == first]
        if not chosen:
            age_s = self.age_s.get(first, float("inf"))
            age_s = round(age_s, 3) if age_s < 1e9 else 1e9
            chosen = [RankedCluster(cluster=first, score=0.0, parts={}, input_age_s=age_s)]
        return (*chosen, *(r for r in ranked if r.cluster != first))[:limit]


def _ranked(candidate: Candidate, most: float) -> RankedCluster:
    share = 100.0 * candidate.room / most if most > 0 else 0.0
    tier = 100.0 * (NO_QUOTA - candidate.tier) / NO_QUOTA
    return RankedCluster(
        cluster=candidate.ref.name,
        score=round(0.75 * tier + 0.25 * share, 4),
        parts={
            "tier": round(tier, 4),
            "room": round(bounded(share), 4),
            "idle": round(candidate.idle, 4),
            "fresh": round(candidate.fresh, 4),
        },
        input_age_s=round(candidate.age_s, 3),
    )


def consider(
    know: Knowledge, rules: Rules, asked: Asked, policy: Policy, now_s: float
) -> Considered:
    """Filter and rank the clusters of a configuration for one workload."""
    know.fleet.arrange()
    filtered: dict[str, str] = {}
    unknown: list[ClusterRef] = []
    ages: dict[str, float] = {}
    found: list[tuple[int, Candidate]] = []
    nodes = _nodes(know, asked.request)
    for number, ref in enumerate(rules.clusters):
        shown = ref.hub_name if ref.name in ages else ref.name  # two may stand for one cluster
        view = know.clusters.view(ref.name, now_s, stale_after_s=policy.stale_after_s, avoid_s=0.0)
        ages[shown] = view.age_s
        why, is_unknown = _shut(know, rules, ref, view, asked)
        if not why:
            judged = _judge(know, ref, view, asked, nodes, policy, now_s)
            if isinstance(judged, Candidate):
                found.append((number, judged))
                continue
            why = judged
        if is_unknown:
            unknown.append(ref)
        filtered[shown] = why

    def order(pair: tuple[int, Candidate]) -> tuple[object, ...]:
        number, c = pair
        return (c.tier, -round(c.room, 3), -round(c.idle), -c.fresh, number)

    found.sort(key=order)
    return Considered(tuple(c for _, c in found), filtered, tuple(unknown), ages)


def _shut(
    know: Knowledge, rules: Rules, ref: ClusterRef, view: ClusterView, asked: Asked
) -> tuple[str, bool]:
    """(why it is out whatever its room, or "", whether that is for want of knowledge only)."""
    request = asked.request
    cluster = know.clusters.get(ref.name)
    if ref.closed:
        return ref.closed, False
    if request.clusters and ref.name not in request.clusters:
        return NOT_ASKED, False
    if request.cluster_labels and not request.cluster_labels.items() <= cluster.labels.items():
        return NO_LABELS, False
    for selector in rules.selectors:
        if not selector.matches(cluster.labels):
            return f"its labels do not match {selector}", False
    for taint in cluster.taints:
        if not all(tolerates(p.tolerations, taint) for p in request.pod_sets):
            return f"is tainted ({taint.key})", False
    if view.closed:
        return view.closed, view.closed in (SILENT, UNSCORED)
    if not cluster.queues:
        return NO_REPORT, True
    found = know.local_queue(ref.name, asked.namespace, asked.local_queue)
    if found is None:
        return f"has no LocalQueue {asked.namespace}/{asked.local_queue}", False
    return closed(*found), False


class Nodes(NamedTuple):
    """What the nodes of all clusters have for a request."""

    free: dict[str, float]  # GPUs, or CPU cores
    fits: dict[str, bool]
    holds: dict[str, bool]  # would fit if nothing ran there
    none_suits: dict[str, str]  # cluster -> why none of its nodes will ever do


def _nodes(know: Knowledge, request: JobRequest) -> Nodes:
    fleet = know.fleet
    if not len(fleet.names):
        return Nodes({}, {}, {}, {})
    shape = shape_of(request)
    fits = np.ones(len(fleet.clusters), np.bool_)
    holds = np.ones(len(fleet.clusters), np.bool_)
    why: dict[str, str] = {}
    suitable: Suitable | None = None
    heaviest = max(request.pod_sets, key=lambda p: p.gpus * p.count)
    for index, pods in enumerate(request.pod_sets):
        mine = know.suitables.of(fleet, shape, index, request.pod_sets[index])
        if pods is heaviest:
            suitable = mine
        room = pods_that_fit(fleet, pods, mine, tightness(fleet, pods, mine))
        fits &= np.add.reduceat(room, fleet.starts) >= pods.count
        if pods.gpus:
            empty = np.where(mine.nodes, fleet.capacity_milli // (pods.gpus * pods.gpu_milli), 0)
            holds &= np.add.reduceat(empty, fleet.starts) >= pods.count
        why |= {cluster: text for cluster, text in mine.why_not.items() if cluster not in why}
    assert suitable is not None  # a request has at least one pod set
    usable = suitable.nodes & fleet.open
    amount = fleet.milli if heaviest.gpu_milli < 1000 else fleet.whole * 1000
    if not heaviest.gpus:
        amount = fleet.cpu
    free = np.add.reduceat(np.where(usable, np.maximum(amount, 0), 0), fleet.starts) / 1000
    return Nodes(
        dict(zip(fleet.clusters, free.tolist(), strict=True)),
        dict(zip(fleet.clusters, fits.tolist(), strict=True)),
        dict(zip(fleet.clusters, holds.tolist(), strict=True)),
        why,
    )


def _judge(
    know: Knowledge,
    ref: ClusterRef,
    view: ClusterView,
    asked: Asked,
    nodes: Nodes,
    policy: Policy,
    now_s: float,
) -> Candidate | str:
    """The cluster as a candidate, or why it can never be one."""
    found = know.local_queue(ref.name, asked.namespace, asked.local_queue)
    assert found is not None  # asked before
    report, _ = found
    way = know.on_the_way.to(ref.name, now_s, policy.settle_s, but=asked.name)
    gpus = gpu_milli(asked.request) / 1000
    quota = _quotas(know, ref.name, way.unreserved).answer(report.queue, asks_of(asked.request))
    if quota.never:
        return quota.never
    empty = ref.name not in nodes.free
    unsuited = nodes.none_suits.get(ref.name, "")
    if unsuited and not _may_come(asked.request, report, unsuited):
        return unsuited
    free = nodes.free.get(ref.name, 0.0) - (way.gpus if gpus else 0.0)
    room = max(0.0, min(free, quota.devices_left))
    idle, fresh = standing_parts(view, stale_after_s=policy.stale_after_s)
    tier = _tier(
        quota,
        has_nodes=not (empty or unsuited) and nodes.holds.get(ref.name, False),
        fits=nodes.fits.get(ref.name, False),
        free=free,
        gpus=gpus,
    )
    return Candidate(ref, tier, room, idle, fresh, view.age_s)


def _quotas(know: Knowledge, cluster: str, unreserved: Iterable[Workload]) -> Quotas:
    """What its queues have, less what was sent there and has no quota reserved yet."""
    reports = know.clusters.get(cluster).queues.values()
    quotas = Quotas(reports)
    for workload in unreserved:
        request = workload.request
        if request is None:
            continue
        if workload.origin is not None:
            leads_to = queue_of(reports, workload.origin.namespace, workload.origin.local_queue)
        else:
            place = place_of(request.queue, know.queues.get(request.queue))
            leads_to = queue_of(reports, place.namespace, place.local_queue)
        if leads_to is not None:
            quotas.charge(leads_to[0].queue, asks_of(request))
    return quotas


def _may_come(request: JobRequest, report: QueueReport, unsuited: str) -> bool:
    """Whether nodes that suit may be yet to come: the quota grants what no node has. For what asks
    for certain nodes, a flavor's labels must say that it has them."""
    if any(p.gpu_models or p.node_labels for p in request.pod_sets):
        return any(promises(report, ask) for ask in asks_of(request) if ask.pods.gpus)
    return unsuited == "no GPUs"


def _tier(quota: Answer, *, has_nodes: bool, fits: bool, free: float, gpus: float) -> int:
    if not quota.now:
        return NO_QUOTA
    if not has_nodes:
        return NO_NODES
    return FITS if fits and free >= gpus else BUSY

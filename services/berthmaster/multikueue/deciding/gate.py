"""What a hub asks of each cluster before a Workload may go there, and how soon it could begin.

Order of the questions (the first that says no is the reason told): does Kueue reach the cluster; do
its labels match the queue's selectors; does it have the queue, and is that open; can the quota ever
grant it; can its nodes ever hold it. Being busy keeps no cluster out, since Kueue makes the copy
wait there; but a better ``tier`` goes first, and within a tier ``headroom`` counts: the lesser of
free GPUs and quota left (CPU cores for what asks for no GPU), both less what is on its way there.

For example a cluster with 6 free GPUs, quota for 4 more and a job of 1 GPU on its way has headroom
3: a job of 2 GPUs fits now there, one of 4 waits for quota.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from berthmaster.engine.fleet.clusters import Cluster
from berthmaster.engine.fleet.needs import Suitable, gpu_milli, shape_of
from berthmaster.engine.scoring.parts.tier import BUSY, FITS, NO_NODES, NO_QUOTA
from berthmaster.engine.scoring.parts.values import UNKNOWN
from berthmaster.engine.scoring.score_cache import Scorecard
from berthmaster.fleetview.gate import Gate
from berthmaster.fleetview.snapshot import ClusterSnapshot
from berthmaster.kueue.asks import asks_of
from berthmaster.kueue.quota import UNLIMITED, Ask, Quotas, closed, promises, queue_of
from berthmaster.lifecycle.fold import Key, Workload
from berthmaster.messages.fleet import QueueReport
from berthmaster.messages.workload import JobRequest
from berthmaster.multikueue.deciding.job_manifest import place_of
from berthmaster.multikueue.known.bus_state import BusState
from berthmaster.multikueue.known.hub import ClusterRef, Rules
from berthmaster.multikueue.settings import HubPolicy

NOT_LISTED: Final = "not in the MultiKueueConfig"
NO_REPORT: Final = "reports no queues"


class Asked(NamedTuple):
    """What is looked for, and for whom."""

    name: Key
    namespace: str
    local_queue: str
    request: JobRequest
    asks: tuple[Ask, ...]  # of a worker's quota


class Standing(NamedTuple):
    """How a cluster stands to a Workload."""

    out: str = ""  # why it cannot be sent there, or ""
    tier: float = UNKNOWN
    headroom: float = UNKNOWN
    in_line: tuple[int, int, bool] | None = None


class HubGate(Gate):
    """Of one Workload."""

    is_tiered = True

    def __init__(
        self,
        know: BusState,
        snapshot: ClusterSnapshot,
        rules: Rules,
        asked: Asked,
        policy: HubPolicy,
    ) -> None:
        self._know = know
        self._snapshot = snapshot
        self._rules = rules
        self._asked = asked
        self._policy = policy
        self._refs: dict[str, ClusterRef] = {}
        for ref in rules.clusters:
            self._refs.setdefault(ref.name, ref)
        self._asks = asked.asks
        self._standings: dict[str, Standing] = {}

    def why_not(self, cluster: str) -> str:
        return self._standing(cluster).out

    def in_line(self, cluster: str) -> tuple[int, int, bool] | None:
        return self._standing(cluster).in_line

    def tier(self, cluster: str) -> float:
        return self._standing(cluster).tier

    def headroom(self, cluster: str) -> float:
        return self._standing(cluster).headroom

    def shut(self, cluster: str) -> str:
        """Why it is out whatever it reports, or ""."""
        ref = self._refs.get(cluster)
        if ref is None:
            return NOT_LISTED
        if ref.closed:
            return ref.closed
        labels = self._know.view.clusters.peek(cluster).labels
        for selector in self._rules.selectors:
            if not selector.matches(labels):
                return f"its labels do not match {selector}"
        return ""

    def _standing(self, cluster: str) -> Standing:
        standing = self._standings.get(cluster)
        if standing is None:
            standing = self._standings[cluster] = self._look(cluster)
        return standing

    def _look(self, name: str) -> Standing:
        if shut := self.shut(name):
            return Standing(shut)
        cluster = self._know.view.clusters.peek(name)
        if not cluster.queues:
            return Standing(NO_REPORT)
        asked = self._asked
        found = self._know.local_queue(name, asked.namespace, asked.local_queue)
        if found is None:
            return Standing(f"has no LocalQueue {asked.namespace}/{asked.local_queue}")
        if why := closed(*found):
            return Standing(why)
        return self._judge(cluster, found[0])

    def _judge(self, cluster: Cluster, report: QueueReport) -> Standing:
        """With a queue that is open."""
        name, request, nodes = cluster.name, self._asked.request, self._nodes
        policy, now_s = self._policy, self._snapshot.now_s
        way = self._know.on_the_way.to(name, now_s, policy.settle_s, but=self._asked.name)
        quota = self._quotas(cluster, way.unreserved).answer(report.queue, self._asks)
        if quota.never:
            return Standing(quota.never)
        unsuited = nodes.none_suits.get(name, "")
        if unsuited and not self._may_come(report, unsuited):
            return Standing(unsuited)
        gpus = gpu_milli(request) / 1000
        free = nodes.free.get(name, 0.0) - (way.gpus if gpus else 0.0)
        if not quota.now:
            tier = NO_QUOTA
        elif name not in nodes.free or unsuited or not nodes.holds[name]:
            tier = NO_NODES
        else:
            tier = FITS if nodes.fits[name] and free >= gpus else BUSY
        return Standing(
            tier=tier,
            headroom=max(0.0, min(free, quota.devices_left if gpus else UNLIMITED)),
            in_line=(report.pending, report.admitted, quota.borrows),
        )

    def _quotas(self, cluster: Cluster, unreserved: Iterable[Workload]) -> Quotas:
        """What its queues have, less what was sent there and has no quota reserved yet."""
        reports = cluster.queues.values()
        quotas = Quotas(reports)
        for workload in unreserved:
            request = workload.request
            if request is None:
                continue
            if workload.origin is not None:
                leads_to = queue_of(reports, workload.origin.namespace, workload.origin.local_queue)
            else:
                place = place_of(request.queue, self._know.view.queues.get(request.queue))
                leads_to = queue_of(reports, place.namespace, place.local_queue)
            if leads_to is not None:
                quotas.charge(leads_to[0].queue, asks_of(request))
        return quotas

    def _may_come(self, report: QueueReport, unsuited: str) -> bool:
        """Whether nodes that suit may be yet to come: the quota grants what no node has. For what
        asks for certain nodes, a flavor's labels must say that it has them."""
        if any(p.gpu_models or p.node_labels for p in self._asked.request.pod_sets):
            return any(promises(report, ask) for ask in self._asks if ask.pods.gpus)
        return unsuited == "no GPUs"

    @cached_property
    def _nodes(self) -> "_Nodes":
        know, request = self._know, self._asked.request
        fleet = know.view.fleet
        if not len(fleet.names):
            return _Nodes({}, {}, {}, {})
        shape = shape_of(request)
        cards = [
            know.view.card(shape, index, pods, self._snapshot.worth)
            for index, pods in enumerate(request.pod_sets)
        ]
        fits = np.ones(len(fleet.clusters), np.bool_)
        holds = np.ones(len(fleet.clusters), np.bool_)
        why: dict[str, str] = {}
        for pods, (suitable, card) in zip(request.pod_sets, cards, strict=True):
            fits &= card.room_for(fleet, pods, suitable).clusters >= pods.count
            if pods.gpus:
                a_pod = pods.gpus * pods.gpu_milli
                empty = np.where(suitable.nodes, fleet.arrays.capacity_milli // a_pod, 0)
                holds &= np.add.reduceat(empty, fleet.arrays.starts) >= pods.count
            why = suitable.why_not | why
        free = self._free(cards)
        return _Nodes(
            dict(zip(fleet.clusters, free.tolist(), strict=True)),
            dict(zip(fleet.clusters, fits.tolist(), strict=True)),
            dict(zip(fleet.clusters, holds.tolist(), strict=True)),
            why,
        )

    def _free(self, cards: Sequence[tuple[Suitable, Scorecard]]) -> NDArray[np.float64]:
        """Of each cluster, what is free on nodes that suit the pod set with the most GPUs."""
        fleet, sets = self._know.view.fleet, self._asked.request.pod_sets
        at = max(range(len(sets)), key=lambda index: sets[index].gpus * sets[index].count)
        amount = fleet.arrays.milli if sets[at].gpu_milli < 1000 else fleet.arrays.whole * 1000
        if not sets[at].gpus:
            amount = fleet.arrays.cpu
        usable = np.where(cards[at][0].nodes & fleet.arrays.open, np.maximum(amount, 0), 0)
        free: NDArray[np.float64] = np.add.reduceat(usable, fleet.arrays.starts) / 1000
        return free


class _Nodes(NamedTuple):
    """What the nodes of all clusters have for a request."""

    free: dict[str, float]  # GPUs, or CPU cores
    fits: dict[str, bool]
    holds: dict[str, bool]  # would fit if nothing ran there
    none_suits: dict[str, str]  # cluster -> why none of its nodes will ever do

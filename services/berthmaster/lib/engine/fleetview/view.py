"""The fleet by the newest facts: the fold of FLEET and CONTROL, up to one sequence each.

Messages alone determine the view. Holders of placements charge ``fleet``: the resolver its live
placements, a hub's reconciler the managed pods in node reports. The mix of arriving pods is learned
from the log's events (``learn``).
"""

from collections.abc import Mapping

from berthmaster.lib.engine.fleet.clusters import (
    NO_ORDERS,
    Clusters,
    closed_indices,
    without_closed,
)
from berthmaster.lib.engine.fleet.fleet import Fleet
from berthmaster.lib.engine.fleet.needs import Shape, Suitable, Suitables
from berthmaster.lib.engine.queueing.ledger import Ledger
from berthmaster.lib.engine.scoring.cluster_table import ClusterTable
from berthmaster.lib.engine.scoring.pod_mix import Mix, Sampled
from berthmaster.lib.engine.scoring.score_cache import ScoreCache, Scorecard
from berthmaster.lib.engine.scoring.value import Appraiser, Worth
from berthmaster.lib.messages.control import (
    ClusterLost,
    ControlFact,
    Cordon,
    GpuCordon,
    QueueSetting,
)
from berthmaster.lib.messages.fleet import (
    ClosedGpu,
    ClusterAlive,
    ClusterProfile,
    ClusterScore,
    CopyReport,
    FleetFact,
    Membership,
    NodeGone,
    NodeReport,
    QueueReport,
)
from berthmaster.lib.messages.placement import Pressure
from berthmaster.lib.messages.workload import Submitted, WorkloadEvent


def _counts(fact: ClusterProfile) -> tuple[object, ...]:
    """Return the fields of a profile that placements depend on."""
    return fact.labels, fact.taints, fact.job_kinds, fact.counted_as


class FleetDerived:
    """Tables and caches over the fleet, and two counters for invalidation.

    Everything here is derived from facts, so a view folded again makes the same decisions. The
    arrays are in ``Fleet`` with their reports.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.table = ClusterTable()
        self.ledger = Ledger(fleet.node)  # capacity of clusters, and usage of queues
        self.suitables = Suitables()
        self.scores = ScoreCache()
        self.appraiser = Appraiser()
        self.growth = 0  # rises when pending jobs may fit that did not before
        self.changes = 0  # rises with what nodes tell and with every event of a live placement


class FleetView:
    """Fleet, clusters and operators' settings, with derived data in ``derived``."""

    def __init__(
        self, fleet: Fleet, queues: dict[str, QueueSetting], derived: FleetDerived
    ) -> None:
        self.fleet_sequence = 0
        self.control_sequence = 0
        self.heard_s = float("-inf")  # server's time of the newest message
        self.fleet = fleet
        self.clusters = Clusters()
        self.cordons: set[tuple[str, str]] = set()  # cluster, node
        self.cordons_set: dict[tuple[str, str], Cordon] = {}  # of whole clusters ("") too
        self.drains: dict[tuple[str, str], Cordon] = {}  # the drains among the cordons
        self.queues = queues
        self.mix = Mix()
        self.derived = derived
        # By node, the newest order about each of its GPUs.
        self.gpu_cordons: dict[tuple[str, str], dict[int, GpuCordon]] = {}
        # Nodes with closed GPUs, as their reports list them.
        self._reported: dict[tuple[str, str], NodeReport] = {}

    @classmethod
    def empty(cls) -> "FleetView":
        """Return a view without further derived data."""
        fleet = Fleet()
        return cls(fleet, {}, FleetDerived(fleet))

    # Facts

    def take_fact(self, fact: FleetFact, sequence: int, stored_at_s: float) -> None:
        """Take over the newest value of something in the fleet."""
        self.fleet_sequence = max(self.fleet_sequence, sequence)
        self.heard_s = max(self.heard_s, stored_at_s)
        cluster, derived = self.clusters.get(fact.cluster), self.derived
        match fact:
            case NodeReport():
                self._put_node(fact, self._closed(fact.cluster, fact.node))
            case NodeGone():
                self.drop_node(fact.cluster, fact.node)
            case ClusterAlive():
                # After a silence that may have closed the cluster, pending jobs are tried again.
                derived.growth += stored_at_s > cluster.alive_at_s + 2 * fact.interval_s
                cluster.alive_at_s = stored_at_s
            case ClusterProfile():
                known = cluster.profile
                derived.growth += known is None or _counts(known) != _counts(fact)
                derived.growth += self.clusters.take_profile(fact)
            case Membership():
                derived.growth += cluster.take_membership(fact)
            case QueueReport():
                derived.growth += 1
                cluster.take_queue(fact)
            case CopyReport():
                pass  # of interest to a hub's decider only
            case ClusterScore():
                if cluster.score is not None and cluster.score.freshness != fact.freshness:
                    derived.growth += 1
                before, cluster.score = cluster.faulty_gpus, fact
                self._take_closed(fact.cluster, before, fact.closed_gpus)

    def _take_closed(
        self,
        cluster: str,
        before: Mapping[str, tuple[ClosedGpu, ...]],
        now: Mapping[str, tuple[ClosedGpu, ...]],
    ) -> None:
        for node in sorted(before.keys() | now.keys()):
            if before.get(node, ()) != now.get(node, ()):
                self._close_gpus(cluster, node)

    def _close_gpus(self, cluster: str, node: str) -> None:
        """Mark a node's closed GPUs as unhealthy, by the newest score and cordons."""
        reported = self._reported.get((cluster, node)) or self.fleet.node(cluster, node)
        if reported is not None:
            self._put_node(reported, self._closed(cluster, node))

    def _closed(self, cluster: str, node: str) -> tuple[int, ...]:
        faulty = self.clusters.peek(cluster).faulty_gpus.get(node, ())
        orders = self.gpu_cordons.get((cluster, node), NO_ORDERS)
        return closed_indices(faulty, orders) if faulty or orders else ()

    def _put_node(self, told: NodeReport, closed: tuple[int, ...]) -> None:
        """Store a node's report, with closed GPUs marked unhealthy."""
        name, derived = (told.cluster, told.node), self.derived
        report = without_closed(told, closed)
        self._reported.pop(name, None)
        if report is not told:
            self._reported[name] = told
        before = self.fleet.node(*name)
        derived.changes += 1
        derived.growth += self.fleet.put_node(report)
        derived.growth += derived.ledger.node_changed(before, report)

    def drop_node(self, cluster: str, node: str) -> None:
        """A node is no more; what runs there by our account still does."""
        before = self.fleet.node(cluster, node)
        self._reported.pop((cluster, node), None)
        self.fleet.drop_node(cluster, node)
        self.derived.changes += 1
        self.derived.growth += self.derived.ledger.node_changed(before, None)

    def take_control(self, fact: ControlFact, sequence: int) -> None:
        self.control_sequence = max(self.control_sequence, sequence)
        self.derived.growth += 1
        if isinstance(fact, Cordon):
            self._take_cordon(fact)
        match fact:
            case QueueSetting():
                self.queues[fact.queue] = fact
            case Cordon(node=None):
                cluster = self.clusters.get(fact.cluster)
                cluster.cordoned = fact.reason if fact.cordoned else None
            case Cordon():
                name = (fact.cluster, fact.node or "")
                (self.cordons.add if fact.cordoned else self.cordons.discard)(name)
                self.fleet.set_cordon(fact.cluster, fact.node or "", fact.cordoned)
            case GpuCordon():
                of_node = self.gpu_cordons.setdefault((fact.cluster, fact.node), {})
                of_node[fact.gpu] = fact
                self._close_gpus(fact.cluster, fact.node)
            case ClusterLost():
                self.clusters.set_lost(fact.cluster, fact.lost)

    def _take_cordon(self, cordon: Cordon) -> None:
        place = cordon.cluster, cordon.node or ""
        self.cordons_set.pop(place, None)
        self.drains.pop(place, None)
        if cordon.cordoned:
            self.cordons_set[place] = cordon
            if cordon.drain:
                self.drains[place] = cordon

    def learn(self, event: WorkloadEvent) -> None:
        """Learn the mix of pods from an applied event."""
        if isinstance(event, Submitted):
            for pods in event.request.pod_sets:
                self.mix.add(pods)

    # Derived data

    def card(self, shape: Shape, index: int, worth: Worth) -> tuple[Suitable, Scorecard]:
        """Return the suitable nodes of a pod set and its scorecard. The fleet must be arranged."""
        suitables = self.derived.suitables
        suitable = suitables.of(self.fleet, shape, index)
        kind, pods = suitables.kind(shape, index)
        return suitable, self.derived.scores.card(self.fleet, kind, pods, suitable, worth)

    def pressure(self, sampled: Sampled, before: Pressure) -> Pressure:
        """Return the current scarcity of nodes for the mix of pods."""
        self.fleet.arrange()
        cpu_a_gpu = self.derived.ledger.cpu_a_gpu()
        return self.derived.appraiser.pressure(self.fleet, sampled, cpu_a_gpu, before)

    def lay_out(self, sampled: Sampled) -> None:
        """Prepare arrays and pools after changes of nodes, the slow part of the first use."""
        if not self.fleet.arranged:
            self.fleet.arrange()
            self.derived.appraiser.gauge.pools(self.fleet, sampled)

    @property
    def engine_bytes(self) -> int:
        """Return the size of engine arrays that grow with nodes and kinds of pods."""
        derived = self.derived
        caches = derived.suitables.array_bytes + derived.scores.array_bytes
        return self.fleet.array_bytes + caches

"""The reconciler's knowledge of log, fleet and operators: the fold, up to one sequence per stream.

Only workloads of the hub's cell are kept. Placements of other cells show up as managed pods in node
reports, which are charged.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from berthmaster.hub.multikueue.core.known.avoided import Attention, NamesTaken
from berthmaster.hub.multikueue.core.known.labelled_nodes import LabelledNodes
from berthmaster.hub.multikueue.core.known.on_the_way import OnTheWay
from berthmaster.hub.multikueue.policy import HubPolicy
from berthmaster.lib.engine.fleet.fleet import Holding
from berthmaster.lib.engine.fleet.pieces import pieces_held
from berthmaster.lib.engine.fleetview.shortlist import ClusterSnapshot, snapshot_of
from berthmaster.lib.engine.fleetview.view import FleetView
from berthmaster.lib.engine.queueing.preemption import RecentEvictions
from berthmaster.lib.engine.scoring.pressure import NO_PRESSURE, is_due
from berthmaster.lib.kueue.quota import Quotas, queue_of
from berthmaster.lib.lifecycle.commits import Chain
from berthmaster.lib.lifecycle.fold import Endings, OpenWorkloads, Verdict
from berthmaster.lib.lifecycle.states import LIVE, Ending
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.control import ControlFact
from berthmaster.lib.messages.fleet import (
    ClusterAlive,
    CopyReport,
    FleetFact,
    LocalQueueReport,
    NodeGone,
    NodeReport,
    QueueReport,
)
from berthmaster.lib.messages.placement import HUB_CELL, Decision, Pressure
from berthmaster.lib.messages.workload import (
    Carried,
    EvictionRequested,
    Placed,
    Submitted,
    WorkloadEvent,
)

MAX_GONE: Final = 10_000  # limit of reported removals; stuck Workloads are checked soon


class HubChain(Chain):
    """The decision chain shared by several hubs."""

    def __init__(self) -> None:
        super().__init__()
        self.hub = ""  # id of the hub of the decision


class Charged(NamedTuple):
    """Quotas of a worker, less Workloads on their way at one time."""

    snapshot: ClusterSnapshot  # snapshot of that time
    workloads: Sequence[Workload]  # charged, in this order
    quotas: Quotas


class BusState:
    """All inputs of decisions from the bus."""

    def __init__(self) -> None:
        self.chain = HubChain()
        self.workloads_sequence = 0
        self.heard_at_s = 0.0  # storing time of the newest fact
        self.workloads = OpenWorkloads(_is_hubs)
        self.open = self.workloads.open
        self._homes: dict[Key, str] = {}  # id of the hub of each placement
        self.ended = Endings()
        self.frozen = self.workloads.frozen
        self.view = FleetView.empty()
        self.copies: dict[tuple[str, str, str], CopyReport] = {}  # cluster, namespace, Workload
        # Removed copy -> number of its completed Jobs.
        self.gone_copies: OrderedDict[tuple[str, str, str], int] = OrderedDict()
        self.on_the_way = OnTheWay(self.open, self.copies)
        self.recent_evictions = RecentEvictions()
        # Beneficiary -> victims, with their attempts
        self._goes_for: dict[Key, dict[Key, int]] = {}
        self.labelled = LabelledNodes()
        self.attention = Attention()
        self.names_taken = NamesTaken()
        self.verdicts: Counter[Verdict] = Counter()
        self._news = 0  # rises with each change of cluster data
        self._demoted: tuple[tuple[object, ...], dict[str, str]] | None = None
        self._snapshot: tuple[tuple[object, ...], ClusterSnapshot] | None = None
        self._pressure, self._pressed_at = NO_PRESSURE, 0
        self.charged: dict[str, Charged] = {}  # cluster -> worked out last, by the gate
        # Fraction resources of the fleet, and their layout
        self._shares, self._shares_at = frozenset[str](), -1

    # The log

    def take_event(
        self, event: WorkloadEvent, sequence: int, stored_at_s: float, *, void: bool = False
    ) -> Verdict | None:
        """Fold one event; None for other cells and frozen workloads. ``void``: see
        ``lifecycle.fold.offer``.
        """
        self.workloads_sequence = max(self.workloads_sequence, sequence)
        name = key(event.tenant, event.id)
        applied = self.workloads.apply(event, sequence, stored_at_s, void=void)
        if applied is None:
            return None
        if applied.is_new and isinstance(event, Ending):
            if applied.verdict is Verdict.COUNTED:
                self.ended.remember(event)
            return None
        self.verdicts[applied.verdict] += 1
        if applied.verdict is not Verdict.COUNTED:
            return applied.verdict
        self.view.learn(event)
        self.attention.learn(event, stored_at_s)
        self.names_taken.learn(event, stored_at_s)
        if isinstance(event, Ending):
            self.names_taken.forget(name)
            self._goes_for.pop(name, None)
            self._homes.pop(name, None)
            self.ended.remember(event)
        self._follow(applied.workload, event)
        return applied.verdict

    def _follow(self, workload: Workload, event: WorkloadEvent) -> None:
        name = workload.key
        if isinstance(event, Placed) or (isinstance(event, Carried) and workload.live):
            self._homes[name] = self.chain.hub  # its decision came just before
            self.on_the_way.placed(workload.cluster, name)
        elif isinstance(event, EvictionRequested) and event.to:
            self.on_the_way.placed(event.to, name)
        if workload.state not in LIVE:
            self.on_the_way.arrived(workload.cluster, name)

    def freeze(self, tenant: str, workload_id: str, sequence: int, why: str) -> None:
        """Freeze the workload of an undecodable event."""
        self.workloads_sequence = max(self.workloads_sequence, sequence)
        self.workloads.freeze(tenant, workload_id, sequence, why)

    def take_decision(self, decision: Decision, sequence: int) -> None:
        """A link of the chain; the events of its batch come by themselves."""
        self.workloads_sequence = max(self.workloads_sequence, sequence)
        if decision.cell == HUB_CELL and sequence > self.chain.sequence:
            self.chain.number = decision.number
            self.chain.sequence = sequence
            self.chain.hub = str(decision.settings.get("hub", ""))
            for order in decision.evictions:
                goes, mover = key(order.tenant, order.id), key(order.for_tenant, order.for_id)
                self._goes_for.setdefault(mover, {})[goes] = order.attempt
                workload = self.open.get(goes)
                request = workload.request if workload is not None else None
                self.recent_evictions.add(
                    decision.now_s, request.queue if request is not None else ""
                )

    def going_for(self, name: Key) -> list[Key]:
        """Return the victims for a workload that still hold capacity."""
        told = self._goes_for.get(name, {})
        going = [goes for goes, attempt in told.items() if self._still_goes(goes, attempt)]
        if not going:
            self._goes_for.pop(name, None)
        return going

    def _still_goes(self, name: Key, attempt: int) -> bool:
        workload = self.open.get(name)
        return workload is not None and workload.attempt == attempt and workload.live

    # Facts

    def take_fact(self, fact: FleetFact, sequence: int, stored_at_s: float) -> None:
        """Take over the newest value of something in the fleet."""
        self._news += 1
        self.heard_at_s = max(self.heard_at_s, stored_at_s)
        if isinstance(fact, QueueReport):
            before = self.view.clusters.peek(fact.cluster).queues.get(fact.queue)
            self.attention.queue_reported(fact, before, stored_at_s)
        elif isinstance(fact, CopyReport):
            known = self.copies.get((fact.cluster, fact.namespace, fact.workload))
            self.attention.copy_reported(fact, known, stored_at_s)
        self.view.take_fact(fact, sequence, stored_at_s)
        match fact:
            case ClusterAlive():
                self.attention.sign_of_life(fact.cluster, stored_at_s)
            case NodeReport():
                self.on_the_way.node_reported(fact)
                self._charge_pods(fact)
            case NodeGone():
                self.drop_node(fact.cluster, fact.node)
            case CopyReport(gone=True):
                at = (fact.cluster, fact.namespace, fact.workload)
                self.copies.pop(at, None)
                self.gone_copies[at] = fact.succeeded
                if len(self.gone_copies) > MAX_GONE:
                    self.gone_copies.popitem(last=False)
            case CopyReport():
                at = (fact.cluster, fact.namespace, fact.workload)
                self.copies[at] = fact
                self.gone_copies.pop(at, None)

    def completed(self, cluster: str, namespace: str, workload: str) -> int:
        """Return how many Jobs a cluster has reported as completed for copies of this name."""
        at = (cluster, namespace, workload)
        copy = self.copies.get(at)
        return copy.succeeded if copy is not None else self.gone_copies.get(at, 0)

    def ended_in(self, namespace: str, workload: str) -> set[str]:
        """Return the clusters whose last report shows the end of a copy or of its Job."""
        found: set[str] = set()
        for cluster in self.view.clusters.known():
            copy = self.copies.get((cluster.name, namespace, workload))
            is_finished = copy is not None and copy.finished
            if is_finished or self.completed(cluster.name, namespace, workload):
                found.add(cluster.name)
        return found

    def drop_copy(self, cluster: str, namespace: str, workload: str) -> None:
        self._news += 1
        self.copies.pop((cluster, namespace, workload), None)
        self.attention.copy_gone(cluster, namespace, workload)

    def demoted(self, policy: HubPolicy, now_s: float) -> dict[str, str]:
        """Return the clusters that go last because Kueue ignores copies there, with reasons."""
        key = (policy, now_s, self._news, self.workloads_sequence)
        if self._demoted is None or self._demoted[0] != key:
            found = self.attention.demoted(self.copies, now_s, policy.neglect_s)
            self._demoted = key, found
        return self._demoted[1]

    def take_control(self, fact: ControlFact, sequence: int) -> None:
        """Apply an operator's setting."""
        self._news += 1
        self.view.take_control(fact, sequence)

    def drop_node(self, cluster: str, node: str) -> None:
        """Remove a node and its charges."""
        self._news += 1
        self.on_the_way.node_gone(cluster, node)
        self.view.drop_node(cluster, node)
        self.view.fleet.release(_seen_on(cluster, node))

    def _charge_pods(self, report: NodeReport) -> None:
        holdings = [
            Holding(
                report.cluster,
                report.node,
                p.cpu_milli,
                p.memory_mib,
                p.gpu_milli,
                p.gpus,
                pieces=pieces_held(p),
            )
            for p in report.pods
        ]
        name = _seen_on(report.cluster, report.node)
        if holdings:
            self.view.fleet.hold(name, holdings)
        else:
            self.view.fleet.release(name)

    # Derived data

    def snapshot(self, policy: HubPolicy, now_s: float) -> ClusterSnapshot:
        """Return all clusters as of now, cached until something changes. Includes clusters with
        queues and without nodes.
        """
        view = self.view
        key = (policy, now_s, self._news)
        if self._snapshot is None or self._snapshot[0] != key:
            made = snapshot_of(
                view,
                policy,
                now_s,
                view.mix.newest,
                pressure=self._pressed(),
                also=[cluster.name for cluster in view.clusters.known() if cluster.queues],
            )
            self._snapshot = key, made
        return self._snapshot[1]

    def share_names(self) -> frozenset[str]:
        """Return the resources of GPU fractions on nodes."""
        fleet = self.view.fleet
        fleet.arrange()
        if fleet.layout != self._shares_at:
            self._shares_at = fleet.layout
            self._shares = frozenset(s.resource for kind in fleet.kinds for s in kind.shares)
        return self._shares

    def _pressed(self) -> Pressure:
        """Which nodes are scarce, worked out anew when enough of the fleet has changed."""
        view, fleet = self.view, self.view.fleet
        fleet.arrange()
        changes = fleet.touched.end - self._pressed_at
        if is_due(self._pressure, view.mix.newest, abs(changes), len(fleet.names)):
            self._pressed_at = fleet.touched.end
            self._pressure = view.pressure(view.mix.newest, self._pressure)
        return self._pressure

    def home_of(self, workload: Workload) -> str:
        """Return the id of the workload's hub; "" = none yet, or unknown."""
        if workload.origin is not None:
            return workload.origin.hub
        return self._homes.get(workload.key, "")

    def local_queue(
        self, cluster: str, namespace: str, name: str
    ) -> tuple[QueueReport, LocalQueueReport] | None:
        """The worker's queue of the same name in the same namespace, with its ClusterQueue."""
        return queue_of(self.view.clusters.peek(cluster).queues.values(), namespace, name)

    def copy_of(self, workload: Workload, namespace: str, kueue_name: str) -> CopyReport | None:
        """Return the copy in the cluster of the attempt."""
        return self.copies.get((workload.cluster, namespace, kueue_name))


def _is_hubs(event: Submitted | Carried) -> bool:
    cell = event.cell if isinstance(event, Submitted) else event.workload.cell
    return cell == HUB_CELL


def _seen_on(cluster: str, node: str) -> Key:
    """Return the key of charges for managed pods in a node report."""
    return Key(f"seen:{cluster}:{node}")

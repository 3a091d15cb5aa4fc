"""The fleet as rows for people, folded from facts and operators' settings: for the terminal and
the page alike. Pure."""

from collections.abc import Iterable
from typing import Protocol

import msgspec

from berthmaster.lib.engine.fleet.clusters import NO_ORDERS, Twins, is_closed
from berthmaster.lib.messages.control import ClusterLost, ControlFact, Cordon, GpuCordon
from berthmaster.lib.messages.fleet import (
    ClosedGpu,
    ClusterAlive,
    ClusterProfile,
    ClusterScore,
    FleetFact,
    NodeGone,
    NodeReport,
    ResourceScore,
    UnlistedKind,
)
from berthmaster.lib.messages.telemetry import NodeTelemetry


class StoredFact(Protocol):
    @property
    def fact(self) -> FleetFact: ...
    @property
    def stored_at_s(self) -> float: ...


class ClusterRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One cluster as in `berth top`. None is unknown, never 0."""

    cluster: str
    freshness: str  # freshness of its score; "unscored" before the first
    seen_s: float | None  # age of the last heartbeat
    nodes: int = 0
    gpus: int = 0
    models: dict[str, int] = {}
    free_gpus: float | None = None
    idle_gpu_percent: float | None = None  # measured
    fragmentation_percent: float | None = None
    largest_gang: dict[str, int] = {}
    scores: dict[str, int] = {}  # gpuClusterAvailable and so on
    cordoned: str | None = None  # reason of the cordon; None = not cordoned
    cordoned_nodes: int = 0
    lost: str | None = None
    note: str = ""
    same_as: str = ""
    # Cluster in use for the same API server. This row then has no nodes, GPUs and scores, so sums
    # over rows count each GPU once. "" = this cluster is in use.
    unlisted: tuple[UnlistedKind, ...] = ()  # kinds of objects that the cluster cannot list
    # Milli that no pod can get, in GPUs, such as capacity without a MIG instance
    withheld_gpus: float = 0.0

    @property
    def used_share(self) -> float | None:
        """Return the share of GPUs that are allocated or on closed nodes."""
        there = self.gpus - self.withheld_gpus
        if there <= 0 or self.free_gpus is None:
            return None
        return max(0.0, 1 - self.free_gpus / there)


class NodeRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node as in `berth top CLUSTER`."""

    node: str
    state: str  # ready, cordoned, not ready
    model: str = ""
    gpu_milli_used: tuple[int, ...] = ()  # of each healthy GPU, by our pods and foreign ones
    unhealthy: int = 0
    utilization_percent: float | None = None  # mean over GPUs, as measured
    power_w: float | None = None
    pods: int = 0


class FleetView:
    """Takes facts in any order; gives rows."""

    def __init__(self) -> None:
        self._alive: dict[str, float] = {}
        self._profiles: dict[str, ClusterProfile] = {}
        self._scores: dict[str, ClusterScore] = {}
        self._nodes: dict[tuple[str, str], NodeReport] = {}
        self._withheld: dict[str, int] = {}  # milli of all nodes of a cluster
        self._telemetry: dict[tuple[str, str], NodeTelemetry] = {}
        self._cordons: dict[tuple[str, str | None], Cordon] = {}
        self._gpu_cordons: dict[tuple[str, str], dict[int, GpuCordon]] = {}
        self._lost: dict[str, ClusterLost] = {}

    def take(self, seen: StoredFact) -> None:
        """Apply one fact. Its age is by the server's clock."""
        fact = seen.fact
        match fact:
            case ClusterAlive():
                self._alive[fact.cluster] = seen.stored_at_s
            case ClusterProfile():
                self._profiles[fact.cluster] = fact
            case ClusterScore():
                self._scores[fact.cluster] = fact
            case NodeReport():
                self._withhold(fact.cluster, fact.node, fact)
                self._nodes[fact.cluster, fact.node] = fact
            case NodeGone():
                self._withhold(fact.cluster, fact.node, None)
                self._nodes.pop((fact.cluster, fact.node), None)
                self._telemetry.pop((fact.cluster, fact.node), None)

    def _withhold(self, cluster: str, node: str, now: NodeReport | None) -> None:
        before = self._nodes.get((cluster, node))
        change = _withheld(now) - _withheld(before)
        if change:
            self._withheld[cluster] = self._withheld.get(cluster, 0) + change

    def take_telemetry(self, report: NodeTelemetry) -> None:
        self._telemetry[report.cluster, report.node] = report

    def set_control(self, facts: Iterable[ControlFact]) -> None:
        """Replace all operators' settings."""
        self._cordons.clear()
        self._gpu_cordons.clear()
        self._lost.clear()
        for fact in facts:
            match fact:
                case Cordon(cordoned=True):
                    self._cordons[fact.cluster, fact.node] = fact
                case GpuCordon():
                    of_node = self._gpu_cordons.setdefault((fact.cluster, fact.node), {})
                    of_node[fact.gpu] = fact
                case ClusterLost(lost=True):
                    self._lost[fact.cluster] = fact
                case _:
                    pass

    def forget(self, cluster: str) -> None:
        for known in (self._alive, self._profiles, self._scores):
            known.pop(cluster, None)

    def alive_at_s(self, cluster: str) -> float | None:
        """When it gave a sign of life last, by the server's clock."""
        return self._alive.get(cluster)

    def rows(self, now_s: float) -> list[ClusterRow]:
        """All clusters by name."""
        names = self._alive.keys() | self._profiles.keys() | self._scores.keys()
        twins = Twins.of(self._profiles.values(), self._lost)
        return [self._row(name, twins, now_s) for name in sorted(names, key=natural)]

    def _row(self, name: str, twins: Twins, now_s: float) -> ClusterRow:
        profile, score = self._profiles.get(name), self._scores.get(name)
        cordon, lost = self._cordons.get((name, None)), self._lost.get(name)
        same_as = twins.first(name)
        models = dict(profile.gpus) if profile and not same_as else {}
        known = score if score is not None and score.freshness != "withdrawn" else None
        known = None if same_as else known
        return ClusterRow(
            cluster=name,
            freshness=score.freshness if score else "unscored",
            seen_s=max(0.0, now_s - self._alive[name]) if name in self._alive else None,
            nodes=profile.nodes if profile and not same_as else 0,
            gpus=sum(models.values()),
            models=models,
            free_gpus=known.free_gpus if known else None,
            idle_gpu_percent=known.idle_gpu_percent if known else None,
            fragmentation_percent=known.fragmentation_percent if known else None,
            largest_gang=dict(known.largest_gang) if known else {},
            scores=_scores(known.resources) if known else {},
            cordoned=(cordon.reason or "no reason given") if cordon else None,
            cordoned_nodes=sum(1 for key in self._cordons if key[0] == name and key[1] is not None),
            lost=lost.reason if lost else None,
            note=score.note if score else "",
            same_as=same_as,
            unlisted=profile.unlisted if profile else (),
            withheld_gpus=self._withheld.get(name, 0) / 1000,
        )

    def nodes_of(self, cluster: str) -> list[NodeReport]:
        """Return the last reports of a cluster's nodes."""
        return [node for node in self._nodes.values() if node.cluster == cluster]

    def faulty_gpus(self, cluster: str) -> list[tuple[str, ClosedGpu]]:
        """Return node and GPU of those that telemetry found faulty and operators have not opened
        since."""
        score = self._scores.get(cluster)
        return [
            (node, gpu)
            for node, gpus in (score.closed_gpus if score is not None else {}).items()
            for gpu in gpus
            if is_closed(gpu, self._gpu_cordons.get((cluster, node), NO_ORDERS).get(gpu.index))
        ]

    def cordons_of(self, cluster: str) -> list[Cordon]:
        """Return the cordons of a cluster and its nodes."""
        return [cordon for (name, _), cordon in self._cordons.items() if name == cluster]

    def node_rows(self, cluster: str) -> list[NodeRow]:
        """All nodes of a cluster by name."""
        ours = sorted(self.nodes_of(cluster), key=lambda node: natural(node.node))
        return [self._node_row(node) for node in ours]

    def _node_row(self, node: NodeReport) -> NodeRow:
        used = {gpu.index: gpu.foreign_milli for gpu in node.gpus if gpu.healthy}
        for pod in node.pods:
            for index in pod.gpus:
                if index in used:
                    used[index] += pod.gpu_milli
        telemetry = self._telemetry.get((node.cluster, node.node))
        gpus = telemetry.gpus if telemetry else ()
        measured = [gpu.utilization_percent for gpu in gpus if gpu.utilization_percent is not None]
        power = [gpu.power_w for gpu in gpus if gpu.power_w is not None]
        state = "ready" if node.ready else "not ready"
        if (node.cluster, node.node) in self._cordons or not node.schedulable:
            state = "cordoned"
        return NodeRow(
            node=node.node,
            state=state,
            model=", ".join(dict.fromkeys(gpu.model for gpu in node.gpus)),
            gpu_milli_used=tuple(used[index] for index in sorted(used)),
            unhealthy=sum(1 for gpu in node.gpus if not gpu.healthy),
            utilization_percent=sum(measured) / len(measured) if measured else None,
            power_w=sum(power) if power else None,
            pods=len(node.pods),
        )


def _withheld(report: NodeReport | None) -> int:
    return sum(gpu.withheld_milli for gpu in report.gpus) if report is not None else 0


def _scores(resources: dict[str, ResourceScore]) -> dict[str, int]:
    return {name: resource.score for name, resource in sorted(resources.items())}


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """Sorts node-2 before node-10."""
    parts: list[tuple[int, int | str]] = []
    text = ""
    for char in [*name, ""]:
        if text and (not char or char.isdecimal() != text[-1].isdecimal()):
            parts.append((0, int(text)) if text.isdecimal() else (1, text))
            text = ""
        text += char
    return tuple(parts)

"""One cluster as the scorer knows it: reports and telemetry of its nodes, folded into totals. Pure.

Telemetry is live for three of its own intervals after receipt, by our clock. A node's telemetry is
ordered by epoch and counter. The node's own clock orders nothing. After the live period any message
is accepted, so that a wrong epoch heals.
"""

from collections.abc import Iterator, Mapping
from itertools import compress
from typing import Final

import msgspec

from berthmaster.control.scorer.core.gpu_faults import (
    FaultRules,
    GpuState,
    follow,
    recalled,
    shifted,
    unseen,
)
from berthmaster.control.scorer.core.mix import Mix
from berthmaster.control.scorer.core.plausibility import Drop, believable_interval, judge_report
from berthmaster.control.scorer.core.rules import Amount
from berthmaster.control.scorer.core.score import Life, amount_of
from berthmaster.control.scorer.core.totals import (
    Measured,
    ResourceUse,
    Totals,
    TotalsPart,
    faulty_indices,
    reading_key,
    room_of,
    use_of,
)
from berthmaster.lib.engine.fleet.clusters import without_closed
from berthmaster.lib.messages.fleet import (
    ClosedGpu,
    ClusterAlive,
    ClusterProfile,
    ClusterScore,
    HubRoom,
    Membership,
    NodeGone,
    NodeReport,
    Stamp,
)
from berthmaster.lib.messages.telemetry import NodeTelemetry

LEAST_LIVE_S: Final = 3.0  # an agent at 1 Hz or more may lose a few messages
# Two jobs on one GPU hardly slow each other while both are below 70 % busy (Lucid, ASPLOS'23).
# Under MPS they run in parallel, each on its own SMs, so the free SMs decide (measured on an H200,
# see docs/reference/measurements.md).
CALM_PERCENT: Final = 70


class Changed(msgspec.Struct, frozen=True):
    dropped: Drop | None = None  # no effect, or only the removal of its node
    capacity: bool = False  # amounts that set the fleet's scale
    only_measured: bool = False  # nothing but telemetry's measurements
    only_life: bool = False  # nothing but a heartbeat


SOMETHING: Final = Changed()
CAPACITY: Final = Changed(capacity=True)
MEASURED: Final = Changed(only_measured=True)
LIFE: Final = Changed(only_life=True)
OLD: Final = Changed(dropped=Drop.OLD)


class _Node:
    """State of one node beyond its contribution."""

    __slots__ = (
        *("calm", "counter", "epoch", "gpus", "healthy", "idle", "live_until_s", "report"),
        *("shared", "side_by_side"),
    )

    def __init__(self, report: NodeReport) -> None:
        self.report = report
        self.healthy: tuple[str, ...] = ()  # keys of its healthy GPUs
        self.shared: tuple[str, ...] = ()  # the healthy GPUs allocated in part
        self.side_by_side = False  # under MPS, where each sharing pod has its own SMs
        self.epoch = 0
        self.counter = 0
        self.live_until_s = 0.0  # 0: no live telemetry
        self.idle: dict[str, int] = {}  # GPU -> measured idle time in 1/1000 percent
        self.calm: frozenset[str] = frozenset()  # measured GPUs with capacity for another job
        # Unhealthy GPUs by key. They stay unhealthy when telemetry lapses.
        self.gpus: dict[str, GpuState] = {}

    def closed(self) -> dict[str, tuple[object, ...]]:
        """Return the published state of its closed GPUs."""
        return {
            key: (state.fault, state.since_s)
            for key, state in self.gpus.items()
            if state.fault is not None
        }

    def measured(self) -> Measured:
        gpus = idle = 0
        for key in self.healthy:
            share = self.idle.get(key)
            if share is not None:
                gpus += 1
                idle += share
        return Measured(gpus, idle, sum(key in self.calm for key in self.shared))


class ScoredCluster:
    """One cluster. ``ours``: scored by this shard. Of other clusters only the size is used."""

    def __init__(self, name: str, *, ours: bool, faults: FaultRules | None = None) -> None:
        self.name = name
        self.ours = ours
        self._faults = faults or FaultRules()
        self.totals = Totals()
        self.life = Life()
        self._nodes: dict[str, _Node] = {}
        self._stamps: dict[str, Stamp] = {}  # node -> stamp of its newest fact, NodeGone included
        self._alive: ClusterAlive | None = None
        self._profile: ClusterProfile | None = None
        self._membership: Membership | None = None
        self._measured = Life()  # by its hub
        self.closed_gpus: dict[str, tuple[ClosedGpu, ...]] = {}  # of each node with closed GPUs
        self._closed_before: Mapping[str, tuple[ClosedGpu, ...]] = {}  # by the newest score
        # The score last published, for the core.
        self.told: ClusterScore | None = None  # None: must be published
        self.told_s = 0.0
        self.hold_s = 0.0  # no score before this time
        self.since_s: float | None = None  # first change since the last check

    @property
    def empty(self) -> bool:
        told = (self._alive, self._profile, self._membership)
        return not self._nodes and all(each is None for each in told)

    @property
    def newest(self) -> Life:
        """Return the cluster's last heartbeat, else the hub's last measurement."""
        return self.life if self.life.seen_s is not None else self._measured

    @property
    def room(self) -> HubRoom | None:
        """Return the hub's measurement if the cluster itself has never reported."""
        spoken = self._nodes or self.life.seen_s is not None or self._membership is None
        return None if spoken or self._membership is None else self._membership.room

    def has(self) -> Amount:
        """Return all allocatable amounts."""
        return self.totals.cluster_has() if self.room is None else amount_of(self.room.allocatable)

    @property
    def expected_nodes(self) -> int:
        """Return the number of nodes in its profile."""
        return self._profile.nodes if self._profile is not None else 0

    def knows(self, node: str) -> bool:
        """Return whether a valid report of this node is known."""
        return node in self._nodes

    def nodes(self) -> Iterator[str]:
        return iter(list(self._nodes))

    def saw_life(self, stored_at_s: float, now_s: float) -> None:
        """Note a fact's store time as a heartbeat. A time ahead of our clock is cut, because a
        silent cluster would stay fresh too long.
        """
        seen_s = min(stored_at_s, now_s)
        if self.life.seen_s is None or seen_s > self.life.seen_s:
            self.life = msgspec.structs.replace(self.life, seen_s=seen_s)

    # Facts

    def on_alive(self, fact: ClusterAlive) -> Changed:
        """Note a heartbeat, and the interval until the next."""
        if self._alive is not None and fact.stamp <= self._alive.stamp:
            return OLD
        self._alive = fact
        interval_s = believable_interval(fact.interval_s)
        if interval_s != self.life.interval_s:
            self.life = msgspec.structs.replace(self.life, interval_s=interval_s)
        return LIFE

    def on_profile(self, fact: ClusterProfile) -> Changed:
        if self._profile is not None and fact.stamp <= self._profile.stamp:
            return OLD
        self._profile = fact
        return SOMETHING

    def on_membership(self, fact: Membership, stored_at_s: float, now_s: float) -> Changed:
        """Take the hub's measurement. The age counts from the observation, before the
        publication.
        """
        before = self._membership
        if before is not None and fact.stamp <= before.stamp:
            return OLD
        self._membership, room = fact, fact.room
        if room is None:
            return SOMETHING
        seen_s = min(room.observed_at_s, stored_at_s, now_s)
        self._measured = Life(seen_s, believable_interval(room.interval_s))
        earlier = before.room if before is not None else None
        same = earlier is not None and earlier.allocatable == room.allocatable
        return SOMETHING if same else CAPACITY

    def forget_membership(self) -> bool:
        """Forget the hub's measurement. Return whether there was any."""
        known = self._membership is not None
        self._membership, self._measured = None, Life()
        return known

    def on_node(self, fact: NodeReport | NodeGone, mix: Mix) -> Changed:
        """Take a node's newest report. An invalid one removes the node, because the older report is
        no longer true either.
        """
        known = self._stamps.get(fact.node)
        if known is not None and fact.stamp <= known:
            return OLD
        self._stamps[fact.node] = fact.stamp
        if isinstance(fact, NodeGone):
            return self._remove(fact.node)
        if (why := judge_report(fact)) is not None:
            return msgspec.structs.replace(self._remove(fact.node), dropped=why)
        node = self._nodes.get(fact.node)
        if node is None:
            self._nodes[fact.node] = node = _Node(fact)
        node.report = fact
        self._recall_closed(node)
        if node.gpus:  # a replaced GPU is another GPU
            listed = {reading_key(gpu.uuid, gpu.index) for gpu in fact.gpus}
            node.gpus = {key: state for key, state in node.gpus.items() if key in listed}
        return self._assess(node, mix)

    def recall_closed(self, closed: Mapping[str, tuple[ClosedGpu, ...]], mix: Mix) -> None:
        """Keep the GPUs closed in the newest score closed until telemetry of their node arrives. A
        start of the scorer must not make a faulty GPU look healthy.
        """
        self._closed_before = closed
        for name in closed:
            node = self._nodes.get(name)
            if node is not None and self._recall_closed(node):
                self._assess(node, mix)

    def _recall_closed(self, node: _Node) -> bool:
        """Return whether the state of a node's GPUs changed."""
        closed = {gpu.index: gpu for gpu in self._closed_before.get(node.report.node, ())}
        if node.epoch or node.counter or not closed:
            return False
        before = node.gpus
        node.gpus = {
            reading_key(gpu.uuid, gpu.index): recalled(closed[gpu.index])
            for gpu in node.report.gpus
            if gpu.index in closed
        }
        return node.gpus != before

    def forget_node(self, node: str) -> Changed:
        """Forget a node whose fact the bus no longer has."""
        self._stamps.pop(node, None)
        return self._remove(node)

    def forget_alive(self) -> None:
        self._alive = None

    def forget_profile(self) -> None:
        self._profile = None

    def _remove(self, name: str) -> Changed:
        if self._nodes.pop(name, None) is None:
            return SOMETHING
        self.closed_gpus.pop(name, None)
        self.totals.put(name, None)
        return CAPACITY

    def _assess(self, node: _Node, mix: Mix) -> Changed:
        """Compute a node's whole contribution, after a change of its report or its closed GPUs."""
        closed = self._closed(node)
        report = without_closed(node.report, {gpu.index for gpu in closed})
        self.closed_gpus.pop(report.node, None)
        if closed:
            self.closed_gpus[report.node] = closed
        node.healthy = tuple(reading_key(gpu.uuid, gpu.index) for gpu in report.gpus if gpu.healthy)
        node.side_by_side = any(
            share.kind in ("shared", "milli") and share.isolation == "memory"
            for share in report.shares
        )
        room = room_of(report)
        node.shared = tuple(compress(node.healthy, room.shared))
        known = self.totals.parts.get(report.node)
        use = use_of(room, mix) if self.ours else ResourceUse()
        part = TotalsPart(room, use, node.measured(), node.live_until_s > 0)
        self.totals.put(report.node, part)
        same = known is not None and known.room.has == room.has
        return SOMETHING if same else CAPACITY

    def _closed(self, node: _Node) -> tuple[ClosedGpu, ...]:
        faulty = node.closed()
        if not faulty:
            return ()
        indices = faulty_indices(node.report, faulty.keys())
        keys = {gpu.index: reading_key(gpu.uuid, gpu.index) for gpu in node.report.gpus}
        found = (node.gpus[keys[index]].closed(index) for index in indices)
        return tuple(gpu for gpu in found if gpu is not None)

    def judge(self, node: str, mix: Mix) -> bool:
        """Judge a node by a new mix. Return whether this made a difference."""
        part = self.totals.parts.get(node)
        if part is None:
            return False
        use = use_of(part.room, mix)
        if use == part.use:
            return False
        self.totals.put(node, msgspec.structs.replace(part, use=use))
        return True

    # Telemetry

    def on_telemetry(self, told: NodeTelemetry, mix: Mix, now_s: float) -> tuple[Changed, float]:
        """Take valid telemetry of a known node. Return the change, and the end of its live
        period.
        """
        node = self._nodes[told.node]
        live = node.live_until_s > now_s
        if live and (told.epoch, told.counter) <= (node.epoch, node.counter):
            return OLD, node.live_until_s
        node.epoch, node.counter = told.epoch, told.counter
        node.live_until_s = now_s + max(LEAST_LIVE_S, 3 * told.interval_s)
        idle: dict[str, int] = {}
        calm: set[str] = set()
        for gpu in told.gpus:
            # A report that only counts GPUs has no uuids: its GPUs are known by index.
            for key in (reading_key(gpu.uuid, gpu.index), reading_key("", gpu.index)):
                if gpu.utilization_percent is not None and gpu.health != "lost":
                    idle[key] = 100_000 - round(1000 * gpu.utilization_percent)
                    taken = gpu.sm_active_percent if node.side_by_side else None
                    if (gpu.utilization_percent if taken is None else taken) < CALM_PERCENT:
                        calm.add(key)
        node.idle, node.calm = idle, frozenset(calm)
        if self._follow_faults(node, told, now_s, gap=not live):
            return self._assess(node, mix), node.live_until_s
        self.totals.measure(told.node, node.measured(), True)
        return MEASURED, node.live_until_s

    def _follow_faults(self, node: _Node, told: NodeTelemetry, now_s: float, *, gap: bool) -> bool:
        """Return whether a GPU was closed, opened, or closed for a newer sign."""
        if not node.gpus and all(gpu.health == "ok" for gpu in told.gpus):
            return False  # the usual case
        before, known = node.closed(), node.gpus
        found: dict[str, GpuState | None] = {key: unseen(state) for key, state in known.items()}
        for gpu in told.gpus:
            for key in (reading_key(gpu.uuid, gpu.index), reading_key("", gpu.index)):
                found[key] = follow(known.get(key), gpu, now_s, self._faults, gap=gap)
        node.gpus = {key: state for key, state in found.items() if state is not None}
        return node.closed() != before

    def lapse(self, name: str, now_s: float) -> float | None:
        """Forget the node's samples after their live period. Before, return its end."""
        node = self._nodes.get(name)
        if node is None or not node.live_until_s:
            return None
        if node.live_until_s > now_s:
            return node.live_until_s
        node.live_until_s = 0.0
        node.idle, node.calm = {}, frozenset()
        self.totals.measure(name, Measured(), False)
        return None

    def set_back(self, by_s: float) -> Iterator[tuple[str, float]]:
        """Move every noted time by ``by_s`` (below 0). Yield the live nodes, each with the end of
        its live period.
        """
        if self.life.seen_s is not None:
            self.life = msgspec.structs.replace(self.life, seen_s=self.life.seen_s + by_s)
        if self._measured.seen_s is not None:
            seen_s = self._measured.seen_s + by_s
            self._measured = msgspec.structs.replace(self._measured, seen_s=seen_s)
        self.told_s += by_s
        self.hold_s += by_s
        if self.since_s is not None:
            self.since_s += by_s
        for name, node in self._nodes.items():
            node.gpus = {key: shifted(state, by_s) for key, state in node.gpus.items()}
            if node.live_until_s:
                node.live_until_s += by_s
                yield name, node.live_until_s

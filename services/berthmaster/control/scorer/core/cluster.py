"""One cluster as the scorer knows it: its nodes' reports and telemetry, folded into its totals.

Pure. Telemetry counts while it is live: until three of its own intervals after it was received, by
our clock. The order of a node's telemetry is epoch and counter; the node's own clock orders
nothing. Once it has lapsed, whatever comes next is news, so that a wrong epoch heals.
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
# Under MPS they run side by side, each on its own SMs: there it is the SMs that must be left
# (measured on an H200, see docs/reference/measurements.md).
CALM_PERCENT: Final = 70


class Changed(msgspec.Struct, frozen=True):
    dropped: Drop | None = None  # it had no effect, or only the effect that its node is gone
    capacity: bool = False  # amounts on which the fleet's scale rests
    only_measured: bool = False  # nothing but what telemetry measures
    only_life: bool = False  # nothing but that its reporter is there


SOMETHING: Final = Changed()
CAPACITY: Final = Changed(capacity=True)
MEASURED: Final = Changed(only_measured=True)
LIFE: Final = Changed(only_life=True)
OLD: Final = Changed(dropped=Drop.OLD)


class _Node:
    """What is known of one node beyond its contribution."""

    __slots__ = (
        *("calm", "counter", "epoch", "gpus", "healthy", "idle", "live_until_s", "report"),
        *("shared", "side_by_side"),
    )

    def __init__(self, report: NodeReport) -> None:
        self.report = report
        self.healthy: tuple[str, ...] = ()  # keys of its healthy GPUs
        self.shared: tuple[str, ...] = ()  # of those, the ones taken in part
        self.side_by_side = False  # under MPS: whoever shares a GPU has SMs of its own
        self.epoch = 0
        self.counter = 0
        self.live_until_s = 0.0  # 0: no live telemetry
        self.idle: dict[str, int] = {}  # GPU -> idle share in 1/1000 percent, where measured
        self.calm: frozenset[str] = frozenset()  # GPUs that are measured and leave room for another
        # By key, the GPUs that are not well: they stay so when telemetry lapses.
        self.gpus: dict[str, GpuState] = {}

    def closed(self) -> dict[str, tuple[object, ...]]:
        """What of its GPUs others see."""
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
    """One cluster. ``ours``: this shard scores it; of others only the size matters."""

    def __init__(self, name: str, *, ours: bool, faults: FaultRules | None = None) -> None:
        self.name = name
        self.ours = ours
        self._faults = faults or FaultRules()
        self.totals = Totals()
        self.life = Life()
        self._nodes: dict[str, _Node] = {}
        self._stamps: dict[str, Stamp] = {}  # node -> of its newest fact, NodeGone included
        self._alive: ClusterAlive | None = None
        self._profile: ClusterProfile | None = None
        self._membership: Membership | None = None
        self._measured = Life()  # by its hub
        self.closed_gpus: dict[str, tuple[ClosedGpu, ...]] = {}  # of each node that has some
        self._closed_before: Mapping[str, tuple[ClosedGpu, ...]] = {}  # by the newest score
        # What readers were told, which is the core's business
        self.told: ClusterScore | None = None  # None: they must hear of it anew
        self.told_s = 0.0
        self.hold_s = 0.0  # nothing is told before
        self.since_s: float | None = None  # first change that has not been looked at

    @property
    def empty(self) -> bool:
        told = (self._alive, self._profile, self._membership)
        return not self._nodes and all(each is None for each in told)

    @property
    def newest(self) -> Life:
        """Its own signs of life. Of one that never gave any, when its hub measured it last."""
        return self.life if self.life.seen_s is not None else self._measured

    @property
    def room(self) -> HubRoom | None:
        """What its hub has measured, where it does not speak for itself."""
        spoken = self._nodes or self.life.seen_s is not None or self._membership is None
        return None if spoken or self._membership is None else self._membership.room

    def has(self) -> Amount:
        """Allocatable in all."""
        return self.totals.cluster_has() if self.room is None else amount_of(self.room.allocatable)

    @property
    def expected_nodes(self) -> int:
        """As many as its profile speaks of."""
        return self._profile.nodes if self._profile is not None else 0

    def knows(self, node: str) -> bool:
        """Whether a believable report of this node is there."""
        return node in self._nodes

    def nodes(self) -> Iterator[str]:
        return iter(list(self._nodes))

    def saw_life(self, stored_at_s: float, now_s: float) -> None:
        """A fact was stored then. A time ahead of our own clock would keep it fresh for too long
        when it falls silent."""
        seen_s = min(stored_at_s, now_s)
        if self.life.seen_s is None or seen_s > self.life.seen_s:
            self.life = msgspec.structs.replace(self.life, seen_s=seen_s)

    # Facts

    def on_alive(self, fact: ClusterAlive) -> Changed:
        """A sign of life, and when to expect the next."""
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
        """What its hub has measured of it: as old as its observation, which was before it was
        told."""
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
        """The hub measures nothing (any more); whether it did."""
        known = self._membership is not None
        self._membership, self._measured = None, Life()
        return known

    def on_node(self, fact: NodeReport | NodeGone, mix: Mix) -> Changed:
        """The newest word about a node. One that is not believed takes the node away: the older
        report is no longer true either."""
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
        if node.gpus:  # a GPU that was replaced is another one
            listed = {reading_key(gpu.uuid, gpu.index) for gpu in fact.gpus}
            node.gpus = {key: state for key, state in node.gpus.items() if key in listed}
        return self._assess(node, mix)

    def recall_closed(self, closed: Mapping[str, tuple[ClosedGpu, ...]], mix: Mix) -> None:
        """Keep GPUs closed that the newest score calls closed, until telemetry of their node says
        otherwise: a scorer's start must not make a faulty GPU look well."""
        self._closed_before = closed
        for name in closed:
            node = self._nodes.get(name)
            if node is not None and self._recall_closed(node):
                self._assess(node, mix)

    def _recall_closed(self, node: _Node) -> bool:
        """Return whether that changed what is known of a node."""
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
        """The bus no longer holds the fact."""
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
        """The node's whole contribution, after its report or its closed GPUs changed."""
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
        """Judge a node by a new mix; whether that made a difference."""
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
        """What it changed, and until when it is live. It was judged, and the node is known."""
        node = self._nodes[told.node]
        live = node.live_until_s > now_s
        if live and (told.epoch, told.counter) <= (node.epoch, node.counter):
            return OLD, node.live_until_s
        node.epoch, node.counter = told.epoch, told.counter
        node.live_until_s = now_s + max(LEAST_LIVE_S, 3 * told.interval_s)
        idle: dict[str, int] = {}
        calm: set[str] = set()
        for gpu in told.gpus:
            # Where a report only counts GPUs, its entries have no uuid and are known by index.
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
            return False  # as nearly always
        before, known = node.closed(), node.gpus
        found: dict[str, GpuState | None] = {key: unseen(state) for key, state in known.items()}
        for gpu in told.gpus:
            for key in (reading_key(gpu.uuid, gpu.index), reading_key("", gpu.index)):
                found[key] = follow(known.get(key), gpu, now_s, self._faults, gap=gap)
        node.gpus = {key: state for key, state in found.items() if state is not None}
        return node.closed() != before

    def lapse(self, name: str, now_s: float) -> float | None:
        """Forget the node's readings if they are live no longer; else until when they are."""
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
        """Move every time that was noted by this much (below 0); yields the nodes that are live,
        and until when."""
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

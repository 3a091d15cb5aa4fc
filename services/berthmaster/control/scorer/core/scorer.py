"""The scorer's core: take facts and telemetry, return scores, one node at a time.

The simple way keeps every node's last report and telemetry and scores a cluster from all of them at
each change (tests/unit/control/scorer/reference.py does so). This core gives the same scores, with
these differences:

- A message changes its node's contribution and its cluster's sums, nothing else (cluster.py).
- Scores are made when a Tick finds a cluster due: a few milliseconds after its first change, when
  silence changes its freshness, and at every refresh interval. A difference inside the dead band
  waits for the refresh.
- The scale follows the largest cluster and node, which are looked up only after their change.
- A new typical mix is applied to some nodes at a time. Until then the others count by the old mix.

Several scorers may serve one shard. All compute, and only the scorer with ``Led`` returns PutScore,
under that epoch.

``Agenda`` orders due work: a heap by time whose stale entries are skipped. The heap is rebuilt when
stale entries outnumber live entries.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar, assert_never

from berthmaster.control.scorer.core.cluster import Changed, ScoredCluster
from berthmaster.control.scorer.core.events import (
    Deposed,
    Event,
    FactForgotten,
    FactSeen,
    InputFact,
    Led,
    ScoreNotStored,
    ScoreSeen,
    TelemetryHeard,
    Tick,
    WorkloadSubmitted,
)
from berthmaster.control.scorer.core.instructions import PutScore
from berthmaster.control.scorer.core.mix import DEFAULT_MIX, Mix, MixWatch, distance
from berthmaster.control.scorer.core.plausibility import Drop, judge_telemetry
from berthmaster.control.scorer.core.rules import RESOURCES, Amount, ScoringRules
from berthmaster.control.scorer.core.score import (
    Life,
    Scales,
    cluster_score,
    differs,
    idle_moved,
    scales,
)
from berthmaster.lib.engine.fleet.clusters import Twins
from berthmaster.lib.messages.fleet import (
    ClosedGpu,
    ClusterAlive,
    ClusterProfile,
    ClusterScore,
    GpuFault,
    Membership,
    NodeGone,
    NodeReport,
    Stamp,
)
from berthmaster.lib.messages.telemetry import NodeTelemetry

K = TypeVar("K")


class Agenda(Generic[K]):
    """At most one due time per key."""

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._number = 0  # breaks ties in the order of entry: keys need not be comparable

    def __len__(self) -> int:
        return len(self._due)

    def set(self, key: K, at_s: float) -> None:
        """Set the due time of a key, whatever its old time."""
        if self._due.get(key) == at_s:
            return
        self._due[key] = at_s
        self._number += 1
        heapq.heappush(self._heap, (at_s, self._number, key))
        if len(self._heap) > 4 * len(self._due) + 64:
            self._rebuild()

    def advance(self, key: K, at_s: float) -> None:
        """Set the due time of a key if earlier than its old time."""
        known = self._due.get(key)
        if known is None or at_s < known:
            self.set(key, at_s)

    def drop(self, key: K) -> None:
        self._due.pop(key, None)

    def next_s(self) -> float | None:
        """Return when the next key is due, or None."""
        while self._heap:
            at_s, _, key = self._heap[0]
            if self._due.get(key) == at_s:
                return at_s
            heapq.heappop(self._heap)
        return None

    def pop_due(self, now_s: float) -> list[K]:
        """Remove and return the keys due by now, in order."""
        due: list[K] = []
        while (at_s := self.next_s()) is not None and at_s <= now_s:
            key = heapq.heappop(self._heap)[2]
            del self._due[key]
            due.append(key)
        return due

    def _rebuild(self) -> None:
        self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
        heapq.heapify(self._heap)


MIX_DISTANCE: Final = 0.02  # a smaller difference is not worth a new judgement of every node
CLOCK_SLACK_S: Final = 1.0  # a smaller step is jitter of our estimate, not a set clock
_NOTHING: Final = Amount(0, 0, 0, 0)


class Scorer:
    """Scores of one shard. Call ``handle`` with every event, and with Tick at ``wake_at_s``."""

    def __init__(
        self, rules: ScoringRules | None = None, owns: Callable[[str], bool] = lambda cluster: True
    ) -> None:
        self._rules = rules or ScoringRules()
        self._owns = owns
        self._clusters: dict[str, ScoredCluster] = {}
        self._twins = Twins()
        self._due: Agenda[str] = Agenda()  # clusters to check
        self._lapses: Agenda[tuple[str, str]] = Agenda()  # nodes whose telemetry may lapse
        self._watch = MixWatch(
            half_life_s=self._rules.mix_half_life_s, enough_pods=self._rules.mix_pods
        )
        self._remix_s: float | None = None  # time of the next mix update
        self._mixed_s: float | None = None  # time of the last mix update
        self._unmixed: deque[tuple[str, str]] = deque()  # nodes not yet judged by this mix
        self._scales = scales(self._rules, _NOTHING, _NOTHING)
        self._rescale_s: float | None = None  # time of the next scale update
        # By cluster, if the newest score lists any.
        self._closed_before: dict[str, dict[str, tuple[ClosedGpu, ...]]] = {}
        self._epoch: int | None = None
        self._counter = 0
        self._last_s = float("-inf")  # time of the last event
        self.mix: Mix = DEFAULT_MIX
        self.dropped: Counter[tuple[str, Drop]] = Counter()  # (kind of message, reason)

    # State for callers

    @property
    def scales(self) -> Scales:
        """Return the scales now."""
        return self._scales

    @property
    def leading(self) -> bool:
        """Return whether scores are published."""
        return self._epoch is not None

    @property
    def wake_at_s(self) -> float | None:
        """Return when the next Tick is due. A time in the past means at once."""
        times = (
            self._due.next_s(),
            self._lapses.next_s(),
            self._remix_s,
            self._rescale_s,
            0.0 if self._unmixed else None,
        )
        return min((at_s for at_s in times if at_s is not None), default=None)

    def input_ages_s(self, now_s: float) -> dict[str, float]:
        """Return the age of the last heartbeat of each of our clusters."""
        return {c.name: c.newest.age_s(now_s) for c in self._clusters.values() if c.ours}

    def closed_gpus(self) -> Counter[tuple[str, GpuFault]]:
        """Return the number of our closed GPUs, by cluster and fault."""
        return Counter(
            (cluster.name, gpu.fault)
            for cluster in self._clusters.values()
            if cluster.ours
            for gpus in cluster.closed_gpus.values()
            for gpu in gpus
        )

    def score(self, cluster: str, now_s: float, stamp: Stamp) -> ClusterScore:
        """Return a cluster's score as of now. KeyError for an unknown cluster."""
        return self._score(self._clusters[cluster], now_s, stamp)

    # Events

    def handle(self, event: Event, now_s: float) -> list[PutScore]:
        """Take one event. Only Tick and FactForgotten return instructions."""
        if now_s < self._last_s - CLOCK_SLACK_S:
            self._set_back(now_s - self._last_s, now_s)
        self._last_s = now_s
        match event:
            case TelemetryHeard():
                self._on_telemetry(event.telemetry, now_s)
            case ScoreSeen():
                self._on_score(event.score)
            case FactSeen():
                self._on_fact(event.fact, event.stored_at_s, now_s)
            case Tick():
                return self._on_tick(now_s)
            case WorkloadSubmitted():
                self._on_submitted(event, now_s)
            case FactForgotten():
                return self._on_forgotten(event, now_s)
            case Led():
                self._on_led(event.epoch, now_s)
            case Deposed():
                self._epoch = None
                self._due = Agenda()
            case ScoreNotStored():
                self._on_not_stored(event.cluster, now_s)
            case _:
                assert_never(event)
        return []

    def _on_led(self, epoch: int, now_s: float) -> None:
        self._epoch, self._counter = epoch, 0
        if self._rescale_s is not None:
            self._settle_scales(now_s)  # the first published score must be right
        for cluster in self._clusters.values():
            if cluster.ours:
                cluster.told, cluster.hold_s = None, 0.0
                self._due.set(cluster.name, now_s)

    def _on_not_stored(self, name: str, now_s: float) -> None:
        cluster = self._clusters.get(name)
        if cluster is not None and self.leading:
            cluster.told = None
            cluster.hold_s = now_s + self._rules.retry_s
            self._due.set(name, cluster.hold_s)

    def _on_score(self, score: ClusterScore) -> None:
        """Take the closed GPUs of a score, which makes no cluster known."""
        self._closed_before[score.cluster] = score.closed_gpus
        if not score.closed_gpus:
            del self._closed_before[score.cluster]
        if (cluster := self._clusters.get(score.cluster)) is not None:
            cluster.recall_closed(score.closed_gpus, self.mix)

    def _on_fact(self, fact: InputFact, stored_at_s: float, now_s: float) -> None:
        cluster = self._clusters.get(fact.cluster)
        if cluster is None:
            cluster = ScoredCluster(
                fact.cluster, ours=self._owns(fact.cluster), faults=self._rules.faults
            )
            cluster.recall_closed(self._closed_before.get(fact.cluster, {}), self.mix)
            self._clusters[fact.cluster] = cluster
        match fact:
            case ClusterAlive():
                kind, changed = "alive", cluster.on_alive(fact)
            case ClusterProfile():
                kind, changed = "profile", cluster.on_profile(fact)
                if changed.dropped is None:
                    self._look_at(self._twins.put(fact), now_s)
            case Membership():
                kind, changed = "membership", cluster.on_membership(fact, stored_at_s, now_s)
            case NodeReport() | NodeGone():
                kind, changed = "node", cluster.on_node(fact, self.mix)
            case _:
                assert_never(fact)
        # Neither a repetition nor a hub's measurement is a heartbeat of the cluster.
        if changed.dropped is not Drop.OLD and kind != "membership":
            cluster.saw_life(stored_at_s, now_s)
        self._after(cluster, changed, kind, now_s)

    def _on_forgotten(self, event: FactForgotten, now_s: float) -> list[PutScore]:
        cluster = self._clusters.get(event.cluster)
        if cluster is None:
            return []
        match event.kind:
            case "node":
                self._after(cluster, cluster.forget_node(event.node), "node", now_s)
            case "alive":
                cluster.forget_alive()
            case "profile":
                cluster.forget_profile()
                self._look_at(self._twins.drop(cluster.name), now_s)
            case "membership":
                if not cluster.forget_membership():
                    return []
        if not cluster.empty:
            self._touch(cluster, now_s)
            return []
        cluster.life = Life()
        puts = self._tell(cluster, now_s)  # the last score: withdrawn
        del self._clusters[cluster.name]
        self._due.drop(cluster.name)
        return puts

    def _on_telemetry(self, told: NodeTelemetry, now_s: float) -> None:
        cluster = self._clusters.get(told.cluster)
        if cluster is not None and not cluster.ours:
            return  # of another shard
        if (why := judge_telemetry(told, now_s, self._rules.future_limit_s)) is not None:
            self.dropped["telemetry", why] += 1
        elif cluster is None or not cluster.knows(told.node):
            self.dropped["telemetry", Drop.UNKNOWN_NODE] += 1
        else:
            changed, live_until_s = cluster.on_telemetry(told, self.mix, now_s)
            # An entry that is too early only costs a check, which is cheaper than moving it each
            # time.
            self._lapses.advance((told.cluster, told.node), live_until_s)
            self._after(cluster, changed, "telemetry", now_s)

    def _after(self, cluster: ScoredCluster, changed: Changed, kind: str, now_s: float) -> None:
        """Count a rejected message, and schedule the work after the change."""
        if changed.dropped is not None:
            self.dropped[kind, changed.dropped] += 1
            if changed.dropped is Drop.OLD:
                return
        if changed.capacity and self._rescale_s is None:
            self._rescale_s = now_s + self._rules.window_s
        if cluster.told is not None and not self._may_show(cluster, cluster.told, changed):
            return
        self._touch(cluster, now_s)

    def _may_show(self, cluster: ScoredCluster, told: ClusterScore, changed: Changed) -> bool:
        """Return whether a change may show in the score: a fast check of the two most frequent
        kinds of message, which seldom matter.
        """
        if changed.only_life:
            return told.freshness != "fresh"
        if changed.only_measured:
            return idle_moved(told, cluster.totals, self._rules.dead_band)
        return True

    def _look_at(self, names: Iterable[str], now_s: float) -> None:
        for name in names:
            if (cluster := self._clusters.get(name)) is not None:
                self._touch(cluster, now_s)

    def _touch(self, cluster: ScoredCluster, now_s: float, wait_s: float | None = None) -> None:
        """Schedule a check of the cluster's score at the end of the window."""
        if self.leading and cluster.ours:
            if cluster.since_s is None:
                cluster.since_s = now_s
            wait_s = self._rules.window_s if wait_s is None else wait_s
            self._due.advance(cluster.name, max(now_s + wait_s, cluster.hold_s))

    # Time

    def _on_tick(self, now_s: float) -> list[PutScore]:
        """Do the due work.

        1. Drop lapsed telemetry.
        2. Update the mix.
        3. Judge some nodes by the mix.
        4. Update the scales.
        5. Return the due scores.
        """
        self._lapse(now_s)
        if self._remix_s is not None and self._remix_s <= now_s:
            self._settle_mix(now_s)
        self._judge_some(now_s)
        if self._rescale_s is not None and self._rescale_s <= now_s:
            self._settle_scales(now_s)
        if not self.leading:
            return []
        return [
            put
            for name in self._due.pop_due(now_s)
            if (cluster := self._clusters.get(name)) is not None
            for put in self._consider(cluster, now_s)
        ]

    def _set_back(self, by_s: float, now_s: float) -> None:
        """Move all planned and noted times after the clock was set back. A clock set forward only
        makes inputs look older, until the next messages.
        """
        self._remix_s = None if self._remix_s is None else now_s
        self._mixed_s = None
        self._rescale_s = None if self._rescale_s is None else now_s
        self._lapses = Agenda()
        self._due = Agenda()
        for cluster in self._clusters.values():
            for node, live_until_s in cluster.set_back(by_s):
                self._lapses.set((cluster.name, node), live_until_s)
            if self.leading and cluster.ours:
                self._due.set(cluster.name, now_s)

    def _lapse(self, now_s: float) -> None:
        for key in self._lapses.pop_due(now_s):
            cluster = self._clusters.get(key[0])
            if cluster is None:
                continue
            live_until_s = cluster.lapse(key[1], now_s)
            if live_until_s is None:
                self._touch(cluster, now_s)
            else:
                self._lapses.set(key, live_until_s)

    def _on_submitted(self, event: WorkloadSubmitted, now_s: float) -> None:
        self._watch.add(event.pod_sets, event.at_s)
        if self._remix_s is None:
            last_s = self._mixed_s
            wait_s = 0.0 if last_s is None else last_s + self._rules.mix_interval_s - now_s
            self._remix_s = now_s + max(0.0, wait_s)

    def _settle_mix(self, now_s: float) -> None:
        self._remix_s, self._mixed_s = None, now_s
        mix = self._watch.typical(now_s)
        if distance(mix, self.mix) > MIX_DISTANCE:
            self.mix = mix
            self._unmixed = deque(
                (c.name, node) for c in self._clusters.values() if c.ours for node in c.nodes()
            )

    def _judge_some(self, now_s: float) -> None:
        for _ in range(min(self._rules.slice_nodes, len(self._unmixed))):
            name, node = self._unmixed.popleft()
            cluster = self._clusters.get(name)
            if cluster is not None and cluster.judge(node, self.mix):
                self._touch(cluster, now_s)

    def _settle_scales(self, now_s: float) -> None:
        self._rescale_s = None
        totals = [cluster.totals for cluster in self._clusters.values()]
        settled = scales(
            self._rules,
            _largest(cluster.has() for cluster in self._clusters.values()),
            _largest(each.node_has() for each in totals),
        )
        if settled != self._scales:
            self._scales = settled
            for cluster in self._clusters.values():
                self._touch(cluster, now_s, wait_s=0.0)  # the window is over already

    # Scores

    def _consider(self, cluster: ScoredCluster, now_s: float) -> list[PutScore]:
        """Return this cluster's score if due or different enough."""
        told, puts = cluster.told, []
        if told is None or now_s >= cluster.told_s + self._rules.refresh_s:
            puts = self._tell(cluster, now_s)
        else:
            score = self._score(cluster, now_s, told.stamp)
            if differs(told, score, cluster.totals, self._rules.dead_band):
                puts = self._tell(cluster, now_s)
        cluster.since_s = None
        at_s = cluster.told_s + self._rules.refresh_s
        change_s = cluster.newest.next_change_s(self._rules, now_s)
        self._due.advance(cluster.name, at_s if change_s is None else min(at_s, change_s))
        return puts

    def _score(self, cluster: ScoredCluster, now_s: float, stamp: Stamp) -> ClusterScore:
        return cluster_score(
            cluster.name,
            cluster.totals,
            cluster.newest,
            self._scales,
            self._rules,
            now_s=now_s,
            stamp=stamp,
            expected_nodes=cluster.expected_nodes,
            room=cluster.room,
            same_as=self._same_as(cluster.name, now_s),
            closed_gpus=cluster.closed_gpus,
        )

    def _same_as(self, name: str, now_s: float) -> str:
        """Return the cluster with the same API server while it sends heartbeats, or "". Operators'
        declarations of lost clusters are unknown here, but lost clusters are mostly silent.
        """
        first = self._clusters.get(self._twins.first(name))
        if first is None or first.newest.freshness(self._rules, now_s) == "withdrawn":
            return ""
        return first.name

    def _tell(self, cluster: ScoredCluster, now_s: float) -> list[PutScore]:
        if self._epoch is None or not cluster.ours:
            return []
        self._counter += 1
        stamp = Stamp(epoch=self._epoch, counter=self._counter)
        cluster.told = self._score(cluster, now_s, stamp)
        cluster.told_s = now_s
        return [PutScore(cluster.told, cluster.since_s)]


def _largest(amounts: Iterable[Amount]) -> Amount:
    known = list(amounts)
    return Amount(*(max((getattr(a, name) for a in known), default=0.0) for name in RESOURCES))

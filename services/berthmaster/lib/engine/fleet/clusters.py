"""What a decider knows of clusters: signs of life, scores, cordons, losses and twins. Pure.

Times are the server's. A silent cluster gets no new placements and keeps what it has.

``Twins`` finds names of clusters that mean one API server, by the UID of its namespace kube-system.
Example: `east` and `berlin` both report the UID 5c1e…; `east` reported it first, so `berlin` is the
twin of `east`. A twin takes no jobs and adds no capacity. A name that an operator declared lost
does not count, so a renamed cluster counts again once its old name is declared lost.

**Closed GPUs.** Which GPUs get no new pods: those found faulty, and those that operators cordoned.
Pure.

Telemetry is an observation and closes nothing by itself. The scorer makes a fact of it
(``ClusterScore.closed_gpus``), and operators' orders are facts too, so a decision can be repeated.

Example: GPU 3 is closed since 12:00 for memory errors. At 12:30 an operator opens it: it takes pods
although the errors are still counted. A new error at 13:00 closes it again.
"""

from bisect import insort
from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter
from typing import Final

import msgspec

from berthmaster.lib.messages.control import GpuCordon
from berthmaster.lib.messages.fleet import (
    ClosedGpu,
    ClusterProfile,
    ClusterScore,
    Membership,
    NodeReport,
    QueueReport,
    Taint,
)

TWIN: Final = "the same cluster as another"


class Twins:
    """Names by UID, from their newest profiles."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, float]] = {}  # name -> UID, since when
        self._names: dict[str, set[str]] = {}  # UID -> names
        self._lost: set[str] = set()
        self._first: dict[str, str] = {}  # UID -> name in use

    @classmethod
    def of(cls, profiles: Iterable[ClusterProfile], lost: Iterable[str] = ()) -> "Twins":
        """Return the twins among these clusters."""
        twins = cls()
        twins._lost |= set(lost)
        for profile in profiles:
            twins.put(profile)
        return twins

    def put(self, profile: ClusterProfile) -> set[str]:
        """Take over a cluster's newest profile. Return the names whose first name may differ."""
        name, now = profile.cluster, (profile.uid, profile.uid_since_s)
        before = self._known.get(name)
        if now == before:
            return set()
        changed = self.drop(name) if before is not None else set()
        if profile.uid:
            self._known[name] = now
            self._names.setdefault(profile.uid, set()).add(name)
            changed |= self._settle(profile.uid)
        return changed

    def drop(self, name: str) -> set[str]:
        """Forget a cluster. Return the names whose first name may have changed."""
        uid, _ = self._known.pop(name, ("", 0.0))
        if not uid:
            return set()
        self._names[uid].discard(name)
        return {name} | self._settle(uid)

    def set_lost(self, name: str, lost: bool) -> set[str]:
        """Take over whether an operator declared a name lost. Return as ``put``."""
        (self._lost.add if lost else self._lost.discard)(name)
        uid, _ = self._known.get(name, ("", 0.0))
        return self._settle(uid) if uid else set()

    def first(self, name: str) -> str:
        """Return the name in use instead of this one; "" if this one is in use."""
        uid, _ = self._known.get(name, ("", 0.0))
        first = self._first.get(uid, "")
        return "" if first == name else first

    def _settle(self, uid: str) -> set[str]:
        """Choose the name that counts. Return all names of the UID if the choice is another."""
        names = self._names.get(uid, set())
        if not names:
            self._names.pop(uid, None)
            self._first.pop(uid, None)
            return set()
        there = names - self._lost
        first = min(there or names, key=lambda name: (self._known[name][1], name))
        self._first[uid] = first
        return set(names)


CORDONED: Final = "cordoned"
LOST: Final = "declared lost"
SILENT: Final = "silent"
NOT_CLAIMING: Final = "does not claim"
UNHEALTHY: Final = "not healthy, says its hub"
UNSCORED: Final = "withdrawn by the scorer"
DOUBTED_FOR: Final = 10.0  # length of the probation, as a multiple of the exclusion


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster at the time of a decision, without its nodes."""

    name: str
    age_s: float  # age of the newest heartbeat; infinite without one
    idle_percent: float | None
    closed: str = ""  # why the cluster takes no new placements; "" = open


class Cluster(msgspec.Struct, kw_only=True):
    """One cluster, from its facts and operators' settings."""

    name: str
    alive_at_s: float = float("-inf")  # server's time of the newest heartbeat
    profile: ClusterProfile | None = None
    membership: Membership | None = None
    queues: dict[str, QueueReport] = {}  # ClusterQueues of its Kueue
    score: ClusterScore | None = None
    cordoned: str | None = None  # the reason; None = not cordoned
    lost: bool = False
    same_as: str = ""  # name in use for this API server; "" = this name
    unclaimed_at_s: float | None = None
    # Time of the last unclaimed placement, or of a later trial; None = claims normally.

    def is_doubted(self, now_s: float, avoid_s: float) -> bool:
        """Return whether the cluster is on probation: it left a placement unclaimed and has claimed
        none since. Without the limit of trials, every pending job would go there again and again.
        """
        at_s = self.unclaimed_at_s
        return at_s is not None and now_s < at_s + DOUBTED_FOR * avoid_s

    @property
    def tells(self) -> dict[str, str]:
        """All labels and properties. Of one name the hub's counts, and a property over a label."""
        told: dict[str, str] = {}
        for each in (self.profile, self.membership):
            if each is not None:
                told |= each.labels | each.properties
        return told

    @property
    def labels(self) -> dict[str, str]:
        """Return the cluster's own labels, overridden by its hub's."""
        own = self.profile.labels if self.profile is not None else {}
        return own | self.membership.labels if self.membership is not None else own

    @property
    def counted_as(self) -> Mapping[str, str]:
        """Return Kueue's resource name by requested resource, where the names differ."""
        return self.profile.counted_as if self.profile is not None else {}

    @property
    def taints(self) -> tuple[Taint, ...]:
        """Return the taints of the cluster and of its hub."""
        own = self.profile.taints if self.profile is not None else ()
        return own + self.membership.taints if self.membership is not None else own

    def take_membership(self, fact: Membership) -> bool:
        """Apply a fact. Return whether an input of placements changed."""
        before = (self.labels, self.taints, self.unhealthy)
        self.membership = None if fact.gone else fact
        return before != (self.labels, self.taints, self.unhealthy)

    def take_queue(self, fact: QueueReport) -> None:
        """Apply the state or the removal of a ClusterQueue."""
        if fact.gone:
            self.queues.pop(fact.queue, None)
        else:
            self.queues[fact.queue] = fact

    @property
    def closed_by_people(self) -> str:
        """Return why an operator's setting closes the cluster, or ""."""
        if self.lost:
            return LOST
        if self.cordoned is not None:
            return f"{CORDONED}: {self.cordoned}" if self.cordoned else CORDONED
        return ""

    @property
    def closed_by_news(self) -> str:
        """Return why the cluster is closed despite a fresh heartbeat, or ""."""
        if self.same_as:
            return f"{TWIN}: {self.same_as}"
        if self.unhealthy:
            return self.unhealthy
        if self.score is not None and self.score.freshness == "withdrawn":
            return UNSCORED
        return ""

    @property
    def faulty_gpus(self) -> Mapping[str, tuple[ClosedGpu, ...]]:
        """Return GPUs by node that telemetry found faulty. An old score still counts, since silence
        heals no GPU.
        """
        return self.score.closed_gpus if self.score is not None else {}

    @property
    def fresh_score(self) -> ClusterScore | None:
        """Return the score if fresh, else None."""
        score = self.score
        return score if score is not None and score.freshness == "fresh" else None

    @property
    def unhealthy(self) -> str:
        """Return the hub's complaint about the cluster, or ""."""
        if self.membership is None or self.membership.healthy is not False:
            return ""
        reason = self.membership.reason
        return f"{UNHEALTHY}: {reason}" if reason else UNHEALTHY


class Clusters:
    def __init__(self) -> None:
        self._clusters: dict[str, Cluster] = {}
        self._by_name: list[Cluster] = []
        self._twins = Twins()
        # Clusters handed out for a change since the follower's last scan
        self.changed: set[str] = set()
        self.unclaimed: set[str] = set()  # clusters that left a placement unclaimed

    def get(self, name: str) -> Cluster:
        """The cluster, made known by the asking, to be changed; to read it is ``peek``."""
        self.changed.add(name)
        return self.peek(name)

    def peek(self, name: str) -> Cluster:
        """Return the cluster, read-only."""
        cluster = self._clusters.get(name)
        if cluster is None:
            cluster = self._clusters[name] = Cluster(name=name)
            insort(self._by_name, cluster, key=attrgetter("name"))
        return cluster

    def take_profile(self, fact: ClusterProfile) -> bool:
        """Apply a cluster's profile. Return whether another name of an API server is in use now."""
        self.get(fact.cluster).profile = fact
        return self._settle(self._twins.put(fact))

    def set_lost(self, name: str, lost: bool) -> None:
        """Take over whether an operator declared a cluster lost."""
        self.get(name).lost = lost
        self._settle(self._twins.set_lost(name, lost))

    def _settle(self, names: set[str]) -> bool:
        changed = False
        for name in sorted(names):
            first = self._twins.first(name)
            if self.peek(name).same_as != first:
                self.get(name).same_as = first
                changed = True
        return changed

    def left_unclaimed(self, name: str, at_s: float | None) -> None:
        """Record an unclaimed placement, or a claim with None."""
        self.get(name).unclaimed_at_s = at_s
        if at_s is None:
            self.unclaimed.discard(name)
        else:
            self.unclaimed.add(name)

    def claim_but_for(self, told: Mapping[str, float]) -> None:
        """Set the clusters with an unclaimed placement to those of a decision."""
        for name in self.unclaimed - told.keys():
            self.left_unclaimed(name, None)

    def doubted(self, now_s: float, avoid_s: float) -> dict[str, float]:
        """Return clusters excluded or on probation, with the time of the unclaimed placement."""
        found: dict[str, float] = {}
        for name in sorted(self.unclaimed):
            cluster = self.peek(name)
            if cluster.unclaimed_at_s is not None and cluster.is_doubted(now_s, avoid_s):
                found[name] = cluster.unclaimed_at_s
        return found

    def known(self) -> list[Cluster]:
        """Return all clusters by name."""
        return list(self._by_name)

    def view(self, name: str, now_s: float, *, stale_after_s: float, avoid_s: float) -> ClusterView:
        """Return the cluster at one time: the age of its heartbeat, and why it is closed."""
        cluster = self.peek(name)
        age_s = max(0.0, now_s - cluster.alive_at_s)
        closed = cluster.closed_by_people
        if not closed and not age_s <= stale_after_s:
            closed = SILENT
        closed = closed or cluster.closed_by_news
        unclaimed_at_s = cluster.unclaimed_at_s
        if not closed and unclaimed_at_s is not None and now_s < unclaimed_at_s + avoid_s:
            closed = NOT_CLAIMING
        score = cluster.fresh_score
        idle = score.idle_gpu_percent if score is not None else None
        return ClusterView(name=name, age_s=age_s, idle_percent=idle, closed=closed)


NO_ORDERS: Mapping[int, GpuCordon] = {}


def is_closed(gpu: ClosedGpu, order: GpuCordon | None) -> bool:
    """Return whether a faulty GPU stays closed after the newest order about it."""
    return order is None or order.cordoned or order.set_at_s < gpu.since_s


def closed_indices(faulty: Iterable[ClosedGpu], orders: Mapping[int, GpuCordon]) -> tuple[int, ...]:
    """Return the indices of a node's GPUs that get no new pods. ``orders``: the newest of each."""
    found = {gpu.index for gpu in faulty if is_closed(gpu, orders.get(gpu.index))}
    found |= {index for index, order in orders.items() if order.cordoned}
    return tuple(sorted(found))


def without_closed(report: NodeReport, indices: Collection[int]) -> NodeReport:
    """Return the report with the GPUs of these indices not healthy.

    They get no new pods and keep what runs on them. The same object where that changes nothing."""
    if not any(gpu.healthy and gpu.index in indices for gpu in report.gpus):
        return report
    gpus = tuple(
        msgspec.structs.replace(gpu, healthy=gpu.healthy and gpu.index not in indices)
        for gpu in report.gpus
    )
    return msgspec.structs.replace(report, gpus=gpus)

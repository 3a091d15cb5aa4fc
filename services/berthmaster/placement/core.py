"""The evaluator: what changes comes in, what is to be written goes out. Pure; time is passed in.

Rules of this file:

- A Placement is looked at when something changed that it can depend on, when a time that an outcome
  named has come, and after a write that failed. One that is not ours is left alone, whatever is
  wrong with it.
- Nothing is decided before everything has been listed (``complete``), nor while a mirror is known
  to be behind (``behind``): unknown is not empty.
- A Placement that is wrong changes nothing but its condition.
- At most one lot of writes of a Placement is under way; its answers are taken as seen.
"""

from collections.abc import Iterable
from typing import Final

from berthmaster.controller.answer import Answer
from berthmaster.controller.aside import Phase, SetAside
from berthmaster.controller.instructions import KubeEvent
from berthmaster.kubernetes.mirror import Key
from berthmaster.kubernetes.objects import key_of
from berthmaster.kubernetes.resources import PLACEMENTS
from berthmaster.placement import status
from berthmaster.placement.index import DecisionIndex
from berthmaster.placement.instructions import Instruction, PutStatus, Write, WriteDecisions
from berthmaster.placement.kube_events import EventHistory
from berthmaster.placement.names import DISABLED, Misconfigured
from berthmaster.placement.objects import (
    AddOnPlacementScore,
    ManagedCluster,
    ManagedClusterSet,
    ManagedClusterSetBinding,
    Placement,
    PlacementDecision,
)
from berthmaster.placement.pages import pages, ranking
from berthmaster.placement.planning import plan
from berthmaster.placement.scheduling import sets
from berthmaster.placement.scheduling.plugin import Snapshot
from berthmaster.placement.scheduling.request import Request, read
from berthmaster.placement.scheduling.scheduler import ScheduleResult, schedule

FIRST_RETRY_S: Final = 0.05
LONGEST_RETRY_S: Final = 15.0
LOUD_AFTER: Final = 5  # failures in a row, after which people are told
Thing = (
    Placement
    | PlacementDecision
    | ManagedCluster
    | ManagedClusterSet
    | ManagedClusterSetBinding
    | AddOnPlacementScore
)


class OwnPlacement:
    """What is known of one of our Placements."""

    __slots__ = (
        "again_at_s",
        "busy",
        "dirty",
        "due_s",
        "error",
        "events",
        "failures",
        "outcome",
        "placement",
        "refreshed_at_s",
        "request",
    )

    def __init__(self) -> None:
        self.placement = Placement()
        self.request: Request | None = None
        self.error: Misconfigured | None = None  # of the Placement's own making
        self.outcome: ScheduleResult | None = None
        self.busy = False
        self.dirty = True
        self.due_s = 0.0  # not before
        self.again_at_s: float | None = None
        self.failures = 0
        self.refreshed_at_s = float("-inf")
        self.events = EventHistory()


class Evaluator:
    """All of our Placements on one hub."""

    def __init__(self) -> None:
        self.complete = False
        self.behind = False
        self.aside = SetAside()
        self.index = DecisionIndex()
        self._ours: dict[Key, OwnPlacement] = {}
        self._clusters: dict[str, ManagedCluster] = {}
        self._sets: dict[str, ManagedClusterSet] = {}
        self._bound: dict[str, set[str]] = {}  # by namespace
        self._scores: dict[Key, AddOnPlacementScore] = {}

    def __len__(self) -> int:
        return len(self._ours)

    @property
    def misconfigured(self) -> int:
        """How many of ours are wrong."""
        return sum(standing.error is not None for standing in self._ours.values())

    def outcome(self, key: Key) -> ScheduleResult | None:
        """The last outcome of a Placement."""
        standing = self._ours.get(key)
        return standing.outcome if standing is not None else None

    def has(self, key: Key) -> bool:
        """Whether a Placement is ours."""
        return key in self._ours

    # ---- what comes in

    def on_object(self, thing: Thing, *, gone: bool) -> None:
        """An object as it is now, or the last of one that is gone."""
        match thing:
            case Placement():
                self._on_placement(thing, gone=gone)
            case PlacementDecision():
                self._on_decision(thing, gone=gone)
            case ManagedCluster():
                self._on_cluster(thing, gone=gone)
            case ManagedClusterSet():
                _keep(self._sets, thing.metadata.name, thing, gone=gone)
                self._stir(self._ours)
            case ManagedClusterSetBinding():
                bound = self._bound.setdefault(thing.metadata.namespace, set())
                (bound.discard if gone else bound.add)(thing.metadata.name)
                self._stir(key for key in self._ours if key[0] == thing.metadata.namespace)
            case AddOnPlacementScore():
                self._on_score(thing, gone=gone)

    def _on_placement(self, placement: Placement, *, gone: bool) -> None:
        key = key_of(placement.metadata)
        ours = placement.metadata.annotations.get(DISABLED) == "true"
        leaving = placement.metadata.deletion_timestamp is not None
        if gone or leaving or not ours:
            if self._ours.pop(key, None) is not None:
                self.index.intend(key, None)
            return
        standing = self._ours.setdefault(key, OwnPlacement())
        before = standing.placement
        standing.placement = placement
        if before.metadata.uid != placement.metadata.uid:
            self._ours[key] = fresh = OwnPlacement()
            fresh.placement, fresh.busy = placement, standing.busy
            standing = fresh
        same = (
            before.spec == placement.spec
            and before.metadata.annotations == placement.metadata.annotations
            and before.metadata.uid == placement.metadata.uid
        )
        if same and before.status == placement.status:
            return
        if not same:
            standing.request, standing.error = None, None
            standing.refreshed_at_s = float("-inf")
        standing.dirty = True

    def _on_decision(self, decision: PlacementDecision, *, gone: bool) -> None:
        key = key_of(decision.metadata)
        known = self.index.page(key)
        if gone:
            self._stir(self.index.drop(key))
        elif known is None or _version(known) != _version(decision):
            self._stir(self.index.set(decision))

    def _on_cluster(self, cluster: ManagedCluster, *, gone: bool) -> None:
        before = self._clusters.get(cluster.name)
        _keep(self._clusters, cluster.name, cluster, gone=gone)
        if before is not None and not gone and _matters(before) == _matters(cluster):
            return
        versions = [one for one in (before, cluster) if one is not None]
        self._stir(
            key
            for key, standing in self._ours.items()
            if standing.error is not None or self._concerns(key, standing, versions)
        )

    def _concerns(self, key: Key, standing: OwnPlacement, versions: list[ManagedCluster]) -> bool:
        """Whether a cluster is, or was, one that the Placement may choose."""
        bound = frozenset(self._bound.get(key[0], ())) & self._sets.keys()
        try:
            tests = [
                sets.member_of(self._sets[name])
                for name in sets.eligible(bound, standing.placement.spec.cluster_sets or ())
            ]
        except Misconfigured:
            return True
        return any(test(one) for test in tests for one in versions)

    def _on_score(self, score: AddOnPlacementScore, *, gone: bool) -> None:
        key = key_of(score.metadata)
        before = self._scores.get(key)
        _keep(self._scores, key, score, gone=gone)
        if before is not None and not gone and before.status == score.status:
            return
        self._stir(
            key
            for key, standing in self._ours.items()
            if standing.request is not None and standing.request.reads(score.metadata.name)
        )

    def _stir(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if (standing := self._ours.get(key)) is not None:
                standing.dirty = True

    # ---- what goes out

    def due(self, now_s: float) -> list[Key]:
        """Placements to be looked at now."""
        if not self.complete or self.behind:
            return []
        return [
            key
            for key, one in self._ours.items()
            if not one.busy
            and one.due_s <= now_s
            and (one.dirty or (one.again_at_s is not None and one.again_at_s <= now_s))
        ]

    def wake_at_s(self) -> float:
        """When one is due next without any change; infinite if none is."""
        if not self.complete or self.behind:
            return float("inf")
        times = [
            max(one.due_s, 0.0 if one.dirty else one.again_at_s or float("inf"))
            for one in self._ours.values()
            if not one.busy and (one.dirty or one.again_at_s is not None)
        ]
        return min(times, default=float("inf"))

    def rest(self, key: Key, until_s: float) -> None:
        """Do not look at it again before then: its last look was dear."""
        if (standing := self._ours.get(key)) is not None:
            standing.due_s = max(standing.due_s, until_s)

    def begin(self) -> None:
        """This replica writes from now on; what it knows is what the hub shows."""

    def act(self, now_s: float) -> list[Instruction]:
        """One look at every Placement that is due."""
        return [one for key in self.due(now_s) for one in self.evaluate(key, now_s)]

    def evaluate(self, key: Key, now_s: float) -> list[Instruction]:
        """One look at one Placement. One that makes this raise is set aside and tried again later,
        less and less often."""
        standing = self._ours[key]
        out: list[Instruction] = []
        with self.aside.trying(Phase.ACTING, PLACEMENTS, standing.placement.metadata):
            out += self._evaluate(key, standing, now_s)
        if self.aside.holds(Phase.ACTING, PLACEMENTS, key):
            self._failed(key, standing, now_s)
        return out

    def _evaluate(self, key: Key, standing: OwnPlacement, now_s: float) -> list[Instruction]:
        standing.dirty = False
        standing.again_at_s = None
        try:
            if standing.request is None:
                standing.request = read(standing.placement)
            outcome = schedule(self._snapshot(key, now_s), standing.request)
        except Misconfigured as error:
            return self._wrong(key, standing, error, now_s)
        standing.error = None
        standing.events.over("Misconfigured")
        return self._right(key, standing, standing.request, outcome, now_s)

    def _snapshot(self, key: Key, now_s: float) -> Snapshot:
        return Snapshot(
            now_s=now_s,
            bound=frozenset(self._bound.get(key[0], ())),
            sets=self._sets,
            clusters=self._clusters,
            scores=self._scores,
            decided=frozenset(self.index.decided(key)),
            elsewhere=self.index.elsewhere(key),
        )

    def _wrong(
        self, key: Key, standing: OwnPlacement, error: Misconfigured, now_s: float
    ) -> list[Instruction]:
        standing.error = error
        pages_there = bool(self.index.pages(key))
        verdicts = [status.misconfigured(error, decided=pages_there)]
        if not pages_there:
            verdicts.append(status.never_decided(error))
        body = status.patch(standing.placement, verdicts, None, 0, now_s)
        meta = standing.placement.metadata
        told = standing.events.warning(meta, "Misconfigured", verdicts[0].message)
        return self._work(key, standing, (PutStatus(meta, body),) if body else (), told)

    def _right(
        self,
        key: Key,
        standing: OwnPlacement,
        request: Request,
        outcome: ScheduleResult,
        now_s: float,
    ) -> list[Instruction]:
        before = self.index.decided(key)
        placement = standing.placement
        wanted, groups = pages(request, outcome)
        refresh = now_s >= standing.refreshed_at_s + request.rate_limit_s
        made = plan(
            placement,
            wanted,
            ranking(outcome),
            self.index.pages(key),
            refresh=refresh,
            by_score=request.by_score,
        )
        standing.outcome = outcome
        standing.again_at_s = outcome.again_at_s
        if made.stale:
            again_at_s = standing.refreshed_at_s + request.rate_limit_s
            standing.again_at_s = min(again_at_s, standing.again_at_s or again_at_s)
        elif made.writes:
            standing.refreshed_at_s = now_s
        verdicts = (
            status.satisfied(outcome, request.cluster_sets),
            status.configured(request.notes),
        )
        body = status.patch(placement, verdicts, groups, len(outcome.selected), now_s)
        writes = (*made.writes, *((PutStatus(placement.metadata, body),) if body else ()))
        told = standing.events.outcome(placement.metadata, outcome, before, request.notes)
        if made.writes:
            chosen = tuple(name for page in wanted for name in page.clusters)
            self.index.intend(key, chosen)
            # Who was chosen just now scores as decided from now on, which may change the order.
            standing.dirty |= request.by_score and set(chosen) != set(before)
        return self._work(key, standing, writes, told)

    def _work(
        self,
        key: Key,
        standing: OwnPlacement,
        writes: tuple[Write, ...],
        told: tuple[KubeEvent, ...],
    ) -> list[Instruction]:
        standing.busy = bool(writes)
        return [*told, WriteDecisions(key, writes)] if writes else [*told]

    # ---- how it went

    def on_seen(self, decision: PlacementDecision) -> None:
        """A page as the server answered our write."""
        self.index.set(decision)

    def on_deleted(self, key: Key) -> None:
        """A page that we deleted."""
        self.index.drop(key)

    def on_status(self, placement: Placement) -> None:
        """A Placement as the server answered our write of its status."""
        standing = self._ours.get(key_of(placement.metadata))
        if standing is not None and standing.placement.spec == placement.spec:
            standing.placement = placement

    def on_answer(
        self, write: WriteDecisions, answer: Answer, now_s: float
    ) -> tuple[Instruction, ...]:
        """A lot of writes is through, or failed; what is to be told of that."""
        key = write.placement
        standing = self._ours.get(key)
        if standing is None:
            self.index.intend(key, None)
            return ()
        if answer.done:
            self.index.intend(key, None)
            standing.busy = False
            standing.failures = 0
            return ()
        self._failed(key, standing, now_s)
        if standing.failures != LOUD_AFTER:
            return ()
        meta, note = standing.placement.metadata, f"decisions cannot be written: {answer.why}"
        return (KubeEvent(PLACEMENTS, meta, True, "DecisionsNotWritten", note),)

    def _failed(self, key: Key, standing: OwnPlacement, now_s: float) -> None:
        """What was decided does not count; it is decided again after a growing pause."""
        self.index.intend(key, None)
        standing.busy = False
        standing.failures += 1
        standing.dirty = True
        pause_s = min(FIRST_RETRY_S * 2.0 ** min(standing.failures - 1, 16), LONGEST_RETRY_S)
        standing.due_s = now_s + pause_s


def _keep(kept: dict, key: object, thing: object, *, gone: bool) -> None:  # type: ignore[type-arg]
    if gone:
        kept.pop(key, None)
    else:
        kept[key] = thing


def _version(decision: PlacementDecision) -> str:
    return decision.metadata.resource_version


def _matters(cluster: ManagedCluster) -> tuple[object, ...]:
    """All of a cluster that an expression can ask for, but for what only says that it was seen."""
    meta = cluster.metadata
    conditions = tuple((one.type, one.status, one.reason) for one in cluster.status.conditions)
    found = cluster.status
    return (
        meta.labels,
        meta.annotations,
        meta.deletion_timestamp,
        cluster.spec,
        (found.capacity, found.allocatable, found.version, found.cluster_claims, conditions),
    )

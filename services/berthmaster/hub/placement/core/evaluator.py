"""The evaluator: takes changes, and returns writes. Pure; the caller passes the time.

Rules of this file:

- The evaluator evaluates a Placement after a change of any input, at a time that an outcome named,
  and after a failed write. The evaluator leaves Placements of OCM alone, even wrong ones.
- The evaluator decides only after the first complete list (``complete``) and while no mirror lags
  (``behind``): unknown is not empty.
- For a wrong Placement, the evaluator uses the last good request (last_good.py). If that is missing
  or fails too, no cluster is added. Deleted and unbound clusters are removed.
- If a Placement belongs to Open Cluster Management (again), the evaluator removes only its own
  annotations.
- A Placement has at most one batch of writes in flight. Responses count as observed state.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from berthmaster.hub.placement.cel.question import CelAnswer
from berthmaster.hub.placement.core import status
from berthmaster.hub.placement.core.index import DecisionIndex
from berthmaster.hub.placement.core.instructions import (
    DropSlice,
    Instruction,
    PutPage,
    PutSlice,
    PutStatus,
    Write,
    WriteDecisions,
)
from berthmaster.hub.placement.core.kube_events import EventHistory
from berthmaster.hub.placement.core.last_good import Good, good, kept
from berthmaster.hub.placement.core.objects import (
    DISABLED,
    MAX_LABEL_CHARS,
    NOTES,
    RANKING,
    REQUEST,
    AddOnPlacementScore,
    CandidateCluster,
    GroupStatus,
    ManagedClusterSet,
    ManagedClusterSetBinding,
    Misconfigured,
    Placement,
    PlacementDecision,
)
from berthmaster.hub.placement.core.pages import pages, plan, ranking, reduced
from berthmaster.hub.placement.core.scheduling import sets
from berthmaster.hub.placement.core.scheduling.plugin import Pending, Snapshot, Unfinished, Verdicts
from berthmaster.hub.placement.core.scheduling.request import Request, read
from berthmaster.hub.placement.core.scheduling.scheduler import ScheduleResult, schedule
from berthmaster.hub.placement.core.slices import Slices
from berthmaster.lib.kube.controller.aside import Phase, SetAside
from berthmaster.lib.kube.controller.shell_contract import Answer, KubeEvent
from berthmaster.lib.kube.mirror import Key
from berthmaster.lib.kube.multicluster import ClusterProfile, DecisionSlice
from berthmaster.lib.kube.objects import key_of
from berthmaster.lib.kube.resources import PLACEMENTS

FIRST_RETRY_S: Final = 0.05
LONGEST_RETRY_S: Final = 15.0
LOUD_AFTER: Final = 5  # failures in a row before an event reports them
NOTHING: Final = ScheduleResult(0, (), 0, {}, (), (), ())
Thing = (
    Placement
    | PlacementDecision
    | CandidateCluster
    | ManagedClusterSet
    | ManagedClusterSetBinding
    | AddOnPlacementScore
    | ClusterProfile
    | DecisionSlice
)


class OwnPlacement:
    __slots__ = (
        "again_at_s",
        "busy",
        "dirty",
        "due_s",
        "error",
        "events",
        "failures",
        "good",
        "later",
        "outcome",
        "pending",
        "placement",
        "refreshed_at_s",
        "request",
        "slice_failures",
        "slices_after_s",
        "untold",
        "verdicts",
    )

    def __init__(self) -> None:
        self.placement = Placement()
        self.request: Request | None = None
        self.error: Misconfigured | None = None  # the Placement's own error
        # Requests that led to an outcome, newest first. If the newest was not yet tried on any
        # cluster, the last tried request follows.
        self.good: tuple[Good, ...] = ()
        self.outcome: ScheduleResult | None = None
        self.verdicts = Verdicts()
        # the open question to expressions; until the answer, no evaluation
        self.pending: Pending | None = None
        self.busy = False
        self.dirty = True
        self.due_s = 0.0  # earliest time of the next evaluation
        self.again_at_s: float | None = None
        self.failures = 0
        self.slice_failures = 0
        self.slices_after_s = 0.0  # earliest time of the next write of slices
        self.refreshed_at_s = float("-inf")
        self.later: Mapping[str, Mapping[str, str | None]] = {}  # annotations of pages
        self.events = EventHistory()
        self.untold: tuple[KubeEvent, ...] = ()  # events held back until their writes succeed

    def reads(self, resource: str) -> bool:
        """Return whether scores of this resource can affect the decision."""
        return any(one is not None and one.reads(resource) for one in self._followed)

    @property
    def asks(self) -> bool:
        """Return whether expressions, which may read any field of a cluster, can affect the
        decision."""
        return any(one is None or one.asks for one in self._followed)

    @property
    def _followed(self) -> tuple[Request | None, ...]:
        return (self.request, *(one.request for one in self.good))

    def write_slices_later(self) -> None:
        """Look again when slices may be written."""
        self.again_at_s = min(self.slices_after_s, self.again_at_s or self.slices_after_s)

    def worked(self, outcome: ScheduleResult) -> Good:
        """Store the Placement's own request as good, after this outcome."""
        assert self.request is not None
        if not self.good or self.good[0].request is not self.request:
            self.good = (good(self.placement, self.request, self.verdicts), *self.good[-1:])
            self.refreshed_at_s = float("-inf")
        if outcome.ranked or not any(one.expressions for one in self.request.predicates):
            self.good = self.good[:1]
        return self.good[0]


class _Tidying:
    """Cleanup of a Placement that no longer belongs to Berthmaster."""

    def __init__(self) -> None:
        self.busy = False
        self.due_s = 0.0
        self.failures = 0

    def answered(self, answer: Answer, now_s: float) -> None:
        self.busy = False
        self.failures = 0 if answer.done else self.failures + 1
        self.due_s = 0.0 if answer.done else now_s + _pause_s(self.failures)


class Evaluator:
    """All Placements of Berthmaster on one hub."""

    def __init__(self) -> None:
        self.complete = False
        self.behind = False
        self.aside = SetAside()
        self.index = DecisionIndex()
        self.slices = Slices()
        self._ours: dict[Key, OwnPlacement] = {}
        self._clusters: dict[str, CandidateCluster] = {}
        self._sets: dict[str, ManagedClusterSet] = {}
        self._bound: dict[str, set[str]] = {}  # names of sets, by namespace
        self._scores: dict[Key, AddOnPlacementScore] = {}
        self._theirs: set[Key] = set()
        # Placements of OCM whose pages may have our annotations
        self._untidy: dict[Key, _Tidying] = {}

    def __len__(self) -> int:
        return len(self._ours)

    @property
    def misconfigured(self) -> int:
        """Return the number of wrong Placements."""
        return sum(standing.error is not None for standing in self._ours.values())

    def outcome(self, key: Key) -> ScheduleResult | None:
        """Return the last outcome of a Placement."""
        standing = self._ours.get(key)
        return standing.outcome if standing is not None else None

    def pending(self, key: Key) -> Pending | None:
        """Return the open question that blocks the decision."""
        standing = self._ours.get(key)
        return standing.pending if standing is not None else None

    def settle(self, key: Key, pending: Pending, answer: CelAnswer | None, now_s: float) -> None:
        """Store the answer of expressions; None = no answer now, so the question is repeated
        later."""
        standing = self._ours.get(key)
        if standing is None or standing.pending is not pending:
            return
        standing.pending = None
        standing.dirty = True
        if answer is not None:
            pending.settle(answer)
        else:
            self._failed(key, standing, now_s)

    def has(self, key: Key) -> bool:
        return key in self._ours

    # ---- inputs

    def on_object(self, thing: Thing, *, gone: bool) -> None:
        """Apply an object's current state, or the last state of a deleted object."""
        match thing:
            case Placement():
                self._on_placement(thing, gone=gone)
            case PlacementDecision():
                self._on_decision(thing, gone=gone)
            case CandidateCluster():
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
            case ClusterProfile():
                if self.slices.on_profile(thing, gone=gone):
                    name = thing.metadata.name
                    self._stir(key for key in self._ours if name in self.index.decided(key))
            case DecisionSlice():
                key, is_news = self.slices.on_slice(thing, gone=gone)
                if is_news:
                    self._stir((key,))
                    self._look_for_notes(key)

    def serve_slices(self, served: bool) -> None:
        """Note whether sig-multicluster's PlacementDecisions are served and all known."""
        if served and not self.slices.served:
            self._stir(self._ours)
        self.slices.served = served

    def _on_placement(self, placement: Placement, *, gone: bool) -> None:
        key = key_of(placement.metadata)
        ours = placement.metadata.annotations.get(DISABLED) == "true"
        leaving = placement.metadata.deletion_timestamp is not None
        if gone or leaving or not ours:
            if self._ours.pop(key, None) is not None:
                self.index.intend(key, None)
            (self._theirs.discard if gone or leaving else self._theirs.add)(key)
            self._look_for_notes(key)
            return
        self._theirs.discard(key)
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
            standing.request, standing.error, standing.verdicts = None, None, Verdicts()
        standing.dirty = True

    def _on_decision(self, decision: PlacementDecision, *, gone: bool) -> None:
        key = key_of(decision.metadata)
        known = self.index.page(key)
        if gone:
            self._stir(self.index.drop(key))
        elif known is None or _version(known) != _version(decision):
            owners = self.index.set(decision)
            self._stir(owners)
            for owner in owners:
                self._look_for_notes(owner)

    def _on_cluster(self, cluster: CandidateCluster, *, gone: bool) -> None:
        # parse now, so that an unreadable object is skipped with an error
        _ = cluster.spec, cluster.status, cluster.document
        before = self._clusters.get(cluster.name)
        _keep(self._clusters, cluster.name, cluster, gone=gone)
        versions = [one for one in (before, cluster) if one is not None]
        beat = False
        if before is not None and not gone:
            if _told(before) == _told(cluster):
                return
            beat = _without_words(before) == _without_words(cluster)
        self._stir(
            key
            for key, standing in self._ours.items()
            if (not beat or standing.asks)
            and (standing.error is not None or self._concerns(key, standing, versions))
        )

    def _concerns(self, key: Key, standing: OwnPlacement, versions: list[CandidateCluster]) -> bool:
        """Return whether the Placement may choose, or could choose, a cluster."""
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
        same = before is not None and (before.status, before.ours) == (score.status, score.ours)
        if same and not gone:
            return
        self._stir(
            key for key, standing in self._ours.items() if standing.reads(score.metadata.name)
        )

    def _stir(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if (standing := self._ours.get(key)) is not None:
                standing.dirty = True

    # ---- outputs

    def due(self, now_s: float) -> list[Key]:
        if not self.complete or self.behind:
            return []
        return [
            key
            for key, one in self._ours.items()
            if not one.busy
            and one.pending is None
            and one.due_s <= now_s
            and (one.dirty or (one.again_at_s is not None and one.again_at_s <= now_s))
        ]

    def _look_for_notes(self, key: Key) -> None:
        if key not in self._theirs:
            return
        if self.slices.of(key) or any(_notes(page) for page in self.index.pages(key).values()):
            self._untidy.setdefault(key, _Tidying())

    def tidy(self, now_s: float) -> list[Instruction]:
        """Remove our annotations and slices of Placements that no longer belong to
        Berthmaster."""
        out: list[Instruction] = []
        if not self.complete or self.behind:
            return out
        for key, one in list(self._untidy.items()):
            if one.busy or one.due_s > now_s:
                continue
            pages = self.index.pages(key) if key in self._theirs else {}
            notes_off = tuple(
                PutPage(name, page.metadata, {"annotations": dict.fromkeys(notes)}, None)
                for name, page in sorted(pages.items())
                if (notes := _notes(page))
            )
            drops = self.slices.drops(key) if key in self._theirs else ()
            writes: tuple[Write, ...] = (*notes_off, *drops)
            if writes:
                one.busy = True
                out.append(WriteDecisions(key, writes))
            else:
                del self._untidy[key]
        return out

    def wake_at_s(self) -> float:
        """Return the time of the next evaluation without a change; infinite = none."""
        if not self.complete or self.behind:
            return float("inf")
        times = [
            max(one.due_s, 0.0 if one.dirty else one.again_at_s or float("inf"))
            for one in self._ours.values()
            if not one.busy and one.pending is None and (one.dirty or one.again_at_s is not None)
        ]
        times += [one.due_s for one in self._untidy.values() if not one.busy]
        return min(times, default=float("inf"))

    def rest(self, key: Key, until_s: float) -> None:
        """Delay a Placement after a costly evaluation."""
        if (standing := self._ours.get(key)) is not None:
            standing.due_s = max(standing.due_s, until_s)

    def begin(self) -> None:
        """Start writing. The hub's objects are the only state."""

    def act(self, now_s: float) -> list[Instruction]:
        """Evaluate every due Placement."""
        looks = [one for key in self.due(now_s) for one in self.evaluate(key, now_s)]
        return [*looks, *self.tidy(now_s)]

    def evaluate(self, key: Key, now_s: float) -> list[Instruction]:
        """Evaluate one Placement.

        If the evaluation raises, the Placement is skipped with an error, and retried at growing
        intervals.
        """
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
            outcome = schedule(self._snapshot(key, standing.verdicts, now_s), standing.request)
        except Unfinished as unfinished:
            standing.pending = unfinished.pending
            return []
        except Misconfigured as error:
            return self._wrong(key, standing, error, now_s)
        standing.error = None
        standing.events.over("Misconfigured")
        return self._right(key, standing, standing.worked(outcome), outcome, now_s)

    def _snapshot(self, key: Key, verdicts: Verdicts, now_s: float) -> Snapshot:
        return Snapshot(
            now_s=now_s,
            bound=frozenset(self._bound.get(key[0], ())),
            sets=self._sets,
            clusters=self._clusters,
            scores=self._scores,
            decided=frozenset(self.index.decided(key)),
            elsewhere=self.index.elsewhere(key),
            verdicts=verdicts,
        )

    def _wrong(
        self, key: Key, standing: OwnPlacement, error: Misconfigured, now_s: float
    ) -> list[Instruction]:
        standing.error = error
        if not standing.good:
            found = kept(standing.placement, self.index.pages(key))
            standing.good = (found,) if found is not None else ()
        for known in standing.good:
            if known.request is standing.request:
                continue
            try:
                outcome = schedule(self._snapshot(key, known.verdicts, now_s), known.request)
            except Unfinished as unfinished:
                standing.pending = unfinished.pending
                return []
            except Misconfigured:
                continue  # the shared input is wrong: a set, or the cost of an expression
            return self._right(key, standing, known, outcome, now_s)
        return self._stopped(key, standing, error, now_s)

    def _stopped(
        self, key: Key, standing: OwnPlacement, error: Misconfigured, now_s: float
    ) -> list[Instruction]:
        """Keep the decisions when no request can be followed, except clusters that are not allowed.

        A Placement without decisions gets an empty page, as with OCM, for clients that wait for a
        page.
        """
        placement, present = standing.placement, self.index.pages(key)
        bound = frozenset(self._bound.get(key[0], ()))
        puts, left = reduced(present, sets.rightful(bound, self._sets, self._clusters))
        groups: tuple[GroupStatus, ...] | None = None
        verdicts = [status.misconfigured(error, "the decisions made before stay" if left else "")]
        if not present and len(key[1]) <= MAX_LABEL_CHARS:
            wanted, groups = pages(Request(*key), NOTHING)
            puts = plan(placement, wanted, {}, {}, refresh=True).puts
        elif puts:
            counts = {name: len(page.clusters) for name, page in present.items()}
            counts |= {put.name: len((put.status or {})["decisions"]) for put in puts}
            groups = status.reduced(placement.status.decision_groups or (), counts)
            self.index.intend(key, left)
        if puts or not left:
            verdicts.append(status.left_over(error, len(left)))
        body = status.patch(placement, verdicts, groups, len(left), now_s)
        writes = (*puts, *((PutStatus(placement.metadata, body),) if body else ()))
        told = standing.events.warning(placement.metadata, "Misconfigured", verdicts[0].message)
        return self._work(key, standing, writes, told, now_s)

    def _right(
        self,
        key: Key,
        standing: OwnPlacement,
        known: Good,
        outcome: ScheduleResult,
        now_s: float,
    ) -> list[Instruction]:
        before = self.index.decided(key)
        placement, request = standing.placement, known.request
        wanted, groups = pages(request, outcome)
        refresh = now_s >= standing.refreshed_at_s + request.rate_limit_s
        sure = standing.good[-1].text
        notes = {RANKING: ranking(outcome), **({REQUEST: sure} if sure else {})}
        made = plan(
            placement,
            wanted,
            notes,
            self.index.pages(key),
            refresh=refresh,
            by_score=request.by_score,
        )
        standing.outcome = outcome
        standing.again_at_s = outcome.again_at_s
        if made.stale:
            again_at_s = standing.refreshed_at_s + request.rate_limit_s
            standing.again_at_s = min(again_at_s, standing.again_at_s or again_at_s)
        elif made.writes or made.later:
            standing.refreshed_at_s = now_s
        if made.later is not None:
            standing.later = made.later
        is_right = status.configured(request.notes)
        told: tuple[KubeEvent, ...] = ()
        if standing.error is not None:
            is_right = status.misconfigured(
                standing.error,
                f"until that is mended, the request of generation {known.generation} is followed",
            )
            told = standing.events.warning(placement.metadata, "Misconfigured", is_right.message)
        verdicts = (status.satisfied(outcome, request.cluster_sets), is_right)
        body = status.patch(placement, verdicts, groups, len(outcome.selected), now_s)
        writes = (*made.writes, *((PutStatus(placement.metadata, body),) if body else ()))
        told += standing.events.outcome(placement.metadata, outcome, before, request.notes)
        if made.writes:
            chosen = tuple(name for page in wanted for name in page.clusters)
            self.index.intend(key, chosen)
            # New choices score as decided from now on, and that may change the order.
            standing.dirty |= request.by_score and set(chosen) != set(before)
        return self._work(key, standing, writes, told, now_s)

    def _work(
        self,
        key: Key,
        standing: OwnPlacement,
        writes: tuple[Write, ...],
        told: tuple[KubeEvent, ...],
        now_s: float,
    ) -> list[Instruction]:
        writes = writes or self._afterwards(key, standing, now_s)
        standing.busy = bool(writes)
        if not writes:
            return [*told]
        standing.untold = told
        return [WriteDecisions(key, writes)]

    def _afterwards(self, key: Key, standing: OwnPlacement, now_s: float) -> tuple[Write, ...]:
        """Return the writes that remain after all decisions are written."""
        if annotations := self._annotations(key, standing):
            return annotations
        writes = self.slices.writes(standing.placement, self.index.pages(key))
        if writes and now_s < standing.slices_after_s:
            standing.write_slices_later()
            return ()
        return writes

    def _annotations(self, key: Key, standing: OwnPlacement) -> tuple[Write, ...]:
        later, standing.later = standing.later, {}
        pages_there = self.index.pages(key)
        return tuple(
            PutPage(name, pages_there[name].metadata, {"annotations": annotations}, None)
            for name, annotations in later.items()
            if name in pages_there
        )

    # ---- results of writes

    def on_seen(self, decision: PlacementDecision) -> None:
        """Apply a page from the API server's response to a write."""
        self.index.set(decision)

    def on_deleted(self, key: Key) -> None:
        """Drop a page that the writer deleted."""
        self.index.drop(key)

    def on_slice(self, found: DecisionSlice) -> None:
        """Apply a slice from the API server's response to a write."""
        self.slices.on_slice(found, gone=False)

    def on_slice_deleted(self, namespace: str, dropped: DropSlice) -> None:
        """Drop a slice that the writer deleted."""
        self.slices.on_slice(DecisionSlice(metadata=dropped.present), gone=True)

    def on_status(self, placement: Placement) -> None:
        """Apply a Placement from the API server's response to a status write."""
        standing = self._ours.get(key_of(placement.metadata))
        if standing is not None and standing.placement.spec == placement.spec:
            standing.placement = placement

    def on_answer(
        self, write: WriteDecisions, answer: Answer, now_s: float
    ) -> tuple[Instruction, ...]:
        """Handle the result of a batch of writes, and return the events to report."""
        key = write.placement
        standing = self._ours.get(key)
        if standing is None:
            self.index.intend(key, None)
            if (tidying := self._untidy.get(key)) is not None:
                tidying.answered(answer, now_s)
            return ()
        told, standing.untold = standing.untold, ()
        if answer.done:
            self.index.intend(key, None)
            standing.failures = 0
            if _is_of_slices(write):
                standing.slice_failures = 0
                standing.busy = False
                return told
            # If an input changed meanwhile, decisions come first.
            writes = self._afterwards(key, standing, now_s) if not standing.dirty else ()
            standing.busy = bool(writes)
            return (*([WriteDecisions(key, writes)] if writes else ()), *told)
        if _is_of_slices(write):
            return (*told, *self._slices_failed(standing, answer, now_s))
        self._failed(key, standing, now_s)
        if all(isinstance(one, PutPage) and one.status is None for one in write.writes):
            # evaluate again, because only annotations failed
            standing.refreshed_at_s = float("-inf")
        # the added and removed clusters were not written
        told = tuple(one for one in told if one.warning)
        if standing.failures != LOUD_AFTER:
            return told
        meta, note = standing.placement.metadata, f"decisions cannot be written: {answer.why}"
        return (*told, KubeEvent(PLACEMENTS, meta, True, "DecisionsNotWritten", note))

    def _slices_failed(
        self, standing: OwnPlacement, answer: Answer, now_s: float
    ) -> tuple[KubeEvent, ...]:
        """Write slices again after a growing pause, without delaying decisions."""
        standing.busy = False
        standing.slice_failures += 1
        standing.slices_after_s = now_s + _pause_s(standing.slice_failures)
        standing.write_slices_later()
        if standing.slice_failures != LOUD_AFTER:
            return ()
        note = f"PlacementDecisions of sig-multicluster cannot be written: {answer.why}"
        meta = standing.placement.metadata
        return (KubeEvent(PLACEMENTS, meta, True, "DecisionSlicesNotWritten", note),)

    def _failed(self, key: Key, standing: OwnPlacement, now_s: float) -> None:
        """Discard the decision and decide again after a growing pause."""
        self.index.intend(key, None)
        standing.busy = False
        standing.failures += 1
        standing.dirty = True
        standing.due_s = now_s + _pause_s(standing.failures)


def _pause_s(failures: int) -> float:
    return min(FIRST_RETRY_S * 2.0 ** min(failures - 1, 16), LONGEST_RETRY_S)


def _is_of_slices(write: WriteDecisions) -> bool:
    return all(isinstance(one, PutSlice | DropSlice) for one in write.writes)


def _notes(page: PlacementDecision) -> list[str]:
    return [name for name in NOTES if name in page.metadata.annotations]


def _keep(kept: dict, key: object, thing: object, *, gone: bool) -> None:  # type: ignore[type-arg]
    if gone:
        kept.pop(key, None)
    else:
        kept[key] = thing


def _version(decision: PlacementDecision) -> str:
    return decision.metadata.resource_version


def _told(cluster: CandidateCluster) -> tuple[Any, ...]:
    """Return every field of a cluster that an evaluation can depend on."""
    meta = cluster.metadata
    labels = (meta.labels, meta.annotations, meta.finalizers, meta.deletion_timestamp)
    return *labels, cluster.as_told, cluster.as_seen


def _without_words(cluster: CandidateCluster) -> tuple[Any, ...]:
    """Return the same without the messages of conditions, which only expressions can read."""
    *others, seen = _told(cluster)
    conditions = (seen or {}).get("conditions") or ()
    kept = [(one.get("type"), one.get("status"), one.get("reason")) for one in conditions]
    return *others, {**(seen or {}), "conditions": kept}

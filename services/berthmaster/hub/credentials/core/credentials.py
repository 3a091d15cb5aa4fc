"""Credentials of all clusters: takes hub objects and results of steps, and returns next steps.
Pure.

A cluster has at most one step in flight. Findings of a step (bound Secrets of a worker, an
unpublished token) last only as long as the process. stages.py explains why that suffices. A failed
step is retried after a growing pause, or at once if its basis changes. Meanwhile working access
stays.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from berthmaster.hub.credentials.core import kube_events, names
from berthmaster.hub.credentials.core.index import ClusterIndex
from berthmaster.hub.credentials.core.instructions import (
    Adopt,
    Check,
    Forget,
    Instruction,
    Look,
    Mint,
    Prepare,
    Publish,
    Revoke,
    Step,
    Sweep,
)
from berthmaster.hub.credentials.core.kube_events import Notice
from berthmaster.hub.credentials.core.observed import (
    Bootstrap,
    Managed,
    Minted,
    Observed,
    Referenced,
    Survey,
)
from berthmaster.hub.credentials.core.stages import (
    Stage,
    Times,
    View,
    due,
    keeps,
    ready,
    renew_at_s,
    stage_of,
    usable,
)
from berthmaster.hub.credentials.core.steps import STEPS
from berthmaster.lib.kube.controller.aside import Phase, SetAside
from berthmaster.lib.kube.controller.shell_contract import Answer, KubeEvent
from berthmaster.lib.kube.errors import Forbidden, Unauthorized
from berthmaster.lib.kube.managed_clusters import ManagedCluster
from berthmaster.lib.kube.multicluster import ClusterProfile
from berthmaster.lib.kube.objects import Metadata
from berthmaster.lib.kube.resources import (
    CLUSTER_PROFILES,
    MANAGED_CLUSTERS,
    MULTIKUEUE_CLUSTERS,
    Resource,
)

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0  # so a recovered worker is served within a minute
RECHECK_S: Final = 0.05  # seconds until the next check of an expected change


class Failure(NamedTuple):
    """A kind of step that fails, since its last success."""

    times: int
    retry_at_s: float
    why: str


@dataclass
class ClusterRecord:
    """Findings of this process about one cluster."""

    survey: Survey | None = None
    minted: Minted | None = None
    rejected: str = ""
    checked_at_s: float = 0.0
    revoked: bool = False
    failed_to_revoke: bool = False
    way_in: Bootstrap | None = None
    busy: bool = False
    failed: dict[Stage, Failure] = field(default_factory=dict)
    basis: object = None  # inputs of the last failed step
    stage: Stage = Stage.NOTHING
    since_s: float = 0.0
    said: tuple[str, str] = ("", "")

    @property
    def trouble(self) -> str:
        """Return the last failure without a later success."""
        return next((one.why for one in reversed(self.failed.values())), "")

    def retry_at_s(self, stage: Stage) -> float:
        """Return the earliest time of a retry."""
        return self.failed[stage].retry_at_s if stage in self.failed else 0.0


class Status(NamedTuple):
    cluster: str
    stage: Stage
    message: str
    usable: bool  # Kueue has a token that should work
    draining: bool
    failing: bool  # renewal is due and impossible
    by: str  # bootstrap, ocm, provider, kueue or ""
    expires_at_s: float
    renew_at_s: float
    since_s: float


@dataclass
class Counts:
    issued: int = 0
    rotated: int = 0
    revoked: int = 0
    failures: dict[str, int] = field(default_factory=dict)  # by stage


class Credentials:
    def __init__(self, index: ClusterIndex, times: Times) -> None:
        self.aside = SetAside()
        self.index = index
        self._times = times
        self._records: dict[str, ClusterRecord] = {}
        self._dirty: set[str] = set()
        self._due: dict[str, float] = {}
        self.counts = Counts()
        self._events: list[KubeEvent] = []  # events not yet fetched

    # ---- inputs

    def touched(self, clusters: Iterable[str]) -> None:
        """Mark these clusters as changed in the index."""
        self._dirty.update(clusters)

    def begin(self) -> None:
        """Start leading, and drop findings that other replicas may have changed."""
        self._records = {name: rec for name, rec in self._records.items() if rec.busy}
        for record in self._records.values():
            record.survey = record.minted = None
        self._dirty = self.index.clusters()
        self._due.clear()

    def on_answer(self, asked: Step, answer: Answer, now_s: float) -> list[Instruction]:
        """Apply the result of a step. ``answer.found`` is the finding, if the step has one."""
        record = self._records.setdefault(asked.cluster, ClusterRecord())
        record.busy = False
        self._dirty.add(asked.cluster)
        if answer.done:
            record.failed.pop(record.stage, None)
            self._done(record, asked, answer.found, now_s)
        else:
            self._failed(record, asked, answer, now_s)
        return [*self._take_events()]

    def _done(self, record: ClusterRecord, asked: Step, found: object, now_s: float) -> None:
        match asked, found:
            case Prepare() | Look(), Survey():
                record.survey = found
            case Mint() | Adopt(), Minted():
                record.minted = found
                survey = record.survey
                if survey is not None and not found.managed:
                    bound = {**survey.bound, found.serial: found.issued_at_s}
                    record.survey = survey._replace(bound=bound)
            case Publish(), _:
                record.minted, record.rejected, record.checked_at_s = None, "", now_s
                record.failed.clear()
                first = asked.held is None or not asked.held.usable
                self.counts.issued += first
                self.counts.rotated += not first
                self._say(asked.cluster, record, kube_events.published(asked, first))
            case Sweep(), _:
                survey = record.survey
                if survey is not None:
                    left = {s: at for s, at in survey.bound.items() if s not in asked.serials}
                    record.survey = survey._replace(bound=left)
            case Check(), _:
                record.checked_at_s, record.rejected = now_s, ""
                record.failed.clear()
            case Revoke(), Survey():
                record.survey, record.revoked = found, True
                record.minted, record.checked_at_s = None, 0.0
                self.counts.revoked += 1
            case Forget(), _:
                record.revoked = record.failed_to_revoke = False
                self._say(asked.cluster, record, kube_events.forgotten(asked, now_s))
            case _:
                pass  # the index shows the change

    def _failed(self, record: ClusterRecord, asked: Step, answer: Answer, now_s: float) -> None:
        stage = record.stage
        before = record.failed.pop(stage, None)
        times = before.times + 1 if before is not None else 1
        full_s = min(FIRST_PAUSE_S * 2.0 ** min(times - 1, 10), LONGEST_PAUSE_S)
        spread = int(names.digest(asked.cluster)[:2], 16) / 255
        retry_at_s = now_s + full_s * (0.75 + 0.25 * spread)
        record.failed[stage] = Failure(times, retry_at_s, answer.why)
        self.counts.failures[stage.value] = self.counts.failures.get(stage.value, 0) + 1
        match asked:
            case Mint() | Sweep():
                record.survey = None  # the worker's present state is unknown
            case Check() if answer.reason == Unauthorized.__name__:
                record.rejected = asked.serial
            case Check() if answer.reason == Forbidden.__name__:
                record.survey = None
            case Revoke():
                record.failed_to_revoke = True
                record.survey, record.checked_at_s = None, 0.0
            case _:
                pass
        view = self._view(asked.cluster, record, now_s)
        record.basis = _basis(view.seen)
        self._say(asked.cluster, record, kube_events.failed(asked, answer, view), again=True)

    # ---- actions

    def act(self, now_s: float) -> list[Instruction]:
        """Return the next step of each changed or due cluster."""
        for name in [name for name, at_s in self._due.items() if at_s <= now_s]:
            del self._due[name]
            self._dirty.add(name)
        clusters, self._dirty = sorted(self._dirty), set()
        steps: list[Instruction] = []
        for name in clusters:
            about = Metadata(name=name)
            with self.aside.trying(Phase.ACTING, MULTIKUEUE_CLUSTERS, about):
                step = self._look(name, now_s)
                if step is not None:
                    steps.append(step)
            if self.aside.holds(Phase.ACTING, MULTIKUEUE_CLUSTERS, ("", name)):
                self._due[name] = now_s + LONGEST_PAUSE_S
        return [*steps, *self._take_events()]

    def _take_events(self) -> list[KubeEvent]:
        events, self._events = self._events, []
        return events

    def _look(self, cluster: str, now_s: float) -> Step | None:
        record = self._records.setdefault(cluster, ClusterRecord())
        if record.busy:
            return None
        view = self._view(cluster, record, now_s)
        if keeps(view):
            record.revoked = record.failed_to_revoke = False
        if record.minted is not None and ready(view) is None:
            record.minted = None
            view = view._replace(minted=None)
        stage = stage_of(view)
        if stage is not record.stage:
            record.stage, record.since_s = stage, now_s
        if stage is Stage.NOTHING and cluster not in self.index.clusters():
            del self._records[cluster]
            return None
        if record.failed and record.basis != _basis(view.seen):
            record.failed.clear()
        self._say(cluster, record, kube_events.standing(stage, view, now_s - record.since_s))
        step = None if now_s < record.retry_at_s(stage) else STEPS[stage](cluster, view)
        if step is None:
            self._due[cluster] = max(_next_look_s(view, record, stage), now_s + RECHECK_S)
        record.busy = step is not None
        return step

    def _view(self, cluster: str, record: ClusterRecord, now_s: float) -> View:
        seen = self.index.observe(cluster)
        if isinstance(seen.source, Bootstrap):
            record.way_in = seen.source
        return View(
            seen=seen,
            survey=record.survey,
            minted=record.minted,
            rejected=record.rejected,
            checked_at_s=record.checked_at_s,
            revoked=record.revoked,
            failed_to_revoke=record.failed_to_revoke,
            way_in=record.way_in,
            now_s=now_s,
            times=self._times,
        )

    def wake_at_s(self) -> float:
        """Return the time of the next change without an event."""
        return 0.0 if self._dirty else min(self._due.values(), default=float("inf"))

    def _say(
        self, cluster: str, record: ClusterRecord, notice: Notice | None, *, again: bool = False
    ) -> None:
        """Report a notice once until it changes, but a failure each time."""
        if notice is None:
            return
        said = (notice.reason, notice.note)
        if said != record.said or again:
            record.said = said
            self._events.append(
                KubeEvent(*self._subject(cluster), notice.warning, notice.reason, notice.note)
            )

    def _subject(self, cluster: str) -> tuple[Resource, Metadata]:
        """Return the object that operators inspect."""
        found = self.index.subject(cluster)
        if found is None:
            return MULTIKUEUE_CLUSTERS, Metadata(name=cluster)
        if isinstance(found, ManagedCluster):
            return MANAGED_CLUSTERS, found.metadata
        if isinstance(found, ClusterProfile):
            return CLUSTER_PROFILES, found.metadata
        return MULTIKUEUE_CLUSTERS, found.metadata

    # ---- status for operators

    def statuses(self, now_s: float) -> list[Status]:
        """Return every known cluster, sorted by name."""
        found: list[Status] = []
        for name, record in sorted(self._records.items()):
            if record.stage is Stage.NOTHING and not record.trouble:
                continue
            with self.aside.trying(Phase.SHOWING, MULTIKUEUE_CLUSTERS, Metadata(name=name)):
                found.append(self._status(name, record, now_s))
        return found

    def _status(self, cluster: str, record: ClusterRecord, now_s: float) -> Status:
        view = self._view(cluster, record, now_s)
        held = view.seen.secret
        by = _by(view.seen.source)
        told = kube_events.standing(record.stage, view, now_s - record.since_s)
        draining = not view.seen.known and bool(view.seen.listed_by)
        return Status(
            cluster=cluster,
            stage=record.stage,
            message=record.trouble or (told.note if told is not None else ""),
            usable=usable(view),
            draining=draining,
            failing=bool(record.failed) and held is not None and due(view) is not None,
            by=by,
            expires_at_s=held.expires_at_s if held is not None and held.usable else 0.0,
            renew_at_s=renew_at_s(view) if held is not None else 0.0,
            since_s=record.since_s,
        )


def _by(source: object) -> str:
    match source:
        case Bootstrap():
            return "bootstrap"
        case Managed():
            return "provider" if source.provider else "ocm"
        case Referenced():
            return "kueue"
        case _:
            return ""


def _basis(seen: Observed) -> object:
    """Return the inputs of a step: if they change, a failed step may succeed."""
    source = seen.source
    if isinstance(source, Bootstrap):
        how: object = (source.target, source.version)
    elif isinstance(source, Managed):
        how = (source.target, source.token.serial if source.token else "", seen.requested)
    else:
        how = source
    return seen.known, seen.listed_by, seen.foreign, how, seen.told


def _next_look_s(view: View, record: ClusterRecord, stage: Stage) -> float:
    """Return the time at which the stage may change, or a retry is allowed."""
    if view.now_s < record.retry_at_s(stage):
        return record.retry_at_s(stage)
    held = view.seen.secret
    times = [float("inf")]
    if stage is Stage.AWAIT:
        times.append(record.since_s + kube_events.PATIENCE_S)
    if held is not None:
        times += [at_s for at_s in (held.expires_at_s, renew_at_s(view)) if at_s > view.now_s]
    if stage is Stage.HELD:
        times.append(view.checked_at_s + view.times.check_s)
        since_s = held.issued_at_s if held is not None else 0.0
        bound = view.survey.bound if view.survey is not None else {}
        times += [
            max(made_s, since_s) + view.times.grace_s
            for serial, made_s in bound.items()
            if held is None or serial != held.serial
        ]
    return min(at_s for at_s in times if at_s > view.now_s)

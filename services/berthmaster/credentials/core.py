"""Credentials of all clusters: what the hub shows and what steps came to in, next steps out. Pure.

One step a cluster is under way at most. What a step found out (which bound Secrets a worker has, a
token not published yet) is remembered only until the next life: see stages.py for why that is
enough. A step that failed is tried again after a growing pause, at once when what it rests on has
changed; meanwhile what works is left alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from berthmaster.credentials import names, saying
from berthmaster.credentials.book import Book
from berthmaster.credentials.stages import (
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
from berthmaster.credentials.steps import STEPS
from berthmaster.credentials.words import (
    Adopt,
    Bootstrap,
    Check,
    Failed,
    Forget,
    Instruction,
    Look,
    Managed,
    Mint,
    Minted,
    Observed,
    Outcome,
    Prepare,
    Publish,
    Revoke,
    Survey,
    Sweep,
    Tell,
    Trouble,
)

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0  # a worker that is back is served within a minute
RECHECK_S: Final = 0.05  # a look again at what should have moved


class Failure(NamedTuple):
    """One kind of step that fails, since it last went well."""

    times: int
    retry_at_s: float
    why: str


@dataclass
class Record:
    """What this life found out about one cluster."""

    survey: Survey | None = None
    minted: Minted | None = None
    rejected: str = ""
    checked_at_s: float = 0.0
    revoked: bool = False
    failed_to_revoke: bool = False
    way_in: Bootstrap | None = None
    busy: bool = False
    failed: dict[Stage, Failure] = field(default_factory=dict)
    basis: object = None  # what the last failure rested on
    stage: Stage = Stage.NOTHING
    since_s: float = 0.0
    said: tuple[str, str] = ("", "")

    @property
    def trouble(self) -> str:
        """What failed last, and has not gone well since."""
        return next((one.why for one in reversed(self.failed.values())), "")

    def retry_at_s(self, stage: Stage) -> float:
        """Before when not to try again."""
        return self.failed[stage].retry_at_s if stage in self.failed else 0.0


class Status(NamedTuple):
    """One cluster for people."""

    cluster: str
    stage: Stage
    message: str
    usable: bool  # Kueue has a token that should work
    draining: bool
    failing: bool  # it should be renewed and cannot be
    by: str  # bootstrap, ocm or ""
    expires_at_s: float
    renew_at_s: float
    since_s: float


@dataclass
class Counts:
    """What happened in this life."""

    issued: int = 0
    rotated: int = 0
    revoked: int = 0
    failures: dict[str, int] = field(default_factory=dict)  # by stage


class Credentials:
    """All clusters of one hub."""

    def __init__(self, book: Book, times: Times) -> None:
        self.book = book
        self._times = times
        self._records: dict[str, Record] = {}
        self._dirty: set[str] = set()
        self._due: dict[str, float] = {}
        self.counts = Counts()
        self.tells: list[Tell] = []
        self.faults: list[tuple[str, Exception]] = []  # of ours

    # ---- what comes in

    def touched(self, clusters: Iterable[str]) -> None:
        """Something about these clusters changed in the book."""
        self._dirty.update(clusters)

    def begin(self) -> None:
        """This replica leads from now on: others may have changed what it knew."""
        self._records = {name: rec for name, rec in self._records.items() if rec.busy}
        for record in self._records.values():
            record.survey = record.minted = None
        self._dirty = self.book.clusters()
        self._due.clear()

    def on_outcome(self, asked: Instruction, outcome: Outcome, now_s: float) -> None:
        """What became of a step."""
        record = self._records.setdefault(asked.cluster, Record())
        record.busy = False
        self._dirty.add(asked.cluster)
        if isinstance(outcome, Failed):
            self._failed(record, asked, outcome, now_s)
        else:
            record.failed.pop(record.stage, None)
            self._done(record, asked, outcome, now_s)

    def _done(self, record: Record, asked: Instruction, outcome: Outcome, now_s: float) -> None:
        match asked, outcome:
            case Prepare() | Look(), Survey():
                record.survey = outcome
            case Mint() | Adopt(), Minted():
                record.minted = outcome
                survey = record.survey
                if survey is not None and not outcome.managed:
                    bound = {**survey.bound, outcome.serial: outcome.issued_at_s}
                    record.survey = survey._replace(bound=bound)
            case Publish(), _:
                record.minted, record.rejected, record.checked_at_s = None, "", now_s
                record.failed.clear()
                first = asked.held is None or not asked.held.usable
                self.counts.issued += first
                self.counts.rotated += not first
                self._say(record, saying.published(asked, first))
            case Sweep(), _:
                survey = record.survey
                if survey is not None:
                    left = {s: at for s, at in survey.bound.items() if s not in asked.serials}
                    record.survey = survey._replace(bound=left)
            case Check(), _:
                record.checked_at_s, record.rejected = now_s, ""
                record.failed.clear()
            case Revoke(), Survey():
                record.survey, record.revoked = outcome, True
                record.minted, record.checked_at_s = None, 0.0
                self.counts.revoked += 1
            case Forget(), _:
                record.revoked = record.failed_to_revoke = False
                self._say(record, saying.forgotten(asked, now_s))
            case _:
                pass  # what it changed is seen in the book

    def _failed(self, record: Record, asked: Instruction, told: Failed, now_s: float) -> None:
        stage = record.stage
        before = record.failed.pop(stage, None)
        times = before.times + 1 if before is not None else 1
        full_s = min(FIRST_PAUSE_S * 2.0 ** min(times - 1, 10), LONGEST_PAUSE_S)
        spread = int(names.digest(asked.cluster)[:2], 16) / 255
        retry_at_s = now_s + full_s * (0.75 + 0.25 * spread)
        record.failed[stage] = Failure(times, retry_at_s, told.why)
        self.counts.failures[stage.value] = self.counts.failures.get(stage.value, 0) + 1
        match asked:
            case Mint() | Sweep():
                record.survey = None  # what is there now, nobody knows
            case Check() if told.trouble is Trouble.REJECTED:
                record.rejected = asked.serial
            case Check() if told.trouble is Trouble.FORBIDDEN:
                record.survey = None
            case Revoke():
                record.failed_to_revoke = True
                record.survey, record.checked_at_s = None, 0.0
            case _:
                pass
        view = self._view(asked.cluster, record, now_s)
        record.basis = _basis(view.seen)
        self._say(record, saying.failed(asked, told, view), again=True)

    # ---- what to do

    def act(self, now_s: float) -> list[Instruction]:
        """The next step of each cluster that changed or whose time has come."""
        for name in [name for name, at_s in self._due.items() if at_s <= now_s]:
            del self._due[name]
            self._dirty.add(name)
        clusters, self._dirty = sorted(self._dirty), set()
        steps: list[Instruction] = []
        for name in clusters:
            try:
                step = self._look(name, now_s)
            except Exception as error:  # noqa: BLE001 # one odd object must not stop all others
                self.faults.append((name, error))
                self._due[name] = now_s + LONGEST_PAUSE_S
                continue
            if step is not None:
                steps.append(step)
        return steps

    def _look(self, cluster: str, now_s: float) -> Instruction | None:
        record = self._records.setdefault(cluster, Record())
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
        if stage is Stage.NOTHING and cluster not in self.book.clusters():
            del self._records[cluster]
            return None
        if record.failed and record.basis != _basis(view.seen):
            record.failed.clear()
        self._say(record, saying.standing(cluster, stage, view, now_s - record.since_s))
        step = None if now_s < record.retry_at_s(stage) else STEPS[stage](cluster, view)
        if step is None:
            self._due[cluster] = max(_next_look_s(view, record, stage), now_s + RECHECK_S)
        record.busy = step is not None
        return step

    def _view(self, cluster: str, record: Record, now_s: float) -> View:
        seen = self.book.observe(cluster)
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
        """When time alone will change something."""
        return 0.0 if self._dirty else min(self._due.values(), default=float("inf"))

    def _say(self, record: Record, tell: Tell | None, *, again: bool = False) -> None:
        """Once, until something else is to be said; a failure each time that it happens."""
        if tell is None:
            return
        said = (tell.reason, tell.note)
        if said != record.said or again:
            record.said = said
            self.tells.append(tell)

    # ---- for people

    def statuses(self, now_s: float) -> list[Status]:
        """Every cluster that anything is known of, by name."""
        return [
            self._status(name, record, now_s)
            for name, record in sorted(self._records.items())
            if record.stage is not Stage.NOTHING or record.trouble
        ]

    def _status(self, cluster: str, record: Record, now_s: float) -> Status:
        view = self._view(cluster, record, now_s)
        held = view.seen.secret
        by = {Bootstrap: "bootstrap", Managed: "ocm"}.get(type(view.seen.source), "")
        told = saying.standing(cluster, record.stage, view, now_s - record.since_s)
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


def _basis(seen: Observed) -> object:
    """What a step rests on: if this changes, what failed may go well now."""
    source = seen.source
    if isinstance(source, Bootstrap):
        how: object = (source.target, source.version)
    elif isinstance(source, Managed):
        how = (source.target, source.token.serial if source.token else "", seen.requested)
    else:
        how = source
    return seen.known, seen.listed_by, seen.foreign, how, seen.told


def _next_look_s(view: View, record: Record, stage: Stage) -> float:
    """When time alone may change the stage, or let it be tried again."""
    if view.now_s < record.retry_at_s(stage):
        return record.retry_at_s(stage)
    held = view.seen.secret
    times = [float("inf")]
    if stage is Stage.AWAIT:
        times.append(record.since_s + saying.PATIENCE_S)
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

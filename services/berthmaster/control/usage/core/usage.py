"""Turn the log and the archive into ended jobs, each returned after its end. Pure.

The same job may come by both ways, in any order and any number of times:

- From the log, event by event, as stored. A job with an incomplete history (its first events are in
  the archive, or the log is damaged) is left to the archive.
- From the archive, as whole histories. A long history has several messages.

A cursor names the part of a stream that need not be read again. For the log this is all before the
oldest open job, whose history is needed at its end. For the archive this is all before a history
with missing messages.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from berthmaster.control.usage.core.gpus import Catalogue
from berthmaster.control.usage.core.jobs import (
    EndedJob,
    Life,
    MeasuredUse,
    Use,
    ms,
    of_story,
    with_use,
)
from berthmaster.control.usage.core.load import HOUR_S, HourRow
from berthmaster.control.usage.core.profiles import Profiles
from berthmaster.control.usage.core.similar import Likeness
from berthmaster.control.usage.core.suggest import Own
from berthmaster.control.usage.core.traces import Traces
from berthmaster.control.usage.core.trends import Collector
from berthmaster.lib.lifecycle.fold import Verdict, offer
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.api import RecordedEvent
from berthmaster.lib.messages.records import ArchivedStory
from berthmaster.lib.messages.telemetry import JobFigures
from berthmaster.lib.messages.workload import (
    Cancelled,
    Divided,
    Failed,
    Placed,
    Running,
    Submitted,
    Succeeded,
    WorkloadEvent,
)

MAX_PARTS: Final = 1_000  # histories with missing messages. Beyond it the oldest is given up
MAX_USES: Final = 500_000  # attempts with measured use
MAX_SUM: Final = 1 << 62  # of an attempt. The store's integers have 64 bits
LONGEST_WINDOW_S: Final = 600.0  # of one usage message. A longer one is invalid
_ENDINGS: Final = (Succeeded, Failed, Cancelled)


class Progress(NamedTuple):
    """Positions up to which a stream need not be read again, and up to which it was read."""

    log: int
    log_seen: int
    archive: int


class OpenJobs(NamedTuple):
    """Data of open jobs for a report."""

    like: Likeness | None  # of the named job
    arrivals: list[HourRow]


class _Open(NamedTuple):
    work: Workload
    life: Life


class _Parts(NamedTuple):
    first_sequence: int
    events: tuple[RecordedEvent, ...]


class Usage:
    """Takes messages of the streams, and returns ended jobs."""

    def __init__(self, owner_label: str, traces: Traces | None = None) -> None:
        self._traces = traces
        self.catalogue = Catalogue()
        self.trends = Collector()
        self.profiles = Profiles()
        self.left_to_archive = 0  # jobs with an incomplete history in the log
        self.incomplete = 0  # histories of the archive with a missing message
        self._owner_label = owner_label
        self._open: dict[Key, _Open] = {}
        self._parts: dict[Key, _Parts] = {}
        self._uses: dict[Key, dict[int, Use]] = {}
        self._settled: dict[Key, dict[int, Use]] = {}  # of jobs returned but perhaps not stored
        self._fresh: set[tuple[str, str, int]] = set()  # attempts with unreturned use
        self._ended: list[EndedJob] = []
        self._log = self._log_seen = self._archive = 0
        self._trends_after = 0  # events up to here are in the trends

    # Start

    def begin(self, progress: Progress, uses: Iterable[MeasuredUse]) -> None:
        """Restart at these positions. The log has the open jobs again."""
        self._open.clear()
        if self._traces is not None:
            self._traces.clear()
        self._parts.clear()
        self._ended.clear()
        self._log, self._log_seen, self._archive = progress
        self._trends_after = progress.log_seen
        self._uses |= self._settled
        self._settled = {}
        for one in uses:
            known = self._uses.setdefault(key(one.tenant, one.id), {})
            known[one.attempt] = max(known.get(one.attempt, Use()), one.use)

    @property
    def open_jobs(self) -> int:
        """Return the number of open jobs."""
        return len(self._open)

    def open_for(self, filters: Mapping[str, str], like: str, *, arrivals: bool) -> OpenJobs:
        """Return the data of open jobs for a report. ``filters``: as in a query, ``like``: a job
        id.
        """
        tenant = filters.get("tenant", "")
        rows = []
        for one in self._open.values() if arrivals else ():
            life = one.life
            of_job = {"tenant": life.tenant, "queue": life.queue, "owner": life.owner}
            if life.is_part or any(of_job.get(name) != value for name, value in filters.items()):
                continue
            placed_ms = life.placed_ms
            waited_ms = max(0, placed_ms - life.submitted_ms) if placed_ms is not None else 0
            hour = life.submitted_ms // (HOUR_S * 1000)
            is_placed = int(placed_ms is not None)
            rows.append(HourRow(hour, 1, life.asked_milli, is_placed, waited_ms))
        return OpenJobs(self.likeness(tenant, like) if like else None, rows)

    @property
    def waiting_jobs(self) -> int:
        """Return the number of ended jobs not returned yet."""
        return len(self._ended)

    # The log

    def on_event(
        self, event: WorkloadEvent, sequence: int, stored_at_s: float, *, is_astray: bool = False
    ) -> None:
        """Take one event of the log, in order."""
        self._log = sequence
        name = key(event.tenant, event.id)
        known = self._open.get(name)
        if known is None:
            if not isinstance(event, Submitted) or is_astray:
                return  # of an ended or carried job: the archive will have its history
            work = Workload(tenant=event.tenant, id=event.id)
            if offer(work, event, sequence, stored_at_s) is Verdict.COUNTED:
                life = Life(event, ms(stored_at_s), sequence, self._owner_label)
                life.take(event, ms(stored_at_s), self.catalogue)
                self._open[name] = _Open(work, life)
                self._trace(event, work, sequence, stored_at_s)
            return
        work, life = known
        placed_at_s, last = work.placed_at_s, work.sequence
        verdict = offer(work, event, sequence, stored_at_s, void=is_astray)
        is_behind_gap = verdict is Verdict.COUNTED and event.after != last  # an ending
        if verdict is Verdict.AHEAD or is_behind_gap:
            self._leave_to_archive(name)
            return
        if verdict is not Verdict.COUNTED:
            return
        self._trace(event, work, sequence, stored_at_s)
        self._see(event, work, life, sequence, stored_at_s, placed_at_s)
        self.profiles.on_event(
            event,
            life.submitted_ms,
            life.likeness,
            stored_at_s,
            is_new=sequence > self._trends_after,
        )
        if (job := life.take(event, ms(stored_at_s), self.catalogue)) is not None:
            del self._open[name]
            self._end(job)

    def on_unreadable(self, tenant: str, workload_id: str, sequence: int) -> None:
        """Take an event that this version cannot read: a newer version reads the archived
        history.
        """
        self._log = sequence
        if (name := key(tenant, workload_id)) in self._open:
            self._leave_to_archive(name)

    def _leave_to_archive(self, name: Key) -> None:
        self.left_to_archive += 1
        del self._open[name]
        if self._traces is not None:
            self._traces.forget(name)

    def _trace(
        self, event: WorkloadEvent, work: Workload, sequence: int, stored_at_s: float
    ) -> None:
        if self._traces is not None:
            is_new = sequence > self._trends_after
            self._traces.on_event(event, work, sequence, stored_at_s, is_new=is_new)

    def pass_over(self, sequence: int) -> None:
        """Take a message of the log that is no workload event."""
        self._log = sequence

    def _see(
        self,
        event: WorkloadEvent,
        work: Workload,
        life: Life,
        sequence: int,
        at_s: float,
        placed_at_s: float,
    ) -> None:
        if sequence <= self._trends_after:
            return
        trends, cell, tenant = self.trends, work.cell, work.tenant
        match event:
            case Divided() | Placed():
                first = life.placed_ms is None and not life.is_part  # parts wait as their job
                trends.placed(at_s, cell, tenant, at_s - work.submitted_at_s if first else None)
            case Running() if work.running_at_s == at_s:
                trends.running(at_s, cell, tenant, at_s - placed_at_s)
            case Succeeded() | Failed() | Cancelled() if not life.is_part:
                trends.ended(at_s, cell, tenant)
            case _:
                pass

    # The archive

    def on_archived(self, story: ArchivedStory, sequence: int) -> None:
        """Take one message of the archive, in order."""
        self._archive = sequence
        name = key(story.tenant, story.id)
        before = self._parts.pop(name, None)
        events, first = story.events, sequence
        if not events:
            return
        if before is not None and not _begins(events):
            events, first = (*before.events, *events), before.first_sequence
        if not _begins(events):
            self.incomplete += 1
        elif isinstance(events[-1].event, _ENDINGS) and not events[-1].void:
            job = of_story(story.tenant, story.id, events, self.catalogue, self._owner_label)
            if job is not None:
                self._end(job)
        else:
            self._parts[name] = _Parts(first, events)
            if len(self._parts) > MAX_PARTS:
                del self._parts[next(iter(self._parts))]
                self.incomplete += 1

    def on_unreadable_archive(self, sequence: int) -> None:
        """Take a message of the archive that this version cannot read."""
        self._archive = sequence

    # Measured use

    def on_figures(self, figures: JobFigures, now_s: float) -> None:
        """Take the GPU usage of a job over the last half minute."""
        is_ours = bool(figures.tenant and figures.id and figures.attempt)
        if not is_ours or not 0 < figures.window_s <= LONGEST_WINDOW_S:
            return
        self._profile(figures, now_s)
        use = figures.use
        if use.utilization_percent is None or use.measured <= 0:
            return
        name = key(figures.tenant, figures.id)
        if figures.ended and name not in self._open:
            return  # the job's sums were stored at its end, so no job would take this
        if name not in self._uses and len(self._uses) >= MAX_USES:
            return
        known_uses = self._uses.setdefault(name, {})
        before = known_uses.get(figures.attempt, Use())
        window_ms = figures.window_s * 1000
        percent = min(100.0, use.utilization_percent)
        gpus = max(use.gpus, use.measured)
        known_uses[figures.attempt] = Use(
            min(MAX_SUM, before.measured_ms + round(window_ms * use.measured / gpus)),
            min(MAX_SUM, before.used_gpu_us + round(window_ms * use.measured * 10 * percent)),
        )
        self._fresh.add((figures.tenant, figures.id, figures.attempt))

    def _profile(self, figures: JobFigures, now_s: float) -> None:
        known = self._open.get(key(figures.tenant, figures.id))
        if known is not None:
            life = known.life
            self.profiles.on_figures(figures, life.submitted_ms, life.likeness, now_s)
        elif self.profiles.knows(figures.tenant, figures.id):
            self.profiles.on_figures(figures, 0, None, now_s)

    def likeness(self, tenant: str, workload_id: str) -> Likeness | None:
        """Return the features of an open job, or None."""
        known = self._open.get(key(tenant, workload_id))
        return known.life.likeness if known is not None else None

    def own(self, tenant: str, workload_id: str) -> Own | None:
        """Return the configuration of an open job, or None."""
        known = self._open.get(key(tenant, workload_id))
        return known.life.own(self.catalogue) if known is not None else None

    def queue_of(self, tenant: str, workload_id: str) -> str | None:
        """Return the queue of an open job, or None."""
        known = self._open.get(key(tenant, workload_id))
        return known.life.queue if known is not None else None

    def take_uses(self, now_s: float) -> list[MeasuredUse]:
        """Return the total use of attempts measured since the last call."""
        found = []
        for tenant, workload_id, attempt in sorted(self._fresh):
            use = self._uses.get(key(tenant, workload_id), {}).get(attempt)
            if use is not None:
                found.append(MeasuredUse(tenant, workload_id, attempt, use, ms(now_s)))
        self._fresh.clear()
        return found

    # Output to the store

    def _end(self, job: EndedJob) -> None:
        name = key(job.tenant, job.id)
        measured = self._uses.pop(name, {})
        if measured:
            self._settled[name] = measured
        self._ended.append(with_use(job, measured))

    def take(self) -> tuple[list[EndedJob], Progress]:
        """Return the ended jobs, and the positions of the streams with them."""
        jobs, self._ended = self._ended, []
        self._log_seen = max(self._log_seen, self._log)
        oldest = min((one.life.sequence for one in self._open.values()), default=self._log + 1)
        parts = min((one.first_sequence for one in self._parts.values()), default=self._archive + 1)
        return jobs, Progress(oldest - 1, self._log_seen, parts - 1)

    def confirm(self) -> None:
        """Note that the returned jobs are stored."""
        ended = {key(job.tenant, job.id) for job in self._ended}
        self._settled = {name: use for name, use in self._settled.items() if name in ended}


def _begins(events: tuple[RecordedEvent, ...]) -> bool:
    return isinstance(events[0].event, Submitted)

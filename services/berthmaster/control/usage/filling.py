"""Fill the store from the log and the archive, in sessions.

1. A session begins with the cursors in the store.
2. The session reads the streams and writes what has ended, once a second.
3. A failure ends the session: the store is unavailable, or a stream was recreated.
4. The next session reads the streams again from the store's cursors.

Only measured use and minutes of trends outlive a session, because no stream has them. Nothing is
lost while the store is unavailable, for any time, and only the streams need to keep the data.

A damaged log is not read further, so that no job is booked from a partial history. An accepted loss
makes a new log, which is read from its beginning. Jobs already booked are not booked again.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from berthmaster.control.usage.core.jobs import MeasuredUse
from berthmaster.control.usage.core.profiles import MAX_PROFILES, ProfileRecord
from berthmaster.control.usage.core.spans import begin_of
from berthmaster.control.usage.core.trends import KEEP_S, STEP_OF, Sample
from berthmaster.control.usage.core.usage import Progress, Usage
from berthmaster.control.usage.metrics import UsageMetrics
from berthmaster.control.usage.settings import UsageSettings
from berthmaster.control.usage.store import writing
from berthmaster.control.usage.store.database import Database, StoreError
from berthmaster.control.usage.store.tables import prepare
from berthmaster.control.usage.store.thread import DatabaseThread
from berthmaster.control.usage.store.writing import Batch, Cursor, Writer
from berthmaster.lib.event_log.guard import LogGuard
from berthmaster.lib.messages.families import ARCHIVED_STORIES, UNREADABLE
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.dead_letters import store_dead_letter
from berthmaster.lib.nats.errors import BusError, StreamReplaced
from berthmaster.lib.nats.follower import Follower
from berthmaster.lib.nats.message_subjects import decode_event
from berthmaster.lib.nats.stream_messages import Recorded
from berthmaster.lib.nats.streams import ARCHIVE, WORKLOADS, stream_info
from berthmaster.lib.runtime.periodic import stopped_within
from berthmaster.lib.runtime.service import Context

FLUSH_S: Final = 1.0  # between two writes. Reports lack the jobs that ended since
WRITE_LIMIT_S: Final = 60.0
LAST_WRITE_LIMIT_S: Final = 2.0  # the process is ending
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
ENOUGH: Final = 5_000  # unstored ended jobs above which reading pauses until a write
MAX_SAMPLES: Final = 200_000  # unstored samples of past minutes: a day of twenty cells and tenants
SAMPLES_AT_ONCE: Final = 5_000
PROFILES_AT_ONCE: Final = 500
USES_EVERY_S: Final = 30.0  # the interval of the messages
FORGET_EVERY_S: Final = 3_600.0
FORGOTTEN_USE_S: Final = 60 * 86_400.0  # of an attempt without a message for this time
MAX_LETTERS: Final = 100


class Filling:
    """Filling of one replica. Call ``run`` until the service stops."""

    def __init__(
        self,
        ctx: Context[UsageSettings],
        conn: Connection,
        core: Usage,
        store: DatabaseThread,
        figures: UsageMetrics,
        guard: LogGuard,
    ) -> None:
        self._ctx = ctx
        self._guard = guard
        self._conn = conn
        self._core = core
        self._store = store
        self._figures = figures
        self._samples: deque[Sample] = deque()
        self._making: dict[str, str] = {}
        self._caught_up = {WORKLOADS: False, ARCHIVE: False}
        self._newest_s = 0.0
        self._letters: deque[tuple[str, Recorded, str]] = deque(maxlen=MAX_LETTERS)
        self._wrote: tuple[Database, Writer] | None = None
        self._uses_at_s = self._forgot_at_s = 0.0
        self._uses: list[MeasuredUse] = []
        self.opened = False  # whether the store was opened. Before, its tables may be missing
        self._enough = asyncio.Event()
        self._written = 0  # transactions
        self._seen_before = 0  # events up to here were handled by an earlier session

    @property
    def filled_until_s(self) -> float:
        """Return the time before which all ended jobs are stored, except those of the last
        second.
        """
        return self._newest_s if self.is_behind else self._conn.now()

    @property
    def is_behind(self) -> bool:
        """Return whether the streams have not been read to their ends."""
        return not all(self._caught_up.values())

    async def run(self) -> None:
        """Run one session after another, with growing pauses while they fail."""
        pause_s = FIRST_PAUSE_S
        stopping, health = self._ctx.stopping, self._ctx.health
        while not stopping.is_set():
            written = self._written
            try:
                if await self._guard.begin():
                    await self._session()
            except StoreError as error:
                self._figures.failures.inc()
                self._figures.failing.set(1)
                health.ready("store", False, str(error))
                self._ctx.log.warning("usage store unavailable", why=str(error))
            except StreamReplaced as error:
                self._ctx.log.warning("stream recreated, reading again", why=str(error))
            except BusError as error:
                health.ready("log", False, str(error))
            worked = self._written > written + 1
            pause_s = FIRST_PAUSE_S if worked else min(2 * pause_s, LONGEST_PAUSE_S)
            await stopped_within(pause_s, stopping)

    async def _session(self) -> None:
        core = self._core
        progress = await self._begin()
        core.begin(*progress)
        self._caught_up = {WORKLOADS: False, ARCHIVE: False}
        log = _Reading(self._conn, WORKLOADS, subjects.ALL_WORKLOADS, self._on_log)
        archive = _Reading(self._conn, ARCHIVE, subjects.ALL_STORIES, self._on_archive)
        log.sequence, archive.sequence = progress[0].log, progress[0].archive
        looking = asyncio.create_task(self._guard.run(), name="look at the logs")
        try:
            while not self._stopping.is_set():
                if self._guard.sound:
                    log.go_on(self._ready(log))
                    archive.go_on(self._ready(archive))
                await self._until_enough()
                if looking.done():
                    looking.result()
                log.check()
                archive.check()
                if core.waiting_jobs >= ENOUGH or not self._guard.sound:
                    await log.pause()
                    await archive.pause()
                await self._write(WRITE_LIMIT_S)
                await self._tell()
        finally:
            looking.cancel()
            await log.pause()
            await archive.pause()
        await self._write(LAST_WRITE_LIMIT_S)

    async def _until_enough(self) -> None:
        """Wait until a write is due, enough jobs wait, or the service stops."""
        self._enough.clear()
        waits = [asyncio.create_task(one.wait()) for one in (self._enough, self._stopping)]
        try:
            await asyncio.wait(
                waits,
                timeout=FLUSH_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            for one in waits:
                one.cancel()

    def _look_whether_enough(self) -> None:
        if self._core.waiting_jobs >= ENOUGH:
            self._enough.set()

    @property
    def _stopping(self) -> asyncio.Event:
        return self._ctx.stopping

    async def _begin(self) -> tuple[Progress, list[MeasuredUse]]:
        """Return the stored state, and the positions to read the streams from."""

        def load(
            database: Database,
        ) -> tuple[dict[str, Cursor], list[MeasuredUse], list[ProfileRecord]]:
            prepare(database)
            profiles = writing.open_profiles(database, MAX_PROFILES)
            return writing.cursors(database), writing.uses(database), profiles

        self._wrote = None
        cursors, uses, profiles = await self._store.call(load, limit_s=WRITE_LIMIT_S)
        self._core.profiles.restore(profiles)
        found: dict[str, int] = {}
        for name, stream in ((writing.LOG, WORKLOADS), (writing.ARCHIVE, ARCHIVE)):
            info = await stream_info(self._conn, stream)
            self._making[stream] = info.making
            cursor = cursors.get(name, Cursor())
            same = cursor.created == self._making[stream] and cursor.sequence <= info.state.last_seq
            if cursor.created and not same:
                self._ctx.log.warning("stream replaced", stream=stream)
            found[name] = cursor.sequence if same else 0
        seen = cursors.get(writing.SEEN, Cursor())
        is_same = seen.created == self._making[WORKLOADS] and found[writing.LOG]
        self._seen_before = seen.sequence if is_same else 0
        self.opened = True
        self._figures.failing.set(0)
        self._ctx.health.ready("store", True)
        return Progress(found[writing.LOG], self._seen_before, found[writing.ARCHIVE]), uses

    def _ready(self, reading: "_Reading") -> Callable[[], None]:
        def caught_up() -> None:
            self._caught_up[reading.stream] = True
            if all(self._caught_up.values()):
                self._ctx.health.ready("log", True)

        return caught_up

    # Stream messages

    def _on_log(self, recorded: Recorded) -> None:
        core, sequence = self._core, recorded.sequence
        self._newest_s = recorded.stored_at_s
        try:
            event, is_astray = decode_event(recorded.subject, recorded.data)
        except UNREADABLE as error:
            self._unreadable(WORKLOADS, recorded, str(error))
            place = subjects.parse_workload_event(recorded.subject)
            core.on_unreadable(place.tenant, place.id, sequence)
            return
        except subjects.SubjectError as error:
            self._unreadable(WORKLOADS, recorded, str(error))
            core.pass_over(sequence)
            return
        core.on_event(event, sequence, recorded.stored_at_s, is_astray=is_astray)
        self._look_whether_enough()

    def _on_archive(self, recorded: Recorded) -> None:
        try:
            story = ARCHIVED_STORIES.decode(recorded.data)
        except UNREADABLE as error:
            self._unreadable(ARCHIVE, recorded, str(error))
            self._core.on_unreadable_archive(recorded.sequence)
            return
        self._core.on_archived(story, recorded.sequence)
        self._look_whether_enough()

    def _unreadable(self, stream: str, recorded: Recorded, why: str) -> None:
        self._figures.unreadable.labels(stream).inc()
        if stream == ARCHIVE or recorded.sequence > self._seen_before:
            self._letters.append((stream, recorded, why))

    # Writes

    async def _write(self, limit_s: float) -> None:
        core, now_s = self._core, self._conn.now()
        self._take_samples(now_s)
        if now_s - self._uses_at_s >= USES_EVERY_S or self._stopping.is_set():
            self._uses_at_s = now_s
            self._uses += core.take_uses(now_s)
        jobs, progress = core.take()
        samples = [self._samples[at] for at in range(min(len(self._samples), SAMPLES_AT_ONCE))]
        profiles = core.profiles.take(now_s, PROFILES_AT_ONCE)
        log, archive = self._making[WORKLOADS], self._making[ARCHIVE]
        batch = Batch(
            jobs=jobs,
            uses=self._uses,
            samples=samples,
            profiles=[writing.profile_row(one) for one in profiles],
            cursors={
                writing.LOG: Cursor(log, progress.log),
                writing.SEEN: Cursor(log, progress.log_seen),
                writing.ARCHIVE: Cursor(archive, progress.archive),
            },
            kept_since_ms=self._kept_since_ms(now_s),
        )
        with self._figures.write_s.time():
            stored = await self._store.call(
                lambda database: self._writer(database).write(batch), limit_s=limit_s
            )
        core.confirm()
        core.profiles.wrote(profiles, now_s)
        core.profiles.forget(now_s)
        self._written += 1
        self._figures.stored.inc(stored)
        self._figures.writes.inc()
        self._uses = []
        for _ in samples:
            self._samples.popleft()

    def _writer(self, database: Database) -> Writer:
        """Return the writer of this database. Called in the store's thread."""
        if self._wrote is None or self._wrote[0] is not database:
            self._wrote = (database, Writer(database))
        return self._wrote[1]

    def _take_samples(self, now_s: float) -> None:
        self._samples.extend(self._core.trends.take(now_s))
        while len(self._samples) > MAX_SAMPLES:
            self._samples.popleft()
            self._figures.lost_samples.inc()

    def _kept_since_ms(self, now_s: float) -> int:
        """Return the start of retention, in whole months, because sums of a month are kept or
        dropped together.
        """
        kept_s = now_s - self._ctx.settings.retention_days * 86_400
        return begin_of("month", round(max(0.0, kept_s) * 1000))

    def tick(self) -> None:
        """Collect the minutes that are over, within their bound, also while the store is
        unavailable.
        """
        self._take_samples(self._conn.now())
        figures, core = self._figures, self._core
        figures.open_jobs.set(core.open_jobs)
        figures.waiting_jobs.set(core.waiting_jobs)
        figures.waiting_samples.set(len(self._samples))
        figures.left_to_archive.set(core.left_to_archive)
        figures.incomplete.set(core.incomplete)
        behind = 0.0 if self._caught_up[WORKLOADS] else self._conn.now() - self._newest_s
        figures.behind_s.set(max(0.0, behind) if self._newest_s else 0.0)

    async def _tell(self) -> None:
        """Store dead letters, and drop old rows of the store."""
        while self._letters:
            stream, recorded, why = self._letters.popleft()
            await store_dead_letter(
                self._conn,
                service="usage",
                subject=recorded.subject,
                reason=why,
                body=recorded.data,
                stream=stream,
                sequence=recorded.sequence,
                workload=_workload_of(recorded.subject),
            )
        now_s = self._conn.now()
        if now_s - self._forgot_at_s < FORGET_EVERY_S:
            return
        steps = {step: round(now_s - KEEP_S[step]) for step in KEEP_S}
        before_ms = self._kept_since_ms(now_s)
        steps[STEP_OF["month"]] = before_ms // 1000
        uses_ms = round((now_s - FORGOTTEN_USE_S) * 1000)

        def forget(database: Database) -> tuple[int, int]:
            gone = writing.forget(database, before_ms, steps, uses_ms)
            return gone, database.bytes()

        gone, size = await self._store.call(forget, limit_s=WRITE_LIMIT_S)
        self._figures.store_bytes.set(size)
        if gone < writing.FORGET_AT_ONCE:
            self._forgot_at_s = now_s  # all old rows are gone, else the next write continues


class _Reading:
    """Reader of one stream, with its position."""

    def __init__(
        self, conn: Connection, stream: str, filter_: str, handle: Callable[[Recorded], None]
    ) -> None:
        self._conn = conn
        self.stream = stream
        self._filter = filter_
        self._handle = handle
        self.sequence = 0
        self._follower: Follower | None = None
        self._task: asyncio.Task[None] | None = None

    def go_on(self, caught_up: Callable[[], None]) -> None:
        """Start reading unless already started."""
        if self._task is not None:
            return
        follower = Follower(self._conn, self.stream, [self._filter], start=self.sequence + 1)
        self._follower = follower
        self._task = asyncio.create_task(
            follower.run(self._handle, caught_up=caught_up), name=f"follow {self.stream}"
        )

    def check(self) -> None:
        """Raise the error that ended reading, if any."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def pause(self) -> None:
        task, self._task = self._task, None
        if task is None or self._follower is None:
            return
        task.cancel()
        await asyncio.wait({task}, timeout=2.0)
        self.sequence = max(self.sequence, self._follower.sequence)
        if task.done() and not task.cancelled():
            task.exception()  # reported by check, or too late to matter


def _workload_of(subject: str) -> str:
    """Return the workload of an event's subject, or ""."""
    try:
        where = subjects.parse_workload_event(subject)
    except subjects.SubjectError:
        return ""
    return f"{where.tenant}/{where.id}"

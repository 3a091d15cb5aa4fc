"""Keeps a service from deciding on a log that is not what it was, until a person says to go on.

A service looks before it begins: at what the server says of the streams, beside what is remembered,
by others and, as long as it lives, by itself. Who follows the log or writes to it asks, whenever
there is another connection, whether the last that was read, or told to be stored, is still there: a
server that has lost the end of its log may have grown it as long again before anybody looks, and of
an ending that nobody has read yet only its writer knows.
One that decides also reads the whole log once, since a server may not know that it cannot read
some of it. What is found is said in the service's log, in its readiness and in a metric, and in its
mark, so that the others hear of it. What a person accepts counts from the moment it is stored; a
service that had begun ends then and starts anew, for it knows what the log does not. Those that
decide then wait a moment, in which executors say what still runs of what the log has lost: so that
its GPUs are promised to nobody and no job is placed a second time.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from berthmaster.bus.connection import Connection
from berthmaster.bus.errors import BusError, StreamReplaced
from berthmaster.bus.follow import Recorded
from berthmaster.bus.log import message_at
from berthmaster.bus.storing import stream_of
from berthmaster.bus.streams import ARCHIVE, CONTROL, WORKLOADS
from berthmaster.lifecycle.flaws import NO_FLAWS, Flaws, Gap
from berthmaster.logcheck import core, marks
from berthmaster.logcheck.archived import archived
from berthmaster.logcheck.core import (
    NOTHING,
    Damage,
    Doubt,
    LastKnown,
    Reading,
    Remembered,
    Single,
)
from berthmaster.logcheck.examine import (
    WATCHED,
    WHOLE_WITHIN_S,
    Looked,
    judged,
    look,
    read_through,
    settled,
)
from berthmaster.messages.records import LogMark, StreamMark
from berthmaster.runtime.periodic import any_set_within, stopped_within, unless_stopped
from berthmaster.runtime.service import Context

LOOK_S: Final = 1.0
FIRST_LOOKS_S: Final = 0.25
SETTLE_S: Final = 3.0  # a new leader may need a moment to see all that was stored
READ_AFTER_S: Final = 10.0  # of a service that need not wait for it, and has better to do at first
READ_AGAIN_S: Final = 600.0  # after a connection was lost: the server may have been restarted
RECOVERY_S: Final = (
    10.0  # after an acceptance: the door folds anew, and executors ask it for a list
)
BEGIN_AFTER: Final = 3.0  # of that, deciders begin: what was held back until then is told by then
KEEP_ARCHIVE_S: Final = 3600.0  # so that the next start has little of the archive left to read
PART: Final = "logs"
NOT_LOOKED: Final = "nothing is decided: the log was not looked at since the connection was lost"
IN_DOUBT: Final = "nothing is decided: the log is in doubt, and is looked at again"
MEMORY_HELP: Final = (
    "folder in which to remember how far the logs were, beside what the bus remembers of it; "
    "empty = only on the bus"
)


class LogGuard:
    """One service's part in it."""

    def __init__(
        self,
        ctx: Context[Any],
        conn: Connection,
        name: str,
        *,
        folder: str = "",
        keeps_archive: bool = False,
        reads_at_once: bool = False,
        waits_for_executors: bool = True,
        told: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``folder``: where to remember beside the bus; ``keeps_archive``: may keep what it has
        read of the archive; ``reads_at_once``: does nothing before it has read all of the log,
        though it does not follow it; ``waits_for_executors``: begins some time after an
        acceptance at the earliest; ``told``: called with what is wrong, "" = nothing, when that
        changes or all has been read."""
        self._ctx = ctx
        self._conn = conn
        self._name = name
        self._folder = Path(folder) if folder else None
        self._keeps_archive = keeps_archive
        self._reads_at_once = reads_at_once
        self._waits_for_executors = waits_for_executors
        self._looked_through = -1  # number of the connection through which was looked last
        self._last = LastKnown()  # of the log, which this service has read or written
        self._changed_at = 0  # that is another one now: its number, until all has been read
        self._told = told
        self._looked: dict[str, Looked] = {}
        self._known: dict[str, StreamMark] = {}  # when each was in order last
        self._flaws = NO_FLAWS
        self._reading: Reading | None = None  # of what the service follows
        self._reads_all = False  # from its beginning
        self._caught_up: asyncio.Event | None = None
        self._doubted_s: float | None = None  # since when each look has found something
        self._doubts_log = False  # and whether the last found it in more than the archive
        self._doubt: Doubt | None = None  # the log was too short, and has not been read since
        self._last_in_doubt = NOTHING  # the last that was known of it when it was found too short
        self._last_commit = core.LastCommit(WHOLE_WITHIN_S)
        self._seen: list[Damage] = []  # by looking
        self._found: list[Damage] = []  # by reading
        self._told_others: list[Damage] = []  # of it, before it has begun
        self._words = self._why = ""  # what was told last: of damage, and why nothing is decided
        self._begun = False
        self.read = False  # whether all of the log has been read and judged
        self._read_after_s = 0.0  # an acceptance the log had been followed to its end
        conn.when_stored(self._wrote)
        self._gauge = ctx.metrics.gauge(
            "log_missing", "messages that a stream has lost; 0.5: damaged otherwise", ["stream"]
        )

    @property
    def sound(self) -> bool:
        """Whether anything may be decided on the log: not before a look through the connection
        that there is now, since what was followed may have been accepted as lost meanwhile."""
        return self._begun and self._has_looked and not self._grave and not self._changed_at

    @property
    def in_order(self) -> bool:
        """Whether the last look found nothing either. While it is not, what is remembered of the
        log must not be replaced: it may be all that tells what is lost."""
        return self.sound and not self._doubts_log

    @property
    def certain(self) -> bool:
        """Whether all of the log was read, and has been in order at each look since: what it does
        not hold never was, or was removed on purpose, or a person has accepted that it is lost."""
        return self.in_order and self.read

    @property
    def accepted_at_s(self) -> float:
        """When a person accepted last what WORKLOADS had lost, by the server's clock; 0 = never."""
        looked = self._looked.get(WORKLOADS)
        return looked.accepted_at_s if looked is not None and looked.accepted else 0.0

    @property
    def accepted_to(self) -> int:
        """Where WORKLOADS ended when a person said to go on with it; 0 = never."""
        return self._looked[WORKLOADS].accepted_to if self._looked else 0

    @property
    def accepted_missing(self) -> tuple[Gap, ...]:
        """What of WORKLOADS people have accepted as lost, up to there."""
        accepted = self._looked[WORKLOADS].accepted if self.accepted_to else None
        return core.heard(accepted.missing) if accepted is not None else ()

    @property
    def accepted_id(self) -> str:
        """Names what people said of the log: a snapshot from before is of another one."""
        looked = self._looked.get(WORKLOADS)
        if looked is None:
            return ""
        accepted = f" {looked.accepted_at_s:.6f}" if looked.accepted else ""
        return accepted + (f" {looked.void.set_at_s:.6f}" if looked.void else "")

    @property
    def executors_have_spoken(self) -> bool:
        """Whether an acceptance is so long ago that executors have said what still runs of what
        was lost: they could ask once this service had read the log. Until then nobody may begin
        anything by what the log has left."""
        return self._conn.now() - self.accepted_at_s >= RECOVERY_S + self._read_after_s

    def flaws(self) -> Flaws:
        """What people said of the log."""
        return self._flaws

    @property
    def _has_looked(self) -> bool:
        return self._looked_through == self._conn.reconnects

    @property
    def _grave(self) -> list[Damage]:
        """What nothing may be decided with. The archive is history, and only told of."""
        return [damage for damage in (*self._seen, *self._found) if damage.stream != ARCHIVE]

    async def begin(self) -> bool:
        """Look until the logs are what they were, or what they are was accepted. False: told to
        stop before."""
        health, stopping = self._ctx.health, self._ctx.stopping
        health.ready(PART, False, "the logs have not been looked at yet")
        self._changed_at = 0
        if self._known:
            await unless_stopped(self._tell_own(), stopping)
        while not stopping.is_set():
            try:
                await unless_stopped(self._look(), stopping)
                await unless_stopped(self._keep_found(), stopping)
            except (BusError, OSError) as error:
                health.ready(PART, False, f"the logs cannot be looked at: {error}")
            else:
                if stopping.is_set():
                    break
                in_order = (self._doubted_s is None or self._seen) and not self._grave
                if in_order and self._may_begin():
                    self._begun = True
                    return True
            if await stopped_within(LOOK_S if self._seen else FIRST_LOOKS_S, stopping):
                break
        return False

    def _own(self) -> list[Remembered]:
        known, now_s = self._known.values(), self._conn.now()
        last = self._last.newest.number
        return core.own_memory(self._name, known, self._reading, last, WORKLOADS, now_s)

    async def _tell_own(self) -> None:
        """It begins anew, maybe with another log than it followed: others are to know what it
        has seen of that one before they begin."""
        (own,) = self._own()
        self._known = {one.stream: one for one in own.mark.streams}
        self._reading, self._last = None, LastKnown()
        if self._found:
            return  # what it keeps already tells of that, and nobody begins
        try:
            await marks.keep(self._conn, own.mark, self._folder)
        except (BusError, OSError) as error:
            self._conn.log.warning("what was seen of the logs cannot be kept", why=str(error))

    async def _keep_found(self) -> None:
        """What is found before it begins, others are to know as well: they may know less of what
        the log was, and would replace what is remembered of it. Raises BusError, OSError."""
        if self._found and self._found != self._told_others and self._may_keep:
            await marks.keep(self._conn, self._mark(), self._folder)
            self._told_others = list(self._found)

    async def _look(self) -> None:
        through = self._conn.reconnects
        now = await look(self._conn, self._folder, self._own())
        await self._settle(now[WORKLOADS])
        await self._prove(now[WORKLOADS], through)
        self._look_at_end(now[WORKLOADS])
        if through != self._looked_through:
            self._looked_through, self._words = through, "?"  # who waited for this look is told
        self._take(now)
        if self._doubted_s is None:
            self._known = {
                stream: StreamMark(
                    stream=stream,
                    created=each.seen.making,
                    sequence=each.seen.last,
                    accepted_at_s=each.accepted_at_s,
                )
                for stream, each in now.items()
                if each.seen is not None
            }
        if self._seen and self._folder is not None:
            await marks.tell_again(self._conn, self._name, self._folder)

    def _look_at_end(self, log: Looked) -> None:
        """Whether the log ends in the middle of a commit. Others have no mark to tell them."""
        reading = self._reading if self._begun else None
        now_s = asyncio.get_running_loop().time()
        found = self._last_commit.look(WORKLOADS, reading, log.seen, now_s)
        if found is not None and found not in self._found:
            self._found.append(found)

    async def _prove(self, log: Looked, through: int) -> None:
        """Whether what was known through the connections before stands there. Raises BusError."""
        for one in self._last.unproved(through):
            if log.seen is None or one.number > log.seen.last:
                continue  # a log that is too short is told of, and may be as long again
            if await self._is_other(one):
                self._has_changed(one)
            self._last.proved(one)

    def _has_changed(self, one: Single) -> None:
        """The log is another one. Who follows it reads all of it at once."""
        if self._caught_up is not None:
            self._changed_at = one.number
        else:
            self._found.append(core.changed_at(WORKLOADS, one.number))

    async def _is_other(self, one: Single) -> bool:
        """Whether something else stands there now; what was removed is not. Raises BusError."""
        there = await message_at(self._conn, WORKLOADS, one.number)
        return there is not None and one.is_other(there.subject, there.data)

    async def _settle(self, log: Looked) -> None:
        """A log that was too short is not the same again because it is as long again. Raises
        BusError, TimeoutError."""
        known = self._looked.get(WORKLOADS)
        is_accepted = known is not None and log.accepted_at_s > known.accepted_at_s
        if is_accepted:  # what is lost by it is not asked for
            self._last = LastKnown()
        if log.seen is None or is_accepted:
            self._doubt = None  # what a person has accepted needs no proof
        elif core.is_short(log.seen, log.marks):
            if self._doubt is None:
                self._last_in_doubt = self._last.newest
            doubt = self._doubt or core.first_doubt(log.seen, log.marks)
            self._doubt = doubt.also(log.seen, log.marks)
        elif self._doubt is not None and not log.damage:
            if self._doubt.can_be_settled:
                self._found += await settled(self._conn, log, self._doubt)
            elif self._last_in_doubt.number > self._doubt.end:
                if await self._is_other(self._last_in_doubt):
                    self._has_changed(self._last_in_doubt)
            elif any(damage.stream == WORKLOADS for damage in self._seen):
                self._found.append(core.unsettled(WORKLOADS, self._doubt))
            self._doubt = None

    def _may_begin(self) -> bool:
        since_s = self._conn.now() - self.accepted_at_s
        if not self._waits_for_executors or since_s >= BEGIN_AFTER * RECOVERY_S:
            return True
        why = f"a damaged log was accepted {since_s:.0f} s ago: executors say first what still runs"
        self._ctx.health.ready(PART, False, why)
        return False

    def follows(self, start: int) -> None:
        """The service follows the log from this number on and hands each message to ``saw``."""
        self.read, self._changed_at, self._last = False, 0, LastKnown()
        self._reads_all = start == 1
        self._reading = self._looked[WORKLOADS].reading(start)

    def saw(self, recorded: Recorded) -> None:
        """A message of the log, as it is followed; all of them, if ``follows`` was told so."""
        one = Single(recorded.sequence, recorded.subject, recorded.data)
        self._last.knows(self._conn.reconnects, one)
        if self._reading is not None:
            self._reading.saw(*one)

    def _wrote(self, subject: str, data: bytes, sequence: int) -> None:
        """A write of this service's was acknowledged."""
        if stream_of(subject) == WORKLOADS:
            self._last.knows(self._conn.reconnects, Single(sequence, subject, data))

    async def run(self, caught_up: asyncio.Event | None = None, start: int = 1) -> None:
        """Remember how far the logs are and hear what others find; who follows the log from
        ``start`` on reads all of it, too, once it has ``caught_up``. Raises StreamReplaced when a
        person has accepted what was found after the service had begun."""
        self._caught_up = caught_up
        loop = asyncio.get_running_loop()
        reading = None
        if caught_up is not None:
            reading = self._ctx.spawn(self._read_all(caught_up, start), name="read all of the log")
        reconnects, again_s = self._conn.reconnects, loop.time() + READ_AGAIN_S
        judged = -1  # flaws that were seen as it was followed and read through; -1 = not yet
        archive_s = loop.time() + KEEP_ARCHIVE_S
        kept: tuple[StreamMark, ...] = ()
        connected = asyncio.Event()

        def again() -> None:
            connected.set()
            self._told(NOT_LOOKED)

        ends = self._conn.when_reconnected(again)
        try:
            while True:
                await any_set_within(LOOK_S, self._ctx.stopping, connected)
                if self._ctx.stopping.is_set():
                    break
                connected.clear()
                try:
                    await self._look()
                    mark = self._mark()
                    if self._may_keep and mark.streams not in ((), kept):
                        await marks.keep(self._conn, mark, self._folder)
                        kept = mark.streams
                    if self._keeps_archive and loop.time() >= archive_s:
                        archive_s = loop.time() + KEEP_ARCHIVE_S
                        if log := self._looked[WORKLOADS].seen:
                            await archived(self._conn, log.making, may_keep=True)
                except StreamReplaced:
                    raise
                except (BusError, OSError, TimeoutError) as error:
                    self._conn.log.info("the logs cannot be looked at", why=str(error))
                else:
                    if reading is None or caught_up is None or not reading.done():
                        continue
                    lost = self._conn.reconnects != reconnects and loop.time() >= again_s
                    flaws = self._reading.flaws if self._reading is not None else 0
                    judged, missed = flaws, 0 <= judged < flaws
                    if lost or missed or self._changed_at:
                        reconnects, again_s = self._conn.reconnects, loop.time() + READ_AGAIN_S
                        reading = self._ctx.spawn(
                            self._read_all(caught_up, 0, at_once=missed or self._changed_at > 0),
                            name="read it again",
                        )
        finally:
            ends()
            if reading is not None:
                reading.cancel()

    def _take(self, now: dict[str, Looked]) -> None:
        """What one more look has shown."""
        accepted = {
            stream
            for stream, looked in now.items()
            if self._looked and looked.accepted_at_s > self._looked[stream].accepted_at_s
        }
        flaws = now[WORKLOADS].flaws()
        is_accepted = WORKLOADS in accepted or any(d.stream in accepted for d in self._grave)
        is_void = flaws.void != self._flaws.void
        self._looked, self._flaws = now, flaws
        self._found = [damage for damage in self._found if damage.stream not in accepted]
        mine = {damage.stream for damage in self._found}
        seen = [d for each in now.values() for d in each.damage if d.stream not in mine]
        loop = asyncio.get_running_loop()
        self._doubted_s = (self._doubted_s or loop.time()) if seen else None
        self._doubts_log = any(damage.stream != ARCHIVE for damage in seen)
        if self._doubted_s is None or loop.time() - self._doubted_s >= SETTLE_S:
            self._seen = seen
        if self._begun and (is_accepted or is_void):
            self._begun = False  # nothing more is decided on what was folded
            what = "messages of the log were declared void"
            if is_accepted:
                what = "what the log has lost was accepted"
            raise StreamReplaced(f"{what}: it is folded anew")
        self._tell()

    def _tell(self) -> None:
        """Everybody who can be told, and the log once."""
        damage = [*self._seen, *self._found]
        for stream in WATCHED:
            ours = [d for d in damage if d.stream == stream]
            missing = sum(core.count(d.missing) for d in ours)
            self._gauge.labels(stream).set(missing or (0.5 if ours else 0))
        words = "; ".join(str(d) for d in damage)
        grave = "; ".join(str(d) for d in self._grave)
        why = f"nothing is decided: {grave}" if grave else self._not_yet
        before, self._words, self._why = (self._words, self._why), words, why
        if (words, why) != before:
            self._told(why)
        if words != before[0]:
            for each in damage:
                self._ctx.log.error("a log is damaged", why=str(each), remedy=core.REMEDY)
        unready = f"nothing is decided, since {grave}; {core.REMEDY}"
        self._ctx.health.ready(PART, not grave, unready, note=words)

    @property
    def _not_yet(self) -> str:
        """Why nothing may be written where nothing is surely lost, or "". Who has begun remembers
        what the log was, and goes on for a moment; who has not would write over what is lost."""
        if not self._has_looked:
            return NOT_LOOKED  # lost again during the look
        return IN_DOUBT if self._doubts_log and not self._begun else ""

    @property
    def _may_keep(self) -> bool:
        """While the log is in doubt only who has seen more than there is tells what it was."""
        if not self._seen and self._doubted_s is None:
            return True
        seen = self._looked[WORKLOADS].seen
        return seen is not None and self._last.newest.number > seen.last

    @property
    def _knows_it(self) -> bool:
        """Whether it may replace what it remembered before: not while it reads all of the log for
        the first time, since that is held against it."""
        return self.read or not self._reads_all

    def _mark(self) -> LogMark:
        is_read = self._caught_up is None or (self._caught_up.is_set() and self._knows_it)
        if not (is_read or self._found):
            return LogMark(service=self._name, at_s=0.0)
        streams = []
        for stream in WATCHED:
            seen = self._looked[stream].seen
            if seen is None:
                continue
            mine = next((d for d in self._found if d.stream == stream), None)
            followed, last = None, 0
            if stream == WORKLOADS:
                followed, last = self._reading, self._last.newest.number
            mark = StreamMark(
                stream=stream,
                created=seen.making,
                sequence=max(seen.last, last),
                digests=followed.digests() if followed is not None else {},
                damage=mine.what if mine is not None else "",
                missing=core.told(mine.missing) if mine is not None else (),
                accepted_at_s=self._looked[stream].accepted_at_s,
            )
            streams.append(core.with_what_was(mark, self._name, self._looked[stream].marks))
        return LogMark(service=self._name, at_s=self._conn.now(), streams=tuple(streams))

    async def _read_all(
        self, caught_up: asyncio.Event, start: int, *, at_once: bool = False
    ) -> None:
        """Once, however often it takes: the bus may be away meanwhile. ``at_once``: what is
        followed has skipped a number, or has read what the log does not hold."""
        before = self._looked[WORKLOADS].marks  # who keeps one later may have seen what it is now
        await caught_up.wait()
        if not self.read:
            late_s = self._conn.now() - self.accepted_at_s
            self._read_after_s = min(max(0.0, late_s), BEGIN_AFTER * RECOVERY_S)
        followed = self._reading if start == 1 else None
        waits = followed is None and not (self._reads_at_once or at_once)
        if waits and await stopped_within(READ_AFTER_S, self._ctx.stopping):
            return
        while True:
            try:
                log, control = self._looked[WORKLOADS], self._looked[CONTROL]
                log = log._replace(marks=[*before, *log.marks])
                if followed is not None:
                    found = await judged(self._conn, log, followed, may_keep=self._keeps_archive)
                else:
                    found = await read_through(self._conn, log)
                if found:  # the archivist may have been at work: a second pass sees what it did
                    found = await read_through(self._conn, log)
                found += await read_through(self._conn, control)
                # What has another digest than it had is not found twice: marks go on.
                found += [each for each in self._found if not each.missing and each not in found]
                if self._changed_at and not any(each.stream == WORKLOADS for each in found):
                    found.append(core.changed_at(WORKLOADS, self._changed_at))
                self._found, self._changed_at = found, 0
                self.read = True
                self._words = "?"  # whoever waited for this is told, whatever was found
                self._tell()
                return
            except (BusError, TimeoutError) as error:
                self._conn.log.warning("the log cannot be read through", why=str(error))
            if await stopped_within(LOOK_S, self._ctx.stopping):
                return

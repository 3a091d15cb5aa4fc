"""Holds the logs against what is remembered: by what the server says of them, or by reading all."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from berthmaster.bus import subjects
from berthmaster.bus.connection import Connection
from berthmaster.bus.errors import ApiError
from berthmaster.bus.follow import Recorded
from berthmaster.bus.read import read_all
from berthmaster.bus.snapshots import load
from berthmaster.bus.streams import ARCHIVE, CONTROL, CONTROL_A_SUBJECT, WORKLOADS
from berthmaster.lifecycle.flaws import Flaws, Gap, flaws_of
from berthmaster.logcheck import core
from berthmaster.logcheck.archived import READ_LIMIT_S, archived
from berthmaster.logcheck.core import Damage, Doubt, Reading, Remembered, Seen
from berthmaster.logcheck.marks import NO_STREAM, acceptance, declared_void, remembered, seen_of
from berthmaster.messages.control import LogAccepted, MessagesVoid
from berthmaster.messages.families import UNREADABLE
from berthmaster.messages.records import LogMark, StreamMark

LOOK_S: Final = 0.25
WHOLE_WITHIN_S: Final = 3.0  # a commit that has begun to be stored is
WATCHED: Final = (WORKLOADS, CONTROL, ARCHIVE)
ALL_OF: Final = {
    WORKLOADS: [subjects.ALL_WORKLOADS, subjects.ALL_DECISIONS],
    CONTROL: [subjects.ALL_CONTROL],
    ARCHIVE: [subjects.ALL_ARCHIVE],
}


class _Open(msgspec.Struct):
    tenant: str
    id: str
    sequence: int = 0
    submitted_sequence: int = 0


class _Snapshot(msgspec.Struct):
    """What is of interest of a resolver's."""

    open: list[_Open]


RESOLVER: Final = "resolver."
_SNAPSHOT: Final = msgspec.msgpack.Decoder(_Snapshot)


class Looked(NamedTuple):
    """One stream beside what is remembered of it."""

    stream: str
    seen: Seen | None
    accepted: LogAccepted | None
    accepted_at_s: float
    accepted_sequence: int  # in CONTROL; 0 = nothing ever was
    marks: list[tuple[StreamMark, LogMark]]
    damage: list[Damage]
    void: MessagesVoid | None = None

    def flaws(self) -> Flaws:
        """What people have said of it."""
        return flaws_of(
            self.accepted.missing if self.accepted is not None else (),
            self.void.sequences if self.void is not None else (),
        )

    @property
    def accepted_to(self) -> int:
        """Where it ended when a person said to go on with it; 0 = never."""
        if self.accepted is None or self.seen is None or self.accepted.created != self.seen.making:
            return 0
        return self.accepted.sequence

    def reading(self, start: int = 1, known: Mapping[int, set[str]] | None = None) -> Reading:
        """To be told of its messages from this number on. ``known``: digests that are remembered,
        if not those of the marks."""
        if known is None:
            making = self.seen.making if self.seen is not None else ""
            known = core.known_digests(making, self.marks)
        accepted = core.heard(self.accepted.missing) if self.accepted is not None else ()
        return Reading(start, known, accepted, self.accepted_to)


async def look(
    conn: Connection, folder: Path | None = None, own: Sequence[Remembered] = ()
) -> dict[str, Looked]:
    """What the server says and what is remembered of each stream. ``own``: by whoever looks.
    Raises BusError."""
    found = {}
    all_marks = [*await remembered(conn, folder), *own]
    for stream in WATCHED:
        seen = await seen_of(conn, stream)
        accepted, at_s, number = await acceptance(conn, stream)
        marks = core.counted(stream, all_marks, accepted, at_s)
        damage = core.held_against(stream, seen, marks, accepted)
        void, _ = await declared_void(conn, stream) if stream == WORKLOADS else (None, 0)
        found[stream] = Looked(stream, seen, accepted, at_s, number, marks, damage, void)
    return found


async def read_through(conn: Connection, looked: Looked) -> list[Damage]:
    """Read all of a stream and say what is wrong with it. Raises BusError, TimeoutError."""
    if looked.seen is None:
        return []
    first = looked.seen.first if looked.stream == ARCHIVE else 1  # it forgets what is old
    start = max(1, first)
    reading = looked.reading(start)

    a_subject: Counter[str] = Counter()

    def take(recorded: Recorded) -> None:
        reading.saw(recorded.sequence, recorded.subject, recorded.data)
        if looked.stream == CONTROL:
            a_subject[recorded.subject] += 1

    await _read(conn, looked.stream, reading, start, take)
    if max(a_subject.values(), default=0) >= CONTROL_A_SUBJECT:
        reading.gaps.clear()  # what was set so often has lost its oldest settings on purpose
        return core.read_through(CONTROL, reading, [])
    return await judged(conn, looked, reading)


async def _read(
    conn: Connection,
    stream: str,
    reading: Reading,
    start: int,
    take: Callable[[Recorded], None],
) -> None:
    """All that the stream has, and of a commit that is just being stored the rest, too."""
    loop = asyncio.get_running_loop()
    wanted, deadline = ALL_OF[stream], loop.time() + WHOLE_WITHIN_S
    await read_all(conn, stream, wanted, take, start=start, limit_s=READ_LIMIT_S)
    while reading.unfinished is not None and loop.time() < deadline:
        await asyncio.sleep(LOOK_S)
        await read_all(conn, stream, wanted, take, start=reading.last + 1, limit_s=READ_LIMIT_S)


async def settled(conn: Connection, looked: Looked, doubt: Doubt) -> list[Damage]:
    """What is wrong with the log of workloads, which was shorter than it is remembered, and is as
    long again. Raises BusError, TimeoutError."""
    for last_try in (False, True):  # the archivist may have been at work: a second pass sees it
        reading = looked.reading(doubt.start, doubt.digests)

        def take(recorded: Recorded, reading: Reading = reading) -> None:
            reading.saw(recorded.sequence, recorded.subject, recorded.data)

        await _read(conn, looked.stream, reading, doubt.start, take)
        found = await judged(conn, looked, reading)
        if last_try or not found:
            return found
    raise AssertionError("the last try answers")


async def all_of(conn: Connection, looked: Looked) -> list[Damage]:
    """What looking has shown and what reading shows, each once. Raises as read_through does."""
    try:
        found = await read_through(conn, looked)
        if found:  # the archivist may have been at work meanwhile: a second pass sees what it did
            found = await read_through(conn, looked)
    except ApiError as error:
        if error.code != NO_STREAM:
            raise
        found = []
    known = {each.missing for each in found if each.missing}
    return [*(each for each in looked.damage if each.missing not in known), *found]


async def newest_digests(
    conn: Connection, looked: Looked, missing: Sequence[Gap]
) -> dict[int, str]:
    """What the newest blocks of the log of workloads hold where these numbers count as lost. Raises
    BusError, TimeoutError."""
    if looked.stream != WORKLOADS or looked.seen is None:
        return {}
    last = looked.seen.last
    start = core.newest_start(last)
    reading = Reading(start, {}, missing)

    def take(recorded: Recorded) -> None:
        if recorded.sequence <= last:
            reading.saw(recorded.sequence, recorded.subject, recorded.data)

    await read_all(conn, WORKLOADS, ALL_OF[WORKLOADS], take, start=start, limit_s=READ_LIMIT_S)
    reading.ends(last)
    return reading.digests()


async def judged(
    conn: Connection, looked: Looked, reading: Reading, *, may_keep: bool = False
) -> list[Damage]:
    """What a pass over a stream says, once all that it had when it was looked at has been seen.
    Raises BusError, TimeoutError."""
    assert looked.seen is not None
    reading.ends(looked.seen.last)
    known = core.heard(looked.accepted.missing) if looked.accepted is not None else ()
    gaps: list[Gap] = core.apart(reading.gaps, known)
    first_known = 0
    if gaps and looked.stream == WORKLOADS:
        found, first_known = await archived(conn, looked.seen.making, may_keep=may_keep)
        found.settle(reading.links)
        gaps = found.numbers.without(gaps)
    return core.read_through(looked.stream, reading, gaps, first_known)


async def with_jobs(
    conn: Connection, looked: Iterable[Looked], damage: list[Damage]
) -> list[Damage]:
    """The same with the open jobs that it touches, as resolvers' snapshots knew them: whose events
    are missing, or whose numbers are another's now, since the log has grown again. Raises BusError,
    TimeoutError."""
    lost = [each for each in damage if each.stream == WORKLOADS]
    if not lost:
        return damage
    services = {mark.service for each in looked for _, mark in each.marks}
    known: dict[str, tuple[int, int]] = {}
    for service in sorted(services):
        if service.startswith(RESOLVER):
            raw = await load(conn, f"resolver-{service.removeprefix(RESOLVER)}")
            try:
                snapshot = _SNAPSHOT.decode((raw or b"").partition(b"\n")[2])
            except UNREADABLE:
                continue
            known |= {
                f"{one.tenant}/{one.id}": (one.sequence, one.submitted_sequence)
                for one in snapshot.open
            }
    replaced = await _replaced(conn, known)
    told = []
    for each in damage:
        if each in lost:
            jobs = {name for name, at in known.items() if core.touches(at, each.missing)}
            jobs |= replaced if each is lost[0] else set()
            jobs |= set(each.jobs)  # it says so itself
            told.append(msgspec.structs.replace(each, jobs=tuple(sorted(jobs))))
        else:
            told.append(each)
    return told


async def _replaced(conn: Connection, known: Mapping[str, tuple[int, int]]) -> set[str]:
    """Which of these jobs had numbers under which something else stands now. Each name with the
    number of its newest event, and of its first."""
    newest = {last: name for name, (last, _) in known.items() if last}
    first = {begun: name for name, (_, begun) in known.items() if begun}
    found: set[str] = set()

    def take(recorded: Recorded) -> None:
        name = newest.get(recorded.sequence)
        if name is not None and not core.is_of(recorded.subject, name):
            found.add(name)
        name = first.get(recorded.sequence)
        if name is not None and not core.is_of(recorded.subject, name, begins=True):
            found.add(name)

    if newest or first:
        await read_all(conn, WORKLOADS, ALL_OF[WORKLOADS], take, limit_s=READ_LIMIT_S)
    return found


async def examine(conn: Connection) -> list[Damage]:
    """All that is wrong with the logs, read to their ends. Raises BusError, TimeoutError."""
    damage: list[Damage] = []
    found = await look(conn)
    for looked in found.values():
        damage += await all_of(conn, looked)
    return await with_jobs(conn, found.values(), damage)

"""Which numbers of WORKLOADS the archive has: those that were taken out of the log on purpose.

Reading a year's archive takes minutes, so what was found is kept as a snapshot with the place up to
which the archive was read, and the next reader begins there. An archive forgets what is old: of
what had left it before any reader came, nobody can say any more whether it was ever archived.
"""

import zlib
from typing import Final

import msgspec

from berthmaster.bus import subjects
from berthmaster.bus.connection import Connection
from berthmaster.bus.follow import Recorded
from berthmaster.bus.read import read_all
from berthmaster.bus.snapshots import load, save
from berthmaster.bus.streams import ARCHIVE
from berthmaster.logcheck.core import LINK, Archived, Link, Numbers
from berthmaster.logcheck.marks import seen_of
from berthmaster.messages.families import UNREADABLE

NAME: Final = "removed-workloads"
READ_LIMIT_S: Final = 3600.0


class _Kept(msgspec.Struct, tag="removed.v1"):
    created: str  # of WORKLOADS
    archive_created: str
    archive_sequence: int
    first_known: int
    numbers: bytes  # compressed, like the next
    decisions: dict[str, bytes]
    links: list[Link]


class _Event(msgspec.Struct):
    sequence: int


class _Story(msgspec.Struct):
    events: list[_Event]


_KEPT: Final = msgspec.msgpack.Decoder(_Kept)
_STORY: Final = msgspec.json.Decoder(_Story)


async def archived(
    conn: Connection, making: str, *, may_keep: bool = False
) -> tuple[Archived, int]:
    """Read what the archive has that is not known yet; and below which number it has forgotten.
    Raises BusError, TimeoutError."""
    kept = await _load(conn, making)
    found = Archived(
        _open(kept.numbers), {c: _open(r) for c, r in kept.decisions.items()}, kept.links
    )
    seen = await seen_of(conn, ARCHIVE)
    if seen is None:
        return found, kept.first_known
    start = kept.archive_sequence + 1 if kept.archive_created == seen.making else 1
    forgot = seen.first > start and seen.messages > 0
    first_known = kept.first_known

    def take(recorded: Recorded) -> None:
        nonlocal forgot, first_known
        try:
            if subjects.is_archived_story(recorded.subject):
                events = _STORY.decode(recorded.data).events
                found.story(event.sequence for event in events)
                if forgot and events:  # stories come in the order of their endings
                    first_known = max(first_known, events[-1].sequence)
                    forgot = False
            else:
                found.decision(LINK.decode(recorded.data))
        except UNREADABLE as error:
            where = {"subject": recorded.subject, "sequence": recorded.sequence}
            conn.log.warning("an archived message cannot be read", **where, why=str(error))

    await read_all(conn, ARCHIVE, [subjects.ALL_ARCHIVE], take, start=start, limit_s=READ_LIMIT_S)
    found.settle()
    if may_keep and seen.last >= start:
        now = _Kept(
            making,
            seen.making,
            seen.last,
            first_known,
            _closed(found.numbers),
            {cell: _closed(numbers) for cell, numbers in found.decisions.items()},
            found.links,
        )
        await save(conn, NAME, msgspec.msgpack.encode(now))
    return found, first_known


def _closed(numbers: Numbers) -> bytes:
    return zlib.compress(bytes(numbers), 1)


def _open(raw: bytes) -> bytes:
    return zlib.decompress(raw) if raw else b""


async def _load(conn: Connection, making: str) -> _Kept:
    nothing = _Kept(making, "", 0, 0, b"", {}, [])
    raw = await load(conn, NAME)
    if raw is None:
        return nothing
    try:
        kept = _KEPT.decode(raw)
    except UNREADABLE:
        return nothing
    return kept if kept.created == making else nothing

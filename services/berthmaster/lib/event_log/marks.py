"""High-water marks of the logs: one per service, stored on the bus beside the leases and in a
folder's files.

See damage.py for an example of a mark.
"""

import os
from pathlib import Path
from typing import Final

import msgspec

from berthmaster.lib.event_log.damage import (
    StreamState,
    by_service,
    damage,
    is_another,
    may_be_removed,
    to_compare,
)
from berthmaster.lib.event_log.workload_log import EventLog, archived_story
from berthmaster.lib.messages.families import LOG_MARKS, UNREADABLE, encode
from berthmaster.lib.messages.records import LogMark, StreamMark
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import ApiError
from berthmaster.lib.nats.stream_reads import last_message, message_at
from berthmaster.lib.nats.streams import (
    CONTROL,
    LEASES,
    NO_STREAM,
    RECOVERING,
    REPLACES,
    WORKLOADS,
    find_stream,
)
from berthmaster.lib.runtime.log import LogLike

WATCHED: Final = (WORKLOADS, CONTROL)


class _Subjects(msgspec.Struct):
    subjects: dict[str, int] | None = None


class _Info(msgspec.Struct):
    state: _Subjects


_INFO: Final = msgspec.json.Decoder(_Info)


async def read_stream_state(conn: Connection, stream: str) -> StreamState | None:
    """Return the state of a stream as reported by the server; None = not found. Raises BusError."""
    info = await find_stream(conn, stream)
    if info is None:
        return None
    return StreamState(
        incarnation=info.making,
        last=info.state.last_seq,
        replaces=frozenset(info.metadata.get(REPLACES, "").split()),
        recovering=RECOVERING in info.metadata,
        lost_bytes=info.state.lost.bytes if info.state.lost is not None else 0,
    )


async def read_marks(conn: Connection, folder: Path | None = None) -> list[LogMark]:
    """Return every readable mark of the bus and the folder. Raises BusError."""
    found: list[LogMark] = []
    query = {"subjects_filter": subjects.ALL_LOG_MARKS}
    try:
        raw = await conn.api(f"STREAM.INFO.{LEASES}", query)
    except ApiError as error:
        if error.code != NO_STREAM:
            raise
        raw = b'{"state":{}}'
    for subject in _INFO.decode(raw).state.subjects or {}:
        message = await last_message(conn, LEASES, subject)
        if message is not None:
            _take(found, conn.log, message.data)
    for content in _read_files(folder) if folder is not None else ():
        _take(found, conn.log, content)
    return found


def _read_files(folder: Path, names: str = "log-*.json") -> list[bytes]:
    return [file.read_bytes() for file in sorted(folder.glob(names))]


def _write_file(folder: Path, service: str, raw: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"log-{service}.json"
    beside = file.with_suffix(f".{os.getpid()}.new")
    beside.write_bytes(raw)
    beside.replace(file)


def _take(found: list[LogMark], log: LogLike, raw: bytes) -> None:
    try:
        found.append(LOG_MARKS.decode(raw))
    except UNREADABLE as error:
        log.warning("log mark unreadable", why=str(error))


async def store_mark(conn: Connection, mark: LogMark, folder: Path | None) -> None:
    """Replace the service's mark. Raises BusError, OSError."""
    raw = encode(mark)
    if folder is not None:
        _write_file(folder, mark.service, raw)
    await conn.store(subjects.log_mark(mark.service), raw)


async def restore_mark(conn: Connection, service: str, folder: Path) -> None:
    """Restore a service's mark from the folder to a bus that has lost the mark. `berth recover`
    reads the mark to find the replaced log. Raises BusError, OSError.
    """
    for raw in _read_files(folder, f"log-{service}.json"):
        if await last_message(conn, LEASES, subjects.log_mark(service)) is None:
            await conn.store(subjects.log_mark(service), raw)


async def check(
    conn: Connection, stream: str, marks: list[tuple[StreamMark, str]]
) -> tuple[StreamState | None, str]:
    """Return a stream's state, and the damage by these marks; "" = undamaged. Raises BusError."""
    seen = await read_stream_state(conn, stream)
    if (why := damage(stream, seen, marks)) or seen is None:
        return seen, why
    for mark in to_compare(stream, seen, marks):
        there = await message_at(conn, stream, mark.sequence)
        if there is None:
            if not await _was_removed(conn, mark):
                return seen, f"{stream} has lost message {mark.sequence}, which nobody removed"
        elif is_another(mark, there.subject, there.data):
            return seen, f"{stream} has another message under {mark.sequence} than it had"
    return seen, ""


async def _was_removed(conn: Connection, mark: StreamMark) -> bool:
    """Return whether the archivist may have removed a missing message. Raises BusError."""
    if mark.stream != WORKLOADS:
        return False
    if subjects.is_decision(mark.subject):
        newer = await last_message(conn, WORKLOADS, mark.subject)
        return may_be_removed(mark, newer.subject if newer is not None else "")
    place = subjects.parse_workload_event(mark.subject)
    left = await EventLog(conn).counts(place.tenant, place.id)
    if left:
        return any(may_be_removed(mark, subject) for subject in left)
    return bool(await archived_story(conn, place.tenant, place.id))


async def all_damage(conn: Connection) -> list[str]:
    """Return the damage of the logs by all marks on the bus. Raises BusError."""
    marks = by_service(await read_marks(conn))
    checked = [await check(conn, stream, marks) for stream in WATCHED]
    return [why for _, why in checked if why]

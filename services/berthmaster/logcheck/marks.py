"""Where marks are kept: on the bus beside the leases, one a service, and in a file if there is a
folder for it. What people accepted stands among what operators set.
"""

import os
from pathlib import Path
from typing import Final

import msgspec

from berthmaster.bus import subjects
from berthmaster.bus.connection import Connection
from berthmaster.bus.control import read_control
from berthmaster.bus.errors import ApiError
from berthmaster.bus.log import last_message, next_message
from berthmaster.bus.streams import CONTROL, LEASES, WORKLOADS, stream_info
from berthmaster.lifecycle.flaws import Flaws
from berthmaster.lifecycle.flaws import flaws_of as flaws
from berthmaster.logcheck.core import Loss, Remembered, Seen, heard
from berthmaster.messages.control import ControlFact, LogAccepted, MessagesVoid
from berthmaster.messages.families import LOG_MARKS, UNREADABLE, encode
from berthmaster.messages.records import LogMark
from berthmaster.runtime.log import LogLike

NO_STREAM: Final = 10059


class _Subjects(msgspec.Struct):
    subjects: dict[str, int] | None = None


class _Info(msgspec.Struct):
    state: _Subjects


_INFO: Final = msgspec.json.Decoder(_Info)


async def seen_of(conn: Connection, stream: str) -> Seen | None:
    """What the server says of a stream; None = there is none. Raises BusError."""
    try:
        info = await stream_info(conn, stream)
    except ApiError as error:
        if error.code == NO_STREAM:
            return None
        raise
    state = info.state
    lost = state.lost.bytes if state.lost is not None else 0
    return Seen(info.making, state.first_seq, state.last_seq, state.messages, lost)


async def remembered(conn: Connection, folder: Path | None = None) -> list[Remembered]:
    """Every mark that can be read, of the bus and of the folder. Raises BusError."""
    found: list[Remembered] = []
    wanted = {"subjects_filter": subjects.ALL_LOG_MARKS}
    try:
        raw = await conn.api(f"STREAM.INFO.{LEASES}", wanted)
    except ApiError as error:
        if error.code != NO_STREAM:
            raise
        raw = b'{"state":{}}'
    for subject in _INFO.decode(raw).state.subjects or {}:
        message = await last_message(conn, LEASES, subject)
        if message is not None:
            _take(found, conn.log, message.data, message.stored_at_s)
    if folder is not None:
        for kept in _in_folder(folder):
            _take(found, conn.log, kept, None)
    return found


def _in_folder(folder: Path) -> list[bytes]:
    return [file.read_bytes() for file in sorted(folder.glob("log-*.json"))]


def _into_folder(folder: Path, service: str, raw: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"log-{service}.json"
    beside = file.with_suffix(f".{os.getpid()}.new")
    beside.write_bytes(raw)
    beside.replace(file)


def _take(found: list[Remembered], log: LogLike, raw: bytes, at_s: float | None) -> None:
    try:
        mark = LOG_MARKS.decode(raw)
    except UNREADABLE as error:
        log.warning("a mark of the logs cannot be read", why=str(error))
        return
    found.append(Remembered(mark, mark.at_s if at_s is None else at_s))


async def keep(conn: Connection, mark: LogMark, folder: Path | None) -> None:
    """Remember it in place of the one before. Raises BusError, OSError."""
    raw = encode(mark)
    if folder is not None:
        _into_folder(folder, mark.service, raw)
    await conn.store(subjects.log_mark(mark.service), raw)


async def tell_again(conn: Connection, service: str, folder: Path) -> None:
    """What the folder remembers of a service goes to a bus that has lost it, where people and other
    services look. Raises BusError, OSError."""
    file = folder / f"log-{service}.json"
    if file.exists() and await last_message(conn, LEASES, subjects.log_mark(service)) is None:
        await conn.store(subjects.log_mark(service), file.read_bytes())


async def flaws_of(conn: Connection, stream: str) -> Flaws:
    """What people have said of a stream. Raises BusError."""
    fact, _, _ = await acceptance(conn, stream)
    void, _ = await declared_void(conn, stream)
    return flaws(
        fact.missing if fact is not None else (), void.sequences if void is not None else ()
    )


async def acceptance(conn: Connection, stream: str) -> tuple[LogAccepted | None, float, int]:
    """What a person accepted of a stream last, when that was stored, and under which number of
    CONTROL. Raises BusError."""
    fact, at_s, sequence = await _set_last(conn, subjects.log_accepted(stream))
    return (fact, at_s, sequence) if isinstance(fact, LogAccepted) else (None, 0.0, sequence)


async def accepted_losses(conn: Connection) -> list[Loss]:
    """All that people ever accepted as lost of WORKLOADS, the oldest first. Raises BusError."""
    found: list[Loss] = []
    subject, start = subjects.log_accepted(WORKLOADS), 1
    while (message := await next_message(conn, CONTROL, subject, start)) is not None:
        start = message.sequence + 1
        try:
            fact = read_control(subject, message.data)
        except UNREADABLE as error:
            conn.log.warning("what was set cannot be read", subject=subject, why=str(error))
            continue
        if isinstance(fact, LogAccepted):
            found.append(
                Loss(fact.created, message.stored_at_s, fact.sequence, heard(fact.missing))
            )
    return found


async def declared_void(conn: Connection, stream: str) -> tuple[MessagesVoid | None, int]:
    """Which messages of a stream count for nothing, and under which number of CONTROL the last
    such declaration stands, of this making of the stream or another. Raises BusError."""
    fact, _, sequence = await _set_last(conn, subjects.void(stream))
    if not isinstance(fact, MessagesVoid):
        return None, sequence
    seen = await seen_of(conn, stream)
    return (fact if seen is not None and fact.created == seen.making else None), sequence


async def _set_last(conn: Connection, subject: str) -> tuple[ControlFact | None, float, int]:
    try:
        message = await last_message(conn, CONTROL, subject)
    except ApiError as error:
        if error.code != NO_STREAM:
            raise
        return None, 0.0, 0
    if message is None:
        return None, 0.0, 0
    try:
        return read_control(subject, message.data), message.stored_at_s, message.sequence
    except UNREADABLE as error:
        conn.log.warning("what was set cannot be read", subject=subject, why=str(error))
        return None, 0.0, message.sequence

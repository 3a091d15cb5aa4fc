"""Makes the streams of an empty bus from a backup, and proves what came back.

Sequences, times and gaps are those of the backup, so that guards and links between events hold.
Consumers are not kept: services make theirs anew and hear everything again, which is safe. What had
left the log on purpose, and is in the backup's archive, stays out of it.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from berthmaster.backup import folder as files
from berthmaster.backup.core import BrokenBackup, Record, stream_bytes, written
from berthmaster.backup.folder import KEPT, KeptStream, Manifest
from berthmaster.backup.take import READ_LIMIT_S
from berthmaster.bus import subjects
from berthmaster.bus.acks import stored_sequence
from berthmaster.bus.connection import Connection
from berthmaster.bus.control import read_control
from berthmaster.bus.durables import DURABLES
from berthmaster.bus.errors import ApiError, BusError, NoAnswer
from berthmaster.bus.follow import Recorded
from berthmaster.bus.read import read_all
from berthmaster.bus.streams import (
    ARCHIVE,
    CONTROL,
    MAKING,
    WORKLOADS,
    ensure_durable,
    new_making,
)
from berthmaster.lifecycle.flaws import Gap
from berthmaster.logcheck import core
from berthmaster.logcheck.core import LINK, Archived, Numbers
from berthmaster.logcheck.examine import WATCHED, Looked, look, newest_digests, read_through
from berthmaster.logcheck.marks import NO_STREAM, acceptance
from berthmaster.messages.control import LogAccepted
from berthmaster.messages.families import ARCHIVED_STORIES, UNREADABLE, encode

CHUNK_BYTES: Final = 256 * 1024
SETTLE_S: Final = 30.0  # several servers agree on what is new in their time
LOOK_S: Final = 0.1
NOBODY: Final = "nobody listens"
END_LIMIT_S: Final = 600.0  # in which a server must have built the stream


class NotEmpty(Exception):
    """There is something on the bus already; the text names it."""


class NotProved(Exception):
    """What came back is not what was in the backup; the text says what differs."""


class Restored(msgspec.Struct, kw_only=True):
    """What came back of one stream, as it was read again."""

    stream: str
    messages: int
    last: int
    digest: str  # of numbers, subjects and payloads in their order


class _Info(msgspec.Struct):
    config: dict[str, Any]
    state: "_State"


class _State(msgspec.Struct):
    messages: int = 0
    last_seq: int = 0


class _Deliver(msgspec.Struct):
    deliver_subject: str


class _Error(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _Answer(msgspec.Struct):
    error: _Error | None = None


_INFO: Final = msgspec.json.Decoder(_Info)
_DELIVER: Final = msgspec.json.Decoder(_Deliver)
_ANSWER: Final = msgspec.json.Decoder(_Answer)


class _Sum:
    """What is expected of a stream, or was read of it."""

    def __init__(self) -> None:
        self.messages = 0
        self.first = 0
        self._hash = hashlib.blake2b(digest_size=16)

    def take(self, subject: str, sequence: int, data: bytes) -> None:
        self.first = self.first or sequence
        self.messages += 1
        self._hash.update(b"%d %s %d " % (sequence, subject.encode(), len(data)))
        self._hash.update(data)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


async def restore(conn: Connection, folder: Path) -> list[Restored]:
    """All streams of the backup. Raises NotEmpty, NotProved, BrokenBackup, OSError, BusError,
    TimeoutError."""
    manifest = files.load(folder)
    if manifest is None:
        raise BrokenBackup(f"{folder} holds no backup: there is no {files.MANIFEST}")
    expected = {name: _expected(folder, manifest, name) for name in manifest.streams}
    there = {name: await _there(conn, name) for name in manifest.streams}
    done = []
    for name, kept in manifest.streams.items():
        live = there[name]
        if live is not None:
            await conn.api(f"STREAM.DELETE.{name}")
        config = dict(live if live is not None else kept.config)
        config["metadata"] = {**(config.get("metadata") or {}), MAKING: new_making()}
        await _make(conn, folder, manifest, name, config, expected[name])
        done.append(await _proved(conn, name, kept, expected[name]))
    for durable in DURABLES:
        if durable.stream in manifest.streams:  # its consumers went with the empty stream
            await ensure_durable(conn, durable)
    for looked in (await look(conn)).values():
        await _accept(conn, looked)
    return done


async def _there(conn: Connection, name: str) -> dict[str, Any] | None:
    """The configuration of an empty stream; None = there is none. Raises NotEmpty."""
    try:
        info = _INFO.decode(await conn.api(f"STREAM.INFO.{name}"))
    except ApiError as error:
        if error.code == NO_STREAM:
            return None
        raise
    if info.state.last_seq:
        raise NotEmpty(
            f"stream {name} has {info.state.messages} messages up to {info.state.last_seq}; "
            "a backup is restored into an empty bus only"
        )
    return info.config


def _expected(folder: Path, manifest: Manifest, name: str) -> _Sum:
    total = _Sum()
    for record in _wanted(folder, manifest, name):
        total.take(record.subject, record.sequence, record.data)
    return total


def _wanted(folder: Path, manifest: Manifest, name: str) -> Iterator[Record]:
    """The messages that the stream shall have."""
    kept = manifest.streams[name]
    left = _left_on_purpose(folder, manifest) if name == WORKLOADS else None
    for segment in kept.segments:
        for record in files.read_segment(folder, name, segment):
            if name == ARCHIVE and record.sequence < kept.first:
                continue  # too old for it by then
            if left is None or not left(record.sequence):
                yield record


def _left_on_purpose(folder: Path, manifest: Manifest) -> Callable[[int], bool]:
    """Tells of a number of the log whether it was taken out and is in the backup's archive, or was
    lost and that was accepted."""
    kept = manifest.streams[WORKLOADS]

    def in_log(number: int) -> bool:
        # A number takes memory up to its size, and one that the log never gave explains nothing.
        return 0 <= number <= kept.last

    removed = Numbers(files.read_bits(folder, WORKLOADS, kept.last))
    archived = Archived()
    if ARCHIVE in manifest.streams:
        for segment in manifest.streams[ARCHIVE].segments:
            for record in files.read_segment(folder, ARCHIVE, segment):
                try:
                    if subjects.is_archived_story(record.subject):
                        story = ARCHIVED_STORIES.decode(record.data)
                        archived.story(filter(in_log, (one.sequence for one in story.events)))
                    elif in_log((link := LINK.decode(record.data)).number) and in_log(link.after):
                        archived.decision(link)
                except UNREADABLE:
                    continue  # it explains nothing, so what it was about comes back
    for segment in kept.segments:
        for record in files.read_segment(folder, WORKLOADS, segment):
            if subjects.is_decision(record.subject):
                try:
                    link = LINK.decode(record.data)
                    archived.links += [link] if in_log(link.after) else []
                except UNREADABLE:
                    continue
    archived.settle()
    accepted = _accepted(folder, manifest)

    def left(number: int) -> bool:
        gone = removed.has(number) or number < kept.first
        return (gone and archived.numbers.has(number)) or core.within(number, accepted)

    return left


def _accepted(folder: Path, manifest: Manifest) -> tuple[Gap, ...]:
    """What a person accepted as lost: what came later was decided without it, so it stays away."""
    gaps: tuple[Gap, ...] = ()
    control = manifest.streams.get(CONTROL)
    for segment in control.segments if control is not None else ():
        for record in files.read_segment(folder, CONTROL, segment):
            if record.subject == subjects.log_accepted(WORKLOADS):
                try:
                    fact = read_control(record.subject, record.data)
                except UNREADABLE:
                    continue
                gaps = core.heard(fact.missing) if isinstance(fact, LogAccepted) else gaps
    return gaps


async def _make(
    conn: Connection,
    folder: Path,
    manifest: Manifest,
    name: str,
    config: dict[str, Any],
    expected: _Sum,
) -> None:
    kept = manifest.streams[name]
    state = {"messages": expected.messages, "first_seq": expected.first, "last_seq": kept.last}
    raw = await conn.api(f"STREAM.RESTORE.{name}", {"config": config, "state": state})
    where = _DELIVER.decode(raw).deliver_subject
    now_ns = int(conn.now() * 1e9)
    messages = (written(record) for record in _wanted(folder, manifest, name))
    waiting = bytearray()
    patience_s = SETTLE_S
    for frame in stream_bytes(msgspec.json.encode(state), now_ns, messages):
        waiting += frame
        while len(waiting) >= CHUNK_BYTES:
            await _send(conn, name, where, bytes(waiting[:CHUNK_BYTES]), patience_s)
            patience_s = 0.0
            del waiting[:CHUNK_BYTES]
    if waiting:
        await _send(conn, name, where, bytes(waiting), patience_s)
    reply = await conn.request(where, b"", timeout_s=END_LIMIT_S)
    _check(name, reply.data)


async def _send(conn: Connection, name: str, where: str, chunk: bytes, patience_s: float) -> None:
    deadline = asyncio.get_running_loop().time() + patience_s
    while True:
        try:
            reply = await conn.request(where, chunk, timeout_s=30.0)
        except NoAnswer as error:  # another server takes it, and ours has not heard of that yet
            if not str(error).startswith(NOBODY) or asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(LOOK_S)
        else:
            if reply.data:
                _check(name, reply.data)
            return


def _check(name: str, raw: bytes) -> None:
    error = _ANSWER.decode(raw).error
    if error is not None:
        raise ApiError(error.err_code, f"stream {name}: {error.description}")


async def _proved(conn: Connection, name: str, kept: KeptStream, expected: _Sum) -> Restored:
    """What came back, read again; several servers may need a moment to have all of it."""
    deadline = asyncio.get_running_loop().time() + SETTLE_S
    while True:
        info = await _settled(conn, name, kept.last)
        found = _Sum()
        await _read(conn, name, found)
        differs = [
            f"stream {name} has {is_} {what}, the backup {wanted}"
            for what, is_, wanted in (
                ("messages by its own count", info.state.messages, expected.messages),
                ("messages that can be read", found.messages, expected.messages),
                ("as its last sequence", info.state.last_seq, kept.last),
                ("as its digest", found.digest, expected.digest),
            )
            if is_ != wanted
        ]
        if not differs:
            return Restored(
                stream=name, messages=found.messages, last=info.state.last_seq, digest=found.digest
            )
        if asyncio.get_running_loop().time() > deadline:
            raise NotProved(differs[0])
        await asyncio.sleep(LOOK_S)


async def _read(conn: Connection, name: str, into: _Sum) -> None:
    def take(recorded: Recorded) -> None:
        into.take(recorded.subject, recorded.sequence, recorded.data)

    await read_all(conn, name, KEPT[name], take, limit_s=READ_LIMIT_S)


async def _settled(conn: Connection, name: str, last: int) -> _Info:
    """What the server says of a stream, once it has it whole, or that takes too long."""
    deadline = asyncio.get_running_loop().time() + SETTLE_S
    while True:
        try:
            info = _INFO.decode(await conn.api(f"STREAM.INFO.{name}"))
            if info.state.last_seq == last or asyncio.get_running_loop().time() > deadline:
                return info
        except BusError:
            if asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(LOOK_S)


async def _accept(conn: Connection, looked: Looked) -> None:
    """What is remembered elsewhere of the streams before counts no more; nor do gaps of theirs."""
    if looked.seen is None or looked.stream not in WATCHED:
        return
    known, _, _ = await acceptance(conn, looked.stream)
    before = core.heard(known.missing) if known is not None else ()
    damage = await read_through(conn, looked)
    gaps = core.together([*before, *(gap for each in damage for gap in each.missing)])
    fact = LogAccepted(
        stream=looked.stream,
        created=looked.seen.making,
        sequence=looked.seen.last,
        missing=core.told(core.up_to(gaps, looked.seen.last)),
        digests=await newest_digests(conn, looked, gaps),
        reason="restored from a backup",
        set_by="berth restore",
        set_at_s=conn.now(),
    )
    stored_sequence((await conn.request(subjects.log_accepted(looked.stream), encode(fact))).data)

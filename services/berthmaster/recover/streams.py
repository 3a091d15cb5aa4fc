"""Puts a new stream in the place of an old one, which is kept under another name.

Each step can be cut short and done again. The old stream is copied by a mirror, which becomes a
stream of its own once it has all. The new one is restored in one piece, so that it is there whole
or not at all. In between there is no stream of that name: services wait, and a second run goes on
from the copy.
"""

import asyncio
import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from berthmaster.backup.core import Record, stream_bytes, written
from berthmaster.bus.connection import Connection
from berthmaster.bus.durables import DURABLES
from berthmaster.bus.errors import ApiError, BusError, NoAnswer
from berthmaster.bus.read import read_all
from berthmaster.bus.recorded import Recorded
from berthmaster.bus.streams import FOLLOWED, ensure_durable, making_of, stream_info
from berthmaster.logcheck.marks import NO_STREAM

COPY_LIMIT_S: Final = 3600.0
CHUNK_BYTES: Final = 256 * 1024
STILL_S: Final = 5.0  # without a new message, after which the stream itself is asked for one
SETTLE_S: Final = 30.0  # several servers agree on what is new in their time
LOOK_S: Final = 0.1
NOBODY: Final = "nobody listens"
END_LIMIT_S: Final = 600.0  # in which a server must have built the stream


class NotProved(Exception):
    """The stream that was made is not what was to be made; the text says what differs."""


class NotCopied(Exception):
    """The old stream could not be copied in time; the text says how far it came."""


class _Mirror(msgspec.Struct):
    lag: int = 0
    active: int = -1


class _State(msgspec.Struct):
    messages: int = 0
    first_seq: int = 0
    last_seq: int = 0


class _Info(msgspec.Struct):
    created: str
    config: dict[str, Any]
    state: _State
    mirror: _Mirror | None = None


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


def old_name(stream: str, incarnation: str) -> str:
    """Under which name an old stream is kept."""
    return f"{stream}-OLD-{re.sub('[^A-Za-z0-9]', '', incarnation)[:40]}"


async def info_of(conn: Connection, stream: str) -> _Info | None:
    """What the server says of a stream; None = there is none. Raises BusError."""
    try:
        return _INFO.decode(await conn.api(f"STREAM.INFO.{stream}"))
    except ApiError as error:
        if error.code == NO_STREAM:
            return None
        raise


async def keep_old(conn: Connection, stream: str) -> str:
    """Copy a stream to the name of its incarnation; that name. Raises NotCopied, BusError."""
    live = await info_of(conn, stream)
    if live is None:
        raise ValueError(f"there is no stream {stream}")
    name = old_name(stream, making_of(live.created, live.config.get("metadata")))
    copy = await info_of(conn, name)
    if copy is not None and copy.config.get("mirror") is None:
        return name  # an earlier run has come so far
    if copy is None:
        config = {
            "name": name,
            "mirror": {"name": stream},
            "retention": "limits",
            "storage": live.config["storage"],
            "num_replicas": live.config["num_replicas"],
            "allow_direct": True,
            "metadata": live.config.get("metadata") or {},
        }
        await conn.api(f"STREAM.CREATE.{name}", config, timeout_s=SETTLE_S)
    copy = await _copied(conn, stream, name, live.state.last_seq)
    config = {k: v for k, v in copy.config.items() if k not in ("mirror", "mirror_direct")}
    await conn.api(f"STREAM.UPDATE.{name}", config, timeout_s=SETTLE_S)
    return name


async def _copied(conn: Connection, stream: str, name: str, last: int) -> _Info:
    """Wait until the mirror has all that can be read up to a sequence. How many messages the server
    counts tells nothing: it counts damaged ones, too. Raises NotCopied, BusError."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + COPY_LIMIT_S
    have, look_s = -1, 0.0
    while True:
        copy = await info_of(conn, name)
        if copy is not None:
            if copy.state.last_seq >= last:
                return copy
            if copy.state.last_seq > have:
                have, look_s = copy.state.last_seq, loop.time() + STILL_S
            elif loop.time() > look_s:
                if not await _is_more(conn, stream, have + 1):
                    return copy
                look_s = loop.time() + STILL_S
        if loop.time() > deadline:
            raise NotCopied(f"{name} ends at message {have}, and {stream} at {last}")
        await asyncio.sleep(LOOK_S)


async def _is_more(conn: Connection, stream: str, start: int) -> bool:
    """Whether the server can read any message from a sequence on."""
    try:
        await conn.api(f"STREAM.MSG.GET.{stream}", {"seq": start, "next_by_subj": ">"})
    except ApiError:
        return False
    return True


async def replace(
    conn: Connection,
    stream: str,
    config: dict[str, Any],
    messages: Sequence[tuple[str, bytes]],
    first: int,
) -> None:
    """Delete the stream, and make it with these messages, subject and content, from sequence
    ``first`` on. Raises NotProved, BusError, TimeoutError."""
    now_ns = int(conn.now() * 1e9)
    records = [
        Record(subject, first + number, now_ns, data)
        for number, (subject, data) in enumerate(messages)
    ]
    if await info_of(conn, stream) is not None:
        await conn.api(f"STREAM.DELETE.{stream}", timeout_s=SETTLE_S)
    if records:
        await _restore(conn, stream, config, records)
    else:
        made = config | {"first_seq": first}
        await conn.api(f"STREAM.CREATE.{stream}", made, timeout_s=SETTLE_S)
    await _prove(conn, stream, records, first)
    for durable in DURABLES:
        if durable.stream == stream:  # its consumers went with the old stream
            await ensure_durable(conn, durable)


async def _restore(
    conn: Connection, stream: str, config: dict[str, Any], records: Sequence[Record]
) -> None:
    state = {
        "messages": len(records),
        "first_seq": records[0].sequence,
        "last_seq": records[-1].sequence,
    }
    raw = await conn.api(f"STREAM.RESTORE.{stream}", {"config": config, "state": state})
    where = _DELIVER.decode(raw).deliver_subject
    now_ns = int(conn.now() * 1e9)
    waiting = bytearray()
    patience_s = SETTLE_S
    for frame in stream_bytes(msgspec.json.encode(state), now_ns, map(written, records)):
        waiting += frame
        while len(waiting) >= CHUNK_BYTES:
            await _send(conn, stream, where, bytes(waiting[:CHUNK_BYTES]), patience_s)
            patience_s = 0.0
            del waiting[:CHUNK_BYTES]
    if waiting:
        await _send(conn, stream, where, bytes(waiting), patience_s)
    reply = await conn.request(where, b"", timeout_s=END_LIMIT_S)
    _check(stream, reply.data)


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


async def _prove(conn: Connection, stream: str, records: Sequence[Record], first: int) -> None:
    """Read the stream again; several servers may need a moment to have all of it. Raises
    NotProved, BusError, TimeoutError."""
    wanted = (first + len(records) - 1, _digest((r.subject, r.sequence, r.data) for r in records))
    deadline = asyncio.get_running_loop().time() + SETTLE_S
    while True:
        try:
            there: list[tuple[str, int, bytes]] = []

            def take(recorded: Recorded, there: list[tuple[str, int, bytes]] = there) -> None:
                there.append((recorded.subject, recorded.sequence, recorded.data))

            last = (await stream_info(conn, stream)).state.last_seq
            await read_all(conn, stream, FOLLOWED[stream], take, start=first)
            found = (last, _digest(there))
            if found == wanted:
                return
            why = f"stream {stream} ends at {found[0]} with digest {found[1]}; right is {wanted}"
        except BusError as error:
            why = str(error)
        if asyncio.get_running_loop().time() > deadline:
            raise NotProved(why)
        await asyncio.sleep(LOOK_S)


def _digest(messages: Iterable[tuple[str, int, bytes]]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for subject, sequence, data in messages:
        digest.update(f"{sequence} {subject} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()

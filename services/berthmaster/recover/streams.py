"""Puts a new stream in the place of an old one, which is kept under another name.

Each step can be cut short and done again. The old stream is copied by a mirror, which becomes a
stream of its own once it has all. Until the new one is complete, its metadata says that it is being
built: services wait, and a second run deletes it and goes on from the copy.
"""

import asyncio
import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from berthmaster.bus.connection import Connection
from berthmaster.bus.durables import DURABLES
from berthmaster.bus.errors import ApiError, BusError
from berthmaster.bus.read import read_all
from berthmaster.bus.recorded import Recorded
from berthmaster.bus.streams import (
    BUILDING,
    FOLLOWED,
    RECOVERING,
    ensure_durable,
    making_of,
    stream_info,
)
from berthmaster.logcheck.marks import NO_STREAM

COPY_LIMIT_S: Final = 3600.0
STILL_S: Final = 5.0  # without a new message, after which the stream itself is asked for one
SETTLE_S: Final = 30.0  # several servers agree on what is new in their time
LOOK_S: Final = 0.1
LAST_SEQUENCE: Final = "Nats-Expected-Last-Sequence"


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

    @property
    def metadata(self) -> dict[str, str]:
        return self.config.get("metadata") or {}

    @property
    def unfinished(self) -> bool:
        """Whether a run that built this one was cut short."""
        return BUILDING in self.metadata


_INFO: Final = msgspec.json.Decoder(_Info)


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
    name = old_name(stream, making_of(live.created, live.metadata))
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
            "metadata": live.metadata,
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
    if await info_of(conn, stream) is not None:
        await conn.api(f"STREAM.DELETE.{stream}", timeout_s=SETTLE_S)
    unfinished = config["metadata"] | {RECOVERING: "yes", BUILDING: "yes"}
    # Nobody hears of a message that a second run may delete.
    made = {k: v for k, v in config.items() if k != "republish"}
    made |= {"metadata": unfinished, "first_seq": first}
    await conn.api(f"STREAM.CREATE.{stream}", made, timeout_s=SETTLE_S)
    for sequence, (subject, data) in enumerate(messages, first):
        headers = {LAST_SEQUENCE: str(sequence - 1)}
        await conn.store(subject, data, timeout_s=SETTLE_S, headers=headers)
    await _prove(conn, stream, messages, first)
    for durable in DURABLES:
        if durable.stream == stream:  # its consumers went with the old stream
            await ensure_durable(conn, durable)
    whole = config | {"first_seq": first}
    await conn.api(f"STREAM.UPDATE.{stream}", whole, timeout_s=SETTLE_S)


async def _prove(
    conn: Connection, stream: str, messages: Sequence[tuple[str, bytes]], first: int
) -> None:
    """Read the stream again; several servers may need a moment to have all of it. Raises
    NotProved, BusError, TimeoutError."""
    numbered = ((subject, number, data) for number, (subject, data) in enumerate(messages, first))
    wanted = (first + len(messages) - 1, _digest(numbered))
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

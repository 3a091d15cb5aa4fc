"""Replaces a stream by a new one, and keeps the old one under another name.

Each step can be interrupted and repeated. A mirror copies the old stream, and becomes a normal
stream once complete. Until the new stream is complete, its metadata marks it as unfinished:
services wait, and a second run deletes it and continues from the copy.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Final

from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.durables import DURABLES
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.nats.stream_messages import Recorded
from berthmaster.lib.nats.stream_reads import next_message, read_all
from berthmaster.lib.nats.streams import (
    BUILDING,
    FOLLOWED,
    RECOVERING,
    StreamInfo,
    ensure_durable,
    find_stream,
    stream_info,
)

COPY_LIMIT_S: Final = 3600.0
STILL_S: Final = 5.0  # seconds without a new message, after which the stream is queried for one
SETTLE_S: Final = 30.0  # seconds for several servers to agree on a change
LOOK_S: Final = 0.1
LAST_SEQUENCE: Final = "Nats-Expected-Last-Sequence"


class NotProved(Exception):
    """The new stream differs from the planned one. The text names the difference."""


class NotCopied(Exception):
    """The old stream could not be copied in time. The text has the progress."""


def old_name(stream: str, incarnation: str) -> str:
    """Return the new name of an old stream."""
    return f"{stream}-OLD-{re.sub('[^A-Za-z0-9]', '', incarnation)[:40]}"


async def keep_old(conn: Connection, stream: str) -> str:
    """Copy a stream to the name of its incarnation; return that name. Raises NotCopied,
    BusError."""
    live = await find_stream(conn, stream)
    if live is None:
        raise ValueError(f"there is no stream {stream}")
    name = old_name(stream, live.making)
    copy = await find_stream(conn, name)
    if copy is not None and copy.config.get("mirror") is None:
        return name  # an earlier run has completed the copy
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


async def _copied(conn: Connection, stream: str, name: str, last: int) -> StreamInfo:
    """Wait until the mirror has every readable message up to a sequence.

    The server's message count is useless here, because it includes damaged messages. Raises
    NotCopied, BusError.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + COPY_LIMIT_S
    have, look_s = -1, 0.0
    while True:
        copy = await find_stream(conn, name)
        if copy is not None:
            if copy.state.last_seq >= last:
                return copy
            if copy.state.last_seq > have:
                have, look_s = copy.state.last_seq, loop.time() + STILL_S
            elif loop.time() > look_s:
                if await next_message(conn, stream, ">", have + 1) is None:
                    return copy
                look_s = loop.time() + STILL_S
        if loop.time() > deadline:
            raise NotCopied(f"{name} ends at message {have}, and {stream} at {last}")
        await asyncio.sleep(LOOK_S)


async def replace(
    conn: Connection,
    stream: str,
    config: dict[str, Any],
    messages: Sequence[tuple[str, bytes]],
    first: int,
) -> None:
    """Delete the stream, and create it with these messages (subject, content) from ``first`` on.

    Raises NotProved, BusError, TimeoutError.
    """
    if await find_stream(conn, stream) is not None:
        await conn.api(f"STREAM.DELETE.{stream}", timeout_s=SETTLE_S)
    unfinished = config["metadata"] | {RECOVERING: "yes", BUILDING: "yes"}
    # Do not republish a message that a second run may delete.
    made = {k: v for k, v in config.items() if k != "republish"}
    made |= {"metadata": unfinished, "first_seq": first}
    await conn.api(f"STREAM.CREATE.{stream}", made, timeout_s=SETTLE_S)
    for sequence, (subject, data) in enumerate(messages, first):
        headers = {LAST_SEQUENCE: str(sequence - 1)}
        await conn.store(subject, data, timeout_s=SETTLE_S, headers=headers)
    await _prove(conn, stream, messages, first)
    for durable in DURABLES:
        if durable.stream == stream:  # its consumers were deleted with the old stream
            await ensure_durable(conn, durable)
    whole = config | {"first_seq": first}
    await conn.api(f"STREAM.UPDATE.{stream}", whole, timeout_s=SETTLE_S)


async def _prove(
    conn: Connection, stream: str, messages: Sequence[tuple[str, bytes]], first: int
) -> None:
    """Read the stream again and compare; several servers may need a moment.

    Raises NotProved, BusError, TimeoutError.
    """
    wanted = [(subject, number, data) for number, (subject, data) in enumerate(messages, first)]
    end = first + len(messages) - 1
    deadline = asyncio.get_running_loop().time() + SETTLE_S
    while True:
        try:
            there: list[tuple[str, int, bytes]] = []

            def take(recorded: Recorded, there: list[tuple[str, int, bytes]] = there) -> None:
                there.append((recorded.subject, recorded.sequence, recorded.data))

            last = (await stream_info(conn, stream)).state.last_seq
            await read_all(conn, stream, FOLLOWED[stream], take, start=first)
            if last == end and there == wanted:
                return
            same = sum(a == b for a, b in zip(there, wanted, strict=False))
            why = f"{stream} ends at {last}, not {end}, and has {same} of {len(wanted)} messages"
        except BusError as error:
            why = str(error)
        if asyncio.get_running_loop().time() > deadline:
            raise NotProved(why)
        await asyncio.sleep(LOOK_S)

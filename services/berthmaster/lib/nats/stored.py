"""Single messages of a stream as its leader has them: the last one, the next one, one by number.

Also what guards a write: the headers by which the server compares a subject's last sequence.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import ApiError

WRONG_LAST_SEQUENCE: Final = frozenset({10071, 10164})
NO_MESSAGE: Final = 10037
GET_TIMEOUT_S: Final = 2.0

GUARD: Final = "Nats-Expected-Last-Subject-Sequence"
GUARD_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence-Subject"


class _StoredMessage(msgspec.Struct):
    subject: str
    seq: int
    time: str
    data: bytes = b""


class _Got(msgspec.Struct):
    message: _StoredMessage


_GOT: Final = msgspec.json.Decoder(_Got)


def parse_time_s(text: str) -> float:
    """Seconds since 1970 of one of the server's time stamps, as exact as consumers tell it: whole
    nanoseconds, turned into the same float."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    seconds = int(datetime.fromisoformat(f"{whole}+00:00").timestamp())
    return (seconds * 10**9 + int(fraction[:9].ljust(9, "0") or "0")) / 10**9


class Message(msgspec.Struct, frozen=True):
    subject: str
    sequence: int
    stored_at_s: float
    data: bytes


def message_of(headers: Mapping[str, str], data: bytes) -> Message:
    """Return a message as a batch of DIRECT.GET brings it: what else is known is in its headers."""
    return Message(
        headers["Nats-Subject"],
        int(headers["Nats-Sequence"]),
        parse_time_s(headers["Nats-Time-Stamp"]),
        data,
    )


async def last_message(
    conn: Connection, stream: str, subject: str, *, timeout_s: float = GET_TIMEOUT_S
) -> Message | None:
    """The last message under a subject or filter, from the stream's leader: never an old answer."""
    return await _get(conn, stream, {"last_by_subj": subject}, timeout_s)


async def next_message(
    conn: Connection, stream: str, subject: str, start: int, *, timeout_s: float = GET_TIMEOUT_S
) -> Message | None:
    """The first message at or after a sequence under a filter, from the stream's leader."""
    return await _get(conn, stream, {"seq": start, "next_by_subj": subject}, timeout_s)


async def message_at(
    conn: Connection, stream: str, sequence: int, *, timeout_s: float = GET_TIMEOUT_S
) -> Message | None:
    """The message of this number, from the stream's leader."""
    return await _get(conn, stream, {"seq": sequence}, timeout_s)


async def _get(
    conn: Connection, stream: str, query: dict[str, object], timeout_s: float
) -> Message | None:
    try:
        raw = await conn.api(f"STREAM.MSG.GET.{stream}", query, timeout_s=timeout_s)
    except ApiError as error:
        if error.code == NO_MESSAGE:
            return None
        raise
    got = _GOT.decode(raw).message
    return Message(got.subject, got.seq, parse_time_s(got.time), got.data)

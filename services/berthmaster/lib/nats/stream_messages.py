"""Messages of streams in the server's format, acknowledgements, and guards of writes. Pure.

A header guards a write: the server stores the message only if the subject's last sequence is the
expected one. Example: ``{GUARD: "930"}`` fails with error 10071 once 931 is stored.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from berthmaster.lib.nats.errors import ApiError


class Recorded(NamedTuple):
    subject: str
    sequence: int
    stored_at_s: float  # the server's clock
    data: bytes
    pending: int  # messages still behind at the time of sending


class _Problem(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _Ack(msgspec.Struct):
    seq: int = 0
    error: _Problem | None = None


_ACK: Final = msgspec.json.Decoder(_Ack)


def stored_sequence(data: bytes) -> int:
    """Return the sequence of the stored message. Raises ApiError if the message was not stored."""
    ack = _ACK.decode(data)
    if ack.error is not None:
        raise ApiError(ack.error.err_code, ack.error.description)
    return ack.seq


WRONG_LAST_SEQUENCE: Final = frozenset({10071, 10164})
GUARD: Final = "Nats-Expected-Last-Subject-Sequence"
GUARD_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence-Subject"


def parse_time_s(text: str) -> float:
    """Return seconds since 1970 of a server's time stamp, as exact as a consumer reports the time:
    whole nanoseconds, converted to the same float.
    """
    whole, _, fraction = text.rstrip("Z").partition(".")
    seconds = int(datetime.fromisoformat(f"{whole}+00:00").timestamp())
    return (seconds * 10**9 + int(fraction[:9].ljust(9, "0") or "0")) / 10**9


class Message(msgspec.Struct, frozen=True):
    subject: str
    sequence: int
    stored_at_s: float
    data: bytes


def message_of(headers: Mapping[str, str], data: bytes) -> Message:
    """Return a message of a DIRECT.GET batch. Its metadata is in the headers."""
    return Message(
        headers["Nats-Subject"],
        int(headers["Nats-Sequence"]),
        parse_time_s(headers["Nats-Time-Stamp"]),
        data,
    )

"""The bytes of a backup: consecutive messages in the format of nats-server 2.15.

A record is: length of the subject, time in nanoseconds, sequence, length of headers, length of data
(as varints, the time zigzag), then subject, headers, data.

Headers are dropped: Berthmaster's headers are expected-last-sequence checks, which only matter at
the time of storing.
"""

from collections.abc import Iterator
from typing import NamedTuple


class Record(NamedTuple):
    subject: str
    sequence: int
    stored_ns: int
    data: bytes


class BrokenBackup(ValueError):
    """A file's content was not written by a backup. The text names the file and the reason."""


def nanoseconds(stored_at_s: float) -> int:
    """Return nanoseconds that convert back to the same seconds: floats are coarser."""
    a, b = stored_at_s.as_integer_ratio()
    return (2 * a * 10**9 + b) // (2 * b)


def written(record: Record) -> bytes:
    subject = record.subject.encode()
    time = record.stored_ns << 1 if record.stored_ns >= 0 else (-record.stored_ns << 1) - 1
    head = (len(subject), time, record.sequence, 0, len(record.data))
    return b"".join(map(_varint, head)) + subject + record.data


def records(raw: bytes) -> Iterator[Record]:
    """Yield the records of some bytes. Raises BrokenBackup."""
    at = 0
    while at < len(raw):
        numbers = []
        for _ in range(5):
            value, shift = 0, 0
            while True:
                if at >= len(raw):
                    raise BrokenBackup("a record is cut off")
                if shift > 63:
                    raise BrokenBackup("a number of a record has more than 64 bits")
                byte = raw[at]
                at += 1
                value |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
            numbers.append(value)
        name, time, sequence, headers, length = numbers
        body = at + name + headers
        if body + length > len(raw):
            raise BrokenBackup("a record is cut off")
        subject = raw[at : at + name].decode(errors="replace")
        stored_ns = time >> 1 if not time & 1 else -(time >> 1) - 1
        yield Record(subject, sequence, stored_ns, raw[body : body + length])
        at = body + length


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)

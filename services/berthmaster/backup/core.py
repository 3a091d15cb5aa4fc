"""The bytes of a backup: messages one behind the other, as the server writes and restores them.

A record is: length of the subject, time in nanoseconds, sequence, length of headers, length of data
(as varints, the time zigzag), then subject, headers, data. A stream to be restored is "NATSARC1", a
record ``state.json`` with sequence 0, the messages in order, and an empty record; in frames of S2
(github.com/klauspost/compress/s2), here never compressed, each with its CRC-32C. This is what
nats-server writes since 2.15; numbers that are missing in between are gaps afterwards, too.

We keep no headers: those of our messages are guards, which count only when something is stored.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np

MAGIC: Final = b"NATSARC1"
OPENING: Final = b"\xff\x06\x00\x00S2sTwO"
FRAME_BYTES: Final = 64 * 1024
FRAMES_AT_ONCE: Final = 128
_UNCOMPRESSED: Final = b"\x01"
_END: Final = bytes(5)


class Record(NamedTuple):
    subject: str
    sequence: int
    stored_ns: int
    data: bytes


class BrokenBackup(ValueError):
    """What is in a file cannot be what was written there; the text says which and why."""


def nanoseconds(stored_at_s: float) -> int:
    """A time that reads as the same seconds again: floats are coarser than nanoseconds."""
    a, b = stored_at_s.as_integer_ratio()
    return (2 * a * 10**9 + b) // (2 * b)


def written(record: Record) -> bytes:
    subject = record.subject.encode()
    time = record.stored_ns << 1 if record.stored_ns >= 0 else (-record.stored_ns << 1) - 1
    head = (len(subject), time, record.sequence, 0, len(record.data))
    return b"".join(map(_varint, head)) + subject + record.data


def records(raw: bytes) -> Iterator[Record]:
    """The records of some bytes. Raises BrokenBackup."""
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


def stream_bytes(state: bytes, now_ns: int, messages: Iterable[bytes]) -> Iterator[bytes]:
    """A stream to be restored, in frames; ``messages``: the bytes of records."""
    yield OPENING
    waiting = bytearray(MAGIC + written(Record("state.json", 0, now_ns, state)))
    for message in messages:
        waiting += message
        if len(waiting) >= FRAME_BYTES * FRAMES_AT_ONCE:
            whole = len(waiting) // FRAME_BYTES * FRAME_BYTES
            yield from frames(bytes(waiting[:whole]))
            del waiting[:whole]
    yield from frames(bytes(waiting + _END))


def frames(raw: bytes) -> Iterator[bytes]:
    """The bytes as frames of at most FRAME_BYTES each."""
    parts = [raw[at : at + FRAME_BYTES] for at in range(0, len(raw), FRAME_BYTES)]
    for part, crc in zip(parts, checksums(parts), strict=True):
        masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
        body = struct.pack("<I", masked) + part
        yield _UNCOMPRESSED + len(body).to_bytes(3, "little") + body


def checksums(parts: list[bytes]) -> list[int]:
    """CRC-32C of each part; those of one length together, a byte of all at a time."""
    found = [0] * len(parts)
    lengths: dict[int, list[int]] = {}
    for at, part in enumerate(parts):
        lengths.setdefault(len(part), []).append(at)
    for length, members in lengths.items():
        rows = np.frombuffer(b"".join(parts[at] for at in members), np.uint8)
        columns = rows.reshape(len(members), length).T.astype(np.uint32)
        crc = np.full(len(members), 0xFFFFFFFF, np.uint32)
        for column in columns:
            crc = _TABLE[(crc ^ column) & 0xFF] ^ (crc >> 8)
        for at, value in zip(members, crc ^ 0xFFFFFFFF, strict=True):
            found[at] = int(value)
    return found


def _table() -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ 0x82F63B78, table >> 1).astype(np.uint32)
    return table


_TABLE: Final = _table()


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)

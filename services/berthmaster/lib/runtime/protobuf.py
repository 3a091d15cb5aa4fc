"""Reads and writes protobuf's wire format, as far as the kubelet's APIs use it: no schema, no
generated code. Pure.

A message is a sequence of fields: a key (number and wire type) and a value. Unknown fields are
skipped, as protobuf requires, so messages of a newer kubelet are readable too.
"""

from collections.abc import Iterator
from typing import Final

_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5
_MAX_SHIFT: Final = 63


class BadMessage(ValueError):
    """The bytes are no protobuf message."""


def fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield (number, value) of each field: bytes of texts and messages, a number of the rest.
    Raises BadMessage.
    """
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == _LEN:
            size, at = _varint(data, at)
        elif kind in (_I64, _I32):
            size = 8 if kind == _I64 else 4
        else:
            raise BadMessage(f"field {number} has the wire type {kind}")
        if not number or size > end - at:
            raise BadMessage(f"field {number} ends behind the message")
        part, at = data[at : at + size], at + size
        yield number, part if kind == _LEN else int.from_bytes(part, "little")


def parts(data: bytes, number: int) -> Iterator[bytes]:
    """Yield the messages or texts of a field, also of a repeated field. Raises BadMessage."""
    for found, value in fields(data):
        if found == number:
            if not isinstance(value, bytes):
                raise BadMessage(f"field {number} is a number")
            yield value


def text(data: bytes, number: int) -> str:
    """Return the last text of one field; "" if absent. Raises BadMessage."""
    *_, last = (b"", *parts(data, number))
    try:
        return last.decode()
    except UnicodeDecodeError as error:
        raise BadMessage(f"field {number} is no text") from error


def field(number: int, value: bytes | str | int) -> bytes:
    """Encode one field. A message is a concatenation of fields."""
    if isinstance(value, int):
        return _encoded(number << 3) + _encoded(value)
    data = value.encode() if isinstance(value, str) else value
    return _encoded(number << 3 | _LEN) + _encoded(len(data)) + data


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift <= _MAX_SHIFT:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise BadMessage("a number does not end")

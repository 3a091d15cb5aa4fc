"""The stream's acknowledgement of a stored message."""

from typing import Final

import msgspec

from berthmaster.lib.nats.errors import ApiError


class _Problem(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _Ack(msgspec.Struct):
    seq: int = 0
    error: _Problem | None = None


_ACK: Final = msgspec.json.Decoder(_Ack)


def stored_sequence(data: bytes) -> int:
    """The sequence under which it was stored. Raises ApiError if it was not."""
    ack = _ACK.decode(data)
    if ack.error is not None:
        raise ApiError(ack.error.err_code, ack.error.description)
    return ack.seq

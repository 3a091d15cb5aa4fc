"""A message of a stream."""

from typing import NamedTuple


class Recorded(NamedTuple):
    subject: str
    sequence: int
    stored_at_s: float  # the server's clock
    data: bytes
    pending: int  # messages behind this one when it was sent

"""Ports for a pod of ours: its own, and behind it those of its children."""

import random
import socket

from berthmaster.runtime.ports import claim, port_is_free

TRIES = 1000
_RANGE = range(11_000, 15_000)  # nobody else is given one of these, neither by us nor by the kernel
_kept: list[socket.socket] = []


def free_block(count: int) -> int:
    """The first of so many free ports in a row. No other test is given one of them while this
    process lives."""
    for _ in range(TRIES):
        first = random.randrange(_RANGE.start, _RANGE.stop - count)
        claims = [claim(port) for port in range(first, first + count)]
        if None not in claims and all(port_is_free(port) for port in range(first, first + count)):
            _kept.extend(filter(None, claims))
            return first
        for held in filter(None, claims):
            held.close()
    raise OSError(f"no {count} free ports in a row")

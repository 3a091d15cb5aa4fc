"""Ports for a pod of ours: its own, and behind it those of its children."""

import random

from berthmaster.runtime.ports import PortClaims

TRIES = 1000
_RANGE = range(11_000, 15_000)  # nobody else is given one of these, neither by us nor by the kernel
_kept: list[PortClaims] = []


def free_block(count: int) -> int:
    """The first of so many free ports in a row. No other test is given one of them while this
    process lives."""
    for _ in range(TRIES):
        first = random.randrange(_RANGE.start, _RANGE.stop - count)
        claims = PortClaims()
        if all(claims.take(port) for port in range(first, first + count)):
            _kept.append(claims)
            return first
        claims.close()
    raise OSError(f"no {count} free ports in a row")

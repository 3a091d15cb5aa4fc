"""Ports for a pod of ours: its own, and behind it those of its children."""

import random

from berthmaster.runtime.ports import port_is_free

TRIES = 1000


def free_block(count: int) -> int:
    """The first of so many free ports in a row, where nobody is given a port by chance."""
    for _ in range(TRIES):
        first = random.randrange(20_000, 32_000)
        if all(port_is_free(port) for port in range(first, first + count)):
            return first
    raise OSError(f"no {count} free ports in a row")

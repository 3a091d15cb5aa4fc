"""Repeatable random draws: every draw is a pure function of a seed and a purpose.

This module has no state, so draws do not depend on their order. Example: the duration of a workload
is the same whether it is placed first or last, before or after a restart.
"""

import math
from hashlib import blake2b

_SCALE = 2.0**-53


def uniform(seed: int, *what: str | int) -> float:
    """Return a number from 0 up to, but not including, 1 for this seed and purpose."""
    text = "\x1f".join(map(str, what))
    digest = blake2b(f"{seed}\x1f{text}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) * _SCALE


def below(limit: int, seed: int, *what: str | int) -> int:
    """Return a whole number from 0 to limit - 1."""
    return int(uniform(seed, *what) * limit)


def exponential(mean: float, seed: int, *what: str | int) -> float:
    """Return a waiting time with this mean, as between independent events."""
    return -mean * math.log1p(-uniform(seed, *what))


def normal(seed: int, *what: str | int) -> float:
    """Return a draw with mean 0 and deviation 1."""
    radius = math.sqrt(-2.0 * math.log1p(-uniform(seed, *what, "radius")))
    return radius * math.cos(2.0 * math.pi * uniform(seed, *what, "angle"))


def lognormal(median: float, sigma: float, seed: int, *what: str | int) -> float:
    """Return a duration of a job: most are short, a few very long."""
    return median * math.exp(sigma * normal(seed, *what))

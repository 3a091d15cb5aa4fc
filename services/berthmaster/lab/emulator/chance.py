"""Chance that repeats itself: every draw is a pure function of a seed and of what it is for.

Nothing here keeps a state, so draws do not depend on the order in which they are asked for: the
duration of a workload is the same whether it is placed first or last, before or after a restart.
"""

import math
from hashlib import blake2b

_SCALE = 2.0**-53


def uniform(seed: int, *what: str | int) -> float:
    """A number from 0 up to, but not including, 1 for this seed and purpose."""
    text = "\x1f".join(map(str, what))
    digest = blake2b(f"{seed}\x1f{text}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) * _SCALE


def below(limit: int, seed: int, *what: str | int) -> int:
    """A whole number from 0 to limit - 1."""
    return int(uniform(seed, *what) * limit)


def exponential(mean: float, seed: int, *what: str | int) -> float:
    """A waiting time with this mean, as between events that know nothing of each other."""
    return -mean * math.log1p(-uniform(seed, *what))


def normal(seed: int, *what: str | int) -> float:
    """A draw with mean 0 and deviation 1."""
    radius = math.sqrt(-2.0 * math.log1p(-uniform(seed, *what, "radius")))
    return radius * math.cos(2.0 * math.pi * uniform(seed, *what, "angle"))


def lognormal(median: float, sigma: float, seed: int, *what: str | int) -> float:
    """Durations of jobs: most are short, a few very long."""
    return median * math.exp(sigma * normal(seed, *what))

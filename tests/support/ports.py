"""A port of this machine that no other process gets while a test holds it."""

import random

from berthmaster.lib.runtime.ports import PortClaims

TRIES = 1000
_RANGE = range(11_000, 15_000)  # nobody else is given one of these, neither by us nor by the kernel
_kept: list[PortClaims] = []


def kept_port() -> int:
    """Return a free port. No other test is given the port while this process lives."""
    for _ in range(TRIES):
        port = random.choice(_RANGE)
        claims = PortClaims()
        if claims.take(port):
            _kept.append(claims)
            return port
        claims.close()
    raise OSError("no free port")

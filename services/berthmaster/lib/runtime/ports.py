"""Ports to listen on, for child processes.

Ports are chosen below the kernel's range for outgoing connections. A port of the range may be free
when chosen and belong to an outgoing connection when a server binds. A client of an absent server
uses a port per try.

Between the choice and the bind no process owns a port, nor between two runs of a server. So the
chooser claims the port, and no other local Berthmaster process chooses the port then.
"""

import random
import socket
import weakref
from pathlib import Path
from typing import Final, Self

PAGE_PORT: Final = 7373  # default port of the dashboard, if free
_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST: Final = 15_000
_ENOUGH: Final = 5_000  # in a smaller space, two processes would often choose the same port


def _candidates() -> range:
    try:
        lowest, highest = map(int, _RANGE.read_text().split())
    except (OSError, ValueError):
        return range(_FIRST, 32_768)
    below = range(_FIRST, lowest)
    return below if len(below) >= _ENOUGH else range(lowest, highest + 1)


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether a server could bind the port now. Connections left by a previous run do not
    matter.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


class PortClaims:
    """The claimed ports of one owner, bound or not. Other Berthmaster processes do not choose
    claimed ports until the object is closed or garbage-collected, or the process ends.
    """

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}
        self._close = weakref.finalize(self, _close_all, self._held)

    def take(self, port: int, host: str = "127.0.0.1") -> bool:
        """Claim a given port. Return False if another process has claimed or bound the port."""
        if port in self._held:
            return port_is_free(port, host)
        name = socket.socket(socket.AF_UNIX)
        try:
            name.bind(f"\0berthmaster.port.{port}")  # an abstract name leaves no file behind
        except OSError:
            name.close()
            return False
        if not port_is_free(port, host):
            name.close()
            return False
        self._held[port] = name
        return True

    def choose(self, count: int, host: str = "127.0.0.1") -> list[int]:
        """Return different free ports, claimed. Raises OSError if there are too few."""
        candidates = _candidates()
        found: list[int] = []
        for port in random.sample(candidates, len(candidates)):
            if len(found) == count:
                break
            if port not in self._held and self.take(port, host):
                found.append(port)
        if len(found) < count:
            raise OSError(f"only {len(found)} of {count} ports are free on {host}")
        return found

    def close(self) -> None:
        """Release all ports."""
        _close_all(self._held)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _close_all(held: dict[int, socket.socket]) -> None:
    while held:
        held.popitem()[1].close()


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return different free ports, without a claim. Raises OSError if there are too few."""
    with PortClaims() as claims:
        return claims.choose(count, host)

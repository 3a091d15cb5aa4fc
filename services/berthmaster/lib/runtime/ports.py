"""Ports to listen on, for what this process starts.

They are chosen below the range that the kernel takes for outgoing connections. From within it, a
port that was free when it was chosen may belong to somebody's connection when it is listened on: a
client that tries again and again to reach a server that is away takes one for each try.

Between that choice and the moment when somebody listens a port is nobody's, and between two lives
of a server as well. So whoever chooses claims it: no other of us on this machine chooses it then.
"""

import random
import socket
import weakref
from pathlib import Path
from typing import Final, Self

PAGE_PORT: Final = 7373  # of the dashboard's page, where it is free
_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST: Final = 15_000
_ENOUGH: Final = 5_000  # a narrower space would have two processes choose the same port


def _candidates() -> range:
    try:
        lowest, highest = map(int, _RANGE.read_text().split())
    except (OSError, ValueError):
        return range(_FIRST, 32_768)
    below = range(_FIRST, lowest)
    return below if len(below) >= _ENOUGH else range(lowest, highest + 1)


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen there now. What its last life left behind is no hindrance."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


class PortClaims:
    """The ports of one owner, listened on or not: others of us choose none of them until this is
    closed, nobody has it any more, or its process has ended."""

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}
        self._close = weakref.finalize(self, _close_all, self._held)

    def take(self, port: int, host: str = "127.0.0.1") -> bool:
        """Claim one that is known; False if it is another's, by a claim or since it listens."""
        if port in self._held:
            return port_is_free(port, host)
        name = socket.socket(socket.AF_UNIX)
        try:
            name.bind(f"\0berthmaster.port.{port}")  # an abstract name: no file is left behind
        except OSError:
            name.close()
            return False
        if not port_is_free(port, host):
            name.close()
            return False
        self._held[port] = name
        return True

    def choose(self, count: int, host: str = "127.0.0.1") -> list[int]:
        """Different ports that nobody has, claimed. Raises OSError when there are not so many."""
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
        """Let go of all."""
        _close_all(self._held)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _close_all(held: dict[int, socket.socket]) -> None:
    while held:
        held.popitem()[1].close()


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Different ports that nobody has now, and nobody keeps for us. Raises OSError when there are
    not so many."""
    with PortClaims() as claims:
        return claims.choose(count, host)

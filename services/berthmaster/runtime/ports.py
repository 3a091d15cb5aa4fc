"""Ports to listen on, for what this process starts.

They are chosen below the range that the kernel takes for outgoing connections. From within it, a
port that was free when it was chosen may belong to somebody's connection when it is listened on: a
client that tries again and again to reach a server that is away takes one for each try.
"""

import random
import socket
from pathlib import Path
from typing import Final

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


def claim(port: int) -> socket.socket | None:
    """Keeps others of us from choosing this port before it is listened on; None: somebody has it.
    It is free again when the socket is closed, or with this process."""
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0berthmaster.port.{port}")  # an abstract name: no file is left behind
    except OSError:
        name.close()
        return None
    return name


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Different ports that are free now; nobody holds them for us. Raises OSError when there are
    not so many."""
    candidates = _candidates()
    found: list[int] = []
    for port in random.sample(candidates, len(candidates)):
        if len(found) == count:
            break
        if port_is_free(port, host):
            found.append(port)
    if len(found) < count:
        raise OSError(f"only {len(found)} of {count} ports are free on {host}")
    return found

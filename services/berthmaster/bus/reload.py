"""Makes running servers read their configuration again, and tells whether they took it.

SIGHUP changes certificates without ending a connection. The server says nothing to
whoever sent it: what it took shows in the time of its configuration, what it refused in its log.
The sender needs no more than the server's folder, so that any command of the same user can ask.
"""

import os
import re
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from berthmaster.bus.embedded import CONFIG_FILE, PID_FILE, ServerFailed

T = TypeVar("T")
LIMIT_S: Final = 5.0
_POLL_S: Final = 0.02
_MONITOR: Final = re.compile(r'^http: "127\.0\.0\.1:(\d+)"$', re.MULTILINE)
_PORT: Final = re.compile(r"^port: (\d+)$", re.MULTILINE)
_TLS: Final = re.compile(r"^tls {$", re.MULTILINE)
_REFUSED: Final = re.compile(rb"Failed to reload server configuration: (.*)")


class _Figures(msgspec.Struct):
    config_load_time: str = ""


class _Client(msgspec.Struct):
    authorized_user: str = ""
    account: str = ""


class _Clients(msgspec.Struct):
    connections: list[_Client] = []


def reload_servers(folder: Path, *, limit_s: float = LIMIT_S) -> int:
    """Reload the server of a `berth up`, or each of several; how many there were. Raises
    ServerFailed when one refuses what it read or does not answer."""
    places = [folder, *sorted(folder.glob("server-*"))]
    running = [(place, pid) for place in places if (pid := running_pid(place))]
    for place, pid in running:
        _reload(place, pid, limit_s)
    return len(running)


def running_pid(folder: Path) -> int:
    """The process that serves this folder; 0 if none does. A number that has become somebody else's
    is recognised by what it runs."""
    try:
        pid = int((folder / PID_FILE).read_text())
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return 0
    config = folder / CONFIG_FILE
    return pid if any(_is(argument, config) for argument in argv) else 0


def _is(argument: bytes, config: Path) -> bool:
    """However the path is written."""
    try:
        return argument.endswith(CONFIG_FILE.encode()) and config.samefile(os.fsdecode(argument))
    except OSError:
        return False


def connected_keys(folder: Path) -> frozenset[str]:
    """The public keys of those who are connected now to the servers of this folder, and of the
    accounts that they are in: who logged in has a key that the folder does not know. Raises
    ServerFailed."""
    places = [place for place in (folder, *folder.glob("server-*")) if running_pid(place)]
    found = [_ask(f"{_monitor(place)}/connz?auth=1&limit=65536", _Clients) for place in places]
    clients = [one for each in found for one in each.connections]
    return frozenset(key for one in clients for key in (one.authorized_user, one.account))


def client_url(folder: Path) -> str:
    """Where clients of this machine reach the server of a folder. Raises ServerFailed."""
    config = (folder / CONFIG_FILE).read_text()
    port = _PORT.search(config)
    if port is None:
        raise ServerFailed(f"{folder / CONFIG_FILE} is not one of ours")
    return f"{'tls' if _TLS.search(config) else 'nats'}://127.0.0.1:{port[1]}"


def _monitor(folder: Path) -> str:
    found = _MONITOR.search((folder / CONFIG_FILE).read_text())
    if found is None:
        raise ServerFailed(f"{folder / CONFIG_FILE} is not one of ours")
    return f"http://127.0.0.1:{found[1]}"


def _reload(folder: Path, pid: int, limit_s: float) -> None:
    url = f"{_monitor(folder)}/varz"
    log = folder / "nats-server.log"
    read_bytes = log.stat().st_size
    before = _loaded_at(url)
    os.kill(pid, signal.SIGHUP)
    deadline = time.monotonic() + limit_s
    while _loaded_at(url) == before:
        with log.open("rb") as file:
            file.seek(read_bytes)
            refused = _REFUSED.search(file.read())
        if refused:
            why = refused[1].decode(errors="replace").strip()
            raise ServerFailed(f"nats-server keeps its old configuration: {why}")
        if time.monotonic() > deadline:
            raise ServerFailed(f"nats-server did not read its configuration within {limit_s:g} s")
        time.sleep(_POLL_S)


def _loaded_at(url: str) -> str:
    return _ask(url, _Figures).config_load_time


def _ask(url: str, kind: type[T]) -> T:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return msgspec.json.decode(answer.read(), type=kind)
    except (urllib.error.URLError, OSError, msgspec.DecodeError) as error:
        raise ServerFailed(f"nats-server does not tell its state at {url}: {error}") from error

"""Finds the running nats-servers of a data folder, and reads the connected clients.

A server's folder contains the configuration, with the port of the metrics on loopback. Servers in
separate pods are read by the URLs of the metrics. Example: `berth cluster list`, run in the
container `accounts` of an installed hub, reads each pod of the bus.
"""

import re
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from berthmaster.lib.supervisor.embedded import CONFIG_FILE, ServerFailed

T = TypeVar("T")
_MONITOR: Final = re.compile(r'^http: "127\.0\.0\.1:(\d+)"$', re.MULTILINE)
_PORT: Final = re.compile(r"^port: (\d+)$", re.MULTILINE)
_STORE: Final = re.compile(r'^  store_dir: "(.*)"$', re.MULTILINE)
_TLS: Final = re.compile(r"^tls {$", re.MULTILINE)


class _Config(msgspec.Struct):
    store_dir: str = ""


class _JetStream(msgspec.Struct):
    config: _Config = msgspec.field(default_factory=_Config)


class _Figures(msgspec.Struct):
    jetstream: _JetStream = msgspec.field(default_factory=_JetStream)


class _Client(msgspec.Struct):
    authorized_user: str = ""
    account: str = ""


class _Clients(msgspec.Struct):
    connections: list[_Client] = []


def running(folder: Path) -> list[Path]:
    """Return the folders of the running servers: of one server, or of each of several.

    The reported store distinguishes the server from another server on the same port.
    """
    return [place for place in (folder, *sorted(folder.glob("server-*"))) if _runs(place)]


def connected_keys(folder: Path) -> frozenset[str]:
    """Return the public keys of users connected to the servers of a folder, and of the users'
    accounts. A logged-in user's key is not in the folder. Raises ServerFailed.
    """
    return keys_connected_to([_monitor(place) for place in running(folder)])


def keys_connected_to(monitors: Iterable[str]) -> frozenset[str]:
    """Return the same keys for servers with metrics at these URLs. Raises ServerFailed."""
    found = [_ask(f"{monitor}/connz?auth=1&limit=65536", _Clients) for monitor in monitors]
    clients = [one for each in found for one in each.connections]
    return frozenset(key for one in clients for key in (one.authorized_user, one.account))


def answers(monitor: str) -> bool:
    """Return whether a server reports metrics at the URL."""
    try:
        _ask(f"{monitor}/varz", _Figures)
    except ServerFailed:
        return False
    return True


def client_url(folder: Path) -> str:
    """Return the URL of a folder's server for clients of this machine. Raises ServerFailed."""
    config = (folder / CONFIG_FILE).read_text()
    port = _PORT.search(config)
    if port is None:
        raise ServerFailed(f"{folder / CONFIG_FILE} is not one of ours")
    return f"{'tls' if _TLS.search(config) else 'nats'}://127.0.0.1:{port[1]}"


def _runs(folder: Path) -> bool:
    try:
        store = _STORE.search((folder / CONFIG_FILE).read_text())
        figures = _ask(f"{_monitor(folder)}/varz", _Figures)
    except (OSError, ServerFailed):
        return False
    return store is not None and Path(figures.jetstream.config.store_dir).parent == Path(store[1])


def _monitor(folder: Path) -> str:
    found = _MONITOR.search((folder / CONFIG_FILE).read_text())
    if found is None:
        raise ServerFailed(f"{folder / CONFIG_FILE} is not one of ours")
    return f"http://127.0.0.1:{found[1]}"


def _ask(url: str, kind: type[T]) -> T:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return msgspec.json.decode(answer.read(), type=kind)
    except (urllib.error.URLError, OSError, msgspec.DecodeError) as error:
        raise ServerFailed(f"nats-server does not tell its state at {url}: {error}") from error

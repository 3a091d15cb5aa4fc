"""Which bus to talk to, and as whom: flags, then environment, then a `berth up` on this machine.

`berth up` leaves a connection file in its data folder and the folder's path in the user's state
folder, so that `berth jobs` typed in any directory finds it.
"""

import fcntl
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from berthmaster.bus.permissions import UnknownUser, grants, inbox_prefix

SEED_SUFFIX: Final = ".nk"  # as in bus/keys.py, which needs a library that not everybody has
DATA_FOLDER: Final = Path(".berth")
CONNECTION_FILE: Final = "connection.json"
KEYS_FOLDER: Final = "keys"
TLS_FOLDER: Final = "tls"
EXTERNAL_FILE: Final = "external.json"
LOCK_FILE: Final = "up.lock"
DEFAULT_URL: Final = "nats://127.0.0.1:4222"
DEFAULT_TENANT: Final = "default"
MAX_PARENTS: Final = 20


class ConnectionFile(msgspec.Struct, kw_only=True):
    """What `berth up` tells the other commands."""

    url: str
    tenant: str = DEFAULT_TENANT
    seed_file: str = ""
    inbox_prefix: str = "_INBOX"
    ca_file: str = ""
    pid: int = 0


class External(msgspec.Struct, frozen=True, kw_only=True):
    """Where agents in other clusters find this bus: kept while it does not run, too."""

    url: str


_FILE: Final = msgspec.json.Decoder(ConnectionFile)


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where to connect."""

    url: str
    tenant: str
    seed_file: str
    inbox_prefix: str
    source: str  # for people: where this came from
    ca_file: str = ""  # "" = what the system trusts, should the URL be a tls:// one


def find_target(
    *,
    server: str | None,
    tenant: str | None,
    seed_file: str | None,
    data: Path | None,
    ca_file: str | None = None,
    env: Mapping[str, str],
    cwd: Path,
) -> Target:
    """The target: each part from its flag, its variable, or the connection file, in this order.

    A server that was named keeps the file's tenant and seed out: they belong to another bus. Where
    the bus knows its users each has an inbox of its own; a seed file that is named after its user,
    as ours are, says which.
    """
    url = server or env.get("BERTH_NATS_URL")
    found = None if url else find_connection(data, env, cwd)
    known = found[1] if found else None
    named = data or env.get("BERTH_DATA")
    if url:
        source = "--server" if server else "BERTH_NATS_URL"
    else:
        nowhere = f"no `berth up` runs on {named}" if named else "no `berth up` was found here"
        source = str(found[0]) if found else f"the default; {nowhere}"
    seed = seed_file or env.get("BERTH_NATS_SEED_FILE") or ""
    inbox = env.get("BERTH_INBOX_PREFIX") or inbox_of(seed)
    return Target(
        url=url or (known.url if known else DEFAULT_URL),
        tenant=tenant or env.get("BERTH_TENANT") or (known.tenant if known else DEFAULT_TENANT),
        seed_file=seed or (known.seed_file if known else ""),
        inbox_prefix=inbox or (known.inbox_prefix if known else "_INBOX"),
        ca_file=ca_file or env.get("BERTH_NATS_CA_FILE") or (known.ca_file if known else ""),
        source=source,
    )


def inbox_of(seed_file: str) -> str:
    """The inbox prefix of the user that a seed file is named after; "" if it is no user's name."""
    path = Path(seed_file)
    if path.suffix != SEED_SUFFIX:
        return ""
    try:
        grants(path.stem)
    except UnknownUser:
        return ""
    return inbox_prefix(path.stem)


def find_connection(
    data: Path | None, env: Mapping[str, str], cwd: Path
) -> tuple[Path, ConnectionFile] | None:
    """The connection file of a `berth up`: of the folder that was named, of .berth here or in a
    parent folder, or of the last one that this user has started."""
    named = data or (Path(env["BERTH_DATA"]) if env.get("BERTH_DATA") else None)
    if named is not None:
        folders = [named]
    else:
        folders = [parent / DATA_FOLDER for parent in [cwd, *cwd.parents][:MAX_PARENTS]]
        if last := _last_started(env):
            folders.append(last)
    for folder in folders:
        path = folder / CONNECTION_FILE
        try:
            return path, _FILE.decode(path.read_bytes())
        except (OSError, msgspec.DecodeError):
            continue
    return None


def state_file(env: Mapping[str, str]) -> Path | None:
    """Where the folder of the last `berth up` is kept; None without a home."""
    base = env.get("XDG_STATE_HOME") or (f"{env['HOME']}/.local/state" if env.get("HOME") else "")
    return Path(base) / "berth" / "up" if base else None


def _last_started(env: Mapping[str, str]) -> Path | None:
    path = state_file(env)
    try:
        return Path(path.read_text().strip()) if path is not None else None
    except OSError:
        return None


class AlreadyRunning(Exception):
    """Another `berth up` has the folder."""

    def __init__(self, folder: Path, pid: str) -> None:
        who = f" (process {pid})" if pid else ""
        super().__init__(
            f"a `berth up` is running on {folder} already{who}; "
            "stop it with Ctrl-C, or give this one a folder of its own with --data"
        )


class FolderLock:
    """Holds a data folder for one `berth up`. The system lets go of it when the process ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd = -1

    def __enter__(self) -> "FolderLock":
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / LOCK_FILE
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(fd, 32).decode(errors="replace").strip()
            os.close(fd)
            raise AlreadyRunning(self._folder, pid) from None
        os.truncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
        self._fd = fd
        return self

    def __exit__(self, *_: object) -> None:
        os.truncate(self._fd, 0)
        os.close(self._fd)


def write_connection(folder: Path, file: ConnectionFile, env: Mapping[str, str]) -> None:
    """Leave word of how to connect, whole or not at all."""
    path = folder / CONNECTION_FILE
    draft = path.with_suffix(".new")
    draft.touch(mode=0o600)
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(file)) + b"\n")
    draft.replace(path)
    if (state := state_file(env)) is not None:
        try:
            state.parent.mkdir(parents=True, exist_ok=True)
            state.write_text(f"{folder.resolve()}\n")
        except OSError:
            pass  # a read-only home: then --data or the folder itself finds it


def write_external(folder: Path, url: str) -> None:
    """Leave word of where agents elsewhere connect; "" takes it back."""
    path = folder / EXTERNAL_FILE
    if url:
        path.write_bytes(msgspec.json.encode(External(url=url)) + b"\n")
    else:
        path.unlink(missing_ok=True)


def read_external(folder: Path) -> str:
    """Where agents elsewhere connect; "" if they cannot."""
    try:
        return msgspec.json.decode((folder / EXTERNAL_FILE).read_bytes(), type=External).url
    except (OSError, msgspec.DecodeError):
        return ""


def remove_connection(folder: Path, env: Mapping[str, str]) -> None:
    """Take that back."""
    (folder / CONNECTION_FILE).unlink(missing_ok=True)
    state = state_file(env)
    try:
        if state is not None and state.read_text().strip() == str(folder.resolve()):
            state.unlink()
    except OSError:
        pass

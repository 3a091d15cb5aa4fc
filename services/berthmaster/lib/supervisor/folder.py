"""The data folder of a `berth up`: who has it, and how other commands find the bus that it runs.

A lock keeps a folder for one `berth up` at a time. Once everything is ready it leaves a connection
file there, and the folder's path in the user's state folder, so that `berth jobs` typed in any
directory finds it.
"""

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

DATA_FOLDER: Final = Path(".berth")
CONNECTION_FILE: Final = "connection.json"
KEYS_FOLDER: Final = "keys"
TLS_FOLDER: Final = "tls"
EXTERNAL_FILE: Final = "external.json"
LOCK_FILE: Final = "up.lock"
DEFAULT_TENANT: Final = "default"


class ConnectionFile(msgspec.Struct, kw_only=True):
    """What `berth up` tells the other commands."""

    url: str
    tenant: str = DEFAULT_TENANT
    creds_file: str = ""
    inbox_prefix: str = "_INBOX"
    ca_file: str = ""
    pid: int = 0
    monitors: tuple[str, ...] = ()  # http://HOST:PORT of servers that run elsewhere


class External(msgspec.Struct, frozen=True, kw_only=True):
    """Where agents in other clusters find this bus: kept while it does not run, too."""

    url: str


def state_file(env: Mapping[str, str]) -> Path | None:
    """Where the folder of the last `berth up` is kept; None without a home."""
    base = env.get("XDG_STATE_HOME") or (f"{env['HOME']}/.local/state" if env.get("HOME") else "")
    return Path(base) / "berth" / "up" if base else None


class AlreadyRunning(Exception):
    """Another `berth up` has the folder."""

    def __init__(self, folder: Path, pid: str) -> None:
        who = f" (process {pid})" if pid else ""
        super().__init__(
            f"a `berth up` is running on {folder} already{who}; "
            "stop it with Ctrl-C, or give this one a folder of its own with --data"
        )


class FolderUnusable(Exception):
    """The folder cannot be made or written to."""

    def __init__(self, folder: Path, error: OSError) -> None:
        if isinstance(error, FileExistsError | NotADirectoryError):
            why = "there is a file in its place"
        else:
            why = (error.strerror or "it cannot be written to").lower()
        super().__init__(f"--data {folder} cannot be used as a folder: {why}")


class FolderLock:
    """Holds a data folder for one `berth up`. The system lets go of it when the process ends.

    Keys and everybody's data are in it: what this process and its children make meanwhile is for
    their user alone.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd = -1
        self._umask = 0

    def __enter__(self) -> "FolderLock":
        path = self._folder / LOCK_FILE
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _close_to_others(self._folder)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FolderUnusable(self._folder, error) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(fd, 32).decode(errors="replace").strip()
            os.close(fd)
            raise AlreadyRunning(self._folder, pid) from None
        try:
            os.truncate(fd, 0)
            os.write(fd, f"{os.getpid()}\n".encode())
        except OSError as error:  # its disk is full
            os.close(fd)
            raise FolderUnusable(self._folder, error) from error
        self._fd = fd
        self._umask = os.umask(0o077)
        return self

    def __exit__(self, *_: object) -> None:
        os.umask(self._umask)
        os.truncate(self._fd, 0)
        os.close(self._fd)


def _close_to_others(folder: Path) -> None:
    """A folder with other things in it is somebody's who may have reasons for its mode."""
    if (folder / LOCK_FILE).exists() or not any(folder.iterdir()):
        try:
            folder.chmod(0o700)
        except PermissionError:
            pass  # a volume that belongs to root and that our group may write to


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
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
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

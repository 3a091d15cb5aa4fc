"""The data folder of a `berth up`: the lock, and how other commands find the bus.

A lock reserves the folder for one `berth up` at a time. When all services are ready, `berth up`
writes a connection file there, and the folder's path into the user's state folder. So `berth jobs`
finds the bus from any directory.
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
    """Connection parameters that `berth up` writes for other commands."""

    url: str
    tenant: str = DEFAULT_TENANT
    creds_file: str = ""
    inbox_prefix: str = "_INBOX"
    ca_file: str = ""
    pid: int = 0
    monitors: tuple[str, ...] = ()  # http://HOST:PORT of servers that run elsewhere


class External(msgspec.Struct, frozen=True, kw_only=True):
    """The URL of this bus for agents in other clusters, kept while the bus does not run, too."""

    url: str


def state_folder(env: Mapping[str, str]) -> Path | None:
    """Return the folder for state of this user's `berth`; None without a home."""
    base = env.get("XDG_STATE_HOME") or (f"{env['HOME']}/.local/state" if env.get("HOME") else "")
    return Path(base) / "berth" if base else None


def state_file(env: Mapping[str, str]) -> Path | None:
    """Return the file with the folder of the last `berth up`; None without a home."""
    folder = state_folder(env)
    return None if folder is None else folder / "up"


class AlreadyRunning(Exception):
    """Another `berth up` uses the folder."""

    def __init__(self, folder: Path, pid: str) -> None:
        who = f" (process {pid})" if pid else ""
        super().__init__(
            f"a `berth up` is running on {folder} already{who}; "
            "stop it with Ctrl-C, or give this one a folder of its own with --data"
        )


class FolderUnusable(Exception):
    """The folder cannot be created or written to."""

    def __init__(self, folder: Path, error: OSError) -> None:
        if isinstance(error, FileExistsError | NotADirectoryError):
            why = "there is a file in its place"
        else:
            why = (error.strerror or "it cannot be written to").lower()
        super().__init__(f"--data {folder} cannot be used as a folder: {why}")


class FolderLock:
    """Locks a data folder for one `berth up`. The system releases the lock when the process ends.

    The folder holds keys and all tenants' data, so new files of the process and the children are
    readable only by the user.
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
        except OSError as error:  # the disk is full
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
    """Restrict the folder's mode, unless other content is present: the owner may need the mode."""
    if (folder / LOCK_FILE).exists() or not any(folder.iterdir()):
        try:
            folder.chmod(0o700)
        except PermissionError:
            pass  # a volume of root, writable by this process's group


def write_json(path: Path, value: msgspec.Struct) -> None:
    """Write a file of JSON for this user, completely or not at all."""
    draft = path.with_suffix(".new")
    draft.touch(mode=0o600)
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(value)) + b"\n")
    draft.replace(path)


def write_connection(folder: Path, file: ConnectionFile, env: Mapping[str, str]) -> None:
    """Write the connection file, completely or not at all."""
    write_json(folder / CONNECTION_FILE, file)
    if (state := state_file(env)) is not None:
        try:
            state.parent.mkdir(parents=True, exist_ok=True)
            state.write_text(f"{folder.resolve()}\n")
        except OSError:
            pass  # a read-only home: commands then use --data or the folder itself


def write_external(folder: Path, url: str) -> None:
    """Store the URL for agents elsewhere; "" = remove the stored URL."""
    path = folder / EXTERNAL_FILE
    if url:
        path.write_bytes(msgspec.json.encode(External(url=url)) + b"\n")
    else:
        path.unlink(missing_ok=True)


def read_external(folder: Path) -> str:
    """Return the URL for agents elsewhere; "" = unset."""
    try:
        return msgspec.json.decode((folder / EXTERNAL_FILE).read_bytes(), type=External).url
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return ""


def remove_connection(folder: Path, env: Mapping[str, str]) -> None:
    """Remove the connection file."""
    (folder / CONNECTION_FILE).unlink(missing_ok=True)
    state = state_file(env)
    try:
        if state is not None and state.read_text().strip() == str(folder.resolve()):
            state.unlink()
    except OSError:
        pass

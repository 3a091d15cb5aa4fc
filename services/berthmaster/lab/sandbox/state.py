"""The folder of this user's lab, and whether a lab runs.

The supervisor locks a file in the lab's folder. The kernel releases the lock however the supervisor
ends. So a folder without a locked file is a leftover, and `clear` removes it.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from berthmaster.lib.supervisor.folder import state_folder, write_json

LOCK_FILE: Final = "lock"
STATE_FILE: Final = "lab.json"


class LabState(msgspec.Struct, frozen=True, kw_only=True):
    """A lab that is up."""

    pid: int  # of its supervisor
    folder: str
    kubeconfig: str  # with a context per cluster
    hub: str  # name of its context
    workers: list[str]
    namespace: str
    local_queue: str
    annotations: list[str]  # KEY=VALUE of pods that run until deleted
    data: str  # data folder of its `berth up`
    page: str  # URL of the dashboard; "" = none
    took_s: float  # seconds from the start until every worker had a score


class LabRuns(Exception):
    """Another supervisor holds the folder."""


def lab_folder(env: Mapping[str, str]) -> Path:
    """Return the folder of this user's lab, whether it exists or not."""
    return (state_folder(env) or Path(f"/tmp/berth-{os.getuid()}")) / "lab"


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Lock the folder for this process. Raises LabRuns."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabRuns(f"a lab runs in {folder} already") from None
        yield
    finally:
        os.close(fd)


def is_held(folder: Path) -> bool:
    """Return whether a supervisor holds the folder."""
    if not (folder / LOCK_FILE).exists():
        return False
    try:
        with hold(folder):
            return False
    except LabRuns:
        return True


def running(folder: Path) -> LabState | None:
    """Return the lab that is up in this folder; None = none, or still starting."""
    if not is_held(folder):
        return None
    try:
        return msgspec.json.decode((folder / STATE_FILE).read_bytes(), type=LabState)
    except (OSError, msgspec.DecodeError):
        return None


def write_state(folder: Path, state: LabState) -> None:
    """Write the state atomically."""
    write_json(folder / STATE_FILE, state)


def clear(folder: Path) -> bool:
    """Remove an earlier lab's remains, and return whether any existed. Raises LabRuns."""
    if not folder.exists():
        return False
    with hold(folder):
        left = [path for path in folder.iterdir() if path.name != LOCK_FILE]
        for path in left:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        return bool(left)

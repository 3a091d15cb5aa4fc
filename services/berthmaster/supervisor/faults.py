"""Why Berthmaster cannot be started as asked: the errors of starting it, in words for people."""

from typing import Final

from berthmaster.bus.embedded import ServerFailed
from berthmaster.bus.errors import BusError
from berthmaster.bus.keys import KeysError
from berthmaster.bus.permissions import UnknownUser
from berthmaster.supervisor.folder import AlreadyRunning, FolderUnusable
from berthmaster.supervisor.plan import PlanError
from berthmaster.supervisor.processes import NotReady

FAULTS: Final = (
    AlreadyRunning,
    FolderUnusable,
    PlanError,
    NotReady,
    ServerFailed,
    KeysError,
    UnknownUser,
    BusError,
    OSError,
)


def fault_text(error: BaseException) -> str:
    """In words: an operating system's error without its number, with the file it is about."""
    if isinstance(error, OSError) and error.strerror:
        about = f"{error.filename}: " if error.filename is not None else ""
        return f"{about}{error.strerror}"
    return str(error)

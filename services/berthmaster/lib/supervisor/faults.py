"""Errors of starting Berthmaster, with texts for operators."""

from typing import Final

from berthmaster.lib.access.keys import KeysError
from berthmaster.lib.access.permissions import UnknownUser
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.supervisor.embedded import ServerFailed
from berthmaster.lib.supervisor.folder import AlreadyRunning, FolderUnusable
from berthmaster.lib.supervisor.plan import PlanError
from berthmaster.lib.supervisor.processes import NotReady

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
    """Return the text of an error: an operating system's error without the number, with the
    file.
    """
    if isinstance(error, OSError) and error.strerror:
        about = f"{error.filename}: " if error.filename is not None else ""
        return f"{about}{error.strerror}"
    return str(error)

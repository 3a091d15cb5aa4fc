"""Read process data for pods.py, from this machine's /proc or a mounted host's."""

import os
from pathlib import Path
from typing import Final

from berthmaster.worker.telemetry.core.cgroup import MAX_CHARS

STARTED: Final = 19  # field of stat: start time in ticks since boot
_STAT_BYTES: Final = 1024


class ProcFolder:
    """Processes below one /proc folder."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def cgroup(self, pid: int) -> str:
        """The text of PID/cgroup. Raises OSError."""
        return read_kernel_text(f"{self._path}/{pid}/cgroup", MAX_CHARS).decode(errors="replace")

    def name(self, pid: int) -> str:
        """Return the process name, at most 15 characters. Raises OSError."""
        found = read_kernel_text(f"{self._path}/{pid}/comm", 64)
        return found.decode(errors="replace").rstrip("\n")

    def stat(self, pid: int) -> list[bytes]:
        """Return the fields of PID/stat behind the name, which stands in brackets and may hold any
        character. Raises OSError.
        """
        text = read_kernel_text(f"{self._path}/{pid}/stat", _STAT_BYTES)
        return text.rpartition(b")")[2].split()

    def started(self, pid: int) -> int:
        """Return the start time. Raises OSError."""
        try:
            return int(self.stat(pid)[STARTED])
        except (IndexError, ValueError) as error:  # ended during the read
            raise ProcessLookupError(f"{self._path}/{pid}/stat says no start time") from error


def read_kernel_text(path: str, most: int) -> bytes:
    """A file of /proc or of a control group, which has no size. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = b""
        while len(found) < most and (part := os.read(file, most - len(found))):
            found += part  # the kernel hands out a page at a time
        return found
    finally:
        os.close(file)

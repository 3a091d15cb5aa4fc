"""A file that an operator writes and changes while the service runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from berthmaster.lib.runtime.errors import CannotStart

T = TypeVar("T")


class OperatorsFile(Generic[T]):
    """Content of the file as last valid."""

    def __init__(self, name: str, path: Path | None, parse: Callable[[bytes], T]) -> None:
        """Read the file. ``parse`` raises ValueError. Raises CannotStart for a file that is invalid
        from the start.
        """
        self._name = name
        self._path = path
        self._parse = parse
        self._read: tuple[int, int] = (0, 0)  # modification time in ns, and size
        self._wrong = ""
        self.found: T | None = None  # None: no file
        if wrong := self.look():
            raise CannotStart(wrong)

    def look(self) -> str:
        """Read the file again after a change. Return the fault, or "" and use the new content."""
        if self._path is None:
            return ""
        try:
            stat = self._path.stat()
            if (stat.st_mtime_ns, stat.st_size) == self._read:
                return self._wrong
            text = self._path.read_bytes()
        except OSError as error:
            self._read, self._wrong = (0, 0), f"{self._name} cannot be read: {error}"
            return self._wrong
        self._read, self._wrong = (stat.st_mtime_ns, stat.st_size), ""
        try:
            self.found = self._parse(text)
        except ValueError as error:
            self._wrong = f"{self._path}: {error}"
        return self._wrong

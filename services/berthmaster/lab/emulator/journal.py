"""The file that preserves an emulated cluster when its process dies.

Records are appended as lines. A write reaches the kernel before anything is reported, so a kill -9
loses nothing. A power cut may lose records, because an emulator syncs nothing. An incomplete last
line is dropped. At the start, and after much growth, the file is rewritten with only the records of
the present state.
"""

import fcntl
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from berthmaster.lab.emulator.records import DECODER, ENCODER, Record

COMPACT_AT_BYTES: Final = 64 * 1024 * 1024


class JournalError(Exception):
    """The file is invalid or not writable. The text names place and reason."""


def read_journal(path: Path) -> list[Record]:
    """Return all complete records; none without a file. Raises JournalError."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}") from error
    lines.pop()  # text after the last line end: empty, or an incomplete line
    records: list[Record] = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(DECODER.decode(line))
        except msgspec.DecodeError as error:
            raise JournalError(f"{path}, line {number}: {error}; move the file away") from error
    return records


class Journal:
    """A journal open for appending."""

    def __init__(self, path: Path, *, compact_at_bytes: int = COMPACT_AT_BYTES) -> None:
        """Lock the file for this process before the read.

        Two emulators of one cluster would run everything twice. Raises JournalError.
        """
        self._path = path
        self._lock = _locked(path)
        self._compact_at_bytes = compact_at_bytes
        self._file = -1
        self._bytes = 0
        self._limit_bytes = compact_at_bytes

    def begin(self, snapshot: Iterable[Record]) -> None:
        """Rewrite the file atomically with these records. Raises JournalError."""
        fresh = self._path.with_suffix(".new")
        data = _lines(snapshot)
        try:
            fresh.write_bytes(data)
            file = os.open(fresh, os.O_WRONLY | os.O_APPEND)
            fresh.replace(self._path)
        except OSError as error:
            raise JournalError(f"cannot write {self._path}: {error.strerror}") from error
        if self._file >= 0:
            os.close(self._file)
        self._file = file
        self._bytes = len(data)
        self._limit_bytes = max(self._compact_at_bytes, 4 * len(data))

    def write(self, records: Iterable[Record], snapshot: Callable[[], Iterable[Record]]) -> None:
        """Append records, or rewrite a file that is too large from ``snapshot``."""
        data = _lines(records)
        if not data:
            return
        if self._bytes + len(data) > self._limit_bytes:
            self.begin(snapshot())  # the state already includes these records
            return
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            raise JournalError(f"cannot write {self._path}: {error.strerror}") from error
        self._bytes += len(data)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _locked(path: Path) -> int:
    """Return a lock that the kernel releases when the process dies."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path.with_suffix(".lock"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise JournalError(f"cannot write {path}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise JournalError(f"{path} is in use by another emulator") from error
    return lock


def _lines(records: Iterable[Record]) -> bytes:
    return b"".join([ENCODER.encode(record) + b"\n" for record in records])

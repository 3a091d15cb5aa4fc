"""SQLite: a file in its own folder. A write-ahead log, so that reports do not wait for writes.

``synchronous`` is NORMAL. A killed process loses nothing. After a power cut the last whole
transactions may be missing. They are filled again from the log, because the cursor was in the same
transaction.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from berthmaster.control.usage.store.database import Row, StoreError

FILE: Final = "usage.sqlite"
BUSY_MS: Final = 5_000
CACHE_KIB: Final = 64 * 1024


class SqliteWords:
    number = "INTEGER PRIMARY KEY"
    blob = "BLOB"
    double = "REAL"


class Sqlite:
    words = SqliteWords()

    def __init__(self, folder: Path) -> None:
        """Open the file. Raises StoreError."""
        self.path = folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._conn = sqlite3.connect(
                self.path, isolation_level=None, check_same_thread=False, timeout=BUSY_MS / 1000
            )
            for pragma in (
                "journal_mode=WAL",
                "synchronous=NORMAL",
                f"busy_timeout={BUSY_MS}",
                f"cache_size=-{CACHE_KIB}",
                "temp_store=MEMORY",
            ):
                self._conn.execute(f"PRAGMA {pragma}")
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"{self.path}: {error}") from error

    def fetch(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        try:
            return self._conn.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {error}") from error

    def change(self, sql: str, values: Sequence[object] = ()) -> int:
        try:
            return self._conn.execute(sql, values).rowcount
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {error}") from error

    def change_each(self, sql: str, rows: Iterable[Sequence[object]]) -> None:
        try:
            self._conn.executemany(sql, rows)
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {error}") from error

    def begin(self) -> None:
        self.change("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self.change("COMMIT")

    def rollback(self) -> None:
        try:
            if self._conn.in_transaction:
                self._conn.execute("ROLLBACK")
        except sqlite3.Error:
            pass  # a close has the same effect

    def interrupt(self) -> None:
        try:
            self._conn.interrupt()
        except sqlite3.Error:
            pass  # closed, so nothing runs

    def close(self) -> None:
        try:
            self._conn.close()
        except sqlite3.Error:
            pass  # the process drops the connection

    def bytes(self) -> int:
        pages = self.fetch("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
        return int(pages[0][0])

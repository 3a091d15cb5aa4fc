"""PostgreSQL, by psycopg: maintained, fully typed, and blocking, so that the same code writes to
PostgreSQL and SQLite. An unreachable server is noticed within some seconds. The server ends a
statement that takes too long.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import psycopg

from berthmaster.control.usage.store.database import Row, StoreError
from berthmaster.lib.runtime.redact import redact

CONNECT_S: Final = 5
STATEMENT_MS: Final = 60_000
SILENT_MS: Final = 10_000  # time without an acknowledgement after which the connection is dead
WRITERS: Final = 0x62657274  # advisory lock of all replicas, held until the end of a transaction


class PostgresWords:
    number = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    blob = "BYTEA"
    double = "DOUBLE PRECISION"


class Postgres:
    words = PostgresWords()

    def __init__(self, url: str) -> None:
        """Connect. Raises StoreError."""
        parts = urlsplit(url)
        self._name = f"PostgreSQL at {parts.hostname or 'the local socket'}"
        options: dict[str, Any] = {
            "autocommit": True,
            "connect_timeout": CONNECT_S,
            "application_name": "berthmaster-usage",
            "options": f"-c statement_timeout={STATEMENT_MS} -c lock_timeout={SILENT_MS}",
            "tcp_user_timeout": SILENT_MS,
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
        }
        given = dict(parse_qsl(parts.query))
        try:
            self._conn = psycopg.connect(
                url, **{name: value for name, value in options.items() if name not in given}
            )
        except psycopg.Error as error:
            raise self._failed(error) from None

    def _failed(self, error: psycopg.Error) -> StoreError:
        words = " ".join(redact(str(error)).split())
        return StoreError(f"{self._name}: {words or type(error).__name__}")

    def fetch(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        try:
            with self._conn.cursor() as cursor:
                cursor.execute(_spelled(sql), values)
                return cursor.fetchall()
        except psycopg.Error as error:
            raise self._failed(error) from error

    def change(self, sql: str, values: Sequence[object] = ()) -> int:
        try:
            with self._conn.cursor() as cursor:
                cursor.execute(_spelled(sql), values)
                return cursor.rowcount
        except psycopg.Error as error:
            raise self._failed(error) from error

    def change_each(self, sql: str, rows: Iterable[Sequence[object]]) -> None:
        try:
            with self._conn.cursor() as cursor:
                cursor.executemany(_spelled(sql), rows)
        except psycopg.Error as error:
            raise self._failed(error) from error

    def begin(self) -> None:
        self.change("BEGIN")
        self.fetch("SELECT pg_advisory_xact_lock(?)", (WRITERS,))

    def commit(self) -> None:
        self.change("COMMIT")

    def rollback(self) -> None:
        try:
            self._conn.execute("ROLLBACK")
        except psycopg.Error:
            pass  # the connection is gone, and the server rolls back

    def interrupt(self) -> None:
        try:
            self._conn.cancel_safe(timeout=1.0)
        except (psycopg.Error, OSError):
            pass  # the server ends the statement at its own limit

    def close(self) -> None:
        try:
            self._conn.close()
        except psycopg.Error:
            pass  # the process drops the connection

    def bytes(self) -> int:
        return int(self.fetch("SELECT pg_database_size(current_database())")[0][0])


def _spelled(sql: str) -> Any:
    """Return the SQL with psycopg's placeholders, in which a percent sign is doubled."""
    return sql.replace("%", "%%").replace("?", "%s")

"""The interface of a database for the store.

Both adapters are blocking, so one writer serves both. SQL is written once, with ``?`` for values,
in the syntax that both databases accept.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

Row = tuple[Any, ...]


class StoreError(Exception):
    """The store is unavailable. The text gives the reason. A retry may succeed."""


class Database(Protocol):
    """One connection, used by one thread at a time. Every method raises StoreError."""

    @property
    def words(self) -> "Words":
        """Return the words that differ between the databases."""

    def fetch(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        """Return rows of a query, or of a change with RETURNING."""

    def change(self, sql: str, values: Sequence[object] = ()) -> int:
        """Return the number of changed rows."""

    def change_each(self, sql: str, rows: Iterable[Sequence[object]]) -> None: ...

    def begin(self) -> None:
        """Begin a transaction that excludes other writers until its end."""

    def commit(self) -> None:
        """Commit the transaction durably."""

    def rollback(self) -> None:
        """Roll back the transaction. Raises nothing."""

    def interrupt(self) -> None:
        """End the running statement, from another thread. Raises nothing."""

    def close(self) -> None:
        """Close the connection. Raises nothing."""

    def bytes(self) -> int: ...


class Words(Protocol):
    number: str  # type of a primary key with automatic numbers
    blob: str
    double: str

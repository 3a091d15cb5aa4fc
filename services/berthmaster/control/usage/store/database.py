"""What the store needs of a database.

Both adapters are plain and blocking: one way of writing serves both. SQL is written once, with
``?`` for values, in the words that both understand.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

Row = tuple[Any, ...]


class StoreError(Exception):
    """The store cannot be used now; the text says why. Trying again later may do."""


class Database(Protocol):
    """One connection, used by one thread at a time. Every method raises StoreError."""

    @property
    def words(self) -> "Words":
        """Where it differs from the other."""

    def fetch(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        """Rows of a query, or of a change that returns some."""

    def change(self, sql: str, values: Sequence[object] = ()) -> int:
        """How many rows were changed."""

    def change_each(self, sql: str, rows: Iterable[Sequence[object]]) -> None: ...

    def begin(self) -> None:
        """A transaction; nobody else writes until it ends."""

    def commit(self) -> None:
        """All of it, durably."""

    def rollback(self) -> None:
        """None of it. Raises nothing."""

    def interrupt(self) -> None:
        """From another thread: end what runs. Raises nothing."""

    def close(self) -> None:
        """Raises nothing."""

    def bytes(self) -> int: ...


class Words(Protocol):
    number: str  # the type of a primary key that the database counts itself
    blob: str
    double: str

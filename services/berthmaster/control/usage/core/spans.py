"""A period cut into months, days and hours of UTC, with two edges. Pure.

Sums are stored by hour, day and month. A period uses the largest sums that fit. A report over years
thus reads no more sums than one over a few months. The edges are shorter than the smallest sum, and
are computed from single attempts.

Example: the period from 10:30 on 30 January to 01:00 on 2 March has the edge 10:30 to 11:00, the
hours from 11 to 24, 31 January, February, 1 March, and one hour of 2 March.
"""

from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

Size = Literal["hour", "day", "month"]
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
SIZES: Final[tuple[Size, ...]] = ("month", "day", "hour")  # largest first
NUMBER_OF_SIZE: Final[dict[Size, int]] = {"hour": 0, "day": 1, "month": 2}  # in the store


class Cells(NamedTuple):
    """Stored sums of one size, from ``first`` to before ``end``, both UTC in ms."""

    size: Size
    first_ms: int
    end_ms: int


class Edge(NamedTuple):
    """Part of one cell of the smallest size."""

    cell_ms: int
    cell_end_ms: int
    since_ms: int
    until_ms: int


class Cut(NamedTuple):
    """A period in parts without overlap or gap."""

    cells: tuple[Cells, ...]
    edges: tuple[Edge, ...]


def begin_of(size: Size, at_ms: int) -> int:
    """Return the start of the hour, day or month that contains ``at_ms``."""
    if size == "hour":
        return at_ms - at_ms % HOUR_MS
    if size == "day":
        return at_ms - at_ms % DAY_MS
    at = datetime.fromtimestamp(at_ms // 1000, UTC)
    return round(datetime(at.year, at.month, 1, tzinfo=UTC).timestamp()) * 1000


def end_of(size: Size, at_ms: int) -> int:
    if size == "hour":
        return begin_of(size, at_ms) + HOUR_MS
    if size == "day":
        return begin_of(size, at_ms) + DAY_MS
    at = datetime.fromtimestamp(at_ms // 1000, UTC)
    year, month = (at.year + 1, 1) if at.month == 12 else (at.year, at.month + 1)
    return round(datetime(year, month, 1, tzinfo=UTC).timestamp()) * 1000


def cut(since_ms: int, until_ms: int, *, smallest: Size = "hour", largest: Size = "month") -> Cut:
    """Return the parts of a period, in sizes from ``smallest`` to ``largest``."""
    if since_ms >= until_ms:
        return Cut((), ())
    sizes = SIZES[SIZES.index(largest) : SIZES.index(smallest) + 1]
    cells: list[Cells] = []
    edges: list[Edge] = []
    _cut(since_ms, until_ms, sizes, cells, edges)
    return Cut(tuple(cells), tuple(edges))


def _cut(
    since_ms: int, until_ms: int, sizes: tuple[Size, ...], cells: list[Cells], edges: list[Edge]
) -> None:
    """Cut the middle into cells of the first size, and both sides into smaller ones."""
    if since_ms >= until_ms:
        return
    size, rest = sizes[0], sizes[1:]
    first = since_ms if begin_of(size, since_ms) == since_ms else end_of(size, since_ms)
    last = begin_of(size, until_ms)
    if first > last:  # all within one cell
        _side(since_ms, until_ms, size, rest, cells, edges)
        return
    _side(since_ms, first, size, rest, cells, edges)
    if first < last:
        cells.append(Cells(size, first, last))
    _side(last, until_ms, size, rest, cells, edges)


def _side(
    since_ms: int,
    until_ms: int,
    size: Size,
    rest: tuple[Size, ...],
    cells: list[Cells],
    edges: list[Edge],
) -> None:
    """Cut a period within one cell of ``size``."""
    if since_ms >= until_ms:
        return
    if rest:
        _cut(since_ms, until_ms, rest, cells, edges)
    else:
        edges.append(Edge(begin_of(size, since_ms), end_of(size, since_ms), since_ms, until_ms))

"""External text on its way to a terminal, with control characters made visible."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from berthmaster.lib.runtime.visible_text import visible

_NAME_CHARS = 20  # characters of a name that stay on one line on any screen
_ENDLESS = 10_000  # columns


def safe(text: str = "", style: str = "") -> Text:
    """Return text for the screen without control characters.

    Any user may choose names and reasons. An escape sequence could forge or hide an operator's
    output.
    """
    return Text(visible(text), style=style)


def plain_table(*columns: str, right: Iterable[str] = ()) -> Table:
    """Return a table in columns without lines, the same with and without colour.

    On narrow screens, words are folded and numbers (``right``) stay whole.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    numeric = set(right)
    for column in columns:
        if column in numeric:
            table.add_column(column, justify="right", no_wrap=True)
        else:
            table.add_column(column, overflow="fold")
    return table


class WholeOrParts:
    """One table on a wide screen, else narrower tables below each other.

    Example: with 14 columns beside the queue names, 80 columns had no space for a single letter of
    a name. The first column of each table holds names and gets a quarter of the screen.
    """

    def __init__(self, whole: Table, parts: Iterable[Table]) -> None:
        self._whole = whole
        self._parts = tuple(parts)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the tables that fit."""
        unbounded = options.update(width=_ENDLESS)
        if Measurement.get(console, unbounded, self._whole).minimum <= options.max_width:
            yield self._whole
            return
        for number, part in enumerate(self._parts):
            names = part.columns[0]
            longest = max((len(str(cell)) for cell in names.cells), default=0)
            names.width = min(longest, max(_NAME_CHARS, options.max_width // 4))
            if number:
                yield ""
            yield part


def part_table(*columns: str, right: Iterable[str] = (), amounts: Iterable[str] = ()) -> Table:
    """Return a table for WholeOrParts. ``amounts``, numbers that may be lists, fold if
    necessary."""
    folded = set(amounts)
    table = plain_table(*columns, right=[name for name in right if name not in folded])
    for column in table.columns:
        if column.header in folded:
            column.justify, column.min_width = "right", len(str(column.header))
    return table

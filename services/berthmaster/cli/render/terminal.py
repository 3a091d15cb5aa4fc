"""Text from outside on its way to a terminal: what could steer the terminal is made visible."""

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text


def safe(text: str = "", style: str = "") -> Text:
    """Text for the screen. Names and reasons come from anybody, so control characters in them
    must not reach the terminal: an escape sequence could forge or hide what an operator reads."""
    return Text(visible(text), style=style)


def visible(text: str) -> str:
    """The text with everything unprintable shown as its escape; spaces and line ends stay."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text
    )


def plain_table(*columns: str, right: Iterable[str] = ()) -> Table:
    """A table of words in columns, without lines: the same with and without colour. Where there
    is no room for all of it words are folded; numbers (``right``) stay whole."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    numeric = set(right)
    for column in columns:
        if column in numeric:
            table.add_column(column, justify="right", no_wrap=True)
        else:
            table.add_column(column, overflow="fold")
    return table

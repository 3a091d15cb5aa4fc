"""Markdown of generated pages: tables and wrapped paragraphs."""

import textwrap
from collections.abc import Iterable, Sequence

MADE_BY = "<!-- python -m scripts.reference writes this page. -->"
WIDTH = 99


def cell(text: str) -> str:
    """Return the text as it may stand in a table: on one line, pipes and tags escaped."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. Cells are Markdown already."""
    lines = [f"| {' | '.join(line)} |".replace("|  |", "| |") for line in (head, *rows)]
    return "\n".join([lines[0], f"|{'---|' * len(head)}", *lines[1:]])


def wrapped(text: str) -> str:
    """Return the text as one paragraph with short lines."""
    return textwrap.fill(
        " ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False
    )

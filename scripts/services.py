"""Writes the tables of services in the docs, from services.py.

::

    python -m scripts.services          write the tables
    python -m scripts.services --check  exit with 1 where a table differs
"""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from berthmaster.services import SERVICES
from scripts.generated import ROOT, write_or_check

DOCS: Final = ROOT / "docs"
ABOUT: Final = "| name | side | package | what it does |"
PORTS: Final = "| port | service | port | service |"


def about() -> list[str]:
    """Return the table that says where each service runs and what it does."""
    rows = (
        f"| {row.name} | {row.side} | `{row.side}/{row.folder or row.name}/` | {row.about} |"
        for row in SERVICES.values()
    )
    return [ABOUT, "|---|---|---|---|", *rows]


def ports() -> list[str]:
    """Return the table of ports, in two columns."""
    cells = sorted(f"{row.port} | {row.name}" for row in SERVICES.values() if row.port)
    half = (len(cells) + 1) // 2
    right = [*cells[half:], *[" | "] * (2 * half - len(cells))]
    rows = (f"| {one} | {two} |" for one, two in zip(cells[:half], right, strict=True))
    return [PORTS, "|---|---|---|---|", *rows]


PAGES: Final[Mapping[str, Callable[[], list[str]]]] = {
    "contributing/architecture.md": about,
    "reference/services.md": ports,
}


def pages() -> Mapping[Path, str]:
    """Return the pages with tables as they should be."""
    found: dict[Path, str] = {}
    for name, table in PAGES.items():
        rows = table()
        old = re.compile(rf"^{re.escape(rows[0])}\n(\|.*\n)*", re.MULTILINE)
        page = DOCS / name
        text = "\n".join(rows).replace("\\", r"\\")  # a template of re
        found[page] = old.sub(f"{text}\n", page.read_text())
    return found


if __name__ == "__main__":
    sys.exit(write_or_check(pages(), "scripts.services", sys.argv[1:]))

"""Writes or checks generated pages, for every script with `--check`.

::

    sys.exit(write_or_check({PAGE: page()}, "scripts.settings", sys.argv[1:]))
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent


def write_or_check(pages: Mapping[Path, str], module: str, argv: Sequence[str]) -> int:
    """Write the pages that differ; with `--check`, name them instead. Return the exit code."""
    if list(argv) not in ([], ["--check"]):
        print(f"usage: python -m {module} [--check]")
        return 2
    stale = {
        path: text for path, text in pages.items() if not path.exists() or path.read_text() != text
    }
    for path, text in stale.items():
        if argv:
            print(f"{path.relative_to(ROOT)} differs: run python -m {module}")
        else:
            path.write_text(text)
    return 1 if argv and stale else 0

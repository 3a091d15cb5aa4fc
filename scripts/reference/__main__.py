"""Writes the generated pages under docs/: `python -m scripts.reference [--check]`.

With `--check` nothing is written, and the exit code is 1 where a page differs.
"""

import sys

from scripts.reference.pages import ROOT, pages


def main(argv: list[str]) -> int:
    """Write or check the pages. Return the exit code."""
    if argv not in ([], ["--check"]):
        print(__doc__)
        return 2
    stale = {
        path: text
        for path, text in pages().items()
        if not path.exists() or path.read_text() != text
    }
    for path, text in stale.items():
        if argv:
            print(f"{path.relative_to(ROOT)} differs: run python -m scripts.reference")
        else:
            path.write_text(text)
    return 1 if argv and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

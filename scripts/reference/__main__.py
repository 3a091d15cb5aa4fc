"""Writes the generated pages under docs/: `python -m scripts.reference [--check]`.

With `--check` nothing is written, and the exit code is 1 where a page differs.
"""

import sys

from scripts.generated import write_or_check
from scripts.reference.pages import pages

if __name__ == "__main__":
    sys.exit(write_or_check(pages(), "scripts.reference", sys.argv[1:]))

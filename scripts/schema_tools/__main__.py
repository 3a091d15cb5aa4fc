"""Writes schemas/asyncapi.json and schemas/json from the messages.

Usage: scripts/schemas [--check]

--check writes nothing and fails when the files differ from what the messages say.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.schema_tools import contract

ROOT = Path(__file__).resolve().parent.parent.parent / "schemas"


def main(argv: Sequence[str], root: Path = ROOT) -> int:
    """Exit codes: 0 fine, 1 drift, 2 wrong usage."""
    if list(argv) not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    if argv:
        drift = contract.drift(root)
        for path in drift:
            print(f"differs from the messages: {path}; run scripts/schemas", file=sys.stderr)
        return 1 if drift else 0
    written = contract.write(root)
    print(f"{len(written)} files changed in {root}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

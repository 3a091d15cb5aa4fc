"""Writes schemas/ from the messages; says what would break readers of what was published.

Usage: scripts/schemas [--check | --publish [--despite-breaks]]

Without options, schemas/asyncapi.json and schemas/json are written anew. --check writes nothing
and fails when they differ from what is there, or when a published message was broken. --publish
also makes this generation the one that later changes are judged by, unless it breaks the last one.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.schema_tools import contract

ROOT = Path(__file__).resolve().parent.parent.parent / "schemas"
OPTIONS = {"--check", "--publish", "--despite-breaks"}


def main(argv: Sequence[str], root: Path = ROOT) -> int:
    """Exit codes: 0 fine, 1 drift or breaks, 2 wrong usage."""
    asked = set(argv)
    if (
        asked - OPTIONS
        or asked in ({"--despite-breaks"}, OPTIONS)
        or {"--check", "--publish"} <= asked
    ):
        print(__doc__, file=sys.stderr)
        return 2
    breaks = contract.breaks_since(root)
    for broken in breaks:
        print(f"breaks published readers: {broken}", file=sys.stderr)
    if "--check" in asked:
        drift = contract.drift(root)
        for path in drift:
            print(f"differs from the messages: {path}; run scripts/schemas", file=sys.stderr)
        return 1 if drift or breaks else 0
    written = contract.write(root)
    print(f"{len(written)} files changed in {root}")
    if "--publish" not in asked:
        return 1 if breaks else 0
    if breaks and "--despite-breaks" not in asked:
        print("not published", file=sys.stderr)
        return 1
    contract.publish(root)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

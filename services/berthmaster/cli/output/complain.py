"""Lines on standard error, which hold names and reasons of anybody."""

import sys

from berthmaster.lib.runtime.visible_text import visible


def complain(text: str) -> None:
    """Write what is wrong as one message of `berth`. Nothing in it can steer the terminal."""
    sys.stderr.write(f"berth: {visible(text)}\n")
    sys.stderr.flush()

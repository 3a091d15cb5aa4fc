"""Error lines: `complain` writes one, `did_you_mean` suggests the nearest name."""

import sys
from collections.abc import Iterable

from berthmaster.lib.runtime.visible_text import visible


def complain(text: str) -> None:
    """Write an error as one message of `berth`, without terminal control characters."""
    sys.stderr.write(f"berth: {visible(text)}\n")
    sys.stderr.flush()


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return the middle of a sentence, such as ", did you mean t4?", or ""."""
    from berthmaster.lib.messages.explain import nearest

    found = nearest(word, names)
    return f", did you mean {found}?" if found and found != word else ""

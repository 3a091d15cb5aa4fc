"""Error lines: `complain` writes one, `did_you_mean` suggests the name that was meant."""

import sys
from collections.abc import Iterable

from berthmaster.lib.runtime.visible_text import visible


def complain(text: str) -> None:
    """Write what is wrong as one message of `berth`. Nothing in it can steer the terminal."""
    sys.stderr.write(f"berth: {visible(text)}\n")
    sys.stderr.flush()


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return the middle of a sentence, such as ", did you mean t4?", or ""."""
    from berthmaster.lib.messages.explain import nearest

    found = nearest(word, names)
    return f", did you mean {found}?" if found and found != word else ""

"""What somebody who misspelt a name may have meant, in the words of commands. Pure."""

from collections.abc import Iterable

from berthmaster.lib.messages.explain import nearest


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """As the middle of a sentence: ", did you mean t4?", or nothing."""
    found = nearest(word, names)
    return f", did you mean {found}?" if found and found != word else ""

"""What somebody who misspelt a name may have meant. Pure."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, names: Iterable[str]) -> str:
    """The name that is most like it, whatever its case; "" if none is."""
    spelt = {name.casefold(): name for name in names}
    found = get_close_matches(word.casefold(), spelt, n=1, cutoff=0.7)
    return spelt[found[0]] if found else ""


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """As the middle of a sentence: ", did you mean t4?", or nothing."""
    found = nearest(word, names)
    return f", did you mean {found}?" if found and found != word else ""

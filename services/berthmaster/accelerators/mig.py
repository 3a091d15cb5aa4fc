"""MIG profiles, as 1g.10gb or 1c.3g.40gb+me: what their names tell. Pure."""

import re
from typing import Final, NamedTuple

SLICES: Final = 7  # of a GPU's compute
WORDS: Final = r"(?:[1-7]c\.)?([1-7])g\.([0-9]{1,3})gb(?:[.+][a-z.+]+)?"
_PROFILE: Final = re.compile(rf"{WORDS}\Z")


class Profile(NamedTuple):
    """What a slice has."""

    slices: int
    memory_mib: int


def profile(name: str) -> Profile | None:
    """What a profile's name tells; None if it is spelt as none is."""
    found = _PROFILE.match(name)
    return Profile(int(found[1]), int(found[2]) * 1024) if found is not None else None

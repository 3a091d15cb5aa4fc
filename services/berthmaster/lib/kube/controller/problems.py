"""What is wrong with objects that facts are made of. Pure."""

from collections.abc import Iterable
from typing import Final, NamedTuple

UNREADABLE: Final = "unreadable"
MAX_PROBLEMS: Final = 10_000  # kept; beyond it only counted


class Unlisted(NamedTuple):
    """A kind that an API server does not let us list, although it answers."""

    kind: str  # such as nodes: its plural, or the name of the part that is watched
    name: str  # for people, such as resourceslices.resource.k8s.io
    why: str  # the API server's words
    for_s: float  # since the first failure


class Problem(NamedTuple):
    """Something that cannot be right, and the object that it was found in."""

    kind: str
    name: str  # with its namespace before a slash, where it has one
    text: str


class Problems:
    """What is wrong at present, and what of it nobody has been told."""

    def __init__(self) -> None:
        self._now: dict[tuple[str, str], tuple[str, ...]] = {}
        self._new: list[Problem] = []

    def set(self, kind: str, name: str, texts: tuple[str, ...]) -> None:
        """All that is wrong with one object; nothing: it is in order."""
        key = (kind, name)
        before = self._now.get(key, ())
        if texts == before:
            return
        if not texts:
            del self._now[key]
            return
        if before or len(self._now) < MAX_PROBLEMS:
            self._now[key] = texts
        if len(self._new) < MAX_PROBLEMS:
            self._new += [Problem(kind, name, text) for text in texts if text not in before]

    def doubt(self, kind: str, key: tuple[str, str], why: str) -> None:
        """An object that cannot be read."""
        self.set(f"{UNREADABLE} {kind}", named(key), (why,))

    def doubted(self, kind: str, keys: Iterable[tuple[str, str]]) -> None:
        """All objects of a kind that cannot be read at present."""
        known = {named(key) for key in keys}
        head = f"{UNREADABLE} {kind}"
        for kind_, name in [key for key in self._now if key[0] == head and key[1] not in known]:
            self.set(kind_, name, ())

    def take_new(self) -> list[Problem]:
        """What nobody has been told yet."""
        taken, self._new = self._new, []
        return taken

    def count(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for kind, _ in self._now:
            counts[kind] = counts.get(kind, 0) + 1
        return counts


def named(key: tuple[str, str]) -> str:
    """A namespace and a name as people write them."""
    return f"{key[0]}/{key[1]}" if key[0] else key[1]

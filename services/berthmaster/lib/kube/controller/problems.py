"""Problems of the objects that facts are made of. Pure."""

from collections.abc import Iterable
from typing import Final, NamedTuple

UNREADABLE: Final = "unreadable"
MAX_PROBLEMS: Final = 10_000  # limit of stored problems; more are not stored


class Unlisted(NamedTuple):
    """A kind that cannot be listed although the API server answers."""

    kind: str  # plural such as nodes, or the name of the watched part
    name: str  # for operators, such as resourceslices.resource.k8s.io
    why: str  # the API server's message
    for_s: float  # seconds since the first failure


class Problem(NamedTuple):
    """An impossible value, and the object that holds the value."""

    kind: str
    name: str  # with its namespace before a slash, if namespaced
    text: str


class Problems:
    """The current problems, and those not reported yet."""

    def __init__(self) -> None:
        self._now: dict[tuple[str, str], tuple[str, ...]] = {}
        self._new: list[Problem] = []

    def set(self, kind: str, name: str, texts: tuple[str, ...]) -> None:
        """Set all problems of one object. No texts mean that the object is in order."""
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
        """Record an object that cannot be decoded."""
        self.set(f"{UNREADABLE} {kind}", named(key), (why,))

    def doubted(self, kind: str, keys: Iterable[tuple[str, str]]) -> None:
        """Set all objects of a kind that currently cannot be decoded."""
        known = {named(key) for key in keys}
        head = f"{UNREADABLE} {kind}"
        for kind_, name in [key for key in self._now if key[0] == head and key[1] not in known]:
            self.set(kind_, name, ())

    def take_new(self) -> list[Problem]:
        """Return the problems not reported since the last call."""
        taken, self._new = self._new, []
        return taken

    def count(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for kind, _ in self._now:
            counts[kind] = counts.get(kind, 0) + 1
        return counts


def named(key: tuple[str, str]) -> str:
    """Return namespace and name as kubectl shows them."""
    return f"{key[0]}/{key[1]}" if key[0] else key[1]

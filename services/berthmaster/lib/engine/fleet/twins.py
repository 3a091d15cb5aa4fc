"""Which names of clusters mean one API server, and which of these names counts. Pure.

An API server is known by the UID of its namespace kube-system. Example: `east` and `berlin` both
report the UID 5c1e…; `east` reported it first, so `berlin` is the twin of `east`. A twin takes no
jobs and adds no capacity. A name that an operator declared lost does not count, so a cluster that
was renamed counts again once its old name is declared lost.
"""

from collections.abc import Iterable
from typing import Final

from berthmaster.lib.messages.fleet import ClusterProfile

TWIN: Final = "the same cluster as another"


class Twins:
    """The names with a UID, from their newest profiles."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, float]] = {}  # name -> UID, since when
        self._names: dict[str, set[str]] = {}  # UID -> names
        self._lost: set[str] = set()
        self._first: dict[str, str] = {}  # UID -> the name that counts

    @classmethod
    def of(cls, profiles: Iterable[ClusterProfile], lost: Iterable[str] = ()) -> "Twins":
        """Return the twins among these clusters."""
        twins = cls()
        twins._lost |= set(lost)
        for profile in profiles:
            twins.put(profile)
        return twins

    def put(self, profile: ClusterProfile) -> set[str]:
        """Take over a cluster's newest profile. Return the names whose first name may differ."""
        name, now = profile.cluster, (profile.uid, profile.uid_since_s)
        before = self._known.get(name)
        if now == before:
            return set()
        changed = self.drop(name) if before is not None else set()
        if profile.uid:
            self._known[name] = now
            self._names.setdefault(profile.uid, set()).add(name)
            changed |= self._settle(profile.uid)
        return changed

    def drop(self, name: str) -> set[str]:
        """Forget a cluster. Return the names whose first name may differ."""
        uid, _ = self._known.pop(name, ("", 0.0))
        if not uid:
            return set()
        self._names[uid].discard(name)
        return {name} | self._settle(uid)

    def set_lost(self, name: str, lost: bool) -> set[str]:
        """Take over whether an operator declared a name lost. Return as ``put``."""
        (self._lost.add if lost else self._lost.discard)(name)
        uid, _ = self._known.get(name, ("", 0.0))
        return self._settle(uid) if uid else set()

    def first(self, name: str) -> str:
        """Return the name that counts instead of this one; "" if this one counts."""
        uid, _ = self._known.get(name, ("", 0.0))
        first = self._first.get(uid, "")
        return "" if first == name else first

    def _settle(self, uid: str) -> set[str]:
        """Choose the name that counts. Return all names of the UID if the choice is another."""
        names = self._names.get(uid, set())
        if not names:
            self._names.pop(uid, None)
            self._first.pop(uid, None)
            return set()
        there = names - self._lost
        first = min(there or names, key=lambda name: (self._known[name][1], name))
        self._first[uid] = first
        return set(names)

"""Objects whose newest version came with an answer to a write, not yet from the watch. Pure.

Answers and watch events use separate connections and arrive in any order. An older version must
never replace a newer one, because the next change may never come, and the core would decide on
stale data. So the core gets the versions of each object in order, each version once.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from berthmaster.lib.kube.objects import Object, key_of, older

AHEAD_S: Final = 60.0  # limit until the watch has caught up; a restored server's versions never do
_ObjectKey = tuple[str, str]


class ObjectChange(NamedTuple):
    """A change for the core: the current object, or its last version if deleted."""

    thing: Object
    gone: bool


class _Shown(NamedTuple):
    thing: Object
    until_s: float


class NewerObjects:
    """The objects of one mirror with a version newer than the mirror's."""

    def __init__(self) -> None:
        self._shown: dict[_ObjectKey, _Shown] = {}

    def on_answer(
        self, found: Object, mirrored: Mapping[_ObjectKey, Object], version: str, now_s: float
    ) -> list[ObjectChange]:
        """Return the changes shown by an answer.

        ``mirrored`` and ``version`` are the mirror's objects and its resource version. An object
        missing from the mirror had been deleted by that version.
        """
        key = key_of(found.metadata)
        shown = self._shown.get(key)
        known = shown.thing if shown is not None else mirrored.get(key)
        if known is not None:
            version = known.metadata.resource_version
        if not older(version, found.metadata.resource_version):
            return []
        self._shown[key] = _Shown(found, now_s + AHEAD_S)
        new = [ObjectChange(found, False)]
        if known is not None and known.metadata.uid != found.metadata.uid:
            return [ObjectChange(known, True), *new]
        return new

    def on_watched(self, thing: Object, gone: bool, now_s: float) -> list[ObjectChange]:
        """Return the changes of the mirror that are new to the core."""
        key, new = key_of(thing.metadata), [ObjectChange(thing, gone)]
        shown = self._shown.get(key)
        if shown is None:
            return new
        meta, known = thing.metadata, shown.thing.metadata
        if older(meta.resource_version, known.resource_version) and now_s < shown.until_s:
            return []
        del self._shown[key]
        if meta.uid != known.uid:
            return new if gone else [ObjectChange(shown.thing, True), *new]
        same = meta.resource_version == known.resource_version
        return [] if same and not gone else new

    def on_listed(self, mirrored: Mapping[_ObjectKey, Object], version: str) -> list[ObjectChange]:
        """Return the objects that a complete list as of this version shows as deleted."""
        reached = [
            key
            for key, shown in self._shown.items()
            if not older(version, shown.thing.metadata.resource_version)
        ]
        settled = [(key, self._shown.pop(key).thing) for key in reached]
        return [ObjectChange(thing, True) for key, thing in settled if key not in mirrored]

    def forget(self, now_s: float) -> None:
        """Drop objects that the mirror has not confirmed in time."""
        for key in [key for key, shown in self._shown.items() if now_s >= shown.until_s]:
            del self._shown[key]

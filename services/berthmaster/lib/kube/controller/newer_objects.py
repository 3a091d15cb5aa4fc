"""Objects that answers to our writes show in a newer version than the watch. Pure.

Answers and watches come on connections of their own, in any order. An older object must never
replace a newer one: the next change of it may never come, and a core would decide on the past. So
the core gets the versions of each object in order, and each of them once.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from berthmaster.lib.kube.objects import Object, key_of, older

AHEAD_S: Final = 60.0  # the watch has caught up by then; a restored server's versions never do
_ObjectKey = tuple[str, str]


class ObjectChange(NamedTuple):
    """A change for the core: an object as it is, or its last version if it is gone."""

    thing: Object
    gone: bool


class _Shown(NamedTuple):
    thing: Object
    until_s: float


class NewerObjects:
    """The objects of one mirror that are known in a newer version than its own."""

    def __init__(self) -> None:
        self._shown: dict[_ObjectKey, _Shown] = {}

    def on_answer(
        self, found: Object, mirrored: Mapping[_ObjectKey, Object], version: str, now_s: float
    ) -> list[ObjectChange]:
        """Return the changes that an answer shows. ``mirrored``, ``version``: the mirror's objects,
        and the version that it has reached. An object that it lacks was gone by then."""
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
        """Return the changes that are new in a change of the mirror."""
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
        """Return the objects that are gone by a list of all as of this version."""
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

"""Objects that answers to our writes show in a newer version than the watch. Pure.

Answers and watches come on connections of their own, in any order. An older object must never
replace a newer one: the next change of it may never come, and a core would decide on the past. So
the core gets the versions of each object in order, and each of them once.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from berthmaster.lib.kube.objects import Object, key_of, older

AHEAD_S: Final = 60.0  # a watch has told by then; the versions of a restored server never get there
_ObjectKey = tuple[str, str]


class ObjectChange(NamedTuple):
    """What the core is to be told: an object as it is, or as it was when it went."""

    thing: Object
    gone: bool


class _Shown(NamedTuple):
    thing: Object
    until_s: float


class NewerObjects:
    """Of one mirror, the objects that are known better than it tells."""

    def __init__(self) -> None:
        self._shown: dict[_ObjectKey, _Shown] = {}

    def answered(
        self, found: Object, mirrored: Mapping[_ObjectKey, Object], version: str, now_s: float
    ) -> list[ObjectChange]:
        """An answer shows this; what of it is news. ``mirrored``, ``version``: what the mirror has,
        and as of when: what it has no more by then is gone since."""
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

    def told(self, thing: Object, gone: bool, now_s: float) -> list[ObjectChange]:
        """The mirror tells this; what of it is news."""
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

    def listed(self, mirrored: Mapping[_ObjectKey, Object], version: str) -> list[ObjectChange]:
        """The mirror has listed all as of this version: what it lacks is gone."""
        reached = [
            key
            for key, shown in self._shown.items()
            if not older(version, shown.thing.metadata.resource_version)
        ]
        settled = [(key, self._shown.pop(key).thing) for key in reached]
        return [ObjectChange(thing, True) for key, thing in settled if key not in mirrored]

    def forget(self, now_s: float) -> None:
        """What the mirror has not told in time, it will not tell."""
        for key in [key for key, shown in self._shown.items() if now_s >= shown.until_s]:
            del self._shown[key]

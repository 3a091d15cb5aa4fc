"""The objects of one resource in a reflector: lists and events in, changes out. Pure.

Rules:

- Each object is reported as added, updated and deleted, in that order.
- Unchanged objects are not reported.
- After a complete list the mirror equals the server's state, and every vanished object has been
  reported as deleted. An interrupted list removes nothing.
- Long annotations, up to 256 KiB an object, are emptied to save memory. The key stays, so that a
  reader sees that the annotation exists.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, TypeVar

from berthmaster.lib.kube.objects import Object, key_of
from berthmaster.lib.kube.wire import Page, Undecodable, UndecodableEvent, WatchEvent

T = TypeVar("T", bound=Object)
Key = tuple[str, str]  # namespace, name

MAX_ANNOTATION_CHARS: Final = 4096  # longest annotation kept; whole manifests are longer


class Added(NamedTuple, Generic[T]):
    """A new object."""

    object: T
    previous: None = None


class Updated(NamedTuple, Generic[T]):
    """A changed object, and the mirror's previous version."""

    object: T
    previous: T


class Deleted(NamedTuple, Generic[T]):
    """The last known version of a deleted object, and the mirror's previous version."""

    object: T
    previous: T


class Unreadable(NamedTuple, Generic[T]):
    """An object that does not match the form of its kind. ``previous`` stays in the mirror."""

    object: Undecodable
    previous: T | None


class Listed(NamedTuple):
    """The mirror equals the server's state as of this resource version."""

    resource_version: str


def shed_long_annotations(found: Object) -> None:
    """Empty the long annotations of an object that no other code has read yet."""
    annotations = found.metadata.annotations
    for name, text in annotations.items():
        if len(text) > MAX_ANNOTATION_CHARS:
            annotations[name] = ""


Change = Added[T] | Updated[T] | Deleted[T] | Unreadable[T] | Listed


def mirrored(change: Change[T]) -> tuple[T, bool] | None:
    """Return the mirror's current or last object, and whether it is deleted.

    Return None for a change without a readable object.
    """
    match change:
        case Added() | Updated():
            return change.object, False
        case Deleted():
            return change.previous, True
        case _:
            return None


class Mirror(Generic[T]):
    """The objects of one resource as last seen."""

    def __init__(self, on_change: Callable[[Change[T]], None]) -> None:
        self._on_change = on_change
        self._objects: dict[Key, T] = {}
        self._unreadable: dict[Key, Undecodable] = {}
        self._listed: set[Key] = set()
        self.objects: Mapping[Key, T] = MappingProxyType(self._objects)
        self.unreadable: Mapping[Key, Undecodable] = MappingProxyType(self._unreadable)
        self.resource_version = ""

    def page(self, page: Page[T]) -> None:
        """Apply one page of a list. The last page completes the list."""
        if page.first:
            self._listed = set()
        for found in page.items:
            self._listed.add(key_of(found.metadata))
            self._set(found)
        for bad in page.undecodable:
            self._listed.add((bad.namespace, bad.name))
            self._doubt(bad)
        if not page.last:
            return
        for key in [key for key in self._objects if key not in self._listed]:
            gone = self._objects.pop(key)
            self._on_change(Deleted(gone, gone))
        for key in [key for key in self._unreadable if key not in self._listed]:
            del self._unreadable[key]
        self._listed = set()
        self.resource_version = page.resource_version
        self._on_change(Listed(page.resource_version))

    def event(self, event: WatchEvent[T]) -> None:
        # Update the version last, so that the next watch repeats a change that failed half-way.
        if event.type == "DELETED":
            self._forget(event.object)
        elif event.type != "BOOKMARK":
            self._set(event.object)
        if event.resource_version:
            self.resource_version = event.resource_version

    def undecodable(self, event: UndecodableEvent) -> None:
        """Apply an event whose object cannot be decoded."""
        bad = event.object
        if event.type == "DELETED":
            key = (bad.namespace, bad.name)
            self._unreadable.pop(key, None)
            if (gone := self._objects.pop(key, None)) is not None:
                self._on_change(Deleted(gone, gone))
        else:
            self._doubt(bad)
        if bad.resource_version:
            self.resource_version = bad.resource_version

    def _set(self, found: T) -> None:
        key = key_of(found.metadata)
        shed_long_annotations(found)
        self._unreadable.pop(key, None)
        previous = self._objects.get(key)
        if previous is None:
            self._objects[key] = found
            self._on_change(Added(found))
        elif previous.metadata.uid != found.metadata.uid:
            # Deleted and created again between two lists: two objects, not one update.
            del self._objects[key]
            self._on_change(Deleted(previous, previous))
            self._objects[key] = found
            self._on_change(Added(found))
        elif previous.metadata.resource_version != found.metadata.resource_version:
            self._objects[key] = found
            self._on_change(Updated(found, previous))

    def _forget(self, gone: T) -> None:
        key = key_of(gone.metadata)
        self._unreadable.pop(key, None)
        previous = self._objects.pop(key, None)
        if previous is not None:
            self._on_change(Deleted(gone, previous))

    def _doubt(self, bad: Undecodable) -> None:
        key = (bad.namespace, bad.name)
        if self._unreadable.get(key) == bad:
            return
        self._unreadable[key] = bad
        self._on_change(Unreadable(bad, self._objects.get(key)))

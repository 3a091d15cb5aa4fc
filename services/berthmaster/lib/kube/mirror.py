"""What a reflector knows of a resource: lists and events in, changes out. Pure.

Rules: each object is told as added, updated and deleted in that order; nothing unchanged is told;
after a complete list the mirror is what the server has, and all that vanished was told before. A
list that was cut short removes nothing. What tools leave in annotations, which may be 256 KiB an
object, is not kept: the text of a long one is "", so that a reader sees that there was one.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, TypeVar

from berthmaster.lib.kube.objects import Object, key_of
from berthmaster.lib.kube.wire import Page, Undecodable, UndecodableEvent, WatchEvent

T = TypeVar("T", bound=Object)
Key = tuple[str, str]  # namespace, name

MAX_ANNOTATION_CHARS: Final = 4096  # of one that is kept; whole manifests are longer


class Added(NamedTuple, Generic[T]):
    """An object that was not there before."""

    object: T
    previous: None = None


class Updated(NamedTuple, Generic[T]):
    """An object as it is now, and as it was in the mirror."""

    object: T
    previous: T


class Deleted(NamedTuple, Generic[T]):
    """The last that is known of an object that is gone, and as it was in the mirror."""

    object: T
    previous: T


class Unreadable(NamedTuple, Generic[T]):
    """An object in a form that its kind does not promise; ``previous`` stays in the mirror."""

    object: Undecodable
    previous: T | None


class Listed(NamedTuple):
    """The mirror is the server's state as of this resource version."""

    resource_version: str


def shed_long_annotations(found: Object) -> None:
    """Empty those that are longer than is kept, of an object that nobody else has yet."""
    annotations = found.metadata.annotations
    for name, text in annotations.items():
        if len(text) > MAX_ANNOTATION_CHARS:
            annotations[name] = ""


Change = Added[T] | Updated[T] | Deleted[T] | Unreadable[T] | Listed


def mirrored(change: Change[T]) -> tuple[T, bool] | None:
    """The object that a mirror has now, or had until now, and whether it is gone; None: the change
    is about no object that can be read."""
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
        """Take one page of a list; the last one makes the list complete."""
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
        # First, so that a change that fails half-way is not taken for applied by the next watch.
        if event.type == "DELETED":
            self._forget(event.object)
        elif event.type != "BOOKMARK":
            self._set(event.object)
        if event.resource_version:
            self.resource_version = event.resource_version

    def undecodable(self, event: UndecodableEvent) -> None:
        """Take an event whose object could not be read."""
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
            # Deleted and made again while nobody looked: two lives, not one that changed.
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

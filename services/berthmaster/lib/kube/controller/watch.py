"""The watched kinds of a service: one mirror for each kind, which feeds the core.

The core interprets changes. The watch

- reports whether enough is known to act: every kind is listed, or optional and not served,
- sets health and metrics,
- skips each object that cannot be decoded or makes the core raise, without stopping others,
- also feeds the core with objects from answers to its writes, in one order with the watched
  versions (newer_objects.py).
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.aside import Phase, SetAside
from berthmaster.lib.kube.controller.controller_metrics import CallMetrics
from berthmaster.lib.kube.controller.newer_objects import NewerObjects, ObjectChange
from berthmaster.lib.kube.mirror import (
    Added,
    Change,
    Deleted,
    Listed,
    Unreadable,
    Updated,
    shed_long_annotations,
)
from berthmaster.lib.kube.objects import Metadata, Object, key_of
from berthmaster.lib.kube.reflector import PAGE, SURE_S, Reflector
from berthmaster.lib.kube.resources import Resource
from berthmaster.lib.runtime.service import Context

NEVER_S: Final = 1e9  # age shown for a mirror that has received nothing yet


class Watched(NamedTuple):
    """A mirrored kind, or the objects of a kind that match the selectors."""

    resource: Resource
    struct: type[Object]
    optional: bool = False  # a server may lack the kind
    deniable: bool = False  # of an optional kind: access may be denied, too
    namespace: str = ""
    labels: str = ""  # label selector
    fields: str = ""  # field selector
    page: int = PAGE  # objects in one page of a list
    part: str = ""  # name of the selected objects, where a kind is mirrored in several parts

    @property
    def name(self) -> str:
        """The name in health and metrics, and for requests to a ``Watch``."""
        return self.part or self.resource.plural


OnObject = Callable[[Watched, Any, bool], None]  # watched kind, object, whether deleted
OnListed = Callable[[Watched], None]


class Watch:
    """All watched kinds, each mirrored by a task of its own."""

    def __init__(
        self,
        ctx: Context[Any],
        client: Client,
        watched: Iterable[Watched],
        aside: SetAside,
        *,
        on_object: OnObject | None = None,
        on_listed: OnListed | None = None,
        on_change: Callable[[], None] | None = None,
        absent_s: float,
        sure_s: float = SURE_S,
    ) -> None:
        """Callbacks and times:

        - ``on_object``: gets the current object, or its last version if deleted. An exception skips
          the object.
        - ``on_listed``: called when all objects of a kind are known.
        - ``on_change``: called after each change of any kind.
        - ``absent_s``: seconds between two lists of a kind that is not served.
        - ``sure_s``: seconds until an answer that a kind is not served is relied on.
        """
        self._ctx = ctx
        self.log = ctx.log
        self.aside = aside
        self._on_object = on_object
        self._on_listed = on_listed
        self._on_change = on_change
        self._sure_s = sure_s
        self.now = asyncio.get_running_loop().time
        metrics = ctx.metrics
        self._objects = metrics.gauge("objects", "Mirrored objects", ["resource"])
        self._bad = metrics.gauge("unreadable_objects", "Malformed objects", ["resource"])
        self._lists = metrics.gauge("mirror_lists", "Lists of a kind", ["resource"])
        self._age_s = metrics.gauge(
            "mirror_age_seconds", "Seconds since the last news of a watch", ["resource"]
        )
        self._calls = CallMetrics(metrics, client, "Calls of the API")
        self.watched = {one.name: one for one in watched}
        self.reflectors: dict[str, Reflector[Any]] = {
            one.name: Reflector(
                client,
                one.resource,
                one.struct,
                namespace=one.namespace,
                label_selector=one.labels,
                field_selector=one.fields,
                page=one.page,
                on_change=partial(self._on_one, one),
                absent_s=absent_s,
                log=ctx.log,
            )
            for one in self.watched.values()
        }
        self._newer = {name: NewerObjects() for name in self.watched}

    def start(self) -> None:
        """Mirror until the service stops."""
        self.show()
        for name, reflector in self.reflectors.items():
            self._ctx.spawn(reflector.run(self._ctx.stopping), name=f"mirror of {name}")

    def has(self, name: str) -> bool:
        """Return whether a kind is mirrored, and all its objects are known."""
        return name in self.reflectors and self.reflectors[name].caught_up

    def lacks(self, name: str) -> bool:
        """Return whether an optional kind is reliably not served."""
        reflector = self.reflectors[name]
        surely = reflector.faults.absent_for_s(self.now()) >= self._sure_s
        return surely and self.watched[name].optional

    def excused(self, name: str) -> bool:
        """Return whether the service is ready without a mirror of this kind."""
        return self.lacks(name)

    @property
    def lacking(self) -> list[str]:
        return [name for name in self.reflectors if self.lacks(name)]

    @property
    def complete(self) -> bool:
        """Whether all is known, so that an object missing here does not exist."""
        return all(self.has(name) or self.lacks(name) for name in self.reflectors)

    @property
    def trouble(self) -> str:
        """The reason why the mirrors may be stale, or ""."""
        reasons = (
            one.faults.reason for name, one in self.reflectors.items() if not self.lacks(name)
        )
        return next((why for why in reasons if why), "")

    def show(self) -> None:
        now_s = self.now()
        for name, reflector in self.reflectors.items():
            excused = self.excused(name)
            good = excused or (reflector.caught_up and not reflector.faults.reason)
            why = reflector.faults.reason or "not listed yet"
            self._ctx.health.ready(f"mirror of {name}", good, why, note=why if excused else "")
            self._objects.labels(name).set(len(reflector.objects))
            self._bad.labels(name).set(len(reflector.unreadable))
            self._lists.labels(name).set(reflector.lists)
            self._age_s.labels(name).set(min(reflector.age_s(now_s), NEVER_S))
            self._newer[name].forget(now_s)
        self._calls.show()
        self._forget_unreadable()

    def answered(self, found: object) -> None:
        """Feed the core with an object from an answer, if watched and newer than known."""
        if not isinstance(found, Object) or (one := self._holding(found)) is None:
            return
        mirror, ahead = self.reflectors[one.name], self._newer[one.name]
        shed_long_annotations(found)
        version = mirror.resource_version
        self._feed(one, ahead.on_answer(found, mirror.objects, version, self.now()))

    def _holding(self, thing: Object) -> Watched | None:
        """Return the watched kind of an object, or None if not watched or not unique."""
        found = [one for one in self.watched.values() if one.struct is type(thing)]
        if len(found) != 1 or found[0].namespace not in ("", thing.metadata.namespace):
            return None
        return found[0]

    def unreadable(self, name: str) -> dict[str, str]:
        """Return the objects of a kind that cannot be decoded: name -> reason."""
        return {key[1]: bad.why for key, bad in self.reflectors[name].unreadable.items()}

    def _on_one(self, one: Watched, change: Change[Any]) -> None:
        self.apply(one, change)
        if self._on_change is not None:
            self._on_change()

    def apply(self, one: Watched, change: Change[Any]) -> None:
        """Apply one change of a mirror. Raise nothing."""
        match change:
            case Added() | Updated():
                self._feed(one, self._changes(one, change.object, gone=False))
            case Deleted():
                last = _last(change.object, change.previous)
                self._feed(one, self._changes(one, last, gone=True))
                self.aside.gone(one.resource, key_of(change.previous.metadata))
            case Unreadable():
                self._set_aside(one, change)
            case Listed():
                mirrored = self.reflectors[one.name].objects
                self._feed(one, self._newer[one.name].on_listed(mirrored, change.resource_version))
                if self._on_listed is not None:
                    self._on_listed(one)

    def _changes(self, one: Watched, thing: Object, *, gone: bool) -> list[ObjectChange]:
        self.aside.clear(Phase.READING, one.resource, key_of(thing.metadata))
        return self._newer[one.name].on_watched(thing, gone, self.now())

    def _feed(self, one: Watched, changes: Iterable[ObjectChange]) -> None:
        if self._on_object is None:
            return
        for thing, gone in changes:
            with self.aside.trying(Phase.HEARING, one.resource, thing.metadata):
                self._on_object(one, thing, gone)

    def _set_aside(self, one: Watched, change: Unreadable[Any]) -> None:
        bad = change.object
        name = f"{bad.namespace}/{bad.name}" if bad.namespace else bad.name
        self.log.warning("malformed object", resource=one.name, name=name, why=bad.why)
        about = Metadata(name=bad.name, namespace=bad.namespace)
        if change.previous is not None:
            about = change.previous.metadata
        self.aside.put(Phase.READING, one.resource, about, bad.why)

    def _forget_unreadable(self) -> None:
        """Clear objects that were deleted or can be decoded now."""
        for resource in {one.resource for one in self.watched.values()}:
            still = {
                key
                for one in self.watched.values()
                if one.resource == resource
                for key in self.reflectors[one.name].unreadable
            }
            for key in self.aside.keys(Phase.READING, resource):
                if key not in still:
                    self.aside.clear(Phase.READING, resource, key)


def metadata_of(change: Change[Any]) -> Metadata:
    """Return the metadata of the changed object, empty for a change of a whole kind."""
    match change:
        case Listed():
            return Metadata()
        case Unreadable(object=bad):
            return Metadata(name=bad.name, namespace=bad.namespace)
        case _:
            metadata: Metadata = change.object.metadata
            return metadata


def _last(final: Object, known: Object) -> Object:
    """Return the last known version of a deleted object, with the resource version of its deletion.

    The final version may lack the labels by which the object was known: losing a selected label
    also shows as a deletion.
    """
    version = final.metadata.resource_version
    meta = msgspec.structs.replace(known.metadata, resource_version=version)
    return msgspec.structs.replace(known, metadata=meta)

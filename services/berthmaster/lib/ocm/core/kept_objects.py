"""The objects that a core maintains: which are due, and their state. Pure.

At most one write of an object is in flight. The server's answer counts until the watch shows the
same or a newer version, so that a stale watch is not mistaken for another writer's change. Resource
versions are compared as numbers, guaranteed by Kubernetes from 1.35 on. If a version is no number,
the watch's object counts.
"""

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Final, Generic, NamedTuple, Protocol, TypeVar, cast

import msgspec

from berthmaster.lib.kube.controller.aside import Phase, SetAside
from berthmaster.lib.kube.controller.shell_contract import Answer, KubeEvent, Outcome
from berthmaster.lib.kube.objects import Metadata, Object, older
from berthmaster.lib.kube.resources import Resource
from berthmaster.lib.ocm.core.pace import Pace, Rules

Key = tuple[str, str, str]  # kind, namespace, name


class Create(msgspec.Struct, frozen=True):
    """Create an object."""

    key: Key


class Keyed(Protocol):
    """A write of one object."""

    @property
    def key(self) -> Key: ...


T = TypeVar("T", bound=Object)
W = TypeVar("W", bound=Keyed)
MAX_ON_THE_WAY: Final = 16  # writes in flight at once, of all objects together


class Kind(NamedTuple):
    """A kind of object, and the struct for decoding."""

    resource: Resource
    struct: type[Object]


class Look(NamedTuple, Generic[W]):
    """The comparison of one object with its wanted state."""

    gap: float  # difference in points
    renew_at_s: float  # time of the next write even without a difference
    write: W | None  # None = no write is allowed
    event: KubeEvent | None = None  # why no write is allowed


class KeptObject(Generic[T]):
    def __init__(self, key: Key, rules: Rules) -> None:
        self.key = key
        self.pace = Pace(rules)
        self.thing: T | None = None  # as last seen
        self.on_the_way = False
        self.due_s = -inf  # time of the next comparison
        self.trouble = ""  # why the object differs from its wanted state
        self.told = ""  # the last Event published about the object
        self.warned = ""  # reason of the last Event about a refused write

    def saw(self, thing: T | None) -> bool:
        """Apply the watch's object. Return False for an older version than known."""
        if thing is not None and self.thing is not None and _older(thing, self.thing):
            return False
        self.thing = thing
        return True


class KeptObjects(Generic[T, W]):
    def __init__(self, rules: Rules, kinds: Mapping[str, Kind]) -> None:
        self._rules = rules
        self._kinds = kinds
        self.all: dict[Key, KeptObject[T]] = {}
        self.aside = SetAside()
        self.on_the_way = 0

    def target(self, key: Key) -> KeptObject[T]:
        """Return the object of this key, and maintain the object from now on."""
        found = self.all.get(key)
        if found is None:
            found = self.all[key] = KeptObject(key, self._rules)
        return found

    def drop(self, key: Key) -> None:
        """Stop maintaining an object."""
        target = self.all.pop(key, None)
        if target is not None and target.on_the_way:
            self.on_the_way -= 1

    def touch(self, keys: Iterable[Key]) -> None:
        """Compare these objects at once."""
        for key in keys:
            if (target := self.all.get(key)) is not None:
                target.due_s = -inf

    def due(self, now_s: float) -> list[KeptObject[T]]:
        """Return the objects to compare now, the longest due first, or none at the write limit."""
        room = MAX_ON_THE_WAY - self.on_the_way
        if room <= 0:
            return []
        ready = [one for one in self.all.values() if one.due_s <= now_s and not one.on_the_way]
        return sorted(ready, key=lambda one: (one.due_s, one.key))

    def next_due_s(self) -> float:
        """Return the time of the next comparison; infinite at the write limit."""
        if self.on_the_way >= MAX_ON_THE_WAY:
            return inf
        waiting = (one.due_s for one in self.all.values() if not one.on_the_way)
        return min(waiting, default=inf)

    @property
    def full(self) -> bool:
        """Whether the limit of writes in flight is reached."""
        return self.on_the_way >= MAX_ON_THE_WAY

    def decide(
        self, target: KeptObject[T], look: Look[W] | None, until_s: float, now_s: float
    ) -> list[W | KubeEvent]:
        """Return the object's write if due now, or an Event why no write is allowed.

        ``until_s``: time of the next comparison in any case.
        """
        target.due_s = until_s
        if look is None:
            return []
        if look.write is None:
            target.due_s = inf
            if look.event is None or target.warned == look.event.reason:
                return []
            target.warned, target.trouble = look.event.reason, look.event.note
            return [look.event]
        if target.warned:
            target.warned = target.trouble = ""
        due_s = target.pace.due_s(look.gap, look.renew_at_s, now_s)
        if due_s > now_s:
            target.due_s = min(due_s, until_s)
            return []
        target.on_the_way = True
        target.pace.began(now_s)
        self.on_the_way += 1
        return [look.write]

    def act(
        self, look: Callable[[KeptObject[T], float], tuple[Look[W] | None, float]], now_s: float
    ) -> list[W | KubeEvent]:
        """Return the writes that are due.

        ``look`` returns (comparison, end of its validity), with None for nothing to do. If
        ``look`` raises for an object, the object is skipped, and compared again after a growing
        pause.
        """
        out: list[W | KubeEvent] = []
        for target in self.due(now_s):
            if self.full:
                break
            kind, namespace, name = target.key
            resource = self._kinds[kind].resource
            about = target.thing.metadata if target.thing is not None else None
            meta = about or Metadata(namespace=namespace, name=name)
            with self.aside.trying(Phase.ACTING, resource, meta):
                out += self.decide(target, *look(target, now_s), now_s)
            if self.aside.holds(Phase.ACTING, resource, (namespace, name)):
                target.trouble = "it cannot be handled"
                target.due_s = target.pace.failed(now_s)
        return out

    def answered(self, write: W, answer: Answer, now_s: float) -> KeptObject[T] | None:
        """Apply the answer to a write. Return the object, or None if no longer maintained."""
        target = self.all.get(write.key)
        if target is None or not target.on_the_way:
            return None
        target.on_the_way = False
        self.on_the_way -= 1
        target.due_s = -inf
        target.trouble = answer.why
        vanished = answer.outcome is Outcome.GONE and not isinstance(write, Create)
        if answer.done:
            target.pace.wrote()
            if answer.found is not None:
                target.saw(cast("T", answer.found))
        elif answer.outcome is Outcome.CONFLICT or vanished:
            target.saw(cast("T | None", answer.found))
            target.pace.conflicted(now_s)
        else:
            target.due_s = target.pace.failed(now_s)
        return target


def _older(thing: Object, known: Object) -> bool:
    """Return whether ``thing`` is an older version than ``known``."""
    if thing.metadata.uid != known.metadata.uid:
        return False
    return older(thing.metadata.resource_version, known.metadata.resource_version)

"""The objects that a core keeps as they should be: which are due, and how each stands. Pure.

One write of an object is on its way at most. What the server answered counts until the watch shows
the same or something newer, so that a watch that is behind is not taken for somebody else's change.
Resource versions are compared as the numbers that they have always been, and are by contract from
Kubernetes 1.35 on; where they are none, the watch's word counts.
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
    """Make an object."""

    key: Key


class Keyed(Protocol):
    """A write of one object."""

    @property
    def key(self) -> Key: ...


T = TypeVar("T", bound=Object)
W = TypeVar("W", bound=Keyed)
MAX_ON_THE_WAY: Final = 16  # writes at a time, of all objects together


class Kind(NamedTuple):
    """A kind of object, and how it is read."""

    resource: Resource
    struct: type[Object]


class Look(NamedTuple, Generic[W]):
    """One object as it should be, beside as it is."""

    gap: float  # between the two, in points
    renew_at_s: float  # when it must be written although nothing differs
    write: W | None  # None = it must not be written
    event: KubeEvent | None = None  # why not


class KeptObject(Generic[T]):
    def __init__(self, key: Key, rules: Rules) -> None:
        self.key = key
        self.pace = Pace(rules)
        self.thing: T | None = None  # as last seen
        self.on_the_way = False
        self.due_s = -inf  # when to look at it again
        self.trouble = ""  # why it is not as it should be
        self.told = ""  # what people know of it by an event
        self.warned = ""  # the reason that they were told last why it is not written

    def saw(self, thing: T | None) -> bool:
        """The watch shows it so; whether that is news."""
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
        """The object of this key, from now on one that is looked at."""
        found = self.all.get(key)
        if found is None:
            found = self.all[key] = KeptObject(key, self._rules)
        return found

    def drop(self, key: Key) -> None:
        """Nobody wants it any more."""
        target = self.all.pop(key, None)
        if target is not None and target.on_the_way:
            self.on_the_way -= 1

    def touch(self, keys: Iterable[Key]) -> None:
        """Look at these at once."""
        for key in keys:
            if (target := self.all.get(key)) is not None:
                target.due_s = -inf

    def due(self, now_s: float) -> list[KeptObject[T]]:
        """Those to look at now, the longest due first, and not more than may be on their way."""
        room = MAX_ON_THE_WAY - self.on_the_way
        if room <= 0:
            return []
        ready = [one for one in self.all.values() if one.due_s <= now_s and not one.on_the_way]
        return sorted(ready, key=lambda one: (one.due_s, one.key))

    def next_due_s(self) -> float:
        """When there is something to look at; infinite while writes take all the room."""
        if self.on_the_way >= MAX_ON_THE_WAY:
            return inf
        waiting = (one.due_s for one in self.all.values() if not one.on_the_way)
        return min(waiting, default=inf)

    @property
    def full(self) -> bool:
        """Whether no more may be on their way."""
        return self.on_the_way >= MAX_ON_THE_WAY

    def decide(
        self, target: KeptObject[T], look: Look[W] | None, until_s: float, now_s: float
    ) -> list[W | KubeEvent]:
        """Its write if that is due now, or why there is none. ``until_s``: when the look must be
        taken anew, whatever it says."""
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
        """The writes that are due. ``look``: (an object beside what it should be, None for nothing
        to do; until when that holds). An object that makes it raise is set aside, and looked at
        again after a growing pause."""
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
        """What became of a write; None if nobody wants the object any more."""
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
    """Whether the server has had ``known`` after ``thing``."""
    if thing.metadata.uid != known.metadata.uid:
        return False
    return older(thing.metadata.resource_version, known.metadata.resource_version)

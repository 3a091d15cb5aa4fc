"""A mirror of one resource of one API server, for ever, whatever the server does.

Listed once in pages, then watched: a dropped connection goes on from the last resource version, a
history that expired (410) is listed anew, and so is everything now and then, since a mirror that is
never compared is a hope. What vanished between two lists is told as deleted before the list is
called complete. Objects that came again unchanged are not told again, and the old ones are kept, so
a list costs no second copy.

Silence proves nothing: ``heard_at_s`` is when the server last proved that the watch lives, and
``trouble`` says in words what stands in the way. What is mirrored stays while the server is away.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, TypeVar

from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.objects import Object
from berthmaster.kubernetes.resources import Resource
from berthmaster.kubernetes.transport import LogLike
from berthmaster.kubernetes.wire import Undecodable

T = TypeVar("T", bound=Object)
Key = tuple[str, str]

PAGE: Final = 500
RELIST_S: Final = 3600.0
WATCH_S: Final = 300.0
LIST_TIMEOUT_S: Final = 60.0  # a page, of a slow server
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 15.0
ABSENT_PAUSE_S: Final = 30.0  # between two looks for a kind that is not served, or not allowed


class Added(NamedTuple, Generic[T]):
    """An object that was not there before."""

    object: T
    previous: None = None


class Updated(NamedTuple, Generic[T]):
    """An object as it is now, and as we last saw it."""

    object: T
    previous: T


class Deleted(NamedTuple, Generic[T]):
    """The last that is known of an object that is gone, and as we last saw it alive."""

    object: T
    previous: T


class Unreadable(NamedTuple, Generic[T]):
    """An object in a form that its kind does not promise; ``previous`` stays in the mirror."""

    object: Undecodable
    previous: T | None


class Listed(NamedTuple):
    """The mirror is the server's state as of this resource version."""

    resource_version: str


Change = Added[T] | Updated[T] | Deleted[T] | Unreadable[T] | Listed


class Reflector(Generic[T]):
    """Mirrors a resource, or the part of it that is selected."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        kind: type[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        on_change: Callable[[Change[T]], None],
        page: int = PAGE,
        relist_s: float = RELIST_S,
        watch_s: float = WATCH_S,
        absent_s: float = ABSENT_PAUSE_S,
        log: LogLike,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """``on_change`` is called in order and must not block; what it raises ends ``run``."""
        self._client = client
        self._resource = resource
        self._kind = kind
        self._namespace = namespace
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._on_change = on_change
        self._page = page
        self._relist_s = relist_s
        self._watch_s = watch_s
        self._absent_s = absent_s
        self._log = log
        self._chance = chance
        self._objects: dict[Key, T] = {}
        self._unreadable: dict[Key, Undecodable] = {}
        self._told = ""  # the trouble that the log knows
        self._failures = 0
        self._now: Callable[[], float] = lambda: 0.0
        self._list_due_s = 0.0
        self.objects: Mapping[Key, T] = MappingProxyType(self._objects)
        self.unreadable: Mapping[Key, Undecodable] = MappingProxyType(self._unreadable)
        self.resource_version = ""
        self.caught_up = False  # listed once, and not known to have missed anything since
        self.trouble = ""  # "" = none
        self.heard_at_s = 0.0  # event loop time
        self.lists = 0
        self.watches = 0

    def age_s(self, now_s: float) -> float:
        """How old the last proof is that we would have heard of a change; infinite before any."""
        return now_s - self.heard_at_s if self.heard_at_s else float("inf")

    async def run(self, stopping: asyncio.Event) -> None:
        """Mirror until told to stop."""
        raise NotImplementedError

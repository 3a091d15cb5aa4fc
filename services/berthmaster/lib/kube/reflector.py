"""A mirror of one resource of one API server, kept current through every server failure.

The reflector lists the resource once in pages and then watches it.

- A dropped watch resumes from the last resource version.
- After an expired history (410) the reflector lists again. A full list also follows every hour,
  because a mirror without comparison may drift.
- Unchanged objects are neither reported nor stored again, so a list needs no second copy in memory.

A silent connection proves nothing. ``last_seen_s`` is the time of the server's last answer on the
watch, and ``faults`` says why the mirror may be stale. The mirrored objects stay while the server
is unreachable.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Final, Generic, NamedTuple, TypeVar

from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.errors import (
    ApiError,
    Forbidden,
    Gone,
    KubernetesError,
    NotFound,
    ServerError,
    TimedOut,
    Unauthorized,
    Unreachable,
)
from berthmaster.lib.kube.mirror import (
    Added,
    Change,
    Deleted,
    Key,
    Listed,
    Mirror,
    Unreadable,
    Updated,
)
from berthmaster.lib.kube.mirror_faults import MirrorFaults
from berthmaster.lib.kube.objects import Object
from berthmaster.lib.kube.resources import Resource
from berthmaster.lib.kube.wire import Page, Undecodable, UndecodableEvent, WatchEvent
from berthmaster.lib.runtime.log import LogLike

__all__ = ["Added", "Change", "Deleted", "Key", "Listed", "Reflector", "Unreadable", "Updated"]

T = TypeVar("T", bound=Object)

PAGE: Final = 500
RELIST_S: Final = 3600.0
WATCH_S: Final = 300.0
LIST_TIMEOUT_S: Final = 60.0  # of one page, from a slow server
SILENT_S: Final = 150.0  # servers send a bookmark every minute; a longer silence means a dead watch
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 15.0
ABSENT_PAUSE_S: Final = 30.0  # between two lists of a kind that is not served, or denied
SURE_S: Final = 3.0  # a starting server may answer 404 for kinds that are not loaded yet
LONGEST_RETRY_AFTER_S: Final = 60.0
SHORT_S: Final = 1.0  # a watch that ended sooner, without an event, is a failure
REFUSALS: Final = 3  # failed watches in a row before a new list: the server may have been restored


class ListWatch(NamedTuple, Generic[T]):
    """The requests of one mirror: the objects of a resource that match the selectors."""

    client: Client
    resource: Resource
    kind: type[T]
    namespace: str = ""  # "" = all namespaces
    label_selector: str = ""
    field_selector: str = ""

    def list(self, page: int) -> AsyncGenerator[Page[T], None]:
        """List the objects, with ``page`` objects in each page."""
        return self.client.list_pages(
            self.resource,
            self.kind,
            namespace=self.namespace,
            label_selector=self.label_selector,
            field_selector=self.field_selector,
            limit=page,
            timeout_s=LIST_TIMEOUT_S,
        )

    def watch(
        self,
        resource_version: str,
        timeout_s: float,
        on_undecodable: Callable[[UndecodableEvent], None],
        on_open: Callable[[], None],
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Watch changes after ``resource_version``, as ``Client.watch`` does."""
        return self.client.watch(
            self.resource,
            self.kind,
            namespace=self.namespace,
            resource_version=resource_version,
            label_selector=self.label_selector,
            field_selector=self.field_selector,
            timeout_s=timeout_s,
            on_undecodable=on_undecodable,
            on_open=on_open,
        )


class Reflector(Generic[T]):
    """Mirrors a resource, or the objects that match the selectors."""

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
        silent_s: float = SILENT_S,
        absent_s: float = ABSENT_PAUSE_S,
        log: LogLike,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """``on_change`` is called in order and must not block. Its exceptions end ``run``."""
        self._requests = ListWatch(
            client, resource, kind, namespace, label_selector, field_selector
        )
        self._mirror = Mirror(on_change)
        self._page = page
        self._relist_s = relist_s
        self._watch_s = watch_s
        self._silent_s = silent_s
        self._absent_s = absent_s
        self._chance = chance
        self._refusals = 0  # failed watches in a row
        self._list_due_s = 0.0
        self._opened_at_s = 0.0  # of the last watch; infinite until the server accepts
        self._settle_timer: asyncio.TimerHandle | None = None
        self.faults = MirrorFaults(resource, log)
        self.caught_up = False  # listed, and no missed change known since
        self.last_seen_s = 0.0  # event loop time of the server's last answer; 0 = never
        self.lists = 0
        self.watches = 0

    @property
    def objects(self) -> Mapping[Key, T]:
        """The objects as last seen, by namespace and name."""
        return self._mirror.objects

    @property
    def unreadable(self) -> Mapping[Key, Undecodable]:
        """The objects that cannot be decoded."""
        return self._mirror.unreadable

    @property
    def resource_version(self) -> str:
        """The resource version that the mirror has reached."""
        return self._mirror.resource_version

    def age_s(self, now_s: float) -> float:
        """Return the seconds since the server last answered; infinite before the first answer."""
        return now_s - self.last_seen_s if self.last_seen_s else float("inf")

    async def run(self, stopping: asyncio.Event) -> None:
        """Mirror until the service stops. Raise only exceptions of ``on_change``."""
        name = f"mirror of {self._requests.resource.plural}"
        task = asyncio.create_task(self._for_ever(), name=name)
        stop = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            task.cancel()
            await asyncio.wait({task, stop})
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def _for_ever(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            try:
                if not self.caught_up or now() >= self._list_due_s:
                    await self._list()
                await self._watch()
                continue
            except Gone:
                # Normal after a long absence, and solved by a list. A repeated 410 needs a pause.
                self.caught_up = False
                self.faults.count += 1
                if self.faults.count == 1:
                    continue
                pause_s = self._pause_s()
            except (NotFound, Forbidden, Unauthorized) as error:
                if isinstance(error, NotFound):
                    self.caught_up = False  # the resource may be another one when served again
                self.faults.add(error)
                pause_s = self._pause_s(self._absent_s)
            except KubernetesError as error:
                self.faults.add(error)
                retry_after_s = error.retry_after_s if isinstance(error, ApiError) else 0.0
                pause_s = min(retry_after_s, LONGEST_RETRY_AFTER_S) + self._pause_s()
            await asyncio.sleep(pause_s)

    def _pause_s(self, longest_s: float = LONGEST_PAUSE_S) -> float:
        full_s = min(FIRST_PAUSE_S * 2.0 ** min(self.faults.count - 1, 16), longest_s)
        return full_s * (0.5 + 0.5 * self._chance())

    async def _list(self) -> None:
        now = asyncio.get_running_loop().time
        self.lists += 1
        pages = self._requests.list(self._page)
        async with aclosing(pages):
            async for page in pages:
                self.last_seen_s = now()
                self._mirror.page(page)
        self.caught_up = True
        self._refusals = 0
        self._list_due_s = now() + self._relist_s * (0.9 + 0.2 * self._chance())
        self.faults.clear()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        silent_from_s = loop.time()
        self._opened_at_s = float("inf")
        self.watches += 1
        events = self._requests.watch(
            self._mirror.resource_version,
            self._watch_s * (0.8 + 0.4 * self._chance()),
            self._mirror.undecodable,
            self._on_open,
        )
        count = 0
        silence = asyncio.timeout(self._silent_s)
        try:
            async with silence, aclosing(events):
                async for event in events:
                    if not count:
                        self.faults.clear()
                    count += 1
                    self.last_seen_s = now_s = loop.time()
                    self._mirror.event(event)
                    if now_s - silent_from_s > SHORT_S:
                        silence.reschedule(now_s + self._silent_s)
                        silent_from_s = now_s
        except TimeoutError:
            if not silence.expired():
                raise
            raise TimedOut(f"a watch silent for {self._silent_s:g} s") from None
        except ServerError:
            # A server restored from a backup answers so too, because the version is in its future.
            self._refusals += 1
            if self._refusals >= REFUSALS:
                self.caught_up = False
            raise
        finally:
            if self._settle_timer is not None:
                self._settle_timer.cancel()
            # A long attempt proves nothing unless the server had accepted the watch.
            is_alive = count or loop.time() - self._opened_at_s >= SHORT_S
            if is_alive:
                self.faults.count = self._refusals = 0
        if not is_alive:
            raise Unreachable("a watch that ended as soon as it began")

    def _on_open(self) -> None:
        loop = asyncio.get_running_loop()
        self.last_seen_s = self._opened_at_s = loop.time()
        # Not at once: a broken server may accept every watch and end it right away.
        self._settle_timer = loop.call_later(SHORT_S, self.faults.clear)

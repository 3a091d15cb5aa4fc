"""A mirror of one resource of one API server, for ever, whatever the server does.

Listed once in pages, then watched: a dropped connection goes on from the last resource version, a
history that expired (410) is listed anew, and so is everything now and then, since a mirror that is
never compared is a hope. Objects that come again unchanged are neither told nor kept twice, so that
a list costs no second copy.

Silence proves nothing: ``heard_at_s`` is when the server last proved that the watch lives, and
``trouble`` says in words what stands in the way. What is mirrored stays while the server is away.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Final, Generic, TypeVar

from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.errors import (
    NO_ANSWER,
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
from berthmaster.lib.kube.objects import Object
from berthmaster.lib.kube.resources import Resource
from berthmaster.lib.kube.wire import Undecodable
from berthmaster.lib.runtime.log import LogLike

__all__ = ["Added", "Change", "Deleted", "Key", "Listed", "Reflector", "Unreadable", "Updated"]

T = TypeVar("T", bound=Object)

PAGE: Final = 500
RELIST_S: Final = 3600.0
WATCH_S: Final = 300.0
LIST_TIMEOUT_S: Final = 60.0  # a page, of a slow server
SILENT_S: Final = 150.0  # servers send a bookmark a minute; longer silence is no watch any more
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 15.0
ABSENT_PAUSE_S: Final = 30.0  # between two looks for a kind that is not served, or not allowed
SURE_S: Final = 3.0  # one that starts may say so of kinds that it has not loaded yet
LONGEST_TOLD_S: Final = 60.0
SHORT_S: Final = 1.0  # a watch that ended sooner, and told nothing, counts as failed
REFUSALS: Final = 3  # of a watch in a row, after which we list: the server may have been restored


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
        silent_s: float = SILENT_S,
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
        self._mirror = Mirror(on_change)
        self._page = page
        self._relist_s = relist_s
        self._watch_s = watch_s
        self._silent_s = silent_s
        self._absent_s = absent_s
        self._log = log
        self._chance = chance
        self._failures = 0  # in a row, of any kind
        self._refusals = 0  # in a row, of a watch
        self._list_due_s = 0.0
        self._opened_at_s = 0.0  # the last watch; infinite until the server has accepted it
        self._settling: asyncio.TimerHandle | None = None
        self._told: set[type[KubernetesError]] = set()  # troubles that the log knows
        self.caught_up = False  # listed, and not known to have missed anything since
        self.trouble = ""  # in words; "" = none
        self.troubled_since_s = 0.0  # event loop time of the trouble's beginning; 0 = none
        self.failure: KubernetesError | None = None  # the newest of this trouble
        self._absent_since_s: float | None = None  # event loop time
        self._denied_since_s: float | None = None  # the same
        self.unanswered = False  # it says nothing that we could use: away, ill, or a stranger
        self.heard_at_s = 0.0  # event loop time; 0 = never
        self.lists = 0
        self.watches = 0

    @property
    def objects(self) -> Mapping[Key, T]:
        """What is there as last seen, by namespace and name."""
        return self._mirror.objects

    @property
    def unreadable(self) -> Mapping[Key, Undecodable]:
        """What is there in a form that cannot be read."""
        return self._mirror.unreadable

    @property
    def resource_version(self) -> str:
        """As of when the mirror is, in the server's terms."""
        return self._mirror.resource_version

    def age_s(self, now_s: float) -> float:
        """How old the last proof is that we would have heard of a change; infinite before any."""
        return now_s - self.heard_at_s if self.heard_at_s else float("inf")

    @property
    def absent(self) -> bool:
        """Whether the server says that it serves no such kind."""
        return self._absent_since_s is not None

    def absent_for_s(self, now_s: float) -> float:
        """How long it has said so; 0 while it does not. Believe it after ``SURE_S``. A server that
        cannot be reached since then, or refuses us, takes nothing back."""
        return now_s - self._absent_since_s if self._absent_since_s is not None else 0.0

    def denied_for_s(self, now_s: float) -> float:
        """How long the server has said that we may not look; 0 while it says anything else."""
        return now_s - self._denied_since_s if self._denied_since_s is not None else 0.0

    async def run(self, stopping: asyncio.Event) -> None:
        """Mirror until told to stop. Raises only what ``on_change`` raises."""
        mirroring = asyncio.create_task(self._for_ever(), name=f"mirror of {self._resource.plural}")
        stop = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait({mirroring, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            mirroring.cancel()
            await asyncio.wait({mirroring, stop})
        if not mirroring.cancelled() and (error := mirroring.exception()) is not None:
            raise error

    # ------------------------------------------------------------ one round after the other

    async def _for_ever(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            try:
                if not self.caught_up or now() >= self._list_due_s:
                    await self._list()
                await self._watch()
                continue
            except Gone:
                # Normal after a long absence, and cured by a list; not in a circle, though.
                self.caught_up = False
                self._failures += 1
                if self._failures == 1:
                    continue
                pause_s = self._pause_s()
            except (NotFound, Forbidden, Unauthorized) as error:
                if isinstance(error, NotFound):
                    self.caught_up = False  # what is served again may be something else
                self._failed(error, _plainly(error, self._resource))
                pause_s = self._pause_s(self._absent_s)
            except KubernetesError as error:
                self._failed(error, str(error))
                told_s = error.retry_after_s if isinstance(error, ApiError) else 0.0
                pause_s = min(told_s, LONGEST_TOLD_S) + self._pause_s()
            await asyncio.sleep(pause_s)

    def _pause_s(self, longest_s: float = LONGEST_PAUSE_S) -> float:
        full_s = min(FIRST_PAUSE_S * 2.0 ** min(self._failures - 1, 16), longest_s)
        return full_s * (0.5 + 0.5 * self._chance())

    async def _list(self) -> None:
        now = asyncio.get_running_loop().time
        self.lists += 1
        pages = self._client.list_pages(
            self._resource,
            self._kind,
            namespace=self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            limit=self._page,
            timeout_s=LIST_TIMEOUT_S,
        )
        async with aclosing(pages):
            async for page in pages:
                self.heard_at_s = now()
                self._mirror.page(page)
        self.caught_up = True
        self._refusals = 0
        self._list_due_s = now() + self._relist_s * (0.9 + 0.2 * self._chance())
        self._recovered()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        silent_from_s = loop.time()
        self._opened_at_s = float("inf")
        self.watches += 1
        events = self._client.watch(
            self._resource,
            self._kind,
            namespace=self._namespace,
            resource_version=self._mirror.resource_version,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            timeout_s=self._watch_s * (0.8 + 0.4 * self._chance()),
            on_undecodable=self._mirror.undecodable,
            on_open=self._opened,
        )
        told = 0
        silence = asyncio.timeout(self._silent_s)
        try:
            async with silence, aclosing(events):
                async for event in events:
                    if not told:
                        self._recovered()
                    told += 1
                    self.heard_at_s = now_s = loop.time()
                    self._mirror.event(event)
                    if now_s - silent_from_s > SHORT_S:
                        silence.reschedule(now_s + self._silent_s)
                        silent_from_s = now_s
        except TimeoutError:
            if not silence.expired():
                raise
            raise TimedOut(f"a watch silent for {self._silent_s:g} s") from None
        except ServerError:
            # Also how a server answers that was restored from a backup: our version is its future.
            self._refusals += 1
            if self._refusals >= REFUSALS:
                self.caught_up = False
            raise
        finally:
            if self._settling is not None:
                self._settling.cancel()
            # Of an attempt that hung for long and never was a watch, nothing is to be said.
            lived = told or loop.time() - self._opened_at_s >= SHORT_S
            if lived:
                self._failures = self._refusals = 0
        if not lived:
            raise Unreachable("a watch that ended as soon as it began")

    def _opened(self) -> None:
        loop = asyncio.get_running_loop()
        self.heard_at_s = self._opened_at_s = loop.time()
        # Not at once: a server that takes every watch and ends it has not recovered.
        self._settling = loop.call_later(SHORT_S, self._recovered)

    # ------------------------------------------------------------ what people are told

    def _failed(self, error: KubernetesError, words: str) -> None:
        self._failures += 1
        self.unanswered = isinstance(error, NO_ANSWER)
        now_s = asyncio.get_running_loop().time()
        if isinstance(error, NotFound) and self._absent_since_s is None:
            self._absent_since_s = now_s
        if not isinstance(error, Forbidden):
            self._denied_since_s = None
        elif self._denied_since_s is None:
            self._denied_since_s = now_s
        self.trouble, self.failure = words, error
        self.troubled_since_s = self.troubled_since_s or now_s
        # A first failure is mostly over before anybody could look; the same one is told once.
        if self._failures > 1 and type(error) not in self._told:
            self._told.add(type(error))
            self._log.warning("cannot mirror", resource=self._resource.plural, why=words)

    def _recovered(self) -> None:
        self.trouble, self.failure, self.troubled_since_s = "", None, 0.0
        self.unanswered = False
        self._absent_since_s = self._denied_since_s = None
        if self._told:
            self._told.clear()
            self._log.info("mirroring again", resource=self._resource.plural)


def _plainly(error: ApiError, resource: Resource) -> str:
    if isinstance(error, NotFound):
        return f"{resource.plural} of {resource.group_version} are not served here"
    if isinstance(error, Forbidden):
        return f"not allowed: {error.message or 'list and watch'} ({resource.plural})"
    return f"the API server does not know these credentials ({resource.plural})"

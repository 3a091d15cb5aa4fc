"""Messages of the bus as asynchronous iterators: workload events, facts, dead letters.

The iterators use followers, which neither skip nor repeat messages. If a slow consumer fills the
buffer, the iterator raises an error and leaves no gap: the consumer can read the missing messages
again.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final, Generic, TypeVar

import msgspec

from berthmaster.client.errors import BerthError, NotAllowedError, UnavailableError
from berthmaster.lib.messages.control import ControlFact
from berthmaster.lib.messages.families import (
    DEAD_LETTERS,
    DECISIONS,
    EVENTS,
    FLEET_FACTS,
    JOB_FIGURES,
    QUALITY,
    TELEMETRY,
    UNREADABLE,
)
from berthmaster.lib.messages.fleet import FleetFact
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.messages.quality import QualityReport
from berthmaster.lib.messages.records import DeadLetter
from berthmaster.lib.messages.telemetry import JobFigures, NodeTelemetry
from berthmaster.lib.messages.workload import Cancelled, Failed, Succeeded, WorkloadEvent
from berthmaster.lib.nats.errors import ApiError, BusError, NotPermitted
from berthmaster.lib.nats.follower import Follower
from berthmaster.lib.nats.message_subjects import read_control
from berthmaster.lib.nats.nats_py import Msg
from berthmaster.lib.nats.stream_messages import Recorded, parse_time_s

T = TypeVar("T")
MAX_BUFFERED: Final = 200_000
MAX_CHAINS: Final = 10_000  # limit of workloads whose last event is remembered


class SeenEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stored event of a workload.

    Stale events, which lost a race, are included. Fold the events with lib/lifecycle/fold.py, which
    drops stale ones.
    """

    sequence: int
    stored_at_s: float
    event: WorkloadEvent


class SeenFact(msgspec.Struct, frozen=True, kw_only=True):
    """A fact about the fleet, with the server's time."""

    subject: str
    sequence: int
    stored_at_s: float
    fact: FleetFact


class SeenDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A stored decision."""

    sequence: int
    stored_at_s: float
    decision: Decision


class SeenDead(msgspec.Struct, frozen=True, kw_only=True):
    sequence: int
    stored_at_s: float
    letter: DeadLetter


class Feed(Generic[T]):
    """A bounded buffer between a follower, which calls, and an iterator, which waits."""

    def __init__(self, most: int = MAX_BUFFERED) -> None:
        self._items: deque[T] = deque()
        self._most = most
        self._something = asyncio.Event()
        self._error: BerthError | None = None
        self._ended = False

    def put(self, item: T) -> None:
        """Append one item. Above the limit, the feed ends with an error."""
        if len(self._items) >= self._most:
            self.fail(UnavailableError(f"{self._most:,} messages were not taken in time"))
            return
        self._items.append(item)
        self._something.set()

    def fail(self, error: BerthError) -> None:
        """End with an error, after the buffered items."""
        self._error = self._error or error
        self.end()

    def end(self) -> None:
        """End after the buffered items."""
        self._ended = True
        self._something.set()

    async def items(self) -> AsyncGenerator[T, None]:
        """Yield the items in order."""
        while True:
            while self._items:
                yield self._items.popleft()
            if self._ended:
                if self._error is not None:
                    raise self._error
                return
            self._something.clear()
            await self._something.wait()


async def follow(
    follower: Follower,
    decode: Callable[[Recorded], T | None],
    *,
    on: bool,
    caught_up: Callable[[], None] | None = None,
) -> AsyncGenerator[T, None]:
    """Yield the items of a follower. ``on`` false: end after the stored messages.

    Messages for which ``decode`` returns None are skipped.
    """
    feed: Feed[T] = Feed()

    def take(recorded: Recorded) -> None:
        item = decode(recorded)
        if item is not None:
            feed.put(item)

    def all_listed() -> None:
        if caught_up is not None:
            caught_up()
        if not on:
            feed.end()

    async def run() -> None:
        try:
            await follower.run(take, caught_up=all_listed)
        except NotPermitted as error:
            feed.fail(NotAllowedError(str(error)))
        except BusError as error:
            feed.fail(UnavailableError(str(error)))

    task = asyncio.create_task(run(), name="berth client: follow")
    try:
        async for item in feed.items():
            yield item
    finally:
        task.cancel()
        await asyncio.wait({task}, timeout=1)


async def listed(source: AsyncGenerator[T, None], timeout_s: float) -> list[T]:
    """Return all items of a finite source within a time limit. Raises UnavailableError."""
    try:
        async with asyncio.timeout(timeout_s), aclosing(source):
            return [item async for item in source]
    except TimeoutError as error:
        raise UnavailableError(f"the list was not complete within {timeout_s:g} s") from error


async def settled(what: Awaitable[T]) -> T:
    """Await a value, and convert errors of the bus to the client's. Raises UnavailableError."""
    try:
        return await what
    except NotPermitted as error:
        raise NotAllowedError(str(error)) from error
    except ApiError as error:
        raise UnavailableError(f"the bus is not set up for that: {error.description}") from error
    except BusError as error:
        raise UnavailableError(str(error)) from error


class Chains:
    """The last seen event of each workload.

    Each event names its predecessor (``after``). So a missed event is noticed at the next event, or
    searched after a disconnection.
    """

    def __init__(self, most: int = MAX_CHAINS) -> None:
        self._most = most
        self._last: OrderedDict[str, int] = OrderedDict()
        self._ended: set[str] = set()

    def begin(self, workload: str, since: int) -> None:
        """Expect every event after this sequence."""
        self._last[workload] = since

    def open(self) -> list[str]:
        """Return the workloads without an end event."""
        return [name for name in self._last if name not in self._ended]

    def missing(self, seen: SeenEvent) -> list[str]:
        """Return the event's workload if an event before this one was missed."""
        last = self._last.get(seen.event.id)
        return [seen.event.id] if last is not None and last < seen.event.after else []

    def take(self, seen: SeenEvent) -> bool:
        """Return whether the event is new, and remember it."""
        name = seen.event.id
        if seen.sequence <= self._last.get(name, 0):
            return False
        self._last[name] = seen.sequence
        self._last.move_to_end(name)
        if isinstance(seen.event, Succeeded | Failed | Cancelled):
            self._ended.add(name)
        if len(self._last) > self._most:
            oldest, _ = self._last.popitem(last=False)
            self._ended.discard(oldest)
        return True


# Decoders skip messages that this version cannot read. The services store those as dead letters.


def stored_event_of(msg: Msg) -> SeenEvent | None:
    """Return a workload event from the stream's republished message, with its sequence."""
    headers = msg.headers or {}
    try:
        sequence = int(headers.get("Nats-Sequence", ""))
        stored_at_s = parse_time_s(headers.get("Nats-Time-Stamp", ""))
        return SeenEvent(sequence=sequence, stored_at_s=stored_at_s, event=EVENTS.decode(msg.data))
    except (*UNREADABLE, ValueError):
        return None


def event_of(recorded: Recorded) -> SeenEvent | None:
    try:
        event = EVENTS.decode(recorded.data)
    except UNREADABLE:
        return None
    return SeenEvent(sequence=recorded.sequence, stored_at_s=recorded.stored_at_s, event=event)


def decision_of(recorded: Recorded) -> SeenDecision | None:
    try:
        decision = DECISIONS.decode(recorded.data)
    except UNREADABLE:
        return None
    return SeenDecision(
        sequence=recorded.sequence, stored_at_s=recorded.stored_at_s, decision=decision
    )


def telemetry_of(data: bytes) -> NodeTelemetry | None:
    """Return the GPU telemetry of a node, or None."""
    try:
        return TELEMETRY.decode(data)
    except UNREADABLE:
        return None


def figures_of(data: bytes) -> JobFigures | None:
    """Return the GPU usage of a job, or None."""
    try:
        return JOB_FIGURES.decode(data)
    except UNREADABLE:
        return None


def quality_of(data: bytes) -> QualityReport | None:
    """Return the quality report of a decider, or None."""
    try:
        return QUALITY.decode(data)
    except UNREADABLE:
        return None


def fact_of(recorded: Recorded) -> SeenFact | None:
    try:
        fact = FLEET_FACTS.decode(recorded.data)
    except UNREADABLE:
        return None
    return SeenFact(
        subject=recorded.subject,
        sequence=recorded.sequence,
        stored_at_s=recorded.stored_at_s,
        fact=fact,
    )


def control_of(recorded: Recorded) -> ControlFact | None:
    try:
        return read_control(recorded.subject, recorded.data)
    except UNREADABLE:
        return None


def dead_of(recorded: Recorded) -> SeenDead | None:
    try:
        letter = DEAD_LETTERS.decode(recorded.data)
    except UNREADABLE:
        return None
    return SeenDead(sequence=recorded.sequence, stored_at_s=recorded.stored_at_s, letter=letter)

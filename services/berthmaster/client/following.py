"""What happens on the bus, as asynchronous iterators: events of workloads, facts, dead letters.

Built on followers, which neither skip nor repeat. A consumer that is slower than the bus for so
long that the buffer fills gets an error and no gap: what was missed can be read again.
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
MAX_CHAINS: Final = 10_000  # workloads whose last event is remembered


class SeenEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of a workload as it was stored. Void ones (they lost a race) are among them: fold
    them with lib/lifecycle/fold.py, which drops them."""

    sequence: int
    stored_at_s: float
    event: WorkloadEvent


class SeenFact(msgspec.Struct, frozen=True, kw_only=True):
    """One fact about the fleet, with the server's time of it."""

    subject: str
    sequence: int
    stored_at_s: float
    fact: FleetFact


class SeenDecision(msgspec.Struct, frozen=True, kw_only=True):
    """One decision as it was stored."""

    sequence: int
    stored_at_s: float
    decision: Decision


class SeenDead(msgspec.Struct, frozen=True, kw_only=True):
    """One dead letter."""

    sequence: int
    stored_at_s: float
    letter: DeadLetter


class Feed(Generic[T]):
    """Between a follower, which calls, and an iterator, which waits: a bounded buffer."""

    def __init__(self, most: int = MAX_BUFFERED) -> None:
        self._items: deque[T] = deque()
        self._most = most
        self._something = asyncio.Event()
        self._error: BerthError | None = None
        self._ended = False

    def put(self, item: T) -> None:
        """Offer one item; beyond the bound the feed ends with an error."""
        if len(self._items) >= self._most:
            self.fail(UnavailableError(f"{self._most:,} messages were not taken in time"))
            return
        self._items.append(item)
        self._something.set()

    def fail(self, error: BerthError) -> None:
        """End with an error, after what is buffered."""
        self._error = self._error or error
        self.end()

    def end(self) -> None:
        """End after what is buffered."""
        self._ended = True
        self._something.set()

    async def items(self) -> AsyncGenerator[T, None]:
        """What was put, in order."""
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
    """Items of a follower; with ``on`` false only until all that was stored has come.

    Messages for which ``decode`` returns None are passed over.
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
    """All items of a source that ends, within a time limit. Raises UnavailableError."""
    try:
        async with asyncio.timeout(timeout_s), aclosing(source):
            return [item async for item in source]
    except TimeoutError as error:
        raise UnavailableError(f"the list was not complete within {timeout_s:g} s") from error


async def settled(what: Awaitable[T]) -> T:
    """The value, with errors of the bus turned into the client's. Raises UnavailableError."""
    try:
        return await what
    except NotPermitted as error:
        raise NotAllowedError(str(error)) from error
    except ApiError as error:
        raise UnavailableError(f"the bus is not set up for that: {error.description}") from error
    except BusError as error:
        raise UnavailableError(str(error)) from error


class Chains:
    """How far each workload's events were seen. An event names the one before it (``after``), so
    one that was not heard is noticed at the next, or looked for after a lost connection."""

    def __init__(self, most: int = MAX_CHAINS) -> None:
        self._most = most
        self._last: OrderedDict[str, int] = OrderedDict()
        self._ended: set[str] = set()

    def begin(self, workload: str, since: int) -> None:
        """Everything after this sequence is to be seen."""
        self._last[workload] = since

    def open(self) -> list[str]:
        """Workloads of which more may come."""
        return [name for name in self._last if name not in self._ended]

    def missing(self, seen: SeenEvent) -> list[str]:
        """Its workload, if something between this event and the last one was not seen."""
        last = self._last.get(seen.event.id)
        return [seen.event.id] if last is not None and last < seen.event.after else []

    def take(self, seen: SeenEvent) -> bool:
        """Whether it is new."""
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


# Decoders: a message that this version cannot read is passed over; the services bury it.


def stored_event_of(msg: Msg) -> SeenEvent | None:
    """An event of a workload as the stream tells of it, with the sequence that it has there."""
    headers = msg.headers or {}
    try:
        sequence = int(headers.get("Nats-Sequence", ""))
        stored_at_s = parse_time_s(headers.get("Nats-Time-Stamp", ""))
        return SeenEvent(sequence=sequence, stored_at_s=stored_at_s, event=EVENTS.decode(msg.data))
    except (*UNREADABLE, ValueError):
        return None


def event_of(recorded: Recorded) -> SeenEvent | None:
    """An event of a workload."""
    try:
        event = EVENTS.decode(recorded.data)
    except UNREADABLE:
        return None
    return SeenEvent(sequence=recorded.sequence, stored_at_s=recorded.stored_at_s, event=event)


def decision_of(recorded: Recorded) -> SeenDecision | None:
    """A decision."""
    try:
        decision = DECISIONS.decode(recorded.data)
    except UNREADABLE:
        return None
    return SeenDecision(
        sequence=recorded.sequence, stored_at_s=recorded.stored_at_s, decision=decision
    )


def telemetry_of(data: bytes) -> NodeTelemetry | None:
    """What the GPUs of a node do."""
    try:
        return TELEMETRY.decode(data)
    except UNREADABLE:
        return None


def figures_of(data: bytes) -> JobFigures | None:
    """What the GPUs of a job do."""
    try:
        return JOB_FIGURES.decode(data)
    except UNREADABLE:
        return None


def quality_of(data: bytes) -> QualityReport | None:
    """How well a decider does."""
    try:
        return QUALITY.decode(data)
    except UNREADABLE:
        return None


def fact_of(recorded: Recorded) -> SeenFact | None:
    """A fact about the fleet."""
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
    """An operator's setting."""
    try:
        return read_control(recorded.subject, recorded.data)
    except UNREADABLE:
        return None


def dead_of(recorded: Recorded) -> SeenDead | None:
    """A dead letter."""
    try:
        letter = DEAD_LETTERS.decode(recorded.data)
    except UNREADABLE:
        return None
    return SeenDead(sequence=recorded.sequence, stored_at_s=recorded.stored_at_s, letter=letter)

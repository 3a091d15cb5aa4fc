"""Drives an executor's core on the bus: decode, ask, perform, acknowledge; nothing to decide.

All that happens in one turn of the event loop is handled in one go: hints, answers, the cluster's
events. Then the runtime makes durable what it was told to do, and only then are hints acknowledged
and writes sent. A write or read whose fate is open is waited for with growing pauses, for as long
as it takes: the bus may be away for hours, and the pods run on.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Protocol, assert_never

from berthmaster.bus import subjects
from berthmaster.bus.connection import Connection
from berthmaster.bus.dead import bury
from berthmaster.bus.errors import BusError
from berthmaster.bus.follow import Recorded
from berthmaster.bus.grouped import grouped
from berthmaster.bus.log import GET_TIMEOUT_S, EventLog, Message, decode_story
from berthmaster.bus.streams import WORKLOADS
from berthmaster.bus.worker import Later, Never, Worker
from berthmaster.executor.cluster_protocol import CreatePods, DeletePods, PodEvent, StopPods
from berthmaster.executor.core import Executor
from berthmaster.executor.events import Event, HintSeen, Tick
from berthmaster.executor.instructions import Acknowledge, Freeze, Instruction
from berthmaster.lifecycle.fold import Workload, key, offer
from berthmaster.lifecycle.instructions import (
    Answered,
    Append,
    Outcome,
    Refused,
    Reload,
    Reloaded,
    Stored,
    Unknown,
)
from berthmaster.messages.families import EVENTS, UNREADABLE
from berthmaster.messages.workload import CancelRequested, Evicted, Failed, Placed
from berthmaster.runtime.backoff import Backoff

MAX_IN_FLIGHT: Final = 128  # writes and reads; the rest waits in order
MAX_READS: Final = 16  # of them, as a story is several messages and the server reads one at a time
MAX_HINTS: Final = 512  # in hand at once
HINT_AGAIN_S: Final = 2.0  # what a killed executor had in hand comes again after so long
HINT_LIMIT_S: Final = 50.0  # less than a worker gives a handler: to be late is no failure
LONGEST_READ_S: Final = 10.0  # of one request; who asks in vain asks more patiently
LAST_WRITES_S: Final = 0.5
TICK_GRAIN_S: Final = 0.05  # most timers are looked at for nothing
RECONNECT_POLL_S: Final = 1.0
KINDS: Final = ("placed", "cancel_requested", "evicted", "failed")
_PAUSES: Final = Backoff(first_s=0.1, most_s=10.0)


class Runtime(Protocol):
    """A cluster as its executor uses it. Orders are taken at once and never fail: what becomes of
    them is told as events, if need be much later."""

    def start(self, tell: Callable[[PodEvent], None]) -> None:
        """From now on tell what happens. Called once."""

    async def found(self, executor: str) -> list[PodEvent]:
        """All job objects with this executor's label, each followed by how it stands."""

    def perform(self, order: CreatePods | StopPods | DeletePods) -> None:
        """Carry out an order."""

    def flush(self) -> None:
        """Make durable what was ordered since the last call: it must survive our own death."""


class Counts:
    """What the shell has done; for metrics."""

    def __init__(self) -> None:
        self.stored = 0
        self.refused = 0
        self.unknown = 0
        self.reloads = 0
        self.frozen = 0


class Shell:
    """One executor at work."""

    def __init__(
        self,
        conn: Connection,
        core: Executor,
        runtime: Runtime,
        *,
        service: str = "executor",
        leftovers: Callable[[], Awaitable[Iterable[HintSeen]]] | None = None,
    ) -> None:
        """``leftovers``: placements that an earlier life may have claimed and not carried out; for
        runtimes that take longer to make pods than we to acknowledge the order."""
        self.core = core
        self.counts = Counts()
        self._conn = conn
        self._log = EventLog(conn)
        self._appends = grouped(conn)
        self._runtime = runtime
        self._service = service
        self._leftovers = leftovers
        self._inbox: deque[Event] = deque()
        self._writes: deque[Append] = deque()
        self._reading = 0
        self._reads: deque[Reload] = deque()  # after the writes: a restart asks for thousands
        self._flying: set[asyncio.Task[None]] = set()
        self._hints: dict[int, asyncio.Future[None]] = {}
        self._hint_number = 0
        self._pump_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._died: asyncio.Future[None] = self._loop.create_future()
        self._back = asyncio.Event()
        self._failures: dict[str, int] = {}  # workload -> writes of unknown outcome in a row
        self._chance = random.Random()

    async def run(self, stopping: asyncio.Event) -> None:
        """Work until ``stopping`` is set. Raises what a core raised: it must not go on then."""
        self._runtime.start(self.feed)
        forget = self._conn.when_reconnected(self._back.set)
        for event in await self._runtime.found(self.core.name):
            self.feed(event)
        if self._leftovers is not None:
            for told in await self._leftovers():
                self.feed(told)
        working = asyncio.gather(*(self._worker(kind).run(stopping) for kind in KINDS))
        try:
            ends: set[asyncio.Future[Any]] = {working, self._died}
            done, _ = await asyncio.wait(ends, return_when="FIRST_COMPLETED")
            for end in done:
                end.result()
        finally:
            forget()
            if self._timer is not None:
                self._timer.cancel()
            working.cancel()
            if self._flying and not self._died.done():
                await asyncio.wait(set(self._flying), timeout=LAST_WRITES_S)
            for task in self._flying:
                task.cancel()
            await asyncio.gather(working, *self._flying, return_exceptions=True)

    def _worker(self, kind: str) -> Worker:
        """What feeds us one kind of hint."""
        return Worker(
            self._conn,
            self._service,
            WORKLOADS,
            f"executor-{subjects.token(self.core.cluster)}-{kind}",
            subjects.workload_events_in(self.core.cluster, kind),
            self._on_hint,
            concurrency=MAX_HINTS,
            ack_wait_s=HINT_AGAIN_S,
        )

    # Hints

    async def _on_hint(self, recorded: Recorded) -> None:
        """Returns once the core has acted on it, which acknowledges it."""
        try:
            event = EVENTS.decode(recorded.data)
        except UNREADABLE as error:
            raise Never(f"not an event that this version knows: {error}") from error
        if not isinstance(event, Placed | CancelRequested | Evicted | Failed):
            raise Never(f"{type(event).__name__} is no hint for an executor")
        if event.by == self.core.name:
            return
        self._hint_number = number = self._hint_number + 1
        acted = self._hints[number] = self._loop.create_future()
        self.feed(HintSeen(number, event, recorded.sequence))
        try:
            async with asyncio.timeout(HINT_LIMIT_S):
                await acted
        except TimeoutError as error:
            raise Later("still at it", counted=False) from error
        finally:
            self._hints.pop(number, None)

    # The pump

    def feed(self, event: Event) -> None:
        """Something happened; the core hears of it before this turn of the loop is over."""
        self._inbox.append(event)
        if not self._pump_due:
            self._pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Everything that is there, then durability, then the world."""
        now_s = self._conn.now()
        acted: list[int] = []
        try:
            while self._inbox:
                for instruction in self.core.handle(self._inbox.popleft(), now_s):
                    self._perform(instruction, acted)
            self._runtime.flush()
        except Exception as error:  # noqa: BLE001 # told to the owner, who ends the service
            if not self._died.done():
                self._died.set_exception(error)
            return  # nothing is acknowledged or sent any more
        finally:
            self._pump_due = False
        for hint in acted:
            waiting = self._hints.get(hint)
            if waiting is not None and not waiting.done():
                waiting.set_result(None)
        self._launch()
        self._arm(now_s)

    def _perform(self, instruction: Instruction, acted: list[int]) -> None:
        match instruction:
            case Append():
                self._writes.append(instruction)
            case Reload():
                self._reads.append(instruction)
            case CreatePods() | StopPods() | DeletePods():
                self._runtime.perform(instruction)
            case Acknowledge(hint):
                acted.append(hint)
            case Freeze():
                self.counts.frozen += 1
                self._fly(self._report(instruction))
            case _:
                assert_never(instruction)

    def _arm(self, now_s: float) -> None:
        due_s = self.core.next_due_s
        if due_s is None:
            return
        due_s = max(due_s, now_s + TICK_GRAIN_S)
        if self._timer is not None:
            if self._timer_due_s <= due_s:
                return
            self._timer.cancel()
        self._timer_due_s = due_s
        self._timer = self._loop.call_later(due_s - now_s, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self.feed(Tick())

    # Writes and reads

    def _launch(self) -> None:
        while len(self._flying) < MAX_IN_FLIGHT:
            if self._writes:
                self._fly(self._append(self._writes.popleft()))
            elif self._reads and self._reading < MAX_READS:
                self._reading += 1
                self._fly(self._reload(self._reads.popleft()))
            else:
                return

    def _fly(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = self._loop.create_task(work)
        self._flying.add(task)
        task.add_done_callback(self._landed)

    def _landed(self, task: asyncio.Task[None]) -> None:
        self._flying.discard(task)
        if not task.cancelled() and (error := task.exception()) and not self._died.done():
            self._died.set_exception(error)
        self._launch()

    async def _append(self, order: Append) -> None:
        name = key(order.event.tenant, order.event.id)
        await self._connected()
        try:
            outcome: Outcome = await self._appends.append(order.event)
        except BusError as error:
            outcome = Unknown(str(error))
        failures = self._failures.pop(name, 0)
        match outcome:
            case Stored():
                self.counts.stored += 1
            case Refused():
                self.counts.refused += 1
            case Unknown(why):
                self.counts.unknown += 1
                if not failures:
                    self._conn.log.warning("write of unknown outcome", workload=name, why=why)
                failures = self._failures[name] = failures + 1
                await asyncio.sleep(_PAUSES.delay_s(failures, self._chance))
            case _:
                assert_never(outcome)
        self.feed(Answered(ref=order.ref, outcome=outcome))

    async def _reload(self, order: Reload) -> None:
        """Until it is readable: a core that cannot read must not decide."""
        try:
            story = await self._story(order)
        finally:
            self._reading -= 1
        self.counts.reloads += 1
        try:
            recorded = decode_story(story)
        except UNREADABLE as error:
            self.feed(Reloaded(ref=order.ref, workload=None, failed=str(error)))
            return
        workload = Workload(tenant=order.tenant, id=order.id)
        for one in recorded:
            offer(workload, one.event, one.sequence, one.stored_at_s)
        self.feed(Reloaded(ref=order.ref, workload=workload if recorded else None))

    async def _story(self, order: Reload) -> list[Message]:
        failures = 0
        while True:
            await self._connected()
            try:
                timeout_s = min(GET_TIMEOUT_S * 2.0**failures, LONGEST_READ_S)
                return await self._log.story(order.tenant, order.id, timeout_s=timeout_s)
            except BusError as error:
                failures += 1
                if failures == 1:
                    self._conn.log.warning(
                        "cannot read a workload",
                        workload=f"{order.tenant}/{order.id}",
                        why=str(error),
                    )
                await asyncio.sleep(_PAUSES.delay_s(failures, self._chance))

    async def _connected(self) -> None:
        """Wait for the server, instead of filling the buffer for it with repetitions."""
        while not self._conn.connected:
            self._back.clear()
            try:
                async with asyncio.timeout(RECONNECT_POLL_S):
                    await self._back.wait()
            except TimeoutError:
                pass

    async def _report(self, freeze: Freeze) -> None:
        await bury(
            self._conn,
            service=self._service,
            subject=subjects.aggregate(freeze.tenant, freeze.id),
            reason=freeze.why,
            body=b"",
            stream=WORKLOADS,
            workload=f"{freeze.tenant}/{freeze.id}",
        )

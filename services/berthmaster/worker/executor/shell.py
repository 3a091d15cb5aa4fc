"""Drives an executor's core at the door: take, ask the core, perform, tell; nothing to decide.

All that happens in one turn of the event loop is handled in one go: hints, answers, the cluster's
events. Then the runtime makes durable what it was told to do, and only then are writes sent. A
write or read whose fate is open is waited for with growing pauses, for as long as it takes: the bus
may be away for hours, and the pods run on.

Hints need no acknowledgement: a list of all that is open comes at the start, after each lost
connection and now and then. So what a killed life had claimed and not made is found by the next.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, assert_never

from berthmaster.lib.door_client.client import ASK_TIMEOUT_S, FORGET_AFTER, DoorClient, Heard, Story
from berthmaster.lib.door_client.holdings import report
from berthmaster.lib.lifecycle.instructions import (
    Answered,
    Append,
    Outcome,
    Refused,
    Reload,
    Reloaded,
    Stored,
    Unknown,
)
from berthmaster.lib.lifecycle.workload import key
from berthmaster.lib.messages.workload import Placed
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.runtime.backoff import Backoff
from berthmaster.worker.executor.core.cluster_protocol import (
    ClusterInstruction,
    CreatePods,
    DeletePods,
    PodEvent,
    ResizePods,
    StopPods,
)
from berthmaster.worker.executor.core.events import (
    Acknowledge,
    Event,
    Freeze,
    HintSeen,
    Instruction,
    Listed,
    Tick,
)
from berthmaster.worker.executor.core.executor import Executor
from berthmaster.worker.executor.logs import LogDesk
from berthmaster.worker.executor.progress import ProgressReader

if TYPE_CHECKING:  # the emulator has no client of an API server
    from berthmaster.worker.executor.hub_words import HubWords

MAX_IN_FLIGHT: Final = 128  # writes and reads; the rest waits in order
MAX_READS: Final = 16  # since a history takes several messages, read one at a time
NO_HINT: Final = 0  # no caller waits for this hint
LONGEST_READ_S: Final = 10.0  # of one request; retries wait longer
LAST_WRITES_S: Final = 0.5
TICK_GRAIN_S: Final = 0.05  # most timers are looked at for nothing
_PAUSES: Final = Backoff(first_s=0.1, most_s=10.0)


class Runtime(Protocol):
    """A cluster for its executor. Orders never fail at once: results come as events, possibly much
    later.
    """

    def start(self, tell: Callable[[PodEvent], None]) -> None:
        """Start to report events with ``tell``. Called once."""

    async def found(self, executor: str) -> list[PodEvent]:
        """Return all job objects with this executor's label, each with its state."""

    def perform(self, order: ClusterInstruction) -> None: ...

    def flush(self) -> None:
        """Make the orders since the last call durable."""


class Counts:
    def __init__(self) -> None:
        self.stored = 0
        self.refused = 0
        self.unknown = 0
        self.reloads = 0
        self.frozen = 0


class Shell:
    def __init__(
        self,
        door: DoorClient,
        core: Executor,
        runtime: Runtime,
        *,
        logs: LogDesk | None = None,
        progress: ProgressReader | None = None,
        hub_words: "HubWords | None" = None,
        service: str = "executor",
        serves: Callable[[Placed], bool] = lambda _: True,
    ) -> None:
        """``logs``: stores ends of logs. ``progress``: reads reports of jobs. ``hub_words``:
        reports of the hub's jobs. ``serves``: returns False for placements of an earlier run to
        ignore.
        """
        self.core = core
        self.counts = Counts()
        self._door = door
        self._runtime = runtime
        self._logs = logs
        self._progress = progress
        self._hub_words = hub_words
        self._service = service
        self._serves = serves
        self._inbox: deque[Event] = deque()
        self._writes: deque[Append] = deque()
        self._reading = 0
        self._reads: deque[Reload] = deque()  # after the writes: a restart asks for thousands
        self._flying: set[asyncio.Task[None]] = set()
        self._pump_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._died: asyncio.Future[None] = self._loop.create_future()
        self._is_reporting = False  # a report of held attempts runs
        self._failures: dict[str, int] = {}  # workload -> writes of unknown outcome in a row
        self._chance = random.Random()

    async def run(self, stopping: asyncio.Event) -> None:
        """Work until ``stopping`` is set. Raises an exception of the core, after which it must not
        continue.
        """
        progress = self._progress
        if progress is not None:
            progress.start(self._on_words)
        self._runtime.start(self.feed if progress is None else progress.pass_on)
        for event in await self._runtime.found(self.core.name):
            if progress is not None:
                progress.see(event)
            self.feed(event)
        following = asyncio.ensure_future(
            self._door.follow(self._on_heard, inquired=self._on_inquiry)
        )
        stop = asyncio.ensure_future(stopping.wait())
        try:
            ends: set[asyncio.Future[Any]] = {following, stop, self._died}
            done, _ = await asyncio.wait(ends, return_when="FIRST_COMPLETED")
            for end in done:
                end.result()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            following.cancel()
            stop.cancel()
            if self._flying and not self._died.done():
                await asyncio.wait(set(self._flying), timeout=LAST_WRITES_S)
            for task in self._flying:
                task.cancel()
            await asyncio.gather(following, stop, *self._flying, return_exceptions=True)

    # Hints

    def _on_heard(self, heard: Heard) -> None:
        for event, sequence, held, receipt in heard.hints:
            if event.by == self.core.name:
                continue
            if held and isinstance(event, Placed) and not self._serves(event):
                continue
            self.feed(HintSeen(NO_HINT, event, sequence, receipt))
        if heard.listed:
            events = [(hint.event, hint.held) for hint in heard.hints]
            names = frozenset(key(event.tenant, event.id) for event, _ in events)
            unheld = frozenset(
                key(event.tenant, event.id)
                for event, is_held in events
                if isinstance(event, Placed) and not is_held
            )
            self.feed(Listed(names, heard.cursor, unheld, heard.renewed))

    # Held attempts

    def _on_inquiry(self, inquiry: str) -> None:
        """Report held attempts. `berth recover` repeats its inquiry, so inquiries during a report
        are ignored.
        """
        if not self._is_reporting:
            self._is_reporting = True
            self._fly(self._report_held(inquiry))

    async def _report_held(self, inquiry: str) -> None:
        try:
            await report(self._door, inquiry, self.core.held)
        finally:
            self._is_reporting = False

    # Events and orders

    def _on_words(self, event: PodEvent) -> None:
        if self._hub_words is None or not self._hub_words.takes(event):
            self.feed(event)

    def _order(self, order: ClusterInstruction) -> None:
        """Forward an order. Logs are read before their pods are deleted, or while they stop."""
        if isinstance(order, StopPods):
            if self._progress is not None:
                self._progress.follow(order.attempt)
            if self._logs is not None:
                self._logs.keep_ends(order.attempt)
        if isinstance(order, DeletePods) and self._logs is not None:
            self._logs.keep_ends(order.attempt, then=lambda: self._delete(order))
        else:
            self._runtime.perform(order)

    def _delete(self, order: DeletePods) -> None:
        self._runtime.perform(order)
        self._runtime.flush()

    # The pump

    def feed(self, event: Event) -> None:
        """Queue an event for the core, handled in this pass of the event loop."""
        self._inbox.append(event)
        if not self._pump_due:
            self._pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Handle all queued events, then make orders durable, then perform I/O."""
        now_s = self._door.now()
        try:
            while self._inbox:
                for instruction in self.core.handle(self._inbox.popleft(), now_s):
                    self._perform(instruction)
            self._runtime.flush()
        except Exception as error:  # noqa: BLE001 # told to the owner, who ends the service
            if not self._died.done():
                self._died.set_exception(error)
            return  # nothing is sent any more
        finally:
            self._pump_due = False
        self._launch()
        self._arm(now_s)

    def _perform(self, instruction: Instruction) -> None:
        match instruction:
            case Append():
                self._writes.append(instruction)
            case Reload():
                self._reads.append(instruction)
            case CreatePods() | ResizePods() | StopPods() | DeletePods():
                self._order(instruction)
            case Acknowledge():
                pass  # the next list names it again while open
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
        await self._door.connected()
        try:
            outcome: Outcome = await self._door.append(order.event)
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
                    self._door.log.warning("write result unknown", workload=name, why=why)
                failures = self._failures[name] = failures + 1
                await asyncio.sleep(_PAUSES.delay_s(failures, self._chance))
            case _:
                assert_never(outcome)
        self.feed(Answered(ref=order.ref, outcome=outcome))

    async def _reload(self, order: Reload) -> None:
        """Read until successful: the core must not decide without the result."""
        try:
            story = await self._story(order)
        finally:
            self._reading -= 1
        self.counts.reloads += 1
        self.feed(Reloaded(ref=order.ref, **story._asdict()))

    async def _story(self, order: Reload) -> Story:
        failures = 0
        while True:
            await self._door.connected()
            try:
                timeout_s = min(ASK_TIMEOUT_S * 2.0**failures, LONGEST_READ_S)
                return await self._door.story(
                    order.tenant,
                    order.id,
                    receipt=order.receipt,
                    executor=self.core.name if order.receipt else "",
                    timeout_s=timeout_s,
                )
            except BusError as error:
                failures += 1
                if failures == 1:
                    self._door.log.warning(
                        "workload unreadable",
                        workload=f"{order.tenant}/{order.id}",
                        why=str(error),
                    )
                if failures % FORGET_AFTER == 0:
                    self._door.forget()
                await asyncio.sleep(_PAUSES.delay_s(failures, self._chance))

    async def _report(self, freeze: Freeze) -> None:
        await self._door.store_dead_letter(
            self._service,
            subject=subjects.aggregate(freeze.tenant, freeze.id),
            reason=freeze.why,
            workload=f"{freeze.tenant}/{freeze.id}",
        )

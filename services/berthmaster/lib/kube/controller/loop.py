"""The loop: feeds a core from a watch, carries its writes out, returns the answers.

The replica with the lease acts. The others watch the same objects and take over. A service derives
from ``Controller``, and sets its watched kinds, its core and its writer. ``may_act`` holds further
conditions for acting.

The service stops within 5 s. The loop starts no more writes, and waits ``FINISH_S`` for those in
flight. The lease is released last, so that another replica takes over at once and finds no
half-done write.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, Final, Generic, Protocol, TypeVar

from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.aside import Phase, SetAside
from berthmaster.lib.kube.controller.controller_metrics import ControllerMetrics
from berthmaster.lib.kube.controller.kube_events import KubeEvents
from berthmaster.lib.kube.controller.shell_contract import Answer, KubeEvent, Outcome
from berthmaster.lib.kube.controller.watch import Watch, Watched
from berthmaster.lib.kube.controller.writer import Writer
from berthmaster.lib.kube.reflector import SURE_S
from berthmaster.lib.runtime.lease import Lease
from berthmaster.lib.runtime.periodic import beats, set_within
from berthmaster.lib.runtime.service import Context

LONGEST_SLEEP_S: Final = 1.0
LEAST_SLEEP_S: Final = 0.01  # minimum, even if the core is due sooner
BEAT_S: Final = 0.5
FINISH_S: Final = 2.0  # for writes in flight when the service stops, which drains within 4 s
RELEASE_S: Final = 1.0
W = TypeVar("W")


class Core(Protocol[W]):
    """Decides what to write. Pure: the loop passes in objects, time and answers."""

    @property
    def aside(self) -> SetAside:
        """The objects skipped because of errors."""

    def begin(self) -> None:
        """Begin to act as this replica. Other replicas may have changed the known state."""

    def wake_at_s(self) -> float:
        """Return when to call ``act`` again, unless an input arrives earlier."""

    def act(self, now_s: float) -> Iterable[W | KubeEvent]:
        """Return the writes and Events that are due now."""

    def on_answer(self, write: W, answer: Answer, now_s: float) -> Iterable[W | KubeEvent]:
        """Apply the answer to a write. Return the writes and Events due because of the answer."""


class Controller(Generic[W]):
    def __init__(
        self,
        ctx: Context[Any],
        client: Client,
        core: Core[W],
        writer: Writer[W],
        *,
        name: str,
        gather_s: float = 0.0,
        beat_s: float = BEAT_S,
        quiet: bool = False,
    ) -> None:
        """Keyword arguments, times in seconds:

        - ``name``: the controller's name after ``berthmaster.io/``.
        - ``gather_s``: pause after a change to collect more changes, where one pass is costly.
        - ``beat_s``: period of health and metrics.
        - ``quiet``: log Events only.
        """
        self.ctx = ctx
        self.client = client
        self.writer = writer
        self.lease: Lease | None = None
        self.kube_events = KubeEvents(ctx, client, name, quiet=quiet)
        self.metrics = ControllerMetrics(ctx.metrics)
        self.acting = False
        self._was_odd = False
        self.watch: Watch
        self._core = core
        self._gather_s = gather_s
        self._beat_s = beat_s
        self._changed = asyncio.Event()
        self._under_way: set[asyncio.Task[None]] = set()
        self._own: set[asyncio.Task[None]] = set()  # the loop's task and the lease's task
        writer.may_write = self.may_act

    # Hooks of a service

    def now(self) -> float:
        """Return the time passed to the core."""
        return self.ctx.now()

    def may_act(self) -> bool:
        """Return whether this replica acts now. Called often, changes nothing."""
        return self.lease is not None and self.lease.held and self.watch.complete

    def before_act(self) -> None:
        """Prepare the core with inputs other than the watch."""

    async def act(self) -> None:
        """Run one pass of the core, while this replica may act."""
        for instruction in self._core.act(self.now()):
            self.carry_out(instruction)

    def wrote(self, write: W, answer: Answer) -> None:
        """Log the answer to a write, after the core has applied the answer."""
        if answer.done:
            return
        log_answer = (
            self.ctx.log.info if answer.outcome is Outcome.CONFLICT else self.ctx.log.warning
        )
        log_answer(
            "not written",
            write=type(write).__name__,
            about=self.about(write),
            outcome=answer.outcome.value,
            why=answer.why,
        )

    def about(self, write: W) -> str:
        """Return the object of a write, for the log."""
        return ""

    def show(self) -> None:
        """Set health and metrics beyond those of every controller."""

    # Start and stop

    def watches(
        self,
        watched: Iterable[Watched],
        *,
        absent_s: float,
        sure_s: float = SURE_S,
        kind: type[Watch] = Watch,
    ) -> None:
        """Set the watched kinds. Call once, before ``start``."""
        self.watch = kind(
            self.ctx,
            self.client,
            watched,
            self._core.aside,
            on_object=self.on_object,
            on_listed=self.on_listed,
            on_change=self.wake,
            absent_s=absent_s,
            sure_s=sure_s,
        )

    def start(self) -> None:
        """Watch, and act as soon as allowed."""
        self.watch.start()
        self.kube_events.start()
        self._spawn(self._act_for_ever(), "act")
        self.ctx.spawn(self._keep_house(), name="keep house")

    def lead_by(self, lease: Lease) -> None:
        """Try to hold this lease from now on."""
        self.lease = lease
        self.ctx.health.ready("lease", False, lease.trouble)
        self._spawn(lease.run(), "lease")

    async def finish(self) -> None:
        """Wait for the stop of the service, end writes in flight, then release the lease."""
        await self.ctx.stopping.wait()
        acting = {task for task in self._own if task.get_name() == "act"}
        for task in acting:
            task.cancel()
        if ending := acting | self._under_way:
            await asyncio.wait(ending, timeout=FINISH_S)
        rest = self._own | self._under_way
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=RELEASE_S)

    def _spawn(self, coro: Any, name: str) -> None:
        task = self.ctx.spawn(coro, name=name)
        self._own.add(task)
        task.add_done_callback(self._own.discard)

    # Inputs

    def on_object(self, one: Watched, thing: Any, gone: bool) -> None:
        """Apply a change from the watch. An exception skips the object."""
        raise NotImplementedError

    def on_listed(self, one: Watched) -> None: ...

    def wake(self) -> None:
        """Wake the loop after a change that the core may act on."""
        self._changed.set()

    # Acting

    async def _act_for_ever(self) -> None:
        while True:
            await self._sleep()
            self.before_act()
            acting = self.may_act()
            if acting and not self.acting:
                self._core.begin()
            self.acting = acting
            self.metrics.acting(acting)
            if acting:
                await self.act()
                self._report_oddities()

    async def _sleep(self) -> None:
        """Wait for a change, or for the core's due time."""
        pause_s = LONGEST_SLEEP_S
        if self.acting:
            due_s = self._core.wake_at_s() - self.now()
            pause_s = min(LONGEST_SLEEP_S, max(LEAST_SLEEP_S, due_s))
        await set_within(pause_s, self._changed)
        if self._gather_s:
            await asyncio.sleep(self._gather_s)
        self._changed.clear()

    def carry_out(self, instruction: W | KubeEvent) -> None:
        """Start one write or publish one Event, without waiting."""
        if isinstance(instruction, KubeEvent):
            self.kube_events.publish(instruction)
            return
        task = self.ctx.spawn(self._write(instruction), name=f"write {self.about(instruction)}")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _write(self, write: W) -> None:
        answer = await self.writer.carry_out(write)
        self.metrics.wrote(write, answer)
        self.watch.answered(answer.found)
        try:
            for instruction in self._core.on_answer(write, answer, self.now()):
                self.carry_out(instruction)
        except Exception as error:  # noqa: BLE001 - one odd object must not end the rest
            self.metrics.fault()
            self.ctx.log.error("answer not handled", error=error, write=self.about(write))
        self.wrote(write, answer)
        self.wake()

    def _report_oddities(self) -> None:
        for odd in self._core.aside.take_unreported():
            if odd.phase is not Phase.READING:  # the watch has logged unreadable objects
                self.ctx.log.error(
                    "object skipped",
                    error=odd.error,
                    about=f"{odd.resource.kind} {odd.metadata.namespace}/{odd.metadata.name}",
                    why=odd.why,
                )
            self.kube_events.publish(odd.event)

    # Health and metrics

    async def _keep_house(self) -> None:
        async for _ in beats(self._beat_s, self.ctx.stopping):
            self.watch.show()
            if (lease := self.lease) is not None:
                note = "held" if lease.held else f"held by {lease.seen_holder or 'nobody'}"
                self.ctx.health.ready("lease", not lease.trouble, lease.trouble, note=note)
            aside = self._core.aside
            if aside or self._was_odd:
                self._was_odd = bool(aside)
                note = f"{len(aside)} cannot be handled" if aside else ""
                self.ctx.health.ready("odd objects", True, note=note)
            self.metrics.show(aside, self.kube_events.dropped)
            self.show()

"""The loop: feeds a core from a watch, carries its writes out, brings the answers back.

One replica acts, by its lease; the others watch the same and take over. A service derives from
``Controller`` and says what it watches, which core decides and which writer has the verbs; what
else must be so before it may act is ``may_act``.

It ends within 5 s of being asked to: nothing new is begun, what is under way has ``FINISH_S``, and
then the lease is given back, so that another replica finds nothing half done and takes over at
once.
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
LEAST_SLEEP_S: Final = 0.01  # however soon the core says that something is due
BEAT_S: Final = 0.5
FINISH_S: Final = 2.0  # for writes that are under way when the service stops; it drains within 4
RELEASE_S: Final = 1.0
W = TypeVar("W")


class Core(Protocol[W]):
    """Decides what is to be written. Pure: it is fed, asked, and told what became of it."""

    @property
    def aside(self) -> SetAside:
        """Objects that it could not handle."""

    def begin(self) -> None:
        """This replica acts from now on: others may have changed what it knew."""

    def wake_at_s(self) -> float:
        """When to ask ``act`` again, unless something comes in before."""

    def act(self, now_s: float) -> Iterable[W | KubeEvent]:
        """What to write and to tell now."""

    def on_answer(self, write: W, answer: Answer, now_s: float) -> Iterable[W | KubeEvent]:
        """What became of a write; what to do at once because of it."""


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
        """``name``: of the controller, after ``berthmaster.io/``. ``gather_s``: to wait after a
        change for more of them, where a look at all that changed is dear. ``beat_s``: between two
        looks at health and figures. ``quiet``: Events go into the log only."""
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
        self._own: set[asyncio.Task[None]] = set()  # the loop, and the lease
        writer.may_write = self.may_act

    # What a service may say otherwise

    def now(self) -> float:
        """The time that the core gets."""
        return self.ctx.now()

    def may_act(self) -> bool:
        """Whether this replica acts now. Asked often, changes nothing."""
        return self.lease is not None and self.lease.held and self.watch.complete

    def before_act(self) -> None:
        """What the core must know before it acts, beside what the watch tells it."""

    async def act(self) -> None:
        """Once around, while this replica may."""
        for instruction in self._core.act(self.now()):
            self.carry_out(instruction)

    def wrote(self, write: W, answer: Answer) -> None:
        """What became of a write, for figures and the log; the core has been told."""
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
        """The object that a write is about, for the log."""
        return ""

    def show(self) -> None:
        """Health and figures as of now, beside those that every controller has."""

    # Life

    def watches(
        self,
        watched: Iterable[Watched],
        *,
        absent_s: float,
        sure_s: float = SURE_S,
        kind: type[Watch] = Watch,
    ) -> None:
        """What is watched; called once, before ``start``."""
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
        """Watch, and act as soon as that is allowed."""
        self.watch.start()
        self.kube_events.start()
        self._spawn(self._act_for_ever(), "act")
        self.ctx.spawn(self._keep_house(), name="keep house")

    def lead_by(self, lease: Lease) -> None:
        """From now on try to hold this lease."""
        self.lease = lease
        self.ctx.health.ready("lease", False, lease.trouble)
        self._spawn(lease.run(), "lease")

    async def finish(self) -> None:
        """Once the service is asked to stop: end what is under way, then give the lease back."""
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

    # What comes in

    def on_object(self, one: Watched, thing: Any, gone: bool) -> None:
        """What the watch tells. What this raises sets the object aside."""
        raise NotImplementedError

    def on_listed(self, one: Watched) -> None: ...

    def wake(self) -> None:
        """Something happened that the core may act on."""
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
        """Until something happened, or the time that the core named has come."""
        pause_s = LONGEST_SLEEP_S
        if self.acting:
            due_s = self._core.wake_at_s() - self.now()
            pause_s = min(LONGEST_SLEEP_S, max(LEAST_SLEEP_S, due_s))
        await set_within(pause_s, self._changed)
        if self._gather_s:
            await asyncio.sleep(self._gather_s)
        self._changed.clear()

    def carry_out(self, instruction: W | KubeEvent) -> None:
        """One thing that the core asked for; never waits."""
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
            if odd.phase is not Phase.READING:  # the watch has told the log
                self.ctx.log.error(
                    "object skipped",
                    error=odd.error,
                    about=f"{odd.resource.kind} {odd.metadata.namespace}/{odd.metadata.name}",
                    why=odd.why,
                )
            self.kube_events.publish(odd.event)

    # House

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

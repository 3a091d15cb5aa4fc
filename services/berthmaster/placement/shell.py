"""The evaluator's shell: feeds the core from six mirrors, and writes what it says.

One replica holds the lease and writes; the others mirror the same hub and take over within a
lease's time. A Placement that was looked at rests for many times as long as that took: none starves
the others, and all of them together leave most of a core alone.
"""

import asyncio
import os
import socket
import time
from collections.abc import Iterable
from typing import Any, Final

from berthmaster.controller.aside import SetAside
from berthmaster.controller.watch import Watch, Watched
from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.events import Recorder, Subject
from berthmaster.kubernetes.lease import Lease
from berthmaster.kubernetes.mirror import Key
from berthmaster.kubernetes.resources import PLACEMENTS
from berthmaster.placement.core import Evaluator, Work
from berthmaster.placement.hands import Hands
from berthmaster.placement.mirrors import WATCHED
from berthmaster.placement.settings import PlacementSettings
from berthmaster.placement.telling import Tell
from berthmaster.runtime.periodic import beats, set_within
from berthmaster.runtime.service import Context

LEASE: Final = "berthmaster-placement"
LONGEST_SLEEP_S: Final = 1.0
BEAT_S: Final = 0.5
DEAR: Final = 10.0  # a look is followed by so many times its own length of rest …
ALL_DEAR: Final = 3.0  # … for each Placement: in a storm of scores all take a third of a core
AT_ONCE: Final = 16  # Placements that are written side by side


class Shell:
    """One replica."""

    def __init__(self, ctx: Context[PlacementSettings], client: Client) -> None:
        self._ctx = ctx
        self.core = Evaluator()
        self._instance = f"placement-{socket.gethostname()}-{os.getpid()}"
        self._stir = asyncio.Event()
        self._stirred_at_s = 0.0  # event loop time of the first change not yet looked at; 0 = none
        absent_s = ctx.settings.absent_s
        self._mirrors = Watch(
            ctx, client, WATCHED, SetAside(), on_object=self._on_object, absent_s=absent_s
        )
        self._hands = Hands(client, self.core)
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._recorder = Recorder(
            client,
            controller="berthmaster.io/placement-evaluator",
            instance=self._instance,
            log=ctx.log,
            now=ctx.now,
        )
        settings = ctx.settings
        self._leader = Lease(
            client,
            namespace=settings.namespace or client.access.namespace or "default",
            name=LEASE,
            holder=self._instance,
            now=ctx.now,
            log=ctx.log,
            ttl_s=settings.lease_s,
            on_gained=lambda _: self._stir.set(),
        )
        metrics = ctx.metrics
        self._placements = metrics.gauge("placements", "Placements that are ours")
        self._misconfigured = metrics.gauge("misconfigured", "Placements of ours that are wrong")
        self._acting = metrics.gauge("acting", "1 = this replica writes")
        self._look_s = metrics.histogram("look_seconds", "One look at a Placement")
        self._reaction_s = metrics.histogram(
            "reaction_seconds", "From a change to the decisions written that follow from it"
        )
        self._writes = metrics.counter("writes", "Writes to the hub")
        self._refused = metrics.counter("writes_refused", "Lots of writes that failed")
        self._failures = metrics.counter("failures", "Placements that could not be looked at")
        self._events_dropped = metrics.gauge("events_dropped", "Events that were never written")

    async def run(self) -> None:
        """Until the service is asked to stop; the lease is given back at the end."""
        ctx = self._ctx
        ctx.health.ready("lease", False, "not looked at yet")
        self._mirrors.start()
        ctx.spawn(self._recorder.run(ctx.stopping), name="events for people")
        ctx.spawn(self._keep_house(), name="keep house")
        lease = ctx.spawn(self._leader.run(), name="lease")
        acting = ctx.spawn(self._act_for_ever(), name="act")
        await ctx.stopping.wait()
        acting.cancel()
        lease.cancel()
        await asyncio.wait({acting, lease}, timeout=2.0)

    # ---- what comes in

    def _on_object(self, one: Watched, thing: Any, gone: bool) -> None:
        self.core.on_object(thing, gone=gone)
        self._stirred_at_s = self._stirred_at_s or asyncio.get_running_loop().time()
        self._stir.set()

    # ---- acting

    @property
    def _may_act(self) -> bool:
        return self._leader.held and self._mirrors.complete

    async def _act_for_ever(self) -> None:
        while True:
            await self._sleep()
            may = self._may_act
            self._acting.set(may)
            self.core.complete = may
            self.core.behind = bool(self._mirrors.trouble)
            stirred_at_s, self._stirred_at_s = self._stirred_at_s, 0.0
            for key in self.core.due(self._ctx.now()):
                self._look(key, stirred_at_s)
                await asyncio.sleep(0)  # what else this loop does must go on

    async def _sleep(self) -> None:
        """Until something stirs the core, or the time that it named has come."""
        pause_s = min(LONGEST_SLEEP_S, self.core.wake_at_s() - self._ctx.now())
        await set_within(max(0.002, pause_s), self._stir)
        self._stir.clear()

    def _look(self, key: Key, stirred_at_s: float) -> None:
        if not self._may_act or not self.core.has(key):
            return
        now_s, began_s = self._ctx.now(), time.thread_time()
        try:
            work = self.core.evaluate(key, now_s)
        except Exception as error:  # noqa: BLE001 - one Placement must not end the rest
            self._failures.inc()
            self._ctx.log.error("a Placement cannot be looked at", error=error, placement=key)
            self._tell(self.core.on_done(key, f"{type(error).__name__}: {error}", now_s))
            return
        took_s = time.thread_time() - began_s
        self._look_s.observe(took_s)
        rest_s = took_s * max(DEAR, ALL_DEAR * len(self.core))
        self.core.rest(key, now_s + max(self._ctx.settings.pause_s, rest_s))
        self._tell(work.tells)
        if work.writes:
            self._ctx.spawn(self._write(work, stirred_at_s), name="write to the hub")

    async def _write(self, work: Work, stirred_at_s: float) -> None:
        async with self._turns:
            before = self._hands.writes
            why = await self._hands.carry_out(work)
            self._writes.inc(self._hands.writes - before)
        if why:
            self._refused.inc()
            self._ctx.log.info("not written", placement="/".join(work.key), why=why)
        elif stirred_at_s:
            self._reaction_s.observe(asyncio.get_running_loop().time() - stirred_at_s)
        self._tell(self.core.on_done(work.key, why, self._ctx.now()))
        self._stir.set()

    def _tell(self, tells: Iterable[Tell]) -> None:
        for tell in tells:
            about = Subject(PLACEMENTS, tell.placement)
            self._recorder.tell(
                about, "Warning" if tell.warning else "Normal", tell.reason, tell.note
            )
            self._ctx.log.info(
                "told", placement=tell.placement.name, reason=tell.reason, note=tell.note
            )

    # ---- house

    async def _keep_house(self) -> None:
        async for _ in beats(BEAT_S, self._ctx.stopping):
            self._mirrors.show()
            leader = self._leader
            note = "held" if leader.held else f"held by {leader.seen_holder or 'nobody'}"
            self._ctx.health.ready("lease", not leader.trouble, leader.trouble, note=note)
            self._placements.set(len(self.core))
            self._misconfigured.set(self.core.misconfigured)
            self._events_dropped.set(self._recorder.dropped)

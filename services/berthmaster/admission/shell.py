"""The controller's shell: feeds the core from the hub and the bus, carries out what it says.

One replica holds the lease and acts; the others mirror the same and take over within a lease's
time. While the bus is away each acts, but takes nothing away: see the core's ``whole``.
"""

import asyncio
import os
import socket
from typing import Any, Final

from berthmaster.admission.core import Admission
from berthmaster.admission.figures import Figures
from berthmaster.admission.hands import Hands
from berthmaster.admission.mirrors import Mirrors
from berthmaster.admission.words import Tell, Write
from berthmaster.bus import subjects
from berthmaster.bus.connection import Connection
from berthmaster.bus.facts import FactMirror, Seen
from berthmaster.bus.lease import Lease
from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.events import Recorder, Subject
from berthmaster.kubernetes.mirror import Change, mirrored
from berthmaster.kubernetes.mirrored import Watched
from berthmaster.kubernetes.resources import PLACEMENT_DECISIONS, PLACEMENTS
from berthmaster.messages.fleet import CopyReport
from berthmaster.runtime.service import Context

BUS_SILENT_S: Final = 3.0  # no heartbeat of it for so long: the bus is away
LONGEST_SLEEP_S: Final = 1.0
LEAST_SLEEP_S: Final = 0.02


class Shell:
    """One replica."""

    def __init__(
        self,
        ctx: Context[Any],
        client: Client,
        *,
        kueue_namespace: str,
        placement_namespace: str,
        settle_s: float,
    ) -> None:
        self._ctx = ctx
        self._name = f"admission/{socket.gethostname()}/{os.getpid()}"
        self._core = Admission(placement_namespace, settle_s=settle_s)
        self._stir = asyncio.Event()
        self._mirrors = Mirrors(
            ctx, client, self._on_change, placement_namespace=placement_namespace
        )
        self._hands = Hands(client, kueue_namespace)
        self._recorder = Recorder(
            client,
            controller="berthmaster.io/admission",
            instance=self._name.replace("/", "-")[:128],
            log=ctx.log,
            now=ctx.now,
        )
        self._figures = Figures(ctx.metrics)
        self._conn: Connection | None = None
        self._facts: FactMirror | None = None
        self._lease: Lease | None = None
        self._now = asyncio.get_running_loop().time
        self._began_s = self._now()
        self._acting = False

    def begin(self) -> None:
        """Mirror the hub and act on it, with the bus or without it."""
        ctx = self._ctx
        self._mirrors.start()
        ctx.spawn(self._recorder.run(ctx.stopping), name="events for people")
        ctx.spawn(self._act_for_ever(), name="act")
        ctx.spawn(self._keep_house(), name="gauges")

    async def run(self, conn: Connection) -> None:
        """With the bus, until the context says stop."""
        ctx = self._ctx
        self._conn = conn
        self._facts = FactMirror(
            conn,
            "admission",
            [subjects.fleet_facts("copy.*.*")],
            on_fact=self._on_fact,
            on_gone=self._on_gone,
        )
        self._lease = Lease(conn, "admission", self._name, on_gained=lambda _: self._stir.set())
        ctx.health.ready("fleet", False, "catching up")
        ctx.spawn(self._facts.run(caught_up=self._on_caught_up), name="mirror of copies")
        lease = ctx.spawn(self._lease.run(), name="lease")
        await ctx.stopping.wait()
        lease.cancel()  # gives it back, so that a follower takes over at once
        await asyncio.wait({lease}, timeout=2.0)

    # What comes in

    def _on_change(self, _: Watched, change: Change[Any]) -> None:
        if (found := mirrored(change)) is not None:
            thing, gone = found
            self._core.on_object(thing, gone=gone)
        self._stir.set()  # whatever it was: what the mirrors say is looked at

    def _on_fact(self, seen: Seen) -> None:
        fact = seen.fact
        if isinstance(fact, CopyReport):
            there = not fact.gone and not fact.finished
            self._core.on_copy(fact.cluster, (fact.namespace, fact.workload), there=there)
            self._stir.set()

    def _on_gone(self, subject: str) -> None:
        copy = subjects.parse_copy(subject)
        if copy is not None:
            cluster, *at = copy
            self._core.on_copy(cluster, (at[0], at[1]), there=False)
            self._stir.set()

    def _on_caught_up(self) -> None:
        self._ctx.health.ready("fleet", True)
        self._stir.set()

    # Acting

    @property
    def _bus_is_there(self) -> bool:
        """Connected, and its heartbeat is heard."""
        now_s = self._now()
        if self._conn is None or self._facts is None:
            return now_s - self._began_s < BUS_SILENT_S  # it may be in a moment
        return self._conn.connected and now_s - self._facts.last_heard_s < BUS_SILENT_S

    def _may_act(self) -> tuple[bool, bool]:
        """(whether to act, whether all is known that is needed to take something away)."""
        if not self._mirrors.complete:
            return False, False
        if not self._bus_is_there:
            return True, False
        if self._facts is None or self._lease is None or not self._lease.held:
            return False, False
        return True, self._facts.caught_up and not self._mirrors.trouble

    async def _act_for_ever(self) -> None:
        ctx, core = self._ctx, self._core
        while True:
            await self._sleep()
            acting, whole = self._may_act()
            if acting and not self._acting:
                core.begin()
            self._acting = acting
            if not acting:
                continue
            core.on_absent(self._mirrors.absent)
            core.on_unreadable(
                self._mirrors.unreadable(PLACEMENTS), self._mirrors.unreadable(PLACEMENT_DECISIONS)
            )
            for instruction in core.look(self._now(), at_s=ctx.now(), whole=whole):
                if isinstance(instruction, Tell):
                    self._tell(instruction)
                else:
                    ctx.spawn(self._write(instruction), name="write to the hub")

    async def _sleep(self) -> None:
        """Until something happened or is due; never without a pause, however much happens."""
        left_s = self._core.next_due_s - self._now()
        limit_s = min(max(left_s, LEAST_SLEEP_S), LONGEST_SLEEP_S)
        try:
            async with asyncio.timeout(limit_s):
                await self._stir.wait()
        except TimeoutError:
            pass
        await asyncio.sleep(LEAST_SLEEP_S)
        self._stir.clear()

    def _tell(self, tell: Tell) -> None:
        kind = "Warning" if tell.warning else "Normal"
        about = Subject(tell.resource, tell.metadata)
        self._recorder.tell(about, "Warning" if tell.warning else "Normal", tell.reason, tell.note)
        self._ctx.log.info(
            "told", kind=kind, about=tell.metadata.name, reason=tell.reason, note=tell.note
        )

    async def _write(self, write: Write) -> None:
        done = await self._hands.carry_out(write)
        self._figures.written(write, done)
        if done.why:
            self._ctx.log.info("not written", kind=type(write).__name__, why=done.why)
        self._core.on_done(done, self._now())
        self._stir.set()

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._mirrors.show()
            if self._conn is not None:
                self._ctx.health.ready("bus", self._conn.connected, "no connection to NATS")
            self._figures.show(
                self._core,
                acting=self._acting,
                passed=self._hands.passed,
                dropped=self._recorder.dropped,
            )

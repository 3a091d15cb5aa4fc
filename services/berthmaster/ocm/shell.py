"""The shell of both sides: feeds a core from the bus and an API server, carries out what it says.

One replica holds the lease and writes; the others mirror and stand by. While the bus is away nobody
holds it, and what stands on the hub must not run out, since what has run out counts as 0 there: so
each replica then writes what is surely so, that nothing is known. Every write carries the resource
version of what was looked at, and what stands there already is not written: several that do so
write once.
"""

import asyncio
import os
import secrets
import socket
from collections.abc import Sequence
from math import inf
from typing import Any, Final, Protocol

from berthmaster.bus.connection import Connection
from berthmaster.bus.facts import FactMirror, Seen
from berthmaster.bus.lease import Lease
from berthmaster.bus.subjects import parse_fact
from berthmaster.controller.aside import SetAside
from berthmaster.controller.watch import Watch, Watched
from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.events import Recorder, Subject
from berthmaster.kubernetes.objects import Object
from berthmaster.kubernetes.resources import (
    ADD_ON_PLACEMENT_SCORES,
    CLUSTER_CLAIMS,
    CLUSTER_PROFILES,
    MANAGED_CLUSTERS,
    Resource,
)
from berthmaster.messages.fleet import ClusterScore
from berthmaster.ocm.desk import Desk
from berthmaster.ocm.figures import Figures
from berthmaster.ocm.hands import Hands
from berthmaster.ocm.words import Done, Instruction, Tell, Write
from berthmaster.runtime.periodic import beats, set_within
from berthmaster.runtime.service import Context

BUS_SILENT_S: Final = 10.0  # no heartbeat of the fleet for so long: the bus is away
LONGEST_SLEEP_S: Final = 1.0
BEAT_S: Final = 0.5
RELEASE_LIMIT_S: Final = 1.0
_ABOUT: Final[dict[str, Resource]] = {
    "AddOnPlacementScore": ADD_ON_PLACEMENT_SCORES,
    "ManagedCluster": MANAGED_CLUSTERS,
    "ClusterProfile": CLUSTER_PROFILES,
    "ClusterClaim": CLUSTER_CLAIMS,
}


class Core(Protocol):
    """What a side decides with."""

    @property
    def desk(self) -> Desk[Any]:
        """The objects that it keeps."""

    def listen(self, now_s: float, *, blind: bool) -> None:
        """Scores that are told from now on are heard, or the bus is away."""

    def on_score(self, score: ClusterScore, stored_at_s: float) -> None:
        """A cluster's score was told."""

    def on_gone(self, cluster: str) -> None:
        """The bus has no score of the cluster any more."""

    def on_object(self, thing: Object, *, gone: bool) -> None:
        """An object as it is now."""

    def on_listed(self, plural: str) -> None:
        """All of a kind is known."""

    def on_absent(self, plural: str) -> None:
        """A kind is not served."""

    def on_done(self, done: Done, now_s: float) -> Sequence[Instruction]:
        """What became of a write."""

    def wake_at_s(self) -> float:
        """When to act again."""

    def act(self, now_s: float) -> Sequence[Instruction]:
        """What to write and to tell."""


class Shell:
    """One replica of one side."""

    def __init__(
        self,
        ctx: Context[Any],
        client: Client,
        core: Core,
        *,
        watched: tuple[Watched, ...],
        scores: str,
        lease: str,
        absent_s: float,
        lease_ttl_s: float,
    ) -> None:
        """``scores``: the subjects of the scores that matter here."""
        self._ctx = ctx
        self._core = core
        self._scores = scores
        self._lease_name, self._lease_ttl_s = lease, lease_ttl_s
        self._stir = asyncio.Event()
        self._hands = Hands(client)
        self._mirrors = Watch(
            ctx,
            client,
            watched,
            SetAside(),
            on_object=self._on_object,
            on_listed=lambda one: core.on_listed(one.name),
            absent_s=absent_s,
        )
        self._recorder = Recorder(
            client,
            controller="berthmaster.io/ocm",
            instance=f"ocm-{socket.gethostname()}-{os.getpid()}"[:128],
            log=ctx.log,
            now=ctx.now,
        )
        self._figures = Figures(ctx.metrics)
        self._conn: Connection | None = None
        self._mirror: FactMirror | None = None
        self._lease: Lease | None = None
        self._caught_up = False
        self._began_s = asyncio.get_running_loop().time()

    # ---- life

    def begin(self) -> None:
        """Mirror the API server and act, with the bus or without it."""
        ctx = self._ctx
        self._mirrors.start()
        ctx.spawn(self._recorder.run(ctx.stopping), name="events for people")
        ctx.spawn(self._keep_house(), name="keep house")
        ctx.spawn(self._act_for_ever(), name="act")

    async def run(self, conn: Connection) -> None:
        """With the bus, until the service is asked to stop."""
        ctx = self._ctx
        ctx.health.ready("fleet", False, "the scores have not been read")
        self._mirror = FactMirror(
            conn, "ocm", [self._scores], on_fact=self._on_fact, on_gone=self._on_gone
        )
        holder = f"ocm-{socket.gethostname()}-{secrets.token_hex(4)}"
        self._lease = Lease(
            conn,
            self._lease_name,
            holder,
            on_gained=lambda _: self._stir.set(),
            ttl_s=self._lease_ttl_s,
        )
        self._conn = conn
        ctx.spawn(self._mirror.run(caught_up=self._on_caught_up), name="mirror scores")
        lease = ctx.spawn(self._lease.run(), name="lease")
        await ctx.stopping.wait()
        lease.cancel()
        await asyncio.wait({lease}, timeout=RELEASE_LIMIT_S)

    # ---- what comes in

    def _on_caught_up(self) -> None:
        self._caught_up = True
        self._ctx.health.ready("fleet", True)
        self._stir.set()

    def _on_fact(self, seen: Seen) -> None:
        if isinstance(seen.fact, ClusterScore):
            self._core.on_score(seen.fact, seen.stored_at_s)
            self._stir.set()

    def _on_gone(self, subject: str) -> None:
        self._core.on_gone(parse_fact(subject)[0])
        self._stir.set()

    def _on_object(self, one: Watched, thing: Object, gone: bool) -> None:
        self._core.on_object(thing, gone=gone)
        self._stir.set()

    # ---- acting

    def _now(self) -> float:
        return self._conn.now() if self._conn is not None else self._ctx.now()

    @property
    def _blind(self) -> bool:
        """Nothing is heard of the bus, and nobody can hold a lease."""
        heard_s = self._began_s
        if self._mirror is not None and self._conn is not None:
            heard_s = max(heard_s, self._mirror.last_heard_s)
        return asyncio.get_running_loop().time() - heard_s > BUS_SILENT_S

    @property
    def _leads(self) -> bool:
        return self._caught_up and self._lease is not None and self._lease.held

    async def _act_for_ever(self) -> None:
        core = self._core
        while True:
            await self._sleep()
            blind = self._blind
            may = self._leads or blind
            self._figures.acting.set(may)
            if not may:
                continue
            now_s = self._now()
            core.listen(now_s, blind=blind and not self._leads)
            for instruction in core.act(now_s):
                self._carry_out(instruction)

    async def _sleep(self) -> None:
        """Until something stirs the core, or the time that it named has come."""
        wake_at_s = self._core.wake_at_s()
        pause_s = wake_at_s - self._now() if wake_at_s < inf else LONGEST_SLEEP_S
        await set_within(max(0.01, min(LONGEST_SLEEP_S, pause_s)), self._stir)
        self._stir.clear()

    def _carry_out(self, instruction: Instruction) -> None:
        if isinstance(instruction, Tell):
            self._tell(instruction)
        else:
            self._ctx.spawn(self._write(instruction), name="write")

    def _tell(self, tell: Tell) -> None:
        about = Subject(_ABOUT[tell.about], tell.metadata)
        kind = "Warning" if tell.warning else "Normal"
        self._recorder.tell(about, "Warning" if tell.warning else "Normal", tell.reason, tell.note)
        where = f"{tell.metadata.namespace}/{tell.metadata.name}"
        self._ctx.log.info("told", kind=kind, about=where, reason=tell.reason, note=tell.note)

    async def _write(self, write: Write) -> None:
        done = await self._hands.carry_out(write)
        now_s = self._now()
        self._figures.wrote(write, done, now_s)
        if done.outcome not in ("stored", "conflict"):
            what, where = type(write).__name__, "/".join(part for part in write.key[1:] if part)
            self._ctx.log.warning(
                "not written", what=what, where=where, outcome=done.outcome, why=done.why
            )
        for instruction in self._core.on_done(done, now_s):
            self._carry_out(instruction)
        self._stir.set()

    # ---- now and then

    async def _keep_house(self) -> None:
        health = self._ctx.health
        async for _ in beats(BEAT_S, self._ctx.stopping):
            self._mirrors.show()
            for kind in self._mirrors.lacking:
                self._core.on_absent(kind)
            troubles = self._figures.show(self._core.desk, self._recorder.dropped)
            health.ready("objects", True, note=troubles)
            if self._conn is None or self._lease is None:
                continue
            health.ready("bus", self._conn.connected, "no connection to NATS")
            known = self._lease.held or bool(self._lease.seen_holder)
            health.ready("lease", known, "nobody writes here")
            if self._caught_up:
                deaf = self._blind
                health.ready("fleet", not deaf, "nothing is heard of the fleet's stream")

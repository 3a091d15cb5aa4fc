"""The reconciler's shell: feeds the core from three streams and a hub, carries out what it says.

One replica holds the lease and acts; the others fold the same streams, mirror the same hub and take
over within a lease's time. What a workload asks for runs as a task of its own, one a workload at
most; one commit is under way at most. While the bus is away, each replica keeps Workloads moving by
the configuration's order alone.
"""

import asyncio
import os
import socket
from collections import Counter as Tally
from collections.abc import Callable, Mapping
from typing import Any, Final

from berthmaster.bus import subjects
from berthmaster.bus.connection import Connection
from berthmaster.bus.dead import bury
from berthmaster.bus.errors import BusError
from berthmaster.bus.facts import FactMirror, Seen
from berthmaster.bus.follow import Follower, Recorded
from berthmaster.bus.grouped import grouped
from berthmaster.bus.lease import Lease
from berthmaster.bus.log import EventLog
from berthmaster.bus.streams import CONTROL, WORKLOADS, stream_info
from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.events import Recorder, Subject
from berthmaster.kubernetes.objects import Metadata, Object
from berthmaster.kubernetes.resources import ADMISSION_CHECKS, JOBS, Resource
from berthmaster.kubernetes.resources import WORKLOADS as KUEUE_WORKLOADS
from berthmaster.kubernetes.wire import Undecodable
from berthmaster.lifecycle.fold import Verdict
from berthmaster.lifecycle.instructions import Append, Outcome, Stored, Unknown
from berthmaster.messages.families import CONTROL_FACTS, DECISIONS, EVENTS, UNREADABLE
from berthmaster.messages.placement import HUB_CELL
from berthmaster.multikueue.core import Reconciler
from berthmaster.multikueue.decide import Plan
from berthmaster.multikueue.hands import Hands
from berthmaster.multikueue.mirrors import Mirrors
from berthmaster.multikueue.parameters import Parameters
from berthmaster.multikueue.questions import Questions
from berthmaster.multikueue.settings import Policy
from berthmaster.multikueue.traps import TRAPS
from berthmaster.multikueue.words import Instruction, Nominate, Tell, Write
from berthmaster.runtime.service import Context

BEHIND_LIMIT_S: Final = 1.0  # to wait for what a refusal said is in the log
LONGEST_SLEEP_S: Final = 1.0
BUS_SILENT_S: Final = 3.0  # no heartbeat of the log for so long: the bus is away
BLIND_LOOK_S: Final = 0.5
MAX_BURIALS: Final = 256
_RESOURCES: Final[Mapping[str, Resource]] = {
    "Workload": KUEUE_WORKLOADS,
    "AdmissionCheck": ADMISSION_CHECKS,
    "Job": JOBS,
}


class Shell:
    """One replica."""

    def __init__(
        self,
        ctx: Context[Any],
        client: Client,
        *,
        policy: Policy,
        tenants: Mapping[str, str],
        namespace: str,
    ) -> None:
        self._ctx = ctx
        instance = f"multikueue/{socket.gethostname()}/{os.getpid()}"
        self.core = Reconciler(instance, policy, tenants)
        self._stir = asyncio.Event()
        self._mirrors = Mirrors(
            ctx, client, on_object=self._on_object, on_unreadable=self._on_unreadable
        )
        self._hands = Hands(client, self.core.hub)
        self._recorder = Recorder(
            client,
            controller="berthmaster.io/multikueue",
            instance=instance.replace("/", "-")[:128],
            log=ctx.log,
            now=ctx.now,
        )
        self._parameters = Parameters(client, self.core.hub, namespace, self._on_parameters)
        self._conn: Connection | None = None
        self._log: EventLog | None = None
        self._events: Follower | None = None
        self._lease: Lease | None = None
        self._caught_up = {"log": False, "fleet": False, "control": False}
        self._acting = False
        self._behind_since_s: float | None = None
        self._burials: set[asyncio.Task[bool]] = set()
        self._metrics()

    def _metrics(self) -> None:
        metrics = self._ctx.metrics
        self._nominations = metrics.counter("nominations", "Clusters nominated")
        self._refused = metrics.counter("refused_writes", "Writes not done", ["kind"])
        self._conflicts = metrics.gauge("conflicts", "Writes that somebody else's came before")
        self._latency_s = metrics.histogram(
            "nomination_seconds", "From when a Workload may be nominated until it is"
        )
        self._trapped = metrics.gauge("trapped", "Workloads that sit in a trap", ["trap"])
        self._traps = metrics.counter("traps", "Traps that Workloads got into", ["trap"])
        self._traps_told: Tally[str] = Tally()
        self._states = metrics.gauge("workloads", "Workloads of the hub, by state", ["state"])
        self._submitted = metrics.counter("submitted", "Workloads made known on the bus")
        self._placed = metrics.counter("placements", "Placements that were committed")
        self._lost_commits = metrics.counter("refused_commits", "Commits that lost a race")
        self._void = metrics.counter("void_events", "Events without effect", ["verdict"])
        self._unreadable = metrics.counter("unreadable", "Messages that could not be decoded")
        self._deciding = metrics.gauge("deciding", "1 where this replica acts")
        self._blind = metrics.counter("blind_nominations", "Nominations while the bus was away")
        self._events_dropped = metrics.gauge("events_dropped", "Kubernetes events not written")
        for trap in TRAPS:
            self._trapped.labels(trap).set(0)
            self._traps.labels(trap)

    # The hub

    def begin(self) -> None:
        """Mirror the hub, with the bus or without it."""
        ctx = self._ctx
        self._mirrors.start()
        ctx.spawn(self._recorder.run(ctx.stopping), name="events for people")
        ctx.spawn(self._keep_blind_watch(), name="while the bus is away")
        ctx.spawn(self._keep_house(), name="gauges")
        if self.core.policy.mode == "dispatch":
            ctx.spawn(self._parameters.run(), name="parameters of our checks")

    def _on_object(self, thing: Object, gone: bool) -> None:
        self.core.on_object(thing, gone=gone)
        self._stir.set()

    def _on_parameters(self, check: str, found: Any) -> None:
        self.core.on_parameters(check, found)
        self._stir.set()

    def _on_unreadable(self, resource: Resource, bad: Undecodable) -> None:
        self._ctx.log.warning(
            "an object has a wrong form",
            resource=resource.plural,
            name=f"{bad.namespace}/{bad.name}",
            why=bad.why,
        )
        if self._acting and self.core.policy.mode != "observe":
            about = Metadata(name=bad.name, namespace=bad.namespace)
            note = f"cannot be read, so nothing is done about it: {bad.why}"
            self._recorder.tell(Subject(resource, about), "Warning", "Unreadable", note)

    # The bus

    async def run(self, conn: Connection) -> None:
        """With the bus, until the context says stop."""
        ctx = self._ctx
        self._conn, self._log = conn, EventLog(conn)
        for part in self._caught_up:
            ctx.health.ready(part, False, "catching up")
        self._events = Follower(
            conn, WORKLOADS, [subjects.ALL_WORKLOADS, subjects.ALL_DECISIONS], start=1
        )
        fleet = FactMirror(
            conn, "multikueue", [subjects.ALL_FLEET], on_fact=self._on_fact, on_gone=self._on_gone
        )
        control = Follower(conn, CONTROL, [subjects.ALL_CONTROL])
        self._lease = Lease(
            conn, "multikueue", self.core.name, on_gained=lambda _: self._stir.set()
        )
        ctx.spawn(
            self._events.run(self._on_recorded, caught_up=self._ready("log")), name="follow the log"
        )
        ctx.spawn(fleet.run(caught_up=self._ready("fleet")), name="mirror the fleet")
        ctx.spawn(
            control.run(self._on_control, caught_up=self._ready("control")), name="follow control"
        )
        lease = ctx.spawn(self._lease.run(), name="lease")
        acting = ctx.spawn(self._act_for_ever(conn), name="act")
        endpoints = await Questions(conn, self.core).serve()
        await ctx.stopping.wait()
        acting.cancel()
        await endpoints.stop()
        lease.cancel()  # gives the lease back, so that a follower takes over at once
        await asyncio.wait({acting, lease}, timeout=2.0)

    def _ready(self, part: str) -> Callable[[], None]:
        def caught_up() -> None:
            self._caught_up[part] = True
            self._ctx.health.ready(part, True)
            self._stir.set()

        return caught_up

    def _on_recorded(self, recorded: Recorded) -> None:
        if subjects.is_decision(recorded.subject):
            self._on_decision(recorded)
            return
        try:
            event = EVENTS.decode(recorded.data)
        except UNREADABLE as error:
            where = subjects.parse_workload_event(recorded.subject)
            self.core.on_unreadable(where.tenant, where.id, recorded.sequence, str(error))
            self._bury(recorded, str(error), workload=f"{where.tenant}/{where.id}")
            return
        verdict = self.core.on_event(event, recorded.sequence, recorded.stored_at_s)
        if verdict in (Verdict.VOID, Verdict.IMPOSSIBLE, Verdict.MISSED):
            self._void.labels(verdict.value).inc()
            if verdict is not Verdict.VOID:
                whose = f"{event.tenant}/{event.id}"
                self._bury(recorded, f"{verdict.value}: not folded", workload=whose)
        if self.core.stirred:
            self._stir.set()

    def _on_decision(self, recorded: Recorded) -> None:
        if recorded.subject != subjects.decision(HUB_CELL):
            return
        try:
            decision = DECISIONS.decode(recorded.data)
        except UNREADABLE as error:
            self.core.on_unreadable_decision(str(error))
            self._ctx.health.ready("chain", False, f"a decision cannot be read: {error}")
            self._bury(recorded, str(error))
            return
        self.core.on_decision(decision, recorded.sequence)

    def _on_fact(self, seen: Seen) -> None:
        self.core.on_fact(seen.fact, seen.sequence, seen.stored_at_s)
        self._stir.set()

    def _on_gone(self, subject: str) -> None:
        node = subjects.parse_node(subject)
        if node is not None:
            self.core.on_node_gone(*node)
            return
        copy = subjects.parse_copy(subject)
        if copy is not None:
            self.core.on_copy_gone(*copy)

    def _on_control(self, recorded: Recorded) -> None:
        try:
            fact = CONTROL_FACTS.decode(recorded.data)
        except UNREADABLE as error:
            self._bury(recorded, str(error))
            return
        self.core.on_control(fact, recorded.sequence)
        self._stir.set()

    def _bury(self, recorded: Recorded, reason: str, workload: str = "") -> None:
        self._unreadable.inc()
        if self._conn is None or len(self._burials) >= MAX_BURIALS:
            self._ctx.log.error("a dead letter too many", subject=recorded.subject, reason=reason)
            return
        burying = bury(
            self._conn,
            service="multikueue",
            subject=recorded.subject,
            reason=reason,
            body=recorded.data,
            sequence=recorded.sequence,
            workload=workload,
        )
        task = asyncio.create_task(burying)
        self._burials.add(task)
        task.add_done_callback(self._burials.discard)

    # Acting

    @property
    def _may_act(self) -> bool:
        return (
            self._lease is not None
            and self._lease.held
            and all(self._caught_up.values())
            and self.core.hub.complete
        )

    async def _act_for_ever(self, conn: Connection) -> None:
        while True:
            await self._sleep(conn)
            self.core.hub.complete = self.core.hub.complete or self._mirrors.complete
            may = self._may_act
            self._deciding.set(may)
            if may and not self._acting:
                self.core.begin()
            self._acting = may
            if not may:
                continue
            now_s = conn.now()
            for instruction in self.core.act(now_s):
                self._carry_out(instruction, conn)
            if await self._is_behind():
                continue
            plan = self.core.decide(now_s)
            if plan is not None:
                self._ctx.spawn(self._commit(plan, conn), name="commit")
            elif self.core.stirred:
                self._stir.set()

    async def _is_behind(self) -> bool:
        if not self.core.behind:
            self._behind_since_s = None
            return False
        now_s = asyncio.get_running_loop().time()
        self._behind_since_s = self._behind_since_s or now_s
        if now_s - self._behind_since_s > BEHIND_LIMIT_S:
            self.core.waited_long_enough()
        await asyncio.sleep(0.001)
        self._stir.set()
        return True

    async def _sleep(self, conn: Connection) -> None:
        """Until something stirs the core, or the time that it named has come."""
        pause_s = max(0.01, min(LONGEST_SLEEP_S, self.core.wake_at_s() - conn.now()))
        try:
            await asyncio.wait_for(self._stir.wait(), pause_s)
        except TimeoutError:
            pass
        self._stir.clear()

    def _carry_out(self, instruction: Instruction, conn: Connection) -> None:
        if isinstance(instruction, Append):
            self._ctx.spawn(self._append(instruction, conn), name="append")
        elif isinstance(instruction, Tell):
            self._tell(instruction)
        else:
            self._ctx.spawn(self._write(instruction), name="write to the hub")

    def _tell(self, tell: Tell) -> None:
        about = Subject(_RESOURCES[tell.about], tell.metadata)
        kind = "Warning" if tell.warning else "Normal"
        self._recorder.tell(about, "Warning" if tell.warning else "Normal", tell.reason, tell.note)
        self._ctx.log.info("told", kind=kind, reason=tell.reason, note=tell.note)

    async def _append(self, append: Append, conn: Connection) -> None:
        outcome: Outcome
        try:
            outcome = await grouped(conn).append(append.event)
        except BusError as error:
            outcome = Unknown(str(error))
        if isinstance(outcome, Stored):
            self._submitted.inc(append.event.after == 0)
        else:
            self._ctx.log.info("not appended", ref=append.ref, outcome=str(outcome))
        self.core.on_appended(append.ref, outcome, conn.now())
        self._stir.set()

    async def _write(self, write: Write) -> None:
        done = await self._hands.carry_out(write)
        kind = type(write).__name__
        if done.why:
            self._refused.labels(kind).inc()
            self._ctx.log.info("not written", kind=kind, why=done.why)
        elif isinstance(write, Nominate):
            (self._nominations if write.workload is not None else self._blind).inc()
        self.core.on_done(done, self._now())
        self._stir.set()

    def _now(self) -> float:
        return self._conn.now() if self._conn is not None else self._ctx.now()

    async def _commit(self, plan: Plan, conn: Connection) -> None:
        assert self._log is not None
        log_end = 0
        outcome: Outcome
        try:
            outcome = await self._log.commit(plan.decision, plan.events)
        except BusError as error:
            outcome = Unknown(str(error))
        if isinstance(outcome, Stored):
            self._placed.inc(len(plan.events))
        else:
            self._lost_commits.inc()
            self._ctx.log.info("commit not stored", outcome=str(outcome))
            try:
                log_end = (await stream_info(conn, WORKLOADS)).state.last_seq
            except BusError:
                await asyncio.sleep(0.1)
        self.core.on_outcome(outcome, log_end)
        self._stir.set()

    # Without the bus

    @property
    def _bus_is_there(self) -> bool:
        """Connected, caught up, and the log's heartbeat is heard."""
        if self._conn is None or not self._conn.connected or self._events is None:
            return False
        silent_s = asyncio.get_running_loop().time() - self._events.last_heard_s
        return all(self._caught_up.values()) and silent_s < BUS_SILENT_S

    async def _keep_blind_watch(self) -> None:
        while True:
            await asyncio.sleep(BLIND_LOOK_S)
            self.core.hub.complete = self.core.hub.complete or self._mirrors.complete
            if self._bus_is_there:
                self.core.blindly.over()
                continue
            for write in self.core.blind(self._ctx.now()):
                self._ctx.spawn(self._write(write), name="write to the hub")

    # House

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._mirrors.show()
            core, ctx = self.core, self._ctx
            if self._conn is not None:
                ctx.health.ready("bus", self._conn.connected, "no connection to NATS")
            for latency_s in core.latencies_s:
                self._latency_s.observe(latency_s)
            core.latencies_s.clear()
            states = Tally(workload.state.value for workload in core.know.open.values())
            for state in ("queued", "placed", "claimed", "admitted", "running"):
                self._states.labels(state).set(states[state])
            sitting = Tally(trap.kind for trap in core.desk.trapped.values())
            for trap in TRAPS:
                self._trapped.labels(trap).set(sitting[trap])
                self._traps.labels(trap).inc(core.desk.counts[trap] - self._traps_told[trap])
                self._traps_told[trap] = core.desk.counts[trap]
            self._conflicts.set(self._hands.conflicts)
            self._events_dropped.set(self._recorder.dropped)

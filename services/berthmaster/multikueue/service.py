"""`berth serve multikueue`: what MultiKueue sends shows on the bus, and goes where there is room.

::

    berth serve multikueue --mode observe                      in a pod of the hub
    berth serve multikueue --mode dispatch --kubeconfig F --context C

Modes, each undone by the next start: ``observe`` writes nothing to Kubernetes, ``order`` writes the
order of MultiKueueConfigs, ``dispatch`` nominates clusters (Kueue's ``dispatcherName`` must then be
a name of ours). Rights: deploy/kubernetes/hub/multikueue-rbac.yaml, one ClusterRole a mode.

One replica holds the lease and acts; the others fold the same streams, mirror the same hub and take
over within a lease's time. What a workload asks for runs as a task of its own, one a workload at
most; one commit is under way at most. While the bus is away, each replica keeps Workloads moving by
the configuration's order alone.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from berthmaster.bus import subjects
from berthmaster.bus.connection import Connection
from berthmaster.bus.decider_input import DeciderInput
from berthmaster.bus.errors import BusError
from berthmaster.bus.facts import FactMirror
from berthmaster.bus.follow import Follower
from berthmaster.bus.grouped import grouped
from berthmaster.bus.joining import joined
from berthmaster.bus.lease import Lease
from berthmaster.bus.log import EventLog
from berthmaster.bus.streams import CONTROL, FLEET, WORKLOADS, stream_info
from berthmaster.controller.aside import SetAside
from berthmaster.controller.watch import Watch, Watched
from berthmaster.engine.scoring.profiles import BALANCED, HUB_PROFILES
from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.events import Recorder, Subject
from berthmaster.kubernetes.joining import ClusterSettings, reached
from berthmaster.kubernetes.objects import Object
from berthmaster.kubernetes.resources import ADMISSION_CHECKS, JOBS, Resource
from berthmaster.kubernetes.resources import WORKLOADS as KUEUE_WORKLOADS
from berthmaster.lifecycle.instructions import Append, Outcome, Stored, Unknown
from berthmaster.multikueue.apiserver.check_parameters import Parameters
from berthmaster.multikueue.apiserver.identity import PART, identify
from berthmaster.multikueue.apiserver.watch import ABSENT_S, WATCHED
from berthmaster.multikueue.apiserver.writer import Writer
from berthmaster.multikueue.core import Reconciler
from berthmaster.multikueue.deciding.committing import Commit
from berthmaster.multikueue.endpoints import WhyEndpoint
from berthmaster.multikueue.instructions import Instruction, KubeEvent, Nominate, Write
from berthmaster.multikueue.metrics import HubMetrics
from berthmaster.multikueue.settings import ENGINE_VERSION, HubPolicy, Mode, weights_fault
from berthmaster.runtime.periodic import set_within
from berthmaster.runtime.service import Context, Service
from berthmaster.runtime.settings import setting

NAME: Final = "multikueue"
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


def _pairs(parts: tuple[str, ...]) -> str:
    good = all(0 < part.find("=") < len(part) - 1 for part in parts)
    return "" if good else "NAMESPACE=TENANT, several with commas between them"


@dataclass(frozen=True, kw_only=True)
class MultiKueueSettings(ClusterSettings):
    """Settings of the reconciler on a hub."""

    mode: Mode = setting(
        "observe",
        help="observe: write nothing to the hub; order: keep the order of the MultiKueueConfigs; "
        "dispatch: nominate clusters for each Workload",
    )
    namespace: str = setting(
        "", help="where ConfigMaps of our own checks are; empty = the pod's, or the context's"
    )
    tenant_of_namespace: tuple[str, ...] = setting(
        (), check=_pairs, help="whose a namespace is, NAMESPACE=TENANT; others are their own tenant"
    )
    patience_s: float = setting(
        30.0,
        least=0.1,
        help="seconds that a nominated Workload waits for admission before the next best cluster "
        "is added",
    )
    stale_after_s: float = setting(
        10.0, least=1, help="seconds of silence after which a cluster gets no new placements"
    )
    silent_s: float = setting(
        5.0,
        least=0.1,
        help="seconds without anything known of any cluster after which the configuration's order "
        "counts, so that no queue stands still",
    )
    trap_s: float = setting(
        5.0, least=1, help="seconds for which a copy may run without the hub saying so"
    )
    eviction_s: float = setting(
        60.0,
        least=1,
        help="seconds for which the pods of what Kueue takes back may end before it is said to be "
        "stuck; as long at least as pods ask for",
    )
    order_every_s: float = setting(
        1.0, least=0.1, help="seconds between two orders of one MultiKueueConfig, at least"
    )
    order_margin: float = setting(
        1.0, least=0, help="GPUs by which a cluster must be ahead to overtake another in the order"
    )
    commit_limit: int = setting(
        128, least=1, most=900, help="placements in one commit; more only cost latency"
    )
    profile: str = setting(
        BALANCED,
        check=lambda name: "" if name in HUB_PROFILES else f"one of {', '.join(HUB_PROFILES)}",
        help=f"how clusters rank for queues that say nothing: {', '.join(HUB_PROFILES)}",
    )
    weights: tuple[str, ...] = setting(
        (),
        check=weights_fault,
        help="what single parts of the score count, in place of that profile's: PART=N, several "
        "with commas between them",
    )
    former_hubs: tuple[str, ...] = setting(
        (),
        help="ids (uid of namespace kube-system) of hubs that are no more, with commas between "
        "them: what is open on them is cancelled; of other hubs than this one all is left alone",
    )

    @property
    def policy(self) -> HubPolicy:
        """The part that decisions depend on."""
        return HubPolicy(
            mode=self.mode,
            patience_s=self.patience_s,
            stale_after_s=self.stale_after_s,
            silent_s=self.silent_s,
            trap_s=self.trap_s,
            eviction_s=self.eviction_s,
            order_every_s=self.order_every_s,
            order_margin=self.order_margin,
            commit_limit=self.commit_limit,
            profile=self.profile,
            weights=",".join(self.weights),
        )

    @property
    def tenants(self) -> dict[str, str]:
        """Namespace -> tenant."""
        pairs = (part.partition("=") for part in self.tenant_of_namespace)
        return {namespace: tenant for namespace, _, tenant in pairs}


class Shell:
    """One replica."""

    def __init__(
        self,
        ctx: Context[Any],
        client: Client,
        *,
        policy: HubPolicy,
        tenants: Mapping[str, str],
        former_hubs: Iterable[str],
        namespace: str,
    ) -> None:
        self._ctx = ctx
        self._client = client
        instance = f"multikueue/{socket.gethostname()}/{os.getpid()}"
        self.core = Reconciler(instance, policy, tenants, former_hubs)
        self._wake = asyncio.Event()
        self._aside = SetAside()
        self._watch = Watch(
            ctx,
            client,
            WATCHED,
            self._aside,
            on_object=self._on_object,
            on_change=self._wake.set,
            absent_s=ABSENT_S,
        )
        self._writer = Writer(client, self.core.hub)
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
        self._elsewhere: Mapping[str, int] = {}
        self._metrics = HubMetrics(ctx.metrics)
        self._input = DeciderInput(ctx, self.core, self._wake.set)

    # The hub

    def begin(self) -> None:
        """Mirror the hub, with the bus or without it."""
        ctx = self._ctx
        self._watch.start()
        health = ctx.health
        health.ready(PART, False, "not asked yet")
        ctx.spawn(identify(self._client, self.core.hub, health), name="identity of the hub")
        ctx.spawn(self._recorder.run(ctx.stopping), name="events for people")
        ctx.spawn(self._keep_blind_watch(), name="while the bus is away")
        ctx.spawn(self._keep_house(), name="gauges")
        if self.core.policy.mode == "dispatch":
            ctx.spawn(self._parameters.run(), name="parameters of our checks")

    def _on_object(self, one: Watched, thing: Object, gone: bool) -> None:
        self.core.on_object(thing, gone=gone)

    def _on_parameters(self, check: str, found: Any) -> None:
        self.core.on_parameters(check, found)
        self._wake.set()

    # The bus

    async def run(self, conn: Connection) -> None:
        """With the bus, until the context says stop."""
        ctx = self._ctx
        self._conn, self._log = conn, EventLog(conn)
        heard = self._input
        heard.conn = conn
        for part in self._caught_up:
            ctx.health.ready(part, False, "catching up")
        self._events = Follower(
            conn, WORKLOADS, [subjects.ALL_WORKLOADS, subjects.ALL_DECISIONS], start=1
        )
        fleet = FactMirror(
            conn,
            "multikueue",
            [subjects.ALL_FLEET],
            on_fact=heard.on_fact,
            on_gone=self._on_gone,
        )
        control = Follower(conn, CONTROL, [subjects.ALL_CONTROL])
        self._lease = Lease(
            conn, "multikueue", self.core.name, on_gained=lambda _: self._wake.set()
        )
        ctx.spawn(
            self._events.run(heard.on_recorded, caught_up=self._ready("log")),
            name="the log",
        )
        ctx.spawn(fleet.run(caught_up=self._ready("fleet")), name="mirror the fleet")
        ctx.spawn(
            control.run(heard.on_control, caught_up=self._ready("control")),
            name="control",
        )
        lease = ctx.spawn(self._lease.run(), name="lease")
        acting = ctx.spawn(self._act_for_ever(conn), name="act")
        endpoints = await WhyEndpoint(conn, self.core.why).serve()
        await ctx.stopping.wait()
        acting.cancel()
        await endpoints.stop()
        lease.cancel()  # gives the lease back, so that a follower takes over at once
        await asyncio.wait({acting, lease}, timeout=2.0)
        await heard.close()

    def _on_gone(self, subject: str) -> None:
        """A fact that a relisting did not find: nodes take room, and copies mean that it runs."""
        node = subjects.parse_node(subject)
        copy = subjects.parse_copy(subject)
        if node is not None:
            self.core.on_node_gone(*node)
        elif copy is not None:
            self.core.on_copy_gone(*copy)

    def _ready(self, part: str) -> Callable[[], None]:
        def caught_up() -> None:
            self._caught_up[part] = True
            self._ctx.health.ready(part, True)
            self._wake.set()

        return caught_up

    # Acting

    @property
    def _may_act(self) -> bool:
        return (
            self._lease is not None
            and self._lease.held
            and all(self._caught_up.values())
            and self.core.hub.complete
            and bool(self.core.hub.id)
        )

    async def _act_for_ever(self, conn: Connection) -> None:
        while True:
            await self._sleep(conn)
            self.core.hub.complete = self.core.hub.complete or self._watch.complete
            may = self._may_act
            self._metrics.acting.set(may)
            if may and not self._acting:
                self.core.begin()
            self._acting = may
            if not may:
                continue
            now_s = conn.now()
            for instruction in self.core.act(now_s):
                self._carry_out(instruction, conn)
            self._tell_failures()
            if await self._is_behind():
                continue
            plan = self.core.decide(now_s)
            if plan is not None:
                self._ctx.spawn(self._commit(plan, conn), name="commit")
            elif self.core.dirty:
                self._wake.set()

    def _tell_failures(self) -> None:
        for name, error in self.core.failures:
            self._metrics.failures.inc()
            self._ctx.log.error("a workload cannot be handled", error=error, workload=name)
        self.core.failures.clear()
        for odd in self._aside.take_untold() if self.core.policy.mode != "observe" else ():
            about = Subject(odd.resource, odd.metadata)
            self._recorder.tell(about, "Warning", odd.event.reason, odd.event.note)

    async def _is_behind(self) -> bool:
        if not self.core.behind:
            self._behind_since_s = None
            return False
        now_s = asyncio.get_running_loop().time()
        self._behind_since_s = self._behind_since_s or now_s
        if now_s - self._behind_since_s > BEHIND_LIMIT_S:
            self.core.waited_long_enough()
        await asyncio.sleep(0.001)
        self._wake.set()
        return True

    async def _sleep(self, conn: Connection) -> None:
        """Until something stirs the core, or the time that it named has come."""
        pause_s = max(0.01, min(LONGEST_SLEEP_S, self.core.wake_at_s() - conn.now()))
        await set_within(pause_s, self._wake)
        self._wake.clear()

    def _carry_out(self, instruction: Instruction, conn: Connection) -> None:
        if isinstance(instruction, Append):
            self._ctx.spawn(self._append(instruction, conn), name="append")
        elif isinstance(instruction, KubeEvent):
            self._tell(instruction)
        else:
            self._ctx.spawn(self._write(instruction), name="write to the hub")

    def _tell(self, tell: KubeEvent) -> None:
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
            self._metrics.submitted.inc(append.event.after == 0)
        else:
            self._ctx.log.info("not appended", ref=append.ref, outcome=str(outcome))
        self.core.on_appended(append.ref, outcome, conn.now())
        self._wake.set()

    async def _write(self, write: Write) -> None:
        done = await self._writer.carry_out(write)
        kind = type(write).__name__
        if done.why:
            self._metrics.refused.labels(kind).inc()
            self._ctx.log.info("not written", kind=kind, why=done.why)
        elif isinstance(write, Nominate):
            self._metrics.nominated(known=write.workload is not None)
        self.core.on_done(done, self._now())
        self._wake.set()

    def _now(self) -> float:
        return self._conn.now() if self._conn is not None else self._ctx.now()

    async def _commit(self, plan: Commit, conn: Connection) -> None:
        assert self._log is not None
        log_end = 0
        outcome: Outcome
        try:
            outcome = await self._log.commit(plan.decision, plan.events)
        except BusError as error:
            outcome = Unknown(str(error))
        if isinstance(outcome, Stored):
            self._metrics.placed.inc(len(plan.events))
        else:
            self._metrics.lost_commits.inc()
            self._ctx.log.info("commit not stored", outcome=str(outcome))
            try:
                log_end = (await stream_info(conn, WORKLOADS)).state.last_seq
            except BusError:
                await asyncio.sleep(0.1)
        self.core.on_outcome(outcome, log_end)
        self._wake.set()

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
            self.core.hub.complete = self.core.hub.complete or self._watch.complete
            if self._bus_is_there and self.core.hub.id:
                self.core.blindly.over()
                continue
            for write in self.core.blind(self._ctx.now()):
                self._ctx.spawn(self._write(write), name="write to the hub")

    # House

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._watch.show()
            core = self.core
            core.hub.hears(self._watch.trouble, self._now())
            if self._conn is not None:
                self._ctx.health.ready("bus", self._conn.connected, "no connection to NATS")
            self._tell_elsewhere()
            self._metrics.show(
                workloads=[workload.state for workload in core.know.open.values()],
                elsewhere=core.elsewhere().total(),
                trapped=[trap.kind for trap in core.trapped.values()],
                traps=core.trap_counts,
                latencies_s=core.latencies_s,
                conflicts=self._writer.conflicts,
                dropped=self._recorder.dropped,
            )
            core.latencies_s.clear()

    def _tell_elsewhere(self) -> None:
        """Of another hub's workloads nothing is known here: people must hear that they wait."""
        core = self.core
        if not core.hub.id:
            return
        found = core.elsewhere()
        note = "; ".join(f"{n} open workloads stand on hub {home}" for home, n in found.items())
        self._ctx.health.ready(PART, True, note=note)
        if set(found) - set(self._elsewhere):
            self._ctx.log.warning(
                "workloads of another hub are left alone", mine=core.hub.id, why=note
            )
        self._elsewhere = found


async def main(ctx: Context[MultiKueueSettings]) -> None:
    """Mirror the hub at once, so that a bus that is away stops no queue; then join the bus."""
    settings = ctx.settings
    ctx.log.info("multikueue", mode=settings.mode, engine=ENGINE_VERSION)
    async with reached(ctx, NAME) as client:
        shell = Shell(
            ctx,
            client,
            policy=settings.policy,
            tenants=settings.tenants,
            former_hubs=settings.former_hubs,
            namespace=settings.namespace or client.access.namespace or "default",
        )
        shell.begin()
        async with joined(ctx, WORKLOADS, FLEET, CONTROL) as conn:
            if conn is not None:
                await shell.run(conn)


SERVICE = Service(NAME, MultiKueueSettings, main)

"""`berth serve multikueue`: choose worker clusters for MultiKueue's Workloads on a hub.

::

    berth serve multikueue --mode observe                      in a pod of the hub
    berth serve multikueue --mode dispatch --kubeconfig F --context C

Mode ``observe`` writes nothing to Kubernetes. Mode ``dispatch`` nominates clusters, and Kueue's
``dispatcherName`` must be a name of Berthmaster. The next start may change the mode. Rights are in
deploy/chart/templates/hub-rights.yaml, one ClusterRole for each mode.

One replica holds the lease and acts. The others fold the same streams, mirror the same hub and take
over within the lease's time. At most one action runs for a workload, each in a task of its own, and
at most one commit is in flight. Without the bus, each replica nominates by its last known state. A
replica that never reached the bus waits.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from berthmaster.hub.multikueue.apiserver.check_parameters import Parameters
from berthmaster.hub.multikueue.apiserver.watch import ABSENT_S, WATCHED
from berthmaster.hub.multikueue.apiserver.writer import HubWriter
from berthmaster.hub.multikueue.core.deciding.blind import UNREAD
from berthmaster.hub.multikueue.core.deciding.committing import Commit
from berthmaster.hub.multikueue.core.instructions import Nominate, SetCheckActive, Write
from berthmaster.hub.multikueue.core.reconciler import Reconciler
from berthmaster.hub.multikueue.endpoints import WhyEndpoint
from berthmaster.hub.multikueue.metrics import HubMetrics
from berthmaster.hub.multikueue.policy import ENGINE_VERSION, NAME, HubPolicy, Mode
from berthmaster.lib.engine.scoring.profiles import BALANCED, COMPONENTS, HUB_PROFILES
from berthmaster.lib.event_log.feed import Feed
from berthmaster.lib.event_log.group_commit import shared_group_commit
from berthmaster.lib.event_log.reader_settings import (
    DeciderSettings,
    LogReaderSettings,
    weights_problem,
)
from berthmaster.lib.event_log.workload_log import EventLog
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.hub_identity import PART, identify
from berthmaster.lib.kube.controller.kube_events import instance_of
from berthmaster.lib.kube.controller.loop import Controller
from berthmaster.lib.kube.controller.shell_contract import Answer
from berthmaster.lib.kube.controller.watch import Watched
from berthmaster.lib.kube.objects import Object
from berthmaster.lib.kube.service_client import NamespaceSettings, TenantSettings, service_client
from berthmaster.lib.lifecycle.instructions import Append, Outcome, Stored, Unknown
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError, TooLarge
from berthmaster.lib.nats.stream_connection import stream_connection
from berthmaster.lib.nats.stream_lease import StreamLease
from berthmaster.lib.nats.streams import CONTROL, FLEET, WORKLOADS, stream_info
from berthmaster.lib.runtime.service import Context, Service
from berthmaster.lib.runtime.settings import policy_from, setting

BEHIND_LIMIT_S: Final = 1.0  # wait for messages that a refusal reported
LONGEST_SLEEP_S: Final = 1.0
BUS_SILENT_S: Final = 3.0  # no heartbeat of the log for so long: the bus is away
BLIND_LOOK_S: Final = 0.5
RIGHTS: Final = "deploy/chart/templates/hub-rights.yaml"


@dataclass(frozen=True, kw_only=True)
class MultiKueueSettings(TenantSettings, NamespaceSettings, DeciderSettings, LogReaderSettings):
    """Settings of the reconciler on a hub."""

    mode: Mode = setting(
        "observe",
        help=(
            "observe: write nothing to the hub; dispatch: nominate clusters for each Workload; "
            "needs what clears nominations on the hub, see `berth doctor`"
        ),
    )
    patience_s: float = setting(
        30.0,
        least=0.1,
        help=(
            "seconds to wait for the admission of a nominated Workload before the next best "
            "cluster is nominated"
        ),
    )
    profile: str = setting(
        BALANCED,
        check=lambda name: "" if name in HUB_PROFILES else f"one of {', '.join(HUB_PROFILES)}",
        help=f"scoring profile of queues that set none: {', '.join(HUB_PROFILES)}",
    )
    weights: tuple[str, ...] = setting(
        (),
        check=lambda pairs: weights_problem(pairs, COMPONENTS),
        help=(
            "weights of single score components, in place of that profile's: COMPONENT=N, "
            "comma-separated"
        ),
    )
    former_hubs: tuple[str, ...] = setting(
        (),
        help=(
            "ids (uid of namespace kube-system) of removed hubs, comma-separated: their open "
            "workloads are cancelled; workloads of other hubs are left alone"
        ),
    )

    @property
    def policy(self) -> HubPolicy:
        """Return the part that decisions depend on."""
        return policy_from(HubPolicy, self, weights=",".join(self.weights))


class HubController(Controller[Write]):
    def __init__(self, ctx: Context[MultiKueueSettings], client: Client) -> None:
        settings = ctx.settings
        policy, may_tell = settings.policy, settings.mode != "observe"
        self.core = Reconciler(instance_of(NAME), policy, settings.tenants, settings.former_hubs)
        self._writer = HubWriter(client, self.core.hub)
        super().__init__(ctx, client, self.core, self._writer, name=NAME, quiet=not may_tell)
        self._writer.may_write = self._may_write
        self.watches(WATCHED, absent_s=ABSENT_S)
        namespace = settings.namespace or client.access.namespace or "default"
        self._parameters = Parameters(client, self.core.hub, namespace, self._on_parameters)
        self._conn: Connection | None = None
        self._log: EventLog | None = None
        self._feed: Feed | None = None
        self._behind_since_s: float | None = None
        self._elsewhere: Mapping[str, int] = {}
        self._kueue_is_silent = False
        self._begun_at_s = asyncio.get_running_loop().time()
        self._is_unread = False  # the bus was silent from the start of this process on
        self._figures = HubMetrics(ctx.metrics)

    # The hub

    def begin(self) -> None:
        """Mirror the hub, with or without the bus."""
        ctx = self.ctx
        ctx.health.ready(PART, False, "not asked yet")
        asking = identify(self.client, self.core.hub, ctx.health, rights=RIGHTS)
        ctx.spawn(asking, name="identity of the hub")
        ctx.spawn(self._keep_blind_watch(), name="while the bus is away")
        if self.core.policy.mode == "dispatch":
            ctx.spawn(self._parameters.run(), name="parameters of our checks")
        self.start()

    def on_object(self, one: Watched, thing: Object, gone: bool) -> None:
        self.core.on_object(thing, gone=gone)

    def _on_parameters(self, check: str, found: Any) -> None:
        self.core.on_parameters(check, found)
        self.wake()

    # The bus

    async def run(self, conn: Connection) -> None:
        """With the bus, until the context says stop."""
        ctx = self.ctx
        self._conn, self._log = conn, EventLog(conn)
        feed = self._feed = Feed(ctx, conn, self.core, self.wake, name=NAME, on_gone=self._on_gone)
        if not await feed.begin():
            return
        feed.start()
        self.lead_by(StreamLease(conn, NAME, self.core.name, on_gained=lambda _: self.wake()))
        endpoints = await WhyEndpoint(conn, self.core.why).serve()
        await self.finish()
        await endpoints.stop()
        await feed.close()

    def _on_gone(self, subject: str) -> None:
        """Drop a fact missing from a new listing: nodes hold capacity, and copies count
        as running.
        """
        node = subjects.parse_node(subject)
        copy = subjects.parse_copy(subject)
        if node is not None:
            self.core.on_node_gone(*node)
        elif copy is not None:
            self.core.on_copy_gone(*copy)

    # Acting

    def now(self) -> float:
        return self._conn.now() if self._conn is not None else self.ctx.now()

    def may_act(self) -> bool:
        hub = self.core.hub
        held = self.lease is not None and self.lease.held
        whole = self._feed is not None and self._feed.whole
        return held and whole and hub.complete and bool(hub.id)

    def _may_write(self) -> bool:
        return self._is_blind or self.may_act()

    def before_act(self) -> None:
        self.core.hub.complete = self.core.hub.complete or self.watch.complete

    async def act(self) -> None:
        now_s = self.now()
        for instruction in self.core.act(now_s):
            self.carry_out(instruction)
        appends, self.core.appends = self.core.appends, []
        for append in appends:
            self.ctx.spawn(self._append(append), name="append")
        if await self._is_behind():
            return
        commit = self.core.decide(now_s)
        if commit is not None:
            self.ctx.spawn(self._commit(commit), name="commit")
        elif self.core.dirty:
            self.wake()

    async def _is_behind(self) -> bool:
        if not self.core.behind:
            self._behind_since_s = None
            return False
        now_s = asyncio.get_running_loop().time()
        self._behind_since_s = self._behind_since_s or now_s
        if now_s - self._behind_since_s > BEHIND_LIMIT_S:
            self.core.commits.waited_long_enough()
        await asyncio.sleep(0.001)
        self.wake()
        return True

    async def _append(self, append: Append) -> None:
        assert self._conn is not None
        outcome: Outcome
        try:
            outcome = await shared_group_commit(self._conn).append(append.event)
        except BusError as error:
            outcome = Unknown(str(error))
        if isinstance(outcome, Stored):
            self._figures.submitted.inc(append.event.after == 0)
        else:
            self.ctx.log.info("not appended", ref=append.ref, outcome=str(outcome))
        self.core.on_appended(append.ref, outcome, self.now())
        self.wake()

    async def _commit(self, commit: Commit) -> None:
        assert self._log is not None
        assert self._conn is not None
        log_end = 0
        outcome: Outcome
        try:
            outcome = await self._log.commit(commit.decision, commit.events)
        except TooLarge as error:
            self.ctx.log.warning("commit too large", events=len(commit.events), why=str(error))
            self.core.on_too_large(self.now())
            self.wake()
            return
        except BusError as error:
            outcome = Unknown(str(error))
        if isinstance(outcome, Stored):
            self._figures.placed.inc(len(commit.events))
        else:
            self._figures.lost_commits.inc()
            self.ctx.log.info("commit not stored", outcome=str(outcome))
            try:
                log_end = (await stream_info(self._conn, WORKLOADS)).state.last_seq
            except BusError:
                await asyncio.sleep(0.1)
        self.core.on_outcome(outcome, log_end)
        self.wake()

    def about(self, write: Write) -> str:
        match write:
            case SetCheckActive():
                return write.check
            case Nominate(workload=None):
                return "/".join(write.at)
            case _:
                return f"{write.workload}"

    def wrote(self, write: Write, answer: Answer) -> None:
        super().wrote(write, answer)
        if answer.done and isinstance(write, Nominate):
            self._figures.nominated(known=write.workload is not None)

    # Without the bus

    @property
    def _bus_is_there(self) -> bool:
        """Connected, caught up, and the log's heartbeat is heard."""
        if self._conn is None or not self._conn.connected or self._feed is None:
            return False
        return self._feed.has_read and self._bus_silent_s < BUS_SILENT_S

    @property
    def _is_blind(self) -> bool:
        """Each replica writes: see core/deciding/blind.py."""
        return not (self._bus_is_there and self.core.hub.id)

    async def _keep_blind_watch(self) -> None:
        while True:
            await asyncio.sleep(BLIND_LOOK_S)
            self.before_act()
            has_read = self._feed is not None and self._feed.has_read
            self._tell_unread(has_read)
            if not self._is_blind:
                self.core.blindly.over()
            elif has_read or self._is_unread:
                for instruction in self.core.blind(self.ctx.now(), has_read=has_read):
                    self.carry_out(instruction)

    def _tell_unread(self, has_read: bool) -> None:
        """Log once that the bus is silent since the start of this process, and once that it
        answers. Reading a long log is not silence.
        """
        is_unread = not has_read and self._bus_silent_s >= BUS_SILENT_S
        if is_unread != self._is_unread:
            self._is_unread = is_unread
            if is_unread:
                self.ctx.log.warning("bus silent since start", why=UNREAD)
            else:
                self.ctx.log.info("bus answers")

    @property
    def _bus_silent_s(self) -> float:
        """Seconds since the log was last heard; since the start, if it never was."""
        log = self._feed.log if self._feed is not None else None
        heard_s = log.last_heard_s if log is not None else self._begun_at_s
        return asyncio.get_running_loop().time() - max(heard_s, self._begun_at_s)

    # House

    def show(self) -> None:
        core = self.core
        core.hub.hears(self.watch.trouble, self.now())
        if self._conn is not None:
            self.ctx.health.ready("bus", self._conn.connected, "no connection to NATS")
        self._tell_silence()
        self._tell_elsewhere()
        self._figures.show(
            workloads=[workload.state for workload in core.know.open.values()],
            elsewhere=core.elsewhere().total(),
            standing=len(core.blindly.standing),
            contested=core.contested,
            contests=core.contests,
            trapped=[trap.kind for trap in core.trapped.values()],
            demoted=core.know.demoted(core.policy, self.now()),
            traps=core.trap_counts,
            latencies_s=core.latencies_s,
            conflicts=self._writer.conflicts,
            kueue_silent_s=core.kueue.silent_s(self.now()),
            kueue_waiting=core.kueue.waiting,
        )
        core.latencies_s.clear()

    def _tell_silence(self) -> None:
        """Log the beginning and the end of Kueue's silence once each."""
        words = self.core.kueue.words(self.now())
        if bool(words) != self._kueue_is_silent:
            self._kueue_is_silent = bool(words)
            if words:
                self.ctx.log.warning("hub Kueue silent", why=words)
            else:
                self.ctx.log.info("hub Kueue active again")

    def _tell_elsewhere(self) -> None:
        """Report other hubs' workloads, because no reconciler here serves them."""
        core = self.core
        if not core.hub.id:
            return
        found = core.elsewhere()
        note = "; ".join(f"{n} open workloads stand on hub {home}" for home, n in found.items())
        self.ctx.health.ready(PART, True, note=note)
        if set(found) - set(self._elsewhere):
            self.ctx.log.warning("workloads of other hubs ignored", mine=core.hub.id, why=note)
        self._elsewhere = found


async def main(ctx: Context[MultiKueueSettings]) -> None:
    """Mirror the hub at once, so that a missing bus stops no queue; then join the bus."""
    settings = ctx.settings
    ctx.log.info("multikueue started", mode=settings.mode, engine=ENGINE_VERSION)
    async with service_client(ctx, NAME) as client:
        controller = HubController(ctx, client)
        controller.begin()
        async with stream_connection(ctx, WORKLOADS, FLEET, CONTROL) as conn:
            if conn is not None:
                await controller.run(conn)


SERVICE = Service(NAME, MultiKueueSettings, main)

"""The resolver: decide where jobs run, and answer why and what if.

The shell feeds the core from three streams, and performs its instructions.

One replica of a cell holds the lease and decides. The others fold the same streams and take over
within the lease's time. The deciding loop sleeps until a message or the core's next time. It has at
most one commit in flight, so the core needs no lock.
"""

import asyncio
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from berthmaster.control.resolver.core.deciding.draft import Plan
from berthmaster.control.resolver.core.known.stored import Snapshot, restore, snapshot_of
from berthmaster.control.resolver.core.resolver import Resolver
from berthmaster.control.resolver.endpoints import Questions
from berthmaster.control.resolver.metrics import REPORT_EVERY_S, Counted, Figures
from berthmaster.control.resolver.policy import ENGINE_VERSION, ExpectBy, Policy
from berthmaster.lib.engine.queueing.lines import OrderBy
from berthmaster.lib.engine.scoring.compiled import COMPILED
from berthmaster.lib.engine.scoring.profiles import BALANCED, PROFILES
from berthmaster.lib.event_log.feed import Feed
from berthmaster.lib.event_log.reader_settings import (
    DeciderSettings,
    LogReaderSettings,
    weights_problem,
)
from berthmaster.lib.event_log.snapshots import load as load_snapshot
from berthmaster.lib.event_log.snapshots import save as save_snapshot
from berthmaster.lib.event_log.workload_log import EventLog
from berthmaster.lib.lifecycle.instructions import Append, Stored
from berthmaster.lib.messages.families import UNREADABLE, encode
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError, TooLarge
from berthmaster.lib.nats.nats_py import errors as nats_errors
from berthmaster.lib.nats.stream_connection import (
    RequestConnections,
    request_connections,
    stream_connection,
)
from berthmaster.lib.nats.stream_lease import StreamLease
from berthmaster.lib.nats.streams import CONTROL, FLEET, WORKLOADS, stream_info
from berthmaster.lib.runtime.periodic import set_within
from berthmaster.lib.runtime.service import Context, Service
from berthmaster.lib.runtime.settings import policy_from, setting

BEHIND_LIMIT_S: Final = 1.0  # wait for messages that a refusal reported
LONGEST_SLEEP_S: Final = 5.0
# A commit delays all other writers of the stream, above all submits. A pause of half its duration
# lets them in, and later messages share the next commit.
REST_SHARE: Final = 0.5
LONGEST_REST_S: Final = 0.01
WEIGHTS: Final = ("fit", "room", "idle")  # fields of Policy
SNAPSHOTS: Final = msgspec.msgpack.Decoder(Snapshot)


@dataclass(frozen=True, kw_only=True)
class ResolverSettings(DeciderSettings, LogReaderSettings):
    """Settings of the resolver."""

    cell: str = setting("all", help="cell of the decision chain")
    snapshot_s: float = setting(
        60.0, least=1, help="seconds between snapshots; a start reads the log after the last one"
    )
    claim_timeout_s: float = setting(
        10.0, least=0.5, help="seconds until an unclaimed placement is withdrawn"
    )
    order: OrderBy = setting(
        "arrival",
        help=(
            "order of a queue's jobs of equal priority: arrival, or due by size, width and the "
            "fleet's backlog"
        ),
    )
    expect: ExpectBy = setting(
        "stated",
        help="durations that reservations and backfill use: stated = only those in requests; "
        "similar = estimates from similar jobs where a request states none; with order=due the "
        "resolver always estimates",
    )
    short_first: float = setting(
        0.0,
        least=0,
        most=1,
        help=(
            "with order due: weight of the mean completion time against long waits; 0 = none, 1"
            " = the smallest jobs first"
        ),
    )
    reservations: int = setting(
        4, least=0, most=64, help="maximum number of reservations for pending jobs; 0 = none"
    )
    restart_s: float = setting(
        60.0, least=0, help="seconds that a restarted job needs until useful work"
    )
    rebalance_moves: int = setting(
        4,
        least=0,
        most=64,
        help=(
            "running jobs that may move so that a pending job fits, in queues that allow it; 0 "
            "= none"
        ),
    )
    rebalance_after_s: float = setting(
        600.0,
        least=0,
        help="minimum wait of such a pending job, and minimum run time of moved jobs, in seconds",
    )
    grow_after_s: float = setting(
        60.0,
        least=0,
        help=(
            "seconds without a resize, and without a start in the cluster, after which an "
            "elastic job grows into idle capacity; 0 = never"
        ),
    )
    profile: str = setting(
        BALANCED,
        check=lambda name: "" if name in PROFILES else f"one of {', '.join(PROFILES)}",
        help=f"scoring profile of jobs and queues that set none: {', '.join(PROFILES)}",
    )
    weights: tuple[str, ...] = setting(
        (),
        check=lambda pairs: weights_problem(pairs, WEIGHTS),
        help=f"weights of score components in the profile {BALANCED}: COMPONENT=N, "
        f"comma-separated; "
        f"components: {', '.join(WEIGHTS)}",
    )

    @property
    def policy(self) -> Policy:
        """Return the part that decisions depend on."""
        pairs = (pair.partition("=") for pair in self.weights)
        weights: dict[str, Any] = {name: float(number) for name, _, number in pairs}
        return policy_from(Policy, self, **weights)


class Shell:
    def __init__(
        self, context: Context[ResolverSettings], conn: Connection, heard_by: RequestConnections
    ) -> None:
        settings = context.settings
        self._context = context
        self._conn = conn
        self._heard_by = heard_by
        self._log = EventLog(conn)
        self.core = Resolver(
            settings.cell, f"resolver/{socket.gethostname()}/{os.getpid()}", settings.policy
        )
        self._stir = asyncio.Event()
        self._stream = b""  # incarnation of WORKLOADS; another one has other sequences
        self._figures = Figures(context.metrics, self.core)
        counted = Counted(self.core, self._figures, lambda: self._is_deciding)
        self._feed = Feed(
            context,
            conn,
            counted,
            self._stir.set,
            name="resolver",
            mark=f"resolver.{settings.cell}",
            on_gone=self._on_gone,
            on_ready=self._on_ready,
        )
        self._lease = StreamLease(
            conn,
            f"resolver.{settings.cell}",
            self.core.name,
            on_gained=lambda _: self._stir.set(),
        )
        metrics = context.metrics
        self._placed = metrics.counter("placements", "Committed placements")
        self._withdrawn = metrics.counter("withdrawals", "Withdrawn placements")
        self._refused = metrics.counter("refused_commits", "Refused commits")
        self._waiting = metrics.gauge("waiting", "Pending workloads")
        self._live = metrics.gauge("live", "Placed workloads")
        self._deciding = metrics.gauge("deciding", "1 on the deciding replica")
        self._decide_s = metrics.histogram("decide_seconds", "Seconds to decide one commit")
        self._commit_s = metrics.histogram("commit_seconds", "Seconds to store one commit")
        self._batch = metrics.histogram(
            "commit_placements",
            "Placements per commit",
            buckets=(1, 2, 5, 10, 20, 50, 100, 256, 999),
        )

    def _on_gone(self, subject: str) -> None:
        """Drop a fact missing from a new listing. Only nodes hold capacity, so only nodes are
        dropped.
        """
        name = subjects.parse_node(subject)
        if name is not None:
            self.core.know.view.drop_node(*name)

    # Life

    @property
    def _is_deciding(self) -> bool:
        return self._feed.whole and self._lease.held

    async def run(self) -> None:
        """Until the context says stop."""
        context = self._context
        if not await self._feed.begin():
            return
        await self._restore()
        self._feed.start(self.core.know.workloads_sequence + 1)
        lease = context.spawn(self._lease.run(), name="lease")
        context.spawn(self._keep_house(), name="snapshots and gauges")
        context.spawn(self._tell_quality(), name="quality")
        deciding = context.spawn(self._decide_for_ever(), name="decide")
        questions = Questions(self._conn, self._heard_by, self.core, lambda: self._feed.has_read)
        endpoints = await questions.serve()
        await context.stopping.wait()
        await endpoints.stop()
        deciding.cancel()
        lease.cancel()  # gives the lease back, so that a follower takes over at once
        await asyncio.wait({deciding, lease}, timeout=2.0)
        await self._feed.close()

    def _on_ready(self, _: str) -> None:
        if self._feed.has_read:
            self.core.prepare()  # before the replica reports ready

    async def _decide_for_ever(self) -> None:
        behind_since_s: float | None = None
        loop = asyncio.get_running_loop()
        while True:
            await self._sleep()
            self._deciding.set(self._lease.held)
            if not self._is_deciding:
                continue
            if self.core.behind:
                behind_since_s = behind_since_s or loop.time()
                if loop.time() - behind_since_s > BEHIND_LIMIT_S:
                    self.core.commits.waited_long_enough()
                await asyncio.sleep(0.001)
                self._stir.set()
                continue
            behind_since_s = None
            now_s = self._conn.now()
            self._fleet_sequence()
            for append in self.core.endings(now_s):
                self._context.spawn(self._append(append), name="append an ending")
            began_s = loop.time()
            plan = self.core.decide(now_s)
            if plan is None:
                continue
            took_s = loop.time() - began_s
            self._decide_s.observe(took_s)
            self._figures.decided(len(plan.decision.placements), took_s)
            began_s = loop.time()
            await self._commit(plan)
            await asyncio.sleep(min(REST_SHARE * (loop.time() - began_s), LONGEST_REST_S))
            self._stir.set()

    def _fleet_sequence(self) -> None:
        """Note the newest sequence of FLEET, even if the mirror dropped its message as outdated."""
        know = self.core.know
        know.view.fleet_sequence = max(know.view.fleet_sequence, self._feed.fleet.sequence)

    async def _sleep(self) -> None:
        """Sleep until a wake-up, or the core's next time on the deciding replica."""
        pause_s = LONGEST_SLEEP_S
        if self._is_deciding:
            pause_s = max(0.01, min(pause_s, self.core.wake_at_s() - self._conn.now()))
        await set_within(pause_s, self._stir)
        self._stir.clear()

    async def _commit(self, plan: Plan) -> None:
        decision, events = plan.decision, plan.events
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            outcome = await self._log.commit(decision, events)
        except TooLarge as error:
            self._context.log.warning("commit too large", events=len(events), why=str(error))
            append = self.core.on_too_large(self._conn.now())
            if append is not None:
                await self._append(append)
            return
        log_end = 0
        if isinstance(outcome, Stored):
            self._commit_s.observe(loop.time() - began_s)
            self._placed.inc(len(decision.placements))
            self._withdrawn.inc(len(decision.withdrawals))
            self._batch.observe(len(events))
        else:
            self._refused.inc()
            self._context.log.info(
                "commit not stored", decision=decision.number, outcome=str(outcome)
            )
            try:
                log_end = (await stream_info(self._conn, WORKLOADS)).state.last_seq
            except BusError:
                await asyncio.sleep(0.1)
        self.core.on_outcome(outcome, log_end)

    async def _append(self, append: Append) -> None:
        outcome = await self._log.append(append.event)
        self.core.on_appended(append.ref, outcome)
        self._stir.set()

    async def _tell_quality(self) -> None:
        """Publish quality reports. A later report replaces a lost one."""
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            if not self._is_deciding:
                continue
            report = self._figures.report(self._conn.now())
            with suppress(BusError):
                await self._conn.publish(subjects.quality(self.core.cell), encode(report))

    # Snapshots

    @property
    def _snapshot_name(self) -> str:
        return f"resolver-{self.core.cell}"

    async def _restore(self) -> None:
        try:
            raw = await load_snapshot(self._conn, self._snapshot_name)
            making = (await stream_info(self._conn, WORKLOADS)).making
            self._stream = making.encode()
            if raw is None:
                return
            stream, _, body = raw.partition(b"\n")
            if stream != self._stream:
                self._context.log.warning("snapshot of another stream")
                return
            snapshot = SNAPSHOTS.decode(body)
            if snapshot.frozen:  # a newer version or an operator may have resolved this
                self._context.log.warning("reading the whole log", frozen=len(snapshot.frozen))
                return
            restore(self.core.know, snapshot)
            self._context.log.info(
                "snapshot restored", sequence=snapshot.sequence, open=len(snapshot.open)
            )
        except (BusError, nats_errors.Error, *UNREADABLE) as error:
            self._context.log.warning("no snapshot, reading whole log", why=str(error))

    async def _keep_house(self) -> None:
        settings = self._context.settings
        loop = asyncio.get_running_loop()
        next_snapshot_s = loop.time() + settings.snapshot_s
        saved = -1
        while True:
            await asyncio.sleep(1.0)
            know = self.core.know
            if self._feed.has_read:
                self.core.prepare()  # lets a follower decide at once after a takeover
            connected = self._conn.connected and self._heard_by.general.connected
            self._context.health.ready("bus", connected, "no connection to NATS")
            self._context.health.ready("lease", not self._lease.trouble, self._lease.trouble)
            self._waiting.set(know.derived.lines.jobs)
            self._live.set(
                len(know.derived.unclaimed) + sum(len(keys) for keys in know.derived.held.values())
            )
            if loop.time() < next_snapshot_s or not (self._lease.held and self._feed.whole):
                continue
            next_snapshot_s = loop.time() + settings.snapshot_s
            if know.workloads_sequence == saved or self.core.blind:  # not part of a snapshot
                continue
            saved = know.workloads_sequence
            raw = self._stream + b"\n" + msgspec.msgpack.encode(snapshot_of(know))
            try:
                await save_snapshot(self._conn, self._snapshot_name, raw)
            except (BusError, nats_errors.Error) as error:
                self._context.log.warning("snapshot not saved", why=str(error))


async def main(context: Context[ResolverSettings]) -> None:
    """Connect and run until told to stop."""
    cell = context.settings.cell
    context.log.info("resolver started", cell=cell, engine=ENGINE_VERSION, compiled=COMPILED)
    async with stream_connection(context, WORKLOADS, FLEET, CONTROL) as conn:
        if conn is None:
            return
        async with request_connections(context, conn, lanes=0) as heard_by:
            if heard_by is not None:
                await Shell(context, conn, heard_by).run()


SERVICE = Service("resolver", ResolverSettings, main)

"""The scorer: read facts and telemetry, and publish a score per cluster on every change.

Every replica of a shard computes the scores, and the holder of the shard's lease publishes them.
When the holder dies, another replica takes over within two seconds, under a larger epoch. Readers
then drop late scores of the dead holder.
"""

import asyncio
import secrets
import socket
from collections import deque
from typing import Final

from berthmaster.control.scorer.core.events import Deposed, Event, Led, ScoreNotStored, Tick
from berthmaster.control.scorer.core.instructions import PutScore
from berthmaster.control.scorer.core.intake import (
    FACT_SUBJECTS,
    SUBMITTED_SUBJECTS,
    TELEMETRY_SUBJECTS,
    Intake,
    NotBelieved,
)
from berthmaster.control.scorer.core.scorer import Scorer
from berthmaster.control.scorer.metrics import ScorerMetrics
from berthmaster.control.scorer.publisher import Publisher
from berthmaster.control.scorer.settings import ScorerSettings, rules_of, shard_of_settings
from berthmaster.lib.messages.fleet import ClosedGpu, ClusterScore
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.dead_letters import store_dead_letter
from berthmaster.lib.nats.errors import BusError, StreamReplaced
from berthmaster.lib.nats.fact_stamps import Seen
from berthmaster.lib.nats.facts import FactMirror, FactWriter
from berthmaster.lib.nats.follower import Follower
from berthmaster.lib.nats.stream_connection import stream_connection
from berthmaster.lib.nats.stream_lease import StreamLease
from berthmaster.lib.nats.stream_messages import Recorded
from berthmaster.lib.nats.streams import FLEET, WORKLOADS, stream_info
from berthmaster.lib.runtime.periodic import beats
from berthmaster.lib.runtime.service import Context, Service

NAME: Final = "scorer"
# Telemetry is replaced every second: a few of the invalid messages are enough for a diagnosis. All
# of them are counted.
LETTERS_A_SECOND: Final = 10
LONGEST_SLEEP_S: Final = 1.0  # maximum between two ticks, to notice a clock that was set
RETRY_S: Final = 0.2
LEASE_TTL_S: Final = 1.2  # with the pause between two checks below the 2 s promised to readers
MIX_MESSAGES: Final = 20_000  # of the workloads' log read at a start for the job mix: one second
DEAF_AFTER_S: Final = 5.0  # without a message or heartbeat of the fleet's stream


class Shell:
    def __init__(self, ctx: Context[ScorerSettings], conn: Connection) -> None:
        self._ctx = ctx
        self._conn = conn
        self._loop = asyncio.get_running_loop()
        self._shard = shard_of_settings(ctx.settings)
        self._core = Scorer(rules_of(ctx.settings), self._shard.owns)
        self._intake = Intake(self._shard)
        self._figures = ScorerMetrics(ctx.metrics, self._core)
        self._mirror = FactMirror(
            conn, NAME, FACT_SUBJECTS, on_fact=self._on_fact, on_gone=self._on_gone
        )
        self._lease = StreamLease(
            conn,
            self._shard.lease,
            f"{NAME}-{socket.gethostname()}-{secrets.token_hex(4)}",
            on_gained=self._on_gained,
            on_lost=self._on_lost,
            ttl_s=LEASE_TTL_S,
        )
        self._writer = FactWriter(conn)
        self._publisher = Publisher(
            self._writer,
            lambda work, name: ctx.spawn(work, name=name),
            may_write=lambda: self._lease.held and self._core.leading,
            on_stored=lambda put: self._figures.stored(put, conn.now()),
            on_failed=self._on_failed,
        )
        self._caught_up = asyncio.Event()
        self._gained = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._closed: dict[str, dict[tuple[str, int], ClosedGpu]] = {}  # as last stored
        self._wake_s = 0.0  # time of the timer by the server's clock
        self._letters: deque[tuple[str, bytes, NotBelieved]] = deque(maxlen=LETTERS_A_SECOND)

    async def run(self) -> None:
        """Score until the service is asked to stop, then release the lease."""
        ctx = self._ctx
        ctx.health.ready("fleet", False, "the facts have not been read")
        ctx.spawn(self._mirror.run(caught_up=self._caught_up.set), name="mirror facts")
        ctx.spawn(self._follow_mix(), name="follow submitted workloads")
        ctx.spawn(self._listen(), name="listen to telemetry")
        ctx.spawn(self._lead(), name="lead")
        lease = ctx.spawn(self._lease.run(), name="lease")
        await self._keep_house()
        if self._timer is not None:
            self._timer.cancel()
        lease.cancel()
        await asyncio.wait({lease}, timeout=1.0)

    # Inputs

    async def _listen(self) -> None:
        # The core ignores telemetry of nodes without a fact.
        await self._caught_up.wait()
        await self._conn.subscribe(TELEMETRY_SUBJECTS, self._on_telemetry)

    def _on_telemetry(self, subject: str, data: bytes) -> None:
        self._figures.messages["telemetry"] += 1
        heard = self._intake.telemetry(subject, data)
        if isinstance(heard, NotBelieved):
            self._doubt(subject, data, heard)
        elif heard is not None:
            self._tell(heard)

    def _on_fact(self, seen: Seen) -> None:
        self._figures.messages["fact"] += 1
        if isinstance(seen.fact, ClusterScore):
            self._log_gpus(seen.fact)
        event = self._intake.fact(seen.subject, seen.fact, seen.stored_at_s)
        if isinstance(event, NotBelieved):
            self._doubt(seen.subject, b"", event)
        elif event is not None:
            self._tell(event)

    def _log_gpus(self, score: ClusterScore) -> None:
        """Log GPUs closed and opened. Only the lease holder logs, so each appears once."""
        now = {(node, gpu.index): gpu for node, gpus in score.closed_gpus.items() for gpu in gpus}
        before = self._closed.get(score.cluster, {})
        self._closed[score.cluster] = now
        if not (self._caught_up.is_set() and self._lease.held):
            return
        for (node, index), gpu in now.items():
            known = before.get((node, index))
            if known is None or known.since_s != gpu.since_s:
                self._ctx.log.warning(
                    "gpu closed",
                    cluster=score.cluster,
                    node=node,
                    gpu=index,
                    fault=gpu.fault,
                    reason=gpu.reason,
                )
        for node, index in before.keys() - now.keys():
            self._ctx.log.info("gpu opened", cluster=score.cluster, node=node, gpu=index)

    def _on_gone(self, subject: str) -> None:
        if (event := self._intake.gone(subject)) is not None:
            self._tell(event)

    async def _follow_mix(self) -> None:
        """Follow the submitted workloads, from ``MIX_MESSAGES`` before the end."""
        start: int | None = None
        while True:
            try:
                if start is None:
                    last = (await stream_info(self._conn, WORKLOADS)).state.last_seq
                    start = max(1, last + 1 - MIX_MESSAGES)
                follower = Follower(self._conn, WORKLOADS, [SUBMITTED_SUBJECTS], start=start)
                await follower.run(self._on_submitted)
            except StreamReplaced as error:
                self._ctx.log.warning("workloads stream replaced", why=str(error))
                start = 1
            except BusError:
                await asyncio.sleep(RETRY_S)  # no stream yet, or the bus is unreachable

    def _on_submitted(self, recorded: Recorded) -> None:
        self._figures.messages["submitted"] += 1
        event = self._intake.submitted(recorded.data, recorded.stored_at_s)
        if isinstance(event, NotBelieved):
            self._doubt(recorded.subject, recorded.data, event)
        else:
            self._tell(event)

    def _doubt(self, subject: str, data: bytes, why: NotBelieved) -> None:
        self._figures.not_believed[why.kind, why.why] += 1
        if len(self._letters) < LETTERS_A_SECOND:
            self._letters.append((subject, data, why))

    # The core

    def _tell(self, event: Event) -> None:
        for put in self._core.handle(event, self._conn.now()):
            self._publisher.put(put)
        wake_s = self._core.wake_at_s
        if wake_s is not None and (self._timer is None or wake_s < self._wake_s):
            self._arm(wake_s)

    def _arm(self, wake_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._wake_s = wake_s
        sleep_s = min(max(0.0, wake_s - self._conn.now()), LONGEST_SLEEP_S)
        self._timer = self._loop.call_later(sleep_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._tell(Tick())

    # The lease

    def _on_gained(self, sequence: int) -> None:
        self._gained.set()

    def _on_lost(self) -> None:
        self._gained.clear()
        self._tell(Deposed())

    async def _lead(self) -> None:
        """Begin a new epoch at each gain of the lease, then publish all scores again."""
        await self._caught_up.wait()
        while True:
            await self._gained.wait()
            try:
                epoch = await self._writer.begin(subjects.fleet_facts("score"))
            except BusError as error:
                self._ctx.log.warning("epoch not known yet", why=str(error))
                await asyncio.sleep(RETRY_S)
                continue
            if self._lease.held:
                self._gained.clear()
                self._ctx.log.info("publishing", shard=self._ctx.settings.shard, epoch=epoch)
                self._tell(Led(epoch))
            else:
                await asyncio.sleep(RETRY_S)

    def _on_failed(self, put: PutScore, why: str) -> None:
        self._figures.failed()
        self._ctx.log.warning("score not stored", cluster=put.fact.cluster, why=why)
        self._tell(ScoreNotStored(put.fact.cluster))

    # Periodic work

    async def _keep_house(self) -> None:
        health = self._ctx.health
        async for _ in beats(1.0, self._ctx.stopping):
            self._figures.refresh(self._conn.now())
            health.ready("bus", self._conn.connected, "no connection to NATS")
            deaf = self._loop.time() - self._mirror.last_heard_s > DEAF_AFTER_S
            if self._caught_up.is_set():
                health.ready("fleet", not deaf, "nothing is heard of the fleet's stream")
            known = self._lease.held or bool(self._lease.seen_holder)
            health.ready("lease", known, "nobody publishes for this shard")
            await self._bury()

    async def _bury(self) -> None:
        while self._letters:
            subject, data, doubt = self._letters.popleft()
            reason = f"{doubt.why}: {doubt.text}"
            await store_dead_letter(
                self._conn, service=NAME, subject=subject, reason=reason, body=data
            )


async def main(ctx: Context[ScorerSettings]) -> None:
    async with stream_connection(ctx, FLEET, WORKLOADS) as conn:
        if conn is not None:
            await Shell(ctx, conn).run()


SERVICE = Service(NAME, ScorerSettings, main)

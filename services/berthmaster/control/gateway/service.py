"""The gateway service: pass requests to the core, perform its instructions and send the replies.

All decisions belong to the core. Each request is one coroutine that runs its conversation to the
end. Beside the requests, the gateway follows the log and the queues. Their handlers are plain
functions, so no lock is needed.
"""

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.metadata import version
from typing import Final

import msgspec

from berthmaster.control.gateway.core.answers import fitted, overloaded, unavailable
from berthmaster.control.gateway.core.events import (
    Abandoned,
    CaughtUp,
    CordonSet,
    Event,
    FiguresHeard,
    LogDamaged,
    Logged,
    LogReplaced,
    LogSize,
    QueueSet,
    QueuesKnown,
    QueuesListed,
    Requested,
    RuntimeSet,
    Storing,
    Tick,
    UnreadableEvent,
)
from berthmaster.control.gateway.core.gateway import WISH, Gateway
from berthmaster.control.gateway.core.instructions import Instruction
from berthmaster.control.gateway.core.shared_state import Limits
from berthmaster.control.gateway.effects import Effects
from berthmaster.control.gateway.event_pages import EventReader
from berthmaster.control.gateway.logs import LogReader
from berthmaster.control.gateway.metrics import GatewayMetrics
from berthmaster.control.gateway.settings import GatewaySettings
from berthmaster.lib.event_log.guard import LogGuard
from berthmaster.lib.lifecycle.instructions import Reply
from berthmaster.lib.messages.api import (
    GATEWAY_VERBS,
    OPERATOR_VERBS,
    ApiReply,
    GetReply,
    GetRequest,
    Refusal,
)
from berthmaster.lib.messages.control import Cordon, QueueSetting
from berthmaster.lib.messages.families import JOB_FIGURES, UNREADABLE, encode
from berthmaster.lib.messages.runtimes import RuntimeSetting
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.dead_letters import store_dead_letter
from berthmaster.lib.nats.endpoints import Endpoint, Fairness, serve
from berthmaster.lib.nats.errors import BusError, StreamReplaced
from berthmaster.lib.nats.fair_queue import Share
from berthmaster.lib.nats.follower import Follower
from berthmaster.lib.nats.latest_figures import LatestFigures
from berthmaster.lib.nats.message_subjects import ControlReader, decode_event
from berthmaster.lib.nats.stream_connection import (
    RequestConnections,
    request_connections,
    stream_connection,
)
from berthmaster.lib.nats.stream_messages import Recorded
from berthmaster.lib.nats.streams import ARCHIVE, CONTROL, WORKLOADS, stream_info
from berthmaster.lib.runtime.periodic import beats
from berthmaster.lib.runtime.service import Context, Service

MAX_LETTERS: Final = 100  # dead letters waiting to be sent. The log has their originals
REPLY_MARGIN_BYTES: Final = 1024  # bytes of the server's limit reserved for subject and headers
TENANT_BYTES_IN_FLIGHT: Final = 16 * 1024 * 1024  # maximum bytes of one tenant's requests in flight
MAX_LOG_FEEDS: Final = 128  # logs followed at once. All readers of one pod share one
LOG_FEED_BYTES: Final = 1024 * 1024  # bytes of each log buffered for slow readers
TENANT_LOG_BYTES_PER_S: Final = 16 * 1024 * 1024  # for all readers of one tenant
SIZE_INTERVAL_S: Final = 2.0  # between two checks of the log's size: some MB at 1,000 submits/s


class Shell:
    """One gateway: reads and writes by ``conn``, receives requests by the ``heard`` connections."""

    def __init__(
        self, ctx: Context[GatewaySettings], conn: Connection, heard: RequestConnections
    ) -> None:
        self._settings = ControlReader()
        settings = ctx.settings
        self._ctx = ctx
        self._conn = conn
        self._heard_by = heard
        self._effects = Effects(conn, settings.settle_limit_s, self._tell)
        self._life = f"gateway-{secrets.token_hex(4)}"
        self._core = Gateway(
            by=self._life,
            limits=Limits(
                max_in_flight=settings.max_in_flight,
                max_open_of_tenant=settings.tenant_open_workloads,
                keep_ended_s=settings.tombstone_days * 86_400,
                max_ended=settings.max_ended,
                cordon_after=settings.cordon_after,
            ),
        )
        self._figures = GatewayMetrics(ctx.metrics, self._core)
        self._guard = LogGuard(
            ctx, conn, "gateway", folder=settings.memory_dir, on_change=self._on_damage
        )
        self._heard = LatestFigures(conn.now)
        self._numbers = itertools.count(1)
        self._logs = LogReader(
            conn,
            lambda: self._core.view,
            self._story,
            feeds=MAX_LOG_FEEDS,
            feed_bytes=LOG_FEED_BYTES,
            tenant_bytes_per_s=TENANT_LOG_BYTES_PER_S,
        )
        self._events = EventReader(conn, lambda: self._core.followed_to)
        self._trouble = ""
        self._letters: list[tuple[Recorded, str, str, str]] = []  # with stream, workload, reason

    async def run(self) -> None:
        """Serve until the service is asked to stop, then finish the requests in flight."""
        ctx = self._ctx
        ctx.health.ready("log", False, "the log has not been read to its end")
        ctx.health.ready("endpoints", False, "nobody listens yet")
        ctx.spawn(self._follow_queues(), name="follow queues")
        ctx.spawn(self._follow_sound_log(), name="follow log")
        ctx.spawn(self._watch_size(), name="watch size")
        ctx.spawn(self._tick(), name="tick")
        await self._heard_by.observed.observe(subjects.job_figures_of(), self._on_job_figures)
        await self._logs.listen(self._heard_by.observed)
        settings = ctx.settings
        limit = settings.max_in_flight
        share = Share(
            max(1, limit // 2),  # tenants are served in turn
            TENANT_BYTES_IN_FLIGHT,
            settings.tenant_requests_per_s,
        )
        endpoints = await serve(
            self._heard_by.general,
            "berth-gateway",
            {
                **{
                    verb: Endpoint(subjects.api_of_all_tenants(verb), self._answer_tenant)
                    for verb in GATEWAY_VERBS
                },
                **{
                    f"{verb}_for_operators": Endpoint(
                        subjects.operator(verb), self._answer_operator
                    )
                    for verb in OPERATOR_VERBS
                },
            },
            version=version("berthmaster"),
            description="Takes, changes and shows workloads; takes operators' orders",
            overloaded=lambda beyond: encode(overloaded(beyond.why, beyond.again_s)),
            failed=lambda _, __: encode(unavailable("the gateway failed; repeating is safe")),
            max_concurrent=limit,
            fairness=Fairness(subjects.asker, share),
            lanes=self._heard_by.lanes,
        )
        ctx.health.ready("endpoints", True)
        ctx.log.info("serving", instance=self._life)
        await ctx.stopping.wait()
        await endpoints.stop()

    # Requests

    async def _answer_tenant(self, subject: str, data: bytes) -> bytes:
        try:
            tenant, verb = subjects.parse_api(subject)
        except subjects.SubjectError:  # the core explains the fault of such a tenant name
            tenant, verb = subject.split(".")[2], subject.rpartition(".")[2]
        if verb == "logs":
            return await self._answer_read("logs", tenant, data, self._logs.answer)
        if verb == "events":
            return await self._answer_read("events", tenant, data, self._events.answer)
        return await self._answer(tenant, verb, data)

    async def _answer_read(
        self,
        verb: str,
        tenant: str,
        data: bytes,
        answer: Callable[[str, bytes], Awaitable[ApiReply]],
    ) -> bytes:
        """Answer a verb whose pages are read outside the core."""
        began_s = asyncio.get_running_loop().time()
        if self._core.caught_up:
            reply = await answer(tenant, data)
        else:
            reply = unavailable("the log has not been read to its end yet")
        took_s = asyncio.get_running_loop().time() - began_s
        self._figures.answered(verb, reply, took_s)
        return fitted(reply, self._conn.nc.max_payload - REPLY_MARGIN_BYTES)

    async def _story(self, tenant: str, workload: str) -> GetReply | Refusal:
        """Return a workload with its event history, in the form for its tenant."""
        ref = f"{self._life}/{next(self._numbers)}"
        asked = encode(GetRequest(id=workload, story=True))
        told = self._tell(Requested(ref=ref, tenant=tenant, verb="get", data=asked))
        reply = await self._converse(ref, told)
        return reply if isinstance(reply, GetReply | Refusal) else unavailable("ask again")

    async def _answer_operator(self, subject: str, data: bytes) -> bytes:
        return await self._answer(None, subject.rpartition(".")[2], data)

    async def _answer(self, tenant: str | None, verb: str, data: bytes) -> bytes:
        began_s = asyncio.get_running_loop().time()
        self._see_trouble()
        ref = f"{self._life}/{next(self._numbers)}"
        asked = Requested(ref=ref, tenant=tenant, verb=verb, data=data)
        reply = await self._converse(ref, self._tell(asked))
        if reply is None:
            raise RuntimeError(f"no reply to {verb}")  # our own fault: serve() sends the reply
        if tenant is not None and isinstance(reply, GetReply):
            figures = self._heard.of(tenant, reply.workload.id)
            reply = msgspec.structs.replace(reply, figures=figures) if figures else reply
        self._effects.stretches.served(tenant or "")
        took_s = asyncio.get_running_loop().time() - began_s
        self._figures.answered(verb, reply, took_s)
        return fitted(reply, self._conn.nc.max_payload - REPLY_MARGIN_BYTES)

    def _see_trouble(self) -> None:
        trouble = self._conn.write_health.trouble(WORKLOADS)
        if trouble != self._trouble:
            self._trouble = trouble
            self._tell(Storing(trouble))

    async def _converse(self, ref: str, todo: list[Instruction]) -> ApiReply | None:
        """Run one conversation to its end, within its time limit."""
        reply: ApiReply | None = None
        try:
            async with asyncio.timeout(self._ctx.settings.request_limit_s):
                while todo:
                    (step,) = todo  # a conversation yields one instruction at a time
                    if isinstance(step, Reply):
                        return step.reply
                    todo = self._tell(await self._effects.perform(step))
        except TimeoutError:
            pass
        finally:
            for last in self._tell(Abandoned(ref=ref)):  # none after the end of the conversation
                if isinstance(last, Reply):
                    reply = last.reply
        return reply

    def _tell(self, event: Event) -> list[Instruction]:
        return self._core.handle(event, self._conn.now())

    def _start(self, begun: list[Instruction]) -> None:
        """Start conversations without a request. The core bounds their number."""
        for step in begun:
            if not step.ref.startswith(WISH):
                raise RuntimeError(f"{step.ref} was begun by nobody")
            self._ctx.spawn(self._pursue(step), name=step.ref)

    async def _pursue(self, step: Instruction) -> None:
        await self._converse(step.ref, [step])

    def _on_job_figures(self, subject: str, data: bytes) -> None:
        self._heard.take(subject, data)
        if subject.split(".")[2] == subjects.NONE:
            return  # job of another system
        with suppress(*UNREADABLE):  # the door has decoded the message before
            self._tell(FiguresHeard(figures=JOB_FIGURES.decode(data)))

    # Streams

    async def _follow_sound_log(self) -> None:
        """Follow the log after its check. Until then only operators are served."""
        self._on_damage("the log has not been looked at yet")
        if not await self._guard.begin():
            return
        self._on_damage("")
        self._ctx.spawn(self._guard.run(), name="guard the log")
        await self._follow_log()

    def _on_damage(self, why: str) -> None:
        self._tell(LogDamaged(why=why))

    async def _follow_log(self) -> None:
        while True:
            follower = Follower(self._conn, WORKLOADS, [subjects.ALL_WORKLOADS])
            try:
                await follower.run(self._on_event, caught_up=self._on_caught_up)
            except StreamReplaced as error:
                self._ctx.log.error("log replaced", why=str(error))
                self._ctx.health.ready("log", False, "the log was replaced and is read anew")
                self._tell(LogReplaced())

    def _on_event(self, recorded: Recorded) -> None:
        self._guard.saw(recorded)
        try:
            event, is_astray = decode_event(recorded.subject, recorded.data)
        except (*UNREADABLE, subjects.SubjectError) as error:
            self._freeze(recorded, str(error))
            return
        if is_astray:
            self._letter(recorded, WORKLOADS, "", "it is another's event")
        logged = Logged(
            event=event,
            sequence=recorded.sequence,
            stored_at_s=recorded.stored_at_s,
            is_astray=is_astray,
        )
        if begun := self._tell(logged):
            self._start(begun)

    def _freeze(self, recorded: Recorded, why: str) -> None:
        try:
            place = subjects.parse_workload_event(recorded.subject)
        except subjects.SubjectError:
            self._letter(recorded, WORKLOADS, "", why)
            return
        self._tell(
            UnreadableEvent(tenant=place.tenant, id=place.id, sequence=recorded.sequence, why=why)
        )
        self._letter(recorded, WORKLOADS, f"{place.tenant}/{place.id}", why)

    def _letter(self, recorded: Recorded, stream: str, workload: str, why: str) -> None:
        self._figures.undecodable.inc()
        if len(self._letters) < MAX_LETTERS:
            self._letters.append((recorded, stream, workload, why))
        else:
            self._ctx.log.error(
                "message undecodable", subject=recorded.subject, sequence=recorded.sequence
            )

    def _on_caught_up(self) -> None:
        self._start(self._tell(CaughtUp()))
        self._ctx.health.ready("log", True)

    async def _follow_queues(self) -> None:
        self._ctx.health.ready("queues", False, "the queues have not been read")
        follower = Follower(self._conn, CONTROL, [subjects.ALL_CONTROL], start="last-per-subject")
        await follower.run(
            self._on_control,
            caught_up=self._on_queues_known,
            relisting=self._on_relisting,
        )

    def _on_relisting(self, replaced: bool) -> None:
        if replaced:
            self._settings.forget()
        self._start(self._tell(QueuesListed()))

    def _on_control(self, recorded: Recorded) -> None:
        try:
            fact = self._settings.read(recorded)
        except UNREADABLE as error:
            self._letter(recorded, CONTROL, "", str(error))
            return
        if isinstance(fact, QueueSetting):
            self._tell(QueueSet(setting=fact, sequence=recorded.sequence))
        elif isinstance(fact, Cordon):
            self._tell(CordonSet(cordon=fact))
        elif isinstance(fact, RuntimeSetting):
            self._tell(RuntimeSet(setting=fact, sequence=recorded.sequence))

    def _on_queues_known(self) -> None:
        self._tell(QueuesKnown())
        self._ctx.health.ready("queues", True)

    # Periodic work

    async def _watch_size(self) -> None:
        async for _ in beats(SIZE_INTERVAL_S, self._ctx.stopping):
            try:
                info = await stream_info(self._conn, WORKLOADS)
            except BusError:
                continue  # the known size holds until the server is back
            self._tell(LogSize(bytes=info.state.bytes, max_bytes=info.config.get("max_bytes", -1)))

    async def _tick(self) -> None:
        async for _ in beats(1.0, self._ctx.stopping):
            self._see_trouble()
            self._start(self._tell(Tick()))
            connected = self._conn.connected and self._heard_by.general.connected
            self._ctx.health.ready("bus", connected, "no connection to NATS")
            self._figures.refresh()
            letters, self._letters = self._letters, []
            for recorded, stream, workload, why in letters:
                await store_dead_letter(
                    self._conn,
                    service="gateway",
                    subject=recorded.subject,
                    reason=why,
                    body=recorded.data,
                    stream=stream,
                    sequence=recorded.sequence,
                    workload=workload,
                )


async def main(ctx: Context[GatewaySettings]) -> None:
    async with stream_connection(ctx, WORKLOADS, CONTROL, ARCHIVE) as conn:
        if conn is None:
            return
        async with request_connections(ctx, conn) as heard:
            if heard is not None:
                await Shell(ctx, conn, heard).run()


SERVICE = Service("gateway", GatewaySettings, main)

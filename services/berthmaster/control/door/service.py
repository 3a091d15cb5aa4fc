"""The agent API: answer the agents of worker clusters, and store or forward their reports.

Several replicas share the requests. Each one folds the log and mirrors the facts alone, so any
replica can be killed at any time. Agents repeat unanswered requests and reports.

Telemetry, usage metrics and log chunks arrive by a connection of their own. Their bytes are limited
before decoding, so none of them delays an answer.

Recovery of a lost log:

1. `berth recover` publishes under ``berth.inquiry.<cluster>``.
2. A door forwards the inquiry under ``berth.assign.<cluster>``.
3. The executor answers with ``holdings``, page by page.
4. The door publishes each page under ``berth.held.<cluster>``, with the result of each receipt's
   check.

A door without a readable log still answers ``hello``, ``facts`` and ``holdings``.
"""

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Final

import msgspec
from prometheus_client import Counter

from berthmaster.control.door.core.bounds import Turns
from berthmaster.control.door.core.door import Door, decoded, overloaded, reported, unavailable
from berthmaster.control.door.core.log_view import Behind, Frozen, Refuse, Settle, Store, Unreadable
from berthmaster.control.door.core.receipts import key_of, tells_of_end
from berthmaster.control.door.metrics import DoorMetrics
from berthmaster.control.door.polls import Polls
from berthmaster.control.door.settings import DoorSettings
from berthmaster.lib.event_log.damage import REMEDY
from berthmaster.lib.event_log.group_commit import shared_group_commit
from berthmaster.lib.event_log.guard import LogGuard
from berthmaster.lib.event_log.workload_log import EventLog, archived_story, decode_story
from berthmaster.lib.lifecycle.instructions import Refused, Stored, Unknown
from berthmaster.lib.lifecycle.states import HELD, State
from berthmaster.lib.lifecycle.workload import Key, key
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.door import (
    DeadReply,
    DeadRequest,
    ExecutorEvent,
    FactsRequest,
    GreetReply,
    HeldPage,
    HoldingsReply,
    HoldingsRequest,
    HubWorkReply,
    HubWorkRequest,
    LeaseReply,
    LeaseRequest,
    LogEndReply,
    LogEndRequest,
    Nudge,
    OwnWorkload,
    PodLogEnd,
    ReportedFact,
    ReportOutcome,
    ReportReply,
    StoryReply,
    StoryRequest,
    TakeRequest,
    TellOutcome,
    TellReply,
    TellRequest,
)
from berthmaster.lib.messages.families import (
    DEAD_REQUESTS,
    EVENTS,
    FACTS_REQUESTS,
    HOLDINGS_REQUESTS,
    HUB_WORK_REQUESTS,
    LEASE_REQUESTS,
    LOG_END_REQUESTS,
    NUDGES,
    STORY_REQUESTS,
    TAKE_REQUESTS,
    TELL_REQUESTS,
    UNREADABLE,
    encode,
)
from berthmaster.lib.messages.records import LogEnd
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connect_options import read_creds
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.dead_letters import store_dead_letter
from berthmaster.lib.nats.endpoints import Endpoint, serve
from berthmaster.lib.nats.errors import BusError, StreamReplaced
from berthmaster.lib.nats.follower import Follower
from berthmaster.lib.nats.stream_connection import (
    RequestConnections,
    request_connections,
    stream_connection,
)
from berthmaster.lib.nats.stream_lease import SubjectRecord
from berthmaster.lib.nats.stream_messages import Recorded
from berthmaster.lib.nats.stream_reads import last_message
from berthmaster.lib.nats.streams import FLEET, FOLLOWED, WORKLOADS
from berthmaster.lib.runtime.candidacy import Record
from berthmaster.lib.runtime.lease import Outdated, StoreAway
from berthmaster.lib.runtime.periodic import beats, together
from berthmaster.lib.runtime.service import Context, Service

NAME: Final = "door"
SERVED_AS: Final = "berth-door"
RELIST_S: Final = 600.0
SETTLE_LIMIT_S: Final = 2.5  # for a write. Below the 4 s after which an agent repeats its request
MAX_POLLS: Final = 2  # open polls of one kind and cluster: an executor and its killed predecessor
MAX_APPENDS: Final = 2000  # events and facts of all clusters being stored. Others wait
BEHIND_LIMIT_S: Final = 1.0  # maximum wait until the log is read as far as an agent has
LEASE_LIMIT_S: Final = 0.5
PUT_LIMIT_S: Final = 3.0
ANSWER_LIMIT_S: Final = 20.0  # a poll waits for 15
MAX_OPEN: Final = 100_000  # requests of all clusters. Those of one cluster have their own bound
MANY_WAITING: Final = 10_000  # number of requests that wait for the log to be read further
KNOWN_CLUSTERS: Final = 4096  # with their subjects parsed once
FIGURES_S: Final = 1.0
MAX_LETTERS: Final = 100
RATE_AGAIN_S: Final = 1.0
SETTLED_AT_ONCE: Final = 4  # of one cluster: each reads an event history from the log
_Work = Callable[[str, bytes], Awaitable[msgspec.Struct]]


class Shell:
    """One replica: reads and writes by ``conn``, receives requests by the ``heard`` connections."""

    def __init__(
        self, ctx: Context[DoorSettings], conn: Connection, heard: RequestConnections
    ) -> None:
        settings = ctx.settings
        self._ctx = ctx
        self._conn = conn
        self._heard_by = heard
        creds = settings.nats_creds_file
        self._core = Door(settings.limits, key_of(read_creds(creds).seed if creds else ""))
        self._guard = LogGuard(ctx, conn, NAME, folder=settings.memory_dir)
        self._log = EventLog(conn, settle_limit_s=SETTLE_LIMIT_S)
        self._appends = shared_group_commit(conn, settle_limit_s=SETTLE_LIMIT_S)
        self._turns: Turns[asyncio.Future[None]] = Turns(MAX_APPENDS)
        self._takes = Polls(MAX_POLLS)
        self._fact_polls = Polls(2 * MAX_POLLS)  # executor and ocm
        self._reached: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._under_way: set[Key] = set()
        self._settling: dict[str, asyncio.Semaphore] = {}
        self._nudges: dict[str, int] = {}
        self._letters: list[tuple[Recorded, str, str]] = []
        self._ready = {"log": False, "fleet": False}
        self._figures = DoorMetrics(ctx.metrics)

    async def run(self) -> None:
        """Serve until the service is asked to stop."""
        ctx = self._ctx
        for part in self._ready:
            ctx.health.ready(part, False, "catching up")
        ctx.spawn(self._follow_log(), name="follow the log")
        ctx.spawn(self._mirror_fleet(), name="mirror the facts")
        verbs: dict[str, _Work] = {
            "hello": self._hello,
            "take": self._take,
            "tell": self._tell,
            "story": self._story,
            "facts": self._facts,
            "report": self._report,
            "lease": self._lease,
            "dead": self._dead,
            "log_end": self._log_end,
            "hub_work": self._hub_work,
            "holdings": self._holdings,
        }
        observed = [
            await self._heard_by.observed.observe(
                subjects.agent_of_all_clusters(verb), take, queue=SERVED_AS
            )
            for verb, take in {
                "telemetry": self._passing(
                    self._core.telemetry, self._figures.telemetry, self._figures.dropped
                ),
                "figures": self._pass_figures,
                # The gateway repeats its request for a lost log chunk.
                "logs": self._passing(self._core.log_chunk, None, self._figures.logs_dropped),
            }.items()
        ]
        observed.append(
            await self._heard_by.general.observe(
                subjects.ALL_INQUIRIES, self._pass_inquiry_on, queue=SERVED_AS
            )
        )
        endpoints = await serve(
            self._heard_by.general,
            SERVED_AS,
            {
                verb: Endpoint(subjects.agent_of_all_clusters(verb), self._answering(verb, work))
                for verb, work in verbs.items()
            },
            version="1.0.0",
            description="What agents of worker clusters take and tell",
            overloaded=lambda beyond: encode(
                overloaded(f"{beyond.why}; ask again", beyond.again_s)
            ),
            failed=lambda _, error: encode(unavailable(f"the request failed: {error}")),
            max_concurrent=MAX_OPEN,
            answer_limit_s=ANSWER_LIMIT_S,
            lanes=self._heard_by.lanes,
        )
        async for _ in beats(FIGURES_S, ctx.stopping):
            connected = self._conn.connected and self._heard_by.general.connected
            ctx.health.ready("bus", connected, "no connection to NATS")
            self._figures.show(self._core, len(self._takes) + len(self._fact_polls))
            await self._bury_letters()
        self._takes.close()
        self._fact_polls.close()
        await endpoints.stop()
        await asyncio.gather(*(each.unsubscribe() for each in observed), return_exceptions=True)

    # Streams

    async def _follow_log(self) -> None:
        """Compare the log with the last known state before reading. An executor ends every job
        missing in the log, so the door answers nothing from an unchecked log.
        """
        while await self._guard.begin():
            try:
                await self._fold_log()
            except* StreamReplaced as errors:
                why = str(errors.exceptions[0])
                self._ctx.log.error("reading the log again", why=why)
                self._ready["log"] = False
                self._ctx.health.ready("log", False, f"{why}, and is read anew")
                self._core.log_replaced()

    async def _fold_log(self) -> None:
        """Fold the log until its replacement. Raises StreamReplaced, in a group."""
        core, guard = self._core, self._guard
        follower = Follower(self._conn, WORKLOADS, FOLLOWED[WORKLOADS])

        def ready() -> None:
            core.log_name = follower.making
            core.receipts.log = follower.making
            core.log.caught_up()
            self._is_ready("log")
            self._takes.stir_all()  # their cursors belong to another log: they get a list
            # Nudges end polls that died with another replica or behind a reconnection.
            for cluster in core.log.clusters:
                self._nudge(cluster, core.log.position)

        await together(follower.run(self._on_event, caught_up=ready), guard.run())

    def _on_event(self, recorded: Recorded) -> None:
        core = self._core
        self._guard.saw(recorded)
        try:
            cluster = core.log.take(
                recorded.subject, recorded.sequence, recorded.stored_at_s, recorded.data
            )
        except Unreadable as error:
            self._figures.unreadable.inc()
            cluster = ""
            if self._ready["log"] and len(self._letters) < MAX_LETTERS:
                self._letters.append((recorded, str(error), error.workload))
        while self._reached and self._reached[0][0] <= recorded.sequence:
            _, _, waiting = heapq.heappop(self._reached)
            if not waiting.done():
                waiting.set_result(None)
        self._stir(cluster, recorded.sequence)

    def _stir(self, cluster: str, sequence: int) -> None:
        """Wake the polls of a cluster with a new hint. The nudge is for an executor whose poll or
        answer is lost: the link of a leaf node failed, and neither end is notified.
        """
        if cluster and self._ready["log"]:
            self._takes.stir(cluster)
            self._nudge(cluster, sequence)

    def _nudge(self, cluster: str, sequence: int) -> None:
        """Send one nudge for all hints of this event-loop pass."""
        if not self._nudges:
            asyncio.get_running_loop().call_soon(
                lambda: self._ctx.spawn(self._send_nudges(), name="nudges")
            )
        self._nudges[cluster] = sequence

    async def _send_nudges(self) -> None:
        nudges, self._nudges = self._nudges, {}
        for cluster, sequence in nudges.items():
            try:
                await self._conn.publish(subjects.assign(cluster), encode(Nudge(sequence=sequence)))
                self._figures.nudges.inc()
            except BusError:
                return  # a hint only: the next poll finds the event

    async def _mirror_fleet(self) -> None:
        follower = Follower(
            self._conn, FLEET, [subjects.ALL_FLEET], start="last-per-subject", relist_s=RELIST_S
        )

        def take(recorded: Recorded) -> None:
            news = self._core.fleet.take(
                recorded.subject, recorded.sequence, recorded.stored_at_s, recorded.data
            )
            if news is not None:
                self._fact_polls.stir(*news)

        def listed() -> None:
            self._core.fleet_name = follower.making
            self._core.fleet.end_listing()
            self._is_ready("fleet")

        await follower.run(take, caught_up=listed, relisting=self._core.fleet.start_listing)

    def _is_ready(self, part: str) -> None:
        self._ready[part] = True
        self._ctx.health.ready(part, True)

    async def _bury_letters(self) -> None:
        letters, self._letters = self._letters, []
        for recorded, why, workload in letters:
            await store_dead_letter(
                self._conn,
                service=NAME,
                subject=recorded.subject,
                reason=why,
                body=recorded.data,
                stream=WORKLOADS,
                sequence=recorded.sequence,
                workload=workload,
            )

    # Requests

    def _answering(self, verb: str, work: _Work) -> Callable[[str, bytes], Awaitable[bytes]]:
        async def answer(subject: str, data: bytes) -> bytes:
            reply = await self._bounded(subject, data, work)
            result = reply.code if isinstance(reply, Refusal) else "ok"
            self._figures.answered(verb, result)
            answered = encode(reply)
            if work in (self._take, self._facts) and result == "ok":
                self._core.was_read(subjects.parse_agent(subject)[0], len(answered))
            return answered

        return answer

    async def _bounded(self, subject: str, data: bytes, work: _Work) -> msgspec.Struct:
        try:
            cluster, _ = subjects.parse_agent(subject)
        except subjects.SubjectError as error:
            return Refusal(
                code="invalid", field="", value="", expected=f"a cluster's name: {error}"
            )
        if not all(self._ready[part] for part in self._needs(work)):
            return unavailable("still reading the log; ask again")
        if not self._core.may_ask(cluster, len(data), self._conn.now()):
            return overloaded("fewer bytes of requests of one cluster; ask again", RATE_AGAIN_S)
        if work in (self._take, self._facts):  # these wait, in bounded number
            if not self._core.may_read(cluster, self._conn.now()):
                again_s = self._core.reads_again_s(cluster)
                return overloaded("to read less of one cluster; ask again", again_s)
            return await work(cluster, data)
        if not self._core.in_hand.begin(cluster):
            return overloaded("fewer requests of one cluster at once; ask again")
        try:
            return await work(cluster, data)
        finally:
            self._core.in_hand.end(cluster)

    def _needs(self, work: _Work) -> tuple[str, ...]:
        """Return the streams to read before an answer to this verb. While the log is damaged,
        agents may greet, report and read facts, list their attempts, and hold the lease.
        """
        if work in (self._hello, self._holdings, self._lease):
            return ()
        return ("fleet",) if work in (self._facts, self._report) else ("log", "fleet")

    @asynccontextmanager
    async def _turn(self, cluster: str, items: int) -> AsyncIterator[bool]:
        """Wait for a slot for this number of events or facts. Yield False if the cluster has too
        many.
        """
        core = self._core
        if not core.in_hand.add(cluster, items):
            yield False
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.join(cluster, items, mine)
        self._next_turns()
        try:
            await mine
            yield True
        finally:
            core.in_hand.end_items(cluster, items)
            if mine.done() and not mine.cancelled():
                self._turns.leave(items)
            mine.cancel()
            self._next_turns()

    def _next_turns(self) -> None:
        for items, turn in self._turns.due():
            if turn.done():
                self._turns.leave(items)  # the waiting request was cancelled
            else:
                turn.set_result(None)

    async def _read_up_to(self, sequence: int) -> None:
        """Wait until the log is read up to a sequence, within the time limit."""
        if sequence <= self._core.log.position:
            return
        if len(self._reached) >= MANY_WAITING:  # some sequences are never stored
            self._reached = [each for each in self._reached if not each[2].done()]
            heapq.heapify(self._reached)
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._reached, (sequence, next(self._numbers), waiting))
        await asyncio.wait({waiting}, timeout=BEHIND_LIMIT_S)
        waiting.cancel()

    async def _hello(self, cluster: str, data: bytes) -> msgspec.Struct:
        del data
        same_as = self._core.fleet.twins.first(cluster)
        return GreetReply(now_s=self._conn.now(), same_as=same_as)

    async def _take(self, cluster: str, data: bytes) -> msgspec.Struct:
        request = decoded(TakeRequest, TAKE_REQUESTS, data)
        if isinstance(request, Refusal):
            return request
        found = await self._takes.answer(
            cluster, lambda: self._core.take(cluster, request), request.wait_s
        )
        return found if found is not None else self._core.nothing(request)

    async def _tell(self, cluster: str, data: bytes) -> msgspec.Struct:
        request = decoded(TellRequest, TELL_REQUESTS, data)
        if isinstance(request, Refusal):
            return request
        began_s = asyncio.get_running_loop().time()
        # A sequence beyond all stored ones has the same time limit as any other.
        await self._read_up_to(max(event.after for event in request.events))
        async with self._turn(cluster, len(request.events)) as granted:
            if not granted:
                return overloaded("fewer events of one cluster at once; tell them again")
            outcomes = await asyncio.gather(
                *(self._store(cluster, event, again=request.again) for event in request.events)
            )
        for outcome in outcomes:
            self._figures.told(outcome.result)
        self._figures.seconds.observe(asyncio.get_running_loop().time() - began_s)
        return TellReply(outcomes=tuple(outcomes), position=self._core.log.position)

    async def _store(self, cluster: str, event: ExecutorEvent, *, again: bool) -> TellOutcome:
        if not self._guard.sound:
            return TellOutcome(result="behind", why=self._guard.why)
        check = self._core.log.check(cluster, event, again=again)
        match check:
            case Refuse(why):
                return TellOutcome(result="refused", why=why)
            case Frozen(why):
                return TellOutcome(result="refused", why=f"its story cannot be read: {why}")
            case Behind():
                return TellOutcome(result="behind")
            case Settle():
                async with self._settling.setdefault(cluster, asyncio.Semaphore(SETTLED_AT_ONCE)):
                    return await self._settle(event)
            case Store():
                return await self._append(event, again=again)

    async def _append(self, event: ExecutorEvent, *, again: bool) -> TellOutcome:
        name = key(event.tenant, event.id)
        if name in self._under_way:  # two in a batch would split the batch
            return TellOutcome(result="behind", why="another event of it is being stored")
        self._under_way.add(name)
        try:
            outcome = await self._appends.append(event, in_doubt=again)
        except BusError as error:
            return TellOutcome(result="unknown", why=str(error))
        finally:
            self._under_way.discard(name)
        match outcome:
            case Stored(sequence):
                return TellOutcome(result="stored", sequence=sequence)
            case Refused():
                return TellOutcome(result="refused", why="after: something else has happened")
            case Unknown(why):
                return TellOutcome(result="unknown", why=why)

    async def _settle(self, event: ExecutorEvent) -> TellOutcome:
        """Settle a repeated event whose guard has advanced: either this event was stored, or it
        never can be.
        """
        try:
            story = await self._log.story(event.tenant, event.id)
        except BusError as error:
            return TellOutcome(result="unknown", why=str(error))
        for message in story:
            if message.sequence > event.after:
                try:
                    if EVENTS.decode(message.data) == event:
                        return TellOutcome(result="stored", sequence=message.sequence)
                except UNREADABLE:
                    pass  # so this is another event
                break
        return TellOutcome(result="refused", why="after: something else has happened")

    async def _story(self, cluster: str, data: bytes) -> msgspec.Struct:
        request = decoded(StoryRequest, STORY_REQUESTS, data)
        if isinstance(request, Refusal):
            return request
        told = await self._told(cluster, request)
        if isinstance(told, StoryReply) and told.workload is not None:
            return msgspec.structs.replace(told, now_s=self._conn.now())
        return told

    async def _told(self, cluster: str, request: StoryRequest) -> StoryReply | Refusal:
        await self._read_up_to(request.after)
        found: StoryReply | None = self._core.story(cluster, request)
        if found is None:
            return unavailable("the log has not been read so far")
        if not self._guard.sound:  # the stored log may differ from the events that were read
            return unavailable("the log is not known to be what was read of it; ask again")
        if found.workload is None and not found.failed and request.receipt:
            async with self._settling.setdefault(cluster, asyncio.Semaphore(SETTLED_AT_ONCE)):
                return await self._unknown(cluster, request, found)
        if found.workload is not None and not request.receipt:
            return await self._newest(request, found, found.workload)
        return found

    async def _newest(
        self, request: StoryRequest, found: StoryReply, work: OwnWorkload
    ) -> StoryReply | Refusal:
        """Return the state unless the log has a newer event. The caller has no pods, and would
        create them for a claimed attempt. The log may already have an ending, unread here.
        """
        if State(work.state) not in HELD:
            return found
        try:
            name = subjects.aggregate(request.tenant, request.id)
            newest = await last_message(self._conn, WORKLOADS, name)
        except BusError as error:
            return unavailable(str(error))
        if newest is not None and newest.sequence > work.sequence:
            return unavailable("the log has not been read so far")
        return found

    async def _unknown(
        self, cluster: str, request: StoryRequest, found: StoryReply
    ) -> StoryReply | Refusal:
        """Answer a query about an attempt not open in the cluster. Log or archive usually have the
        reason: an ending, or a later attempt. If neither does, the log has lost the attempt, and
        the attempt continues.
        """
        held = self._core.receipts.opened(request.receipt)
        name = request.tenant, request.id
        if held is None or (held.cluster, held.tenant, held.id) != (cluster, *name):
            return found
        try:
            history = decode_story(await self._log.story(*name))
            known = [*history, *await archived_story(self._conn, *name)]
        except BusError as error:
            return unavailable(str(error))
        except UNREADABLE as error:
            return StoryReply(failed=f"its events cannot be read: {error}")
        if tells_of_end(held, known):
            return found
        self._figures.lost.inc()
        self._ctx.log.error(
            "held attempt missing in log",
            cluster=cluster,
            workload="/".join(name),
            attempt=held.attempt,
            remedy=REMEDY,
        )
        return unavailable("the log has lost this attempt; it runs on until `berth recover`")

    async def _facts(self, cluster: str, data: bytes) -> msgspec.Struct:
        request = decoded(FactsRequest, FACTS_REQUESTS, data)
        if isinstance(request, Refusal):
            return request
        found = await self._fact_polls.answer(
            cluster,
            lambda: self._core.facts(cluster, request),
            request.wait_s,
            request.kinds,
        )
        return found if found is not None else self._core.no_facts(cluster, request)

    async def _report(self, cluster: str, data: bytes) -> msgspec.Struct:
        facts = reported(data)
        if isinstance(facts, Refusal):
            return facts
        async with self._turn(cluster, len(facts)) as granted:
            if not granted:
                return overloaded("fewer facts of one cluster at once; tell them again")
            outcomes = await asyncio.gather(*(self._put(cluster, told) for told in facts))
        for outcome in outcomes:
            self._figures.reported(outcome.result)
        return ReportReply(outcomes=tuple(outcomes))

    async def _put(self, cluster: str, told: ReportedFact | ReportOutcome) -> ReportOutcome:
        if isinstance(told, ReportOutcome):
            return told
        admitted = self._core.admit(cluster, told, self._conn.now())
        if isinstance(admitted, ReportOutcome):
            return admitted
        subject, data = admitted
        headers = None
        if told.keep_s is not None:
            headers = {"Nats-TTL": f"{max(1, round(told.keep_s))}s"}
        try:
            sequence = await self._conn.store(subject, data, timeout_s=PUT_LIMIT_S, headers=headers)
        except BusError as error:
            return ReportOutcome(result="unavailable", why=str(error))
        return ReportOutcome(result="stored", sequence=sequence)

    async def _lease(self, cluster: str, data: bytes) -> msgspec.Struct:
        request = decoded(LeaseRequest, LEASE_REQUESTS, data)
        if isinstance(request, Refusal):
            return request
        name = f"{request.name}.{subjects.token(cluster)}"
        record = SubjectRecord(self._conn, name, LEASE_LIMIT_S)
        over = found = None
        if request.version:
            over = Record(str(request.version), request.holder, request.ttl_s)
        try:
            match request.act:
                case "read":
                    found = await record.read()
                case "write":
                    found = await record.write(over, request.holder, request.ttl_s, taken=False)
                case "release":
                    if over is not None:
                        await record.release(over)
        except Outdated:
            return LeaseReply(outdated=True)
        except StoreAway as error:
            return unavailable(str(error))
        if found is None:
            return LeaseReply()
        return LeaseReply(
            version=int(found.version), holder=found.holder, ttl_s=found.ttl_s, epoch=found.epoch
        )

    async def _dead(self, cluster: str, data: bytes) -> msgspec.Struct:
        if not self._core.may_bury(cluster, self._conn.now()):
            return overloaded("fewer dead letters", self._core.letter_again_s)
        request = decoded(DeadRequest, DEAD_REQUESTS, data)
        if isinstance(request, Refusal):
            return request
        concerned = self._core.log.concerns(cluster, request.workload)
        kept = await store_dead_letter(
            self._conn,
            service=request.service,
            subject=request.subject,
            reason=f"{cluster}: {request.reason}",
            body=request.body,
            workload=request.workload if concerned else "",
        )
        return DeadReply(kept=kept)

    # Observations

    def _passing(
        self,
        subject_of: Callable[[str, bytes, float], str],
        passed: Counter | None,
        dropped: Counter,
    ) -> Callable[[str, bytes], None]:
        """Return the handler of one kind of observations. ``subject_of`` returns the subject to
        forward to, or "" to drop the message, if possible before decoding.
        """

        def take(subject: str, data: bytes) -> None:
            cluster = _cluster_of(subject)
            to = subject_of(cluster, data, self._conn.now()) if cluster else ""
            if not (to and self._heard_by.observed.pass_on(to, data)):
                dropped.inc()
            elif passed is not None:
                passed.inc()

        return take

    def _pass_figures(self, subject: str, data: bytes) -> None:
        cluster = _cluster_of(subject)
        passed = self._core.figures(cluster, data, self._conn.now()) if cluster else None
        if (
            passed is None
            or not passed.subject
            or not self._heard_by.observed.pass_on(passed.subject, passed.data)
        ):
            self._figures.figures_dropped.inc()
            return
        self._figures.job_figures.inc()
        self._figures.figures_refused.inc(passed.refused)

    def _pass_inquiry_on(self, subject: str, data: bytes) -> None:
        """Forward an inquiry to the cluster's agent as a nudge. `berth recover` repeats lost
        ones.
        """
        try:
            nudge = NUDGES.decode(data)
            to = subjects.assign(subjects.parse_inquiry(subject))
        except (subjects.SubjectError, *UNREADABLE) as error:
            self._ctx.log.warning("inquiry not forwarded", subject=subject, why=str(error))
            return
        if nudge.inquiry:
            self._heard_by.general.pass_on(to, data)

    async def _log_end(self, cluster: str, data: bytes) -> msgspec.Struct:
        if not self._core.may_log(cluster, len(data), self._conn.now()):
            return overloaded("fewer bytes of logs")
        request = decoded(LogEndRequest, LOG_END_REQUESTS, data)
        if isinstance(request, Refusal):
            return request
        await self._read_up_to(request.after)
        theirs = [each for each in request.ends if self._core.may_keep_end(cluster, each)]
        if strange := len(request.ends) - len(theirs):
            self._figures.log_ends_refused.inc(strange)
        try:
            kept = [_kept_end(cluster, each) for each in theirs]
            # Messages are stored in order: the last acknowledgement covers all.
            for subject, end in kept[:-1]:
                await self._conn.publish(subject, end)
            if kept:
                await self._conn.store(*kept[-1], timeout_s=PUT_LIMIT_S)
        except (subjects.SubjectError, BusError) as error:
            return unavailable(str(error))
        return LogEndReply(kept=not strange)

    async def _hub_work(self, cluster: str, data: bytes) -> msgspec.Struct:
        request = decoded(HubWorkRequest, HUB_WORK_REQUESTS, data)
        if isinstance(request, Refusal):
            return request
        await self._read_up_to(request.after)
        log = self._core.log
        return HubWorkReply(found=tuple(log.hub_work(cluster, each) for each in request.asked))

    async def _holdings(self, cluster: str, data: bytes) -> msgspec.Struct:
        """Publish the page for `berth recover`, its only reader."""
        request = decoded(HoldingsRequest, HOLDINGS_REQUESTS, data)
        if isinstance(request, Refusal):
            return request
        page = HeldPage(
            cluster=cluster,
            inquiry=request.inquiry,
            listing=request.listing,
            page=request.page,
            last=request.last,
            held=tuple(self._core.receipts.proven(cluster, each) for each in request.held),
        )
        try:
            await self._conn.publish(subjects.held(cluster), encode(page))
        except (subjects.SubjectError, BusError) as error:
            return unavailable(str(error))
        return HoldingsReply()


@lru_cache(maxsize=KNOWN_CLUSTERS)
def _cluster_of(subject: str) -> str:
    """Return the cluster whose agent publishes under a subject, or "" if malformed."""
    try:
        return subjects.parse_agent(subject)[0]
    except subjects.SubjectError:
        return ""


def _kept_end(cluster: str, end: PodLogEnd) -> tuple[str, bytes]:
    """Return subject and body of a stored end of a log. Raises SubjectError."""
    told = {name: getattr(end, name) for name in PodLogEnd.__struct_fields__}
    subject = subjects.log_end(end.tenant, end.id, end.attempt, cluster, end.pod)
    return subject, encode(LogEnd(cluster=cluster, **told))


async def main(ctx: Context[DoorSettings]) -> None:
    # Not WORKLOADS: agents report their attempts even if this stream is lost.
    async with stream_connection(ctx, FLEET) as conn:
        if conn is None:
            return
        async with request_connections(ctx, conn) as heard:
            if heard is not None:
                await Shell(ctx, conn, heard).run()


SERVICE = Service(NAME, DoorSettings, main)

"""The client class: one method per request.

The client repeats a request within its time limit, at growing intervals, while no service answers
or the answer is "later". Repeating is safe. An id is used once, so a second submit of the same
request returns the result of the first. All other requests may be repeated too.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self, TypeVar

import msgspec

from berthmaster.client import following
from berthmaster.client.errors import (
    BerthError,
    NotAllowedError,
    RefusedError,
    TooLargeError,
    UnavailableError,
    UnexpectedReplyError,
)
from berthmaster.client.following import SeenDead, SeenDecision, SeenEvent, SeenFact
from berthmaster.lib.messages.api import (
    MOST_EVENTS,
    CancelRequest,
    ChangeReply,
    CheckpointedRequest,
    CordonRequest,
    CordonsReply,
    CordonsRequest,
    DrainRequest,
    DryRunReply,
    EventsReply,
    EventsRequest,
    EvictRequest,
    GetReply,
    GetRequest,
    GpusReply,
    GpusRequest,
    HelloReply,
    HelloRequest,
    HoldRequest,
    JobOrderRequest,
    ListReply,
    ListRequest,
    LogsReply,
    LogsRequest,
    LostRequest,
    MoveRequest,
    OperatorReply,
    ProgressedRequest,
    Refusal,
    ReleaseRequest,
    ReprioritizeRequest,
    SubmitReply,
    WhatifReply,
    WhatifRequest,
    WhyReply,
    WhyRequest,
    WorkloadStateName,
    WorkloadView,
)
from berthmaster.lib.messages.control import ControlFact, QueueSetting
from berthmaster.lib.messages.families import API_REPLIES, UNREADABLE, encode
from berthmaster.lib.messages.placement import MAIN_CELL
from berthmaster.lib.messages.profile import Profile, ProfileRequest
from berthmaster.lib.messages.quality import QualityReport
from berthmaster.lib.messages.runtimes import RuntimeSetting
from berthmaster.lib.messages.suggest import Suggestions, SuggestRequest
from berthmaster.lib.messages.telemetry import JobFigures, NodeTelemetry
from berthmaster.lib.messages.usage import Trends, TrendsRequest, UsageReport, UsageReportRequest
from berthmaster.lib.messages.workload import JobRequest
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError, NoAnswer, NotConnected, NotPermitted, TooLarge
from berthmaster.lib.nats.follower import Follower
from berthmaster.lib.nats.nats_py import Msg
from berthmaster.lib.nats.stream_messages import Recorded
from berthmaster.lib.nats.streams import CONTROL, DEAD, FLEET, WORKLOADS, stream_info
from berthmaster.lib.runtime.backoff import Backoff

R = TypeVar("R", bound=msgspec.Struct)
T = TypeVar("T")
Submitted = SubmitReply | RefusedError | TooLargeError

TIMEOUT_S: Final = 10.0  # seconds for one request with all retries
TRY_TIMEOUT_S: Final = 2.0
SUBMITS_AT_ONCE: Final = 64
LOG_WAIT_S: Final = 4.0
TRY_LOG_S: Final = 5.0  # seconds for a cluster's response, beyond the wait for lines
LOG_PAUSE_S: Final = 0.5
ENDED: Final = ("succeeded", "failed", "cancelled")
CONNECT_TIMEOUT_S: Final = 5.0
BACKOFF: Final = Backoff(first_s=0.05, most_s=1.0)
ENVELOPE_BYTES: Final = 512  # headers and subject count towards the server's limit too
AS_OF_TRIES: Final = 40
AS_OF_PAUSE_S: Final = 0.05
CANCEL_AGAIN_S: Final = 0.5
SURE_AFTER_S: Final = 30.0
CLUSTER_FACTS: Final = ("alive", "profile", "score")


class _Settings(msgspec.Struct, frozen=True):
    nats_url: str
    nats_creds_file: Path | None
    inbox_prefix: str
    nats_ca_file: Path | None
    nats_plaintext: bool


class _Silent:
    """A logger without output: the client reports through results and errors."""

    def info(self, event: str, /, **fields: object) -> None: ...
    def warning(self, event: str, /, **fields: object) -> None: ...
    def error(
        self, event: str, /, *, error: BaseException | None = None, **fields: object
    ) -> None: ...


class Client:
    """A connection of one tenant, created by ``connect``."""

    def __init__(
        self, settings: _Settings, tenant: str, *, timeout_s: float, connect_timeout_s: float
    ) -> None:
        self.tenant = tenant
        self.timeout_s = timeout_s
        self._settings = settings
        self._connect_timeout_s = connect_timeout_s
        self._open: Connection | None = None
        self._chance = random.Random()

    @classmethod
    def connect(
        cls,
        url: str = "nats://127.0.0.1:4222",
        *,
        tenant: str = "default",
        creds_file: Path | str | None = None,
        inbox_prefix: str = "_INBOX",
        ca_file: Path | str | None = None,
        plaintext: bool = False,
        timeout_s: float = TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> Self:
        """Return a client that connects in ``async with``.

        ``timeout_s`` bounds each request. ``creds_file`` has the tenant's JWT and seed, and is read
        again at each reconnection. ``ca_file`` is the CA of a tls:// server; None uses the system's
        CAs. ``plaintext`` allows a remote server without TLS.
        """
        subjects.token(tenant)  # report a name that is invalid in a subject at once
        creds = Path(creds_file) if creds_file else None
        authority = Path(ca_file) if ca_file else None
        settings = _Settings(url, creds, inbox_prefix, authority, plaintext)
        return cls(settings, tenant, timeout_s=timeout_s, connect_timeout_s=connect_timeout_s)

    async def __aenter__(self) -> Self:
        try:
            self._open = await Connection.open(
                self._settings,
                "client",
                _Silent(),
                timeout_s=self._connect_timeout_s,
                clock_subject=subjects.api(self.tenant, "hello"),
            )
        except NotConnected as error:
            raise UnavailableError(str(error)) from error
        except BusError as error:
            raise NotAllowedError(str(error)) from error
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._open is not None:
            await self._open.close()
            self._open = None

    @property
    def connection(self) -> Connection:
        """Return the connection, for requests without a method in this class."""
        if self._open is None:
            raise RuntimeError("use the client as `async with Client.connect(…) as berth:`")
        return self._open

    def now(self) -> float:
        """Return the server's time in seconds since 1970, for measuring ages."""
        return self.connection.now()

    async def hello(self) -> HelloReply:
        """Check that the gateway answers, and return the server's time."""
        return await self._tenant("hello", HelloRequest(), HelloReply)

    # Workloads

    async def submit(self, request: JobRequest) -> SubmitReply:
        """Submit a job, and return when the job is durable. Repeating a request is harmless."""
        return await self._tenant("submit", request, SubmitReply)

    async def submit_many(
        self, requests: Iterable[JobRequest | bytes], *, at_once: int = SUBMITS_AT_ONCE
    ) -> AsyncGenerator[
        tuple[JobRequest | bytes, SubmitReply | RefusedError | TooLargeError], None
    ]:
        """Submit many requests over one connection, and yield each reply in order.

        At most ``at_once`` requests are in flight. A request that depends on others is sent after
        the replies to all before it.
        """
        waiting: deque[tuple[JobRequest | bytes, asyncio.Task[SubmitReply]]] = deque()

        async def answered() -> tuple[JobRequest | bytes, Submitted]:
            request, task = waiting[0]
            try:
                return request, await task
            except (RefusedError, TooLargeError) as error:
                return request, error
            finally:
                waiting.popleft()

        try:
            for request in requests:
                body = request if isinstance(request, bytes) else encode(request)
                while waiting and (len(waiting) >= at_once or b'"depends_on"' in body):
                    yield await answered()
                waiting.append((request, asyncio.create_task(self.submit_raw(body))))
            while waiting:
                yield await answered()
        finally:
            for _, task in waiting:
                task.cancel()
            await asyncio.gather(*(task for _, task in waiting), return_exceptions=True)

    async def submit_raw(self, body: bytes) -> SubmitReply:
        """Submit a request as JSON text. The gateway validates the text."""
        return await self._ask(subjects.api(self.tenant, "submit"), body, SubmitReply)

    async def dry_run(self, request: JobRequest) -> DryRunReply:
        """Return the placement that the job would get now."""
        return await self._tenant("dry_run", request, DryRunReply)

    async def dry_run_raw(self, body: bytes) -> DryRunReply:
        """Return the placement of a request as JSON text."""
        return await self._ask(subjects.api(self.tenant, "dry_run"), body, DryRunReply)

    async def cancel(self, workload: str, reason: str = "") -> ChangeReply:
        """Cancel a workload. The executor stops a running workload a little later."""
        return await self._tenant("cancel", CancelRequest(id=workload, reason=reason), ChangeReply)

    async def reprioritize(self, workload: str, priority: int) -> ChangeReply:
        """Change a workload's priority."""
        request = ReprioritizeRequest(id=workload, priority=priority)
        return await self._tenant("reprioritize", request, ChangeReply)

    async def hold(self, workload: str, reason: str = "", *, evict: bool = False) -> ChangeReply:
        """Hold a workload until its release. ``evict``: also evict a running workload."""
        request = HoldRequest(id=workload, reason=reason, evict=evict)
        return await self._tenant("hold", request, ChangeReply)

    async def release(self, workload: str, reason: str = "") -> ChangeReply:
        """Release a held workload."""
        request = ReleaseRequest(id=workload, reason=reason)
        return await self._tenant("release", request, ChangeReply)

    async def evict(self, workload: str, reason: str = "") -> ChangeReply:
        """Evict a workload: end its attempt and requeue it."""
        return await self._tenant("evict", EvictRequest(id=workload, reason=reason), ChangeReply)

    async def move(self, workload: str, to: str = "", reason: str = "") -> ChangeReply:
        """Move a workload to another cluster, when that has free capacity."""
        request = MoveRequest(id=workload, to=to, reason=reason)
        return await self._tenant("move", request, ChangeReply)

    async def checkpointed(
        self, workload: str, step: int, uri: str, *, attempt: int | None = None
    ) -> ChangeReply:
        """Report a checkpoint, from which the next attempt resumes."""
        request = CheckpointedRequest(id=workload, step=step, uri=uri, attempt=attempt)
        return await self._tenant("checkpointed", request, ChangeReply)

    async def progressed(
        self,
        workload: str,
        step: int,
        *,
        loss: float | None = None,
        eta_s: float | None = None,
        attempt: int | None = None,
    ) -> ChangeReply:
        """Report progress. ``eta_s`` is the remaining time in seconds."""
        request = ProgressedRequest(id=workload, step=step, loss=loss, eta_s=eta_s, attempt=attempt)
        return await self._tenant("progressed", request, ChangeReply)

    async def order_job(self, verb: str, order: JobOrderRequest) -> ChangeReply:
        """Hold, release, evict or move any tenant's workload, as an operator."""
        return await self._ask(subjects.operator(f"{verb}_job"), encode(order), ChangeReply)

    async def get(self, workload: str, *, story: bool = False) -> GetReply:
        """Return one workload, with its event history if requested."""
        return await self._tenant("get", GetRequest(id=workload, story=story), GetReply)

    async def list(
        self,
        *,
        states: Sequence[WorkloadStateName] = (),
        queue: str = "",
        limit: int = 100,
        before: int = 0,
        set_name: str = "",
        labels: Mapping[str, str] | None = None,
        since_s: float = 0.0,
        all_tenants: bool = False,
        parts: bool = False,
    ) -> ListReply:
        """Return workloads, newest first.

        ``before=reply.next_before`` requests the next page. ``since_s`` selects workloads with an
        event since that time. ``all_tenants`` is for operators. ``parts`` includes the parts of
        divided jobs.
        """
        request = ListRequest(
            states=tuple(states),
            queue=queue,
            limit=limit,
            before=before,
            set=set_name,
            labels=dict(labels or {}),
            since_s=since_s,
            parts=parts,
        )
        subject = subjects.operator("list") if all_tenants else subjects.api(self.tenant, "list")
        return await self._ask(subject, encode(request), ListReply)

    async def gpus(self, gpus: int = 1, *, queue: str = "") -> GpusReply:
        """Return the GPU models, for pods of ``gpus`` GPUs; ``queue``: only its allowed models."""
        return await self._tenant("gpus", GpusRequest(gpus=gpus, queue=queue), GpusReply)

    async def wait(
        self,
        workload: str,
        *,
        until: Literal["ended", "running"] = "ended",
        limit_s: float | None = None,
    ) -> WorkloadView:
        """Return the workload after its end, successful or not, or (``running``) after its start.

        Raises TimeoutError after ``limit_s`` seconds.
        """
        task = asyncio.create_task(self._there(workload, until))
        try:
            await asyncio.wait({task}, timeout=limit_s)
        finally:
            while not task.done():  # the library can swallow a cancellation
                task.cancel()
                await asyncio.wait({task}, timeout=CANCEL_AGAIN_S)
        if task.cancelled():
            raise TimeoutError(f"{workload}: not {until} within {limit_s:g} s")
        return task.result()

    async def _there(self, workload: str, until: str) -> WorkloadView:
        there = {*ENDED, "running"} if until == "running" else set(ENDED)
        view = (await self.get(workload)).workload
        if view.state in there:
            return view
        async with aclosing(self.watch(workload=workload, since=view.sequence)) as events:
            async for seen in events:
                view = await self._as_of(workload, seen.sequence)
                if view.state in there:
                    return view
        raise UnavailableError(f"nothing more is told of {workload}")

    async def _as_of(self, workload: str, sequence: int) -> WorkloadView:
        """Return the gateway's view of the workload after an event.

        An event alone does not show whether it is applied, so the gateway is queried. The gateway
        may receive the event later than the client, and never shows an event that is not applied.
        """
        view = (await self.get(workload)).workload
        for _ in range(AS_OF_TRIES):
            if view.sequence >= sequence:
                break
            await asyncio.sleep(AS_OF_PAUSE_S)
            view = (await self.get(workload)).workload
        return view

    async def events(self, after: int | None = None, *, limit: int = 100) -> EventsReply:
        """Return a page of events of this tenant's workloads after a sequence.

        None returns no events, but the end of the log. ``after=reply.next_after`` requests the next
        page.
        """
        return await self._tenant("events", EventsRequest(after=after, limit=limit), EventsReply)

    async def logs(
        self,
        workload: str,
        *,
        follow: bool = False,
        pod: int = 0,
        previous: bool = False,
        since_s: float | None = None,
        tail: int | None = None,
    ) -> AsyncGenerator[LogsReply, None]:
        """Yield the output of a workload's pod in chunks; ``lines_of`` splits a chunk into lines.

        ``follow`` continues until the workload's end, across lost connections, service restarts and
        attempts. Request the next chunk after processing the last. ``cut`` reports that a slow
        reader missed output. ``previous`` reads the end of the previous attempt. ``since_s`` starts
        that many seconds back, ``tail`` at that many last lines. Without output, a chunk has no
        data, and ``note`` has the reason.
        """
        cursor = ""
        told = ""
        while True:
            request = LogsRequest(
                id=workload,
                pod=pod,
                previous=previous,
                after=cursor,
                tail=None if cursor else tail,
                since_s=None if cursor else since_s,
                wait_s=LOG_WAIT_S if follow else 0.0,
            )
            subject = subjects.api(self.tenant, "logs")
            try:
                reply = await self._ask(
                    subject, encode(request), LogsReply, try_s=LOG_WAIT_S + TRY_LOG_S
                )
            except UnavailableError:
                if not follow:
                    raise
                await asyncio.sleep(LOG_PAUSE_S)  # a lost connection comes back
                continue
            except RefusedError as error:
                if not (follow and error.refusal.retry):
                    raise
                await asyncio.sleep(max(LOG_PAUSE_S, error.refusal.retry_after_s))
                continue
            cursor = reply.cursor or cursor
            if reply.data or reply.note != told or reply.ended:
                told = reply.note
                yield reply
            if (reply.ended and (previous or reply.state in ENDED)) or not (follow or reply.data):
                return
            if follow and not reply.data and reply.note:
                await asyncio.sleep(LOG_PAUSE_S)

    async def why(self, workload: str | None = None) -> WhyReply:
        """Return why a workload has its placement or none; None: why pending workloads wait."""
        return await self._tenant("why", WhyRequest(id=workload), WhyReply)

    async def whatif(self, request: WhatifRequest, *, of_all: bool = False) -> WhatifReply:
        """Return the effect of one hypothetical change.

        ``of_all`` names the workloads of all tenants, if permitted. Otherwise the reply names this
        tenant's workloads and counts the others.
        """
        return await self.whatif_raw(encode(request), of_all=of_all)

    async def whatif_raw(self, body: bytes, *, of_all: bool = False) -> WhatifReply:
        """Return the effect of a request as JSON text."""
        subject = subjects.operator("whatif") if of_all else subjects.api(self.tenant, "whatif")
        return await self._ask(subject, body, WhatifReply)

    async def report(self, request: UsageReportRequest, *, of_all: bool = False) -> UsageReport:
        """What ended jobs used. ``of_all``: everybody's, for those who may; else this tenant's."""
        subject = subjects.operator("report") if of_all else subjects.api(self.tenant, "report")
        return await self._ask(subject, encode(request), UsageReport)

    async def trends(self, request: TrendsRequest, *, of_all: bool = False) -> Trends:
        """How figures went. ``of_all``: the whole fleet's, for those who may."""
        subject = subjects.operator("trends") if of_all else subjects.api(self.tenant, "trends")
        return await self._ask(subject, encode(request), Trends)

    async def profile(self, request: ProfileRequest, *, of_all: bool = False) -> Profile:
        """Return a job's resource usage and bottleneck, by attempt.

        ``of_all`` allows any tenant's job, if permitted. Otherwise the job must be this tenant's.
        """
        subject = subjects.operator("profile") if of_all else subjects.api(self.tenant, "profile")
        return await self._ask(subject, encode(request), Profile)

    async def suggest(self, request: SuggestRequest, *, of_all: bool = False) -> Suggestions:
        """Return other configurations of a job, with run time, wait and cost of each.

        ``of_all`` allows any tenant's job, if permitted. Otherwise the job must be this tenant's.
        """
        subject = subjects.operator("suggest") if of_all else subjects.api(self.tenant, "suggest")
        return await self._ask(subject, encode(request), Suggestions)

    # Operators

    async def cordon(
        self,
        cluster: str,
        node: str | None = None,
        *,
        gpu: int | None = None,
        reason: str = "",
        who: str = "",
    ) -> OperatorReply:
        """Stop new placements on a cluster, a node, or a GPU of a node."""
        request = CordonRequest(cluster=cluster, node=node, gpu=gpu, reason=reason, who=who)
        return await self._operator("cordon", request)

    async def drain(
        self,
        cluster: str,
        node: str | None = None,
        *,
        by_s: float | None = None,
        reason: str = "",
        who: str = "",
    ) -> OperatorReply:
        """Cordon, and move running workloads away by a time in seconds since 1970."""
        request = DrainRequest(cluster=cluster, node=node, by_s=by_s, reason=reason, who=who)
        return await self._operator("drain", request)

    async def cordons(self, cluster: str = "") -> CordonsReply:
        """Return the cordons, with operator, reason and workloads still running there."""
        body = encode(CordonsRequest(cluster=cluster))
        return await self._ask(subjects.operator("cordons"), body, CordonsReply)

    async def uncordon(
        self,
        cluster: str,
        node: str | None = None,
        *,
        gpu: int | None = None,
        reason: str = "",
        who: str = "",
    ) -> OperatorReply:
        """Allow placements again, also on a GPU that telemetry found faulty before."""
        request = CordonRequest(cluster=cluster, node=node, gpu=gpu, reason=reason, who=who)
        return await self._operator("uncordon", request)

    async def lost(self, cluster: str, reason: str) -> OperatorReply:
        """Declare a cluster lost: its claimed workloads are placed again."""
        return await self._operator("lost", LostRequest(cluster=cluster, reason=reason))

    async def found(self, cluster: str, reason: str) -> OperatorReply:
        """Undo ``lost``."""
        return await self._operator("found", LostRequest(cluster=cluster, reason=reason))

    async def set_queue(self, setting: QueueSetting) -> OperatorReply:
        """Create or change a queue."""
        return await self._operator("queue", setting)

    async def set_runtime(self, setting: RuntimeSetting) -> OperatorReply:
        """Create or change a runtime."""
        return await self._operator("runtime", setting)

    # Events and state

    async def watch(
        self, *, workload: str | None = None, tenant: str | None = None, since: int | None = None
    ) -> AsyncGenerator[SeenEvent, None]:
        """Yield events of this tenant's workloads (or of one) as stored, without end or gap.

        ``since`` is the sequence after which to begin: 0 for all stored events, None for new events
        only. ``tenant`` selects another tenant, or "*" for all tenants, if permitted.

        A tenant's own user may not read streams. The client then receives live events, and queries
        the gateway for earlier events and for events lost during a disconnection.
        """
        who = self.tenant if tenant is None else tenant
        if workload is not None:
            filters = subjects.aggregate(who, workload)
        else:
            filters = subjects.ALL_WORKLOADS if who == "*" else subjects.workloads_of(who)
        try:
            last = await self.last_sequence()
        except NotAllowedError:
            if who != self.tenant:
                raise
            async with aclosing(self._watch_live(workload, since)) as live:
                async for seen in live:
                    yield seen
            return
        start = last if since is None else since
        follower = Follower(self.connection, WORKLOADS, [filters], start=start + 1)
        async with aclosing(following.follow(follower, following.event_of, on=True)) as source:
            async for seen in source:
                yield seen

    async def _watch_live(
        self, workload: str | None, since: int | None
    ) -> AsyncGenerator[SeenEvent, None]:
        """Yield live events after the gateway's earlier events.

        No event is repeated or omitted, because each event names its predecessor.
        """
        feed: following.Feed[SeenEvent | None] = following.Feed()

        async def take(msg: Msg) -> None:
            if (seen := following.stored_event_of(msg)) is not None:
                feed.put(seen)

        if workload is None:
            filters = subjects.stored(subjects.workloads_of(self.tenant))
        else:
            filters = subjects.stored(subjects.aggregate(self.tenant, workload))
        conn = self.connection
        if conn.imports:
            filters = subjects.imported(filters)
        violations = len(conn.violations)
        forget = conn.when_reconnected(lambda: feed.put(None))
        past = _Past(self, workload)
        subscription = await following.settled(conn.subscribe_raw(filters, take))
        try:
            await following.settled(conn.flush())
            if new := conn.violations[violations:]:
                raise NotAllowedError(new[0])
            # Query after subscribing, so that no event is lost in between.
            async for seen in past.begin(since):
                yield seen
            async with aclosing(feed.items()) as events:
                async for item in events:
                    # None: connected again, and events may be missing.
                    missed = past.since_lost() if item is None else past.before(item)
                    async for seen in missed:
                        yield seen
                    if item is not None and past.is_new(item):
                        yield item
        finally:
            forget()
            past.close()
            if conn.connected:
                await subscription.unsubscribe()

    async def last_sequence(self) -> int:
        """Return the last sequence of the workloads' stream: a `watch` since then misses
        nothing."""
        return (await following.settled(stream_info(self.connection, WORKLOADS))).state.last_seq

    async def position(self) -> int:
        """Return the position for a ``watch`` without gaps from now on, with any rights."""
        try:
            return await self.last_sequence()
        except NotAllowedError:
            return (await self.events()).next_after

    async def decisions(self, since: int | None = None) -> AsyncGenerator[SeenDecision, None]:
        """Yield decisions as they are made, with their rankings. ``since`` as in ``watch``."""
        if since is None:
            since = await self.last_sequence()
        follower = Follower(self.connection, WORKLOADS, [subjects.ALL_DECISIONS], start=since + 1)
        async with aclosing(following.follow(follower, following.decision_of, on=True)) as source:
            async for seen in source:
                yield seen

    async def facts(
        self,
        *,
        nodes: bool = False,
        cluster: str | None = None,
        caught_up: Callable[[], None] | None = None,
    ) -> AsyncGenerator[SeenFact, None]:
        """Yield facts of clusters, and of nodes if requested, without end.

        Known facts come first. Then the client calls ``caught_up``, and yields changes.
        """
        source = following.follow(
            self._fleet(nodes, cluster), following.fact_of, on=True, caught_up=caught_up
        )
        async with aclosing(source):
            async for seen in source:
                yield seen

    async def telemetry(self, cluster: str | None = None) -> AsyncGenerator[NodeTelemetry, None]:
        """Yield the present GPU telemetry of one or all clusters. Samples may be missing."""
        subject = subjects.telemetry_of(cluster)
        async with aclosing(self._heard(subject, following.telemetry_of)) as reports:
            async for report in reports:
                yield report

    async def job_figures(
        self, *, cluster: str | None = None, every_tenant: bool = False
    ) -> AsyncGenerator[JobFigures, None]:
        """Yield GPU usage metrics of jobs, twice a minute each. Samples may be missing.

        ``every_tenant`` includes all jobs, also those that Berthmaster does not manage.
        """
        subject = subjects.job_figures_of(None if every_tenant else self.tenant, cluster)
        async with aclosing(self._heard(subject, following.figures_of)) as reports:
            async for report in reports:
                yield report

    async def quality(self, cell: str = MAIN_CELL) -> AsyncGenerator[QualityReport, None]:
        """Yield the decision quality of a cell, every few seconds, from now on."""
        subject = subjects.quality(cell)
        async with aclosing(self._heard(subject, following.quality_of)) as reports:
            async for report in reports:
                yield report

    async def _heard(
        self, subject: str, decode: Callable[[bytes], T | None]
    ) -> AsyncGenerator[T, None]:
        """Yield observations as they arrive, and skip unreadable ones."""
        feed: following.Feed[T] = following.Feed()

        def take(_: str, data: bytes) -> None:
            report = decode(data)
            if report is not None:
                feed.put(report)

        violations = len(self.connection.violations)
        subscription = await following.settled(self.connection.subscribe(subject, take))
        try:
            await following.settled(self.connection.flush())
            if new := self.connection.violations[violations:]:
                raise NotAllowedError(new[0])
            async with aclosing(feed.items()) as reports:
                async for report in reports:
                    yield report
        finally:
            if self.connection.connected:
                await subscription.unsubscribe()

    async def fleet(self, *, nodes: bool = False, cluster: str | None = None) -> Sequence[SeenFact]:
        """Return the present facts of the fleet."""
        return await self._listed(self._fleet(nodes, cluster), FLEET, following.fact_of)

    async def _listed(
        self, follower: Follower, stream: str, decode: Callable[[Recorded], T | None]
    ) -> Sequence[T]:
        """Return all messages of a stream. Raises at once for a missing or forbidden stream."""
        await following.settled(stream_info(self.connection, stream))
        violations = len(self.connection.violations)
        try:
            source = following.follow(follower, decode, on=False)
            return await following.listed(source, self.timeout_s)
        except UnavailableError as error:
            if new := self.connection.violations[violations:]:
                raise NotAllowedError(new[0]) from error
            raise

    def _fleet(self, nodes: bool, cluster: str | None) -> Follower:
        if cluster is not None:
            filters = [subjects.alive(cluster), subjects.profile(cluster), subjects.score(cluster)]
            filters += [subjects.fleet_of(cluster)] if nodes else []
            filters = filters[-1:] if nodes else filters
        elif nodes:
            filters = [subjects.ALL_FLEET]
        else:
            filters = [subjects.fleet_facts(kind) for kind in CLUSTER_FACTS]
        return Follower(self.connection, FLEET, filters, start="last-per-subject")

    async def control(self) -> Sequence[ControlFact]:
        """Return the operators' settings: queues, cordons, lost clusters."""
        follower = Follower(
            self.connection, CONTROL, [subjects.ALL_CONTROL], start="last-per-subject"
        )
        return await self._listed(follower, CONTROL, following.control_of)

    async def dead(self, limit: int = 100) -> Sequence[SeenDead]:
        """Return the newest dead letters."""
        last = (await following.settled(stream_info(self.connection, DEAD))).state.last_seq
        follower = Follower(
            self.connection, DEAD, [subjects.ALL_DEAD], start=max(1, last - limit + 1)
        )
        return await self._listed(follower, DEAD, following.dead_of)

    # Requests

    async def _tenant(self, verb: str, request: msgspec.Struct, reply: type[R]) -> R:
        return await self._ask(subjects.api(self.tenant, verb), encode(request), reply)

    async def _operator(self, verb: str, request: msgspec.Struct) -> OperatorReply:
        return await self._ask(subjects.operator(verb), encode(request), OperatorReply)

    async def _ask(
        self, subject: str, body: bytes, expected: type[R], *, try_s: float = TRY_TIMEOUT_S
    ) -> R:
        """Send one request with its retries. Raises the errors of errors.py."""
        conn = self.connection
        limit_bytes = conn.nc.max_payload
        if len(body) + ENVELOPE_BYTES > limit_bytes:
            raise TooLargeError(len(body), limit_bytes - ENVELOPE_BYTES)
        loop = asyncio.get_running_loop()
        longest_s = try_s if try_s > TRY_TIMEOUT_S else 0.0  # 0 unless the response is slow
        deadline = loop.time() + max(self.timeout_s, longest_s)
        failures = 0
        while True:
            wait_s = 0.0
            left_s = deadline - loop.time()
            try:
                message = await conn.request(subject, body, timeout_s=max(0.05, min(try_s, left_s)))
                reply = _decode(message.data)
                if not isinstance(reply, Refusal):
                    return _of_type(reply, expected)
                problem: Exception = RefusedError(reply)
                if not reply.retry:
                    raise problem
                # spread the retries of many clients
                wait_s = reply.retry_after_s * self._chance.uniform(1.0, 1.5)
            except TooLarge as error:
                raise TooLargeError(len(body), limit_bytes) from error
            except NotPermitted as error:
                raise NotAllowedError(str(error)) from error
            except (NoAnswer, NotConnected) as error:
                problem = UnavailableError(str(error))
                problem.__cause__ = error
            failures += 1
            pause_s = max(wait_s, BACKOFF.delay_s(failures, self._chance))
            if loop.time() + pause_s >= deadline:
                raise problem
            await asyncio.sleep(pause_s)


class _Past:
    """Requests to the gateway for earlier and missed events, beside live events.

    For one workload the gateway returns its event history, for all workloads pages of the tenant's
    events.
    """

    def __init__(self, berth: Client, workload: str | None) -> None:
        self._berth = berth
        self._workload = workload
        self._chains = following.Chains()
        # position in the events of all workloads; None = nothing to request yet
        self._after: int | None = None
        self._asking: asyncio.Task[None] | None = None
        self._heard: SeenEvent | None = None  # last live event, which later becomes the position

    async def begin(self, since: int | None) -> AsyncGenerator[SeenEvent, None]:
        """Yield all events since a sequence; None: none."""
        if self._workload is None and since is None:
            self._asking = asyncio.create_task(self._ask_where_now())
        elif self._workload is None:
            self._after = since
            async for seen in self._pages(since or 0):
                yield seen
        elif since is not None:
            self._chains.begin(self._workload, since)
            for seen in await self._story(self._workload):
                yield seen

    async def since_lost(self) -> AsyncGenerator[SeenEvent, None]:
        """Yield events that may have been missed during a disconnection."""
        self.close()  # a present position would hide the gap
        after = self._after
        if after is None and self._heard is not None:
            after = self._heard.sequence
        if self._workload is None and after is not None:
            async for seen in self._pages(after):
                yield seen
            return
        for name in self._chains.open():
            for seen in await self._story(name):
                yield seen

    async def before(self, seen: SeenEvent) -> AsyncGenerator[SeenEvent, None]:
        """Yield the missing events between this event and the last one of its workload."""
        for name in self._chains.missing(seen):
            for one in await self._story(name):
                yield one

    def is_new(self, seen: SeenEvent) -> bool:
        """Return whether the event is new, and mark it as seen.

        A live event may arrive over a new connection before the client notices the reconnection. So
        only an older event proves that nothing before it was missed.
        """
        if self._heard is None or seen.stored_at_s - self._heard.stored_at_s >= SURE_AFTER_S:
            if self._heard is not None:
                self._after = max(self._after or 0, self._heard.sequence)
            self._heard = seen
        return self._chains.take(seen)

    def close(self) -> None:
        """Stop all requests."""
        if self._asking is not None:
            self._asking.cancel()

    async def _ask_where_now(self) -> None:
        """Request the present position. Without a position, events missed before the first live
        event stay missing."""
        try:
            self._after = (await self._berth.events()).next_after
        except BerthError:
            pass  # no gateway answers now, but live events still arrive

    async def _pages(self, after: int) -> AsyncGenerator[SeenEvent, None]:
        """Yield the tenant's events since a sequence, without live events already seen."""
        while True:
            reply = await self._berth.events(after, limit=MOST_EVENTS)
            for one in reply.events:
                seen = SeenEvent(
                    sequence=one.sequence, stored_at_s=one.stored_at_s, event=one.event
                )
                if not one.void and self._chains.take(seen):
                    yield seen
            after = reply.next_after
            self._after = max(self._after or 0, after)
            if not reply.more:
                return

    async def _story(self, workload: str) -> Sequence[SeenEvent]:
        """Return the unseen events of a workload's history."""
        found = [
            SeenEvent(sequence=one.sequence, stored_at_s=one.stored_at_s, event=one.event)
            for one in (await self._berth.get(workload, story=True)).story
        ]
        return [seen for seen in found if self._chains.take(seen)]


def _decode(data: bytes) -> msgspec.Struct:
    try:
        reply: msgspec.Struct = API_REPLIES.decode(data)
        return reply
    except UNREADABLE as error:
        raise UnexpectedReplyError(f"cannot read the reply: {error}") from error


def _of_type(reply: msgspec.Struct, expected: type[R]) -> R:
    if not isinstance(reply, expected):
        raise UnexpectedReplyError(
            f"expected {expected.__name__}, was answered {type(reply).__name__}"
        )
    return reply

"""Request endpoints through the NATS micro-service API: discoverable, shared by replicas, bounded.

Handlers of one service run concurrently up to a bound. If the service names the client of a
request, clients are served in turn (fair_queue.py). A request beyond the bounds gets the service's
refusal at once, before its sender has given up. Every request gets an answer, even after a fault,
unless the answer cannot arrive. The server keeps the way back only for a short time after the
request, and only for the connection that brought the request.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import Final, NamedTuple

from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError, NotConnected, TooLarge
from berthmaster.lib.nats.fair_queue import NUMBER_AGAIN_S, RATE_AGAIN_S, Beyond, FairQueue, Share
from berthmaster.lib.nats.message_parser import Taker
from berthmaster.lib.nats.nats_py import Msg, Subscription
from berthmaster.lib.nats.nats_py import errors as nats_errors

# isort: split
from nats import micro  # after nats_py, which sees to what nats imports
from nats.micro.request import Request
from nats.micro.service import EndpointConfig, Service, ServiceConfig

MAX_CONCURRENT: Final = 2048
ANSWER_LIMIT_S: Final = 10.0  # the client has given up by then
LATE_S: Final = 3.0  # beyond ANSWER_LIMIT_S; the server forgets requests soon after that
WARN_EVERY_S: Final = 1.0
# Prefixes of valid reply subjects. The client names the reply subject, and the answer is sent with
# this service's permissions. A refusal sent to any other subject could be stored as an event or a
# decision.
INBOXES: Final = ("_INBOX.", "_R_.")
KNOWN_SUBJECTS: Final = 4096
REFUSALS_AT_ONCE: Final = 16  # some 0.1 ms of the server's time
REFUSALS_AT_MOST: Final = 64  # after a long pause, when the loop or its core was busy
REFUSALS_PAUSE_S: Final = 0.004
REFUSALS_PER_S: Final = REFUSALS_AT_ONCE / REFUSALS_PAUSE_S
REFUSALS_WAITING: Final = 16_384  # four seconds' worth
DRAIN_S: Final = 2.0
START_LIMIT_S: Final = 10.0  # a server kept busy by others must not prevent a start

# (subject, body) -> reply; None = not for this service
Answer = Callable[[str, bytes], Awaitable[bytes | None]]
Failed = Callable[[str, Exception], bytes]
Overloaded = Callable[[Beyond], bytes]


class Endpoint(NamedTuple):
    """A subject (wildcards allowed) and the handler."""

    subject: str
    answer: Answer
    work: int = 1  # units of turns.PORTION: about how long its steps block the event loop


class Fairness(NamedTuple):
    """How to identify the client of a request, and the limits of each client."""

    client: Callable[[str], str]  # of a request's subject
    share: Share


class _Question(NamedTuple):
    """A request, with everything needed to answer."""

    subject: str
    reply: str
    data: bytes
    received_s: float
    reconnects: int  # number of reconnections when the request arrived: identifies the connection
    back: "_Answers"


class _Answers:
    """Sends answers, except answers that the server would reject."""

    def __init__(self, conn: Connection, failed: Failed, limit_s: float) -> None:
        self._conn = conn
        self.log = conn.log
        self._limit_s = limit_s
        self._failed = failed
        self._too_late = 0
        self._astray = 0
        self._slow = 0
        self._next_line_s = 0.0

    def astray(self, to: str) -> bool:
        """Return whether the reply subject is no inbox: such a request is ignored. A message
        without a reply subject is no request. Such a message may be an answer of JetStream,
        redirected by the owner of a service's key.
        """
        if to.startswith(INBOXES):
            return False
        self._astray += 1
        self._warn("requests with a reply subject that is no inbox were ignored", self._astray)
        return True

    def slow(self, subject: str) -> None:
        """Count a request that exceeded its time limit. In a flood many do at the same time, and a
        traceback of each would delay every client.
        """
        self._slow += 1
        self._warn("requests took longer than their time limit", self._slow, subject)

    def question(self, subject: str, reply: str, data: bytes) -> _Question:
        return _Question(
            subject, reply, data, asyncio.get_running_loop().time(), self._reconnects(), self
        )

    async def send(self, question: _Question, reply: bytes) -> None:
        conn, to = self._conn, question.reply
        if self._is_late(question):
            self._count()
            return
        try:
            try:
                await conn.publish(to, reply)
            except TooLarge as error:
                conn.log.error("reply too large", subject=question.subject, why=str(error))
                await conn.publish(to, self._failed(question.subject, error))
        except BusError as error:
            conn.log.error("reply not sent", subject=question.subject, why=str(error))

    def _reconnects(self) -> int:
        return int(self._conn.nc.stats["reconnects"])

    def _is_late(self, question: _Question) -> bool:
        age_s = asyncio.get_running_loop().time() - question.received_s
        same = self._conn.connected and self._reconnects() == question.reconnects
        return not same or age_s > self._limit_s + LATE_S

    def _count(self) -> None:
        self._too_late += 1
        self._warn("answers came too late to be sent", self._too_late)

    def _warn(self, event: str, count: int, subject: str = "") -> None:
        """Log at most a line per WARN_EVERY_S, since such events come by the thousand."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._next_line_s:
            self._next_line_s = now_s + WARN_EVERY_S
            about = {"subject": subject} if subject else {}
            self._conn.log.warning(event, so_far=count, **about)


def refusals_due(since_s: float) -> int:
    """Return how many refusals to send, ``since_s`` seconds after the last ones. After a long pause
    more are sent at once. Otherwise the last of thousands would leave after the server has
    forgotten the request.
    """
    return min(max(REFUSALS_AT_ONCE, int(since_s * REFUSALS_PER_S)), REFUSALS_AT_MOST)


class _Refusals:
    """Sends refusals a few at a time. They come by the thousand, over the same connection as
    everything else. The server handles messages in order, so other answers would wait behind them
    all.
    """

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._commands: deque[bytes] = deque()
        self._reconnects = 0
        self._task: asyncio.Task[None] | None = None

    def add(self, reply: bytes, data: bytes) -> None:
        """Queue a refusal. Beyond the bound refusals are dropped: a flooding client reads no
        refusals.
        """
        reconnects = int(self._conn.nc.stats["reconnects"])
        if reconnects != self._reconnects:
            self._reconnects = reconnects
            self._commands.clear()  # the clients of the old connection cannot be reached
        if len(self._commands) >= REFUSALS_WAITING:
            return
        self._commands.append(b"PUB %b %d\r\n%b\r\n" % (reply, len(data), data))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send(), name="refusals")

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        last_s = loop.time()
        while self._commands:
            now_s = loop.time()
            few = min(len(self._commands), refusals_due(now_s - last_s))
            last_s = now_s
            await self._conn.nc.send_raw([self._commands.popleft() for _ in range(few)])
            await asyncio.sleep(REFUSALS_PAUSE_S)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()


# the last argument is called at the end of the request
Begin = Callable[[_Question, Endpoint, Callable[[], None]], None]
# maps a subject to the request's own subject and its endpoint
_Find = Callable[[str], tuple[str, Endpoint | None]]


class _Door:
    """Admits requests: clients are served in turn, and the requests in flight of each are
    bounded.
    """

    def __init__(self, begin: Begin, most: int, fairness: Fairness | None) -> None:
        self._start = begin
        self._most = most
        self._under_way = 0
        self._full = Beyond(f"at most {most} requests at once", NUMBER_AGAIN_S)
        self._turns = FairQueue(fairness.share) if fairness else None
        self.client = fairness.client if fairness else lambda _: ""

    def beyond(self, client: str, size: int) -> Beyond | None:
        """Return the limit exceeded by a further request of the client, if any."""
        turns, most = self._turns, self._most
        if turns is None:
            return self._full if self._under_way >= most else None
        # Several clients with endless requests must not block a client with few.
        if turns.in_hand >= most and turns.in_hand >= most * (2 if turns.is_new(client) else 1):
            return self._full
        return turns.beyond(client, size)

    def enter(self, client: str, question: _Question, endpoint: Endpoint) -> None:
        """Admit a request that is not ``beyond`` a limit."""
        turns = self._turns
        if turns is None:
            self._under_way += 1
            self._start(question, endpoint, self._over)
            return
        size = len(question.data)
        over = partial(turns.leave, client, size)
        turns.join(client, size, endpoint.work, partial(self._start, question, endpoint, over))

    def _over(self) -> None:
        self._under_way -= 1


class _Row:
    """Handles the requests of one connection. Each request is handled on reading, because work on
    the requests of a flood delays everything queued behind.
    """

    def __init__(self, conn: Connection, door: _Door, back: _Answers, overloaded: Overloaded):
        self._takers = conn.nc.message_parser.takers
        self._subscriptions: list[bytes] = []
        self._entry = door
        self._answers = back
        self._refusals = _Refusals(conn)
        self._refusal = cache(overloaded)  # one reply per reason, of a handful

    def taker(self, find: _Find) -> Taker:
        client = self._entry.client

        @lru_cache(maxsize=KNOWN_SUBJECTS)
        def known(subject: bytes) -> tuple[str, str, Endpoint | None]:
            question, endpoint = find(subject.decode("utf-8", "replace"))
            return question, client(question), endpoint

        return partial(self._take, known)

    def listen(self, subscription: Subscription, take: Taker) -> None:
        """Handle the subscription's messages as they are read from now on."""
        self._subscriptions.append(b"%d" % subscription._id)
        self._takers[self._subscriptions[-1]] = take

    def stop(self) -> None:
        for number in self._subscriptions:
            self._takers.pop(number, None)
        self._refusals.stop()

    def _take(
        self,
        known: Callable[[bytes], tuple[str, str, Endpoint | None]],
        subject: bytes,
        reply: bytes,
        headers: bytes,
        body: bytes,
    ) -> None:
        del headers  # requests have no relevant headers
        text, client, endpoint = known(subject)
        to = reply.decode("utf-8", "replace")
        if endpoint is None or self._answers.astray(to):
            return
        if (beyond := self._entry.beyond(client, len(body))) is not None:
            self._refusals.add(reply, self._refusal(beyond))
            return
        self._entry.enter(client, self._answers.question(text, to, body), endpoint)


class Stopping(Exception):
    """The service stops before it could answer. Another replica may answer."""


class Endpoints:
    """A running micro service."""

    def __init__(
        self,
        service: Service,
        lanes: Sequence[Subscription],
        rows: Sequence[_Row],
        tasks: set[asyncio.Task[None]],
    ) -> None:
        self._service = service
        self._lanes = lanes
        self._rows = rows
        self._tasks = tasks

    async def stop(self) -> None:
        """Accept no more requests. Finish those in flight, within a time limit."""
        stopping = [self._service.stop(), *(_drained(lane) for lane in self._lanes)]
        try:
            async with asyncio.timeout(DRAIN_S):
                # The server may be away, but then no requests arrive either.
                await asyncio.gather(*stopping, return_exceptions=True)
        except TimeoutError:
            pass
        for row in self._rows:
            row.stop()
        if not self._tasks:
            return
        _, late = await asyncio.wait(set(self._tasks), timeout=DRAIN_S)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=DRAIN_S)


async def serve(
    conn: Connection,
    name: str,
    endpoints: Mapping[str, Endpoint],
    *,
    version: str,
    description: str,
    overloaded: Overloaded,
    failed: Failed,
    max_concurrent: int = MAX_CONCURRENT,
    fairness: Fairness | None = None,
    answer_limit_s: float = ANSWER_LIMIT_S,
    lanes: Sequence[Connection] = (),
) -> Endpoints:
    """Start answering.

    ``overloaded(beyond)`` makes the reply for a request beyond the bounds. ``failed(subject,
    error)`` makes the reply when a handler raised, took too long (TimeoutError), answered too much
    (TooLarge) or was cut short (Stopping). ``lanes``: connections for requests of tenants or
    clusters, which the server distributes over lanes. Raises NotConnected.
    """
    tasks: set[asyncio.Task[None]] = set()
    loop = asyncio.get_running_loop()
    no_turn = Beyond(f"a turn within {answer_limit_s:g} s, which did not come", RATE_AGAIN_S)

    def begin(question: _Question, endpoint: Endpoint, over: Callable[[], None]) -> None:
        # the client may still receive the refusal
        if loop.time() > question.received_s + answer_limit_s:
            work = question.back.send(question, overloaded(no_turn))
        else:
            work = _work(question, endpoint, failed, answer_limit_s)
        task = asyncio.create_task(work, name=question.subject)
        tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            over()

        task.add_done_callback(ended)

    door = _Door(begin, max_concurrent, fairness)

    def row_of(by: Connection) -> _Row:
        return _Row(by, door, _Answers(by, failed, answer_limit_s), overloaded)

    row = row_of(conn)
    rows = [row]
    in_lanes: list[Subscription] = []
    try:
        service = await micro.add_service(
            conn.nc, ServiceConfig(name=name, version=version, description=description)
        )
        for endpoint_name, endpoint in endpoints.items():
            take = row.taker(partial(_by_itself, endpoint))
            config = EndpointConfig(
                name=endpoint_name,
                subject=endpoint.subject,
                handler=partial(_of_service, take),
                # replicas share the requests; another service receives all of them too
                queue_group=name,
            )
            await service.add_endpoint(config)
            if (subscription := service._endpoints[-1]._subscription) is not None:
                row.listen(subscription, take)
        kinds = subjects.kinds_in_lanes(each.subject for each in endpoints.values())
        # An operator's verb may arrive as a tenant's request. Permissions decide who may send the
        # verb.
        by_verb = {subjects.kind_and_verb(each.subject): each for each in endpoints.values()}
        for number, lane in enumerate(lanes):
            rows.append(row_of(lane))
            for kind in kinds:
                take = rows[-1].taker(partial(_by_lane, by_verb))
                subscription = await lane.subscribe_raw(
                    subjects.lane(number, kind), partial(_of_lane, take), queue=name
                )
                rows[-1].listen(subscription, take)
                in_lanes.append(subscription)
        # From here on, all requests are received.
        await asyncio.gather(*(by.flush(timeout_s=START_LIMIT_S) for by in (conn, *lanes)))
    except (BusError, nats_errors.Error, OSError) as error:
        raise NotConnected(f"cannot serve {name}: {error}") from error
    return Endpoints(service, in_lanes, rows, tasks)


async def _drained(lane: Subscription) -> None:
    await lane.drain()  # type: ignore[no-untyped-call]


def _by_itself(endpoint: Endpoint, subject: str) -> tuple[str, Endpoint]:
    return subject, endpoint


def _by_lane(
    by_verb: Mapping[tuple[str, str], Endpoint], subject: str
) -> tuple[str, Endpoint | None]:
    question = subjects.without_lanes(subject)
    return question, by_verb.get(subjects.kind_and_verb(question))


async def _of_service(take: Taker, request: Request) -> None:
    """Handle a message that came between subscribing and listening."""
    await _of_lane(take, request._msg)


async def _of_lane(take: Taker, message: Msg) -> None:
    take(message.subject.encode(), message.reply.encode(), b"", message.data)


async def _work(question: _Question, endpoint: Endpoint, failed: Failed, limit_s: float) -> None:
    answers = question.back
    limit = asyncio.timeout_at(question.received_s + limit_s)
    try:
        async with limit:
            reply = await endpoint.answer(question.subject, question.data)
    except asyncio.CancelledError:
        await answers.send(question, failed(question.subject, Stopping("the service is stopping")))
        raise
    except Exception as error:  # noqa: BLE001 # the sender gets an answer all the same
        if isinstance(error, TimeoutError) and limit.expired():
            answers.slow(question.subject)
        else:
            answers.log.error("request handler failed", error=error, subject=question.subject)
        reply = failed(question.subject, error)
    if reply is not None:
        await answers.send(question, reply)

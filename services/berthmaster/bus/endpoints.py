"""Request endpoints through the NATS micro-service API: discoverable, shared by replicas, bounded.

Handlers of one service run concurrently up to a bound, and those who ask are served in turn where
the service says who they are (turns.py); a request beyond the bounds is answered at once with what
the service says to that, instead of waiting until its sender has given up. Whatever goes
wrong, whoever asked gets an answer; except that none is sent when it cannot arrive: the server
keeps the way back for a while after the request, and only for the connection that brought it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import cache, lru_cache, partial
from typing import Final, NamedTuple

from berthmaster.bus.connection import Connection
from berthmaster.bus.errors import BusError, NotConnected, TooLarge
from berthmaster.bus.nats_py import errors as nats_errors
from berthmaster.bus.turns import NUMBER_AGAIN_S, Beyond, Share, Turns

# isort: split
from nats import micro  # after nats_py, which sees to what nats imports
from nats.micro.request import Request
from nats.micro.service import EndpointConfig, Service, ServiceConfig

MAX_CONCURRENT: Final = 2048
ANSWER_LIMIT_S: Final = 10.0  # whoever asked has given up by then
LATE_S: Final = 3.0  # beyond the limit for answers; the server forgets requests soon after that
TELL_EVERY_S: Final = 1.0
# Where an answer may go. Whoever asks names that subject, and the answer is sent with our rights:
# a refusal that is sent anywhere would stand in the log as an event or a decision.
INBOXES: Final = ("_INBOX.", "_R_.")
KNOWN_SUBJECTS: Final = 4096
REFUSALS_AT_ONCE: Final = 64  # some 0.3 ms of the server's time
REFUSALS_PAUSE_S: Final = 0.002
REFUSALS_WAITING: Final = 16_384  # half a second's
DRAIN_S: Final = 2.0
START_LIMIT_S: Final = 10.0  # a server that others keep busy is no reason not to start

Answer = Callable[[str, bytes], Awaitable[bytes | None]]  # (subject, body) -> reply; None: not us
Failed = Callable[[str, Exception], bytes]


class Endpoint(NamedTuple):
    """One subject (wildcards allowed) and who answers it."""

    subject: str
    answer: Answer
    work: int = 1  # about how long its steps keep the event loop, of turns.PORTION


class Fairness(NamedTuple):
    """Who asks, and what each of them may have."""

    asker: Callable[[str], str]  # of a request's subject
    share: Share


class _Asked(NamedTuple):
    """A request and what its answer depends on."""

    subject: str
    reply: str  # "" = published, not asked: nobody waits
    data: bytes
    came_s: float
    life: int  # which connection brought it


class _Answers:
    """Sends answers, but none that the server would only complain about."""

    def __init__(self, conn: Connection, failed: Failed, limit_s: float) -> None:
        self._conn = conn
        self._limit_s = limit_s
        self._failed = failed
        self._too_late = 0
        self._astray = 0
        self._next_line_s = 0.0

    def astray(self, to: str) -> bool:
        """Whether its answer would go where no inbox is. Such a request is not worked on."""
        if not to or to.startswith(INBOXES):
            return False
        self._astray += 1
        self._tell("requests with a reply subject that is no inbox were ignored", self._astray)
        return True

    def asked(self, subject: str, reply: str, data: bytes) -> _Asked:
        """It came just now."""
        return _Asked(subject, reply, data, asyncio.get_running_loop().time(), self._life())

    async def send(self, asked: _Asked, reply: bytes) -> None:
        """Answer it, if that can still arrive."""
        conn, to = self._conn, asked.reply
        if not to:
            return
        if self._is_late(asked):
            self._count()
            return
        try:
            try:
                await conn.publish(to, reply)
            except TooLarge as error:
                conn.log.error("an answer is too large", subject=asked.subject, why=str(error))
                await conn.publish(to, self._failed(asked.subject, error))
        except BusError as error:
            conn.log.error("an answer was not sent", subject=asked.subject, why=str(error))

    def _life(self) -> int:
        return int(self._conn.nc.stats["reconnects"])

    def _is_late(self, asked: _Asked) -> bool:
        age_s = asyncio.get_running_loop().time() - asked.came_s
        same = self._conn.connected and self._life() == asked.life
        return not same or age_s > self._limit_s + LATE_S

    def _count(self) -> None:
        self._too_late += 1
        self._tell("answers came too late to be sent", self._too_late)

    def _tell(self, event: str, count: int) -> None:
        """They come by the thousand, lines about them do not."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._next_line_s:
            self._next_line_s = now_s + TELL_EVERY_S
            self._conn.log.warning(event, so_far=count)


class _Refusals:
    """Sends them a few at a time. They come by the thousand, on the way that everything else takes
    as well: the server takes each in turn, and what others wait for would stand behind them all."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._commands: deque[bytes] = deque()
        self._life = 0
        self._task: asyncio.Task[None] | None = None

    def add(self, reply: bytes, data: bytes) -> None:
        """Beyond the bound they are left out: whoever sends so much reads none of them."""
        life = int(self._conn.nc.stats["reconnects"])
        if life != self._life:
            self._life = life
            self._commands.clear()  # nobody is there who could be told
        if not reply or len(self._commands) >= REFUSALS_WAITING:
            return
        self._commands.append(b"PUB %b %d\r\n%b\r\n" % (reply, len(data), data))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send(), name="refusals")

    async def _send(self) -> None:
        while self._commands:
            few = min(len(self._commands), REFUSALS_AT_ONCE)
            await self._conn.nc.send_raw([self._commands.popleft() for _ in range(few)])
            await asyncio.sleep(REFUSALS_PAUSE_S)

    def stop(self) -> None:
        """No more."""
        if self._task is not None:
            self._task.cancel()


Begin = Callable[[_Asked, Endpoint, Callable[[], None]], None]  # the last is called at its end


class _Fair:
    """Lets those who ask have their turns. Requests are taken as they are read, since whatever is
    done for each of a flood is done before anything that stands behind it."""

    def __init__(
        self,
        conn: Connection,
        fairness: Fairness,
        answers: _Answers,
        overloaded: Callable[[Beyond], bytes],
        full: Beyond,
        most: int,
        begin: Begin,
    ) -> None:
        self._takers = conn.nc.reading.takers
        self._mine: list[bytes] = []
        self._turns = Turns(fairness.share)
        self._answers = answers
        self._full = full
        self._most = most
        self._begin = begin
        self._refusals = _Refusals(conn)
        self._refusal = cache(overloaded)  # of a handful of reasons

        @lru_cache(maxsize=KNOWN_SUBJECTS)
        def known(subject: bytes) -> tuple[str, str]:
            text = subject.decode("utf-8", "replace")
            return text, fairness.asker(text)

        self._known = known

    def listen(self, number: int, endpoint: Endpoint) -> None:
        """To a subscription's messages."""
        self._mine.append(b"%d" % number)
        self._takers[self._mine[-1]] = partial(self._take, endpoint)

    def stop(self) -> None:
        """Listen no more."""
        for number in self._mine:
            self._takers.pop(number, None)
        self._refusals.stop()

    def _take(self, endpoint: Endpoint, subject: bytes, reply: bytes, body: bytes) -> None:
        text, asker = self._known(subject)
        to = reply.decode("utf-8", "replace")
        if self._answers.astray(to):
            return
        size = len(body)
        if (beyond := self._beyond(asker, size)) is not None:
            self._refusals.add(reply, self._refusal(beyond))
            return
        asked = self._answers.asked(text, to, body)
        over = partial(self._turns.leave, asker, size)
        begin = partial(self._begin, asked, endpoint, over)
        self._turns.join(asker, size, endpoint.work, begin)

    def _beyond(self, asker: str, size: int) -> Beyond | None:
        turns, most = self._turns, self._most
        # Several who ask without end must not keep out one who hardly asks.
        if turns.in_hand >= most and turns.in_hand >= most * (2 if turns.is_new(asker) else 1):
            return self._full
        return turns.beyond(asker, size)


class Stopping(Exception):
    """The service ends before it could answer; another replica may."""


class Endpoints:
    """A running micro service."""

    def __init__(
        self, service: Service, tasks: set[asyncio.Task[None]], fair: "_Fair | None"
    ) -> None:
        self._service = service
        self._tasks = tasks
        self._fair = fair

    async def stop(self) -> None:
        """Take no more requests; finish those in hand, within a time limit."""
        try:
            async with asyncio.timeout(DRAIN_S):
                await self._service.stop()
        except (TimeoutError, nats_errors.Error, OSError):
            pass  # the server is away, so nothing more comes from it either
        if self._fair is not None:
            self._fair.stop()
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
    overloaded: Callable[[Beyond], bytes],
    failed: Failed,
    max_concurrent: int = MAX_CONCURRENT,
    fairness: Fairness | None = None,
    answer_limit_s: float = ANSWER_LIMIT_S,
) -> Endpoints:
    """Start answering. ``overloaded(beyond)`` and ``failed(subject, error)`` make the replies for
    requests beyond the bounds and for handlers that raised, took too long (TimeoutError), answered
    too much (TooLarge) or were cut short (Stopping). Raises NotConnected."""
    tasks: set[asyncio.Task[None]] = set()
    answers = _Answers(conn, failed, answer_limit_s)
    full = Beyond(f"at most {max_concurrent} requests at once", NUMBER_AGAIN_S)

    def begin(asked: _Asked, endpoint: Endpoint, over: Callable[[], None]) -> None:
        work = _work(conn, asked, endpoint, answers, failed, answer_limit_s)
        task = asyncio.create_task(work, name=asked.subject)
        tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            over()

        task.add_done_callback(ended)

    def handler(endpoint: Endpoint) -> Callable[[Request], Awaitable[None]]:
        async def accept(request: Request) -> None:
            reply = request._msg.reply
            if answers.astray(reply):
                return
            asked = answers.asked(request.subject, reply, request.data)
            if len(tasks) < max_concurrent:
                begin(asked, endpoint, lambda: None)
            else:
                await answers.send(asked, overloaded(full))

        return accept

    fair = None
    if fairness is not None:
        fair = _Fair(conn, fairness, answers, overloaded, full, max_concurrent, begin)

    try:
        service = await micro.add_service(
            conn.nc, ServiceConfig(name=name, version=version, description=description)
        )
        for endpoint_name, endpoint in endpoints.items():
            await service.add_endpoint(
                EndpointConfig(
                    name=endpoint_name,
                    subject=endpoint.subject,
                    handler=handler(endpoint),
                    queue_group=name,  # replicas share; another service hears all of it too
                )
            )
            if fair is not None and (heard := service._endpoints[-1]._subscription):
                fair.listen(heard._id, endpoint)
        await conn.flush(timeout_s=START_LIMIT_S)  # from here on, whoever asks is heard
    except (BusError, nats_errors.Error, OSError) as error:
        raise NotConnected(f"cannot serve {name}: {error}") from error
    return Endpoints(service, tasks, fair)


async def _work(
    conn: Connection,
    asked: _Asked,
    endpoint: Endpoint,
    answers: _Answers,
    failed: Failed,
    limit_s: float,
) -> None:
    try:
        async with asyncio.timeout(limit_s):
            reply = await endpoint.answer(asked.subject, asked.data)
    except asyncio.CancelledError:
        await answers.send(asked, failed(asked.subject, Stopping("the service is stopping")))
        raise
    except Exception as error:  # noqa: BLE001 # the sender gets an answer all the same
        conn.log.error("request handler failed", error=error, subject=asked.subject)
        reply = failed(asked.subject, error)
    if reply is not None:
        await answers.send(asked, reply)

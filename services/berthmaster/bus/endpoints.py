"""Request endpoints through the NATS micro-service API: discoverable, shared by replicas, bounded.

Handlers of one service run concurrently up to a bound, and those who ask are served in turn where
the service says who they are (turns.py); a request beyond the bounds is answered at once with what
the service says to that, instead of waiting until its sender has given up. Whatever goes
wrong, whoever asked gets an answer; except that none is sent when it cannot arrive: the server
keeps the way back for a while after the request, and only for the connection that brought it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from berthmaster.bus.connection import Connection
from berthmaster.bus.errors import BusError, NotConnected, TooLarge
from berthmaster.bus.nats_py import errors as nats_errors
from berthmaster.bus.turns import Share, Turns

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

    request: Request
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

    def astray(self, request: Request) -> bool:
        """Whether its answer would go where no inbox is. Such a request is not worked on."""
        to = request._msg.reply
        if not to or to.startswith(INBOXES):
            return False
        self._astray += 1
        self._tell("requests with a reply subject that is no inbox were ignored", self._astray)
        return True

    def asked(self, request: Request) -> _Asked:
        """It came just now."""
        return _Asked(request, asyncio.get_running_loop().time(), self._life())

    async def send(self, asked: _Asked, reply: bytes) -> None:
        """Answer it, if that can still arrive."""
        conn, request = self._conn, asked.request
        to = request._msg.reply
        if not to:
            return  # published, not asked: nobody waits
        if self._is_late(asked):
            self._count()
            return
        try:
            try:
                await conn.publish(to, reply)
            except TooLarge as error:
                conn.log.error("an answer is too large", subject=request.subject, why=str(error))
                await conn.publish(to, self._failed(request.subject, error))
        except BusError as error:
            conn.log.error("an answer was not sent", subject=request.subject, why=str(error))

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


class Stopping(Exception):
    """The service ends before it could answer; another replica may."""


class Endpoints:
    """A running micro service."""

    def __init__(self, service: Service, tasks: set[asyncio.Task[None]]) -> None:
        self._service = service
        self._tasks = tasks

    async def stop(self) -> None:
        """Take no more requests; finish those in hand, within a time limit."""
        try:
            async with asyncio.timeout(DRAIN_S):
                await self._service.stop()
        except (TimeoutError, nats_errors.Error, OSError):
            pass  # the server is away, so nothing more comes from it either
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
    overloaded: Callable[[str], bytes],
    failed: Failed,
    max_concurrent: int = MAX_CONCURRENT,
    fairness: Fairness | None = None,
    answer_limit_s: float = ANSWER_LIMIT_S,
) -> Endpoints:
    """Start answering. ``overloaded(why)`` and ``failed(subject, error)`` make the replies for
    requests beyond the bounds and for handlers that raised, took too long (TimeoutError), answered
    too much (TooLarge) or were cut short (Stopping). Raises NotConnected."""
    tasks: set[asyncio.Task[None]] = set()
    answers = _Answers(conn, failed, answer_limit_s)
    turns = Turns(fairness.share) if fairness is not None else None
    full = f"at most {max_concurrent} requests at once"

    def begin(asked: _Asked, endpoint: Endpoint, over: Callable[[], None]) -> None:
        work = _work(conn, asked, endpoint, answers, failed, answer_limit_s)
        task = asyncio.create_task(work, name=asked.request.subject)
        tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            over()

        task.add_done_callback(ended)

    def queue(turns: Turns, asker: str, asked: _Asked, endpoint: Endpoint) -> str:
        size = len(asked.request.data)

        def start() -> None:
            begin(asked, endpoint, lambda: turns.leave(asker, size))

        return turns.join(asker, size, endpoint.work, start)

    def handler(endpoint: Endpoint) -> Callable[[Request], Awaitable[None]]:
        async def accept(request: Request) -> None:
            if answers.astray(request):
                return
            asked = answers.asked(request)
            why = ""
            if turns is not None and fairness is not None:
                asker = fairness.asker(request.subject)
                # Several who ask without end must not keep out one who hardly asks.
                room = max_concurrent * (2 if turns.is_new(asker) else 1)
                is_full = len(tasks) + turns.waiting >= room
                why = full if is_full else queue(turns, asker, asked, endpoint)
            elif len(tasks) >= max_concurrent:
                why = full
            else:
                begin(asked, endpoint, lambda: None)
            if why:
                await answers.send(asked, overloaded(why))

        return accept

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
        await conn.flush(timeout_s=START_LIMIT_S)  # from here on, whoever asks is heard
    except (BusError, nats_errors.Error, OSError) as error:
        raise NotConnected(f"cannot serve {name}: {error}") from error
    return Endpoints(service, tasks)


async def _work(
    conn: Connection,
    asked: _Asked,
    endpoint: Endpoint,
    answers: _Answers,
    failed: Failed,
    limit_s: float,
) -> None:
    request = asked.request
    try:
        async with asyncio.timeout(limit_s):
            reply = await endpoint.answer(request.subject, request.data)
    except asyncio.CancelledError:
        await answers.send(asked, failed(request.subject, Stopping("the service is stopping")))
        raise
    except Exception as error:  # noqa: BLE001 # the sender gets an answer all the same
        conn.log.error("request handler failed", error=error, subject=request.subject)
        reply = failed(request.subject, error)
    if reply is not None:
        await answers.send(asked, reply)

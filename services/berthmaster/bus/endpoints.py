"""Request endpoints through the NATS micro-service API: discoverable, shared by replicas, bounded.

Handlers of one service run concurrently up to a bound; a request beyond it is answered at once
with what the service says to that, instead of waiting until its sender has given up. Whatever goes
wrong, whoever asked gets an answer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

import nats.errors
import nats.micro
from nats.micro.request import Request
from nats.micro.service import EndpointConfig, Service, ServiceConfig

from berthmaster.bus.connection import Connection
from berthmaster.bus.errors import BusError, NotConnected, TooLarge

MAX_CONCURRENT: Final = 2048
ANSWER_LIMIT_S: Final = 10.0  # whoever asked has given up by then
DRAIN_S: Final = 2.0

Answer = Callable[[str, bytes], Awaitable[bytes | None]]  # (subject, body) -> reply; None: not us
Failed = Callable[[str, Exception], bytes]


class Endpoint(NamedTuple):
    """One subject (wildcards allowed) and who answers it."""

    subject: str
    answer: Answer


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
        except (TimeoutError, nats.errors.Error, OSError):
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
    answer_limit_s: float = ANSWER_LIMIT_S,
) -> Endpoints:
    """Start answering. ``overloaded(subject)`` and ``failed(subject, error)`` make the replies for
    requests beyond the bound and for handlers that raised, took too long (TimeoutError), answered
    too much (TooLarge) or were cut short (Stopping). Raises NotConnected."""
    tasks: set[asyncio.Task[None]] = set()

    def handler(endpoint: Endpoint) -> Callable[[Request], Awaitable[None]]:
        async def accept(request: Request) -> None:
            if len(tasks) >= max_concurrent:
                await _respond(conn, request, overloaded(request.subject), failed)
                return
            task = asyncio.create_task(
                _work(conn, request, endpoint, failed, answer_limit_s), name=request.subject
            )
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        return accept

    try:
        service = await nats.micro.add_service(
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
        await conn.flush()  # from here on, whoever asks is heard
    except (BusError, nats.errors.Error, OSError) as error:
        raise NotConnected(f"cannot serve {name}: {error}") from error
    return Endpoints(service, tasks)


async def _work(
    conn: Connection, request: Request, endpoint: Endpoint, failed: Failed, limit_s: float
) -> None:
    try:
        async with asyncio.timeout(limit_s):
            reply = await endpoint.answer(request.subject, request.data)
    except asyncio.CancelledError:
        cut = Stopping("the service is stopping")
        await _respond(conn, request, failed(request.subject, cut), failed)
        raise
    except Exception as error:  # noqa: BLE001 # the sender gets an answer all the same
        conn.log.error("request handler failed", error=error, subject=request.subject)
        reply = failed(request.subject, error)
    if reply is not None:
        await _respond(conn, request, reply, failed)


async def _respond(conn: Connection, request: Request, reply: bytes, failed: Failed) -> None:
    to = request._msg.reply
    if not to:
        return  # published, not asked: nobody waits
    try:
        try:
            await conn.publish(to, reply)
        except TooLarge as error:
            conn.log.error("an answer is too large", subject=request.subject, why=str(error))
            await conn.publish(to, failed(request.subject, error))
    except BusError as error:
        conn.log.error("an answer was not sent", subject=request.subject, why=str(error))

"""Request endpoints through the NATS micro-service API: discoverable, shared by replicas, bounded.

Handlers of one endpoint run concurrently up to a bound; a request beyond it is answered at once
with what the service says to that, instead of waiting until its sender has given up.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

import nats.micro
from nats.micro.request import Request
from nats.micro.service import EndpointConfig, Service, ServiceConfig

from berthmaster.bus.connection import Connection

MAX_CONCURRENT: Final = 2048
DRAIN_S: Final = 2.0

Answer = Callable[[str, bytes], Awaitable[bytes]]  # (subject, body) -> reply


class Endpoint(NamedTuple):
    """One subject (wildcards allowed) and who answers it."""

    subject: str
    answer: Answer


class Endpoints:
    """A running micro service."""

    def __init__(self, service: Service, tasks: set[asyncio.Task[None]]) -> None:
        self._service = service
        self._tasks = tasks

    async def stop(self) -> None:
        """Take no more requests; finish those in hand, within a time limit."""
        await self._service.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=DRAIN_S)


async def serve(
    conn: Connection,
    name: str,
    endpoints: Mapping[str, Endpoint],
    *,
    version: str,
    description: str,
    overloaded: Callable[[str], bytes],
    failed: Callable[[str, Exception], bytes],
    max_concurrent: int = MAX_CONCURRENT,
) -> Endpoints:
    """Start answering. ``overloaded(subject)`` and ``failed(subject, error)`` make the replies for
    requests beyond the bound and for handlers that raised."""
    service = await nats.micro.add_service(
        conn.nc, ServiceConfig(name=name, version=version, description=description)
    )
    tasks: set[asyncio.Task[None]] = set()

    def handler(endpoint: Endpoint) -> Callable[[Request], Awaitable[None]]:
        async def work(request: Request) -> None:
            try:
                reply = await endpoint.answer(request.subject, request.data)
            except Exception as error:  # noqa: BLE001 # the sender gets an answer all the same
                conn.log.error("request handler failed", error=error, subject=request.subject)
                reply = failed(request.subject, error)
            await request.respond(reply)

        async def accept(request: Request) -> None:
            if len(tasks) >= max_concurrent:
                await request.respond(overloaded(request.subject))
                return
            task = asyncio.create_task(work(request))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        return accept

    for endpoint_name, endpoint in endpoints.items():
        await service.add_endpoint(
            EndpointConfig(name=endpoint_name, subject=endpoint.subject, handler=handler(endpoint))
        )
    return Endpoints(service, tasks)

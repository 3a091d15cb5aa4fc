"""Runs services' shells inside a test, on a real server, and asks them as a client would."""

import asyncio
import functools
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, ParamSpec, TypeVar

from berthmaster.control.gateway.service import main as gateway_main
from berthmaster.control.gateway.settings import GatewaySettings
from berthmaster.lib.event_log.workload_log import EventLog
from berthmaster.lib.lifecycle.instructions import Stored
from berthmaster.lib.messages.api import ApiReply
from berthmaster.lib.messages.families import API_REPLIES, encode
from berthmaster.lib.messages.workload import WorkloadEvent
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.message_subjects import event_subject
from berthmaster.lib.nats.streams import ensure_streams
from berthmaster.lib.runtime.health import Health
from berthmaster.lib.runtime.log import Log
from berthmaster.lib.runtime.metrics import Metrics
from berthmaster.lib.runtime.service import Context
from berthmaster.lib.runtime.settings import CommonSettings
from tests.support.patience import ANSWER_S, hang_s, patient, until

S = TypeVar("S", bound=CommonSettings)
P = ParamSpec("P")


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test in an event loop of its own."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@asynccontextmanager
async def running(
    name: str, settings: S, main: Callable[[Context[S]], Awaitable[None]]
) -> AsyncIterator[Context[S]]:
    """A service that is ready, until the block ends; then it must stop by itself."""
    log = Log(name, level="warning", stream=io.BytesIO())
    ctx = Context(name, settings, log=log, metrics=Metrics(name), health=Health())
    task = asyncio.ensure_future(main(ctx))
    try:
        await until(lambda: task.done() or ctx.health.readiness()[0])
        if task.done():
            await task
        yield ctx
    finally:
        ctx.stopping.set()
        await asyncio.wait_for(task, hang_s())
        for left in ctx.tasks:
            left.cancel()
        await asyncio.gather(*ctx.tasks, return_exceptions=True)
    assert ctx.died is None, ctx.died


@asynccontextmanager
async def gateway(url: str, **settings: Any) -> AsyncIterator[Context[GatewaySettings]]:
    async with running(
        "gateway",
        patient(GatewaySettings, "gateway", nats_url=url, http_port=-1, **settings),
        gateway_main,
    ) as ctx:
        yield ctx


@asynccontextmanager
async def client(url: str, *, streams: bool = True) -> AsyncIterator[Connection]:
    settings = CommonSettings(nats_url=url)
    log = Log("client", level="error", stream=io.BytesIO())
    async with await Connection.open(settings, "client", log, timeout_s=ANSWER_S) as conn:
        if streams:
            await ensure_streams(conn)
        yield conn


async def ask(
    conn: Connection, verb: str, body: object, *, tenant: str = "ann", timeout_s: float = ANSWER_S
) -> ApiReply:
    data = body if isinstance(body, bytes) else encode(body)  # type: ignore[arg-type]
    reply = await conn.request(subjects.api(tenant, verb), data, timeout_s=timeout_s)
    answer: ApiReply = API_REPLIES.decode(reply.data)
    return answer


async def order(conn: Connection, verb: str, body: object) -> ApiReply:
    data = body if isinstance(body, bytes) else encode(body)  # type: ignore[arg-type]
    reply = await conn.request(subjects.operator(verb), data, timeout_s=ANSWER_S)
    answer: ApiReply = API_REPLIES.decode(reply.data)
    return answer


async def store(conn: Connection, event: WorkloadEvent) -> int:
    """Write an event as another service would, guarded; its sequence."""
    outcome = await EventLog(conn).append(event)
    assert isinstance(outcome, Stored), (event_subject(event), outcome)
    return outcome.sequence

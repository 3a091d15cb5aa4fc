"""How a service joins the bus: a connection, then the streams that it lives on.

Either may be long in coming, and the service may be told to stop before: then there is no
connection and nothing left to do. Services never make streams; only the user "setup" may.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from berthmaster.bus.connection import SERVER_CLOCK, Connection
from berthmaster.bus.errors import ApiError, BusError
from berthmaster.bus.streams import stream_info
from berthmaster.runtime.errors import CannotStart
from berthmaster.runtime.periodic import beats, stopped_within, unless_stopped
from berthmaster.runtime.service import Context
from berthmaster.runtime.settings import CommonSettings

NO_STREAM: Final = 10059
LOOK_AGAIN_S: Final = 0.2
LOOK_AGAIN_MOST_S: Final = 5.0
STORING_S: Final = 0.5  # between two looks at whether our writes are stored
S = TypeVar("S", bound=CommonSettings)


@asynccontextmanager
async def joined(
    ctx: Context[S], *streams: str, clock_subject: str = SERVER_CLOCK
) -> AsyncIterator[Connection | None]:
    """The service's connection once these streams are there; None if told to stop before.

    Readiness shows what is waited for, and for ever after permission violations and writes that
    are not stored. Raises CannotStart when the server will not have this user, or its seed is none.
    """
    ctx.health.ready("bus", False, "no connection to NATS yet")
    opening = Connection.open(ctx.settings, ctx.name, ctx.log, clock_subject=clock_subject)
    try:
        conn = await unless_stopped(opening, ctx.stopping)
    except BusError as error:
        raise CannotStart(str(error)) from error
    if conn is None:
        yield None
        return
    async with conn:
        conn.on_violation = lambda what: ctx.health.ready("permissions", False, what)
        ctx.health.ready("streams", False, "the streams have not been looked at yet")
        ctx.health.ready("bus", True)
        ctx.spawn(_tell_storing(ctx, conn), name="storing")
        yield conn if await _streams_are_there(ctx, conn, streams) else None


@asynccontextmanager
async def hearing(ctx: Context[S], conn: Connection) -> AsyncIterator[Connection | None]:
    """A second connection, for what others send whenever they like; None if told to stop before.
    However much that is, it stands in a row of its own: what the service itself waits for, such as
    the answer to a write, comes by the other one. Raises CannotStart."""
    ctx.health.ready("bus", False, "no connection yet to be asked by")
    opening = Connection.open(ctx.settings, conn.name, ctx.log, clock_subject="")
    try:
        heard = await unless_stopped(opening, ctx.stopping)
    except BusError as error:
        raise CannotStart(str(error)) from error
    if heard is None:
        yield None
        return
    async with heard:
        heard.on_violation = conn.on_violation
        ctx.health.ready("bus", True)
        yield heard


async def _tell_storing(ctx: Context[S], conn: Connection) -> None:
    """Not ready while the bus stores nothing of what this service writes."""
    failing = ctx.metrics.gauge("bus_not_storing", "1 while the bus stores no write of ours")
    failures = ctx.metrics.counter("bus_write_failures", "Writes that the bus did not store")
    told = 0
    async for _ in beats(STORING_S, ctx.stopping):
        trouble = conn.storing.trouble()
        ctx.health.ready("storing", not trouble, trouble)
        failing.set(bool(trouble))
        failures.inc(conn.storing.failures - told)
        told = conn.storing.failures


async def _streams_are_there(ctx: Context[S], conn: Connection, streams: tuple[str, ...]) -> bool:
    """Wait for whoever makes the streams; False when told to stop before."""
    told = False
    pause_s = LOOK_AGAIN_S
    while not ctx.stopping.is_set():
        try:
            for stream in streams:
                await stream_info(conn, stream)
            ctx.health.ready("streams", True)
            return True
        except BusError as error:
            why = str(error)
            if isinstance(error, ApiError) and error.code == NO_STREAM:
                why = "the streams have not been made"
            else:
                pause_s = min(2 * pause_s, LOOK_AGAIN_MOST_S)  # every denied look is a log line
            ctx.health.ready("streams", False, why)
            if not told:
                ctx.log.warning("waiting for the streams", why=why)
                told = True
        await stopped_within(pause_s, ctx.stopping)
    return False

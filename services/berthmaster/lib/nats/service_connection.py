"""The connections of a service: its own, once its streams exist, and those that take requests.

Both may take long, and the service may have to stop first. Then there is no connection. Services
never make streams; only the user "setup" may.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, TypeVar

from berthmaster.lib.nats.connection import SERVER_CLOCK, Connection
from berthmaster.lib.nats.errors import ApiError, BusError
from berthmaster.lib.nats.message_parser import PAUSE_S
from berthmaster.lib.nats.streams import NO_STREAM, stream_info
from berthmaster.lib.nats.subjects import LANES
from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.log import LogLike
from berthmaster.lib.runtime.periodic import beats, stopped_within, unless_stopped
from berthmaster.lib.runtime.service import Context
from berthmaster.lib.runtime.settings import CommonSettings

LOOK_AGAIN_S: Final = 0.2
LOOK_AGAIN_MOST_S: Final = 5.0
STORING_S: Final = 0.5  # between two looks at whether our writes are stored
S = TypeVar("S", bound=CommonSettings)


class RequestConnections(NamedTuple):
    """What others send whenever they like. However much that is, it stands in rows of its own: what
    the service itself waits for, such as the answer to a write, does not come by them."""

    general: Connection
    observed: Connection  # readings, figures and pieces of logs: what comes without being answered
    lanes: tuple[Connection, ...]  # of those who ask, each always by the same one


@asynccontextmanager
async def service_connection(
    ctx: Context[S], *streams: str, clock_subject: str = SERVER_CLOCK, round_s: float = 0.0
) -> AsyncIterator[Connection | None]:
    """The service's connection once these streams are there; None if told to stop before.

    ``round_s``: how often what the server sends is read; 0 = as it comes (see message_parser.py).

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
        conn.nc.message_parser.round_s = round_s
        ctx.spawn(_tell_storing(ctx, conn), name="storing")
        there = await _streams_are_there(ctx, conn, streams)
        if there:
            _in_order_soon(ctx, "streams")
        yield conn if there else None


def _in_order_soon(ctx: Context[S], part: str) -> None:
    """In the loop's next turn: the service has then named what else it waits for. Between its join
    and that it would be ready for a moment, and whoever asks then sends it work."""
    asyncio.get_running_loop().call_soon(ctx.health.ready, part, True)


class _Quiet:
    """The log of a lane: the service's own connection tells that the server is away."""

    def __init__(self, log: LogLike) -> None:
        self.error = log.error

    def info(self, event: str, /, **fields: object) -> None:
        """One is enough."""

    def warning(self, event: str, /, **fields: object) -> None:
        """One is enough."""


@asynccontextmanager
async def request_connections(
    ctx: Context[S], conn: Connection, *, lanes: int = LANES
) -> AsyncIterator[RequestConnections | None]:
    """More connections, for what others send; None if told to stop before. ``lanes``: 0 where what
    is asked comes by none. Raises CannotStart."""
    ctx.health.ready("bus", False, "no connection yet to be asked by")
    opened: list[Connection] = []
    try:
        opening = _open(ctx, conn, lanes, opened)
        heard: RequestConnections | None = None
        try:
            heard = await unless_stopped(opening, ctx.stopping)
        except* BusError as errors:
            raise CannotStart(str(errors.exceptions[0])) from errors
        if heard is not None:
            _in_order_soon(ctx, "bus")
        yield heard
    finally:
        await asyncio.gather(*(each.close() for each in opened))


async def _open(
    ctx: Context[S], conn: Connection, lanes: int, opened: list[Connection]
) -> RequestConnections:
    """``opened``: those that stand, also when one of them does not come to stand."""
    quiet = _Quiet(ctx.log)

    async def one(log: LogLike, rest_s: float = PAUSE_S) -> Connection:
        made = await Connection.open(ctx.settings, conn.name, log, clock_subject="")
        opened.append(made)
        made.on_violation = conn.on_violation
        made.nc.message_parser.rest_s = rest_s
        return made

    async with asyncio.TaskGroup() as group:
        general = group.create_task(one(conn.log))
        # What is dropped as it is read is read without rests: 64 MiB behind, the server hangs up.
        observed = group.create_task(one(quiet, rest_s=0.0))
        in_lanes = [group.create_task(one(quiet)) for _ in range(lanes)]
    return RequestConnections(
        general.result(), observed.result(), tuple(lane.result() for lane in in_lanes)
    )


async def _tell_storing(ctx: Context[S], conn: Connection) -> None:
    """Not ready while the bus stores nothing of what this service writes."""
    failing = ctx.metrics.gauge("bus_not_storing", "1 while the bus stores no write of ours")
    failures = ctx.metrics.counter("bus_write_failures", "Writes that the bus did not store")
    told = 0
    async for _ in beats(STORING_S, ctx.stopping):
        trouble = conn.write_health.trouble()
        ctx.health.ready("storing", not trouble, trouble)
        failing.set(bool(trouble))
        failures.inc(conn.write_health.failures - told)
        told = conn.write_health.failures


async def _streams_are_there(ctx: Context[S], conn: Connection, streams: tuple[str, ...]) -> bool:
    """Wait for whoever makes the streams; False when told to stop before."""
    told = False
    pause_s = LOOK_AGAIN_S
    while not ctx.stopping.is_set():
        try:
            for stream in streams:
                await stream_info(conn, stream)
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

"""How a service joins the bus: a connection, then the streams that it lives on.

Either may be long in coming, and the service may be told to stop before: then there is no
connection and nothing left to do. Services never make streams; only the user "setup" may.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import ApiError, BusError
from berthmaster.lib.nats.reading import GENTLE_REST_S
from berthmaster.lib.nats.service_connection import S, connected, ready_soon
from berthmaster.lib.nats.streams import NO_STREAM, stream_info
from berthmaster.lib.nats.subjects import LANES
from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.log import LogLike
from berthmaster.lib.runtime.periodic import stopped_within, unless_stopped
from berthmaster.lib.runtime.service import Context

LOOK_AGAIN_S: Final = 0.2
LOOK_AGAIN_MOST_S: Final = 5.0


class Heard(NamedTuple):
    """What others send whenever they like. However much that is, it stands in rows of its own: what
    the service itself waits for, such as the answer to a write, does not come by them."""

    general: Connection
    observed: Connection  # readings, figures and pieces of logs: what comes without being answered
    lanes: tuple[Connection, ...]  # of those who ask, each always by the same one


@asynccontextmanager
async def joined(
    ctx: Context[S], *streams: str, round_s: float = 0.0
) -> AsyncIterator[Connection | None]:
    """The service's connection once these streams are there; None if told to stop before.

    ``round_s``: how often what the server sends is read; 0 = as it comes (see reading.py).

    Readiness shows what is waited for. Raises CannotStart as ``connected`` does.
    """
    ctx.health.ready("streams", False, "the streams have not been looked at yet")
    async with connected(ctx, round_s=round_s) as conn:
        there = conn is not None and await _streams_are_there(ctx, conn, streams)
        if there:
            ready_soon(ctx, "streams")
        yield conn if there else None


class _Quiet:
    """The log of a lane: the service's own connection tells that the server is away."""

    def __init__(self, log: LogLike) -> None:
        self.error = log.error

    def info(self, event: str, /, **fields: object) -> None:
        """One is enough."""

    def warning(self, event: str, /, **fields: object) -> None:
        """One is enough."""


@asynccontextmanager
async def hearing(
    ctx: Context[S], conn: Connection, *, lanes: int = LANES
) -> AsyncIterator[Heard | None]:
    """More connections, for what others send; None if told to stop before. ``lanes``: 0 where what
    is asked comes by none. Raises CannotStart."""
    ctx.health.ready("bus", False, "no connection yet to be asked by")
    opened: list[Connection] = []
    try:
        opening = _open(ctx, conn, lanes, opened)
        heard: Heard | None = None
        try:
            heard = await unless_stopped(opening, ctx.stopping)
        except* BusError as errors:
            raise CannotStart(str(errors.exceptions[0])) from errors
        if heard is not None:
            ready_soon(ctx, "bus")
        yield heard
    finally:
        await asyncio.gather(*(each.close() for each in opened))


async def _open(ctx: Context[S], conn: Connection, lanes: int, opened: list[Connection]) -> Heard:
    """``opened``: those that stand, also when one of them does not come to stand."""
    quiet = _Quiet(ctx.log)

    async def one(log: LogLike, rest_s: float = GENTLE_REST_S) -> Connection:
        made = await Connection.open(ctx.settings, conn.name, log, clock_subject="")
        opened.append(made)
        made.on_violation = conn.on_violation
        made.nc.reading.rest_s = rest_s
        return made

    async with asyncio.TaskGroup() as group:
        general = group.create_task(one(conn.log))
        # What is dropped as it is read is read without rests: 64 MiB behind, the server hangs up.
        observed = group.create_task(one(quiet, rest_s=0.0))
        in_lanes = [group.create_task(one(quiet)) for _ in range(lanes)]
    return Heard(general.result(), observed.result(), tuple(lane.result() for lane in in_lanes))


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

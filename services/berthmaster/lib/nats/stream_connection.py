"""The connections of a service: the main connection, once the streams exist, and several for
requests.

Both may take long, and the service may have to stop first. Then no connection is returned. Services
never create streams. Only the user "setup" may.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import ApiError, BusError
from berthmaster.lib.nats.message_parser import PAUSE_S
from berthmaster.lib.nats.service_connection import S, connected, ready_soon
from berthmaster.lib.nats.streams import NO_STREAM, stream_info
from berthmaster.lib.nats.subjects import LANES
from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.log import LogLike
from berthmaster.lib.runtime.periodic import stopped_within, unless_stopped
from berthmaster.lib.runtime.service import Context

FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 5.0


class RequestConnections(NamedTuple):
    """The connections for messages of other parties. Answers to the service, such as
    acknowledgements of writes, never wait behind these messages.
    """

    general: Connection
    observed: Connection  # samples, usage metrics and log chunks: messages without an answer
    lanes: tuple[Connection, ...]  # one per lane; a client always uses the same lane


@asynccontextmanager
async def stream_connection(
    ctx: Context[S], *streams: str, round_s: float = 0.0
) -> AsyncIterator[Connection | None]:
    """Yield the service's connection once these streams exist; None if the service stops before.

    ``round_s``: seconds between two reads of the server's messages; 0 = at once (see
    message_parser.py). /readyz shows missing streams. Raises CannotStart as ``connected`` does.
    """
    ctx.health.ready("streams", False, "the streams have not been looked at yet")
    async with connected(ctx, round_s=round_s) as conn:
        streams_exist = conn is not None and await _wait_for_streams(ctx, conn, streams)
        if streams_exist:
            ready_soon(ctx, "streams")
        yield conn if streams_exist else None


class _QuietLog:
    """The log of a lane. The service's own connection reports an absent server."""

    def __init__(self, log: LogLike) -> None:
        self.error = log.error

    def info(self, event: str, /, **fields: object) -> None:
        """Drop a line that the service's own connection logs."""

    def warning(self, event: str, /, **fields: object) -> None:
        """Drop a line that the service's own connection logs."""


@asynccontextmanager
async def request_connections(
    ctx: Context[S], conn: Connection, *, lanes: int = LANES
) -> AsyncIterator[RequestConnections | None]:
    """Yield connections for messages of others; None if the service stops before. ``lanes``: 0 for
    a service without requests by lanes. Raises CannotStart.
    """
    ctx.health.ready("bus", False, "no connection yet to be asked by")
    opened: list[Connection] = []
    try:
        opening = _open(ctx, conn, lanes, opened)
        connections: RequestConnections | None = None
        try:
            connections = await unless_stopped(opening, ctx.stopping)
        except* BusError as errors:
            raise CannotStart(str(errors.exceptions[0])) from errors
        if connections is not None:
            ready_soon(ctx, "bus")
        yield connections
    finally:
        await asyncio.gather(*(each.close() for each in opened))


async def _open(
    ctx: Context[S], conn: Connection, lanes: int, opened: list[Connection]
) -> RequestConnections:
    """Open the connections. ``opened`` gets each, also when another connection fails."""
    quiet_log = _QuietLog(ctx.log)

    async def open_one(log: LogLike, pause_s: float = PAUSE_S) -> Connection:
        lane_conn = await Connection.open(ctx.settings, conn.name, log, clock_subject="")
        opened.append(lane_conn)
        lane_conn.on_violation = conn.on_violation
        lane_conn.nc.message_parser.pause_s = pause_s
        return lane_conn

    async with asyncio.TaskGroup() as group:
        general = group.create_task(open_one(conn.log))
        # Messages that may be dropped on reading are read without pauses: 64 MiB behind, the server
        # closes the connection.
        observed = group.create_task(open_one(quiet_log, pause_s=0.0))
        in_lanes = [group.create_task(open_one(quiet_log)) for _ in range(lanes)]
    return RequestConnections(
        general.result(), observed.result(), tuple(lane.result() for lane in in_lanes)
    )


async def _wait_for_streams(ctx: Context[S], conn: Connection, streams: tuple[str, ...]) -> bool:
    """Wait until the streams exist; False if the service stops before."""
    is_logged = False
    pause_s = FIRST_PAUSE_S
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
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)  # every denied request is a log line
            ctx.health.ready("streams", False, why)
            if not is_logged:
                ctx.log.warning("waiting for the streams", why=why)
                is_logged = True
        await stopped_within(pause_s, ctx.stopping)
    return False

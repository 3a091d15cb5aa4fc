"""A service's connection to the bus, for services that read streams or use the door (agent API)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from berthmaster.lib.nats.connection import SERVER_CLOCK, Connection
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.periodic import beats, unless_stopped
from berthmaster.lib.runtime.service import Context
from berthmaster.lib.runtime.settings import CommonSettings

WRITE_CHECK_S: Final = 0.5  # between two checks whether the bus stores this service's writes
S = TypeVar("S", bound=CommonSettings)


@asynccontextmanager
async def connected(
    ctx: Context[S], *, clock_subject: str = SERVER_CLOCK, round_s: float = 0.0
) -> AsyncIterator[Connection | None]:
    """Connect to the bus; None if the service is stopped before.

    ``round_s``: seconds between two reads of the server's messages; 0 = at once (see
    message_parser.py).

    As long as the service runs, readiness shows permission violations and writes that are not
    stored. Raises CannotStart when the server refuses this user, or the seed is invalid.
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
        conn.nc.message_parser.round_s = round_s
        ctx.spawn(_report_writes(ctx, conn), name="storing")
        ready_soon(ctx, "bus")
        yield conn


def ready_soon(ctx: Context[S], part: str) -> None:
    """Report a component ready in the event loop's next pass. By then the service has registered
    its other components. Reported at once, the service would briefly be ready and receive work.
    """
    asyncio.get_running_loop().call_soon(ctx.health.ready, part, True)


async def _report_writes(ctx: Context[S], conn: Connection) -> None:
    """Report not ready while the bus stores no writes of the service."""
    failing = ctx.metrics.gauge("bus_not_storing", "1 while NATS stores no writes of this service")
    failures = ctx.metrics.counter("bus_write_failures", "Writes not stored by NATS")
    reported = 0
    async for _ in beats(WRITE_CHECK_S, ctx.stopping):
        trouble = conn.write_health.trouble()
        ctx.health.ready("storing", not trouble, trouble)
        failing.set(bool(trouble))
        failures.inc(conn.write_health.failures - reported)
        reported = conn.write_health.failures

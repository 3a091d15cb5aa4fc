"""Everything that a stream holds at this moment, in order, for tools that look back."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.batches import Batches
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.recorded import Recorded
from berthmaster.lib.nats.streams import FLEET, FLEET_LOG, stream_info

READ_LIMIT_S: Final = 120.0
ANSWER_S: Final = 10.0


async def read_all(
    conn: Connection,
    stream: str,
    filters: Sequence[str],
    take: Callable[[Recorded], None],
    *,
    start: int = 1,
    limit_s: float = READ_LIMIT_S,
) -> None:
    """Hand each message from sequence ``start`` on to ``take``; what ``take`` raises comes through.
    Raises BusError, and TimeoutError when the limit passes first."""
    last = (await stream_info(conn, stream)).state.last_seq
    batches = Batches(conn, stream)
    await batches.open()
    try:
        async with asyncio.timeout(limit_s):
            left = 1
            while left and start <= last:
                found, left = await batches.read(start, filters, timeout_s=ANSWER_S)
                for each in found:
                    start = each.sequence + 1
                    if subjects.among(filters, each.subject):
                        take(each)
    except TimeoutError:
        raise TimeoutError(f"stream {stream} was not read within {limit_s:.0f} s") from None
    finally:
        await batches.close()


async def read_fleet_history(conn: Connection, take: Callable[[Recorded], None]) -> None:
    """Hand every fact to ``take``, in order: all of FLEET_LOG, then what FLEET has beyond it, for
    the mirror may be many seconds behind after a server was lost. Raises as read_all does."""
    last = 0

    def counted(recorded: Recorded) -> None:
        nonlocal last
        take(recorded)
        last = recorded.sequence

    await read_all(conn, FLEET_LOG, [subjects.ALL_FLEET], counted)
    await read_all(conn, FLEET, [subjects.ALL_FLEET], take, start=last + 1)

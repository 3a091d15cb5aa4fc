"""Everything that a stream holds at this moment, in order, for tools that look back."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from berthmaster.bus import subjects
from berthmaster.bus.connection import Connection
from berthmaster.bus.follow import Follower, Recorded
from berthmaster.bus.streams import FLEET, FLEET_LOG, stream_info

READ_LIMIT_S: Final = 120.0


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
    info = await stream_info(conn, stream)
    if not info.state.messages or info.state.last_seq < start:
        return
    done = asyncio.Event()
    task = asyncio.create_task(
        Follower(conn, stream, filters, start=start).run(take, caught_up=done.set)
    )
    ready = asyncio.create_task(done.wait())
    try:
        finished, _ = await asyncio.wait(
            {task, ready}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
        )
        if task in finished:
            task.result()
        if not finished:
            raise TimeoutError(f"stream {stream} was not read within {limit_s:.0f} s")
    finally:
        task.cancel()
        ready.cancel()
        await asyncio.gather(task, ready, return_exceptions=True)


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

"""Group commit of single appends: under load, many writers share one sync to disk.

A synced append costs the server about as much as a synced batch of a hundred. Few waiting appends
are sent singly. More are sent as an atomic batch, in which each event has a guard. The server
refuses a batch if a guard fails, and each event is then tried alone. So an append has the same
outcome as without a group. All writers of one connection share a group.
"""

import asyncio
from collections import deque
from typing import Final

from berthmaster.lib.event_log.workload_log import SETTLE_LIMIT_S, EventLog
from berthmaster.lib.lifecycle.instructions import Outcome
from berthmaster.lib.messages.workload import WorkloadEvent
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError

SINGLES_IN_FLIGHT: Final = 12  # above, waiting for a batch costs less than a single append
BATCH_EVENTS: Final = 200
BATCHES_IN_FLIGHT: Final = 2
MAX_WAITING: Final = 20_000  # appends; above, callers wait before queueing
_Entry = tuple[WorkloadEvent, "asyncio.Future[Outcome]"]


class GroupCommit:
    """``append`` like EventLog's, batched with all other appends on the connection."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._waiting: deque[_Entry] = deque()
        self._room = asyncio.Semaphore(MAX_WAITING)
        self._singles = 0
        self._batches = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def append(self, event: WorkloadEvent, *, in_doubt: bool = False) -> Outcome:
        """Store an event if the aggregate is still at ``event.after``. Raises TooLarge.

        ``in_doubt``: the event was sent before with an unknown outcome. After a refused batch each
        event is settled alone anyway.
        """
        if not self._waiting and self._singles < SINGLES_IN_FLIGHT:
            self._singles += 1
            try:
                return await self._log.append(event, in_doubt=in_doubt)
            finally:
                self._singles -= 1
                self._next()
        async with self._room:
            future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
            self._waiting.append((event, future))
            self._next()
            return await future

    def _next(self) -> None:
        while self._waiting and self._batches < BATCHES_IN_FLIGHT:
            if len(self._waiting) == 1 and self._singles >= SINGLES_IN_FLIGHT:
                return  # a single append in flight will call again
            self._batches += 1
            count = min(BATCH_EVENTS, len(self._waiting))
            self._run(self._send([self._waiting.popleft() for _ in range(count)]))

    def _run(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, entries: list[_Entry]) -> None:
        entries = [entry for entry in entries if not entry[1].cancelled()]
        try:
            outcomes = await self._log.append_together([event for event, _ in entries])
        except BusError:
            outcomes = None  # the outcome is uncertain: settle each event alone
        finally:
            self._batches -= 1
            self._next()
        if outcomes is not None:
            for (_, future), outcome in zip(entries, outcomes, strict=True):
                if not future.done():
                    future.set_result(outcome)
            return
        for event, future in entries:
            self._run(self._alone(event, future))

    async def _alone(self, event: WorkloadEvent, future: "asyncio.Future[Outcome]") -> None:
        try:
            outcome = await self._log.append(event, in_doubt=True)
        except BusError as error:
            if not future.done():
                future.set_exception(error)
            return
        if not future.done():
            future.set_result(outcome)


def shared_group_commit(conn: Connection, *, settle_limit_s: float | None = None) -> GroupCommit:
    """Return the connection's group, created at the first call with the time limit of the call."""
    known = conn.parts.get(GroupCommit)
    if not isinstance(known, GroupCommit):
        limit_s = SETTLE_LIMIT_S if settle_limit_s is None else settle_limit_s
        log = EventLog(conn, settle_limit_s=limit_s)
        known = conn.parts[GroupCommit] = GroupCommit(log)
    return known

"""Locks that hand over fairly between clients, for work that must not run concurrently.

Examples are a copy of all facts, a database's connection, or work that would block the event loop.
Each client has a queue of its own. The next turn goes to the client whose last turn is longest ago,
so a client with many requests delays another one by the current request only.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from berthmaster.lib.nats.fair_queue import RecentClients

PAUSE_PER_SLICE: Final = 9.0  # times as long as a stretch took; the loop is theirs who come beside


class FairLock:
    """A lock that is handed over in turn."""

    def __init__(self) -> None:
        self._rows: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._is_taken = False
        self._last = ""

    @asynccontextmanager
    async def turn(self, asker: str) -> AsyncIterator[None]:
        """Within it nobody else has his."""
        await self.take(asker)
        try:
            yield
        finally:
            self.hand_over()

    async def take(self, asker: str) -> None:
        """Wait for a turn; whoever has one must ``hand_over`` at its end."""
        if not self._is_taken:
            self._is_taken = True
            self._last = asker
            return
        mine = asyncio.get_running_loop().create_future()
        self._rows.setdefault(asker, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self.hand_over()  # it came at the same moment
            raise

    def hand_over(self) -> None:
        if self._last in self._rows:
            self._rows.move_to_end(self._last)
        while self._rows:
            asker, row = next(iter(self._rows.items()))
            mine = row.popleft()
            if not row:
                del self._rows[asker]
            if not mine.done():  # else he has given up
                self._last = asker
                mine.set_result(None)
                return
        self._is_taken = False


class TimeSlices:
    """Work that would keep the event loop goes on a stretch at a time. Where others come, the loop
    is theirs for some times as long as a stretch took."""

    def __init__(self) -> None:
        self._turns = FairLock()
        self._company = RecentClients()

    def served(self, asker: str) -> None:
        """He was answered something, short or long."""
        self._company.served(asker, asyncio.get_running_loop().time())

    async def next(self, asker: str) -> None:
        """Until the next stretch may be worked on; it ends where whoever called waits again."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)
        await self._turns.take(asker)
        began_s = loop.time()

        def over() -> None:
            now_s = loop.time()
            others = self._company.besides(asker, now_s)
            rest_s = PAUSE_PER_SLICE * (now_s - began_s) if others else 0.0
            loop.call_later(rest_s, self._turns.hand_over)

        loop.call_soon(over)

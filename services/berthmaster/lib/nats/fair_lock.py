"""Locks held by clients in turn, for work that must not run concurrently.

Examples are a copy of all facts, a database's connection, or work that would block the event loop.
Each client has a queue. The next turn goes to the client whose last turn is longest ago. So a
client with many requests delays another one by the current request only.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from berthmaster.lib.nats.fair_queue import RecentClients

PAUSE_PER_SLICE: Final = 9.0  # times the slice's duration; other clients have the loop then


class FairLock:
    """A lock that clients get in turn."""

    def __init__(self) -> None:
        self._waiters: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._is_taken = False
        self._last = ""

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Hold the lock within the block."""
        await self.take(client)
        try:
            yield
        finally:
            self.hand_over()

    async def take(self, client: str) -> None:
        """Wait for the lock. The caller must call ``hand_over`` at the end."""
        if not self._is_taken:
            self._is_taken = True
            self._last = client
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(client, deque()).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.hand_over()  # the lock came together with the cancellation
            raise

    def hand_over(self) -> None:
        if self._last in self._waiters:
            self._waiters.move_to_end(self._last)
        while self._waiters:
            client, queue = next(iter(self._waiters.items()))
            waiter = queue.popleft()
            if not queue:
                del self._waiters[client]
            if not waiter.done():  # cancelled waiters are skipped
                self._last = client
                waiter.set_result(None)
                return
        self._is_taken = False


class TimeSlices:
    """Time slices for work that would block the event loop. While other clients are active, they
    have the loop after each slice, for ``PAUSE_PER_SLICE`` times its duration.
    """

    def __init__(self) -> None:
        self._turns = FairLock()
        self._recent = RecentClients()

    def served(self, client: str) -> None:
        """Record that a client was served."""
        self._recent.served(client, asyncio.get_running_loop().time())

    async def next(self, client: str) -> None:
        """Wait for the next slice. The slice ends when the caller waits again."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)
        await self._turns.take(client)
        began_s = loop.time()

        def over() -> None:
            now_s = loop.time()
            others = self._recent.has_others(client, now_s)
            rest_s = PAUSE_PER_SLICE * (now_s - began_s) if others else 0.0
            loop.call_later(rest_s, self._turns.hand_over)

        loop.call_soon(over)

"""Limits a process's concurrent requests to JetStream's API to the number answered in time.

The server handles these requests with one worker per core, for all streams, and continues after a
client has given up. Clients that repeat late requests lengthen the queue, until the server works
only on abandoned requests. So:

- One connection has a window, as in TCP. The window grows by 1 for each window of timely answers,
  and halves at a late answer.
- A late request keeps the place until the answer comes, because the request is still queued.
- The same request is not sent again meanwhile. An answer may also be lost (a stream without a
  leader answers nothing). So a request is given up when late by the time limit once more. From loss
  to loss this wait doubles.
"""

import asyncio
from collections import deque
from typing import Final, NamedTuple

FIRST: Final = 64.0  # some 20 ms of work for a server with two cores
LEAST: Final = 16.0  # a few lost answers do not hold up all other requests
MOST: Final = 256.0
LONGEST_HOLD_S: Final = 30.0
MAX_LOSSES: Final = 10_000  # requests whose losses are remembered

Key = tuple[str, bytes]  # subject and body of the request


class _Late(NamedTuple):
    """A request whose caller has given up."""

    key: Key
    given_up: asyncio.TimerHandle
    over: "asyncio.Future[None]"


class Window:
    """Places for requests. Each ``enter`` is followed by ``answered``, ``failed`` or ``late``."""

    def __init__(self, first: float = FIRST) -> None:
        self.size = first
        self.taken = 0
        self._queue: deque[asyncio.Future[None]] = deque()  # empty while a place is free
        self._late: dict[str, _Late] = {}
        self._late_by: dict[Key, asyncio.Future[None]] = {}
        self._losses: dict[Key, int] = {}
        self._halved_s = float("-inf")

    async def enter(self, key: Key) -> None:
        """Wait for an earlier copy of this request, then for a place, in turn."""
        while (earlier := self._late_by.get(key)) is not None:
            await asyncio.shield(earlier)
        if self.taken < int(self.size):
            self.taken += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.failed()  # the place came together with the cancellation
            raise

    def answered(self, key: Key) -> None:
        self.size = min(self.size + 1 / self.size, MOST)
        self._losses.pop(key, None)
        self.failed()

    def failed(self) -> None:
        """Free the request's place without changing the window."""
        self.taken -= 1
        while self._queue and self.taken < int(self.size):
            turn = self._queue.popleft()
            if not turn.done():
                self.taken += 1
                turn.set_result(None)

    def late(self, token: str, key: Key, limit_s: float) -> None:
        """Keep the place of a request without a waiting caller, since the server still works on
        it.
        """
        loop = asyncio.get_running_loop()
        # requests in flight since the last halving report the same congestion
        if loop.time() - limit_s >= self._halved_s:
            self._halved_s = loop.time()
            self.size = max(self.size / 2, LEAST)
        losses = self._losses.get(key, 0)
        hold_s = min(limit_s * 2 ** min(losses, 16), LONGEST_HOLD_S)
        given_up = loop.call_later(hold_s, self._give_up, token)
        self._late[token] = _Late(key, given_up, loop.create_future())
        self._late_by[key] = self._late[token].over

    def came(self, token: str) -> None:
        """Note an answer, perhaps a late one."""
        if (late := self._late.get(token)) is not None:
            self._losses.pop(late.key, None)
            self._end(token)

    def forget(self) -> None:
        """Forget all late requests: no answer to them will come."""
        for token in list(self._late):
            self._end(token)

    def _give_up(self, token: str) -> None:
        key = self._late[token].key
        if len(self._losses) >= MAX_LOSSES:
            self._losses.clear()
        self._losses[key] = self._losses.get(key, 0) + 1
        self._end(token)

    def _end(self, token: str) -> None:
        late = self._late.pop(token)
        late.given_up.cancel()
        if self._late_by.get(late.key) is late.over:
            del self._late_by[late.key]
        late.over.set_result(None)
        self.failed()

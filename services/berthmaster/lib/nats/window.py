"""How much a process asks of JetStream's API at once: as much as is answered in time.

The server works through these requests with a worker a core, whatever stream they are about, and
works on a request whose asker has given up all the same. Whoever repeats what was not answered in
time makes the queue longer, until all that is worked on is what nobody waits for any more. So:

- one connection has a window, as in TCP: it grows by one for each window of answers that came in
  time, and halves when one is late;
- a late request keeps its place until its answer comes, for it still stands in the queue;
- the same request is not sent again meanwhile. An answer may also have been lost (a stream without
  a leader answers nothing), so one that is as late again as its time limit is given up; from loss
  to loss that takes twice as long.
"""

import asyncio
from collections import deque
from typing import Final, NamedTuple

FIRST: Final = 64.0  # some 20 ms of work for a server with two cores
LEAST: Final = 16.0  # some whose answers are lost do not hold up all others
MOST: Final = 256.0
LONGEST_HOLD_S: Final = 30.0
MAX_LOSSES: Final = 10_000  # requests whose losses are remembered

Key = tuple[str, bytes]  # what is asked, to the letter


class _Late(NamedTuple):
    """A request whose asker has given up."""

    key: Key
    given_up: asyncio.TimerHandle
    over: "asyncio.Future[None]"


class Window:
    """Places for requests. Whoever entered leaves: ``answered``, ``failed`` or ``late``."""

    def __init__(self, first: float = FIRST) -> None:
        self.size = first
        self.taken = 0
        self._queue: deque[asyncio.Future[None]] = deque()  # empty while there is room
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
                self.failed()  # it was given a place at the last moment
            raise

    def answered(self, key: Key) -> None:
        self.size = min(self.size + 1 / self.size, MOST)
        self._losses.pop(key, None)
        self.failed()

    def failed(self) -> None:
        """It needs its place no more, and that tells nothing."""
        self.taken -= 1
        while self._queue and self.taken < int(self.size):
            turn = self._queue.popleft()
            if not turn.done():
                self.taken += 1
                turn.set_result(None)

    def late(self, token: str, key: Key, limit_s: float) -> None:
        """Nobody waits for its answer any more, and the server works on it still."""
        loop = asyncio.get_running_loop()
        if loop.time() - limit_s >= self._halved_s:  # it was sent since: they tell the same once
            self._halved_s = loop.time()
            self.size = max(self.size / 2, LEAST)
        losses = self._losses.get(key, 0)
        hold_s = min(limit_s * 2 ** min(losses, 16), LONGEST_HOLD_S)
        given_up = loop.call_later(hold_s, self._give_up, token)
        self._late[token] = _Late(key, given_up, loop.create_future())
        self._late_by[key] = self._late[token].over

    def came(self, token: str) -> None:
        """An answer arrived; perhaps a late one."""
        if (late := self._late.get(token)) is not None:
            self._losses.pop(late.key, None)
            self._end(token)

    def forget(self) -> None:
        """No answer to what was asked before will come."""
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

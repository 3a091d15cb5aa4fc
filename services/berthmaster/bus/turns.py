"""Serves those who ask in turn, so that one who asks without end costs the others little.

Everybody has a queue of his own, bounded by number, bytes and rate; what is beyond is refused at
once and costs next to nothing. From the queues work is begun a little at a time, one of each in
turn, and the event loop runs in between: what has been begun goes on, and whoever comes new waits
for one small portion of work at most.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, NamedTuple

PORTION: Final = 8  # work that is begun before the event loop runs
FEW: Final = 4  # requests in hand of one for whom there is always room
FORGET_AT: Final = 10_000  # rates of those who asked are kept for so many at least

Start = Callable[[], None]


class Share(NamedTuple):
    """What one who asks may have."""

    in_hand: int  # requests, waiting and at work
    bytes_in_hand: int
    per_s: float  # requests, over a second or more


class _Asker:
    def __init__(self, share: Share) -> None:
        self.in_hand = 0
        self.bytes = 0
        self.left = share.per_s  # requests that he may still send at once
        self.at_s = 0.0


class Turns:
    """Of one service."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._askers: dict[str, _Asker] = {}
        self._queues: OrderedDict[str, deque[tuple[int, Start]]] = OrderedDict()
        self._loop = asyncio.get_running_loop()
        self._is_due = False
        self._waiting = 0

    def join(self, asker: str, size: int, work: int, start: Start) -> str:
        """Wait for a turn; ``start`` is called when it has come. ``work``: about how much it is, of
        ``PORTION``. Returns why not, "" = it waits. Whoever joined leaves once, when all is done.
        """
        share, now_s = self._share, self._loop.time()
        one = self._askers.get(asker)
        if one is None:
            self._tidy(now_s)
            one = self._askers[asker] = _Asker(share)
            one.at_s = now_s
        if one.in_hand >= share.in_hand:
            return f"at most {share.in_hand} requests of one tenant at once"
        if one.bytes and one.bytes + size > share.bytes_in_hand:
            return f"at most {share.bytes_in_hand} bytes of one tenant's requests at once"
        one.left = min(share.per_s, one.left + (now_s - one.at_s) * share.per_s)
        one.at_s = now_s
        if one.left < 1:
            return f"at most {share.per_s:g} requests of one tenant a second"
        one.left -= 1
        one.in_hand += 1
        one.bytes += size
        self._queues.setdefault(asker, deque()).append((work, start))
        self._waiting += 1
        self._call()
        return ""

    def leave(self, asker: str, size: int) -> None:
        """A request that joined is over."""
        one = self._askers[asker]
        one.in_hand -= 1
        one.bytes -= size

    def is_new(self, asker: str) -> bool:
        """Whether somebody has next to nothing in hand."""
        one = self._askers.get(asker)
        return one is None or one.in_hand < FEW

    @property
    def waiting(self) -> int:
        """Requests whose turn has not come."""
        return self._waiting

    def _call(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._is_due = False
        left = PORTION
        while self._queues and left > 0:
            asker, queue = next(iter(self._queues.items()))
            work, start = queue.popleft()
            if queue:
                self._queues.move_to_end(asker)
            else:
                del self._queues[asker]
            left -= work
            self._waiting -= 1
            start()
        if self._queues:
            self._call()

    def _tidy(self, now_s: float) -> None:
        """Whoever has nothing in hand and his whole rate again is as if he had never asked."""
        if len(self._askers) >= FORGET_AT:
            self._askers = {
                name: one
                for name, one in self._askers.items()
                if one.in_hand or now_s - one.at_s < 1.0
            }

"""Serves clients in turn, so that one client's flood costs the others little.

Each client has a queue, bounded by number, bytes and rate. Requests beyond the bounds are refused
at once and cost almost nothing. Work begins in small portions, one request of each client in turn,
and the event loop runs in between. A new client thus waits for one portion at most.

Clients with few requests in flight come first. Meanwhile those with many get a portion now and
then. While other clients come at all, those with many get a fifth of the loop's time and few writes
at once, so that the next client finds the loop and the log free.

"Many" is relative to the other clients. Where answers are slow, because of the disk or a flood, any
client that goes on asking has many requests in flight, and must not be served like the flood.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, NamedTuple

PORTION: Final = 4  # work that is begun before the event loop runs
FEW: Final = 16  # requests in hand of one for whom there is always room
MUCH_MORE: Final = 4  # times what one has in hand: beside one who has that, he has few
NEW: Final = 4  # of one for whom there is room where all others have filled it
PATIENCE_S: Final = 0.005  # between portions of those with many, while one with few is served
AT_WORK: Final = 12  # begun of one with many, where others come too
REST: Final = 4.0  # times as long as a portion of those with many took, the next waits then
SHORTEST_REST_S: Final = 0.001
OTHERS_S: Final = 1.0  # so long after another one has been served, others come
NUMBER_AGAIN_S: Final = 0.25  # a full queue at 0.5 ms each
RATE_AGAIN_S: Final = 1.0  # until the whole rate is there again
FORGET_AT: Final = 10_000  # rates of those who asked are kept for so many at least
Start = Callable[[], None]


class Share(NamedTuple):
    """What one who asks may have."""

    in_hand: int  # requests, waiting and at work
    bytes_in_hand: int
    per_s: float  # requests, over a second or more


class Beyond(NamedTuple):
    """Why somebody has to wait, and for how long."""

    why: str
    again_s: float


class _Client:
    def __init__(self, share: Share) -> None:
        self.in_hand = 0
        self.at_work = 0
        self.bytes = 0
        self.left = share.per_s  # requests that he may still send at once
        self.at_s = 0.0


class RecentClients:
    """Whether others come beside one who asks: such as have been served in the last second."""

    def __init__(self) -> None:
        self._served: list[tuple[str, float]] = []  # the last two, the latest first, and when

    def served(self, asker: str, now_s: float) -> None:
        others = [each for each in self._served if each[0] != asker]
        self._served = [(asker, now_s), *others][:2]

    def besides(self, asker: str, now_s: float) -> bool:
        return any(asker != other and now_s < at_s + OTHERS_S for other, at_s in self._served)


_Queues = OrderedDict[str, deque[tuple[int, Start]]]


class FairQueue:
    def __init__(self, share: Share) -> None:
        self._share = share
        self._askers: dict[str, _Client] = {}
        self._few = _Queues()
        self._many = _Queues()
        self._asking = 0  # askers with something in hand
        self._above_few = dict[str, _Client]()  # those with more than FEW
        self._loop = asyncio.get_running_loop()
        self._is_due = False
        self._later: asyncio.TimerHandle | None = None
        self._many_at_s = 0.0
        self._is_portion_out = False
        self._company = RecentClients()
        self._waiting = 0
        self._in_hand = 0
        one = "of one tenant"
        self._number = Beyond(f"at most {share.in_hand} requests {one} at once", NUMBER_AGAIN_S)
        self._bytes = Beyond(
            f"at most {share.bytes_in_hand} bytes {one}'s requests at once", NUMBER_AGAIN_S
        )
        self._rate = Beyond(f"at most {share.per_s:g} requests {one} a second", RATE_AGAIN_S)

    def beyond(self, asker: str, size: int) -> Beyond | None:
        """Why one more request of his must not join, if so."""
        one = self._askers.get(asker)
        if one is None:
            one = self._new(asker)
        share = self._share
        if one.in_hand >= share.in_hand:
            return self._number
        if one.bytes and one.bytes + size > share.bytes_in_hand:
            return self._bytes
        now_s = self._loop.time()
        one.left = min(share.per_s, one.left + (now_s - one.at_s) * share.per_s)
        one.at_s = now_s
        return self._rate if one.left < 1 else None

    def join(self, asker: str, size: int, work: int, start: Start) -> None:
        """Wait for a turn, if nothing is ``beyond``; ``start`` is called when it has come.
        ``work``: about how much it is, of ``PORTION``. Whoever joined leaves once, at its end.
        """
        one = self._askers[asker]
        one.left -= 1
        one.in_hand += 1
        one.bytes += size
        if one.in_hand == 1:
            self._asking += 1
        elif one.in_hand == FEW + 1:
            self._above_few[asker] = one
        mine, other = (self._many, self._few) if self._has_many(one) else (self._few, self._many)
        if asker in other:  # each one's requests are begun in their order
            mine[asker] = other.pop(asker)
        mine.setdefault(asker, deque()).append((work, start))
        self._waiting += 1
        self._in_hand += 1
        self._call()

    def leave(self, asker: str, size: int) -> None:
        one = self._askers[asker]
        self._in_hand -= 1
        one.in_hand -= 1
        one.at_work -= 1
        one.bytes -= size
        self._company.served(asker, self._loop.time())
        if one.in_hand == 0:
            self._asking -= 1
        elif one.in_hand == FEW:
            del self._above_few[asker]
        if self._many and not self._serves_few():
            self._call()

    def is_new(self, asker: str) -> bool:
        """Whether somebody has next to nothing in hand."""
        one = self._askers.get(asker)
        return one is None or one.in_hand < NEW

    @property
    def in_hand(self) -> int:
        """Requests, waiting and at work."""
        return self._in_hand

    @property
    def waiting(self) -> int:
        """Requests whose turn has not come."""
        return self._waiting

    def _new(self, asker: str) -> _Client:
        now_s = self._loop.time()
        self._tidy(now_s)
        one = self._askers[asker] = _Client(self._share)
        one.at_s = now_s
        return one

    def _has_many(self, one: _Client) -> bool:
        return one.in_hand > FEW and one.in_hand * MUCH_MORE > self._most_in_hand()

    def _most_in_hand(self) -> int:
        return max((one.in_hand for one in self._above_few.values()), default=0)

    def _serves_few(self) -> bool:
        """Whether somebody with few has something in hand."""
        most = self._most_in_hand()
        many = sum(one.in_hand * MUCH_MORE > most for one in self._above_few.values())
        return self._asking > many

    def _call(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._is_due = False
        now_s = self._loop.time()
        left = self._portion(self._few, PORTION, self._share.in_hand)
        goes_on = bool(self._few)
        serves_few = bool(self._many) and self._serves_few()
        if self._many and (serves_few or self._others_come(now_s)):
            due_s = self._many_at_s + (PATIENCE_S if serves_few else 0.0)
            if now_s >= due_s and not self._is_portion_out:
                self._is_portion_out = True
                self._portion(self._many, PORTION, AT_WORK)
                self._loop.call_soon(self._rest, now_s)  # behind what it has begun
            elif not self._is_portion_out:
                if self._later is not None:
                    self._later.cancel()
                self._later = self._loop.call_at(due_s, self._wake)
        elif self._many:
            rest = self._portion(self._many, left, self._share.in_hand)
            goes_on = rest < left or left <= 0
        if goes_on:
            self._call()

    def _rest(self, began_s: float) -> None:
        self._is_portion_out = False
        now_s = self._loop.time()
        self._many_at_s = now_s + max(SHORTEST_REST_S, REST * (now_s - began_s))
        if self._many:
            self._call()

    def _others_come(self, now_s: float) -> bool:
        """Besides one with many: the only one, if there is none."""
        if len(self._many) > 1:
            return True
        [only] = self._many
        return self._company.besides(only, now_s)

    def _wake(self) -> None:
        self._later = None
        if self._many:
            self._call()

    def _portion(self, queues: _Queues, left: int, most: int) -> int:
        """Begin so much, one of each in turn who has less than ``most`` at work; what is left."""
        passed = 0
        while left > 0 and passed < len(queues):
            asker, queue = next(iter(queues.items()))
            one = self._askers[asker]
            if one.at_work >= most:
                queues.move_to_end(asker)
                passed += 1
                continue
            work, start = queue.popleft()
            if queue:
                queues.move_to_end(asker)
            else:
                del queues[asker]
            one.at_work += 1
            left -= work
            self._waiting -= 1
            start()
        return left

    def _tidy(self, now_s: float) -> None:
        """Whoever has nothing in hand and his whole rate again is as if he had never asked."""
        if len(self._askers) >= FORGET_AT:
            self._askers = {
                name: one
                for name, one in self._askers.items()
                if one.in_hand or now_s - one.at_s < 1.0
            }

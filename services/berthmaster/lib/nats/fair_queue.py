"""Serves clients in turn, so that a client's flood costs the others little.

Each client has a queue, bounded by number, bytes and rate. Requests beyond the bounds are refused
at once and cost almost nothing. Work begins in small portions, one request of each client in turn,
and the event loop runs in between. So a new client waits for one portion at most.

Clients with few requests in flight come first. Meanwhile clients with many get a portion now and
then. As long as other clients are active, those with many get a fifth of the loop's time and few
concurrent writes. So the next client finds the loop and the log free.

"Many" is relative to the other clients. With slow answers, because of the disk or a flood, any
client that continues to send has many requests in flight, and must not be treated as the flood.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, NamedTuple

PORTION: Final = 4  # units of work that begin before the event loop runs
FEW: Final = 16  # number of a client's requests in flight that are always accepted
MUCH_MORE: Final = 4  # a client with less than 1/4 of the largest client's requests has few
NEW: Final = 4  # number of a client's requests in flight, below which a full queue still accepts
PATIENCE_S: Final = 0.005  # between portions of clients with many, while one with few is served
AT_WORK: Final = 12  # concurrent requests of a client with many, while others are active
# pause after a portion of clients with many, in multiples of the portion's duration
REST: Final = 4.0
SHORTEST_REST_S: Final = 0.001
OTHERS_S: Final = 1.0  # time for which a served client is active
NUMBER_AGAIN_S: Final = 0.25  # time for a full queue at 0.5 ms each
RATE_AGAIN_S: Final = 1.0  # until the full rate is available again
FORGET_AT: Final = 10_000  # minimum number of clients whose rates are remembered
Start = Callable[[], None]


class Share(NamedTuple):
    """The limits of one client."""

    in_hand: int  # requests, waiting and running
    bytes_in_hand: int
    per_s: float  # requests, over a second or more


class Beyond(NamedTuple):
    """Why a client has to wait, and for how long."""

    why: str
    again_s: float


class _Client:
    def __init__(self, share: Share) -> None:
        self.in_hand = 0
        self.at_work = 0
        self.bytes = 0
        self.left = share.per_s  # requests that the client may send at once
        self.at_s = 0.0


class RecentClients:
    """Whether other clients are active: served in the last second."""

    def __init__(self) -> None:
        # the last two clients and their times, latest first
        self._served: list[tuple[str, float]] = []

    def served(self, client: str, now_s: float) -> None:
        others = [each for each in self._served if each[0] != client]
        self._served = [(client, now_s), *others][:2]

    def has_others(self, client: str, now_s: float) -> bool:
        return any(client != other and now_s < at_s + OTHERS_S for other, at_s in self._served)


_Queues = OrderedDict[str, deque[tuple[int, Start]]]


class FairQueue:
    def __init__(self, share: Share) -> None:
        self._share = share
        self._clients: dict[str, _Client] = {}
        self._few = _Queues()
        self._many = _Queues()
        self._active = 0  # number of clients with a request in flight
        self._above_few = dict[str, _Client]()  # those with more than FEW
        self._loop = asyncio.get_running_loop()
        self._is_due = False
        self._later: asyncio.TimerHandle | None = None
        self._many_at_s = 0.0
        self._is_portion_out = False
        self._recent = RecentClients()
        self._waiting = 0
        self._in_hand = 0
        one = "of one tenant"
        self._number = Beyond(f"at most {share.in_hand} requests {one} at once", NUMBER_AGAIN_S)
        self._bytes = Beyond(
            f"at most {share.bytes_in_hand} bytes {one}'s requests at once", NUMBER_AGAIN_S
        )
        self._rate = Beyond(f"at most {share.per_s:g} requests {one} a second", RATE_AGAIN_S)

    def beyond(self, client: str, size: int) -> Beyond | None:
        """Return the limit exceeded by a further request of the client, if any."""
        one = self._clients.get(client)
        if one is None:
            one = self._new(client)
        share = self._share
        if one.in_hand >= share.in_hand:
            return self._number
        if one.bytes and one.bytes + size > share.bytes_in_hand:
            return self._bytes
        now_s = self._loop.time()
        one.left = min(share.per_s, one.left + (now_s - one.at_s) * share.per_s)
        one.at_s = now_s
        return self._rate if one.left < 1 else None

    def join(self, client: str, size: int, work: int, start: Start) -> None:
        """Queue a request that is not ``beyond`` a limit. ``start`` is called at the request's
        turn.

        ``work``: its units of ``PORTION``. Each request that joined must ``leave`` once.
        """
        one = self._clients[client]
        one.left -= 1
        one.in_hand += 1
        one.bytes += size
        if one.in_hand == 1:
            self._active += 1
        elif one.in_hand == FEW + 1:
            self._above_few[client] = one
        mine, other = (self._many, self._few) if self._has_many(one) else (self._few, self._many)
        if client in other:  # a client's requests begin in order
            mine[client] = other.pop(client)
        mine.setdefault(client, deque()).append((work, start))
        self._waiting += 1
        self._in_hand += 1
        self._call()

    def leave(self, client: str, size: int) -> None:
        one = self._clients[client]
        self._in_hand -= 1
        one.in_hand -= 1
        one.at_work -= 1
        one.bytes -= size
        self._recent.served(client, self._loop.time())
        if one.in_hand == 0:
            self._active -= 1
        elif one.in_hand == FEW:
            del self._above_few[client]
        if self._many and not self._serves_few():
            self._call()

    def is_new(self, client: str) -> bool:
        """Return whether a client has almost nothing in flight."""
        one = self._clients.get(client)
        return one is None or one.in_hand < NEW

    @property
    def in_hand(self) -> int:
        """Return the number of requests, waiting and running."""
        return self._in_hand

    @property
    def waiting(self) -> int:
        """Return the number of requests whose turn has not come."""
        return self._waiting

    def _new(self, client: str) -> _Client:
        now_s = self._loop.time()
        self._tidy(now_s)
        one = self._clients[client] = _Client(self._share)
        one.at_s = now_s
        return one

    def _has_many(self, one: _Client) -> bool:
        return one.in_hand > FEW and one.in_hand * MUCH_MORE > self._most_in_hand()

    def _most_in_hand(self) -> int:
        return max((one.in_hand for one in self._above_few.values()), default=0)

    def _serves_few(self) -> bool:
        """Return whether a client with few has a request in flight."""
        most = self._most_in_hand()
        many = sum(one.in_hand * MUCH_MORE > most for one in self._above_few.values())
        return self._active > many

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
                # after the portion's requests
                self._loop.call_soon(self._rest, now_s)
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
        """Return whether other clients are active besides one with many."""
        if len(self._many) > 1:
            return True
        [only] = self._many
        return self._recent.has_others(only, now_s)

    def _wake(self) -> None:
        self._later = None
        if self._many:
            self._call()

    def _portion(self, queues: _Queues, left: int, most: int) -> int:
        """Begin ``left`` units, one of each client in turn, of clients with fewer than ``most``
        running. Return the units that are left.
        """
        passed = 0
        while left > 0 and passed < len(queues):
            client, queue = next(iter(queues.items()))
            one = self._clients[client]
            if one.at_work >= most:
                queues.move_to_end(client)
                passed += 1
                continue
            work, start = queue.popleft()
            if queue:
                queues.move_to_end(client)
            else:
                del queues[client]
            one.at_work += 1
            left -= work
            self._waiting -= 1
            start()
        return left

    def _tidy(self, now_s: float) -> None:
        """Forget clients with nothing in flight and their full rate. They are the same as new
        clients.
        """
        if len(self._clients) >= FORGET_AT:
            self._clients = {
                name: one
                for name, one in self._clients.items()
                if one.in_hand or now_s - one.at_s < 1.0
            }

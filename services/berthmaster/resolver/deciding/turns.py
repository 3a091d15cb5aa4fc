"""Whose turn it is: the queues' accounts as they stand in a draft, and the heads of their lines.

The rules of order among queues are engine/queueing/queues.py's; inside a queue the line whose first
has the least order goes first. A queue's place depends on its own account and first job alone, so
placing a job moves one queue and no other. Lines that are known not to fit take their turns too: a
job that waits for room is first in its queue, and reserves.py has to hear of it. Whom room is kept
for has a turn of its own: others of its line, who must leave that room alone, may have come before
it.
"""

import heapq
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from berthmaster.engine.queueing.lines import Line, Order
from berthmaster.engine.queueing.queues import (
    Amounts,
    Ask,
    Models,
    QueueShare,
    Right,
    Tier,
    ask_of,
    dominant_share,
    right,
    tier,
)
from berthmaster.lifecycle.fold import Key
from berthmaster.lifecycle.sizes import least_request
from berthmaster.messages.workload import JobRequest
from berthmaster.resolver.known.knowledge import Knowledge
from berthmaster.resolver.settings import Policy

Place = tuple[bool, int, int, float, Order, str]
Rank = tuple[bool, int, int]  # less comes first: not guaranteed, -queue priority, -priority


class Turn(NamedTuple):
    """One job that is to be decided about next."""

    line: Line
    key: Key
    order: Order
    share: QueueShare
    right: Right
    tier: Tier
    rank: Rank
    blocked: bool  # known not to fit
    used: Mapping[str, int]  # by its queue
    running: int

    def right_to(self, request: JobRequest, models: Models) -> Right:
        """Whether its queue may have this, which need not be all that the job wishes for."""
        return right(self.share, self.used, self.running, ask_of(request), models)


class _Queue:
    """One queue in a draft."""

    __slots__ = ("has", "heads", "running", "share", "used")

    def __init__(
        self, share: QueueShare, used: Mapping[str, int], running: int, has: float
    ) -> None:
        self.share = share
        self.used: Amounts = dict(used)
        self.running = running
        self.has = has  # its dominant share, by its weight
        self.heads: list[tuple[Order, int, Key, Line]] = []


class Turns:
    """All queues with somebody waiting, in order."""

    def __init__(
        self,
        know: Knowledge,
        policy: Policy,
        open_clusters: frozenset[str],
        holders: Iterable[Key] = (),
    ) -> None:
        self._know = know
        self._growth = know.derived.growth
        self._totals = know.derived.ledger.totals(open_clusters)
        self._models = know.derived.ledger.models()
        self._multipliers = policy.share_multipliers
        self._taken: dict[Line, list[tuple[Order, Key]]] = {}
        self._placed: set[Key] = set()
        self._heap: list[tuple[Place, _Queue]] = []
        behind = self._behind(holders)
        for name, lines in know.derived.lines.by_queue().items():
            share, used = know.derived.share(name), know.derived.ledger.used(name)
            queue = _Queue(share, used, know.derived.ledger.running[name], self._share(share, used))
            for number, line in enumerate(lines.values()):
                first = line.first()
                if first is not None:
                    queue.heads.append((first[0], number, first[1], line))
                for key in behind.get(line, ()):
                    queue.heads.append((line.members[key], number, key, line))
            heapq.heapify(queue.heads)
            if queue.heads:
                self._heap.append((self._place(queue), queue))
        heapq.heapify(self._heap)

    def _behind(self, holders: Iterable[Key]) -> dict[Line, list[Key]]:
        """Those who are not the first of their lines."""
        found: dict[Line, list[Key]] = {}
        for key in holders:
            line = self._know.derived.lines.line_of(key)
            if line is not None and not line.is_first(key):
                found.setdefault(line, []).append(key)
        return found

    def next(self) -> Turn | None:
        """Who is to be decided about; the same one until it is placed or passed over."""
        if not self._heap:
            return None
        queue = self._heap[0][1]
        order, _, key, line = queue.heads[0]
        place = self._heap[0][0]
        return Turn(
            line,
            key,
            order,
            queue.share,
            right(queue.share, queue.used, queue.running, line.ask, self._models),
            Tier(place[2]),
            (place[0], place[1], order[1]),
            line.blocked_at == self._growth and line.is_first(key),
            queue.used,
            queue.running,
        )

    def placed(self, amounts: Amounts) -> None:
        """The one whose turn it was has a place now."""
        queue = self._heap[0][1]
        used, more = queue.used, {}
        for resource, amount in amounts.items():
            used[resource] = more[resource] = used.get(resource, 0) + amount
        queue.has = max(queue.has, self._share(queue.share, more))  # of the rest it has no less
        queue.running += 1
        _, number, key, line = heapq.heappop(queue.heads)
        self._placed.add(key)
        if line.is_first(key):
            while (first := line.first()) is not None and first[1] in self._placed:
                self._taken.setdefault(line, []).append(first)
                line.pop()
            if first is not None:
                heapq.heappush(queue.heads, (first[0], number, first[1], line))
        self._moved(queue)

    def passed(self) -> None:
        """The one whose turn it was does not fit, nor does anybody in its line."""
        queue = self._heap[0][1]
        heapq.heappop(queue.heads)
        self._moved(queue)

    def close(self) -> None:
        """Those who were placed wait on until the log says that they are."""
        for line, entries in self._taken.items():
            line.push(entries)

    def _moved(self, queue: _Queue) -> None:
        while queue.heads and queue.heads[0][2] in self._placed:  # it had two turns
            heapq.heappop(queue.heads)
        if queue.heads:
            heapq.heapreplace(self._heap, (self._place(queue), queue))
        else:
            heapq.heappop(self._heap)

    def _place(self, queue: _Queue) -> Place:
        """Where a queue stands with the job that is its first: the least goes first."""
        order, _, _, line = queue.heads[0]
        share = queue.share
        by = Tier.BORROWED
        if share.guarantee or share.deserved:
            by = tier(share, queue.used, line.ask, self._models)
        return (by is not Tier.GUARANTEED, -share.priority, by, queue.has, order, share.queue)

    def _share(self, share: QueueShare, used: Mapping[str, int]) -> float:
        return dominant_share(used, self._totals, share.weight, self._multipliers)


def rank_of(know: Knowledge, line: Line, key: Key) -> Rank:
    """The rank of a waiting job as its queue's account stands in the log."""
    return rank_as(know, line.queue, line.ask, line.members[key][1])


def rank_as(know: Knowledge, queue: str, ask: Ask, order: int) -> Rank:
    """The rank of whoever asks for this of a queue. ``order``: its priority, negated."""
    share = know.derived.share(queue)
    by = tier(share, know.derived.ledger.used(queue), ask, know.derived.ledger.models())
    return (by is not Tier.GUARANTEED, -share.priority, order)


def right_of(know: Knowledge, line: Line) -> Right:
    """Whether a line's queue may have one more of its jobs, as its account stands in the log."""
    ledger, queue = know.derived.ledger, line.queue
    has = ledger.used(queue), ledger.running[queue]
    return right(know.derived.share(queue), *has, line.ask, ledger.models())


def queue_refusal(know: Knowledge, request: JobRequest) -> str:
    """Why a queue lets nothing like this out, or ""."""
    queue, ledger = request.queue, know.derived.ledger
    has = ledger.used(queue), ledger.running[queue]
    ask = ask_of(least_request(request))
    return right(know.derived.share(queue), *has, ask, ledger.models()).refusal

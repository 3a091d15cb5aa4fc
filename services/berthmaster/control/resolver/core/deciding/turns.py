"""Whose turn it is: the queues' accounts as they stand in a draft, and the heads of their lines.

The rules of order among queues are lib/engine/queueing/queues.py's; inside a queue the line whose
first has the least order goes first. Where queues have parents (lib/engine/queueing/tree.py), the
turn goes to a top queue, then to one of its children, and so on: at each step by the same rules. A
queue's place depends on its own account and first job alone, so placing a job moves one queue of
each step and no other. Lines that are known not to fit take their turns too: a job that waits is
first in its queue, and may get a reservation (reservations.py). A job with a reservation has a turn
of its own: others of its line, which must leave that capacity alone, may have come before it.

What goes on in room that is kept for it alone, as parts of a divided job and jobs that move do,
goes before all others of its queue: that it may have so much was decided before, and nobody comes
in between.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.control.resolver.settings import Policy
from berthmaster.lib.engine.fleet.models import EXACTLY
from berthmaster.lib.engine.fleet.needs import TOO_DEAR
from berthmaster.lib.engine.fleetview.shortlist import Shortlist
from berthmaster.lib.engine.queueing.ledger import job_of
from berthmaster.lib.engine.queueing.lines import Line, LineId, Order
from berthmaster.lib.engine.queueing.queues import (
    GPU,
    Amounts,
    Ask,
    Models,
    QueueShare,
    Right,
    Tier,
    dominant_share,
    models_left,
    tier,
)
from berthmaster.lib.engine.queueing.tree import Level, Path, right_along
from berthmaster.lib.lifecycle.sizes import least_request
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.workload import JobRequest

Place = tuple[bool, int, int, float, Order, str]
_AHEAD: Final = -(1 << 62)  # of all queues' priorities, negated
# Less comes first: not guaranteed and -queue priority, of each queue from the top; -priority.
Rank = tuple[tuple[tuple[bool, int], ...], int]


class Turn(NamedTuple):
    """One job that is to be decided about next."""

    line: Line
    key: Key
    right: Right
    blocked: bool  # known not to fit
    accounts: "_Accounts"  # of its queue and of those above it
    places: list[tuple[Place, str]]  # of its queue and of those above it, from the top
    priority: int  # negated
    held_milli: int  # GPU milli that other parts of the same job are charged with
    ask_of: Callable[[JobRequest], Ask]

    @property
    def levels(self) -> tuple[Level, ...]:
        """By what right each of the queues would have it, its own first."""
        return tuple(Level(queue, Tier(at[2]), -at[1]) for at, queue in reversed(self.places))

    @property
    def rank(self) -> Rank:
        """Who has a lesser one goes before it."""
        return tuple((at[0], at[1]) for at, _ in self.places), self.priority

    def right_to(self, request: JobRequest, models: Models) -> Right:
        """Whether its queue may have this, which need not be all that the job wishes for."""
        ask = self.ask_of(request)
        return self.accounts.right(ask._replace(held_milli=self.held_milli), models)


class _Accounts:
    """A queue and those above it, as they stand in a draft."""

    __slots__ = ("_path", "_queues")

    def __init__(self, queues: Iterable["_Queue"]) -> None:
        self._queues = {each.share.queue: each for each in queues if not each.is_remnant}
        self._path: Path = tuple(each.share for each in self._queues.values())

    def right(self, ask: Ask, models: Models) -> Right:
        """Whether all of them may have one more job."""
        return right_along(self._path, self._used, self._running, ask, models)

    def _used(self, queue: str) -> Mapping[str, int]:
        return self._queues[queue].used

    def _running(self, queue: str) -> int:
        return self._queues[queue].running


class _Queue:
    """One queue in a draft: with jobs of its own, or with queues below it."""

    __slots__ = (
        "above",
        "accounts",
        "below",
        "has",
        "heads",
        "is_remnant",
        "path",
        "running",
        "share",
        "used",
    )

    def __init__(
        self,
        share: QueueShare,
        used: Mapping[str, int],
        running: int,
        has: float,
        above: "_Queue | None" = None,
        *,
        is_remnant: bool = False,
    ) -> None:
        """``above``: None of the top alone, which is on nobody's path."""
        self.share = share
        self.used: Amounts = dict(used)
        self.running = running
        self.has = has  # its dominant share, by its weight
        self.above = above
        self.heads: list[tuple[Order, int, Key, Line]] = []
        self.below: list[tuple[Place, _Queue]] = []
        self.is_remnant = is_remnant  # a parent's own jobs, from before it was one
        self.path: tuple[_Queue, ...] = (self, *above.path) if above is not None else ()
        self.accounts = _Accounts(self.path)

    def first(self) -> tuple[Order, Line]:
        """The job that it has to offer."""
        leaf = self
        while leaf.below:
            leaf = leaf.below[0][1]
        order, _, _, line = leaf.heads[0]
        return order, line


class Turns:
    """All queues with somebody waiting, in order."""

    def __init__(
        self,
        know: Knowledge,
        policy: Policy,
        open_clusters: frozenset[str],
        holders: Iterable[Key] = (),
        moving: Container[Key] = (),
    ) -> None:
        """``holders``: for whom room is kept; ``moving``: those of them who go on in it."""
        self._know = know
        self._tree = know.derived.tree
        self._growth = know.derived.growth
        self._totals = know.derived.ledger.totals(open_clusters)
        self._models = know.derived.ledger.models()
        self._multipliers = policy.share_multipliers
        self._taken: dict[Line, list[tuple[Order, Key]]] = {}
        self._done: set[Key] = set()
        self._parts_milli: Counter[Key] = Counter()  # of divided jobs, placed in this draft
        self._moving = moving
        self._top = _Queue(QueueShare(""), {}, 0, 0.0)
        self._inner: dict[str, _Queue] = {}
        behind = self._behind(holders)
        for name, lines in know.derived.lines.by_queue().items():
            queue = self._waiting(name, lines, behind)
            if queue.heads:
                assert queue.above is not None  # only the top has nothing above
                queue.above.below.append((self._place(queue), queue))
        for queue in sorted(self._inner.values(), key=lambda q: -len(q.path)):
            if queue.below and queue.above is not None:
                heapq.heapify(queue.below)
                queue.above.below.append((self._place(queue), queue))
        heapq.heapify(self._top.below)

    def _waiting(
        self, name: str, lines: Mapping[LineId, Line], behind: Mapping[Line, list[Key]]
    ) -> _Queue:
        """A queue with the first jobs of its lines."""
        ledger, share = self._know.derived.ledger, self._tree.share(name)
        above, is_remnant = self._above(name), name in self._tree.children
        if is_remnant:
            above, share = self._parent(name), QueueShare(name)
        has = ledger.used(name), ledger.running[name]
        queue = _Queue(share, *has, self._share(share, has[0]), above, is_remnant=is_remnant)
        for number, line in enumerate(lines.values()):
            first = line.first()
            if first is not None:
                queue.heads.append((self._order(*first), number, first[1], line))
            for key in behind.get(line, ()):
                order = self._order(line.members[key], key)
                queue.heads.append((order, number, key, line))
        heapq.heapify(queue.heads)
        return queue

    def _order(self, order: Order, key: Key) -> Order:
        """Where it stands in its queue."""
        return (_AHEAD, *order[1:]) if key in self._moving else order

    def _above(self, name: str) -> _Queue:
        parents = self._tree.parents.get(name)
        return self._parent(parents[0]) if parents else self._top

    def _parent(self, name: str) -> _Queue:
        """A queue with others below it."""
        found = self._inner.get(name)
        if found is None:
            ledger, share = self._know.derived.ledger, self._tree.share(name)
            used = ledger.used_together(name)
            has = self._share(share, used)
            found = _Queue(share, used, ledger.running_together(name), has, self._above(name))
            self._inner[name] = found
        return found

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
        if not self._top.below:
            return None
        queue, places = self._top, []
        while queue.below:
            place, queue = queue.below[0]
            if not queue.is_remnant:
                places.append((place, queue.share.queue))
        order, _, key, line = queue.heads[0]
        held_milli = self._held_milli(line, key)
        ask = self._know.derived.ask_in(line)
        if held_milli:
            ask = ask._replace(held_milli=held_milli)
        return Turn(
            line,
            key,
            queue.accounts.right(ask, self._models),
            line.blocked_at == self._growth and line.is_first(key),
            queue.accounts,
            places,
            order[1],
            held_milli,
            self._know.derived.ask,
        )

    def _held_milli(self, line: Line, key: Key) -> int:
        """What the other parts of its job are charged with, if it is a part of one."""
        if line.ask.jobs:
            return 0
        job = job_of(key, self._know.open[key].request or line.request)
        return self._know.derived.ledger.gpu_milli_of_job(line.queue, job) + self._parts_milli[job]

    def placed(self, amounts: Amounts) -> None:
        """The one whose turn it was has a place now."""
        queue = self._leaf()
        _, _, key, line = queue.heads[0]
        if not line.ask.jobs:
            job = job_of(key, self._know.open[key].request or line.request)
            self._parts_milli[job] += amounts.get(GPU, 0)
        for each in queue.path:
            used, more = each.used, {}
            for resource, amount in amounts.items():
                used[resource] = more[resource] = used.get(resource, 0) + amount
            each.has = max(each.has, self._share(each.share, more))  # of the rest it has no less
            each.running += line.ask.jobs
        self._leave(queue)

    def skipped(self) -> None:
        """The one whose turn it was does not fit, but others of its line may have more right."""
        self._leave(self._leaf())

    def _leave(self, queue: _Queue) -> None:
        """The first of a queue has had its turn; the next of its line has one."""
        _, number, key, line = queue.heads[0]
        self._done.add(key)
        first = line.first()
        if first is None or first[1] != key:  # it had a turn of its own, behind the first
            heapq.heappop(queue.heads)
        else:
            while first is not None and first[1] in self._done:
                self._taken.setdefault(line, []).append(first)
                line.pop()
                first = line.first()
            if first is None:
                heapq.heappop(queue.heads)
            else:
                heapq.heapreplace(queue.heads, (self._order(*first), number, first[1], line))
        self._moved(queue)

    def passed(self) -> None:
        """The one whose turn it was does not fit, nor does anybody in its line."""
        queue = self._leaf()
        heapq.heappop(queue.heads)
        self._moved(queue)

    def close(self) -> None:
        """Those who have had their turn wait on until the log says that they have a place."""
        for line, entries in self._taken.items():
            line.push(entries)

    def _leaf(self) -> _Queue:
        """The queue whose turn it is."""
        queue = self._top
        while queue.below:
            queue = queue.below[0][1]
        return queue

    def _moved(self, queue: _Queue) -> None:
        while queue.heads and queue.heads[0][2] in self._done:  # it had two turns
            heapq.heappop(queue.heads)
        for each in queue.path:
            assert each.above is not None  # only the top has nothing above
            if each.heads or each.below:
                heapq.heapreplace(each.above.below, (self._place(each), each))
            else:
                heapq.heappop(each.above.below)

    def _place(self, queue: _Queue) -> Place:
        """Where a queue stands with the job that is its first: the least goes first."""
        order, line = queue.first()
        share = queue.share
        by = Tier.BORROWED
        if share.guarantee or share.deserved:
            by = tier(share, queue.used, self._know.derived.ask_in(line), self._models)
        if queue.below and not queue.below[0][0][0] and self._tree.keeps(share.queue):
            by = Tier.GUARANTEED
        return (by is not Tier.GUARANTEED, -share.priority, by, queue.has, order, share.queue)

    def _share(self, share: QueueShare, used: Mapping[str, int]) -> float:
        return dominant_share(used, self._totals, share.weight, self._multipliers)


def rank_of(know: Knowledge, line: Line, key: Key) -> Rank:
    """The rank of a waiting job as its queue's account stands in the log."""
    return rank_as(know, line.queue, know.derived.ask_in(line), line.members[key][1])


def rank_as(know: Knowledge, queue: str, ask: Ask, order: int) -> Rank:
    """The rank of whoever asks for this of a queue. ``order``: its priority, negated."""
    levels = reversed(know.derived.levels(queue, ask))
    return tuple((by is not Tier.GUARANTEED, -priority) for _, by, priority in levels), order


def right_of(know: Knowledge, line: Line) -> Right:
    """Whether a line's queue may have one more of its jobs, as its account stands in the log."""
    return know.derived.right(line.queue, know.derived.ask_in(line))


def right_elsewhere(know: Knowledge, workload: Workload, request: JobRequest) -> Right:
    """Whether a job's queue may have it in another place than the one that it has now."""
    ask = know.derived.ask(least_request(request))
    if request.part is not None:
        ask = ask._replace(held_milli=know.derived.ledger.gpu_milli_beside(workload.key))
    right = know.derived.right(request.queue, ask, but_for=workload.key)
    return _refusing(know, right, request)


def _refusing(know: Knowledge, right: Right, request: JobRequest) -> Right:
    """The right, refused where the queue has too little left for every place that there is."""
    if right.refusal or within_right(know, right, request) is not None:
        return right
    return right._replace(refusal=f"every node {TOO_DEAR}")


def within_right(know: Knowledge, right: Right, request: JobRequest) -> JobRequest | None:
    """The request without GPU models of which its queue has all that it may, and without places
    where its parts of GPUs cost more than the queue may have; None if nothing is left of it."""
    narrowed = _without_models(know, right, request)
    if narrowed is None or not right.left:
        return narrowed
    return know.derived.within(narrowed, dict(right.left))


def _without_models(know: Knowledge, right: Right, request: JobRequest) -> JobRequest | None:
    if not right.barred:
        return request
    sets = []
    for pods in request.pod_sets:
        if pods.gpus:
            left = models_left(pods.gpu_models, right.barred, know.derived.ledger.models())
            if not left:
                return None
            exactly = tuple(f"{EXACTLY}{model}" for model in left)
            pods = msgspec.structs.replace(pods, gpu_models=exactly)
        sets.append(pods)
    return msgspec.structs.replace(request, pod_sets=tuple(sets))


def shortlist_of(cycle: Cycle, request: JobRequest, right: Right) -> Shortlist:
    """Where it might go, for people: clusters that are out for the sake of its queue say so."""
    narrowed = within_right(cycle.know, right, request)
    wide = cycle.shortlist(request)
    if narrowed is request or narrowed is None:
        return wide
    shortlist = cycle.shortlist(narrowed)
    barred = f"its queue may have no more {' or '.join(right.barred)}"
    filtered = {  # a new dict: decisions share the shortlist's own
        cluster: barred if why != TOO_DEAR and wide.filtered.get(cluster) != why else why
        for cluster, why in shortlist.filtered.items()
    }
    return shortlist._replace(filtered=filtered)


def queue_right(know: Knowledge, request: JobRequest) -> Right:
    least = least_request(request)
    return _refusing(know, know.derived.right(request.queue, know.derived.ask(least)), least)


def queue_refusal(know: Knowledge, request: JobRequest) -> str:
    """Why a queue lets nothing like this out, or ""."""
    return queue_right(know, request).refusal

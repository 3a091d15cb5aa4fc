"""The next job of a decision: usage of the queues in a draft, and the first jobs of their classes.

``Turns.next`` returns the next candidate as a ``Turn``. The caller answers with ``placed``,
``skipped`` or ``passed``.

Example: queue a is guaranteed 4 GPUs and uses 2, queue b has used 10 without a guarantee. Both have
pending jobs of 2 GPUs. a's job is next by its guarantee. After ``placed``, a uses its 4 GPUs, so
its next job borrows, and the lower dominant share goes first.

Rules of this file:

- lib/engine/queueing/queues.py has the order among queues. Inside a queue, the job class whose
  first job has the smallest order goes first.
- With parents a top queue is selected, then one of its children, and so on, by the same rules at
  each level.
- The position of a queue depends only on its own usage and first job, so placing a job moves one
  queue at each level.
- Trials go after all other jobs of all queues.
- Blocked classes get turns too: their first job may get a reservation (reservations.py).
- A job with a reservation has a turn of its own, since other jobs of its class may go before.
- Jobs that continue on capacity reserved for them alone, such as parts of divided jobs and moving
  jobs, go before all other jobs of their queue. An earlier decision gave them this capacity.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.control.resolver.policy import Policy
from berthmaster.lib.engine.fleet.gpus import EXACTLY
from berthmaster.lib.engine.fleet.needs import TOO_DEAR
from berthmaster.lib.engine.fleetview.shortlist import Shortlist
from berthmaster.lib.engine.queueing.ledger import job_of
from berthmaster.lib.engine.queueing.lines import Line, LineId, Order
from berthmaster.lib.engine.queueing.queues import (
    GPU,
    Amounts,
    Ask,
    Level,
    Models,
    Path,
    QueueShare,
    Right,
    Tier,
    dominant_share,
    models_left,
    right_along,
    tier,
)
from berthmaster.lib.lifecycle.pods import least_request
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.workload import TRIAL_PRIORITY, JobRequest

Place = tuple[int, int, int, float, Order, str]
_TRIALS: Final = 2  # after all guarantees (0) and all other jobs (1)
_AHEAD: Final = -(1 << 62)  # of all queues' priorities, negated
# Less comes first: guaranteed, other or trial, and -queue priority, of each queue from the top;
# -priority.
Rank = tuple[tuple[tuple[int, int], ...], int]


class Turn(NamedTuple):
    """The next job to decide about."""

    line: Line
    key: Key
    right: Right
    blocked: bool  # known not to fit
    accounts: "_Accounts"  # of the queue and its parents
    places: list[tuple[Place, str]]  # of the queue and its parents, top first
    priority: int  # negated
    held_milli: int  # GPU milli that other parts of the same job are charged with
    ask_of: Callable[[JobRequest], Ask]

    @property
    def of_trial(self) -> bool:
        """Return whether the candidate is a trial, and so are all that follow."""
        return self.priority == -TRIAL_PRIORITY

    @property
    def levels(self) -> tuple[Level, ...]:
        """Return the precedence of each queue for the job, its own queue first."""
        return tuple(Level(queue, Tier(at[2]), -at[1]) for at, queue in reversed(self.places))

    @property
    def rank(self) -> Rank:
        """Return the rank; a smaller rank goes first."""
        return tuple((at[0], at[1]) for at, _ in self.places), self.priority

    def right_to(self, request: JobRequest, models: Models) -> Right:
        """Return whether the queue may run this request, possibly smaller than the job's."""
        ask = self.ask_of(request)
        return self.accounts.right(ask._replace(held_milli=self.held_milli), models)


class _Accounts:
    """Usage of a queue and its parents in a draft."""

    __slots__ = ("_path", "_queues")

    def __init__(self, queues: Iterable["_Queue"]) -> None:
        self._queues = {each.share.queue: each for each in queues if not each.is_remnant}
        self._path: Path = tuple(each.share for each in self._queues.values())

    def right(self, ask: Ask, models: Models) -> Right:
        """Return whether all of them may run one more job."""
        return right_along(self._path, self._used, self._running, ask, models)

    def _used(self, queue: str) -> Mapping[str, int]:
        return self._queues[queue].used

    def _running(self, queue: str) -> int:
        return self._queues[queue].running


class _Queue:
    """One queue in a draft, with jobs or with child queues."""

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
        """``above``: None only for the root, which is in no path."""
        self.share = share
        self.used: Amounts = dict(used)
        self.running = running
        self.has = has  # dominant share divided by weight
        self.above = above
        self.heads: list[tuple[Order, int, Key, Line]] = []
        self.below: list[tuple[Place, _Queue]] = []
        self.is_remnant = is_remnant  # jobs of a parent queue, from before it had children
        self.path: tuple[_Queue, ...] = (self, *above.path) if above is not None else ()
        self.accounts = _Accounts(self.path)

    def first(self) -> tuple[Order, Line]:
        """Return the next job of the queue."""
        leaf = self
        while leaf.below:
            leaf = leaf.below[0][1]
        order, _, _, line = leaf.heads[0]
        return order, line


class Turns:
    """All queues with pending jobs, in order."""

    def __init__(
        self,
        know: Knowledge,
        policy: Policy,
        open_clusters: frozenset[str],
        holders: Iterable[Key] = (),
        moving: Container[Key] = (),
    ) -> None:
        """``holders``: jobs with a reservation. ``moving``: those that continue on it."""
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
        """Return a queue with the first jobs of its classes."""
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
        """Return the position of a job in its queue."""
        return (_AHEAD, *order[1:]) if key in self._moving else order

    def _above(self, name: str) -> _Queue:
        parents = self._tree.parents.get(name)
        return self._parent(parents[0]) if parents else self._top

    def _parent(self, name: str) -> _Queue:
        """Return a queue with children."""
        found = self._inner.get(name)
        if found is None:
            ledger, share = self._know.derived.ledger, self._tree.share(name)
            used = ledger.used_together(name)
            has = self._share(share, used)
            found = _Queue(share, used, ledger.running_together(name), has, self._above(name))
            self._inner[name] = found
        return found

    def _behind(self, holders: Iterable[Key]) -> dict[Line, list[Key]]:
        """Return jobs that are not the first of their class."""
        found: dict[Line, list[Key]] = {}
        for key in holders:
            line = self._know.derived.lines.line_of(key)
            if line is not None and not line.is_first(key):
                found.setdefault(line, []).append(key)
        return found

    def next(self) -> Turn | None:
        """Return the next candidate; the same one until it is placed or skipped."""
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
        """Return the charge of the other parts of the job, for a part."""
        if line.ask.jobs:
            return 0
        job = job_of(key, self._know.open[key].request or line.request)
        return self._know.derived.ledger.gpu_milli_of_job(line.queue, job) + self._parts_milli[job]

    def placed(self, amounts: Amounts) -> None:
        """Note that the candidate is placed."""
        queue = self._leaf()
        _, _, key, line = queue.heads[0]
        if not line.ask.jobs:
            job = job_of(key, self._know.open[key].request or line.request)
            self._parts_milli[job] += amounts.get(GPU, 0)
        for each in queue.path:
            used, more = each.used, {}
            for resource, amount in amounts.items():
                used[resource] = more[resource] = used.get(resource, 0) + amount
            # Monotonic, since the rest of the draft adds usage
            each.has = max(each.has, self._share(each.share, more))
            each.running += line.ask.jobs
        self._leave(queue)

    def skipped(self) -> None:
        """Skip the candidate. Other jobs of its class may have more rights."""
        self._leave(self._leaf())

    def _leave(self, queue: _Queue) -> None:
        """End the turn of a queue's first job; the next of its class follows."""
        _, number, key, line = queue.heads[0]
        self._done.add(key)
        first = line.first()
        if first is None or first[1] != key:  # its turn was its own, behind the first
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
        """Skip the candidate and its whole class."""
        queue = self._leaf()
        heapq.heappop(queue.heads)
        self._moved(queue)

    def close(self) -> None:
        """Return placed jobs to their classes, until the log has the placements."""
        for line, entries in self._taken.items():
            line.push(entries)

    def _leaf(self) -> _Queue:
        """Return the queue of the next candidate."""
        queue = self._top
        while queue.below:
            queue = queue.below[0][1]
        return queue

    def _moved(self, queue: _Queue) -> None:
        while queue.heads and queue.heads[0][2] in self._done:  # had two turns
            heapq.heappop(queue.heads)
        for each in queue.path:
            assert each.above is not None  # only the top has nothing above
            if each.heads or each.below:
                heapq.heapreplace(each.above.below, (self._place(each), each))
            else:
                heapq.heappop(each.above.below)

    def _place(self, queue: _Queue) -> Place:
        """Return the position of a queue by its first job; the smallest goes first."""
        order, line = queue.first()
        share = queue.share
        by = Tier.BORROWED
        if share.guarantee or share.deserved:
            by = tier(share, queue.used, self._know.derived.ask_in(line), self._models)
        if queue.below and not queue.below[0][0][0] and self._tree.keeps(share.queue):
            by = Tier.GUARANTEED
        return (_class_of(order[1], by), -share.priority, by, queue.has, order, share.queue)

    def _share(self, share: QueueShare, used: Mapping[str, int]) -> float:
        return dominant_share(used, self._totals, share.weight, self._multipliers)


def _class_of(order: int, by: Tier) -> int:
    """Return 0 for a job within its guarantee, 2 for a trial, else 1. ``order``: negated
    priority.
    """
    return _TRIALS if order == -TRIAL_PRIORITY else int(by is not Tier.GUARANTEED)


def rank_of(know: Knowledge, line: Line, key: Key) -> Rank:
    """The rank of a waiting job as its queue's account stands in the log."""
    return rank_as(know, line.queue, know.derived.ask_in(line), line.members[key][1])


def rank_as(know: Knowledge, queue: str, ask: Ask, order: int) -> Rank:
    """Return the rank of a request in a queue. ``order``: negated priority."""
    levels = reversed(know.derived.levels(queue, ask))
    return tuple((_class_of(order, by), -priority) for _, by, priority in levels), order


def right_of(know: Knowledge, line: Line) -> Right:
    """Return whether a class's queue may run one more of its jobs, by the log."""
    return know.derived.right(line.queue, know.derived.ask_in(line))


def right_elsewhere(know: Knowledge, workload: Workload, request: JobRequest) -> Right:
    """Return whether a job's queue may run it in another place."""
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
    """Return the request without GPU models beyond the queue's quota, and without nodes with too
    costly fractions; None if nothing is left.
    """
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
    """Return the shortlist for explanations, with clusters excluded by the queue's quota."""
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

"""Who waits, and who is next: by queue priority, then the job's own, then by who is due first.

Jobs of one queue, one shape and about one duration form a line, and so do parts of divided jobs: if
its first does not fit, or would delay somebody, none of them does better, and the line is passed
over until something changes. An order is a tuple, so that comparing two is cheap. Whose turn it is
among queues the resolver's turns.py says.
"""

import heapq
import math
from typing import Final

from berthmaster.lib.engine.fleet.needs import Shape, shape_of
from berthmaster.lib.engine.fleet.shares import wants_fraction
from berthmaster.lib.engine.queueing.order import Rank
from berthmaster.lib.engine.queueing.queues import Ask, ask_of
from berthmaster.lib.lifecycle.sizes import least_request
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.workload import JobRequest

MAX_STALE = 64  # entries of a line that nobody waits under any more, beside as many as wait
DURATIONS_AN_OCTAVE: Final = 4  # so a line's bound is at most a quarter above a member's duration
# -queue priority, -priority, place by order.py, sequence of submission: the least goes first
Order = tuple[int, int, Rank, int]


class Line:
    """The waiting jobs of one queue, shape and class of duration."""

    __slots__ = (
        "_heap",
        "ask",
        "blocked_at",
        "has_fractions",
        "id",
        "left_alone",
        "looked",
        "members",
        "overtaken",
        "queue",
        "request",
        "shape",
    )

    def __init__(self, line_id: "LineId", request: JobRequest, shape: Shape) -> None:
        self.id = line_id
        self.queue = line_id[0]
        self.request = request  # of any member: for its shape, all are alike
        self.shape = shape
        self.ask: Ask = ask_of(least_request(request))  # with more it starts where it may
        self.has_fractions = any(map(wants_fraction, request.pod_sets))
        self.members: dict[Key, Order] = {}
        self._heap: list[tuple[Order, Key]] = []
        self.blocked_at = -1  # the growth at which its first did not fit
        self.overtaken = 0  # how often another came before its first
        self.left_alone: frozenset[tuple[Key, int]] = frozenset()  # reservations, at that time
        self.looked: object = None  # what reservations.py last found out for it

    @property
    def jobs(self) -> int:
        """How many wait in it; none, if they are parts of such as have places."""
        return self.ask.jobs * len(self.members)

    def first(self) -> tuple[Order, Key] | None:
        """Who is next of it."""
        heap = self._heap
        while heap:
            order, key = heap[0]
            if self.members.get(key) == order:
                return order, key
            heapq.heappop(heap)
        return None

    def is_first(self, key: Key) -> bool:
        first = self.first()
        return first is not None and first[1] == key

    def add(self, key: Key, order: Order) -> None:
        first = self.first()
        if first is not None and order < first[0]:
            self.blocked_at = -1  # what the first must leave to others this one may take
            self.overtaken += 1
        self.members[key] = order
        heapq.heappush(self._heap, (order, key))
        if len(self._heap) > 2 * len(self.members) + MAX_STALE:  # behind a first that never goes
            self._heap[:] = [(order, key) for key, order in self.members.items()]
            heapq.heapify(self._heap)

    def pop(self) -> None:
        """Pass over the first, until it is pushed back."""
        heap = self._heap
        first = heapq.heappop(heap)
        while heap and heap[0] == first:  # it had left and come back to this order
            heapq.heappop(heap)

    def push(self, entries: list[tuple[Order, Key]]) -> None:
        """Take those back in who were passed over."""
        for entry in entries:
            heapq.heappush(self._heap, entry)


# Queue, key of the shape, class of duration, jobs that each adds.
LineId = tuple[str, bytes, int | None, int]


def duration_class(expected_s: float | None) -> int | None:
    """Jobs of one class last about as long; None = not told."""
    if expected_s is None or not expected_s > 0:
        return None
    share, octave = math.frexp(expected_s)  # exact, as logarithms are not
    return octave * DURATIONS_AN_OCTAVE + math.ceil((share - 0.5) * 2 * DURATIONS_AN_OCTAVE)


def longest_s(duration: int | None) -> float | None:
    """What no job of the class exceeds."""
    if duration is None:
        return None
    octave, part = divmod(duration, DURATIONS_AN_OCTAVE)
    return math.ldexp(0.5 + part / (2 * DURATIONS_AN_OCTAVE), octave)


class Lines:
    def __init__(self) -> None:
        self._lines: dict[LineId, Line] = {}
        self._by_queue: dict[str, dict[LineId, Line]] = {}
        self._line_of: dict[Key, LineId] = {}
        self.jobs = 0  # that wait; parts of divided jobs do not count, their jobs have places

    def __len__(self) -> int:
        return len(self._line_of)

    def __contains__(self, key: Key) -> bool:
        return key in self._line_of

    def add(
        self, workload: Workload, queue_priority: int, place: Rank, class_s: float | None
    ) -> None:
        """It waits from now on, or waits under another order. ``class_s``: how long it is said or
        expected to last; None where that does not count."""
        request = workload.request
        if request is None:
            return
        key = workload.key
        duration = duration_class(class_s)
        line_id = self._line_of.get(key)
        if line_id is not None and line_id[2] != duration:
            self.remove(key)
            line_id = None
        if line_id is None:
            shape, adds = shape_of(request), int(request.part is None)
            line_id = request.queue, shape.key, duration, adds
            if line_id not in self._lines:
                line = self._lines[line_id] = Line(line_id, request, shape)
                self._by_queue.setdefault(line.queue, {})[line_id] = line
        line = self._lines[line_id]
        order = (-queue_priority, -workload.priority, place, workload.submitted_sequence)
        if key not in line.members:
            self.jobs += line.ask.jobs
        if line.members.get(key) != order:
            line.add(key, order)
        self._line_of[key] = line_id

    def remove(self, key: Key) -> None:
        line_id = self._line_of.pop(key, None)
        if line_id is None:
            return
        line = self._lines[line_id]
        del line.members[key]
        self.jobs -= line.ask.jobs
        if not line.members:
            del self._lines[line_id]
            of_queue = self._by_queue[line.queue]
            del of_queue[line_id]
            if not of_queue:
                del self._by_queue[line.queue]

    def waiting(self, queue: str) -> int:
        return sum(line.jobs for line in self._by_queue.get(queue, {}).values())

    def lines(self) -> list[Line]:
        """Every line with somebody in it."""
        return list(self._lines.values())

    def by_queue(self) -> dict[str, dict[LineId, Line]]:
        """The lines of each queue that has any."""
        return self._by_queue

    def line_of(self, key: Key) -> Line | None:
        """Where a job waits."""
        line_id = self._line_of.get(key)
        return self._lines[line_id] if line_id is not None else None

    def position(self, key: Key) -> int | None:
        """Its place in the order over all lines, 1 = next. Linear in the number of all."""
        line = self.line_of(key)
        if line is None:
            return None
        mine = line.members[key]
        lines = self._lines.values()
        return 1 + sum(order < mine for each in lines for order in each.members.values())

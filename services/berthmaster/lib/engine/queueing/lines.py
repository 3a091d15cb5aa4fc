"""Pending jobs in order: by queue priority, priority of the job, and due time.

Jobs of one queue, one shape and about one duration form a job class, and so do parts of divided
jobs. If the first job of a class does not fit, or would delay another, no other job of the class
does better, and the class is skipped until something changes. An order is a tuple for fast
comparison. The resolver's turns.py chooses between queues.
"""

import heapq
import math
from typing import Final

from berthmaster.lib.engine.fleet.needs import Shape, shape_of
from berthmaster.lib.engine.fleet.shares import wants_fraction
from berthmaster.lib.engine.queueing.order import Rank
from berthmaster.lib.engine.queueing.queues import Ask, ask_of
from berthmaster.lib.lifecycle.pods import least_request
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.workload import JobRequest

MAX_STALE = 64  # stale entries of a heap, beyond the number of members
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
        self.request = request  # request of any member, for its shape
        self.shape = shape
        # A job starts at its minimum and grows later
        self.ask: Ask = ask_of(least_request(request))
        self.has_fractions = any(map(wants_fraction, request.pod_sets))
        self.members: dict[Key, Order] = {}
        self._heap: list[tuple[Order, Key]] = []
        self.blocked_at = -1  # capacity generation at which the first did not fit
        self.overtaken = 0  # number of times that another job went before the first
        self.left_alone: frozenset[tuple[Key, int]] = frozenset()  # reservations at that time
        self.looked: object = None  # last result of reservations.py for the class

    @property
    def jobs(self) -> int:
        """Return the number of jobs; 0 for parts of placed jobs."""
        return self.ask.jobs * len(self.members)

    def first(self) -> tuple[Order, Key] | None:
        """Return the next job."""
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
            self.blocked_at = -1  # a new job may take capacity denied to the first
            self.overtaken += 1
        self.members[key] = order
        heapq.heappush(self._heap, (order, key))
        # Stale entries stay behind a first that never leaves
        if len(self._heap) > 2 * len(self.members) + MAX_STALE:
            self._heap[:] = [(order, key) for key, order in self.members.items()]
            heapq.heapify(self._heap)

    def pop(self) -> None:
        """Skip the first job until ``push``."""
        heap = self._heap
        first = heapq.heappop(heap)
        while heap and heap[0] == first:  # duplicate of a job that left and returned
            heapq.heappop(heap)

    def push(self, entries: list[tuple[Order, Key]]) -> None:
        """Return skipped jobs."""
        for entry in entries:
            heapq.heappush(self._heap, entry)


# Queue, key of the shape, class of duration, jobs that each adds.
LineId = tuple[str, bytes, int | None, int]


def duration_class(expected_s: float | None) -> int | None:
    """Return the number of a duration class; None = unknown. Jobs of a class last about as long."""
    if expected_s is None or not expected_s > 0:
        return None
    share, octave = math.frexp(expected_s)  # exact, as logarithms are not
    return octave * DURATIONS_AN_OCTAVE + math.ceil((share - 0.5) * 2 * DURATIONS_AN_OCTAVE)


def longest_s(duration: int | None) -> float | None:
    """Return the maximum duration of the class."""
    if duration is None:
        return None
    octave, part = divmod(duration, DURATIONS_AN_OCTAVE)
    return math.ldexp(0.5 + part / (2 * DURATIONS_AN_OCTAVE), octave)


class Lines:
    def __init__(self) -> None:
        self._lines: dict[LineId, Line] = {}
        self._by_queue: dict[str, dict[LineId, Line]] = {}
        self._line_of: dict[Key, LineId] = {}
        self.jobs = 0  # pending jobs; a divided job counts, its parts do not

    def __len__(self) -> int:
        return len(self._line_of)

    def __contains__(self, key: Key) -> bool:
        return key in self._line_of

    def add(
        self, workload: Workload, queue_priority: int, place: Rank, class_s: float | None
    ) -> None:
        """Add a pending job, or change its order.

        ``class_s``: stated or expected duration; None if irrelevant.
        """
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
        """Return all classes with a member."""
        return list(self._lines.values())

    def by_queue(self) -> dict[str, dict[LineId, Line]]:
        """Return the classes of each queue."""
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

"""Pending jobs in order: by queue priority, priority of the job, and due time.

Jobs of one queue, one shape and about one duration form a job class, and so do parts of divided
jobs. If the first job of a class does not fit, or would delay another, no other job of the class
does better, and the class is skipped until something changes. An order is a tuple for fast
comparison. The resolver's turns.py chooses between queues.

**Order.** The order of a queue's pending jobs, while no running job is stopped for one.

``place`` returns the ``Rank`` of a job under an ``Outlook``: the time at which the job is *due*,
and the times from which capacity is reserved. The job that is due first goes first.

Example: a fleet of 100 GPUs has a backlog of 1,000 s. A job of 1 GPU for 60 s and a job of 50 GPUs
for 3,600 s are submitted at 0 s, both with stated durations. The small job is due at 245 s by its
size. The wide job is due at -500 s by the backlog and its width, so the wide job goes first. While
50 GPUs are not free, the small job may take free capacity. From 700 s on, capacity is reserved for
the wide job.

Rules:

- A job is due after the lesser of two spans. Its own size: ``stretch`` seconds for each GPU-second
  of service, so small jobs pass large ones. The backlog: ``patience`` times the seconds that the
  fleet needs for all open work, so a job that waited longer goes before later jobs of any size.
- The span is multiplied by the square of the fleet's share that the job leaves to others, because
  freeing capacity for a wide job takes longer.
- A wide job is due earlier by ``ahead`` times the backlog and its share of the fleet. So it takes
  capacity that another wide job leaves, which took long to free.
- A job that does not fit waits for free capacity, until capacity is reserved for it
  (reservations.py). That is after ``keep_stretch`` seconds per GPU-second, or after the share
  ``keep_patience`` of the backlog, whichever is first. Earlier reservations would idle GPUs. Later
  ones would leave short wide jobs to chance. Once the job is due, its reservation is firm.
- Times differ for durations that are EXPECTED (learned) and STATED. With learned durations wide
  jobs are further ahead, because planned starts seldom come true. A reservation is firm at once,
  because expectations change with each ending and would move the plan forever.
- A few of the largest jobs would delay hundreds of others. They are *left behind*: due by size
  alone, and so after nearly all others. Unused capacity is reserved for them after ``KEEP_LEFT`` of
  their size. Only jobs with a stated duration, and at most the share ``LEFT_SHARE`` of all jobs,
  are left behind. So 99 of 100 jobs start in time, however wrong the statements are.

**Dial.** With due times no job waits forever, but under several times the fleet's load the mean
completion time suffers. ``short_first`` trades the first for the second. At 0.5 the backlog counts
twice and width half. At 1 the smallest go first, apart from jobs that waited a hundred times as
long as at 0.

**Bound on waiting.** Under one outlook due times are constant. A job submitted after another's due
time plus ``ahead`` times the backlog for its width goes first only in two cases: it ends before the
other needs the capacity, or fits beside the other. Of two jobs with equal service and width the
older goes first. With a reservation, a job waits only for the jobs on the reserved nodes
(control/resolver/core/deciding/reservations.py).

Pure. The outlook moves in steps of a tenth, so a sorted order is rebuilt only after a real change
of the backlog.
"""

import heapq
import math
from typing import Final, Literal, NamedTuple

from berthmaster.lib.engine.fleet.needs import Shape, shape_of
from berthmaster.lib.engine.fleet.shares import wants_fraction
from berthmaster.lib.engine.queueing.queues import Ask, ask_of
from berthmaster.lib.lifecycle.pods import least_request
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.workload import JobRequest

OrderBy = Literal["due", "arrival"]  # among jobs of one queue and priority

KEEP_LEFT: Final = 0.5  # keep_stretch of jobs left behind
LEFT_SHARE: Final = 0.007  # share of the backlog after which a job left behind counts as late
LATE: Final = 0.9  # share of the backlog after which a job left behind counts as late
MOST_SHORT_FIRST: Final = 0.99  # a larger value would make no job ever due
STEP: Final = 1.1  # between two outlooks' patience
LEAST_PATIENCE_S: Final = 1.0
# Worth of a GPU in CPU milli; the openb trace has 12 cores for each GPU
CPU_MILLI_A_GPU: Final = 12_000


class Terms(NamedTuple):
    """How service and backlog become times."""

    stretch: float  # seconds of waiting for each GPU-second of service
    patience: float  # times the backlog
    ahead: float  # times the backlog, of a job as wide as the fleet
    keep_stretch: float
    keep_patience: float
    width: float = 1.0  # weight of the share of the fleet that a job takes

    def leaning(self, short_first: float) -> "Terms":
        """The same where short jobs go first by so much: size counts the more, the backlog and
        width the less."""
        if not short_first:
            return self
        rest = 1.0 - min(short_first, MOST_SHORT_FIRST)
        return Terms(
            self.stretch,
            self.patience / rest,
            self.ahead * rest,
            self.keep_stretch / rest,
            self.keep_patience / rest,
            self.width * rest,
        )


STATED: Final = Terms(4.5, 2.0, 2.0, 1.0, 0.7)
EXPECTED: Final = Terms(8.0, 2.0, 3.0, 1e6, 0.8)  # room is kept by the backlog alone


class Rank(NamedTuple):
    """The least goes first."""

    due_at_s: float
    keep_at_s: float = 0.0  # start of the reservation
    firm_at_s: float = 0.0  # time from which the reservation is firm


class Outlook(NamedTuple):
    """State of the fleet that due times depend on."""

    patience_s: float = math.inf  # seconds that the fleet needs for all open work
    gpus: float = math.inf  # of the fleet
    left_gpu_s: float = math.inf  # a job of more service than this is left behind
    short_first: float = 0.0  # a setting: 0 = by due times, 1 = the smallest first


NO_OUTLOOK: Final = Outlook()


def gpu_share(request: JobRequest) -> float:
    """Return the GPUs of all pods; for pods without GPUs the worth of their CPUs."""
    share = 0.0
    for pods in request.pod_sets:
        if pods.gpus:
            share += pods.count * pods.gpus * pods.gpu_milli / 1000
        else:
            share += pods.count * pods.cpu_milli / CPU_MILLI_A_GPU
    return share


def service_gpu_s(request: JobRequest, duration_s: float) -> float:
    """Return the service of a job in GPU-seconds."""
    return gpu_share(request) * duration_s


def outlook(open_gpu_s: float, gpus: float, left_gpu_s: float = math.inf) -> Outlook:
    """From the service that all open jobs still need and the fleet's GPUs; patience in steps."""
    if not (gpus > 0 and open_gpu_s > 0):
        return Outlook(LEAST_PATIENCE_S, max(gpus, 0.0), left_gpu_s)
    exact_s = max(LEAST_PATIENCE_S, open_gpu_s / gpus)
    if math.isinf(exact_s):
        return Outlook(math.inf, gpus, left_gpu_s)
    steps = round(math.log(exact_s) / math.log(STEP))
    return Outlook(STEP**steps, gpus, left_gpu_s)


def left_places(submitted: int, late: int) -> int:
    """Return how many pending jobs may be left behind, by the number of jobs so far."""
    return max(0, math.ceil(LEFT_SHARE * submitted) - late)


def place(
    service: float,
    submitted_at_s: float,
    gpus: float,
    seen: Outlook = NO_OUTLOOK,
    *,
    stated: bool = True,
) -> Rank:
    """Return the rank of a job in its queue and priority.

    ``gpus``: GPUs of all pods together (``gpu_share``). ``stated``: whether the submitter stated
    the duration behind ``service``.
    """
    terms = (STATED if stated else EXPECTED).leaning(seen.short_first)
    if stated and service > seen.left_gpu_s:
        due_at_s = submitted_at_s + terms.stretch * service
        keep_s = KEEP_LEFT * terms.keep_stretch * service
        return Rank(due_at_s, submitted_at_s + keep_s, due_at_s)
    backlog_s = seen.patience_s
    wide = min(1.0, gpus / seen.gpus) if seen.gpus > 0 else 1.0
    due_s = (1.0 - terms.width * wide) ** 2 * min(
        terms.stretch * service, terms.patience * backlog_s
    )
    if backlog_s < math.inf:
        due_s -= terms.ahead * wide * backlog_s
    due_at_s = submitted_at_s + due_s
    keep_s = min(terms.keep_stretch * service, terms.keep_patience * backlog_s)
    keep_at_s = submitted_at_s + keep_s
    return Rank(due_at_s, keep_at_s, due_at_s if stated else keep_at_s)


MAX_STALE = 64  # stale entries of a heap, beyond the number of members
DURATIONS_AN_OCTAVE: Final = 4  # so a line's bound is at most a quarter above a member's duration
# -queue priority, -priority, place by lines.py, sequence of submission: the least goes first
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

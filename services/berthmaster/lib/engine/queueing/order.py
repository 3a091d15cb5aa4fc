"""The order of a queue's pending jobs, while no running job is stopped for one.

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

import math
from typing import Final, Literal, NamedTuple

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

"""Which of a queue's waiting jobs goes first, when nothing that runs is stopped for it.

A job is *due* some time after it was submitted, and the job that is due first goes first. The
lesser of two spans counts, times the square of the share of the fleet that a job leaves to others,
since it takes longer to make room for wide jobs:

- its own size: ``stretch`` seconds for each GPU-second that it will take, so that small jobs pass
  large ones, and a job that waits moves up all the while;
- the fleet's backlog: ``patience`` times the seconds that the whole fleet would need for all that
  is open. Where everybody waits, whoever has waited for longer than that goes before those who came
  later, whatever their size.

A wide job is due still earlier, by ``ahead`` times the backlog for the whole fleet and its share of
that for less. So it takes room that is free at once: above all that which another wide job leaves
behind, which took long to clear and would be cleared again for the next one.

Until room is *kept* for a job that does not fit (reservations.py), it takes what is free. Room is
kept once it has waited for ``keep_stretch`` seconds for each of its GPU-seconds, or for the share
``keep_patience`` of the backlog, whichever is first: earlier, GPUs would stand idle for nobody's
sake; later, wide jobs that are soon over would wait for chance. Once it is due, what is kept is
firm.

These times are others where durations are only EXPECTED, from what ended before, than where they
are STATED: wide jobs are further ahead, as a plan for when they could begin seldom comes true; and
room is firm as soon as it is kept, which is when the backlog says so, for what is expected changes
with each job that ends, and plans would be made anew for ever.

A few of the largest jobs would hold up hundreds of others each. They are *left behind*: they are
due by their size alone, whatever the backlog, and so after nearly all others; room that nobody
before them needs is kept for them after ``KEEP_LEFT`` of their size. Only jobs that state their
duration can be, and no more than the share ``LEFT_SHARE`` of all may come to wait like that, so
that all but one job in a hundred start in their time however wrong the statements are.

**The dial.** By due times nobody waits for ever, and where several times as much is offered as the
fleet can do, the mean completion suffers for that. ``short_first`` says how much of the one is
given up for the other: at 0.5 the backlog counts as twice as long and width half; at 1 the smallest
go first, and whoever has waited for a hundred times as long as at 0.

**Bound on waiting.** Under one outlook these times do not change, and no job that is submitted
after another one's due time, and ``ahead`` times the backlog for its width, goes before it unless
it is over before the other one's room is needed, or fits beside it. Of two jobs of equal service
and width the one that was submitted first goes first. With room kept for it, a job waits for what
runs on those nodes and no longer (control/resolver/core/deciding/reservations.py).

Pure functions; an outlook is in steps of a tenth, so that a line which is sorted by due times is
sorted anew only when the backlog has really changed.
"""

import math
from typing import Final, Literal, NamedTuple

from berthmaster.lib.messages.workload import JobRequest

OrderBy = Literal["due", "arrival"]  # among jobs of one queue and priority

KEEP_LEFT: Final = 0.5  # as keep_stretch, for those who are left behind
LEFT_SHARE: Final = 0.007  # of all jobs
LATE: Final = 0.9  # of the backlog: who was left behind and has waited for longer is one of those
MOST_SHORT_FIRST: Final = 0.99  # beyond it nobody would ever be due
STEP: Final = 1.1  # between two outlooks' patience
LEAST_PATIENCE_S: Final = 1.0
CPU_MILLI_A_GPU: Final = 12_000  # what a GPU is worth to a job without: openb has 12 cores for each


class Terms(NamedTuple):
    """How service and backlog become times."""

    stretch: float  # seconds of waiting for each GPU-second of service
    patience: float  # times the backlog
    ahead: float  # times the backlog, of a job as wide as the fleet
    keep_stretch: float
    keep_patience: float
    width: float = 1.0  # what the share of the fleet counts that a job takes

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
    keep_at_s: float = 0.0  # from then on room is kept for it
    firm_at_s: float = 0.0  # from then on that room stays as it is


class Outlook(NamedTuple):
    """What keys depend on besides the job itself."""

    patience_s: float = math.inf  # that the fleet needs for all that is open
    gpus: float = math.inf  # of the fleet
    left_gpu_s: float = math.inf  # a job of more service than this is left behind
    short_first: float = 0.0  # a setting: 0 = by due times, 1 = the smallest first


NO_OUTLOOK: Final = Outlook()


def gpu_share(request: JobRequest) -> float:
    """GPUs that all pods of a request take; of pods without, what their CPU is worth."""
    share = 0.0
    for pods in request.pod_sets:
        if pods.gpus:
            share += pods.count * pods.gpus * pods.gpu_milli / 1000
        else:
            share += pods.count * pods.cpu_milli / CPU_MILLI_A_GPU
    return share


def service_gpu_s(request: JobRequest, duration_s: float) -> float:
    """What a job will take of the fleet, in GPU-seconds."""
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
    """How many of those that wait may be left behind, of so many that ever came."""
    return max(0, math.ceil(LEFT_SHARE * submitted) - late)


def place(
    service: float,
    submitted_at_s: float,
    gpus: float,
    seen: Outlook = NO_OUTLOOK,
    *,
    stated: bool = True,
) -> Rank:
    """Where a job stands among those of its queue and priority. ``gpus``: what all its pods take at
    once (``gpu_share``); ``stated``: the duration behind ``service`` is the submitter's."""
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

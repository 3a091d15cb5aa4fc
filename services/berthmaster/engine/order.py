"""Which of a queue's waiting jobs goes first, when nothing that runs is stopped for it.

A job is *due* some time after it was submitted, and the job that is due first goes first. Two
things bound that time, and the lesser counts:

- its own size: ``STRETCH`` seconds for each GPU-second that it will take, so that small jobs pass
  large ones, and a job that waits moves up all the while;
- the fleet's backlog: the seconds that the whole fleet would need for all that is open, less the
  job's own share of the fleet. Where everybody waits, whoever has waited for longer than that goes
  before those who came later, whatever their size. Wide jobs are due sooner since it takes longer
  to make room for them.

Jobs larger than almost all of those of late ("giants", predict.py knows them) would hold up
hundreds of others each: they go after all others that wait, and are due by the first bound alone.
Then room is kept for them too, so that nobody starves.

Until it is due, a job takes room that is free; once it is due and does not fit, room is kept for
it (reserve.py). Keeping room for jobs that are not due yet would leave GPUs idle for nobody's sake.

**Bound on waiting.** Under one outlook due times do not change, and no job that is submitted after
another one's due time goes before it unless it fits beside what is kept for that one. Of two jobs
of equal service the one that was submitted first goes first.

Pure functions; an outlook is in steps of a tenth, so that a line which is sorted by due times is
sorted anew only when the backlog has really changed.
"""

import math
from typing import Final, NamedTuple

from berthmaster.messages.workload import JobRequest

STRETCH: Final = 1.5  # seconds of waiting for each GPU-second of service
STEP: Final = 1.1  # between two outlooks' patience
LEAST_PATIENCE_S: Final = 1.0
CPU_MILLI_A_GPU: Final = 12_000  # what a GPU is worth to a job without: openb has 12 cores for each


class Place(NamedTuple):
    """The least goes first."""

    giant: bool
    due_at_s: float


class Outlook(NamedTuple):
    """What keys depend on besides the job itself."""

    patience_s: float = math.inf  # that the fleet needs for all that is open
    gpus: float = math.inf  # of the fleet
    giant_gpu_s: float = math.inf  # a job of more service than this is a giant


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


def outlook(open_gpu_s: float, gpus: float, giant_gpu_s: float = math.inf) -> Outlook:
    """From the service that all open jobs still need and the fleet's GPUs; patience in steps."""
    if not (gpus > 0 and open_gpu_s > 0):
        return Outlook(LEAST_PATIENCE_S, max(gpus, 0.0), giant_gpu_s)
    exact_s = max(LEAST_PATIENCE_S, open_gpu_s / gpus)
    if math.isinf(exact_s):
        return Outlook(math.inf, gpus, giant_gpu_s)
    steps = round(math.log(exact_s) / math.log(STEP))
    return Outlook(STEP**steps, gpus, giant_gpu_s)


def place(service: float, submitted_at_s: float, gpus: float, seen: Outlook = NO_OUTLOOK) -> Place:
    """Where a job stands among those of its queue and priority. ``gpus``: what all its pods take at
    once (``gpu_share``)."""
    if service > seen.giant_gpu_s:
        return Place(giant=True, due_at_s=submitted_at_s + STRETCH * service)
    patience_s = seen.patience_s
    if gpus > 0 and not math.isinf(patience_s):
        patience_s *= max(0.0, 1.0 - gpus / seen.gpus) if seen.gpus > 0 else 0.0
    return Place(giant=False, due_at_s=submitted_at_s + min(STRETCH * service, patience_s))

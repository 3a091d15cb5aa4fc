"""Who goes first under the policies that are compared with ours, and what they do with room.

::

    policy    order                              who does not fit           stops jobs
    fifo      as they came                       holds up all others        no
    sjf       least expected duration            holds up all others        no
    sjf-skip  least expected duration            is passed over             no
    easy      as they came                       the first is reserved for  no
    bestfit   as they came, tightest node        is passed over             no
    fgd       as they came, least fragmenting    is passed over             no
    random    as they came, any node             is passed over             no
    srtf      least expected rest                is passed over             yes
    srsf      least expected rest x GPUs         is passed over             yes
    las2d     least service, in three queues     is passed over             yes
    themis    unfairest first, leases of 20 min  is passed over             yes
    antman    as they came, tightest node        is passed over             no

``easy`` is EASY backfill: others may go before the first that does not fit if they end before it
can begin, or use room that it will not. ``las2d`` is Tiresias' two-dimensional least attained
service (NSDI'19, section 3.2) with its thresholds of 3,250 and 7,200 GPU-seconds. ``themis`` is the
filter of Themis (NSDI'20, section 3) by finish-time fairness: rho = time in a shared cluster / time
alone. Nobody knows durations here, so both times are those until now: (now - submitted) / (time
that it has run). Whoever has the greatest rho goes first, and room is given anew at each event and
at least every 20 minutes, the lease of the paper, while anybody waits. ``antman`` is AntMan's
(OSDI'20, section 4) opportunistic starting: who is next in line and fits starts, and the others do
not wait for one who does not fit; GPUs are not shared, and no queue has a quota. These three need
no durations.
"""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from berthmaster.simulate.model import Job, SimulationError

OURS: Final = "berthmaster"
LAS_LIMITS_GPU_S: Final = (3250.0, 7200.0)
LEASE_S: Final = 1200.0  # of Themis

Blocked = Literal["waits", "skipped", "reserved"]


class QueueEntry(NamedTuple):
    """One job as an order sees it."""

    job: Job
    number: int  # in the list, by arrival
    expected_s: float  # as told, or as predicted when it came
    left_s: float  # of that; the truth's rest where the truth was told
    attained_gpu_s: float
    since_s: float  # when it came, or last was stopped
    attained_s: float = 0.0  # that it has run
    now_s: float = 0.0


Order = Callable[[QueueEntry], tuple[float, ...]]


class QueuePolicy(NamedTuple):
    """How a baseline decides."""

    name: str
    order: Order
    blocked: Blocked
    placing: str  # of placement_rules.py
    preemptive: bool = False
    limits_gpu_s: tuple[float, ...] = ()  # of attained service at which the order changes
    lease_s: float | None = None  # after which room is given anew, if somebody waits


def _arrival(one: QueueEntry) -> tuple[float, ...]:
    return (one.number,)


def _shortest(one: QueueEntry) -> tuple[float, ...]:
    return (one.expected_s, one.number)


def _least_rest(one: QueueEntry) -> tuple[float, ...]:
    return (one.left_s, one.number)


def _least_service_left(one: QueueEntry) -> tuple[float, ...]:
    return (one.left_s * one.job.share, one.number)


def las_queue(attained_gpu_s: float) -> int:
    """Which of Tiresias' queues a job is in."""
    return sum(attained_gpu_s >= limit for limit in LAS_LIMITS_GPU_S)


def _least_attained(one: QueueEntry) -> tuple[float, ...]:
    return (las_queue(one.attained_gpu_s), one.since_s, one.number)


def _unfairest(one: QueueEntry) -> tuple[float, ...]:
    rho = (one.now_s - one.job.at_s) / one.attained_s if one.attained_s > 0 else float("inf")
    return (-rho, one.number)


_ALL: Final = (
    QueuePolicy("fifo", _arrival, "waits", "best"),
    QueuePolicy("sjf", _shortest, "waits", "best"),
    QueuePolicy("sjf-skip", _shortest, "skipped", "best"),
    QueuePolicy("easy", _arrival, "reserved", "best"),
    QueuePolicy("bestfit", _arrival, "skipped", "best"),
    QueuePolicy("fgd", _arrival, "skipped", "fgd"),
    QueuePolicy("random", _arrival, "skipped", "random"),
    QueuePolicy("srtf", _least_rest, "skipped", "first", preemptive=True),
    QueuePolicy("srsf", _least_service_left, "skipped", "first", preemptive=True),
    QueuePolicy("las2d", _least_attained, "skipped", "first", True, LAS_LIMITS_GPU_S),
    QueuePolicy("themis", _unfairest, "skipped", "first", True, lease_s=LEASE_S),
    QueuePolicy("antman", _arrival, "skipped", "best"),
)
BASELINES: Final = {policy.name: policy for policy in _ALL}
POLICIES: Final = (OURS, *BASELINES)


def baseline(name: str) -> QueuePolicy:
    """By name. Raises SimulationError."""
    if name not in BASELINES:
        raise SimulationError(f"policy is {name!r}; it is one of {', '.join(POLICIES)}")
    return BASELINES[name]

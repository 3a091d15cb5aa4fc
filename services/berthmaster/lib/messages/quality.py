"""How well a decider does: an observation for people and dashboards, every few seconds.

It travels on core NATS; a lost one is replaced by the next. Prometheus gets the same figures.
"""

import msgspec


class QueueQuality(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One queue, and what its decider has seen of it since it began to decide."""

    queue: str
    waiting: int = 0  # workloads
    live: int = 0  # workloads that have a place
    used_gpu_milli: int = 0
    placed: int = 0  # workloads, each at its first placement
    mean_wait_s: float | None = None  # of those, from submission; None = none yet
    succeeded: int = 0
    mean_completion_s: float | None = None  # of those, from submission
    evicted: int = 0


class QualityReport(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="quality.v1"
):
    """How well the decider of a cell does.

    Subject: ``berth.quality.<cell>``
    """

    cell: str
    decider: str
    observed_at_s: float
    waiting: int = 0
    live: int = 0
    allocation_percent: float | None = None  # taken share of all healthy GPUs; None = no GPUs
    fragmentation_percent: float | None = None  # of free GPU milli, of no use to the job mix seen
    fairness: float = 1.0  # Jain's index of what queues have of their fair shares: 1 = all alike
    placements_per_s: float = 0.0  # since the last report
    decide_ms: float | None = None  # to decide one placement, on average since the last report
    queues: tuple[QueueQuality, ...] = ()  # those with most in it first; cut to some hundred

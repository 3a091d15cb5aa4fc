"""Quality of a resolver's decisions, reported for display every few seconds.

Reports travel on core NATS, where the next report replaces a lost one. Prometheus gets the same
metrics.
"""

import msgspec


class QueueQuality(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One queue, measured since the resolver started."""

    queue: str  # name of the queue
    waiting: int = 0  # number of pending workloads
    live: int = 0  # number of placed workloads that have not ended
    used_gpu_milli: int = 0  # GPU milli of live placements
    placed: int = 0  # number of workloads placed for the first time
    mean_wait_s: float | None = None
    # mean_wait_s: mean wait from submission to first placement, in seconds; null = none yet
    succeeded: int = 0  # number of succeeded workloads
    mean_completion_s: float | None = None
    # mean_completion_s: mean time from submission to success, in seconds; null = none yet
    evicted: int = 0  # number of evictions


class QualityReport(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="quality.v1"
):
    """Quality of a cell's decisions.

    Subject: ``berth.quality.<cell>``
    """

    cell: str
    decider: str  # service and instance of the resolver
    observed_at_s: float
    waiting: int = 0  # number of pending workloads
    live: int = 0  # number of placed workloads that have not ended
    allocation_percent: float | None = None  # allocated share of all healthy GPUs; null = no GPUs
    fragmentation_percent: float | None = None
    # fragmentation_percent: share of free GPU capacity unusable for the observed mix of jobs; null
    # = no GPUs
    fairness: float = 1.0  # Jain's index of allocated to fair shares over queues; 1 = all equal
    placements_per_s: float = 0.0  # placements a second since the last report
    decide_ms: float | None = None
    # decide_ms: mean milliseconds for one placement since the last report; null = unset
    queues: tuple[QueueQuality, ...] = ()
    # queues: queues with the most workloads first, cut to some hundred

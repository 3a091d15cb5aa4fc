"""The results of a run: completion times, waits, use of the fleet, fairness.

- ``completion``: from submission to the end; ``wait``: from submission to the first start.
- ``allocation``: GPUs in use / GPUs, while any job waits (``allocation_busy``), while jobs still
  arrive (``allocation_arriving``), and over all time, which ends with the longest job.
- ``fragmentation``: fraction of the free GPU capacity that the list's usual pods cannot use, over
  time.
- ``fairness``: Jain's index of the jobs' slowdowns, completion / duration: 1 = all alike, 1/n = one
  bears all.

Percentiles are nearest ranks: the minimum value that the given percentage does not exceed.
"""

import math
from collections.abc import Iterable, Sequence

import msgspec

from berthmaster.control.resolver.core.quality import jain
from berthmaster.lab.simulate.model import Run, Span

CURVE_POINTS = 200
NOBODY = 5e-4  # wanted GPUs below the minimum request, left by sums of floats


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Times of all jobs, in seconds."""

    mean_s: float
    p50_s: float
    p99_s: float
    longest_s: float


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    policy: str
    jobs: int
    completion: Times
    wait: Times
    makespan_s: float
    allocation: float
    allocation_busy: float
    fragmentation: float
    fairness: float
    allocation_arriving: float = 0.0
    curve: tuple[tuple[float, float], ...] = ()  # (seconds, GPUs in use), for the plot


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(len(ranked) * percent / 100) - 1)]


def times(values: Sequence[float]) -> Times:
    """Return the times of at least one job."""
    return Times(
        mean_s=math.fsum(values) / len(values),
        p50_s=percentile(values, 50),
        p99_s=percentile(values, 99),
        longest_s=max(values),
    )


def averaged(pairs: Iterable[tuple[float, float]]) -> float:
    """Return the time-weighted mean of (value, seconds); 0 = no time."""
    kept = list(pairs)
    total_s = math.fsum(for_s for _, for_s in kept)
    return math.fsum(value * for_s for value, for_s in kept) / total_s if total_s else 0.0


def summarize(run: Run) -> RunSummary:
    """Return all results of a run whose jobs have all ended."""
    completions, waits, slowdowns = [], [], []
    for job, outcome in zip(run.jobs, run.outcomes, strict=True):
        if outcome.started_s is None or outcome.ended_s is None:
            raise ValueError(f"job {job.request.id} has not ended")
        completions.append(outcome.ended_s - job.at_s)
        waits.append(outcome.started_s - job.at_s)
        slowdowns.append(completions[-1] / job.duration_s)
    first_s = min(job.at_s for job in run.jobs)
    last_s = max(outcome.ended_s or 0.0 for outcome in run.outcomes)
    gpus = run.gpus or 1.0
    return RunSummary(
        policy=run.policy,
        jobs=len(run.jobs),
        completion=times(completions),
        wait=times(waits),
        makespan_s=last_s - first_s,
        allocation=averaged((s.used_gpus / gpus, s.for_s) for s in run.spans),
        allocation_busy=averaged(
            (s.used_gpus / gpus, s.for_s) for s in run.spans if s.wanted_gpus > NOBODY
        ),
        fragmentation=averaged((s.fragmented, s.for_s) for s in run.spans),
        fairness=jain(slowdowns),
        allocation_arriving=averaged(_until(run.spans, max(job.at_s for job in run.jobs), gpus)),
        curve=curve(run.spans),
    )


def _until(spans: Sequence[Span], end_s: float, gpus: float) -> Iterable[tuple[float, float]]:
    return ((s.used_gpus / gpus, min(s.for_s, end_s - s.at_s)) for s in spans if s.at_s < end_s)


def curve(spans: Sequence[Span], points: int = CURVE_POINTS) -> tuple[tuple[float, float], ...]:
    """Return the GPUs in use over time, averaged over equal intervals."""
    if not spans:
        return ()
    first_s, last_s = spans[0].at_s, spans[-1].at_s + spans[-1].for_s
    width_s = (last_s - first_s) / points
    if not width_s > 0:
        return ()
    sums = [0.0] * points
    for span in spans:
        begin = (span.at_s - first_s) / width_s
        end = min(begin + span.for_s / width_s, float(points))
        while begin < end:
            at = min(points - 1, int(begin))
            until = min(end, float(at + 1)) if at < points - 1 else end
            if until <= begin:
                break
            sums[at] += span.used_gpus * (until - begin)
            begin = until
    return tuple((first_s + (at + 0.5) * width_s, used) for at, used in enumerate(sums))

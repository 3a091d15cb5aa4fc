"""The expected start and end of open jobs, from stated durations or from similar jobs.

The expected start of a pending job is the later of two times. ``first_free`` estimates the time
at which enough GPUs are free for the job alone. ``_in_turn`` plays the earlier jobs on the GPUs of
all acceptable clusters, as one pool: each job starts in order as soon as enough GPUs are free, and
releases the GPUs after its duration. Both times are computed for the low end, the median and the
high end of all durations. In reality long and short jobs even out, so the interval is rather too
wide.

Example: 4 GPUs run jobs of 27 s, and ten equal jobs wait before the job. Two rounds of four jobs
start before the job's own round, so the expected start is in 81 s.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from berthmaster.control.resolver.core.answers.first_free import (
    Times,
    ends,
    fewest,
    live_ends,
    stated,
    still_takes,
    takes,
    together,
)
from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.lib.engine.fleet.needs import gpu_milli
from berthmaster.lib.engine.fleetview.shortlist import BUSY, Shortlist
from berthmaster.lib.lifecycle.pods import gpu_milli_of, least_request
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.api import Expectation
from berthmaster.lib.messages.workload import JobRequest

_NEVER: Final = float("inf")
_Ends = Literal[0, 1, 2]  # the place in Times of the low, middle and high end


class _Ahead(NamedTuple):
    """The GPUs and the duration of a job that starts first."""

    milli: int
    lasts: Times | None


def of_live(know: Knowledge, workload: Workload, now_s: float) -> Expectation | None:
    """Return the expectation of a job with a placement; None if its end is unknown."""
    ends_at = ends(know, workload, now_s)
    if ends_at is None:
        return None
    whole = takes(know, workload.tenant, workload.request) if workload.request is not None else None
    return _told(None, ends_at, whole)


def of_waiting(
    cycle: Cycle,
    workload: Workload,
    shortlist: Shortlist,
    free: Times | None,
    before: Sequence[Key] | None,
    known: Mapping[Key, Times] | None,
) -> Expectation | None:
    """Return the expectation of a pending job. ``free``: when it fits by itself, None = unknown;
    ``before``: jobs that go first, in order, None = too many to walk. ``known``: ends of placements
    in clusters without room, None = a cluster has room.
    """
    know = cycle.know
    lasts = still_takes(know, workload)
    starts = None
    if free is not None and before is not None and workload.request is not None:
        request = least_request(workload.request)
        starts = _later(free, _in_turn(cycle, request, shortlist, before, known))
    return _before_start(starts, lasts)


def of_request(
    know: Knowledge, tenant: str, request: JobRequest, starts: Times | None
) -> Expectation | None:
    """Return the expectation of a request that is not submitted, ahead of all jobs."""
    return _before_start(starts, takes(know, tenant, request))


def _before_start(starts: Times | None, lasts: Times | None) -> Expectation | None:
    """Return the expectation of a job without a placement; None if nothing is known."""
    if starts is None and lasts is None:
        return None
    end = together(starts, lasts) if starts is not None and lasts is not None else None
    return _told(starts, end, lasts)


def _told(starts: Times | None, end: Times | None, lasts: Times | None) -> Expectation:
    known = [each for each in (starts, end, lasts) if each is not None]
    jobs = fewest(*(each.jobs for each in known))

    def three(times: Times | None) -> tuple[float | None, float | None, float | None]:
        return (None, None, None) if times is None else times[:3]

    starts_low_s, starts_s, starts_high_s = three(starts)
    ends_low_s, ends_s, ends_high_s = three(end)
    lasts_low_s, lasts_s, lasts_high_s = three(lasts)
    return Expectation(
        by="similar" if jobs else "stated",
        jobs=jobs,
        starts_s=starts_s,
        starts_low_s=starts_low_s,
        starts_high_s=starts_high_s,
        ends_s=ends_s,
        ends_low_s=ends_low_s,
        ends_high_s=ends_high_s,
        lasts_s=lasts_s,
        lasts_low_s=lasts_low_s,
        lasts_high_s=lasts_high_s,
    )


def _later(free: Times, turn: Times | None) -> Times | None:
    """Return the later of two times; None if the turn is unknown."""
    if turn is None:
        return None
    low, middle, high = (max(a, b) for a, b in zip(free[:3], turn[:3], strict=True))
    return Times(low, middle, high, fewest(free.jobs, turn.jobs))


def _in_turn(
    cycle: Cycle,
    request: JobRequest,
    shortlist: Shortlist,
    before: Sequence[Key],
    known: Mapping[Key, Times] | None,
) -> Times | None:
    """Return when the pool has enough free GPUs after the jobs before it; None if unknown."""
    milli = gpu_milli(request)
    if not milli or not before:
        return stated(cycle.now_s)  # no job before it takes a GPU that it needs
    know = cycle.know
    clusters = {name for name, why in shortlist.filtered.items() if why == BUSY}
    clusters |= {candidate.cluster for candidate in shortlist.candidates}
    if known is None:
        known = live_ends(know, clusters, cycle.now_s)
    running = [(know.open[name], times) for name, times in known.items()]
    ahead = [each for name in before if (each := _ahead(know, know.open[name])).milli]
    free_milli = _free_milli(cycle, clusters)
    ends_at = [_played(cycle.now_s, free_milli, running, ahead, milli, at) for at in (0, 1, 2)]
    if ends_at[1] == _NEVER:
        return None
    jobs = fewest(
        *(times.jobs for _, times in running), *(each.lasts.jobs for each in ahead if each.lasts)
    )
    low, middle, high = ends_at
    return Times(min(low, middle), middle, middle if high == _NEVER else max(high, middle), jobs)


def _ahead(know: Knowledge, workload: Workload) -> _Ahead:
    request = workload.request
    milli = gpu_milli(least_request(request)) if request is not None else 0
    return _Ahead(milli, still_takes(know, workload))


def _played(
    now_s: float,
    free_milli: int,
    running: Iterable[tuple[Workload, Times]],
    ahead: Iterable[_Ahead],
    milli: int,
    at: int,
) -> float:
    releases = [(times[at], gpu_milli_of(workload)) for workload, times in running]
    heapq.heapify(releases)
    at_s = now_s
    for each in (*ahead, _Ahead(milli, None)):
        while free_milli < each.milli:
            if not releases:
                return _NEVER
            end_s, freed = heapq.heappop(releases)
            at_s, free_milli = max(at_s, end_s), free_milli + freed
        free_milli -= each.milli
        if each.lasts is not None:
            heapq.heappush(releases, (at_s + each.lasts[at], each.milli))
    return at_s


def _free_milli(cycle: Cycle, clusters: set[str]) -> int:
    fleet = cycle.know.fleet
    free = 0
    for slot, (cluster, _) in enumerate(fleet.names):
        if cluster not in clusters or not fleet.arrays.open[slot]:
            continue
        row = fleet.arrays.gpu[slot]
        gpus = fleet.report_at(slot).gpus
        free += sum(max(0, int(row[at])) for at, gpu in enumerate(gpus) if gpu.healthy)
    return free

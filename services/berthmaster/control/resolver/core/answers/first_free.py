"""Estimate when a request that fits nowhere may fit, from known and estimated ends.

A placement's end is known from its stated duration, its progress or its deadline. Otherwise the end
is estimated from similar jobs (lib/engine/queueing/similar.py). Placements are removed from the
fleet in order of their ends until the deciding code finds capacity, and then restored. The answer
is an estimate: other pending jobs may take the capacity, and placements without an end count as
endless.

Example: one of two placements states 600 s more. Forty jobs like the other one took 20 to 40 s, and
that one runs for 10 s. A request for one GPU fits in 10 to 30 s, by 40 similar jobs.
"""

import heapq
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.deciding.releases import Release, soonest
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.lib.engine.fleetview.shortlist import BUSY, Shortlist
from berthmaster.lib.engine.queueing.similar import Estimate, left
from berthmaster.lib.lifecycle.workload import Key, Workload, saved_s, spent_s, stated_end_s
from berthmaster.lib.messages.workload import JobRequest

ENDS_LOOKED_AT: Final = 1024  # maximum number of ends to try, because a question must be fast
ESTIMATED: Final = 2000  # maximum number of estimated ends for one question


class Times(NamedTuple):
    """A point in time or a duration: the median, and the interval from 10 to 90 %."""

    low_s: float
    middle_s: float
    high_s: float
    jobs: int = 0  # number of similar jobs behind it; 0 = stated

    def after(self, now_s: float) -> "Times":
        """Return the point in time that is this long after ``now_s``."""
        low, middle, high = (now_s + each for each in self[:3])
        return Times(low, middle, high, self.jobs)


def stated(seconds: float) -> Times:
    return Times(seconds, seconds, seconds)


def together(one: Times, other: Times) -> Times:
    """Return the sum of two times."""
    low, middle, high = (a + b for a, b in zip(one[:3], other[:3], strict=True))
    return Times(low, middle, high, fewest(one.jobs, other.jobs))


def fewest(*jobs: int) -> int:
    """Return the smallest number of similar jobs; 0 if all is stated."""
    return min((count for count in jobs if count), default=0)


def takes(know: Knowledge, tenant: str, request: JobRequest) -> Times | None:
    """Return the duration of a job; None if unknown."""
    if request.expected_duration_s is not None:
        return stated(request.expected_duration_s)
    estimate = know.expectations.durations.estimate(tenant, request)
    return Times(*estimate) if estimate is not None else None


def still_takes(know: Knowledge, workload: Workload) -> Times | None:
    """Return the duration of a pending job's next attempt; None if unknown."""
    whole = takes(know, workload.tenant, workload.request) if workload.request is not None else None
    saved = saved_s(workload)
    if whole is None or not saved:
        return whole
    if not whole.jobs:
        return stated(max(0.0, whole.middle_s - saved))
    return Times(*left(Estimate(*whole), saved))


def ends(know: Knowledge, workload: Workload, now_s: float) -> Times | None:
    """Return the end of a placement; None if unknown."""
    at_s = stated_end_s(workload, now_s)
    if at_s is not None:
        return stated(at_s)
    if workload.request is None or not workload.live:
        return None
    estimate = know.expectations.durations.estimate(workload.tenant, workload.request)
    if estimate is None:
        return None
    return Times(*left(estimate, spent_s(workload, now_s))).after(now_s)


def live_ends(know: Knowledge, clusters: Iterable[str], now_s: float) -> dict[Key, Times]:
    """Return the ends of placements in these clusters, as far as they are known or estimated."""
    there = set(clusters)
    names = [name for cluster in sorted(there) for name in know.derived.held.get(cluster, ())]
    names += [name for name in know.derived.unclaimed if know.open[name].cluster in there]
    found, estimated = {}, 0
    for name in names:
        workload = know.open[name]
        is_stated = stated_end_s(workload, now_s) is not None
        if not is_stated and estimated >= ESTIMATED:
            continue
        estimated += not is_stated
        if (times := ends(know, workload, now_s)) is not None:
            found[name] = times
    return found


def busy_ends(cycle: Cycle, shortlist: Shortlist) -> dict[Key, Times]:
    """Return the ends of placements in the clusters that lack only free capacity."""
    busy = {cluster for cluster, why in shortlist.filtered.items() if why == BUSY}
    return live_ends(cycle.know, busy, cycle.now_s)


def first_free(cycle: Cycle, request: JobRequest, known: Mapping[Key, Times]) -> Times | None:
    """Return the estimated start of the request; None if no end frees enough. ``known``: the ends
    of placements, see ``busy_ends``.
    """
    middle = _fits_at(cycle, request, {name: times.middle_s for name, times in known.items()})
    if middle is None:
        return None
    at_s, jobs = middle[0], fewest(*(known[name].jobs for name in middle[1]))
    if not jobs:
        return stated(at_s)
    low = _fits_at(cycle, request, {name: times.low_s for name, times in known.items()})
    high = _fits_at(cycle, request, {name: times.high_s for name, times in known.items()})
    low_s, high_s = (each[0] if each is not None else at_s for each in (low, high))
    return Times(min(low_s, at_s), at_s, max(high_s, at_s), jobs)


def _fits_at(
    cycle: Cycle, request: JobRequest, ends_s: dict[Key, float]
) -> tuple[float, list[Key]] | None:
    """Return the time at which it fits, and the placements that have ended by then."""
    fleet = cycle.know.fleet
    first = heapq.nsmallest(ENDS_LOOKED_AT, ((at_s, name) for name, at_s in ends_s.items()))
    releases = [Release(at_s, 0.0, name, 0, fleet.holdings(name)) for at_s, name in first]

    def fits() -> object | None:
        return cycle.bind(request, cycle.shortlist(request))

    found = soonest(fleet, releases, 1, fits) if releases else None
    return (found[1], [name for _, name in first[: found[2]]]) if found is not None else None

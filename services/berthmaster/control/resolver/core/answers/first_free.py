"""Estimate when a request that fits nowhere may fit, from known ends.

A placement's end is known from its stated duration or its deadline. Placements are removed from the
fleet in order of their ends until the deciding code finds capacity, and then restored. The answer
is an estimate: other pending jobs may take the capacity, and jobs without a stated end, or beyond
it, count as endless.
"""

import heapq
from collections.abc import Iterable
from typing import Final

from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.deciding.releases import Release, soonest
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.lib.engine.fleetview.shortlist import BUSY, Shortlist
from berthmaster.lib.lifecycle.run_times import stated_end_s
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.workload import JobRequest

ENDS_LOOKED_AT: Final = 1024  # maximum number of known ends to try, because a question must be fast


def first_free_s(cycle: Cycle, request: JobRequest, shortlist: Shortlist) -> float | None:
    """Return the estimated start of the request; None if no known end frees enough."""
    know, now_s = cycle.know, cycle.now_s
    busy = {cluster for cluster, why in shortlist.filtered.items() if why == BUSY}
    releases = [
        Release(at_s, 0.0, name, 0, know.fleet.holdings(name))
        for at_s, name in heapq.nsmallest(ENDS_LOOKED_AT, _ends(know, busy, now_s))
    ]

    def fits() -> object | None:
        return cycle.bind(request, cycle.shortlist(request))

    found = soonest(know.fleet, releases, 1, fits) if releases else None
    return found[1] if found is not None else None


def _ends(know: Knowledge, clusters: set[str], now_s: float) -> Iterable[tuple[float, Key]]:
    names = [name for cluster in sorted(clusters) for name in know.derived.held.get(cluster, ())]
    names += [name for name in know.derived.unclaimed if know.open[name].cluster in clusters]
    for name in names:
        at_s = stated_end_s(know.open[name], now_s)
        if at_s is not None:
            yield at_s, name

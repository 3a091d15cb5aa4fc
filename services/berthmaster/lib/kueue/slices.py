"""The Workloads of a Job whose number of pods changes (Kueue's elastic jobs): slices, of which one
has quota and at most one waits to take its place. Pure.

Kueue leaves a Job running whose slice it evicts while another waits: it finishes the first, and
sees the second as what the Job is (0.19.2). Its pods then run without any quota, and those that
they were evicted for may find no node. So whoever runs such a Job has to look.
"""

from collections.abc import Iterable
from typing import NamedTuple

from berthmaster.lib.kueue.names import EVICTED, FINISHED, QUOTA_RESERVED
from berthmaster.lib.kueue.workloads import Workload


class Slices(NamedTuple):
    have_quota: bool  # one of them has, and keeps it
    waits: bool  # one has none yet
    words: str = ""  # Kueue's, of that one


def slices_of(found: Iterable[Workload]) -> Slices | None:
    """None: there is none that is not over, so that nothing can be said."""
    left = [each for each in found if not each.holds(FINISHED)]
    if not left:
        return None
    waiting = [each for each in left if not each.holds(QUOTA_RESERVED)]
    told = (each.condition(QUOTA_RESERVED) for each in waiting)
    return Slices(
        have_quota=any(each.holds(QUOTA_RESERVED) and not each.holds(EVICTED) for each in left),
        waits=bool(waiting),
        words=next((one.message for one in told if one is not None), ""),
    )

"""The kinds of job objects for an attempt. Pure."""

from collections.abc import Collection
from typing import Final

from berthmaster.lib.jobs.kinds.job import JOB
from berthmaster.lib.jobs.kinds.job_set import JOB_SET
from berthmaster.lib.jobs.kinds.kind import JobKind
from berthmaster.lib.jobs.kinds.ray_job import RAY_JOB
from berthmaster.lib.jobs.kinds.volcano_job import VOLCANO_JOB
from berthmaster.lib.messages.placement import Via
from berthmaster.lib.messages.workload import JobRequest

KINDS: Final[tuple[JobKind, ...]] = (JOB, JOB_SET, RAY_JOB, VOLCANO_JOB)


def kind_of(request: JobRequest, via: Via, usable: Collection[JobKind]) -> JobKind:
    """Return the usable kind for a request: the first that fits, substitutes last.

    Any request can be a JobSet, so JobSet is the default, even if not served.
    """
    fitting = (kind for kind in KINDS if kind in usable and kind.fits(request, via))
    return min(fitting, key=lambda kind: not kind.has_substitute, default=JOB_SET)

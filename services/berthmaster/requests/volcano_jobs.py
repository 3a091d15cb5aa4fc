"""Which requests are Jobs of Volcano's where a cluster's executor makes those. Pure.

What starts in a queue of its Kueue, varies in size, or takes parts of GPUs that others' schedulers
hand out, is a Job or a JobSet in any case.
"""

from typing import Final

from berthmaster.lifecycle.sizes import is_elastic
from berthmaster.messages.placement import Via
from berthmaster.messages.workload import JobRequest

VOLCANO_JOB: Final = "VolcanoJob"  # as a cluster's profile names it among its kinds of jobs


def is_for_volcano(request: JobRequest, via: Via) -> bool:
    """Whether Volcano runs it, where it is asked to run jobs."""
    parted = any(pods.gpus and pods.gpu_milli != 1000 for pods in request.pod_sets)
    return via != "worker" and not parted and not is_elastic(request)

"""Which requests are Jobs of Volcano's where a cluster's executor makes those. Pure.

What starts in a queue of its Kueue, varies in size, or takes parts of GPUs that others' schedulers
hand out, is a Job or a JobSet in any case.
"""

from collections.abc import Sequence
from typing import Final

from berthmaster.lib.lifecycle.sizes import is_set_elastic
from berthmaster.lib.messages.placement import Via
from berthmaster.lib.messages.workload import PodSet

VOLCANO_JOB: Final = "VolcanoJob"  # as a cluster's profile names it among its kinds of jobs


def is_for_volcano(pod_sets: Sequence[PodSet], via: Via) -> bool:
    """Whether Volcano runs a job of these pod sets, where Volcano is asked to run jobs."""
    parted = any(pods.gpus and pods.gpu_milli != 1000 for pods in pod_sets)
    return via != "worker" and not parted and not any(map(is_set_elastic, pod_sets))

"""Which kinds of job objects take several pod sets, by their names in a cluster's profile. Pure.

Clusters are filtered by this. All else of a kind is in lib/jobs/kinds.
"""

from collections.abc import Sequence
from typing import Final

from berthmaster.lib.lifecycle.sizes import is_set_elastic
from berthmaster.lib.messages.placement import Via
from berthmaster.lib.messages.workload import PodSet

JOB_SET: Final = "JobSet"
VOLCANO_JOB: Final = "VolcanoJob"


def takes_pod_sets(kind: str, pod_sets: Sequence[PodSet], via: Via) -> bool:
    """Whether a cluster that serves the kind runs a job of these pod sets, be they several. A Job
    of Volcano's starts in no queue of Kueue, does not vary in size, and takes no parts of GPUs that
    others' schedulers hand out."""
    if kind == JOB_SET:
        return True
    parted = any(pods.gpus and pods.gpu_milli != 1000 for pods in pod_sets)
    whole = via != "worker" and not parted and not any(map(is_set_elastic, pod_sets))
    return kind == VOLCANO_JOB and whole

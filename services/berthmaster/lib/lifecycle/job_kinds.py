"""Job kinds that take several pod sets, by the names in a cluster's profile. Pure.

Cluster filters use this. lib/jobs/kinds has everything else about job kinds.
"""

from collections.abc import Sequence
from typing import Final

from berthmaster.lib.lifecycle.sizes import is_set_elastic
from berthmaster.lib.messages.placement import Via
from berthmaster.lib.messages.workload import PodSet

JOB_SET: Final = "JobSet"
VOLCANO_JOB: Final = "VolcanoJob"


def takes_pod_sets(kind: str, pod_sets: Sequence[PodSet], via: Via) -> bool:
    """Return whether a cluster with this kind runs a job with these pod sets.

    Volcano's Job has no Kueue queue, no elastic size, and no GPU fractions of other schedulers.
    """
    if kind == JOB_SET:
        return True
    parted = any(pods.gpus and pods.gpu_milli != 1000 for pods in pod_sets)
    whole = via != "worker" and not parted and not any(map(is_set_elastic, pod_sets))
    return kind == VOLCANO_JOB and whole

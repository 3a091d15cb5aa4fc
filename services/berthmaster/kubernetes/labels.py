"""Labels and annotations by which objects of ours are known in a cluster.

Who makes objects and who looks at them share these names and nothing else. A label's value is
bounded (63 characters of a small alphabet), a tenant's name is not: where a name does not fit, the
label holds what fits and an annotation of the same key holds all of it.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

TENANT: Final = "berthmaster.io/tenant"
WORKLOAD: Final = "berthmaster.io/workload"
ATTEMPT: Final = "berthmaster.io/attempt"  # from 1
POD: Final = "berthmaster.io/pod"  # "<pod set>-<index>", unique within the attempt
EXECUTOR: Final = "berthmaster.io/executor"  # who made it
GPUS: Final = "berthmaster.io/gpus"  # annotation: "0,3", the indices that a pod has, where known


class Identity(NamedTuple):
    """Which pod of which attempt something in a cluster is."""

    tenant: str
    workload: str
    attempt: int
    pod: str


def identity(labels: Mapping[str, str], annotations: Mapping[str, str]) -> Identity | None:
    """Whose pod this is; None for one that is not ours. All four labels make it ours."""
    if not all(labels.get(key) for key in (TENANT, WORKLOAD, ATTEMPT, POD)):
        return None
    attempt = labels[ATTEMPT]
    if not attempt.isascii() or not attempt.isdecimal() or len(attempt) > 9 or int(attempt) < 1:
        return None
    tenant, workload, pod = (annotations.get(key) or labels[key] for key in (TENANT, WORKLOAD, POD))
    return Identity(tenant, workload, int(attempt), pod)


def gpu_indices(annotations: Mapping[str, str]) -> tuple[int, ...]:
    """The GPUs that the annotation names; none where it is absent or says something else."""
    parts = annotations.get(GPUS, "").split(",")
    if not all(part.isascii() and part.isdecimal() and len(part) < 5 for part in parts):
        return ()
    return tuple(sorted({int(part) for part in parts}))

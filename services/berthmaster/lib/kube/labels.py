"""Labels and annotations by which objects of ours are known in a cluster.

Who makes objects and who looks at them share these names and nothing else. A label's value is
bounded (63 characters of a small alphabet), a tenant's name is not: where a name does not fit, the
label holds what fits and an annotation of the same key holds all of it.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

TENANT: Final = "berthmaster.io/tenant"
WORKLOAD: Final = "berthmaster.io/workload"
ATTEMPT: Final = "berthmaster.io/attempt"  # from 1
POD: Final = "berthmaster.io/pod"  # "<pod set>-<index>", unique within the attempt
POD_SET: Final = "berthmaster.io/pod-set"  # of pods that a Job numbers: with its index, the pod
INDEX: Final = "batch.kubernetes.io/job-completion-index"  # Kubernetes' own
JOB_NAME: Final = "batch.kubernetes.io/job-name"  # Kubernetes' own, of a Job's pods
VOLCANO_INDEX: Final = "volcano.sh/task-index"  # the same where Volcano's Job numbers them
EXECUTOR: Final = "berthmaster.io/executor"  # who made it
GPUS: Final = "berthmaster.io/gpus"  # annotation: "0,3", the indices that a pod has, where known
ISOLATION: Final = "berthmaster.io/isolation"  # annotation: how hard its part of a GPU is limited

# Finalizer of job objects: whoever deletes one, the object stays until its executor has stored how
# the attempt ended, or the attempt is no longer that executor's.
FINALIZER: Final = "berthmaster.io/ending"

MAX_VALUE_CHARS: Final = 63
_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?\Z")
_DIGEST_CHARS: Final = 8


def value(text: str) -> str:
    """The text as a label's value: itself where it fits, else what fits and a digest of it all."""
    if _VALUE.match(text):
        return text
    prefix = re.sub(r"[^-A-Za-z0-9_.]", "-", text)[: MAX_VALUE_CHARS - _DIGEST_CHARS - 1]
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{prefix}-{digest}".lstrip("-_.")


class Identity(NamedTuple):
    """Which pod of which attempt something in a cluster is."""

    tenant: str
    workload: str
    attempt: int
    pod: str


def identity(
    labels: Mapping[str, str], annotations: Mapping[str, str], name: str = ""
) -> Identity | None:
    """Whose pod this is; None for one that is not ours. All four labels make it ours; the index
    that a Job gives its pods stands for the last one's half; where nobody numbers them, as where
    Karmada sent what made them, the end of their ``name`` does."""
    pod = annotations.get(POD) or labels.get(POD) or _numbered(labels, annotations, name)
    if not pod or not all(labels.get(key) for key in (TENANT, WORKLOAD, ATTEMPT)):
        return None
    attempt = labels[ATTEMPT]
    if not attempt.isascii() or not attempt.isdecimal() or len(attempt) > 9 or int(attempt) < 1:
        return None
    tenant, workload = (annotations.get(key) or labels[key] for key in (TENANT, WORKLOAD))
    return Identity(tenant, workload, int(attempt), pod)


def _numbered(labels: Mapping[str, str], annotations: Mapping[str, str], name: str) -> str:
    """The pod's name from its set and the number that its Job gave it; "" if there is none."""
    pod_set = annotations.get(POD_SET) or labels.get(POD_SET)
    numbers = (of.get(key) for key in (INDEX, VOLCANO_INDEX) for of in (labels, annotations))
    index = next(filter(None, numbers), None) or name.rpartition("-")[2]
    return f"{pod_set}-{index}" if pod_set and index else ""


def gpu_indices(annotations: Mapping[str, str]) -> tuple[int, ...]:
    """The GPUs that the annotation names; none where it is absent or says something else."""
    parts = annotations.get(GPUS, "").split(",")
    if not all(part.isascii() and part.isdecimal() and len(part) < 5 for part in parts):
        return ()
    return tuple(sorted({int(part) for part in parts}))

"""Labels and annotations that mark Berthmaster's objects in a cluster.

Services that create objects and services that read them share these names only. A label's value has
at most 63 characters of a small alphabet, but a tenant's name has no such limit. For a name that
does not fit, the label holds a shortened form, and an annotation of the same key the full name.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

TENANT: Final = "berthmaster.io/tenant"
WORKLOAD: Final = "berthmaster.io/workload"
ATTEMPT: Final = "berthmaster.io/attempt"  # from 1
POD: Final = "berthmaster.io/pod"  # "<pod set>-<index>", unique within the attempt
POD_SET: Final = "berthmaster.io/pod-set"  # of pods that a Job numbers by index
INDEX: Final = "batch.kubernetes.io/job-completion-index"  # set by Kubernetes
JOB_NAME: Final = "batch.kubernetes.io/job-name"  # set by Kubernetes on a Job's pods
VOLCANO_INDEX: Final = "volcano.sh/task-index"  # index of pods numbered by a Volcano Job
EXECUTOR: Final = "berthmaster.io/executor"  # name of the executor that created the object
GPUS: Final = "berthmaster.io/gpus"  # annotation: the pod's GPU indices, such as "0,3", if known
ISOLATION: Final = "berthmaster.io/isolation"  # annotation: isolation of the pod's GPU fraction

# Finalizer of job objects. A deleted object stays until its executor has stored the outcome of the
# attempt, or no longer owns the attempt.
FINALIZER: Final = "berthmaster.io/ending"

MAX_VALUE_CHARS: Final = 63
_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?\Z")
_DIGEST_CHARS: Final = 8


def value(text: str) -> str:
    """Return the text as a label's value: unchanged if allowed, else shortened, with a digest."""
    if _VALUE.match(text):
        return text
    prefix = re.sub(r"[^-A-Za-z0-9_.]", "-", text)[: MAX_VALUE_CHARS - _DIGEST_CHARS - 1]
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{prefix}-{digest}".lstrip("-_.")


class Identity(NamedTuple):
    """The attempt and the pod that an object in a cluster belongs to."""

    tenant: str
    workload: str
    attempt: int
    pod: str


def identity(
    labels: Mapping[str, str], annotations: Mapping[str, str], name: str = ""
) -> Identity | None:
    """Return the identity of a pod, or None for an unmanaged pod.

    A managed pod has all four labels. Pod set and index replace the pod label in pods numbered by a
    Job. Without an index, as in objects sent by Karmada, the end of ``name`` replaces the index.
    """
    pod = annotations.get(POD) or labels.get(POD) or _numbered(labels, annotations, name)
    if not pod or not all(labels.get(key) for key in (TENANT, WORKLOAD, ATTEMPT)):
        return None
    attempt = labels[ATTEMPT]
    if not attempt.isascii() or not attempt.isdecimal() or len(attempt) > 9 or int(attempt) < 1:
        return None
    tenant, workload = (annotations.get(key) or labels[key] for key in (TENANT, WORKLOAD))
    return Identity(tenant, workload, int(attempt), pod)


def _numbered(labels: Mapping[str, str], annotations: Mapping[str, str], name: str) -> str:
    """Return the pod's name from its pod set and index, or "" if a part is missing."""
    pod_set = annotations.get(POD_SET) or labels.get(POD_SET)
    numbers = (of.get(key) for key in (INDEX, VOLCANO_INDEX) for of in (labels, annotations))
    index = next(filter(None, numbers), None) or name.rpartition("-")[2]
    return f"{pod_set}-{index}" if pod_set and index else ""


def gpu_indices(annotations: Mapping[str, str]) -> tuple[int, ...]:
    """Return the GPUs in the annotation. Empty if the annotation is missing or malformed."""
    parts = annotations.get(GPUS, "").split(",")
    if not all(part.isascii() and part.isdecimal() and len(part) < 5 for part in parts):
        return ()
    return tuple(sorted({int(part) for part in parts}))

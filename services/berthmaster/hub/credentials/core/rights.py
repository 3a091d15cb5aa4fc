"""The rights of a hub's MultiKueue in a worker, as rules of a ClusterRole. Pure.

The rules follow from MultiKueue's calls: create, watch and delete a copy of each Workload and of
its job, and read the job's status. MultiKueue needs no Secret, ConfigMap, node or role, and writes
no pod. The worker itself writes a job's status.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

_KEEPS: Final = ("create", "delete", "get", "list", "patch", "watch")


class Framework(NamedTuple):
    """A kind of job that MultiKueue copies."""

    group: str
    plural: str


# Kueue's own names of its integrations.
FRAMEWORKS: Final[dict[str, Framework]] = {
    "batch/job": Framework("batch", "jobs"),
    "jobset.x-k8s.io/jobset": Framework("jobset.x-k8s.io", "jobsets"),
    "kubeflow.org/jaxjob": Framework("kubeflow.org", "jaxjobs"),
    "kubeflow.org/mpijob": Framework("kubeflow.org", "mpijobs"),
    "kubeflow.org/paddlejob": Framework("kubeflow.org", "paddlejobs"),
    "kubeflow.org/pytorchjob": Framework("kubeflow.org", "pytorchjobs"),
    "kubeflow.org/tfjob": Framework("kubeflow.org", "tfjobs"),
    "kubeflow.org/xgboostjob": Framework("kubeflow.org", "xgboostjobs"),
    "ray.io/rayjob": Framework("ray.io", "rayjobs"),
    "ray.io/raycluster": Framework("ray.io", "rayclusters"),
    "ray.io/rayservice": Framework("ray.io", "rayservices"),
    "trainer.kubeflow.org/trainjob": Framework("trainer.kubeflow.org", "trainjobs"),
    "leaderworkerset.x-k8s.io/leaderworkerset": Framework(
        "leaderworkerset.x-k8s.io", "leaderworkersets"
    ),
    "workload.codeflare.dev/appwrapper": Framework("workload.codeflare.dev", "appwrappers"),
}
DEFAULT_FRAMEWORKS: Final = ("batch/job", "jobset.x-k8s.io/jobset")

Rule = dict[str, Any]


def rules(frameworks: Sequence[str]) -> list[Rule]:
    """Return the minimum rules for these kinds of jobs, in a stable order."""
    found: list[Rule] = [
        _rule("kueue.x-k8s.io", "workloads", (*_KEEPS, "update")),
        _rule("kueue.x-k8s.io", "workloads/status", ("get", "patch", "update")),
    ]
    for name in sorted(set(frameworks)):
        kind = FRAMEWORKS[name]
        found.append(_rule(kind.group, kind.plural, _KEEPS))
        found.append(_rule(kind.group, f"{kind.plural}/status", ("get",)))
    return found


def _rule(group: str, resource: str, verbs: Sequence[str]) -> Rule:
    return {"apiGroups": [group], "resources": [resource], "verbs": sorted(verbs)}

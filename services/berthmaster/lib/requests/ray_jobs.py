"""Which requests KubeRay makes the pods of, where a cluster serves it. Pure.

What starts in a queue of the cluster, varies in size, is a part of a job over clusters, or has more
pods than fit into one object, stays a Job of ours, as everywhere where KubeRay is not served.
"""

from collections.abc import Collection
from typing import Final

from berthmaster.lib.lifecycle.sizes import is_elastic
from berthmaster.lib.messages.placement import Via
from berthmaster.lib.messages.workload import JobRequest

RAY_JOB: Final = "RayJob"  # as a cluster's profile names it among its kinds of jobs
MAX_PODS: Final = 100


def is_for_kuberay(request: JobRequest, via: Via) -> bool:
    """Whether KubeRay, where it is served, makes the pods of a request."""
    used = request.runtime_used
    if used is None or not used.template.kuberay:
        return False
    few = sum(pods.count for pods in request.pod_sets) <= MAX_PODS
    return few and via == "direct" and request.part is None and not is_elastic(request)


def made_as(request: JobRequest, via: Via, kinds: Collection[str] | None) -> str:
    """What Ray's pods are made by in a cluster of these kinds of jobs, in words; "" = it is none of
    Ray's, or nobody says."""
    used = request.runtime_used
    if used is None or not used.template.kuberay or kinds is None:
        return ""
    if RAY_JOB in kinds and not is_for_kuberay(request, via):
        return "pods of ours, as its queue, size or division asks for them"
    return ray_words(kinds)


def ray_words(kinds: Collection[str]) -> str:
    """The same of any request that KubeRay may be for."""
    return "a RayJob: KubeRay is served" if RAY_JOB in kinds else "pods of ours: no KubeRay there"

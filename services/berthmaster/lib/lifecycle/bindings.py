"""The pods of an attempt: nodes, GPUs and charges. Pure.

Example: two pods request 8 GiB of a GPU each (``gpu_milli: 1``). The decision puts both on GPUs of
16 GiB and stores ``charged_milli: 500`` in each binding. Together the pods are charged 1000.

The engine computes the charge (``lib/engine/fleet/shares.py``, ``charged_milli``). Services without
node data read the stored charge here, and so count the same GPUs.
"""

from collections.abc import Sequence

import msgspec

from berthmaster.lib.lifecycle.sizes import is_elastic, set_of, with_bound
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import JobRequest, PodSet


def with_known_gpus(
    pods: tuple[PodBinding, ...], before: tuple[PodBinding, ...]
) -> tuple[PodBinding, ...]:
    """Return the pods with the GPUs of the placement, for pods on the placement's node.

    Kubernetes does not report the GPUs of a pod. Without this, allocated GPUs would count as free.
    """
    known = {(binding.pod, binding.node): binding.gpus for binding in before}
    return tuple(
        binding
        if binding.gpus or not known.get((binding.pod, binding.node))
        else msgspec.structs.replace(binding, gpus=known[binding.pod, binding.node])
        for binding in pods
    )


def as_reported(
    pods: tuple[PodBinding, ...], before: tuple[PodBinding, ...]
) -> tuple[PodBinding, ...]:
    """Return an agent's pods with the charges that the decision stored: agents set no charges."""
    charged = {binding.pod: binding.charged_milli for binding in before}
    return tuple(
        binding
        if binding.charged_milli == charged.get(binding.pod, 0)
        else msgspec.structs.replace(binding, charged_milli=charged.get(binding.pod, 0))
        for binding in with_known_gpus(pods, before)
    )


def set_pods(workload: Workload, pods: tuple[PodBinding, ...]) -> None:
    """Set the pods that hold capacity, and their number in the workload's request."""
    workload.pods = pods
    job_request = workload.wished or workload.request
    if job_request is not None and is_elastic(job_request):
        workload.wished = job_request
        workload.request = with_bound(job_request, workload.pods)


def pod_gpu_milli(pods: PodSet, binding: PodBinding) -> int:
    """Return the charge of one placed pod for all of its GPUs."""
    return pods.gpus * (binding.charged_milli or pods.gpu_milli)


def charged_gpu_milli(request: JobRequest, pods: Sequence[PodBinding]) -> int:
    """Return the charge of an attempt. Pods without a binding count as requested."""
    total = sum(each.count * each.gpus * each.gpu_milli for each in request.pod_sets)
    if not any(each.charged_milli for each in pods):
        return total
    sets = {each.name: each for each in request.pod_sets}
    for binding in pods:
        found = sets.get(set_of(binding.pod))
        if found is not None:
            total += pod_gpu_milli(found, binding) - found.gpus * found.gpu_milli
    return total


def gpu_milli_of(workload: Workload) -> int:
    """Return the charge of the open or last attempt. A pending workload counts as requested."""
    if workload.request is None:
        return 0
    pods = workload.pods if workload.live or workload.ended else ()
    return charged_gpu_milli(workload.request, pods)

"""What placed pods are charged with in GPUs, as the decision that placed them stored it. Pure.

Example: two pods ask for 8 GiB of a GPU each (``gpu_milli: 1``). The decision puts both on GPUs of
16 GiB and stores ``charged_milli: 500`` in each binding: together they are charged 1000.

The engine works the amount out (``lib/engine/fleet/shares.py``, ``charged_milli``). Services that
know no nodes read the stored amount here, so that all of them show and count the same GPUs.
"""

from collections.abc import Sequence

from berthmaster.lib.lifecycle.sizes import set_of
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import JobRequest, PodSet


def pod_gpu_milli(pods: PodSet, binding: PodBinding) -> int:
    """Return what one placed pod is charged with for all its GPUs."""
    return pods.gpus * (binding.charged_milli or pods.gpu_milli)


def charged_gpu_milli(request: JobRequest, pods: Sequence[PodBinding]) -> int:
    """Return what an attempt is charged with. Pods without a binding count as they ask."""
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
    """Return what a workload's open or last attempt is charged with; while it waits, what it asks
    for."""
    if workload.request is None:
        return 0
    pods = workload.pods if workload.live or workload.ended else ()
    return charged_gpu_milli(workload.request, pods)

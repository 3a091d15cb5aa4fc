"""The pods of an attempt: how many, on which nodes and GPUs, and what they are charged with. Pure.

Example: a pod set with ``count=4, min_count=2, max_count=8`` runs with 3 pods. While the attempt is
open, ``request`` has ``count=3``, so sums over requests are right. ``wished`` keeps the request
with ``count=4``.

Example: two pods request 8 GiB of a GPU each (``gpu_milli: 1``). The decision puts both on GPUs of
16 GiB and stores ``charged_milli: 500`` in each binding. Together the pods are charged 1000.

The engine computes the charge (``lib/engine/fleet/shares.py``, ``charged_milli``). Services without
node data read the stored charge here, and so count the same GPUs.
"""

from collections.abc import Mapping, Sequence

import msgspec

from berthmaster.lib.lifecycle.choices import smallest
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import CarriedWorkload, JobRequest, PodSet


def least(pods: PodSet) -> int:
    """Return the minimum number of pods."""
    return pods.count if pods.min_count is None else pods.min_count


def most(pods: PodSet) -> int:
    """Return the maximum number of pods."""
    return pods.count if pods.max_count is None else pods.max_count


def is_elastic(request: JobRequest) -> bool:
    return any(map(is_set_elastic, request.pod_sets))


def is_set_elastic(pods: PodSet) -> bool:
    return pods.min_count is not None or pods.max_count is not None


def set_of(pod: str) -> str:
    """Return the pod set of ``<pod set>-<index>``."""
    return pod.rpartition("-")[0]


def index_of(pod: str) -> int:
    """Return the pod's index in its pod set; -1 if malformed. Pods with the highest index end
    first.
    """
    index = pod.rpartition("-")[2]
    return int(index) if index.isascii() and index.isdecimal() else -1


def counts_of(pods: Sequence[PodBinding]) -> dict[str, int]:
    """Return the number of pods of each pod set."""
    counts: dict[str, int] = {}
    for each in pods:
        name = set_of(each.pod)
        counts[name] = counts.get(name, 0) + 1
    return counts


def sized(request: JobRequest, counts: Mapping[str, int]) -> JobRequest:
    """Return the request with these numbers of pods in elastic pod sets, cut to the bounds.

    Bounds stay in the request. Pod sets without a number keep theirs.
    """
    if not is_elastic(request):
        return request
    sets = []
    for pods in request.pod_sets:
        if is_set_elastic(pods):
            low, high = least(pods), most(pods)
            count = min(max(counts.get(pods.name) or pods.count, low), high)
            pods = msgspec.structs.replace(pods, count=count, min_count=low, max_count=high)
        sets.append(pods)
    return msgspec.structs.replace(request, pod_sets=tuple(sets))


def with_bound(request: JobRequest, pods: Sequence[PodBinding]) -> JobRequest:
    """Return the request with as many pods as these."""
    return sized(request, counts_of(pods)) if is_elastic(request) else request


def with_coming(request: JobRequest, count: int) -> JobRequest:
    """Return a request of one pod set with only ``count`` pods."""
    [pods] = request.pod_sets
    more = msgspec.structs.replace(pods, count=count, min_count=None, max_count=None)
    return msgspec.structs.replace(request, pod_sets=(more,))


def without(held: Sequence[PodBinding], bindings: Sequence[PodBinding]) -> tuple[PodBinding, ...]:
    """Return held pods without a binding in ``bindings``."""
    names = {each.pod for each in bindings}
    return tuple(each for each in held if each.pod not in names)


def together(held: Sequence[PodBinding], more: Sequence[PodBinding]) -> tuple[PodBinding, ...]:
    """Return the held pods and all pods of ``more`` with other names."""
    if not more:
        return tuple(held)
    return (*held, *without(more, held))


def least_request(request: JobRequest) -> JobRequest:
    """Return the request in its minimum size, and in its smallest configuration."""
    return sized(smallest(request), _up_to_wished(request)[0])


def as_placed(workload: CarriedWorkload) -> JobRequest | None:
    """Return the request of the open attempt in its requested size."""
    wished = workload.wished
    return wished if wished is not None and is_elastic(wished) else workload.request


def steps(request: JobRequest, low: Mapping[str, int], high: Mapping[str, int]) -> int:
    """Return the number of sizes above ``low``, up to ``high``: see ``at_step``."""
    return max((high[p.name] - low[p.name] for p in request.pod_sets), default=0)


def at_step(low: Mapping[str, int], high: Mapping[str, int], step: int, of: int) -> dict[str, int]:
    """Return the size ``step`` steps above ``low``, all pod sets in proportion.

    Example: from (2, 1) to (6, 3) there are 4 steps, and two steps give (4, 2).
    """
    if not of:
        return dict(low)
    return {name: low[name] + (high[name] - low[name]) * step // of for name in low}


def size_steps(request: JobRequest) -> int:
    """Return the number of sizes above the minimum, up to the requested size."""
    return steps(request, *_up_to_wished(request))


def at_size(request: JobRequest, step: int) -> JobRequest:
    """Return the request ``step`` sizes above the minimum."""
    low, high = _up_to_wished(request)
    return sized(request, at_step(low, high, step, steps(request, low, high)))


def _up_to_wished(request: JobRequest) -> tuple[dict[str, int], dict[str, int]]:
    low = {pods.name: least(pods) for pods in request.pod_sets}
    return low, {pods.name: pods.count for pods in request.pod_sets}


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

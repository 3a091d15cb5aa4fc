"""What a request asks of a ClusterQueue, in Kueue's words: resources by name. Pure."""

from collections.abc import Callable, Mapping
from typing import Final

from berthmaster.kueue.quota import Ask
from berthmaster.messages.workload import JobRequest, PodSet

GPU: Final = "nvidia.com/gpu"
# The extended resources by which one pod may ask for its GPUs, and how many of each.
Devices = Callable[[PodSet], tuple[Mapping[str, int], ...]]


def whole_gpus(pods: PodSet) -> tuple[Mapping[str, int], ...]:
    """As jobs ask that are made before their cluster is known."""
    return ({GPU: pods.gpus} if pods.gpus else {},)


def asks_of(request: JobRequest, devices: Devices = whole_gpus) -> tuple[Ask, ...]:
    """Pod set by pod set."""
    return tuple(_ask(pods, devices) for pods in request.pod_sets)


def _ask(pods: PodSet, devices: Devices) -> Ask:
    ways = []
    for of_pod in devices(pods):
        amounts = {"cpu": pods.cpu_milli, "memory": pods.memory_mib, **of_pod}
        ways.append({name: amount * pods.count for name, amount in amounts.items() if amount})
    return Ask(pods, tuple(ways))

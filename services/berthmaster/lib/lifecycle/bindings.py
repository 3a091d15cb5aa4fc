"""The pods of an attempt: on which nodes and GPUs they are, as decided and as reported. Pure."""

import msgspec

from berthmaster.lib.lifecycle.sizes import is_elastic, with_bound
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.placement import PodBinding


def with_known_gpus(
    pods: tuple[PodBinding, ...], before: tuple[PodBinding, ...]
) -> tuple[PodBinding, ...]:
    """Kubernetes does not say which GPUs a pod has. On the node where it was placed it is charged
    for those that it was placed on: otherwise what was promised would be free again."""
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
    """Pods as a cluster's agent reports them. Each keeps the charge that the decision stored: the
    agent has no say in that."""
    charged = {binding.pod: binding.charged_milli for binding in before}
    return tuple(
        binding
        if binding.charged_milli == charged.get(binding.pod, 0)
        else msgspec.structs.replace(binding, charged_milli=charged.get(binding.pod, 0))
        for binding in with_known_gpus(pods, before)
    )


def set_pods(workload: Workload, pods: tuple[PodBinding, ...]) -> None:
    """These hold capacity, and the workload's request says how many there are."""
    workload.pods = pods
    asked = workload.wished or workload.request
    if asked is not None and is_elastic(asked):
        workload.wished = asked
        workload.request = with_bound(asked, workload.pods)

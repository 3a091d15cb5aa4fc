"""What a pod set asks of nodes and GPUs, checked where several of its fields must agree. Pure."""

from berthmaster.lib.accelerators.table import is_resource_name
from berthmaster.lib.engine.fleet.models import is_one_of
from berthmaster.lib.engine.fleet.shares import profile_memory_mib, profile_milli
from berthmaster.lib.lifecycle.sizes import most
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.explain import Step, invalid
from berthmaster.lib.messages.workload import ONE_NODE, PodSet, Topology
from berthmaster.lib.requests.devices import devices_fault
from berthmaster.lib.requests.names import QUALIFIED_NAME
from berthmaster.lib.requests.pod_fields import nodes_fault


def pod_set_fault(path: list[Step], pods: PodSet) -> Refusal | None:
    """The first field that does not go with the others, if any."""
    if pods.gpu_milli < 1000 and pods.gpus != 1:
        return invalid(
            [*path, "gpu_milli"],
            pods.gpu_milli,
            f"1000, as gpus is {pods.gpus}: only a pod with one GPU can ask for part of it",
        )
    fault = _sizes_fault(path, pods) or _preference_fault(path, pods)
    if fault is None and pods.gpu_resource:
        fault = _resource_fault([*path, "gpu_resource"], pods)
    if fault is None and pods.mig_profile:
        fault = _profile_fault(path, pods)
    if fault is None:
        fault = devices_fault(path, pods) or nodes_fault(path, pods)
    if fault is None and pods.topology is not None:
        fault = _topology_fault([*path, "topology"], pods, pods.topology)
    return fault


def _sizes_fault(path: list[Step], pods: PodSet) -> Refusal | None:
    if pods.min_count is not None and pods.min_count > pods.count:
        right = f"at most count, which is {pods.count}"
        return invalid([*path, "min_count"], pods.min_count, right)
    if pods.max_count is not None and pods.max_count < pods.count:
        right = f"at least count, which is {pods.count}"
        return invalid([*path, "max_count"], pods.max_count, right)
    for field in ("min_count", "max_count"):
        value = getattr(pods, field)
        if value not in (None, pods.count) and pods.tpu_topology:
            right = f"{pods.count} or nothing: a slice {pods.tpu_topology} has that many pods"
            return invalid([*path, field], value, right)
    return None


def _preference_fault(path: list[Step], pods: PodSet) -> Refusal | None:
    models = pods.prefer_gpu_models
    for at, model in enumerate(models):
        here: list[Step] = [*path, "prefer_gpu_models", at]
        if not pods.gpus:
            return invalid(here, model, "no model, as gpus is 0")
        if model in models[:at]:
            return invalid(here, model, "a model that is not named before it")
        wanted = pods.gpu_models
        if wanted and not (is_one_of(wanted, model) or any(is_one_of((model,), w) for w in wanted)):
            return invalid(here, model, f"one of gpu_models: {', '.join(wanted)}")
    return None


def _resource_fault(path: list[Step], pods: PodSet) -> Refusal | None:
    resource = pods.gpu_resource
    if not is_resource_name(resource):
        right = "an extended resource such as amd.com/gpu, or nothing"
        return invalid(path, resource, right)
    if not pods.gpus:
        return invalid(path, resource, "nothing, as gpus is 0")
    if pods.gpu_milli < 1000:
        right = "nothing: parts of a GPU are asked for as the node offers them"
        return invalid(path, resource, right)
    return None


def _profile_fault(path: list[Step], pods: PodSet) -> Refusal | None:
    profile = pods.mig_profile
    milli = profile_milli(profile)
    if milli is None:
        right = "a MIG profile such as 1g.10gb, or nothing"
        return invalid([*path, "mig_profile"], profile, right)
    if pods.gpus != 1:
        right = f"1, as mig_profile is {profile}: a pod can have one slice of a GPU"
        return invalid([*path, "gpus"], pods.gpus, right)
    if pods.gpu_milli != milli:
        right = f"{milli}, which is what a {profile} comes to of a GPU"
        return invalid([*path, "gpu_milli"], pods.gpu_milli, right)
    memory_mib = profile_memory_mib(profile)
    if pods.gpu_memory_mib > memory_mib:
        right = f"at most {memory_mib}, which is what a {profile} has"
        return invalid([*path, "gpu_memory_mib"], pods.gpu_memory_mib, right)
    return None


def _topology_fault(path: list[Step], pods: PodSet, topology: Topology) -> Refusal | None:
    if topology.same and QUALIFIED_NAME.match(topology.same) is None:
        right = f'"{ONE_NODE}", or a label of nodes such as topology.kubernetes.io/zone'
        return invalid([*path, "same"], topology.same, right)
    if topology.same == ONE_NODE and 0 < topology.max_pods_a_node < most(pods):
        right = f"0 or at least {most(pods)}: all {most(pods)} pods are to be on one node"
        return invalid([*path, "max_pods_a_node"], topology.max_pods_a_node, right)
    if topology.gpu_domain and pods.gpus < 2:
        right = f"nothing, as gpus is {pods.gpus}: it is for pods with several GPUs"
        return invalid([*path, "gpu_domain"], topology.gpu_domain, right)
    return None

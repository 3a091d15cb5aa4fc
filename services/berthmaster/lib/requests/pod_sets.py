"""Checks pod sets: requested GPUs and other devices, and whether the job can be divided. Pure.

Only checks of several fields together are here. A pod has accelerators of one kind. Example: a pod
set with ``gpus: 1`` and ``tpus: 4`` is refused. A resource of the accelerator table has its own
field and may not be an extended resource, so GPUs are counted in one place only.
"""

from typing import Final

from berthmaster.lib.accelerators import tpu
from berthmaster.lib.accelerators.table import ASKED_BY, How, how_of, is_resource_name
from berthmaster.lib.engine.fleet.gpus import is_one_of
from berthmaster.lib.engine.fleet.shares import profile_memory_mib, profile_milli
from berthmaster.lib.lifecycle.pods import is_set_elastic, most
from berthmaster.lib.lifecycle.workload import division_of
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.explain import Step, invalid
from berthmaster.lib.messages.workload import ONE_NODE, Divide, JobRequest, PodSet, Topology
from berthmaster.lib.requests.names import OBJECT, QUALIFIED_NAME
from berthmaster.lib.requests.pod_fields import nodes_fault

_NATIVE: Final = {"cpu": "cpu_milli", "memory": "memory_mib"}
_NAME_WORDS: Final = (
    "an extended resource of nodes by its full name, such as rdma/hca or vpc.amazonaws.com/efa"
)


def devices_fault(path: list[Step], pods: PodSet) -> Refusal | None:
    """Return a refusal of the first field that contradicts another one, if any."""
    return (
        _tpu_fault(path, pods)
        or _resources_fault([*path, "resources"], pods)
        or _claims_fault([*path, "claims"], pods)
        or _isolation_fault([*path, "isolation"], pods)
    )


def _tpu_fault(path: list[Step], pods: PodSet) -> Refusal | None:
    if pods.tpus and pods.gpus:
        right = f"0, as gpus is {pods.gpus}: a pod has GPUs or TPUs; others are another pod set"
        return invalid([*path, "tpus"], pods.tpus, right)
    if not pods.tpus:
        for field in ("tpu_topology", "tpu_accelerators"):
            if said := getattr(pods, field):
                return invalid([*path, field], said, "nothing, as tpus is 0")
        return None
    for at, name in enumerate(pods.tpu_accelerators):
        if name in pods.tpu_accelerators[:at]:
            right = f"a value of the label {tpu.ACCELERATOR_LABEL}, named once"
            return invalid([*path, "tpu_accelerators", at], name, right)
    return _slice_fault(path, pods) if pods.tpu_topology else None


def _slice_fault(path: list[Step], pods: PodSet) -> Refusal | None:
    """Require whole TPU slices, since a part of a slice never starts."""
    here: list[Step] = [*path, "tpu_topology"]
    topology, chips = pods.tpu_topology, tpu.chips_of(pods.tpu_topology)
    if chips is None:
        right = f"a topology such as 2x4 or 2x2x4, of at most {tpu.MAX_CHIPS} chips, or nothing"
        return invalid(here, topology, right)
    if chips % pods.tpus:
        right = (
            f"a topology of which each pod has an equal part: {chips} chips are no multiple of "
            f"tpus, which is {pods.tpus}"
        )
        return invalid(here, topology, right)
    pods_a_slice = chips // pods.tpus
    if pods_a_slice == 1:
        return None
    if pods.count != pods_a_slice:
        right = (
            f"{pods_a_slice}, as a slice of {topology} is {pods_a_slice} pods with {pods.tpus} "
            "TPUs each; further slices are further pod sets"
        )
        return invalid([*path, "count"], pods.count, right)
    if pods.topology is not None and pods.topology.same not in ("", tpu.POOL_LABEL):
        said = "one node" if pods.topology.same == ONE_NODE else "one place of another kind"
        right = f"nothing: the nodes of a slice are those of one node pool, not {said}"
        return invalid([*path, "topology", "same"], pods.topology.same, right)
    return None


def _resources_fault(path: list[Step], pods: PodSet) -> Refusal | None:
    for name in pods.resources:
        if name in _NATIVE:
            return invalid([*path, name], name, f"no such name here: use the field {_NATIVE[name]}")
        how = how_of(name)
        if how is not None and how is not How.OTHER:
            right = f"no such name here: ask by the field {ASKED_BY[how]}"
            return invalid([*path, name], name, right)
        if not is_resource_name(name):
            return invalid([*path, name], name, _NAME_WORDS)
    return None


def _claims_fault(path: list[Step], pods: PodSet) -> Refusal | None:
    for at, name in enumerate(pods.claims):
        if OBJECT.match(name) is None:
            right = (
                "the name of a ResourceClaimTemplate, or of a ResourceClaim, in the namespace of "
                "the pods: lower-case letters, digits, '-' and '.'"
            )
            return invalid([*path, at], name, right)
        if name in pods.claims[:at]:
            return invalid([*path, at], name, "a name that is not there before it")
    return None


def _isolation_fault(path: list[Step], pods: PodSet) -> Refusal | None:
    if pods.isolation and not pods.gpus:
        right = "nothing, as gpus is 0: it is for pods that share GPUs"
        return invalid(path, pods.isolation, right)
    return None


def pod_set_fault(path: list[Step], pods: PodSet) -> Refusal | None:
    """Return a refusal of the first field that contradicts another one, if any."""
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


MAX_ID_CHARS: Final = 40  # of a job that may be divided: the ids of its sub-jobs are longer


def id_fault(request: JobRequest) -> Refusal | None:
    """Return a refusal of the job's id, if invalid."""
    if division_of(request.id) is not None:
        right = "an id that does not end as those of parts of divided jobs do: --<number>-<number>"
        return invalid(["id"], request.id, right)
    if request.divide is not None and len(request.id) > MAX_ID_CHARS:
        right = f"at most {MAX_ID_CHARS} characters, as the job may be divided (divide)"
        return invalid(["id"], request.id, right)
    return None


def divide_fault(request: JobRequest) -> Refusal | None:
    """Return a refusal of the first field that a divided job may not have, if any."""
    how = request.divide
    if how is None:
        return None
    if len(request.pod_sets) > 1:
        right = "nothing: of a job with several pod sets none can be divided"
        return invalid(["divide"], _told(how), right)
    pods = request.pod_sets[0]
    if how.min_part > pods.count:
        right = f"at most count, which is {pods.count}"
        return invalid(["divide", "min_part"], how.min_part, right)
    if is_set_elastic(pods):
        right = "nothing: a job whose number of pods changes (min_count, max_count) stays together"
        return invalid(["divide"], _told(how), right)
    if pods.tpu_topology:
        right = f"nothing: the pods make one slice {pods.tpu_topology} (tpu_topology)"
        return invalid(["divide"], _told(how), right)
    if pods.topology is not None and pods.topology.same:
        right = f"nothing: all pods are to be in one place (topology.same {pods.topology.same})"
        return invalid(["divide"], _told(how), right)
    return _weights_fault(request, how) or _address_fault(how)


def _weights_fault(request: JobRequest, how: Divide) -> Refusal | None:
    if how.weights and how.by != "weight":
        right = f"nothing, as by is {how.by}"
        return invalid(["divide", "weights"], f"{len(how.weights)} clusters", right)
    for cluster in how.weights:
        if request.clusters and cluster not in request.clusters:
            right = f"one of clusters: {', '.join(request.clusters)}"
            return invalid(["divide", "weights"], cluster, right)
    return None


def _address_fault(how: Divide) -> Refusal | None:
    if how.address and not how.gang:
        right = "nothing, as gang is false: pods that need no others need no address of theirs"
        return invalid(["divide", "address"], how.address, right)
    return None


def via_refusal(setting: QueueSetting, request: JobRequest) -> Refusal | None:
    """Return a refusal if jobs of this queue cannot be divided."""
    if request.divide is None or setting.via == "direct":
        return None
    where = "the hub's Kueue" if setting.via == "hub" else "the Kueue of one cluster"
    right = f"nothing: {where} starts the jobs of the queue {setting.queue!r} (via {setting.via})"
    return invalid(["divide"], _told(request.divide), right)


def _told(how: Divide) -> str:
    return f"by {how.by}"

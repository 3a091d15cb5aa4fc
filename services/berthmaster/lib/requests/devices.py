"""What a pod set asks for besides whole GPUs: TPUs, other resources, claims, isolation. Pure.

A pod has accelerators of one kind. What the table of accelerators knows has a field of its own and
is no other resource, so that whoever counts GPUs never has to look in two places.
"""

from typing import Final

from berthmaster.lib.accelerators import tpu
from berthmaster.lib.accelerators.table import ASKED_BY, How, how_of, is_resource_name
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.explain import Step, invalid
from berthmaster.lib.messages.workload import ONE_NODE, PodSet
from berthmaster.lib.requests.names import OBJECT

_NATIVE: Final = {"cpu": "cpu_milli", "memory": "memory_mib"}
_NAME_WORDS: Final = (
    "an extended resource of nodes by its full name, such as rdma/hca or vpc.amazonaws.com/efa"
)


def devices_fault(path: list[Step], pods: PodSet) -> Refusal | None:
    """The first field that does not go with the others, if any."""
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
    """Whole slices only: a part of one never starts."""
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

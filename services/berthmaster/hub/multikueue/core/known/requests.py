"""A Kueue Workload as a request: id, tenant and job request.

Rules of this file:

- Odd content never blocks a Workload. Unreadable parts count as nothing requested, and each is
  named for the user. Accelerators that are read but cannot be ranked are still required of clusters
  (lib/kueue/podsets).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from berthmaster.lib.accelerators.table import NVIDIA, How, how_of
from berthmaster.lib.kube.quantity import QuantityError, milli, whole
from berthmaster.lib.kueue.asks import asks_of
from berthmaster.lib.kueue.podsets.reading import (
    MIB,
    WHOLE,
    SetRead,
    bounded_priority,
    pod_set_of,
    queue_fault,
    read_set,
    workload_id,
)
from berthmaster.lib.kueue.podsets.templates import Quantity
from berthmaster.lib.kueue.quota import PODS, Ask
from berthmaster.lib.kueue.workloads import KueueWorkload
from berthmaster.lib.messages.workload import MAX_POD_SETS, HubObject, JobRequest, PodSet

Required = tuple[tuple[str, int], ...]  # resource, how many on one node


class Read(NamedTuple):
    """A Workload as a request, with the unreadable parts."""

    request: JobRequest
    problems: tuple[str, ...]


def origin_of(workload: KueueWorkload, cluster_queue: str, hub: str) -> HubObject:
    """Return the hub object behind a workload."""
    kind, name = workload.owner
    return HubObject(
        namespace=workload.metadata.namespace,
        name=workload.metadata.name,
        uid=workload.metadata.uid,
        owner=f"{kind}/{name}" if name else "",
        local_queue=workload.spec.queue_name,
        cluster_queue=cluster_queue,
        hub=hub,
    )


def read_sets(workload: KueueWorkload) -> tuple[SetRead, ...]:
    read = []
    for one in workload.spec.pod_sets or ():
        if one.count != 0:
            read.append(read_set(one))
            if len(read) == MAX_POD_SETS:
                break
    return tuple(read)


def read_request(workload: KueueWorkload, sets: Sequence[SetRead] | None = None) -> Read:
    """Return the request. ``sets``: pod sets, if already read."""
    problems: list[str] = []
    found = workload.spec.pod_sets or ()
    if not found:
        problems.append("it has no pod sets")
    if len(found) > MAX_POD_SETS:
        problems.append(f"{len(found)} pod sets: only the first {MAX_POD_SETS} are looked at")
    sets = read_sets(workload) if sets is None else sets
    pod_sets = [pod_set_of(one, problems) for one in sets]
    queue = workload.spec.queue_name
    if fault := queue_fault(queue):
        problems.append(fault)
        queue = "default"
    request = JobRequest(
        id=workload_id(workload.metadata.name, workload.metadata.uid),
        queue=queue,
        priority=bounded_priority(workload.spec.priority),
        pod_sets=tuple(pod_sets) or (PodSet(cpu_milli=0, memory_mib=0),),
        max_evictions=1000,  # Kueue limits evictions
    )
    return Read(request, tuple(problems))


def by_resource(request: JobRequest) -> JobRequest:
    """With the resource named that its whole GPUs are: a Job of the hub asks for NVIDIA's where
    nothing else is said, and no other maker's will do."""
    sets = tuple(
        msgspec.structs.replace(pods, gpu_resource=NVIDIA)
        if pods.gpus and pods.gpu_milli == WHOLE and not pods.gpu_resource
        else pods
        for pods in request.pod_sets
    )
    return request if sets == request.pod_sets else msgspec.structs.replace(request, pod_sets=sets)


def without_shares(request: JobRequest, shares: Collection[str]) -> JobRequest:
    """Return the request without fraction resources of nodes: nodes have no units under these
    names, and their free number is unknown.
    """
    if not any(pods.resources.keys() & shares for pods in request.pod_sets):
        return request
    sets = tuple(
        msgspec.structs.replace(
            pods, resources={name: n for name, n in pods.resources.items() if name not in shares}
        )
        for pods in request.pod_sets
    )
    return msgspec.structs.replace(request, pod_sets=sets)


def read_asks(
    workload: KueueWorkload, request: JobRequest, sets: Sequence[SetRead] | None = None
) -> tuple[Ask, ...]:
    """Return the Workload's claim on a worker's quota: as counted by the hub's Kueue after its
    reservation, by the same names (other vendors' GPUs, slices), and before that as requested.
    """
    admission = workload.status.admission if workload.status is not None else None
    assigned = (admission.pod_set_assignments if admission is not None else None) or ()
    usage = {one.name: one.resource_usage for one in assigned}
    sets = read_sets(workload) if sets is None else sets
    if len(sets) != len(request.pod_sets):
        return asks_of(request)
    rows = tuple(zip(sets, request.pod_sets, strict=True))
    try:
        if usage and all(usage.get(one.found.name) for one in sets):
            return tuple(Ask(pods, (_counted(usage[one.found.name] or {}),)) for one, pods in rows)
    except QuantityError:
        pass
    return tuple(Ask(pods, (_named_by(one.amounts, pods),)) for one, pods in rows)


def read_required(
    workload: KueueWorkload, asks: Sequence[Ask], sets: Sequence[SetRead] | None = None
) -> Required:
    """Return the named requirements on a cluster, whatever its capacity. Resources that nodes do
    not report are left to quota. Resources that the hub's Kueue ignores cannot be required of a
    worker's quota.
    """
    admitted = workload.status is not None and workload.status.admission is not None
    counted = {name for ask in asks for way in ask.ways for name in way}
    required: dict[str, int] = {}
    for one in read_sets(workload) if sets is None else sets:
        for name, count in one.devices.required.items():
            if how_of(name) is not How.OTHER or name in counted or not admitted:
                required[name] = max(required.get(name, 0), count)
    return tuple(sorted(required.items()))


def _named_by(amounts: Mapping[str, int], pods: PodSet) -> dict[str, int]:
    """Return the quota by the resource names of the pods."""
    asked = {name: n for name, n in amounts.items() if how_of(name) is not None}
    asked |= {"cpu": pods.cpu_milli, "memory": pods.memory_mib}
    return {name: n * pods.count for name, n in asked.items() if n}


def _counted(usage: Mapping[str, Quantity]) -> dict[str, int]:
    """In the units of a queue's report."""
    counted = {}
    for name, amount in usage.items():
        if amount is None or name == PODS:  # pods are counted at their grant
            continue
        text = repr(amount) if isinstance(amount, float) else amount
        if name == "cpu":
            counted[name] = milli(text)
        else:
            counted[name] = -(-whole(text) // MIB) if name == "memory" else whole(text)
    return counted

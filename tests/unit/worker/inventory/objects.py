"""Objects as an API server writes them, with only what a test is about."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from berthmaster.lib.kueue.queues import ClusterQueue, LocalQueue, ResourceFlavor
from berthmaster.lib.kueue.workloads import Workload
from berthmaster.lib.messages.fleet import Stamp
from berthmaster.worker.inventory.core.objects import (
    Definition,
    DeviceClass,
    Node,
    Pod,
    ResourceClaim,
    ResourceSlice,
)

STAMP = Stamp(epoch=7, counter=1)
NOW_S = 100.0
Json = Mapping[str, Any]
TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"


def condition(kind: str, status: str = TRUE, reason: str = "", message: str = "") -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def node(
    name: str = "n1",
    allocatable: Json | None = None,
    *,
    capacity: Json | None = None,
    labels: Json | None = None,
    annotations: Json | None = None,
    taints: Sequence[Json] = (),
    ready: str = TRUE,
    unschedulable: bool = False,
    deleted: bool = False,
) -> Node:
    host = {"cpu": "8", "memory": "16Gi", "pods": "110"}
    offered = host | dict(allocatable or {})
    metadata: dict[str, Any] = {
        "name": name,
        "labels": dict(labels or {}),
        "annotations": dict(annotations or {}),
    }
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return msgspec.convert(
        {
            "metadata": metadata,
            "spec": {"unschedulable": unschedulable, "taints": list(taints)},
            "status": {
                "allocatable": offered,
                "capacity": host | dict(capacity) if capacity is not None else offered,
                "conditions": [condition("Ready", ready)],
            },
        },
        Node,
    )


def discovered(product: str = "Tesla-T4", count: int = 4, memory: int = 15_360) -> dict[str, str]:
    return {
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.count": str(count),
        "nvidia.com/gpu.memory": str(memory),
    }


def asks(requests: Json, **more: Any) -> Json:
    return {"resources": {"requests": dict(requests)}, **more}


def pod(
    name: str = "p1",
    requests: Json | None = None,
    *,
    on: str = "n1",
    namespace: str = "team",
    labels: Json | None = None,
    annotations: Json | None = None,
    phase: str = "Running",
    spec: Json | None = None,
) -> Pod:
    containers = [asks(requests or {})]
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": f"uid-{name}",
                "labels": dict(labels or {}),
                "annotations": dict(annotations or {}),
            },
            "spec": {"nodeName": on, "containers": containers} | dict(spec or {}),
            "status": {"phase": phase},
        },
        Pod,
    )


def ours(
    pod_name: str,
    requests: Json | None = None,
    *,
    attempt: int = 1,
    labels: Mapping[str, str] | None = None,
    **more: Any,
) -> Pod:
    """A pod that an executor of ours made."""
    known = {
        "berthmaster.io/tenant": "acme",
        "berthmaster.io/workload": "train",
        "berthmaster.io/attempt": str(attempt),
        "berthmaster.io/pod": pod_name,
    }
    return pod(f"train-{pod_name}", requests or {}, labels=known | dict(labels or {}), **more)


def resource_slice(
    name: str,
    devices: Sequence[Json],
    *,
    on: str = "n1",
    driver: str = "gpu.nvidia.com",
    generation: int = 1,
    count: int = 1,
    pool: str = "",
) -> ResourceSlice:
    of = {"name": pool or on, "generation": generation, "resourceSliceCount": count}
    spec = {"driver": driver, "pool": of, "nodeName": on, "devices": list(devices)}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, ResourceSlice)


def device(
    name: str,
    *,
    taints: Sequence[Json] = (),
    memory: str = "",
    numbers: Json | None = None,
    shared: bool = False,
    **texts: str,
) -> Json:
    attributes = {key: {"string": value} for key, value in texts.items()}
    return {
        "name": name,
        "attributes": attributes | {key: {"int": n} for key, n in (numbers or {}).items()},
        "capacity": {"memory": {"value": memory}} if memory else {},
        "taints": list(taints),
        "allowMultipleAllocations": shared,
    }


def device_class(name: str, *expressions: str, resource: str = "") -> DeviceClass:
    selectors = [{"cel": {"expression": each}} for each in expressions]
    spec = {"selectors": selectors, "extendedResourceName": resource}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, DeviceClass)


def claim(
    name: str,
    devices: Sequence[str],
    *,
    pods: Sequence[str] = (),
    on: str = "n1",
    driver: str = "gpu.nvidia.com",
    admin: bool = False,
    consumed: Json | None = None,
) -> ResourceClaim:
    results = [
        {"driver": driver, "pool": on, "device": one, "adminAccess": admin}
        | ({"consumedCapacity": dict(consumed), "shareID": f"{name}-{at}"} if consumed else {})
        for at, one in enumerate(devices)
    ]
    users = [{"resource": "pods", "name": one, "uid": f"uid-{one}"} for one in pods]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": users}
    metadata = {"name": name, "namespace": "team"}
    return msgspec.convert({"metadata": metadata, "status": status}, ResourceClaim)


def cluster_queue(
    name: str, *, spec: Json | None = None, active: Json | None = None, **status: Any
) -> ClusterQueue:
    conditions = [active or condition("Active", TRUE, "Ready", "Can admit new workloads")]
    return msgspec.convert(
        {
            "metadata": {"name": name},
            "spec": dict(spec or {}),
            "status": {"conditions": conditions, **status},
        },
        ClusterQueue,
    )


def local_queue(
    name: str, leads_to: str, *, namespace: str = "team", active: Json | None = None, stop: str = ""
) -> LocalQueue:
    conditions = [active or condition("Active")]
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"clusterQueue": leads_to, "stopPolicy": stop},
            "status": {"conditions": conditions},
        },
        LocalQueue,
    )


def flavor(name: str, **labels: str) -> ResourceFlavor:
    return msgspec.convert(
        {"metadata": {"name": name}, "spec": {"nodeLabels": labels}}, ResourceFlavor
    )


def workload(
    name: str,
    conditions: Sequence[Json],
    checks: Sequence[Json] = (),
    flavors: Mapping[str, str] | None = None,
) -> Workload:
    status: dict[str, Any] = {"conditions": list(conditions), "admissionChecks": list(checks)}
    if flavors is not None:
        assigned = {"name": "main", "flavors": dict(flavors)}
        status["admission"] = {"clusterQueue": "q", "podSetAssignments": [assigned]}
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "namespace": "team",
                "labels": {"kueue.x-k8s.io/multikueue-origin": "multikueue"},
            },
            "status": status,
        },
        Workload,
    )


def definition(name: str, established: str = TRUE) -> Definition:
    status = {"conditions": [condition("Established", established)]}
    return msgspec.convert({"metadata": {"name": name}, "status": status}, Definition)

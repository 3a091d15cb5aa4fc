"""Nodes with GPUs that do not exist: one API object each, served by kwok.

A node is created with status and readiness in one call, like a registering kubelet's: a thousand
take some seconds. Labels follow GPU feature discovery.
"""

from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from berthmaster.lab.controlplane.patience import wait_until
from berthmaster.lab.controlplane.plane import Plane

DOWN: Final = "berth.test/down"  # stages/nodes.yaml
GPU: Final = "nvidia.com/gpu"
_AT_ONCE: Final = 8
_NOT_READY: Final = "node.kubernetes.io/not-ready"


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node as registered."""

    name: str
    capacity: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()
    allocatable: Mapping[str, str] | None = None  # None = as the capacity

    def document(self, now: datetime) -> dict[str, Any]:
        """Return the API object."""
        labels = {
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
        }
        moment = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "kwok says so",
            "lastHeartbeatTime": moment,
            "lastTransitionTime": moment,
        }
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": self.name,
                "labels": labels | dict(self.labels),
                "annotations": dict(self.annotations),
            },
            "spec": {"taints": [dict(taint) for taint in self.taints]},
            "status": {
                "capacity": dict(self.capacity),
                "allocatable": dict(self.allocatable or self.capacity),
                "conditions": [ready],
                "addresses": [
                    {"type": "InternalIP", "address": "127.0.0.1"},
                    {"type": "Hostname", "address": self.name},
                ],
                "nodeInfo": {
                    "architecture": "amd64",
                    "operatingSystem": "linux",
                    "kubeletVersion": "kwok",
                    "kernelVersion": "kwok",
                    "osImage": "kwok",
                    "containerRuntimeVersion": "kwok",
                    "kubeProxyVersion": "kwok",
                    "machineID": "",
                    "systemUUID": "",
                    "bootID": "",
                },
            },
        }


def _host(cpu: str = "96", memory: str = "1Ti") -> dict[str, str]:
    return {"cpu": cpu, "memory": memory, "pods": "110", "ephemeral-storage": "1Ti"}


def cpu_node(name: str, *, cpu: str = "96", memory: str = "1Ti", **more: Any) -> Node:
    """Return a node without GPUs."""
    return Node(name=name, capacity=_host(cpu, memory), **more)


def gpu_node(
    name: str,
    *,
    gpus: int = 8,
    model: str = "NVIDIA-H100-80GB-HBM3",
    memory_mib: int = 81_559,
    labels: Mapping[str, str] | None = None,
    **more: Any,
) -> Node:
    """Return a node that allocates whole GPUs."""
    return Node(
        name=name,
        capacity=_host() | {GPU: str(gpus)},
        labels=_discovered(model, gpus, memory_mib) | dict(labels or {}),
        **more,
    )


def shared_node(
    name: str,
    *,
    gpus: int = 8,
    replicas: int = 4,
    model: str = "NVIDIA-A10",
    memory_mib: int = 23_028,
    renamed: bool = True,
    labels: Mapping[str, str] | None = None,
    **more: Any,
) -> Node:
    """Return a node that offers each GPU several times (time slicing), as nvidia.com/gpu.shared."""
    found = _discovered(f"{model}-SHARED", gpus, memory_mib) | {
        "nvidia.com/gpu.replicas": str(replicas),
        "nvidia.com/gpu.sharing-strategy": "time-slicing",
    }
    resource = f"{GPU}.shared" if renamed else GPU
    return Node(
        name=name,
        capacity=_host() | {resource: str(gpus * replicas)},
        labels=found | dict(labels or {}),
        **more,
    )


def mig_node(
    name: str,
    slices: Mapping[str, int],
    *,
    gpus: int = 1,
    model: str = "NVIDIA-A100-SXM4-40GB",
    memory_mib: int = 40_960,
    labels: Mapping[str, str] | None = None,
    **more: Any,
) -> Node:
    """Return a node with MIG slices only: {"1g.5gb": 7} becomes nvidia.com/mig-1g.5gb."""
    offered = {f"nvidia.com/mig-{profile}": str(count) for profile, count in slices.items()}
    found = _discovered(model, gpus, memory_mib) | {"nvidia.com/mig.strategy": "mixed"}
    return Node(
        name=name,
        capacity=_host() | {GPU: "0"} | offered,
        labels=found | dict(labels or {}),
        **more,
    )


def _discovered(model: str, count: int, memory_mib: int) -> dict[str, str]:
    return {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": model,
        "nvidia.com/gpu.count": str(count),
        "nvidia.com/gpu.memory": str(memory_mib),
    }


def make_nodes(plane: Plane, nodes: Iterable[Node]) -> list[str]:
    """Register all nodes, wait until ready, and return their names.

    Tests reuse names. So leftover pods of an earlier test on nodes of these names are deleted
    first: they would use capacity, and a busy machine takes a while to remove them.
    """
    now = datetime.now(UTC)
    bodies = [node.document(now) for node in nodes]
    names = {str(body["metadata"]["name"]) for body in bodies}
    wait_until(lambda: not _left_on(plane, names), "pods of earlier tests are gone", poll_s=0.1)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(lambda body: plane.api.create("/api/v1/nodes", body), bodies))
    return [str(body["metadata"]["name"]) for body in bodies]


def _left_on(plane: Plane, nodes: Collection[str]) -> int:
    """Delete the pods on these nodes in terminating namespaces, and return their number."""
    spaces = [each["metadata"] for each in plane.api.items("/api/v1/namespaces")]
    found = 0
    for space in spaces:
        if "deletionTimestamp" not in space:
            continue
        path = f"/api/v1/namespaces/{space['name']}/pods"
        if here := [pod for pod in plane.api.items(path) if pod["spec"].get("nodeName") in nodes]:
            found += len(here)
            plane.api.delete(path, gracePeriodSeconds=0)
    return found


def wait_open(plane: Plane, names: Iterable[str]) -> None:
    """Wait until all nodes accept pods.

    A new node has a not-ready taint. With many nodes, the node lifecycle controller takes a while
    to remove the taints.
    """
    wanted = set(names)

    def are_open() -> bool:
        nodes = plane.api.items("/api/v1/nodes")
        tainted = {
            node["metadata"]["name"]
            for node in nodes
            if any(taint["key"] == _NOT_READY for taint in node["spec"].get("taints", ()))
        }
        return wanted <= {node["metadata"]["name"] for node in nodes} - tainted

    wait_until(are_open, f"{len(wanted)} nodes without {_NOT_READY}", poll_s=0.5)


def remove_nodes(plane: Plane, names: Iterable[str]) -> None:
    """Delete nodes as an autoscaler does: their pods are deleted after a while."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(lambda name: plane.api.delete(f"/api/v1/nodes/{name}"), names))


def take_down(plane: Plane, name: str) -> None:
    """Make a node not ready, and wait for that."""
    plane.api.merge(f"/api/v1/nodes/{name}", {"metadata": {"annotations": {DOWN: "true"}}})
    _wait_readiness(plane, name, "False")


def bring_back(plane: Plane, name: str) -> None:
    """Make a node ready again."""
    plane.api.merge(f"/api/v1/nodes/{name}", {"metadata": {"annotations": {DOWN: None}}})
    _wait_readiness(plane, name, "True")


def _wait_readiness(plane: Plane, name: str, wanted: str) -> None:
    def has_it() -> bool:
        conditions = plane.api.get(f"/api/v1/nodes/{name}")["status"]["conditions"]
        return {"Ready": wanted} in [{each["type"]: each["status"]} for each in conditions]

    wait_until(has_it, f"node {name} with Ready={wanted}")

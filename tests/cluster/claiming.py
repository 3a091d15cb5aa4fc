"""Devices of a driver that does not exist: classes and slices by hand, and what the inventory
makes of them. The real scheduler allocates them, and kwok runs the pods."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lib.kube.controller.problems import Problems
from berthmaster.lib.messages.fleet import NodeReport, Stamp
from berthmaster.worker.inventory.core.node_index import NodeIndex
from berthmaster.worker.inventory.core.objects import (
    DeviceClass,
    Node,
    Pod,
    ResourceClaim,
    ResourceSlice,
)

DRIVER: Final = "gpu.nvidia.com"
API: Final = "/apis/resource.k8s.io/v1"
A100: Final = "NVIDIA A100-SXM4-80GB"


def gpu(name: str, *, product: str = A100, memory: str = "80Gi", shared: bool = False) -> Any:
    """A device as NVIDIA's driver publishes it, or one that several claims may have."""
    capacity: dict[str, Any] = {"value": memory}
    if shared:
        steps = {"min": "1Mi", "step": "1Mi"}
        capacity["requestPolicy"] = {"default": memory, "validRange": steps}
    made = {
        "name": name,
        "attributes": {
            "type": {"string": "gpu"},
            "productName": {"string": product},
            "uuid": {"string": f"GPU-{name}"},
        },
        "capacity": {"memory": capacity},
    }
    return made | ({"allowMultipleAllocations": True} if shared else {})


def mig(name: str, profile: str, memory: str) -> Any:
    """A slice of a GPU."""
    return {
        "name": name,
        "attributes": {
            "type": {"string": "mig"},
            "productName": {"string": A100},
            "profile": {"string": profile},
            "parentUUID": {"string": "GPU-0"},
        },
        "capacity": {"memory": {"value": memory}},
    }


@contextmanager
def offered(
    plane: Plane,
    devices: Mapping[str, Sequence[Any]],
    *,
    kind: str = "gpu",
    class_name: str = DRIVER,
    resource: str = "",
) -> Iterator[None]:
    """A class for these devices, by node, until the end."""
    expression = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == '{kind}'"
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": expression}}]}
    if resource:
        spec["extendedResourceName"] = resource
    classes, slices = f"{API}/deviceclasses", f"{API}/resourceslices"
    plane.api.create(classes, {"metadata": {"name": class_name}, "spec": spec})
    for node, listed in devices.items():
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        of_node = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": list(listed)}
        plane.api.create(slices, {"metadata": {"name": f"{node}-gpus"}, "spec": of_node})
    try:
        yield
    finally:
        for node in devices:
            plane.api.delete(f"{slices}/{node}-gpus")
        if plane.api.find(f"{classes}/{class_name}") is not None:  # unless a test took it away
            plane.api.delete(f"{classes}/{class_name}")


def reported(plane: Plane, name: str, cluster: str = "berlin") -> NodeReport:
    """A node as the inventory would tell of it now."""
    index = NodeIndex(cluster, Problems())
    api = plane.api
    index.know_classes()
    for one in api.items(f"{API}/deviceclasses"):
        index.set_class(msgspec.convert(one, DeviceClass))
    index.set_node(msgspec.convert(api.get(f"/api/v1/nodes/{name}"), Node))
    for one in api.items(f"{API}/resourceslices"):
        index.set_slice(msgspec.convert(one, ResourceSlice))
    for one in api.items("/api/v1/pods"):
        index.set_pod(msgspec.convert(one, Pod))
    for one in api.items(f"{API}/resourceclaims"):
        index.set_claim(msgspec.convert(one, ResourceClaim))
    report = index.report(name, Stamp(epoch=1, counter=1), 1.0)
    assert report is not None
    return report

"""Parts of objects that an inventory reads.

Every field has a default, because the API omits empty ones. Quantities stay texts until amounts.py
reads them, so an impossible quantity spoils only its own value.
"""

from typing import Final

import msgspec

from berthmaster.lib.kube.objects import Condition, Object, Struct

Quantities = dict[str, str | int]

# Bound pods with resources. Ended and pending pods are no load of a node.
HOLDING_PODS: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
# Pods that wait for a node.
WAITING_PODS: Final = "spec.nodeName=,status.phase=Pending"


# Nodes and pods


class NodeTaint(Struct, frozen=True):
    """A taint of the API, possibly with an unknown effect."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Struct, frozen=True):
    unschedulable: bool = False
    taints: tuple[NodeTaint, ...] = ()


class NodeStatus(Struct, frozen=True):
    capacity: Quantities = msgspec.field(default_factory=dict)
    allocatable: Quantities = msgspec.field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()


class Node(Object, frozen=True):
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Resources(Struct, frozen=True):
    requests: Quantities = msgspec.field(default_factory=dict)
    limits: Quantities = msgspec.field(default_factory=dict)

    @property
    def asked(self) -> Quantities:
        """Requests, and limits where requests lack, as the API server has it."""
        return {**self.limits, **self.requests} if self.limits else self.requests


class Container(Struct, frozen=True):
    """A container; an init container with restartPolicy Always is a sidecar."""

    resources: Resources = Resources()
    restart_policy: str = ""


class PodSpec(Struct, frozen=True):
    node_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: Quantities = msgspec.field(default_factory=dict)
    resources: Resources = Resources()  # of the whole pod, replacing the containers'


class PodStatus(Struct, frozen=True):
    phase: str = ""


class Pod(Object, frozen=True):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class WaitingPodStatus(Struct, frozen=True):
    conditions: tuple[Condition, ...] = ()


class WaitingPod(Object, frozen=True):
    status: WaitingPodStatus = WaitingPodStatus()


# Dynamic resource allocation


class Attribute(Struct, frozen=True):
    """One attribute of a device, without flags and versions."""

    string: str | None = None
    number: int | None = msgspec.field(default=None, name="int")


class Capacity(Struct, frozen=True):
    value: str | int = 0


class Device(Struct, frozen=True):
    name: str = ""
    attributes: dict[str, Attribute] = msgspec.field(default_factory=dict)
    capacity: dict[str, Capacity] = msgspec.field(default_factory=dict)
    taints: tuple[NodeTaint, ...] = ()
    allow_multiple_allocations: bool | None = False


class SlicePool(Struct, frozen=True):
    """Pool and generation of a slice."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 1


class SliceSpec(Struct, frozen=True):
    """Devices of one driver, on one node if named."""

    driver: str = ""
    pool: SlicePool = SlicePool()
    node_name: str = ""
    devices: tuple[Device, ...] = ()


class ResourceSlice(Object, frozen=True):
    spec: SliceSpec = SliceSpec()


class Allotted(Struct, frozen=True):
    """One allocated device of a claim."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = False
    # Of a shared device: this claim's capacity and share.
    consumed_capacity: Quantities | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")


class AllottedDevices(Struct, frozen=True):
    results: tuple[Allotted, ...] = ()


class Allocation(Struct, frozen=True):
    devices: AllottedDevices = AllottedDevices()


class Consumer(Struct, frozen=True):
    """A user of a claim, usually a pod."""

    resource: str = ""
    name: str = ""
    uid: str = ""


class ClaimStatus(Struct, frozen=True):
    allocation: Allocation | None = None
    reserved_for: tuple[Consumer, ...] = ()


class ResourceClaim(Object, frozen=True):
    """A wish for devices, perhaps granted."""

    status: ClaimStatus = ClaimStatus()


class CelSelector(Struct, frozen=True):
    """An expression in the Common Expression Language."""

    expression: str = ""


class DeviceSelector(Struct, frozen=True):
    """A selector; other kinds than CEL may appear."""

    cel: CelSelector | None = None


class DeviceClassSpec(Struct, frozen=True):
    """Selectors of a class; all must match."""

    selectors: tuple[DeviceSelector, ...] = ()
    extended_resource_name: str = ""


class DeviceClass(Object, frozen=True):
    spec: DeviceClassSpec = DeviceClassSpec()


class Conditions(Struct, frozen=True):
    conditions: tuple[Condition, ...] = ()


class Definition(Object, frozen=True):
    """A CustomResourceDefinition, to see whether its kind is served."""

    status: Conditions = Conditions()

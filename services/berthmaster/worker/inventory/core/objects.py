"""The parts of objects that an inventory reads.

Everything has a default, as the API omits what is empty. Quantities stay text until amounts.py
reads them, so that one that is nonsense spoils its own figure and not the object.
"""

from typing import Final

import msgspec

from berthmaster.lib.kube.objects import Condition, Object, Struct

Quantities = dict[str, str | int]

# A mirror of bound pods that hold something: what is finished or waits is none of a node's load.
HOLDING_PODS: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
# And of those that wait for a node.
WAITING_PODS: Final = "spec.nodeName=,status.phase=Pending"


# Nodes and pods


class NodeTaint(Struct, frozen=True):
    """A taint as the API has it; the effect may be one that we do not know."""

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
    """What a container or a pod asks for."""

    requests: Quantities = msgspec.field(default_factory=dict)
    limits: Quantities = msgspec.field(default_factory=dict)

    @property
    def asked(self) -> Quantities:
        """Requests, and limits where requests lack, as the API server has it."""
        return {**self.limits, **self.requests} if self.limits else self.requests


class Container(Struct, frozen=True):
    """A container; an init container that restarts always is a sidecar."""

    resources: Resources = Resources()
    restart_policy: str = ""


class PodSpec(Struct, frozen=True):
    """What holds resources of a node."""

    node_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: Quantities = msgspec.field(default_factory=dict)
    resources: Resources = Resources()  # of the pod as a whole, which then counts


class PodStatus(Struct, frozen=True):
    """Whether it still holds anything."""

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
    """One attribute of a device; those that are flags or versions tell us nothing."""

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
    """Which pool a slice is part of, and of which generation of it."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 1


class SliceSpec(Struct, frozen=True):
    """Devices of one driver, on one node where it is named."""

    driver: str = ""
    pool: SlicePool = SlicePool()
    node_name: str = ""
    devices: tuple[Device, ...] = ()


class ResourceSlice(Object, frozen=True):
    """Devices that a driver offers."""

    spec: SliceSpec = SliceSpec()


class Allotted(Struct, frozen=True):
    """One device that a claim has got."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = False
    # Of a device that several claims may have: how much of it is this one's, and which share it is.
    consumed_capacity: Quantities | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")


class AllottedDevices(Struct, frozen=True):
    results: tuple[Allotted, ...] = ()


class Allocation(Struct, frozen=True):
    devices: AllottedDevices = AllottedDevices()


class Consumer(Struct, frozen=True):
    """Who may use a claim: mostly a pod."""

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
    """Which devices are meant; other ways than by CEL may come."""

    cel: CelSelector | None = None


class DeviceClassSpec(Struct, frozen=True):
    """Which devices a class means; all selectors must agree."""

    selectors: tuple[DeviceSelector, ...] = ()
    extended_resource_name: str = ""


class DeviceClass(Object, frozen=True):
    """What claims name to get a device."""

    spec: DeviceClassSpec = DeviceClassSpec()


class Conditions(Struct, frozen=True):
    """A status of which only the conditions matter."""

    conditions: tuple[Condition, ...] = ()


class Definition(Object, frozen=True):
    """A CustomResourceDefinition: whether its kind is served."""

    status: Conditions = Conditions()

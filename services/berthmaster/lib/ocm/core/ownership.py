"""Which objects are ours to write, and the event where one is not. Pure."""

from typing import Final

from berthmaster.lib.kube.controller.shell_contract import KubeEvent
from berthmaster.lib.kube.objects import Object
from berthmaster.lib.kube.resources import Resource

MANAGED_BY: Final = "app.kubernetes.io/managed-by"  # a label
OURS: Final = "berthmaster"  # its value on what is ours to write
CLUSTER_MANAGER: Final = "x-k8s.io/cluster-manager"  # label of ClusterProfiles: their manager
FIELD_MANAGER: Final = "berthmaster-ocm"  # under which all of this is written


def foreign(thing: Object) -> str:
    """Why an object of a name that is ours to write is not ours; "" = it is."""
    owner = next((one for one in thing.metadata.owner_references if one.controller), None)
    if owner is not None:
        return f"{owner.kind} {owner.name} controls it"
    manager = thing.metadata.labels.get(MANAGED_BY, "")
    if manager == OURS:
        return ""
    return f"its label {MANAGED_BY} is {manager!r}, not {OURS!r}"


def warning(resource: Resource, thing: Object, reason: str, note: str) -> KubeEvent:
    """An event that something is not done, and why."""
    return KubeEvent(resource, thing.metadata, True, reason, f"not done: {note}")

"""Which objects Berthmaster may write, and the Event for other objects. Pure."""

from typing import Final

from berthmaster.lib.kube.controller.shell_contract import KubeEvent
from berthmaster.lib.kube.objects import Object
from berthmaster.lib.kube.resources import Resource

MANAGED_BY: Final = "app.kubernetes.io/managed-by"  # a label
OURS: Final = "berthmaster"  # value of the label on Berthmaster's objects
CLUSTER_MANAGER: Final = "x-k8s.io/cluster-manager"  # label of ClusterProfiles: their manager
FIELD_MANAGER: Final = "berthmaster-ocm"  # of all writes here


def foreign(thing: Object) -> str:
    """Return why an object with a name of Berthmaster's is not Berthmaster's; "" = owned."""
    owner = next((one for one in thing.metadata.owner_references if one.controller), None)
    if owner is not None:
        return f"{owner.kind} {owner.name} controls it"
    manager = thing.metadata.labels.get(MANAGED_BY, "")
    if manager == OURS:
        return ""
    return f"its label {MANAGED_BY} is {manager!r}, not {OURS!r}"


def warning(resource: Resource, thing: Object, reason: str, note: str) -> KubeEvent:
    """Return an Event for an action that is not done, with the reason."""
    return KubeEvent(resource, thing.metadata, True, reason, f"not done: {note}")

"""Instructions of the core. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from berthmaster.lib.kube.objects import OwnerReference
from berthmaster.lib.kube.resources import Resource


class FindOwner(NamedTuple):
    """Read an owner, to learn its owner."""

    namespace: str
    reference: OwnerReference


class Annotate(NamedTuple):
    """Set annotations on a Job or JobSet; None removes one."""

    resource: Resource
    namespace: str
    name: str
    uid: str
    annotations: Mapping[str, str | None]
    labels: Mapping[str, str | None]


Write = FindOwner | Annotate


def name_of(write: Write) -> str:
    if isinstance(write, Annotate):
        return f"{write.resource.kind} {write.namespace}/{write.name}"
    return f"{write.reference.kind} {write.namespace}/{write.reference.name}"

"""What the evaluator asks for. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from berthmaster.lib.kube.controller.shell_contract import KubeEvent
from berthmaster.lib.kube.mirror import Key
from berthmaster.lib.kube.objects import Metadata


class PutPage(NamedTuple):
    """Make a PlacementDecision, or change what of it is not right."""

    name: str
    present: Metadata | None  # what is there; None = it is to be made
    metadata: Mapping[str, Any] | None  # labels, annotations, owner; None = right already
    status: Mapping[str, Any] | None  # None = right already


class DropPage(NamedTuple):
    """Delete a PlacementDecision."""

    name: str
    present: Metadata


class PutStatus(NamedTuple):
    """Write the Placement's own status."""

    present: Metadata
    status: Mapping[str, Any]


Write = PutPage | DropPage | PutStatus


class WriteDecisions(NamedTuple):
    """All that one look at a Placement asks for, in order; the first that fails ends it."""

    placement: Key
    writes: tuple[Write, ...]


Instruction = WriteDecisions | KubeEvent

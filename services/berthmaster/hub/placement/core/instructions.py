"""Instructions of the evaluator to the writer. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from berthmaster.lib.kube.controller.shell_contract import KubeEvent
from berthmaster.lib.kube.mirror import Key
from berthmaster.lib.kube.objects import Metadata


class PutPage(NamedTuple):
    """Create a PlacementDecision, or change its wrong fields."""

    name: str
    present: Metadata | None  # metadata of the existing page; None = create
    metadata: Mapping[str, Any] | None  # labels, annotations, owner; None = correct
    status: Mapping[str, Any] | None  # None = correct


class DropPage(NamedTuple):
    name: str
    present: Metadata


class PutStatus(NamedTuple):
    present: Metadata
    status: Mapping[str, Any]


class PutSlice(NamedTuple):
    """Create a PlacementDecision of sig-multicluster, or correct the existing one."""

    name: str
    present: Metadata | None  # metadata of the existing slice; None = create
    body: Mapping[str, Any]


class DropSlice(NamedTuple):
    name: str
    present: Metadata


Write = PutPage | DropPage | PutStatus | PutSlice | DropSlice


class WriteDecisions(NamedTuple):
    """All writes of one evaluation, in order, until the first failure."""

    placement: Key
    writes: tuple[Write, ...]


Instruction = WriteDecisions | KubeEvent

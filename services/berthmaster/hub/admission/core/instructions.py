"""The writes of the core. Pure."""

from typing import NamedTuple, assert_never

from berthmaster.lib.kube.controller.shell_contract import KubeEvent
from berthmaster.lib.kube.objects import Condition, key_of
from berthmaster.lib.kueue.multikueue import MultiKueueConfig
from berthmaster.lib.kueue.workloads import Workload


class WriteConfig(NamedTuple):
    """Create a MultiKueueConfig (``base`` None), or change an unchanged one."""

    name: str
    clusters: tuple[str, ...]
    draining: tuple[str, ...]
    base: MultiKueueConfig | None


class DeleteConfig(NamedTuple):
    """Delete an unused, unchanged configuration of Berthmaster."""

    base: MultiKueueConfig


class Connect(NamedTuple):
    """Create the MultiKueueCluster of a cluster with a kubeconfig Secret."""

    cluster: str


class WriteConditions(NamedTuple):
    """Write the conditions of a check, and remove missing ones."""

    check: str
    conditions: tuple[Condition, ...]


class WriteState(NamedTuple):
    """Write the state of one check of one Workload, if the contract still allows."""

    base: Workload
    check: str
    passes: bool
    message: str


Write = WriteConfig | DeleteConfig | Connect | WriteConditions | WriteState
Instruction = Write | KubeEvent


def name_of(write: Write) -> str:
    """Return the name of a write's object, for the log."""
    match write:
        case WriteConfig():
            return write.name
        case DeleteConfig():
            return write.base.metadata.name
        case Connect():
            return write.cluster
        case WriteConditions():
            return write.check
        case WriteState():
            return "/".join(key_of(write.base.metadata))
        case _:
            assert_never(write)

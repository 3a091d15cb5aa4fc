"""The writes that the core asks for. Pure."""

from typing import NamedTuple, assert_never

from berthmaster.lib.kube.controller.shell_contract import KubeEvent
from berthmaster.lib.kube.objects import Condition, key_of
from berthmaster.lib.kueue.multikueue import MultiKueueConfig
from berthmaster.lib.kueue.workloads import Workload


class WriteConfig(NamedTuple):
    """Make a MultiKueueConfig (``base`` None), or change it if it is still as it was."""

    name: str
    clusters: tuple[str, ...]
    draining: tuple[str, ...]
    base: MultiKueueConfig | None


class DeleteConfig(NamedTuple):
    """Delete a configuration of ours that nobody uses, if it is still as it was."""

    base: MultiKueueConfig


class Connect(NamedTuple):
    """Make the MultiKueueCluster of a cluster whose kubeconfig Secret is there."""

    cluster: str


class WriteConditions(NamedTuple):
    """The conditions of a check of ours; those that are left out go."""

    check: str
    conditions: tuple[Condition, ...]


class WriteState(NamedTuple):
    """One check of one Workload, if the contract still allows it."""

    base: Workload
    check: str
    passes: bool
    message: str


Write = WriteConfig | DeleteConfig | Connect | WriteConditions | WriteState
Instruction = Write | KubeEvent


def name_of(write: Write) -> str:
    """The object that a write is about, for the log."""
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

"""What the core asks of its shell, and what comes back. Pure.

Each write has a ``ref`` by which its outcome comes back: see ``Done``. A write that failed is an
outcome, not an exception.
"""

from typing import NamedTuple

from berthmaster.kubernetes.objects import Condition, Metadata
from berthmaster.kubernetes.resources import Resource
from berthmaster.kueue.multikueue import MultiKueueConfig
from berthmaster.kueue.workloads import Workload


class WriteConfig(NamedTuple):
    """Make a MultiKueueConfig (``base`` None), or change it if it is still as it was."""

    ref: str
    name: str
    clusters: tuple[str, ...]
    draining: tuple[str, ...]
    base: MultiKueueConfig | None


class DeleteConfig(NamedTuple):
    """Delete a configuration of ours that nobody uses, if it is still as it was."""

    ref: str
    base: MultiKueueConfig


class Connect(NamedTuple):
    """Make the MultiKueueCluster of a cluster whose kubeconfig Secret is there."""

    ref: str
    cluster: str


class TellCheck(NamedTuple):
    """The conditions of a check of ours; those that are left out go."""

    ref: str
    check: str
    conditions: tuple[Condition, ...]


class SetState(NamedTuple):
    """One check of one Workload, if the contract still allows it."""

    ref: str
    base: Workload
    check: str
    passes: bool
    message: str


class Tell(NamedTuple):
    """An event for those who use kubectl. No outcome."""

    resource: Resource
    metadata: Metadata
    warning: bool
    reason: str
    note: str


Write = WriteConfig | DeleteConfig | Connect | TellCheck | SetState
Instruction = Write | Tell


class Done(NamedTuple):
    """What became of a write: ``why`` is "" when it was done, or nothing was left to do."""

    ref: str
    why: str = ""
    soon: bool = False  # somebody else wrote first, or nobody answered: it passes
    config: MultiKueueConfig | None = None  # as the server has it now

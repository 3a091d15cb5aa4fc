"""What the reconciler's core asks of its shell.

Each names the workload on whose behalf it is, or none, and has a ``ref`` that its answer repeats.
A write to Kubernetes that failed is an answer (lib/kube/controller/shell_contract.py), no
exception.
"""

from typing import Any, NamedTuple

from berthmaster.hub.multikueue.core.known.hub import ObjectKey
from berthmaster.lib.kube.controller.shell_contract import KubeEvent
from berthmaster.lib.lifecycle.instructions import Append
from berthmaster.lib.lifecycle.workload import Key


class Nominate(NamedTuple):
    """Nominate one cluster for a Workload, if none is and the contract allows it when it is
    written."""

    ref: str
    workload: Key | None  # None: the bus is away, and nothing is on it
    at: ObjectKey
    uid: str
    check: str
    cluster: str  # MultiKueueCluster


class ClearNomination(NamedTuple):
    """Take a Workload's nomination back, if it is still this one."""

    ref: str
    workload: Key
    at: ObjectKey
    uid: str
    check: str
    clusters: tuple[str, ...]  # MultiKueueClusters


class FindWriter(NamedTuple):
    """Read who else has written a Workload's nomination. Its answer has found a ``Writers``."""

    ref: str
    workload: Key
    at: ObjectKey


class Nudge(NamedTuple):
    """Write an annotation of ours on a Workload: Kueue's manager takes up again what it held back
    since its start (known/hub_pace.py)."""

    ref: str
    workload: Key
    at: ObjectKey
    uid: str


class PassCheck(NamedTuple):
    """Set one check of ours Ready: only our own item of the list."""

    ref: str
    workload: Key
    at: ObjectKey
    uid: str
    check: str
    message: str


class SendBack(NamedTuple):
    """Set one check of ours to Retry, if the Workload is still as it was looked at: Kueue ends its
    attempt, and queues it again after ``again_s``."""

    ref: str
    workload: Key
    at: ObjectKey
    uid: str
    check: str
    message: str
    version: str  # resource version
    again_s: int  # 0 = at once


class SwitchOff(NamedTuple):
    """Stop a Workload: spec.active becomes false."""

    ref: str
    workload: Key
    at: ObjectKey
    uid: str
    held_by: str = ""  # whose hold it is, or why, until it is switched on again; "" = for good
    nominated: tuple[str, ...] = ()  # where its copy can have no job; () = it has no copy


class SwitchOn(NamedTuple):
    """Let a Workload go on that a hold of ours has switched off."""

    ref: str
    workload: Key
    at: ObjectKey
    uid: str


class ForgetPods(NamedTuple):
    """Say in the status of a Workload's Job on the hub that no pod of it is left: nobody else is
    there to say so, and Kueue waits for it."""

    ref: str
    workload: Key
    at: ObjectKey  # of the Job
    uid: str
    version: str  # resource version


class MakeJob(NamedTuple):
    """Create the Job of a request that goes by way of the hub."""

    ref: str
    workload: Key
    namespace: str
    manifest: dict[str, Any]


class DeleteJob(NamedTuple):
    """Delete a Job that we made."""

    ref: str
    workload: Key
    at: ObjectKey
    uid: str


class SetCheckActive(NamedTuple):
    """Say whether a check of ours works: its condition Active."""

    ref: str
    check: str
    active: bool
    reason: str
    message: str


class Writers(NamedTuple):
    """Field managers of a Workload's nomination other than our own."""

    names: tuple[str, ...]


Write = (
    Nominate
    | ClearNomination
    | FindWriter
    | Nudge
    | PassCheck
    | SendBack
    | SwitchOff
    | SwitchOn
    | ForgetPods
    | MakeJob
    | DeleteJob
    | SetCheckActive
)
Instruction = Append | Write | KubeEvent

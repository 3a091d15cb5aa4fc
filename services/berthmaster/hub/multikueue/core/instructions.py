"""Instructions of the reconciler's core to its shell.

Each names its workload, if any, and a ``ref`` that the answer repeats. A failed write to Kubernetes
is an answer (lib/kube/controller/shell_contract.py), never an exception.
"""

from typing import Any, NamedTuple

from berthmaster.hub.multikueue.core.known.hub import ObjectKey
from berthmaster.lib.kube.controller.shell_contract import KubeEvent
from berthmaster.lib.lifecycle.instructions import Append
from berthmaster.lib.lifecycle.workload import Key


class Nominate(NamedTuple):
    """Nominate one cluster, if none is nominated and the contract allows it at the write."""

    ref: str
    workload: Key | None  # None: no bus, so the workload is unknown there
    at: ObjectKey
    uid: str
    check: str
    cluster: str  # MultiKueueCluster


class ClearNomination(NamedTuple):
    """Clear a Workload's nomination, if still the same."""

    ref: str
    workload: Key
    at: ObjectKey
    uid: str
    check: str
    clusters: tuple[str, ...]  # MultiKueueClusters


class FindWriter(NamedTuple):
    """Read the other writers of a Workload's nomination. The answer has a ``Writers``."""

    ref: str
    workload: Key
    at: ObjectKey


class Nudge(NamedTuple):
    """Write an annotation on a Workload, so that Kueue's manager reconciles what it held back since
    its start (known/hub_kueue.py).
    """

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
    """Set one Berthmaster check to Retry, if the Workload is unchanged. Kueue ends its attempt and
    queues it again after ``again_s``.
    """

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
    held_by: str = ""  # requester of the hold, or reason, until activated again; "" = for good
    nominated: tuple[str, ...] = ()  # clusters whose copy can get no job; () = no copy


class SwitchOn(NamedTuple):
    """Let a Workload go on that a hold of ours has switched off."""

    ref: str
    workload: Key
    at: ObjectKey
    uid: str


class ForgetPods(NamedTuple):
    """Report in the status of a hub Job that no pod is left, because no other party can, and Kueue
    waits for it.
    """

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
    """Delete a Berthmaster Job."""

    ref: str
    workload: Key
    at: ObjectKey
    uid: str


class SetCheckActive(NamedTuple):
    """Set the condition Active of a Berthmaster check."""

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

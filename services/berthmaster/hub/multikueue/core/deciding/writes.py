"""The write to the hub for each step, without decisions. ``ref`` identifies the write."""

from collections.abc import Iterable
from typing import Final

from berthmaster.hub.multikueue.core.deciding.job_manifest import manifest
from berthmaster.hub.multikueue.core.instructions import (
    ClearNomination,
    DeleteJob,
    FindWriter,
    ForgetPods,
    MakeJob,
    Nominate,
    Nudge,
    PassCheck,
    SendBack,
    SwitchOff,
    SwitchOn,
)
from berthmaster.hub.multikueue.core.known.hub import ObjectKey
from berthmaster.hub.multikueue.core.known.workload_view import WorkloadView
from berthmaster.lib.kube.objects import Object
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.fleet import NodeReport

AGAIN_S: Final = 5  # delay of the next queueing after a requested eviction
MAX_MESSAGE_CHARS: Final = 1000


def _at(thing: Object) -> ObjectKey:
    return thing.metadata.namespace, thing.metadata.name


def nominate(view: WorkloadView, ref: str, cluster: str) -> Nominate:
    """Nominate a cluster by its name on the hub."""
    hub, rules = view.hub, view.rules
    assert hub is not None
    assert rules is not None
    return Nominate(ref, view.name, _at(hub), hub.metadata.uid, rules.check, cluster)


def clear(view: WorkloadView, ref: str) -> ClearNomination:
    hub, rules = view.hub, view.rules
    assert hub is not None
    assert rules is not None
    return ClearNomination(ref, view.name, _at(hub), hub.metadata.uid, rules.check, hub.nominated)


def find_writer(view: WorkloadView, ref: str) -> FindWriter:
    """Find other writers of the nomination."""
    hub = view.hub
    assert hub is not None
    return FindWriter(ref, view.name, _at(hub))


def nudge(view: WorkloadView, ref: str) -> Nudge:
    """Make Kueue's manager reconcile the Workload again."""
    hub = view.hub
    assert hub is not None
    return Nudge(ref, view.name, _at(hub), hub.metadata.uid)


def pass_check(view: WorkloadView, ref: str, check: str, message: str) -> PassCheck:
    """Set a check of ours Ready."""
    hub = view.hub
    assert hub is not None
    return PassCheck(ref, view.name, _at(hub), hub.metadata.uid, check, message)


def send_back(view: WorkloadView, ref: str, check: str, message: str) -> SendBack:
    """Set a Berthmaster check to Retry. Without a reservation, other Workloads go first."""
    hub, bus = view.hub, view.bus
    assert hub is not None
    assert bus is not None
    again_s = 0 if bus.leads_to else AGAIN_S
    version = hub.metadata.resource_version
    return SendBack(
        ref,
        view.name,
        _at(hub),
        hub.metadata.uid,
        check,
        message[:MAX_MESSAGE_CHARS],
        version,
        again_s,
    )


def make_job(
    view: WorkloadView, ref: str, setting: QueueSetting | None, nodes: Iterable[NodeReport]
) -> MakeJob:
    """Create the Job of a makeable request."""
    bus = view.bus
    assert bus is not None
    namespace, body = manifest(bus, setting, nodes)
    return MakeJob(ref, view.name, namespace, body)


def hold(view: WorkloadView, ref: str, held_by: str) -> SwitchOff:
    """Deactivate a Workload until its release."""
    hub = view.hub
    assert hub is not None
    return SwitchOff(ref, view.name, _at(hub), hub.metadata.uid, held_by)


def begin_again(view: WorkloadView, ref: str, reason: str) -> SwitchOff:
    """Deactivate a Workload whose copy cannot get a job, until Kueue has removed the copy."""
    hub = view.hub
    assert hub is not None
    return SwitchOff(ref, view.name, _at(hub), hub.metadata.uid, reason, hub.nominated)


def let_go_on(view: WorkloadView, ref: str) -> SwitchOn:
    """Activate the Workload again."""
    hub = view.hub
    assert hub is not None
    return SwitchOn(ref, view.name, _at(hub), hub.metadata.uid)


def forget_pods(view: WorkloadView, ref: str) -> ForgetPods | None:
    """Report in the Job's status that no pod is left."""
    job = view.job
    if job is None:
        return None
    meta = job.metadata
    return ForgetPods(ref, view.name, _at(job), meta.uid, meta.resource_version)


def stop(view: WorkloadView, ref: str) -> DeleteJob | SwitchOff | None:
    """Delete a Berthmaster Job, or deactivate a user's Workload; None if it is gone."""
    if view.ours:
        job = view.job
        return DeleteJob(ref, view.name, _at(job), job.metadata.uid) if job is not None else None
    hub = view.hub
    return SwitchOff(ref, view.name, _at(hub), hub.metadata.uid) if hub is not None else None

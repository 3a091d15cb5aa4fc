"""The write to the hub for each step, without decisions. ``ref`` identifies the write.

**Before a nomination.** One nomination at a time: earlier copies are gone before the next cluster
is nominated.

Kueue creates a copy in every nominated cluster, starts the job in the first one that admits, and
compares times in whole seconds. With two admissions within a second Kueue starts the job in both
and may name the wrong cluster. So a move clears the nomination, waits until the copies are gone,
and nominates again. Waits and their limits::

    a worker still reports a copy       until its report of the removal; 60 s
    … and is silent, or out of reach    15 s: Kueue could start no job there either
    no cluster has reported a copy      the hub's present time for a Workload (hub_kueue.py): 2 s
    from
                                        the clearing, 60 s at most, or until the hub has served a
                                        later nomination

Example: w1 was nominated and reported a copy. The nomination is cleared at 10 s. At 11 s the
inventory of w1 reports the copy gone, and w2 is nominated.

A copy admitted while its nomination was cleared gets the nomination back. Kueue's webhook accepts
only a nominated cluster, and the job may run already.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

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
from berthmaster.hub.multikueue.core.known.workload_view import Memo, WorkloadView
from berthmaster.hub.multikueue.policy import HubPolicy
from berthmaster.lib.kube.objects import Object
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.fleet import CopyReport, NodeReport

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


PACE_S: Final = 1.0  # the hub's pace changes, so check again
GONE_S: Final = 60.0
LOST_S: Final = 15.0


class Lingering(NamedTuple):
    """Copies to remove before the next nomination."""

    why: str
    until_s: float


def strayed(view: WorkloadView, policy: HubPolicy, now_s: float) -> CopyReport | None:
    """Return a copy admitted in a cluster that is no longer nominated, if still reported."""
    hub = view.hub
    assert hub is not None
    admitted = [copy for _, copy in sorted(view.copies.items()) if copy.running]
    if any(copy.cluster in view.nominated for copy in admitted):
        return None  # the hub is about to take it over
    heard = (copy for copy in admitted if not _out_of_reach(view, copy.cluster, policy, now_s))
    return next(heard, None)


def lingering(
    view: WorkloadView, memo: Memo, policy: HubPolicy, now_s: float, target: str = ""
) -> Lingering | None:
    """Return what to wait for before a nomination of ``target``, or of any cluster; None if
    nothing.
    """
    there = [name for name in sorted(view.copies) if name != target]
    if there:
        if memo.lingering_since_s is None:
            memo.lingering_since_s = now_s
        until_s = memo.lingering_since_s + _limit_s(view, there, policy, now_s)
        if now_s >= until_s:
            return None
        silent = [name for name in there if _out_of_reach(view, name, policy, now_s)]
        words = f", though {', '.join(silent)} does not say so" if silent else ""
        return Lingering(f"its copy in {', '.join(there)} has to go first{words}", until_s)
    memo.lingering_since_s = None
    if memo.copy_was_seen:
        return None  # and is gone
    if now_s >= memo.clears_until_s:
        return None
    words = "Kueue is to remove its copies of the last nomination first"
    return Lingering(words, min(memo.clears_until_s, now_s + PACE_S))


def cleared_at_s(view: WorkloadView, memo: Memo) -> float:
    """Return the earliest time at which the hub's Kueue could see the cleared nomination; infinite
    while it sees nothing, minus infinity without one.
    """
    if memo.cleared_at_s is not None:
        at_s = memo.cleared_at_s
    else:  # may be from an earlier process run
        bus = view.bus
        ended = bus is not None and bus.attempt and bus.state is State.QUEUED
        at_s = bus.changed_at_s if bus is not None and ended else float("-inf")
    return max(at_s, view.heard_since_s) if at_s > float("-inf") else at_s


def _limit_s(view: WorkloadView, clusters: Iterable[str], policy: HubPolicy, now_s: float) -> float:
    reached = [name for name in clusters if not _out_of_reach(view, name, policy, now_s)]
    return GONE_S if reached else LOST_S


def _out_of_reach(view: WorkloadView, cluster: str, policy: HubPolicy, now_s: float) -> bool:
    """Return whether no report of a removed copy can come, or Kueue cannot remove the copy."""
    if now_s - view.alive_at_s.get(cluster, float("-inf")) > policy.stale_after_s:
        return True
    rules = view.rules
    return rules is not None and any(r.closed for r in rules.clusters if r.name == cluster)

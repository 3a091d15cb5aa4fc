"""Kueue's contract with a dispatcher: when a dispatcher may act, and the writes allowed then.

Each write is checked against the mirror. When the mirror turns out to be stale, the writer checks
again against the API server's object.
"""

from collections.abc import Collection

from berthmaster.lib.kueue.names import (
    DEACTIVATION_TARGET,
    EVICTED,
    FINISHED,
    PENDING,
    PREEMPTED,
    QUOTA_RESERVED,
    READY,
    REJECTED,
    RETRY,
)
from berthmaster.lib.kueue.workloads import KueueWorkload, Workload

UNRESERVED = "no quota is reserved on the hub"
_DUE_TO = "DeactivatedDueTo"  # prefix of the reasons for evictions by Kueue itself


def forbidden(workload: KueueWorkload, check: str) -> str:
    """Return why no cluster may be nominated for the Workload now, or ""."""
    if workload.holds(FINISHED):
        return "it is finished"
    if workload.deleting:
        return "it is being deleted"
    if not workload.holds(QUOTA_RESERVED):
        return UNRESERVED
    if workload.holds(EVICTED):
        return "it is being evicted"
    state = workload.check(check)
    if state is None:
        return f"it does not have the check {check} yet"
    if state.state != PENDING:
        words = f": {state.message}" if state.message and state.state in (REJECTED, RETRY) else ""
        return f"its check {check} is {state.state}{words}"[:500]
    if workload.cluster_name:
        return f"{workload.cluster_name} has it"
    return ""


def held_back(workload: KueueWorkload, check: str, own: Collection[str]) -> str:
    """Return which other check is not Ready yet, or "". ``own``: checks passed by this service.

    Kueue creates copies only when every other check is Ready. An earlier nomination would only age.
    """
    for state in workload.checks:
        if state.name != check and state.name not in own and state.state != READY:
            words = f": {state.message}" if state.message else ""
            return f"its check {state.name} is {state.state}{words}"[:500]
    return ""


def nomination(
    workload: KueueWorkload, uid: str, check: str, cluster: str
) -> tuple[tuple[str, ...] | None, str]:
    """Return (names to write, why not). None as names = nothing to write.

    Write one name, and only without a nomination: two clusters that admit a Workload within one
    second both start its job. Nothing is written if the nomination is forbidden (why) or exists
    already ("").
    """
    if uid and workload.metadata.uid != uid:
        return None, "it is another Workload of this name"
    why = forbidden(workload, check)
    if why:
        return None, why
    if workload.nominated == (cluster,):
        return None, ""
    if workload.nominated:
        return None, f"{', '.join(workload.nominated)} is nominated already"
    return (cluster,), ""


def may_be_switched_off(workload: KueueWorkload, jobless: tuple[str, ...] = ()) -> bool:
    """Return whether the Workload may be deactivated without harm.

    For a Workload in a worker, MultiKueue deletes the copy at once, and with the copy the last
    status of its pods. The hub's Job would count those pods forever. ``jobless``: nominated
    clusters whose copies cannot have a job, and so no pods.
    """
    taking_back = workload.holds(EVICTED) and workload.holds(QUOTA_RESERVED)
    return workload.clusters <= set(jobless) and not workload.cluster_name and not taking_back


def clearing(
    workload: KueueWorkload, uid: str, check: str, clusters: tuple[str, ...]
) -> tuple[bool, str]:
    """Return (whether to clear the nomination, why not).

    Clear only the nomination ``clusters``, because another nomination needs a new decision.
    """
    if uid and workload.metadata.uid != uid:
        return False, "it is another Workload of this name"
    why = forbidden(workload, check)
    if why:
        return False, why
    if not workload.nominated:
        return False, ""
    if workload.nominated != clusters:
        return False, f"{', '.join(workload.nominated)} is nominated by now"
    return True, ""


def nomination_over(old: Workload, new: Workload) -> bool:
    """Return whether the API server must clear the nomination with this update.

    A nomination is over when a cluster is chosen, or when an eviction begins. Kueue's manager
    leaves the field alone, since another field manager wrote it. deploy/chart/nominations.yaml is
    the same rule for the API server, and a test compares the two.
    """
    chosen = new.cluster_name != "" and old.cluster_name == ""
    evicted = new.holds(EVICTED) and not old.holds(EVICTED)
    return bool(new.nominated) and (chosen or evicted)


def waits_for_quota(workload: KueueWorkload) -> str:
    """Return Kueue's message why the hub has reserved no quota, or ""."""
    reserved = workload.condition(QUOTA_RESERVED)
    if off := deactivated(workload):
        return f"deactivated: {off}"
    if workload.holds(QUOTA_RESERVED):
        return ""
    if reserved is None:
        return "Kueue has not looked at it yet"
    return reserved.message or reserved.reason


def deactivated(workload: KueueWorkload) -> str:
    """Return why the Workload is deactivated for good, or "".

    The text is Kueue's if Kueue did so: a check rejected the Workload, or evictions were too many.
    """
    target, evicted = workload.condition(DEACTIVATION_TARGET), workload.condition(EVICTED)
    if target is not None and target.true:
        return target.message or target.reason
    if workload.active:
        return ""
    by_kueue = evicted is not None and evicted.true and evicted.reason.startswith(_DUE_TO)
    if evicted is not None and by_kueue:
        return evicted.message or evicted.reason
    return "its spec.active is false"


def eviction_words(workload: KueueWorkload) -> str:
    """Return Kueue's message why an attempt ended."""
    parts = []
    for kind in (EVICTED, PREEMPTED):
        found = workload.condition(kind)
        if found is not None and (found.message or found.reason):
            parts.append(f"{found.reason}: {found.message}" if found.message else found.reason)
            break
    if not parts:
        parts.append(waits_for_quota(workload) or "Kueue took it back")
    words = parts[0]
    if "lost" in words.lower():
        words += "; doubtful: the lost copy may still run there"
    return words[:500]

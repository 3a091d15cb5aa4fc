"""When a dispatcher may act, and what it may then write: Kueue's contract, and nothing else.

Asked twice for each write: on what the mirror says, and on what the API server says when the mirror
turned out to be late, by the writer.
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
from berthmaster.lib.kueue.workloads import KueueWorkload

UNRESERVED = "no quota is reserved on the hub"
_DUE_TO = "DeactivatedDueTo"  # begins Kueue's reasons for having done it itself


def forbidden(workload: KueueWorkload, check: str) -> str:
    """Why no cluster may be nominated for it now, or ""."""
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
    """Which check of somebody else holds it back, or "". Kueue makes copies only when every other
    check is Ready: a nomination before that would only grow old. ``own``: checks passed here."""
    for state in workload.checks:
        if state.name != check and state.name not in own and state.state != READY:
            words = f": {state.message}" if state.message else ""
            return f"its check {state.name} is {state.state}{words}"[:500]
    return ""


def nomination(
    workload: KueueWorkload, uid: str, check: str, cluster: str
) -> tuple[tuple[str, ...] | None, str]:
    """(the names to write, why not): one name where there is none, since two clusters that admit a
    Workload within one second both start its job. None: nothing to write, since it is forbidden
    (why) or there already ("")."""
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
    """Whether it may be made inactive without harm. Of what is in a worker MultiKueue drops the
    copy at once, with the last word on its pods, and the hub's Job counts those for ever.
    ``jobless``: nominated clusters whose copies can have no job, and so no pods."""
    taking_back = workload.holds(EVICTED) and workload.holds(QUOTA_RESERVED)
    return workload.clusters <= set(jobless) and not workload.cluster_name and not taking_back


def clearing(
    workload: KueueWorkload, uid: str, check: str, clusters: tuple[str, ...]
) -> tuple[bool, str]:
    """(whether to write, why not): no name where ``clusters`` stand, and only there, since another
    nomination is news that must be looked at."""
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


def waits_for_quota(workload: KueueWorkload) -> str:
    """Kueue's own words for why the hub has not given it quota, or ""."""
    reserved = workload.condition(QUOTA_RESERVED)
    if off := deactivated(workload):
        return f"deactivated: {off}"
    if workload.holds(QUOTA_RESERVED):
        return ""
    if reserved is None:
        return "Kueue has not looked at it yet"
    return reserved.message or reserved.reason


def deactivated(workload: KueueWorkload) -> str:
    """Why it is switched off for good, in Kueue's words where it did that itself (a check has
    rejected it, it was evicted too often); or ""."""
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
    """Why Kueue ended an attempt, in its words."""
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

"""Where a nominated Workload gets stuck in silence: Kueue says nothing of it on the hub, so we do.

Each trap has a name (for the metric), words that name the cure, and is looked for only after the
time in which all is well by itself.
"""

from typing import Final, NamedTuple

from berthmaster.hub.multikueue.core.known.bus_state import BusState
from berthmaster.hub.multikueue.core.known.workload_view import Memo, WorkloadView
from berthmaster.hub.multikueue.policy import HubPolicy
from berthmaster.lib.kueue.contract import forbidden
from berthmaster.lib.kueue.jobs import FIELD as TTL_FIELD
from berthmaster.lib.kueue.jobs import POLICY_FILE
from berthmaster.lib.kueue.names import QUOTA_RESERVED
from berthmaster.lib.kueue.quota import stopped
from berthmaster.lib.kueue.reasons import Family, family_of
from berthmaster.lib.kueue.workloads import KueueWorkload
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.messages.fleet import CopyReport

NOT_CLEARED: Final = "NominationNotCleared"
POISONED: Final = "PoisonedWorkload"
STOPPED_QUEUE: Final = "StoppedQueue"
MISSING_QUEUE: Final = "MissingLocalQueue"
NO_COPY: Final = "NoCopy"
REFUSED: Final = "RefusedByWorker"
STUCK_EVICTION: Final = "StuckEviction"
UNSCHEDULED: Final = "PodsUnscheduled"
WORKER_SILENT: Final = "WorkerKueueSilent"
KUEUE_SILENT: Final = "HubKueueSilent"
JOB_NAME_TAKEN: Final = "JobNameTaken"
TRAPS: Final = (
    NOT_CLEARED,
    POISONED,
    STOPPED_QUEUE,
    MISSING_QUEUE,
    NO_COPY,
    REFUSED,
    STUCK_EVICTION,
    UNSCHEDULED,
    WORKER_SILENT,
    KUEUE_SILENT,
    JOB_NAME_TAKEN,
)
CURE: Final = (
    "let the API server clear it (hub.mode=dispatch of our chart brings what does; `berth doctor "
    "--mode dispatch` says what is missing) and restart Kueue's manager"
)
SILENT_CURE: Final = "does Kueue's manager run there? `berth doctor --worker {}` looks at it"


SILENT_WORDS: Final = (
    "the hub's Kueue writes nothing while work waits for it: does its manager run? kubectl -n "
    "kueue-system get pods (and what its log ends with)"
)


class Trap(NamedTuple):
    """A known failure state of a nominated Workload, with its remedy."""

    kind: str
    words: str


def of_silent_kueue(found: Trap | None, view: WorkloadView) -> Trap | None:
    """Return the failure state while the hub's Kueue is silent. Its silence comes before anything
    that Kueue should repair. Failures on a worker remain.
    """
    if found is not None and found.kind not in (NO_COPY, NOT_CLEARED):
        return found
    hub = view.hub
    waits = hub is None and view.job is not None
    if hub is not None and view.rules is not None:
        waits = hub.condition(QUOTA_RESERVED) is None or bool(hub.nominated)
    return Trap(KUEUE_SILENT, SILENT_WORDS) if waits or found is not None else None


def find(
    view: WorkloadView, memo: Memo, know: BusState, policy: HubPolicy, now_s: float
) -> Trap | None:
    """Return the failure state of a workload, or None."""
    hub, bus, rules = view.hub, view.bus, view.rules
    if hub is None or bus is None:
        return None
    if hub.poisoned:
        return _poisoned(hub)
    if rules is None:
        return None
    if (stuck := _stuck_eviction(view, memo, know, policy, now_s)) is not None:
        return stuck
    if forbidden(hub, rules.check) or not hub.nominated:
        memo.admitted_since_s = None
        return _unscheduled(view, policy, now_s)
    if (blocked := view.blocked_copy) is not None and blocked.cluster in view.nominated:
        memo.admitted_since_s = None
        return Trap(JOB_NAME_TAKEN, _taken(blocked))
    copy = view.admitted_copy
    if copy is not None:
        if memo.admitted_since_s is None:
            memo.admitted_since_s = now_s
        if now_s - memo.admitted_since_s < policy.trap_s:
            return None
        return Trap(
            NOT_CLEARED,
            f"{copy.cluster} has admitted its copy and the hub does not take that over: Kueue "
            f"cannot clear the nomination; {CURE}",
        )
    memo.admitted_since_s = None
    since_s = memo.nominated.get(_hub_name(view), float("inf"))
    if bus.state is not State.CLAIMED or now_s < since_s + policy.mute_s:
        return None
    return _black_hole(view, know, policy, now_s)


def _taken(copy: CopyReport) -> str:
    kind, _, name = copy.blocked_by.partition(" ")
    return (
        f"{copy.cluster} has another {kind} of this name ({name}), so that Kueue can make no job "
        f"there: remove that {kind}, or submit this job under another name"
    )


def _poisoned(hub: KueueWorkload) -> Trap:
    """Return the state with quota and an eviction but no admission, which the feature gate
    WorkloadRequestUseMergePatch creates from a preemption that overtakes an admission.
    """
    meta, (kind, owner) = hub.metadata, hub.owner
    job = f"delete {kind} {owner}" if kind else "delete its job"
    free = """'{"metadata":{"finalizers":null}}'"""
    return Trap(
        POISONED,
        "Kueue's manager on the hub ends on it at every start: it has QuotaReserved and Evicted "
        f"and no status.admission; {job}, then take the finalizer off: kubectl -n "
        f"{meta.namespace} patch workload {meta.name} --type merge -p {free} (`berth doctor --hub` "
        "prints every step)",
    )


def _stuck_eviction(
    view: WorkloadView, memo: Memo, know: BusState, policy: HubPolicy, now_s: float
) -> Trap | None:
    """Return the state in which Kueue waits for a copy: the hub's Job counts pods, and only the
    worker's copy, lost or deleted, could report them gone.
    """
    hub, job = view.hub, view.job
    if hub is None or job is None or not (hub.holds("Evicted") and job.counts_pods):
        memo.evicting_since_s = None
        return None
    if memo.evicting_since_s is None:
        memo.evicting_since_s = now_s
    if now_s < memo.evicting_since_s + policy.eviction_s:
        return None
    if cluster := _completed_in(view, know):
        return Trap(
            STUCK_EVICTION,
            f"it has completed in {cluster}, which deleted its Job before the hub "
            f"read the end ({TTL_FIELD}): delete the Job here, unless it is to run again; the "
            f"policy {POLICY_FILE} in the workers prevents this",
        )
    return Trap(
        STUCK_EVICTION,
        "Kueue took it back and the hub's Job still counts pods of its lost copy: bring that "
        "cluster back, or delete the Job and make it again",
    )


def is_forgotten(view: WorkloadView, know: BusState, policy: HubPolicy, now_s: float) -> bool:
    """Return whether a stuck eviction surely has no copy left.

    MultiKueue drops a copy that it sees between the two writes by which a worker ends it. Then the
    worker's inventory has reported the copy gone, and no cluster in reach of Kueue has another.
    """
    hub, bus, rules = view.hub, view.bus, view.rules
    if hub is None or bus is None or rules is None or view.copies:
        return False
    at = (bus.cluster, hub.metadata.namespace, hub.metadata.name)
    if know.gone_copies.get(at) != 0:
        return False  # still there, or completed and would run again
    if bus.cluster not in {ref.name for ref in rules.clusters}:
        return False
    for ref in rules.clusters:
        silent_s = now_s - know.view.clusters.peek(ref.name).alive_at_s
        if ref.closed or silent_s > policy.stale_after_s:
            return False
    return True


def _completed_in(view: WorkloadView, know: BusState) -> str:
    """Return the cluster in which the last attempt's job completed and is gone; "" = none."""
    hub, bus = view.hub, view.bus
    if hub is None or bus is None:
        return ""
    at = (bus.cluster, hub.metadata.namespace, hub.metadata.name)
    return bus.cluster if know.gone_copies.get(at) else ""


def due_s(view: WorkloadView, memo: Memo, policy: HubPolicy) -> float:
    """Return when time alone leads to a failure state; infinite = never."""
    if memo.evicting_since_s is not None:
        return memo.evicting_since_s + policy.eviction_s
    if view.bus is not None and _is_to_start(view):
        return view.bus.changed_at_s + policy.unscheduled_s
    return float("inf")


def _is_to_start(view: WorkloadView) -> bool:
    """Return whether the cluster admitted the Workload and no pod runs."""
    hub, bus, job = view.hub, view.bus, view.job
    if hub is None or bus is None or not hub.cluster_name or hub.holds("Finished"):
        return False
    return bus.state is State.ADMITTED and (job is None or not job.runs)


def _unscheduled(view: WorkloadView, policy: HubPolicy, now_s: float) -> Trap | None:
    """Quota is no node: what Kueue has let in, the cluster's scheduler may have no place for."""
    bus, job, copy = view.bus, view.job, view.copy
    if bus is None or not _is_to_start(view):
        return None
    for_s = now_s - bus.changed_at_s
    if for_s < policy.unscheduled_s:
        return None
    head = f"{bus.cluster} has admitted it for {policy.unscheduled_s:g} s and more, and no pod runs"
    if copy is not None and copy.unscheduled:
        pods = f"{copy.unscheduled} pods find" if copy.unscheduled > 1 else "its pod finds"
        words = f": {pods} no node there, says its scheduler: {copy.scheduler}"
        return Trap(UNSCHEDULED, f"{head}{words}"[:700])
    if job is not None and not (job.status is not None and job.status.active):
        return Trap(UNSCHEDULED, f"{head}: none has been made there")
    return None  # they have nodes and are starting


def _hub_name(view: WorkloadView) -> str:
    """Return the hub's name of the open attempt's cluster."""
    bus, rules = view.bus, view.rules
    if bus is None or rules is None:
        return ""
    return next((ref.hub_name for ref in rules.clusters if ref.name == bus.cluster), "")


def _black_hole(view: WorkloadView, know: BusState, policy: HubPolicy, now_s: float) -> Trap | None:
    bus, hub = view.bus, view.hub
    assert bus is not None
    assert hub is not None
    cluster = know.view.clusters.peek(bus.cluster)
    if now_s - cluster.alive_at_s > policy.stale_after_s or not cluster.queues:
        return None  # no information
    namespace, name = hub.metadata.namespace, hub.spec.queue_name
    found = know.local_queue(bus.cluster, namespace, name)
    if found is None:
        words = f"{bus.cluster} has no LocalQueue {namespace}/{name}: make it, or its namespace"
        return Trap(MISSING_QUEUE, words)
    report, local = found
    if stop := stopped(report, local):
        what, _, how = stop.partition(" is stopped")
        return Trap(STOPPED_QUEUE, f"{what} of {bus.cluster} is stopped{how}")
    if not report.active or not local.active:
        reason = report.reason if not report.active else local.reason
        return Trap(STOPPED_QUEUE, f"queue {report.queue} of {bus.cluster} is not active: {reason}")
    if view.copy is None:
        words = f"{bus.cluster} has no copy of it: does Kueue's manager on the hub reach it?"
        return Trap(NO_COPY, words)
    if know.attention.neglected_s(view.copy, now_s, policy.neglect_s):
        words = f"nobody in {bus.cluster} looks at its copy, while others are looked at"
        return Trap(WORKER_SILENT, f"{words}: {SILENT_CURE.format(bus.cluster)}")
    if hopeless(view.copy):
        return Trap(REFUSED, f"{bus.cluster} says: {view.copy.message}"[:500])
    return None


def hopeless(copy: CopyReport | None) -> bool:
    """Return whether a worker's Kueue reports that waiting is useless."""
    return copy is not None and _family(copy) is Family.HOPELESS


def busy(copy: CopyReport | None) -> bool:
    """Return whether a worker's Kueue reports a lack of quota now."""
    return copy is not None and _family(copy) is Family.BUSY


def _family(copy: CopyReport) -> Family:
    return family_of(copy.reason, copy.message)

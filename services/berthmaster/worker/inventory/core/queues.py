"""Kueue's queues and MultiKueue's copies as facts. Pure.

``used`` is the reserved quota, admitted or about to be, so the rest is really free. Of a copy's
conditions the most informative is reported: the cause of a missing quota, the awaited check, the
cause of an eviction, or the end.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, NamedTuple

from berthmaster.lib.engine.fleet.cluster_filters import tolerates
from berthmaster.lib.kube.objects import Condition, condition
from berthmaster.lib.kueue.names import (
    ADMITTED,
    EVICTED,
    FINISHED,
    ORIGIN_LABEL,
    QUOTA_RESERVED,
    READY,
)
from berthmaster.lib.kueue.queues import (
    ClusterQueue,
    FlavorQuotas,
    LocalQueue,
    ResourceFlavor,
    ResourceGroup,
)
from berthmaster.lib.kueue.workloads import Workload
from berthmaster.lib.messages.fleet import (
    CohortQuota,
    CopyReport,
    FlavorQuota,
    LocalQueueReport,
    QueueReport,
    QuotaAmount,
    Stamp,
    Taint,
)
from berthmaster.lib.messages.workload import Toleration
from berthmaster.worker.inventory.core.devices.amounts import Nonsense, quota
from berthmaster.worker.inventory.core.waiting import NONE_WAIT, Unscheduled

# Effects that exclude pods; "" = all, as in a toleration.
_EFFECTS: Final[Mapping[str, Literal["", "NoSchedule", "NoExecute"]]] = {
    "": "",
    "NoSchedule": "NoSchedule",
    "NoExecute": "NoExecute",
}
MAX_MESSAGE_CHARS: Final = 1024
MAX_REASON_CHARS: Final = 128
MAX_LOCAL_QUEUES: Final = 1000  # of one ClusterQueue; a report must fit into a message
Used = Mapping[tuple[str, str], str | int]  # flavor, resource


class Flavor(NamedTuple):
    """Properties of a ResourceFlavor's nodes."""

    labels: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()  # taints that it does not tolerate for its pods


class Queue(NamedTuple):
    """A ClusterQueue without its LocalQueues."""

    active: bool
    reason: str
    stopped: str  # Hold, HoldAndDrain or ""
    cohort: str
    cohorts: tuple[CohortQuota, ...]
    prefers_own: bool
    flavors: tuple[FlavorQuota, ...]
    pending: int
    admitted: int
    problems: tuple[str, ...] = ()
    preempts: bool = False


def queue_of(
    found: ClusterQueue,
    flavors: Mapping[str, Flavor],
    cohorts_of: Callable[[str], tuple[CohortQuota, ...]],
) -> Queue:
    """Return a queue. ``cohorts_of``: returns a cohort and its ancestors. Flavors with impossible
    quota are left out and reported.
    """
    active, reason = _active(found.active)
    if found.held:
        active, reason = False, reason or f"stopped: {found.held}"
    status = found.status
    used = {
        (flavor.name, usage.name): usage.total
        for flavor in (status and status.flavors_reservation) or ()
        for usage in flavor.resources or ()
    }
    problems: list[str] = []
    granted = granted_by(found.groups, flavors, used, problems)
    cohort = found.spec.cohort_name or ""
    return Queue(
        active=active,
        reason=reason,
        stopped=found.held,
        cohort=cohort,
        cohorts=cohorts_of(cohort) if cohort else (),
        prefers_own=found.prefers_own,
        flavors=granted,
        pending=max(0, (status and status.pending_workloads) or 0),
        admitted=max(0, (status and status.admitted_workloads) or 0),
        problems=tuple(problems),
        preempts=found.preempts,
    )


def flavor_of(found: ResourceFlavor) -> Flavor:
    """Return a flavor, without taints that it tolerates itself or that exclude no pods."""
    own = tuple(
        Toleration(
            key=one.key or "",
            operator="Exists" if one.operator == "Exists" else "Equal",
            value=one.value or "",
            effect=effect,
        )
        for one in found.spec.tolerations or ()
        if (effect := _EFFECTS.get(one.effect or "")) is not None
    )
    taints = (
        Taint(key=one.key, value=one.value, effect=effect)
        for one in found.spec.node_taints or ()
        if (effect := _EFFECTS.get(one.effect))
    )
    left = tuple(taint for taint in taints if not tolerates(own, taint))
    return Flavor(found.spec.node_labels or {}, left)


def granted_by(
    groups: Iterable[ResourceGroup], flavors: Mapping[str, Flavor], used: Used, problems: list[str]
) -> tuple[FlavorQuota, ...]:
    """Return the quota of all flavors in order."""
    granted: list[FlavorQuota] = []
    for group in groups:
        for flavor in group.flavors or ():
            try:
                granted.append(_flavor(flavor, used, flavors.get(flavor.name, Flavor())))
            except Nonsense as nonsense:
                problems.append(f"flavor {flavor.name}: {nonsense}")
    return tuple(granted)


def _flavor(flavor: FlavorQuotas, used: Used, nodes: Flavor) -> FlavorQuota:
    return FlavorQuota(
        flavor=flavor.name,
        node_labels=dict(nodes.labels),
        taints=nodes.taints,
        resources={
            one.name: QuotaAmount(
                nominal=quota(one.name, one.nominal_quota),
                used=quota(one.name, used.get((flavor.name, one.name), 0), up=True),
                borrowing_limit=_limit(one.name, one.borrowing_limit),
                lending_limit=_limit(one.name, one.lending_limit),
            )
            for one in flavor.resources or ()
        },
    )


def _limit(name: str, text: str | int | None) -> int | None:
    return None if text is None else quota(name, text)


def local_queue_of(found: LocalQueue) -> LocalQueueReport:
    active, reason = _active(found.active)
    if found.held:
        active, reason = False, reason or f"stopped: {found.held}"
    return LocalQueueReport(
        namespace=found.metadata.namespace,
        name=found.metadata.name,
        active=active,
        reason=reason,
        stopped=found.held,
    )


def _active(found: Condition | None) -> tuple[bool, str]:
    """Return whether Kueue reports it active, and why not. A queue without a condition
    is inactive.
    """
    if found is None:
        return False, "Kueue has not looked at it yet"
    if found.true:
        return True, ""
    return False, _said(found.reason, found.message)


def _said(reason: str, message: str) -> str:
    text = f"{reason}: {message}" if reason and message else reason or message
    return text[:MAX_MESSAGE_CHARS]


def queue_report(
    cluster: str,
    name: str,
    queue: Queue | None,
    local_queues: Iterable[LocalQueueReport],
    stamp: Stamp,
    now_s: float,
) -> QueueReport:
    """Return the report of a queue; None reports its removal."""
    if queue is None:
        return QueueReport(
            cluster=cluster,
            queue=name,
            stamp=stamp,
            observed_at_s=now_s,
            active=False,
            reason="removed",
            gone=True,
        )
    ordered = sorted(local_queues, key=lambda one: (one.namespace, one.name))
    return QueueReport(
        cluster=cluster,
        queue=name,
        stamp=stamp,
        observed_at_s=now_s,
        active=queue.active,
        reason=queue.reason,
        stopped=bool(queue.stopped),
        stop_policy=queue.stopped,
        cohort=queue.cohort,
        cohorts=queue.cohorts,
        prefers_own=queue.prefers_own,
        preempts=queue.preempts,
        flavors=queue.flavors,
        local_queues=tuple(ordered[:MAX_LOCAL_QUEUES]),
        pending=queue.pending,
        admitted=queue.admitted,
    )


class Copy(NamedTuple):
    origin: str = ""
    quota_reserved: bool = False
    admitted: bool = False
    evicted: bool = False
    finished: bool = False
    message: str = ""
    looked_at: bool = True
    reason: str = ""
    flavors: tuple[dict[str, str], ...] = ()


def copy_of(found: Workload) -> Copy:
    admission = found.status.admission if found.status is not None else None
    assigned = (admission.pod_set_assignments if admission is not None else None) or ()
    return Copy(
        origin=found.metadata.labels.get(ORIGIN_LABEL, ""),
        quota_reserved=found.holds(QUOTA_RESERVED),
        admitted=found.holds(ADMITTED),
        evicted=found.holds(EVICTED),
        finished=found.holds(FINISHED),
        message=_says_most(found)[:MAX_MESSAGE_CHARS],
        looked_at=bool(found.conditions),
        reason=_why_no_quota(found)[:MAX_REASON_CHARS],
        flavors=tuple(each.flavors or {} for each in assigned),
    )


def _why_no_quota(found: Workload) -> str:
    reserved = condition(found.conditions, QUOTA_RESERVED)
    return reserved.reason if reserved is not None and not reserved.true else ""


def _says_most(found: Workload) -> str:
    conditions = found.conditions
    if not conditions:
        return "Kueue has not looked at it yet"
    for last in (FINISHED, ADMITTED):
        ended = condition(conditions, last)
        if ended is not None and ended.true:
            return ended.message or ended.reason
    reserved = condition(conditions, QUOTA_RESERVED)
    if reserved is not None and reserved.true:
        waits = [
            f"{check.name} is {check.state}" + (f": {check.message}" if check.message else "")
            for check in found.checks
            if check.state != READY
        ]
        return "waits for checks: " + "; ".join(waits) if waits else "has quota, not admitted yet"
    evicted = condition(conditions, EVICTED)
    if reserved is not None and reserved.message:
        return reserved.message
    if evicted is not None and evicted.true:
        return _said(evicted.reason, evicted.message)
    return next((one.message for one in conditions if one.message), "waits for quota")


class Beside(NamedTuple):
    """Information about a copy from other objects."""

    waiting: Unscheduled = NONE_WAIT  # unscheduled pods of its job
    blocked_by: str = ""  # object with its job's name
    succeeded: int = 0  # completed Jobs of this name


def copy_report(
    cluster: str,
    namespace: str,
    workload: str,
    copy: Copy | None,
    beside: Beside,
    stamp: Stamp,
    now_s: float,
) -> CopyReport:
    """Return the report of a copy; None reports its removal."""
    if copy is None:
        beside = Beside(succeeded=beside.succeeded)
    waiting, state = beside.waiting, copy or Copy(message="removed")
    return CopyReport(
        cluster=cluster,
        namespace=namespace,
        workload=workload,
        stamp=stamp,
        observed_at_s=now_s,
        gone=copy is None,
        unscheduled=waiting.pods,
        scheduler=waiting.words[:MAX_MESSAGE_CHARS],
        blocked_by=beside.blocked_by[:MAX_MESSAGE_CHARS],
        succeeded=beside.succeeded,
        **state._asdict(),
    )

"""Kueue's queues and MultiKueue's copies, as facts. Pure.

``used`` is what is reserved: admitted or about to be, so that what is left is really left. Of a
copy's conditions one says most to whoever waits: why it has no quota, which check it waits for, why
it was evicted, how it ended.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from berthmaster.inventory.amounts import Nonsense, quota
from berthmaster.inventory.objects import (
    ORIGIN,
    ClusterQueue,
    FlavorQuotas,
    LocalQueue,
    Workload,
)
from berthmaster.kubernetes.objects import Condition, condition, holds
from berthmaster.messages.fleet import (
    CopyReport,
    FlavorQuota,
    LocalQueueReport,
    QueueReport,
    QuotaAmount,
    Stamp,
)

MAX_MESSAGE_CHARS: Final = 1024
MAX_LOCAL_QUEUES: Final = 1000  # of one ClusterQueue; a report must fit into a message
ACTIVE: Final = "Active"
_HELD: Final = ("Hold", "HoldAndDrain")


class Queue(NamedTuple):
    """A ClusterQueue without its LocalQueues."""

    active: bool
    reason: str
    stopped: bool
    cohort: str
    flavors: tuple[FlavorQuota, ...]
    pending: int
    admitted: int
    problems: tuple[str, ...] = ()


def queue_of(found: ClusterQueue, flavors: Mapping[str, Mapping[str, str]]) -> Queue:
    """``flavors``: the node labels of each ResourceFlavor. A flavor whose quota is nonsense is left
    out and told."""
    active, reason = _active(found.status.conditions)
    stopped = found.spec.stop_policy in _HELD
    if stopped:
        active, reason = False, reason or f"stopped: {found.spec.stop_policy}"
    used = {
        (flavor.name, usage.name): usage.total
        for flavor in found.status.flavors_reservation
        for usage in flavor.resources
    }
    problems: list[str] = []
    granted: list[FlavorQuota] = []
    for group in found.spec.resource_groups:
        for flavor in group.flavors:
            try:
                granted.append(_flavor(flavor, used, flavors.get(flavor.name, {})))
            except Nonsense as nonsense:
                problems.append(f"flavor {flavor.name}: {nonsense}")
    return Queue(
        active=active,
        reason=reason,
        stopped=stopped,
        cohort=found.spec.cohort_name,
        flavors=tuple(granted),
        pending=max(0, found.status.pending_workloads),
        admitted=max(0, found.status.admitted_workloads),
        problems=tuple(problems),
    )


def _flavor(
    flavor: FlavorQuotas,
    used: Mapping[tuple[str, str], str | int],
    node_labels: Mapping[str, str],
) -> FlavorQuota:
    return FlavorQuota(
        flavor=flavor.name,
        node_labels=dict(node_labels),
        resources={
            one.name: QuotaAmount(
                nominal=quota(one.name, one.nominal_quota),
                used=quota(one.name, used.get((flavor.name, one.name), 0), up=True),
                borrowing_limit=None
                if one.borrowing_limit is None
                else quota(one.name, one.borrowing_limit),
            )
            for one in flavor.resources
        },
    )


def local_queue_of(found: LocalQueue) -> LocalQueueReport:
    """A LocalQueue as it stands."""
    active, reason = _active(found.status.conditions)
    if found.spec.stop_policy in _HELD:
        active, reason = False, reason or f"stopped: {found.spec.stop_policy}"
    return LocalQueueReport(
        namespace=found.metadata.namespace, name=found.metadata.name, active=active, reason=reason
    )


def _active(conditions: Iterable[Condition]) -> tuple[bool, str]:
    """(whether Kueue calls it active, why not). Kueue that has not looked at it yet serves it not,
    either."""
    found = condition(conditions, ACTIVE)
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
    """None: it is gone."""
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
        stopped=queue.stopped,
        cohort=queue.cohort,
        flavors=queue.flavors,
        local_queues=tuple(ordered[:MAX_LOCAL_QUEUES]),
        pending=queue.pending,
        admitted=queue.admitted,
    )


class Copy(NamedTuple):
    """A copy as it stands."""

    origin: str = ""
    quota_reserved: bool = False
    admitted: bool = False
    evicted: bool = False
    finished: bool = False
    message: str = ""


def copy_of(found: Workload) -> Copy:
    """What its conditions say."""
    conditions = found.status.conditions
    return Copy(
        origin=found.metadata.labels.get(ORIGIN, ""),
        quota_reserved=holds(conditions, "QuotaReserved"),
        admitted=holds(conditions, "Admitted"),
        evicted=holds(conditions, "Evicted"),
        finished=holds(conditions, "Finished"),
        message=_says_most(found)[:MAX_MESSAGE_CHARS],
    )


def _says_most(found: Workload) -> str:
    conditions = found.status.conditions
    if not conditions:
        return "Kueue has not looked at it yet"
    if (ended := condition(conditions, "Finished")) is not None and ended.true:
        return ended.message or ended.reason
    admitted = condition(conditions, "Admitted")
    if admitted is not None and admitted.true:
        return admitted.message or admitted.reason
    reserved = condition(conditions, "QuotaReserved")
    if reserved is not None and reserved.true:
        waits = [
            f"{check.name} is {check.state}" + (f": {check.message}" if check.message else "")
            for check in found.status.admission_checks
            if check.state != "Ready"
        ]
        return "waits for checks: " + "; ".join(waits) if waits else "has quota, not admitted yet"
    evicted = condition(conditions, "Evicted")
    if reserved is not None and reserved.message:
        return reserved.message
    if evicted is not None and evicted.true:
        return _said(evicted.reason, evicted.message)
    return next((one.message for one in conditions if one.message), "waits for quota")


def copy_report(
    cluster: str, namespace: str, workload: str, copy: Copy | None, stamp: Stamp, now_s: float
) -> CopyReport:
    """None: it is gone."""
    state = copy or Copy(message="removed")
    return CopyReport(
        cluster=cluster,
        namespace=namespace,
        workload=workload,
        stamp=stamp,
        observed_at_s=now_s,
        gone=copy is None,
        **state._asdict(),
    )

"""Queues governed by a cluster's own Kueue: target of the jobs, and whether Kueue would admit a
request.

Example: a ClusterQueue has a quota of 8 GPUs, and its report shows 4 in use. A placement of 2 GPUs
is not admitted yet, so 2 GPUs are left for the next request.

Kueue decides. This estimate keeps jobs away from queues where they would wait long.
lib/kueue/quota.py computes the quota. Placements that Kueue has not admitted are charged here,
because its report lacks them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from berthmaster.lib.engine.fleet.clusters import Cluster
from berthmaster.lib.kueue.asks import Devices, asks_of
from berthmaster.lib.kueue.quota import Gone, Quotas, closed, queue_of, without
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.control import QueuePlace, QueueSetting
from berthmaster.lib.messages.fleet import QueueReport
from berthmaster.lib.messages.placement import Target
from berthmaster.lib.messages.workload import JobRequest

ANYWHERE: Final = "*"
NO_QUEUE: Final = "has no LocalQueue"
NO_DEADLINE: Final = "its deadline cannot be kept where the cluster's own queue starts it"
Pending = Iterable[tuple[Target, JobRequest]]


class Freed(NamedTuple):
    """Pods assumed to have left a cluster's own queue."""

    target: Target
    request: JobRequest  # of so many
    nodes: Sequence[Mapping[str, str]]  # labels of their nodes


def target_in(setting: QueueSetting | None, cluster: str) -> Target:
    """How a queue's jobs are made in a cluster."""
    if setting is None:
        return Target()
    place = setting.places.get(cluster) or setting.places.get(ANYWHERE) or QueuePlace()
    if setting.via == "direct":
        return Target(namespace=place.namespace, service_account=place.service_account)
    # A job submitted before its queue changed to the hub is still placed here: no hub job exists
    # for it, and the worker's LocalQueue has the same name.
    return Target(
        via="worker",
        namespace=place.namespace,
        service_account=place.service_account,
        local_queue=place.local_queue or setting.queue,
    )


def target_of(workload: Workload, setting: QueueSetting | None, cluster: str) -> Target:
    origin = workload.origin
    if origin is not None and origin.system == "karmada":
        return Target(via="hub", namespace=origin.namespace)
    return target_in(setting, cluster)


class InLine(NamedTuple):
    """Where a request would stand in a cluster's own queue."""

    ahead: int  # pending jobs in its ClusterQueue
    admitted: int  # admitted jobs
    borrows: bool  # exceeds the rest of the queue's own quota


class Said(NamedTuple):
    """State of a cluster's own queue for a request."""

    out: str = ""  # why Kueue would not admit it now, or ""
    in_line: InLine | None = None  # position in the queue; None = unknown


def asked(
    cluster: Cluster,
    target: Target,
    request: JobRequest,
    pending: Pending,
    devices: Devices,
    freed: Iterable[Freed] = (),
) -> Said:
    """``pending``: placements in the cluster that Kueue has not admitted. ``devices``: resource
    names of its GPUs. ``freed``: pods assumed to have left. The report may include some pending
    ones, so the larger number counts.
    """
    if target.via != "worker":
        return Said()
    if request.deadline_s is not None:
        return Said(NO_DEADLINE)
    reports: Collection[QueueReport] = cluster.queues.values()
    found = queue_of(reports, target.namespace, target.local_queue)
    if found is None:
        return Said(f"{NO_QUEUE} {target.namespace}/{target.local_queue}")
    if problem := closed(*found):
        return Said(problem)
    report, _ = found
    if freed:
        reports = _less(cluster, freed, devices)
    quotas, ours = Quotas(reports, cluster.counted_as), 0
    for other, coming in pending:
        leads_to = queue_of(reports, other.namespace, other.local_queue)
        if leads_to is None:
            continue
        if not quotas.charge(leads_to[0].queue, asks_of(coming, devices)):
            ours += leads_to[0].queue == report.queue
    answer = quotas.answer(report.queue, asks_of(request, devices))
    if not answer.now:
        return Said(answer.never or answer.lacks)
    return Said("", InLine(max(report.pending, ours), report.admitted, answer.borrows))


def _less(cluster: Cluster, freed: Iterable[Freed], devices: Devices) -> list[QueueReport]:
    """Return the queues' reports without the freed pods."""
    left = dict(cluster.queues)
    for target, request, nodes in freed:
        found = queue_of(left.values(), target.namespace, target.local_queue)
        if found is not None:
            gone = [Gone(ask, nodes=nodes) for ask in asks_of(request, devices)]
            left[found[0].queue] = without(found[0], gone, cluster.counted_as)
    return list(left.values())


def others_wait(cluster: Cluster, target: Target) -> bool:
    """Return whether any job waits for quota of the target's queue, or of queues that
    lend to it.
    """
    found = queue_of(cluster.queues.values(), target.namespace, target.local_queue)
    if found is None:
        return False
    root = _root(found[0])
    return any(each.pending and _root(each) == root for each in cluster.queues.values())


def _root(report: QueueReport) -> str:
    """Return the top cohort of a queue, or its own name without a cohort."""
    above = {each.cohort: each.parent for each in report.cohorts}
    name = report.cohort
    for _ in above:  # reports of different moments may make a circle
        name = above.get(name) or name
    return f"cohort {name}" if name else report.queue

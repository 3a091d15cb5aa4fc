"""Queues that go by way of a cluster's own Kueue: how their jobs are made there, and whether it
would let a request in.

Kueue decides; this only keeps us from sending what must wait there for long. What it would say is
kueue/quota.py's to work out; placements of ours that it has not let in yet are charged, since its
report does not know them.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from berthmaster.engine.fleet.clusters import Cluster
from berthmaster.kueue.asks import Devices, asks_of
from berthmaster.kueue.quota import Quotas, closed, queue_of
from berthmaster.messages.control import QueuePlace, QueueSetting
from berthmaster.messages.placement import Target
from berthmaster.messages.workload import JobRequest

ANYWHERE: Final = "*"
NO_QUEUE: Final = "has no LocalQueue"
NO_DEADLINE: Final = "its deadline cannot be kept where the cluster's own queue starts it"
Pending = Iterable[tuple[Target, JobRequest]]


def target_in(setting: QueueSetting | None, cluster: str) -> Target:
    """How a queue's jobs are made in a cluster."""
    if setting is None:
        return Target()
    place = setting.places.get(cluster) or setting.places.get(ANYWHERE) or QueuePlace()
    if setting.via == "direct":
        return Target(namespace=place.namespace, service_account=place.service_account)
    # What was submitted before its queue went by way of the hub is still ours to place: there is
    # no hub's job for it, and the worker's LocalQueue has the same name.
    return Target(
        via="worker",
        namespace=place.namespace,
        service_account=place.service_account,
        local_queue=place.local_queue or setting.queue,
    )


def why_not(
    cluster: Cluster, target: Target, request: JobRequest, pending: Pending, devices: Devices
) -> str:
    """Why the cluster's own queueing would not let it in now, or "". ``pending``: placements of
    ours there that it has not let in yet; ``devices``: how its nodes' GPUs are asked for."""
    if target.via != "worker":
        return ""
    if request.deadline_s is not None:
        return NO_DEADLINE
    found = queue_of(cluster.queues.values(), target.namespace, target.local_queue)
    if found is None:
        return f"{NO_QUEUE} {target.namespace}/{target.local_queue}"
    if problem := closed(*found):
        return problem
    quotas, _ = _quotas(cluster, found[0].queue, pending, devices)
    answer = quotas.answer(found[0].queue, asks_of(request, devices))
    return answer.never or answer.lacks


class InLine(NamedTuple):
    """Where a request would stand in a cluster's own queue."""

    ahead: int  # jobs that wait in its ClusterQueue
    admitted: int  # that it has let in
    borrows: bool  # it does not fit into what is left of the queue's own quota


def in_line(
    cluster: Cluster, target: Target, request: JobRequest, pending: Pending, devices: Devices
) -> InLine | None:
    """Where it would stand there now; None if that is not known. ``pending``, ``devices``: as in
    ``why_not``. The report may know some of those that wait, so the larger number counts."""
    found = queue_of(cluster.queues.values(), target.namespace, target.local_queue)
    if found is None:
        return None
    report, _ = found
    quotas, ours = _quotas(cluster, report.queue, pending, devices)
    answer = quotas.answer(report.queue, asks_of(request, devices))
    return InLine(max(report.pending, ours), report.admitted, answer.borrows or not answer.now)


def _quotas(cluster: Cluster, queue: str, pending: Pending, devices: Devices) -> tuple[Quotas, int]:
    """What the cluster's queues have left, and how many of the pending have to wait in this one."""
    reports = cluster.queues.values()
    quotas = Quotas(reports)
    ours = 0
    for target, request in pending:
        found = queue_of(reports, target.namespace, target.local_queue)
        if found is not None and not quotas.charge(found[0].queue, asks_of(request, devices)):
            ours += found[0].queue == queue
    return quotas, ours

"""Whether a cluster's Kueue would let a request in: its LocalQueue, its ClusterQueue, its quota.

Kueue decides; this only keeps us from sending what must wait there for long. It is worked out as
Kueue does: pod set by pod set, for each group of resources the first flavor that has enough left.
What a ClusterQueue may borrow is what its cohort has left, at most its limit. Placements of ours
that Kueue has not let in yet are charged too: the report does not know them.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from berthmaster.engine.fleet.clusters import Cluster
from berthmaster.messages.control import QueuePlace, QueueSetting
from berthmaster.messages.fleet import FlavorQuota, QueueReport
from berthmaster.messages.placement import Target
from berthmaster.messages.workload import JobRequest, PodSet

ANYWHERE: Final = "*"
GPU_RESOURCES: Final = ("nvidia.com/gpu", "amd.com/gpu", "google.com/tpu")
_UNITS: Final = {"memory": "MiB of memory"}
NO_QUEUE: Final = "no LocalQueue"
NO_QUOTA: Final = "no quota left"
NO_DEADLINE: Final = "its deadline cannot be kept where the cluster's own queue starts it"
Left = dict[tuple[str, str], int]  # flavor, resource -> amount


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
    cluster: Cluster,
    target: Target,
    request: JobRequest,
    pending: Iterable[tuple[Target, JobRequest]],
) -> str:
    """Why the cluster's own queueing would not let it in now, or "". ``pending``: placements of
    ours there that it has not let in yet."""
    if target.via != "worker":
        return ""
    if request.deadline_s is not None:
        return NO_DEADLINE
    found = queue_of(cluster, target)
    if found is None:
        return f"{NO_QUEUE} {target.namespace}/{target.local_queue}"
    if problem := _closed(found, target):
        return problem
    left = _left(cluster, found)
    for other, asked in pending:
        if queue_of(cluster, other) is found:
            for pods in asked.pod_sets:
                _take(found, left, pods)
    for pods in request.pod_sets:
        if lack := _take(found, left, pods):
            return lack
    return ""


class InLine(NamedTuple):
    """Where a request would stand in a cluster's own queue."""

    ahead: int  # jobs that wait in its ClusterQueue
    admitted: int  # that it has let in
    borrows: bool  # it does not fit into what is left of the queue's own quota


def in_line(
    cluster: Cluster,
    target: Target,
    request: JobRequest,
    pending: Iterable[tuple[Target, JobRequest]],
) -> InLine | None:
    """Where it would stand there now; None if that is not known. ``pending``: as in ``why_not``;
    those that its own quota has left are about to be let in. The report may know some of the others
    already, so the larger number of both counts."""
    found = queue_of(cluster, target)
    if found is None:
        return None
    own: Left = {
        (flavor.flavor, resource): max(0, amount.nominal - amount.used)
        for flavor in found.flavors
        for resource, amount in flavor.resources.items()
    }
    ours = 0
    for other, asked in pending:
        if queue_of(cluster, other) is found:
            ours += any(_take(found, own, pods) for pods in asked.pod_sets)
    borrows = any(_take(found, own, pods) for pods in request.pod_sets)
    return InLine(max(found.pending, ours), found.admitted, borrows)


def queue_of(cluster: Cluster, target: Target) -> QueueReport | None:
    """The ClusterQueue that the target's LocalQueue leads to."""
    for report in cluster.queues.values():
        for local in report.local_queues:
            if (local.namespace, local.name) == (target.namespace, target.local_queue):
                return report
    return None


def _closed(report: QueueReport, target: Target) -> str:
    if report.stopped:
        return f"its ClusterQueue is stopped: {report.reason or report.queue}"
    if not report.active:
        return f"its ClusterQueue is not active: {report.reason or report.queue}"
    for local in report.local_queues:
        same = (local.namespace, local.name) == (target.namespace, target.local_queue)
        if same and not local.active:
            return f"its LocalQueue is not active: {local.reason or local.name}"
    return ""


def _left(cluster: Cluster, report: QueueReport) -> Left:
    """What may still be used of each flavor's resources."""
    left: Left = {}
    for flavor in report.flavors:
        for resource, amount in flavor.resources.items():
            own = amount.nominal - amount.used
            if report.cohort:
                most = _cohort_left(cluster, report.cohort, flavor.flavor, resource)
                limit = amount.borrowing_limit
                own = most if limit is None else min(most, own + limit)
            left[flavor.flavor, resource] = max(0, own)
    return left


def _cohort_left(cluster: Cluster, cohort: str, flavor: str, resource: str) -> int:
    left = 0
    for report in cluster.queues.values():
        if report.cohort != cohort:
            continue
        for each in report.flavors:
            amount = each.resources.get(resource)
            if each.flavor == flavor and amount is not None:
                left += amount.nominal - amount.used
    return left


def _take(report: QueueReport, left: Left, pods: PodSet) -> str:
    """Charge one pod set; what is lacking if it does not fit, and then nothing is charged."""
    needs = _needs(report, pods)
    groups: dict[frozenset[str], list[FlavorQuota]] = {}
    for flavor in report.flavors:
        groups.setdefault(frozenset(flavor.resources), []).append(flavor)
    charged: list[tuple[tuple[str, str], int]] = []
    open_ = dict(needs)
    for resources, flavors in groups.items():
        asked = {name: needs[name] for name in sorted(resources & needs.keys())}
        if not asked:
            continue
        chosen = next((f for f in flavors if _fits(f, asked, left, pods)), None)
        if chosen is None:
            return _lack(flavors, asked, left, pods)
        charged += [((chosen.flavor, name), amount) for name, amount in asked.items()]
        for name in asked:
            open_.pop(name, None)
    if open_:
        return f"its ClusterQueue grants no {min(open_)}"
    for key, amount in charged:
        left[key] -= amount
    return ""


def _fits(flavor: FlavorQuota, asked: dict[str, int], left: Left, pods: PodSet) -> bool:
    return _allowed(flavor, pods) and all(
        left[flavor.flavor, name] >= amount for name, amount in asked.items()
    )


def _allowed(flavor: FlavorQuota, pods: PodSet) -> bool:
    """Whether the flavor's nodes can be those that the pods require."""
    return all(
        pods.node_labels.get(key, value) == value for key, value in flavor.node_labels.items()
    )


def _lack(flavors: Sequence[FlavorQuota], asked: dict[str, int], left: Left, pods: PodSet) -> str:
    allowed = [flavor for flavor in flavors if _allowed(flavor, pods)]
    if not allowed:
        return "none of its flavors has the nodes' labels asked for"
    for name in sorted(asked, key=lambda name: (name in ("cpu", "memory"), name)):
        most = max(left[flavor.flavor, name] for flavor in allowed)
        if most < asked[name]:
            needed = f"{_amount(name, asked[name])} {_UNITS.get(name, name)}"
            return f"{NO_QUOTA}: needs {needed}, {_amount(name, most)} left"
    return f"{NO_QUOTA}: no flavor has enough of everything"


def _amount(name: str, amount: int) -> str:
    return f"{amount / 1000:g}" if name == "cpu" else str(amount)


def _needs(report: QueueReport, pods: PodSet) -> dict[str, int]:
    """What a pod set asks for, in Kueue's names: CPU in milli, memory in MiB, GPUs in pieces."""
    needs = {"cpu": pods.cpu_milli * pods.count, "memory": pods.memory_mib * pods.count}
    if pods.gpus:
        granted = {name for flavor in report.flavors for name in flavor.resources}
        part = pods.gpu_milli < 1000
        parts = sorted(n for n in granted if part and _is_part(n))
        whole = [name for name in GPU_RESOURCES if name in granted]
        name = (parts or whole or [GPU_RESOURCES[0]])[0]
        needs[name] = pods.gpus * pods.count
    return {name: amount for name, amount in needs.items() if amount}


def _is_part(resource: str) -> bool:
    return resource.startswith("nvidia.com/mig-") or resource == "nvidia.com/gpu.shared"

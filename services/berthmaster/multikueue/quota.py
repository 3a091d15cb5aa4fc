"""What a worker's ClusterQueue still grants: Kueue's arithmetic as far as choosing a cluster needs.

Kueue decides there, we only guess well: a flavor counts for a pod set if its node labels do not
contradict what the pods ask for; a queue in a cohort may use what its cohort leaves over, up to its
borrowing limit. Preemption is left to Kueue and hoped for by nobody.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from berthmaster.engine.fleet.models import PRODUCT, is_one_of
from berthmaster.messages.fleet import FlavorQuota, QueueReport
from berthmaster.messages.workload import JobRequest, PodSet
from berthmaster.multikueue.known.requests import GPU

UNLIMITED: Final = float("inf")


class Quota(NamedTuple):
    """How a request stands to a queue."""

    never: str  # why it can never be granted there, or ""
    now: bool  # granted now, with what is on its way there taken off
    left_gpus: float  # GPUs that the flavors in question still grant; infinite without GPUs
    promised: bool  # a flavor says by its labels that it has what is asked for


def quota_of(
    report: QueueReport, siblings: Iterable[QueueReport], request: JobRequest, coming_gpus: float
) -> Quota:
    """What a queue grants a request. ``siblings``: all queues of that cluster."""
    cohort = [
        q for q in siblings if q.cohort and q.cohort == report.cohort and q.queue != report.queue
    ]
    now = True
    left_gpus = UNLIMITED
    promised = False
    for resource, pods, amount in _wanted(request):
        flavors = [f for f in report.flavors if resource in f.resources]
        if not flavors:
            return Quota(f"queue {report.queue} grants no {resource}", False, 0.0, False)
        fitting = [f for f in flavors if _agrees(f, pods)]
        if not fitting:
            why = f"no flavor of queue {report.queue} has the node labels asked for"
            return Quota(why, False, 0.0, False)
        most = max(_most(f, cohort, resource) for f in fitting)
        if most < amount:
            unit = 1000 if resource == "cpu" else 1
            why = f"queue {report.queue} grants {most / unit:g} {resource} at most"
            why += f", {amount / unit:g} are asked for"
            return Quota(why, False, 0.0, False)
        left = max(_left(f, cohort, resource) for f in fitting)
        if resource == GPU:
            left = max(0.0, left - coming_gpus)
            left_gpus = min(left_gpus, left)
            promised = promised or any(_names_what_is_asked(f, pods) for f in fitting)
        now = now and left >= amount
    return Quota("", now, left_gpus, promised)


def _wanted(request: JobRequest) -> list[tuple[str, PodSet, int]]:
    """Each resource with the whole gang's amount, under the pod set that asks for most of it."""
    amounts: dict[str, list[int]] = {
        "cpu": [p.cpu_milli * p.count for p in request.pod_sets],
        "memory": [p.memory_mib * p.count for p in request.pod_sets],
        GPU: [p.gpus * p.count for p in request.pod_sets],
    }
    return [
        (resource, request.pod_sets[each.index(max(each))], sum(each))
        for resource, each in amounts.items()
        if sum(each)
    ]


def _agrees(flavor: FlavorQuota, pods: PodSet) -> bool:
    """Whether nothing that the pods ask of a node contradicts the flavor's labels."""
    model = flavor.node_labels.get(PRODUCT)
    if model is not None and pods.gpu_models and not is_one_of(pods.gpu_models, model):
        return False
    return all(
        flavor.node_labels.get(label, value) == value for label, value in pods.node_labels.items()
    )


def _names_what_is_asked(flavor: FlavorQuota, pods: PodSet) -> bool:
    """Whether nodes of this flavor surely have what the pods ask for, were there any."""
    if pods.gpu_models and not is_one_of(pods.gpu_models, flavor.node_labels.get(PRODUCT, "")):
        return False
    return pods.node_labels.items() <= flavor.node_labels.items()


def _of_cohort(flavor: FlavorQuota, cohort: list[QueueReport], resource: str) -> tuple[int, int]:
    """(nominal, used) of a flavor's resource in the other queues of the cohort."""
    nominal = used = 0
    for queue in cohort:
        for other in queue.flavors:
            if other.flavor == flavor.flavor and resource in other.resources:
                nominal += other.resources[resource].nominal
                used += other.resources[resource].used
    return nominal, used


def _most(flavor: FlavorQuota, cohort: list[QueueReport], resource: str) -> float:
    """What it can grant when nobody else uses anything."""
    own = flavor.resources[resource]
    others, _ = _of_cohort(flavor, cohort, resource)
    limit = others if own.borrowing_limit is None else min(others, own.borrowing_limit)
    return own.nominal + limit


def _left(flavor: FlavorQuota, cohort: list[QueueReport], resource: str) -> float:
    """What it can grant now without preemption."""
    own = flavor.resources[resource]
    nominal, used = _of_cohort(flavor, cohort, resource)
    of_all = own.nominal + nominal - own.used - used
    of_own = own.nominal - own.used
    if own.borrowing_limit is not None:
        return max(0, min(of_all, of_own + own.borrowing_limit))
    return max(0, of_all)

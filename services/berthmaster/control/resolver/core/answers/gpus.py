"""GPUs of the fleet: free capacity, expected waits and prices by model.

Every tenant may ask, so the answer names no nodes and only counts other tenants' jobs. Capacity and
waits come from the functions that decide.
"""

import math
from collections.abc import Generator, Iterable
from typing import Final

from berthmaster.control.resolver.core.answers.first_free import (
    Times,
    busy_ends,
    first_free,
    stated,
)
from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.control.resolver.core.deciding.turns import queue_refusal
from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.control.resolver.policy import Policy
from berthmaster.lib.engine.fleet.fleet import WHOLE
from berthmaster.lib.engine.fleet.gpus import EXACTLY, is_model
from berthmaster.lib.engine.fleetview.components import price_of
from berthmaster.lib.messages.api import GpusReply, GpusRequest, GpuStock, Refusal
from berthmaster.lib.messages.workload import JobRequest, PodSet
from berthmaster.lib.requests.queues import NO_QUEUES, taken

MOST_MODELS: Final = 64
POD_CPU_MILLI: Final = 100  # of the tried pod, since the question is about GPUs
POD_MEMORY_MIB: Final = 64
Steps = Generator[None, None, GpusReply | Refusal]


class _Counted:
    def __init__(self) -> None:
        self.memory_mib: set[int] = set()
        self.clusters: set[str] = set()
        self.gpus = 0
        self.open_gpus = 0
        self.free_milli = 0
        self.free_whole = 0
        self.most_on_a_node = 0


def stock(
    know: Knowledge, policy: Policy, now_s: float, tenant: str, request: GpusRequest
) -> Steps:
    """Compute one model a step, since its wait is searched among known ends. Each step has a new
    cycle, because knowledge may change between steps.
    """
    queue = request.queue or "default"
    if request.queue:
        asked = _job(queue, request.gpus, ())
        waiting = {queue: know.derived.lines.waiting(queue)}
        queues = {**NO_QUEUES, **know.queues}
        checked = taken(queues, know.runtimes, tenant, asked, waiting)
        if isinstance(checked, Refusal) and checked.field == "queue":
            return checked  # other refusals concern single models and are reported there
    counted = _count(Cycle(know, policy, now_s))
    found: list[GpuStock] = []
    for model, each in list(counted.items())[:MOST_MODELS]:
        yield
        job = _job(queue, request.gpus, (f"{EXACTLY}{model}",))
        why_not = _refusal(know, tenant, job, model) if request.queue else ""
        prices = list(_prices(know, model, each.clusters))
        wait = None if why_not else _wait(Cycle(know, policy, now_s), job)
        found.append(
            GpuStock(
                model=model,
                memory_mib=min(each.memory_mib, default=0),
                clusters=len(each.clusters),
                gpus=each.gpus,
                open_gpus=each.open_gpus,
                free_gpu_milli=each.free_milli,
                free_gpus=each.free_whole,
                most_on_a_node=each.most_on_a_node,
                expected_wait_s=wait.middle_s if wait is not None else None,
                wait_low_s=wait.low_s if wait is not None and wait.jobs else None,
                wait_high_s=wait.high_s if wait is not None and wait.jobs else None,
                wait_jobs=wait.jobs if wait is not None else 0,
                why_not=why_not,
                price_least=min(prices, default=None),
                price_most=max(prices, default=None),
            )
        )
    found.sort(key=lambda one: (-one.free_gpus, -one.free_gpu_milli, one.model))
    return GpusReply(models=tuple(found), waiting=know.derived.lines.jobs)


def _job(queue: str, gpus: int, models: tuple[str, ...]) -> JobRequest:
    pods = PodSet(gpus=gpus, gpu_models=models, cpu_milli=POD_CPU_MILLI, memory_mib=POD_MEMORY_MIB)
    return JobRequest(id="gpus", queue=queue, pod_sets=(pods,))


def _refusal(know: Knowledge, tenant: str, job: JobRequest, model: str) -> str:
    """Return why the queue allows no job on this model now. A queue lists models by its own
    spelling.
    """
    queues = {**NO_QUEUES, **know.queues}
    allowed = queues[job.queue].allows.gpu_models
    names = (model,) if allowed is None else tuple(n for n in allowed if is_model(n, model))
    if not names:
        return f"the queue {job.queue!r} allows: {', '.join(allowed or ()) or '(none)'}"
    named = _job(job.queue, job.pod_sets[0].gpus, names)
    checked = taken(queues, know.runtimes, tenant, named, {})
    if isinstance(checked, Refusal):
        return checked.expected
    return queue_refusal(know, named)


def _count(cycle: Cycle) -> dict[str, _Counted]:
    fleet = cycle.know.fleet
    closed = {cycle.snapshot.clusters[number] for number in cycle.snapshot.closed}
    found: dict[str, _Counted] = {}
    for slot, (cluster, _) in enumerate(fleet.names):
        report = fleet.report_at(slot)
        is_open = cluster not in closed and bool(fleet.arrays.open[slot])
        free = fleet.arrays.gpu[slot]
        whole: dict[str, int] = {}
        for index, device in enumerate(report.gpus):
            if not device.healthy:
                continue
            one = found.setdefault(device.model, _Counted())
            one.clusters.add(cluster)
            one.memory_mib.add(device.memory_mib)
            one.gpus += 1
            if not is_open:
                continue
            one.open_gpus += 1
            milli = max(0, int(free[index]))
            one.free_milli += milli
            if milli == WHOLE:
                whole[device.model] = whole.get(device.model, 0) + 1
        for model, number in whole.items():
            found[model].free_whole += number
            found[model].most_on_a_node = max(found[model].most_on_a_node, number)
    return dict(sorted(found.items()))


def _wait(cycle: Cycle, job: JobRequest) -> Times | None:
    """Return the wait of a job that arrived now, ahead of all others."""
    shortlist = cycle.shortlist(job)
    if shortlist.candidates and cycle.bind(job, shortlist) is not None:
        return stated(0.0)
    at = first_free(cycle, job, busy_ends(cycle, shortlist))
    return at.after(-cycle.now_s) if at is not None else None


def _prices(know: Knowledge, model: str, clusters: Iterable[str]) -> Iterable[float]:
    for name in sorted(clusters):
        price = price_of(know.view.clusters.peek(name).tells, model)
        if not math.isnan(price):
            yield price

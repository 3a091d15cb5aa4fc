"""Usage of queues, and the capacity of the fleet.

Live placements and the newest node reports determine the ledger, in any order of arrival. A
placement on an unreported node is charged with GPUs of unknown model, and charged again once the
report arrives.

Example: a divided job with parts of 4 and 2 GPUs is charged 4 and 2 GPUs in the parts' clusters and
counts as one running job. The job counts from its division to its end, even while no part is
placed.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from berthmaster.lib.engine.fleet.fleet import WHOLE
from berthmaster.lib.engine.fleet.pieces import pieces_of, pieces_on
from berthmaster.lib.engine.fleet.shares import charged_milli, part_of
from berthmaster.lib.engine.queueing.queues import CPU, GPU, MEMORY, MODEL, Amounts, of_model
from berthmaster.lib.lifecycle.pods import set_of
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.lifecycle.workload import key as named
from berthmaster.lib.messages.fleet import GpuDevice, NodeReport
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import JobRequest, PodSet

UNKNOWN_MODEL: Final = ""

NodeName = tuple[str, str]  # cluster, node
ReportOf = Callable[[str, str], NodeReport | None]


class _Live(NamedTuple):
    queue: str
    job: Key  # the job itself, or the job of the part
    request: JobRequest
    cluster: str
    pods: tuple[PodBinding, ...]
    amounts: Amounts


class Ledger:
    """Usage of the queues, and capacity of the clusters."""

    def __init__(self, report_of: ReportOf) -> None:
        self._report_of = report_of
        self._used: dict[str, Amounts] = {}
        self.running: Counter[str] = Counter()  # queue -> live jobs
        self._holders: Counter[tuple[str, Key]] = Counter()  # queue, job -> itself and live parts
        self._milli_of: Counter[tuple[str, Key]] = Counter()  # queue, job -> GPU milli of these
        self._counts_in: dict[str, tuple[str, ...]] = {}  # queue -> parents that include it
        self._together: dict[str, Amounts] = {}  # parent -> usage of itself and all queues below
        self._running_together: Counter[str] = Counter()
        self._live: dict[Key, _Live] = {}
        self._on_node: dict[NodeName, dict[Key, None]] = {}
        self._there: dict[str, Amounts] = {}  # cluster -> capacity of all nodes
        self._models: tuple[str, ...] | None = None
        self._totals: tuple[frozenset[str], Amounts] | None = None
        self._cpu_a_gpu: float | None = None

    def used(self, queue: str) -> Mapping[str, int]:
        """Return the usage of a queue's live jobs."""
        return self._used.get(queue, {})

    def queues(self) -> Iterable[str]:
        """Return the queues with usage."""
        return self._used.keys()

    # Parents

    def regroup(self, parents: Mapping[str, tuple[str, ...]]) -> None:
        """Queues have these parents from now on, the nearest first."""
        inner = {name for names in parents.values() for name in names}
        self._counts_in = dict(parents)
        for name in inner:
            self._counts_in[name] = (name, *parents.get(name, ()))
        self._together = {name: {} for name in inner}
        self._running_together.clear()
        if inner:
            for queue, used in self._used.items():
                self._charge_parents(queue, used, +1)
                self._count_in_parents(queue, self.running[queue])

    def used_together(self, queue: str) -> Mapping[str, int]:
        """Return the usage of a queue and all queues below."""
        found = self._together.get(queue)
        return self.used(queue) if found is None else found

    def running_together(self, queue: str) -> int:
        """Return the live jobs of a queue and all queues below."""
        return self._running_together[queue] if queue in self._together else self.running[queue]

    def but_for(
        self, key: Key | None
    ) -> tuple[Callable[[str], Mapping[str, int]], Callable[[str], int]]:
        """Return usage and live jobs of queues without this placement."""
        live = self._live.get(key) if key is not None else None
        if live is None:
            return self.used_together, self.running_together
        amounts = live.amounts
        counts = {live.queue, *self._counts_in.get(live.queue, ())}
        alone = self._holders[live.queue, live.job] == 1

        def used(queue: str) -> Mapping[str, int]:
            left = dict(self.used_together(queue))
            if queue in counts:
                _add(left, amounts, -1)
            return left

        def running(queue: str) -> int:
            return self.running_together(queue) - (alone and queue in counts)

        return used, running

    def gpu_milli_of_job(self, queue: str, job: Key) -> int:
        """Return the GPU charge of a job's placement, or of all its live parts."""
        return self._milli_of.get((queue, job), 0)

    def gpu_milli_beside(self, key: Key) -> int:
        """Return the GPU charge of the other live parts of a placement's job."""
        live = self._live.get(key)
        if live is None:
            return 0
        return self._milli_of[live.queue, live.job] - live.amounts.get(GPU, 0)

    def accounts(self) -> dict[str, Mapping[str, int]]:
        """Return the usage of every queue, with parents' sums."""
        return {**self._used, **self._together}

    def _charge_parents(self, queue: str, amounts: Mapping[str, int], sign: int) -> None:
        for name in self._counts_in.get(queue, ()):
            _add(self._together[name], amounts, sign)

    def _count_in_parents(self, queue: str, jobs: int) -> None:
        for name in self._counts_in.get(queue, ()):
            self._running_together[name] += jobs

    # Live placements

    def hold(
        self, key: Key, request: JobRequest, cluster: str, pods: tuple[PodBinding, ...]
    ) -> None:
        """A placement counts from now on, or counts where its pods really are."""
        self.release(key)
        amounts = amounts_of(self._report_of, request, cluster, pods)
        self._take(key, request, cluster, pods, amounts)
        for binding in pods:
            self._on_node.setdefault((cluster, binding.node), {})[key] = None

    def divide(self, key: Key, request: JobRequest) -> None:
        """Count a divided job. Its parts are charged."""
        self.release(key)
        self._take(key, request, "", (), {})

    def _take(
        self,
        key: Key,
        request: JobRequest,
        cluster: str,
        pods: tuple[PodBinding, ...],
        amounts: Amounts,
    ) -> None:
        queue, job = request.queue, job_of(key, request)
        self._live[key] = _Live(queue, job, request, cluster, pods, amounts)
        _add(self._used.setdefault(queue, {}), amounts, +1)
        self._charge_parents(queue, amounts, +1)
        self._milli_of[queue, job] += amounts.get(GPU, 0)
        self._holders[queue, job] += 1
        if self._holders[queue, job] == 1:
            self.running[queue] += 1
            self._count_in_parents(queue, +1)

    def release(self, key: Key) -> None:
        """A placement, or a divided job, counts no more."""
        live = self._live.pop(key, None)
        if live is None:
            return
        _add(self._used[live.queue], live.amounts, -1)
        self._charge_parents(live.queue, live.amounts, -1)
        self._milli_of[live.queue, live.job] -= live.amounts.get(GPU, 0)
        self._holders[live.queue, live.job] -= 1
        if not self._holders[live.queue, live.job]:
            del self._holders[live.queue, live.job], self._milli_of[live.queue, live.job]
            self.running[live.queue] -= 1
            self._count_in_parents(live.queue, -1)
        for binding in live.pods:
            here = self._on_node.get((live.cluster, binding.node))
            if here is not None:
                here.pop(key, None)
                if not here:
                    del self._on_node[live.cluster, binding.node]
        if not self.running[live.queue]:
            del self.running[live.queue]
            del self._used[live.queue]

    # Nodes

    def node_changed(self, before: NodeReport | None, after: NodeReport | None) -> bool:
        """Apply a change of a node. Return whether a queue's usage changed. ``report_of`` must
        already give the new report.
        """
        same_prices = False
        if before is not None and after is not None:
            same_gpus = before.gpus == after.gpus
            same_shares = before.shares == after.shares and before.fractions == after.fractions
            same_prices = same_shares and (same_gpus or _prices(before) == _prices(after))
            if same_gpus and same_prices and before.allocatable == after.allocatable:
                return False
        known = after or before
        if known is None:
            return False
        self._totals = self._models = self._cpu_a_gpu = None
        there = self._there.setdefault(known.cluster, {})
        if before is not None:
            _add(there, node_amounts(before), -1)
        if after is not None:
            _add(there, node_amounts(after), +1)
        if same_prices:
            return False
        keys = list(self._on_node.get((known.cluster, known.node), ()))
        for key in keys:
            live = self._live[key]
            self.hold(key, live.request, live.cluster, live.pods)
        return bool(keys)

    def models(self) -> tuple[str, ...]:
        """Return all reported GPU models by name."""
        if self._models is None:
            names = {n for there in self._there.values() for n, amount in there.items() if amount}
            found = (name.removeprefix(MODEL) for name in names if name.startswith(MODEL))
            self._models = tuple(sorted(found))
        return self._models

    def gpu_milli_of(self, cluster: str) -> int:
        """Return the GPU milli of a cluster's healthy GPUs."""
        there = self._there.get(cluster, {})
        return sum(amount for name, amount in there.items() if name.startswith(MODEL))

    def cpu_a_gpu(self) -> float:
        """Return all nodes' CPU milli divided by healthy GPUs; infinite without GPUs."""
        if self._cpu_a_gpu is None:
            cpu = sum(there.get(CPU, 0) for there in self._there.values())
            milli = sum(self.gpu_milli_of(cluster) for cluster in self._there)
            self._cpu_a_gpu = 1000 * cpu / milli if milli else math.inf
        return self._cpu_a_gpu

    def totals(self, clusters: frozenset[str]) -> Mapping[str, int]:
        if self._totals is None or self._totals[0] != clusters:
            total: Amounts = {}
            for name in clusters:
                _add(total, self._there.get(name, {}), +1)
            self._totals = (clusters, total)
        return self._totals[1]


def node_amounts(report: NodeReport) -> Amounts:
    """Return a node's capacity, with healthy GPUs only."""
    amounts = {CPU: report.allocatable.cpu_milli, MEMORY: report.allocatable.memory_mib}
    amounts.update(pieces_on(report))
    models = [gpu.model for gpu in report.gpus if gpu.healthy]
    for model in dict.fromkeys(models):
        amounts[of_model(model)] = 1000 * models.count(model)
    return amounts


def job_of(key: Key, request: JobRequest) -> Key:
    """Return the job of a workload: itself, or the divided job of a part."""
    if request.part is None:
        return key
    tenant, _, _ = key.partition("/")
    return named(tenant, request.part.job)


def amounts_of(
    report_of: ReportOf, request: JobRequest, cluster: str, pods: tuple[PodBinding, ...]
) -> Amounts:
    """Return the usage of a placement, by the GPU models of its nodes.

    A fraction counts as its node charges. Unbound pods count as requested.
    """
    amounts = {CPU: 0, MEMORY: 0, GPU: 0}
    by_name: dict[str, PodSet] = {}
    for pod_set in request.pod_sets:
        by_name[pod_set.name] = pod_set
        count = pod_set.count
        amounts[CPU] += count * pod_set.cpu_milli
        amounts[MEMORY] += count * pod_set.memory_mib
        amounts[GPU] += count * pod_set.gpus * pod_set.gpu_milli
        if pod_set.tpus or pod_set.resources:
            for name, each in pieces_of(pod_set):
                amounts[name] = amounts.get(name, 0) + count * each
    if not amounts[GPU]:
        return amounts
    for binding in pods:
        found = by_name.get(set_of(binding.pod))
        if found is None or not found.gpus:
            continue
        report = report_of(cluster, binding.node)
        gpu = _gpu(report, binding)
        name = of_model(gpu.model if gpu is not None else UNKNOWN_MODEL)
        milli = found.gpu_milli
        if milli < WHOLE:
            milli = _charged(found, binding, report, gpu)
            amounts[GPU] += milli - found.gpu_milli
        amounts[name] = amounts.get(name, 0) + found.gpus * milli
    return amounts


def _charged(
    pods: PodSet, binding: PodBinding, report: NodeReport | None, gpu: GpuDevice | None
) -> int:
    """Return the charge of a fraction; as decided, on an unreported node."""
    if report is None or gpu is None:
        return binding.charged_milli or (WHOLE if pods.gpu_memory_mib else pods.gpu_milli)
    return charged_milli(
        part_of(pods), report.shares, gpu.memory_mib, gpu.index, fractions=report.fractions
    )


def _gpu(report: NodeReport | None, binding: PodBinding) -> GpuDevice | None:
    """Return a pod's first GPU. A pod's GPUs normally have one model."""
    if report is None or not report.gpus:
        return None
    if binding.gpus:
        for gpu in report.gpus:
            if gpu.index == binding.gpus[0]:
                return gpu
    return report.gpus[0]


def _prices(report: NodeReport) -> list[tuple[int, str, int]]:
    """Return the GPU properties that decide charges."""
    return [(gpu.index, gpu.model, gpu.memory_mib) for gpu in report.gpus]


def _add(amounts: Amounts, more: Mapping[str, int], sign: int) -> None:
    for name, amount in more.items():
        amounts[name] = amounts.get(name, 0) + sign * amount

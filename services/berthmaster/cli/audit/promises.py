"""The promised capacity of each GPU, at its node's prices. Pure.

The auditor computes the charges from the nodes' reports, independent of the decider's stored
values. Example: three pods request 8 GiB of one GPU (``gpu_milli: 1``). If its node reports 16 GiB,
each is charged 500, and the third exceeds the GPU.

Reports are read after the log, so promises are checked at the end. The decision's stored value is
used for placements older than the node's first remaining report.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from berthmaster.lib.engine.fleet.shares import charged_milli, part_of
from berthmaster.lib.lifecycle.pods import set_of
from berthmaster.lib.lifecycle.workload import Key, Workload
from berthmaster.lib.messages.fleet import NodeReport, Share
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import PodSet

WHOLE = 1000

Gpu = tuple[str, str, int]  # cluster, node, index


class Excess(NamedTuple):
    """A GPU with more than its capacity promised."""

    gpu: Gpu
    milli: int
    name: Key  # workload with the last promise
    sequence: int


class _Prices(NamedTuple):
    """The node properties that determine the charge of its GPUs."""

    memory_mib: tuple[tuple[int, int], ...]  # by index
    shares: tuple[Share, ...]
    fractions: bool


class _Step(NamedTuple):
    """From this event on, a workload holds exactly these pods' GPUs."""

    at_s: float
    sequence: int
    name: Key
    cluster: str
    pods: tuple[tuple[PodSet, PodBinding], ...]


class Promises:
    """Computes promises. Pass the log and the reports, each in order, then call ``judge``."""

    def __init__(self) -> None:
        self._steps: list[_Step] = []
        self._held: dict[Key, tuple[object, ...]] = {}
        self._at_s: dict[tuple[str, str], list[float]] = {}  # node -> times of changed prices
        self._prices: dict[tuple[str, str], list[_Prices]] = {}  # node -> prices at those times

    def on_workload(self, workload: Workload, sequence: int, at_s: float) -> None:
        """Apply a workload after an applied event."""
        name, request = workload.key, workload.request
        holds = workload.live and request is not None
        now = (workload.cluster, workload.pods, request) if holds else ()
        if self._held.get(name, ()) == now:
            return
        self._held[name] = now
        sets = {each.name: each for each in request.pod_sets} if request is not None else {}
        pods = tuple(
            (sets[set_of(binding.pod)], binding)
            for binding in (workload.pods if holds else ())
            if set_of(binding.pod) in sets and binding.gpus
        )
        self._steps.append(_Step(at_s, sequence, name, workload.cluster, pods))
        if not holds:
            del self._held[name]

    def on_node(self, report: NodeReport, at_s: float) -> None:
        name = report.cluster, report.node
        memory = tuple((gpu.index, gpu.memory_mib) for gpu in report.gpus)
        prices = _Prices(memory, report.shares, report.fractions)
        known = self._prices.setdefault(name, [])
        if not known or known[-1] != prices:
            known.append(prices)
            self._at_s.setdefault(name, []).append(at_s)

    def judge(self) -> tuple[int, list[Excess]]:
        """Return the maximum ever promised of one GPU, and each excess."""
        promised: Counter[Gpu] = Counter()
        charged: dict[Key, list[tuple[Gpu, int]]] = {}
        peak_milli = 0
        found = []
        for step in self._steps:
            for gpu, milli in charged.pop(step.name, ()):
                promised[gpu] -= milli
            charges = charged[step.name] = list(self._charges(step))
            for gpu, milli in charges:
                promised[gpu] += milli
                peak_milli = max(peak_milli, promised[gpu])
                if promised[gpu] > WHOLE:
                    found.append(Excess(gpu, promised[gpu], step.name, step.sequence))
            if not charges:
                del charged[step.name]
        return peak_milli, found

    def _charges(self, step: _Step) -> Iterator[tuple[Gpu, int]]:
        for pods, binding in step.pods:
            prices = self._prices_at(step.cluster, binding.node, step.at_s)
            memory: Mapping[int, int] = dict(prices.memory_mib) if prices is not None else {}
            for index in binding.gpus:
                milli = binding.charged_milli or pods.gpu_milli
                if prices is not None and index in memory:
                    milli = charged_milli(
                        part_of(pods),
                        prices.shares,
                        memory[index],
                        index,
                        fractions=prices.fractions,
                    )
                yield (step.cluster, binding.node, index), milli

    def _prices_at(self, cluster: str, node: str, at_s: float) -> _Prices | None:
        """Return the prices of the newest report before that time; None = no report left."""
        at = bisect_right(self._at_s.get((cluster, node), ()), at_s)
        return self._prices[cluster, node][at - 1] if at else None

"""Quality of decisions: waits, completions and evictions by queue, allocation, fragmentation,
fairness.

Pure. The deciding replica counts waits and completions from events, and reads present values from
the knowledge. A wait ends with the workload's first placement.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from berthmaster.control.resolver.core.known.knowledge import Knowledge
from berthmaster.lib.engine.queueing.queues import GPU, fair_shares
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.quality import QualityReport, QueueQuality
from berthmaster.lib.messages.workload import Evicted, Placed, Succeeded, WorkloadEvent

QUEUES_TOLD: Final = 200
QUEUES_COUNTED: Final = 1000  # by name; later queues count under OTHERS
OTHERS: Final = "(others)"


class Happened(NamedTuple):
    """Effect of an event on the metrics of a queue."""

    kind: str  # "waited", "completed" or "evicted"
    queue: str
    seconds: float = 0.0


def what_happened(
    before: Workload | None, event: WorkloadEvent, stored_at_s: float
) -> Happened | None:
    """Return the effect of an event. ``before``: the workload before, if known."""
    if before is None or before.request is None:
        return None
    queue, took_s = before.request.queue, max(0.0, stored_at_s - before.submitted_at_s)
    match event:
        case Placed():
            return Happened("waited", queue, took_s) if before.attempt == 0 else None
        case Succeeded():
            return Happened("completed", queue, took_s)
        case Evicted():
            return Happened("evicted", queue)
    return None


class _Sum:
    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0

    @property
    def mean_s(self) -> float | None:
        return round(self.seconds / self.count, 3) if self.count else None


class Quality:
    """Sums since the beginning, and since the last report."""

    def __init__(self) -> None:
        self._waits: dict[str, _Sum] = {}
        self._completions: dict[str, _Sum] = {}
        self._evictions: Counter[str] = Counter()
        self._queues_counted: set[str] = set()
        self._placements = 0
        self._deciding_s = 0.0
        self._reported_at_s: float | None = None

    def count(self, happened: Happened) -> None:
        if happened.kind == "evicted":
            self._evictions[self._name(happened.queue)] += 1
            return
        sums = self._waits if happened.kind == "waited" else self._completions
        one = sums.setdefault(self._name(happened.queue), _Sum())
        one.count += 1
        one.seconds += happened.seconds

    def decided(self, placements: int, took_s: float) -> None:
        self._placements += placements
        self._deciding_s += took_s

    def _name(self, queue: str) -> str:
        if queue not in self._queues_counted and len(self._queues_counted) >= QUEUES_COUNTED:
            return OTHERS
        self._queues_counted.add(queue)
        return queue

    def report(self, know: Knowledge, decider: str, now_s: float) -> QualityReport:
        """Return the report, and restart the counts since the last report."""
        since_s, self._reported_at_s = self._reported_at_s, now_s
        placements, self._placements = self._placements, 0
        deciding_s, self._deciding_s = self._deciding_s, 0.0
        waiting, demand = _waiting(know)
        past_s = now_s - since_s if since_s is not None else 0.0
        return QualityReport(
            cell=know.cell,
            decider=decider,
            observed_at_s=now_s,
            waiting=know.derived.lines.jobs,
            live=know.derived.ledger.running.total(),
            allocation_percent=allocation_percent(know),
            fragmentation_percent=fragmentation_percent(know),
            fairness=round(fairness(know, demand), 4),
            placements_per_s=round(placements / past_s, 2) if past_s > 0 else 0.0,
            decide_ms=round(1000 * deciding_s / placements, 3) if placements else None,
            queues=tuple(self._queues(know, waiting)[:QUEUES_TOLD]),
        )

    def _queues(self, know: Knowledge, waiting: Mapping[str, int]) -> list[QueueQuality]:
        ledger = know.derived.ledger
        names = {*waiting, *ledger.queues(), *self._waits, *self._completions, *self._evictions}
        nothing = _Sum()
        found = [
            QueueQuality(
                queue=name,
                waiting=waiting.get(name, 0),
                live=ledger.running[name],
                used_gpu_milli=ledger.used(name).get(GPU, 0),
                placed=self._waits.get(name, nothing).count,
                mean_wait_s=self._waits.get(name, nothing).mean_s,
                succeeded=self._completions.get(name, nothing).count,
                mean_completion_s=self._completions.get(name, nothing).mean_s,
                evicted=self._evictions[name],
            )
            for name in names
        ]
        return sorted(found, key=lambda q: (-q.waiting - q.live, -q.placed, q.queue))


# Present values


def _waiting(know: Knowledge) -> tuple[dict[str, int], dict[str, int]]:
    """By queue: how many wait, and for how much GPU milli."""
    numbers: Counter[str] = Counter()
    demand: Counter[str] = Counter()
    for line in know.derived.lines.lines():
        numbers[line.queue] += line.jobs
        demand[line.queue] += len(line.members) * know.derived.ask_in(line).gpu_milli
    return dict(numbers), dict(demand)


def allocation_percent(know: Knowledge) -> float | None:
    """Return the allocated share of all healthy GPUs, unmanaged pods included."""
    know.fleet.arrange()
    capacity = int(know.fleet.arrays.capacity_milli.sum())
    if capacity <= 0:
        return None
    return round(100.0 * (1.0 - int(know.fleet.arrays.milli.sum()) / capacity), 2)


def fragmentation_percent(know: Knowledge) -> float | None:
    """Return the mean of the clusters' fresh values, weighted by free capacity."""
    fragmented = free = 0.0
    for cluster in know.clusters.known():
        score = cluster.score
        if score is None or score.freshness != "fresh" or score.fragmentation_percent is None:
            continue
        fragmented += score.free_gpus * score.fragmentation_percent
        free += score.free_gpus
    return round(fragmented / free, 2) if free > 0 else None


def fairness(know: Knowledge, demand: Mapping[str, int]) -> float:
    """Return Jain's index of each queue's usage relative to its fair share: its demand, or its part
    by weight if demand exceeds capacity.
    """
    ledger = know.derived.ledger
    used = {name: ledger.used(name).get(GPU, 0) for name in {*ledger.queues(), *demand}}
    wants = {name: float(amount + demand.get(name, 0)) for name, amount in sorted(used.items())}
    weights = {name: know.derived.share(name).weight for name in wants}
    know.fleet.arrange()
    shares = fair_shares(float(know.fleet.arrays.capacity_milli.sum()), wants, weights)
    return jain(used[name] / share for name, share in shares.items() if share > 0)


def jain(values: Iterable[float]) -> float:
    """Return Jain's index of fairness, (sum x)^2 / (n sum x^2), of amounts of at least 0: 1 where
    all are alike, 1/n where one has all, 1 where there is nothing."""
    taken = list(values)
    most = max(taken, default=0.0)
    if most <= 0:
        return 1.0
    shares = [value / most for value in taken]  # squares of tiny amounts would be 0
    return math.fsum(shares) ** 2 / (len(shares) * math.fsum(share * share for share in shares))

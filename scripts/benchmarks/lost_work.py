"""GPU time lost to reclaim on Muri's traces 1 and 3: our choice of victims beside two others'.

Each job is in one of two queues, drawn from a seed and its id; each queue is guaranteed half of the
8 nodes x 8 GPUs and may borrow the rest; within a queue nobody is ended for anybody. Jobs have the
trace's priority (0 or 1) and write a checkpoint every ``interval`` of the trace, as milliseconds;
where that is 0, every time that the trace's mean is. They state how long they take, and the
resolver is told how long they need to start on average, as an operator would.

The engine plays the list. Whenever it ends jobs so that a queue gets back what it is guaranteed,
both others are asked whom they would end: for the same job, on the same fleet, of the same jobs,
with the same limit that no queue loses what it is guaranteed. So the demand is the same for all.

- ``newest``: those that began last go first, until the job fits; then whoever is not needed stays,
  in the reverse order. That is how Kueue orders candidates of one queue and priority, and how it
  fills back (kueue.sigs.k8s.io/docs/concepts/preemption, "Candidates" and "Targets").
- ``lowest_priority``: those of the least priority go first, of these who was submitted last, as
  Volcano's actions reclaim and preempt take victims from their queue of tasks
  (volcano.sh/en/docs/actions). That whoever is not needed stays is more than Volcano does: it
  makes this baseline the better one.

What a victim costs is what it does again, from its last checkpoint on, and its restart, both times
its GPUs. Less is the share by which ours is below theirs, in per cent, of those demands that both
could meet; at least 30 is asked for.
"""

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from berthmaster.lab.emulator.chance import uniform
from berthmaster.lab.simulate import ours
from berthmaster.lab.simulate.baseline_fleet import BaselineFleet, Shape
from berthmaster.lab.simulate.model import Job, told
from berthmaster.lab.simulate.ours import Attempt, Reclaim
from berthmaster.lab.simulate.placement_rules import FirstFit
from berthmaster.lab.simulate.traces import (
    MURI,
    MURI_FLEET,
    TRACES_VARIABLE,
    fleet_named,
    parse_muri,
)
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.workload import JobRequest
from scripts.benchmarks.muri import checkpointed, mean_restart_s
from scripts.benchmarks.trace_files import traces_folder

PARTS = ("lost_work",)
SEEDS = (1, 2)
QUEUES = ("left", "right")
GUARANTEE_MILLI = 32_000  # of 64 GPUs
EVICTIONS_AN_HOUR = 1_000_000  # no budget: what is compared is whom, not how many
LEAST_LESS_PERCENT = 30.0
RIVALS = ("newest", "lowest_priority")
BUDGETS = {
    f"{trace}_lost_less_than_{rival}_percent".replace("-", "_"): (">=", LEAST_LESS_PERCENT)
    for trace in MURI
    for rival in RIVALS
}
NOTES: list[str] = []

Order = Callable[[Attempt], tuple[float, ...]]


def _newest(attempt: Attempt) -> tuple[float, ...]:
    return (-attempt.began_s, -attempt.job.at_s)


def _lowest_priority(attempt: Attempt) -> tuple[float, ...]:
    return (attempt.request.priority, -attempt.job.at_s)


ORDERS: dict[str, Order] = {"newest": _newest, "lowest_priority": _lowest_priority}


class _Keeping:
    """What queues have, so that none is left with less than it is guaranteed."""

    def __init__(self, reclaim: Reclaim, keeps_milli: int) -> None:
        self._asking, self._keeps_milli = reclaim.asked.queue, keeps_milli
        self._used: Counter[str] = Counter()
        for attempt in reclaim.running:
            self._used[attempt.request.queue] += round(1000 * attempt.job.gpus)

    def may_lose(self, attempts: Iterable[Attempt]) -> bool:
        """Whether all of these may go together."""
        used = self._used.copy()
        for attempt in attempts:
            used[attempt.request.queue] -= round(1000 * attempt.job.gpus)
        gone = {attempt.request.queue for attempt in attempts}
        return self._asking not in gone and all(used[q] >= self._keeps_milli for q in gone)


def victims_by(order: Order, reclaim: Reclaim, keeps_milli: int) -> list[Attempt] | None:
    """Whom a baseline ends for the same job; None: it cannot make room for it.

    Nodes are taken in the order of the last one whom a pod costs there, as many as the job needs.
    """
    fleet, keeping = reclaim.fleet, _Keeping(reclaim, keeps_milli)
    taken: list[Attempt] = []
    nodes = [_on_node(node, order, reclaim, keeping) for node in fleet.all.tolist()]
    helpful = [victims for victims in nodes if victims]
    try:
        for victims in sorted(helpful, key=lambda each: max(map(order, each))):
            if _fits(fleet, reclaim.asked):
                break
            more = [attempt for attempt in victims if attempt not in taken]
            if keeping.may_lose([*taken, *more]):
                taken += more
                _free(fleet, more)
        if not _fits(fleet, reclaim.asked):
            return None
        return _fill_back(fleet, taken, order, lambda: _fits(fleet, reclaim.asked))
    finally:
        for attempt in taken:
            _take(fleet, attempt)


def _on_node(node: int, order: Order, reclaim: Reclaim, keeping: _Keeping) -> list[Attempt] | None:
    """Whom one pod costs on a node: nobody, if it fits, or None, if it does not whoever goes."""
    fleet = reclaim.fleet
    shape = Shape.of(reclaim.asked.pod_sets[0])  # a job of these traces has one set of pods

    def fits() -> bool:
        return bool(fleet.room.of(fleet.all[node : node + 1]).fits(shape)[0])

    here = [a for a in reclaim.running if any(each.node == node for each in a.allocations)]
    taken: list[Attempt] = []
    try:
        for attempt in sorted(here, key=order):
            if fits():
                break
            if keeping.may_lose([*taken, attempt]):
                taken.append(attempt)
                _free(fleet, [attempt])
        return _fill_back(fleet, taken, order, fits) if fits() else None
    finally:
        for attempt in taken:
            _take(fleet, attempt)


def _fill_back(
    fleet: BaselineFleet, taken: list[Attempt], order: Order, fits: Callable[[], bool]
) -> list[Attempt]:
    """Without those who are not needed, the last in the order first; they have their room again."""
    for attempt in sorted(taken, key=order, reverse=True):
        _take(fleet, attempt)
        if fits():
            taken.remove(attempt)
        else:
            _free(fleet, [attempt])
    return list(taken)


def _free(fleet: BaselineFleet, attempts: Iterable[Attempt]) -> None:
    for attempt in attempts:
        fleet.give_back(attempt.allocations)


def _take(fleet: BaselineFleet, attempt: Attempt) -> None:
    for allocation in attempt.allocations:
        fleet.take(allocation)


def _fits(fleet: BaselineFleet, asked: JobRequest) -> bool:
    found = fleet.allocate(asked, FirstFit())
    if found is None:
        return False
    fleet.give_back(found)
    return True


class Compared(NamedTuple):
    """One demand: what each loses, in GPU seconds; None: it cannot meet it."""

    ours: float
    theirs: dict[str, float | None]


def compare(reclaim: Reclaim, keeps_milli: int) -> Compared:
    """All three on one demand."""
    named = {attempt.request.id: attempt for attempt in reclaim.running}
    theirs: dict[str, float | None] = {}
    for name, order in ORDERS.items():
        victims = victims_by(order, reclaim, keeps_milli)
        theirs[name] = None if victims is None else _lost(victims, reclaim.at_s)
    return Compared(_lost([named[victim] for victim in reclaim.victims], reclaim.at_s), theirs)


def _lost(victims: Sequence[Attempt], now_s: float) -> float:
    return sum(attempt.lost_gpu_s(now_s) for attempt in victims)


def jobs_of(text: str, seed: int) -> list[Job]:
    """A trace with queues, priorities and checkpoints."""
    rows = {f"job-{int(row['job_id'])}": row for row in csv.DictReader(text.splitlines())}

    def with_these(job: Job) -> Job:
        row = rows[job.request.id]
        request = msgspec.structs.replace(
            job.request,
            queue=QUEUES[uniform(seed, "queue", job.request.id) < 0.5],
            priority=int(row["priority"]),
        )
        return job._replace(request=request)

    jobs = checkpointed(text, told(parse_muri(text), "exact", seed))
    return [with_these(job) for job in jobs]


def measure(part: str = "") -> dict[str, float]:
    """Both traces, some draws each; nothing where there are no traces."""
    del part  # there is one
    NOTES.clear()
    folder = traces_folder(MURI["muri-1"])
    if folder is None:
        NOTES.append(f"no traces: set {TRACES_VARIABLE} to a folder with {MURI['muri-1']}")
        return {}
    figures: dict[str, float] = {}
    for trace, path in MURI.items():
        figures |= _of_trace(trace, folder / path)
    return {name.replace("-", "_"): figure for name, figure in figures.items()}


def _of_trace(trace: str, path: Path) -> dict[str, float]:
    fleet = fleet_named(MURI_FLEET, clusters=1, nodes=None)
    queues = [
        QueueSetting(queue=name, guarantee_gpu_milli=GUARANTEE_MILLI, preempts="never")
        for name in QUEUES
    ]
    demands: list[Compared] = []
    lost = work = 0.0
    for seed in SEEDS:
        jobs = jobs_of(path.read_text(), seed)
        before = len(demands)
        policy = msgspec.structs.replace(
            ours.POLICY,
            evictions_per_hour=EVICTIONS_AN_HOUR,
            restart_s=mean_restart_s(jobs),
        )
        run = ours.run(
            fleet,
            jobs,
            policy=policy,
            queues=queues,
            on_reclaim=lambda reclaim: demands.append(compare(reclaim, GUARANTEE_MILLI)),
        )
        lost += run.lost_gpu_s
        work += sum(job.gpus * job.duration_s for job in jobs)
        print(f"  {trace} draw {seed}: {len(demands) - before} demands", flush=True)
    figures = {
        f"{trace}_demands_count": float(len(demands)),
        f"{trace}_lost_of_all_work_percent": 100 * lost / work,
    }
    for rival in RIVALS:
        both = [
            (each.ours, theirs) for each in demands if (theirs := each.theirs[rival]) is not None
        ]
        mine, other = (sum(each[at] for each in both) for at in (0, 1))
        figures[f"{trace}_unmet_by_{rival}_count"] = float(len(demands) - len(both))
        figures[f"{trace}_lost_ours_beside_{rival}_gpu_h"] = mine / 3600
        figures[f"{trace}_lost_{rival}_gpu_h"] = other / 3600
        less = 100 * (1 - mine / other) if other else 0.0
        figures[f"{trace}_lost_less_than_{rival}_percent"] = less
    return figures

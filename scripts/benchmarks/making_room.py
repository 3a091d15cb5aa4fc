"""How long deciding whom to move takes, with 100,000 jobs that run on 121,300 nodes.

One queue has borrowed all GPUs. Jobs of another, which is guaranteed some, come one by one; others
are ended for each, and it is placed when they are gone. Measured is the CPU time of the decision
that ends others, in a fleet of a hundred clusters and in one of a single cluster; beside it, in the
same run, of the decision that places the job then, and of the obvious way, which weighs every job
that runs, one after another.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import count

from berthmaster.engine.queueing.making_room import lost_gpu_s
from berthmaster.lifecycle.workload import key
from berthmaster.messages.control import QueueSetting
from berthmaster.messages.fleet import NodeReport
from berthmaster.messages.placement import PodBinding
from berthmaster.messages.workload import (
    Claimed,
    EvictionRequested,
    JobRequest,
    Placed,
    PodSet,
    Running,
    Succeeded,
    WorkloadEvent,
)
from berthmaster.resolver.core import Resolver
from berthmaster.resolver.settings import Policy
from scripts.benchmarks.engine import LARGE_CLUSTERS, LARGE_NODES, NOW_S, Log, fresh, reports

RUNNING_JOBS = 100_000
ASKED = ((1, 1, 1000), (1, 8, 1000), (1, 1, 500), (8, 1, 1000), (4, 8, 1000))  # pods, GPUs, milli
LOOKS = 10  # of each
FLEETS = {"": LARGE_CLUSTERS, "one_cluster_": 1}
BUDGETS = {
    f"{fleet}whom_to_move_{percentile}_ms": ("<=", 50.0)
    for fleet in FLEETS
    for percentile in ("p50", "p99")
}


class FullFleet(Log):
    """All GPUs are a queue's that has no share of its own."""

    def __init__(self, facts: Sequence[NodeReport], jobs: int) -> None:
        policy = Policy(evictions_per_hour=1_000_000)
        super().__init__(fresh(facts, Resolver("all", "resolver/bench", policy)))
        self._numbers = count()
        for number, setting in enumerate(
            (QueueSetting(queue="lent"), QueueSetting(queue="owner", guarantee_gpu_milli=10**9))
        ):
            self.resolver.on_control(setting, number + 1)
        with_gpus = [fact for fact in facts if fact.gpus]
        several = [fact for fact in with_gpus if len(fact.gpus) > 1]
        # As many on each node as makes so many jobs: one or, on as many as it takes, two.
        two = max(0, min(jobs - len(with_gpus), len(several)))
        halved = {fact.node for fact in several[:two]}
        for fact in with_gpus:
            gpus = tuple(gpu.index for gpu in fact.gpus)
            parts = (gpus[::2], gpus[1::2]) if fact.node in halved else (gpus,)
            for part in parts:
                self._run(fact, part, len(gpus))
        self.resolver.prepare()  # as a resolver does before it says that it is ready

    def _run(self, fact: NodeReport, gpus: tuple[int, ...], of: int) -> None:
        number = next(self._numbers)
        cpu_milli = (fact.allocatable.cpu_milli - 4000) * len(gpus) // of
        request = JobRequest(
            id=f"r{number}",
            queue="lent",
            pod_sets=(PodSet(gpus=len(gpus), cpu_milli=cpu_milli, memory_mib=1024),),
            checkpoint_every_s=600.0 + number % 97 if number % 3 else None,
        )
        self.submit(request)
        pods = (PodBinding(pod="main-0", node=fact.node, gpus=gpus),)
        at_s = NOW_S - number % 900
        head = {"tenant": "bench", "id": request.id, "at_s": at_s, "by": "bench", "attempt": 1}
        placed = Placed(
            **head,  # type: ignore[arg-type]
            after=self.sequence,
            cluster=fact.cluster,
            pods=pods,
            request=request,
            decision=0,
            submitted_at_s=at_s,
        )
        self._tell(placed, at_s)
        self._begin(request.id, fact.cluster, pods, at_s)

    def _begin(
        self, name: str, cluster: str, pods: tuple[PodBinding, ...], at_s: float, attempt: int = 1
    ) -> None:
        head = {"tenant": "bench", "id": name, "at_s": at_s, "by": "x", "attempt": attempt}
        claimed = Claimed(**head, after=self.sequence, cluster=cluster, executor="x")  # type: ignore[arg-type]
        self._tell(claimed, at_s)
        running = Running(**head, after=self.sequence, cluster=cluster, pods=pods)  # type: ignore[arg-type]
        self._tell(running, at_s)

    def _tell(self, event: WorkloadEvent, at_s: float = NOW_S) -> None:
        self.sequence += 1
        self.resolver.on_event(event, self.sequence, at_s)

    def give(self, pods: int, gpus: int, milli: int) -> tuple[float, float] | None:
        """Room to a job that comes: milliseconds of deciding who is ended, and of placing it. None:
        it fits into what those before it have left."""
        name = f"w{next(self._numbers)}"
        shape = PodSet(count=pods, gpus=gpus, gpu_milli=milli, cpu_milli=1000, memory_mib=512)
        self.submit(JobRequest(id=name, queue="owner", pod_sets=(shape,)))
        self.decide()
        ending_ms = 1000 * self.took_s
        orders = [event for event in self.told if isinstance(event, EvictionRequested)]
        for order in orders:
            self._leave(order)
        if orders:
            self.decide()
        [placed] = self.live
        assert placed.id == name
        self.live.clear()
        self._begin(name, placed.cluster, placed.pods, NOW_S)
        return (ending_ms, 1000 * self.took_s) if orders else None

    def _leave(self, order: EvictionRequested) -> None:
        """It ends by itself before it is ended, so that nobody waits again."""
        workload = self.resolver.know.open[key(order.tenant, order.id)]
        ended = Succeeded(
            tenant=order.tenant,
            id=order.id,
            at_s=NOW_S,
            by="x",
            after=workload.sequence,
            cluster=order.cluster,
            attempt=order.attempt,
            digest=workload.digest,
            submitted_at_s=NOW_S,
        )
        self._tell(ended)

    def weigh_all_ms(self) -> float:
        """The obvious way: what each job costs that runs, and the cheapest of them."""
        began_s = time.thread_time()
        open_ = self.resolver.know.open
        min((lost_gpu_s(job, NOW_S, 60.0), name) for name, job in open_.items() if job.live)
        return 1000 * (time.thread_time() - began_s)


def measure() -> dict[str, float]:
    """Both fleets."""
    figures: dict[str, float] = {}
    for prefix, clusters in FLEETS.items():
        fleet = FullFleet(reports(LARGE_NODES, clusters), RUNNING_JOBS)
        took = list(_all(fleet))
        assert len(took) >= LOOKS, "who is ended for whom is what this measures"
        ending, placing = (sorted(each) for each in zip(*took, strict=True))
        figures[f"{prefix}running_count"] = float(len(fleet.resolver.know.open))
        for percent in (50, 99):
            at = min(len(took) - 1, len(took) * percent // 100)
            figures[f"{prefix}whom_to_move_p{percent}_ms"] = ending[at]
            figures[f"{prefix}placing_p{percent}_ms"] = placing[at]
        naive_ms = fleet.weigh_all_ms()
        figures[f"{prefix}baseline_weigh_all_ms"] = naive_ms
        figures[f"{prefix}of_the_baseline_ratio"] = ending[len(ending) // 2] / naive_ms
    return figures


def _all(fleet: FullFleet) -> Iterator[tuple[float, float]]:
    for number in range(LOOKS * len(ASKED)):
        found = fleet.give(*ASKED[number % len(ASKED)])
        if found is not None:
            yield found

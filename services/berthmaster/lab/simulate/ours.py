"""Berthmaster's own policy: the resolver's core on its usual facts and events, in virtual time.

Nothing is imitated. Nodes are reported, jobs submitted, and decisions stored as in the log. A
placement is claimed and runs at once, and ends after the job's true duration. The resolver knows
durations only from requests and from ended jobs. The resolver decides at each arrival and end, and
at its own times.

If queues have guarantees, preemption ends attempts at once. A preempted job repeats its work since
the last checkpoint (``checkpoint_every_s`` of its request, counted from the start of work; without
it, the whole attempt). The job pays its ``overhead_s`` at the restart.
"""

import heapq
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from berthmaster.control.resolver.core.resolver import Resolver
from berthmaster.control.resolver.policy import Policy
from berthmaster.lab.emulator.fleets import ClusterSpec, gpu_memory_mib
from berthmaster.lab.simulate.baseline import TENANT, UsageMeter, check
from berthmaster.lab.simulate.baseline_fleet import Allocation, BaselineFleet
from berthmaster.lab.simulate.model import (
    Job,
    JobOutcome,
    Progress,
    Run,
    SimulationError,
    with_expectation,
)
from berthmaster.lab.simulate.policies import OURS
from berthmaster.lib.lifecycle.instructions import Stored
from berthmaster.lib.lifecycle.workload import key, request_digest
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.fleet import (
    ClusterAlive,
    ClusterProfile,
    GpuDevice,
    NodeReport,
    Stamp,
)
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.messages.workload import (
    Claimed,
    Evicted,
    EvictionRequested,
    JobRequest,
    Placed,
    Running,
    Submitted,
    Succeeded,
    WorkloadEvent,
)

BEGAN_S: Final = 1_000_000.0  # of the list's time 0: far from any zero that could mean "never"
FOREVER_S: Final = 1e15
POLICY: Final = Policy(order="due", reservations=1, backfill=0.8)
MOST_COMMITS: Final = 100_000  # at one time; more would mean that the resolver never settles


class Attempt(NamedTuple):
    """One running job."""

    job: Job
    request: JobRequest
    began_s: float
    starting_s: float  # seconds before work starts
    allocations: tuple[Allocation, ...]

    def unsaved_s(self, now_s: float) -> float:
        """Return the seconds of work to repeat if the attempt ends now."""
        worked_s = max(0.0, now_s - self.began_s - self.starting_s)
        every_s = self.request.checkpoint_every_s
        return worked_s if every_s is None else worked_s % every_s

    def lost_gpu_s(self, now_s: float) -> float:
        """Return the GPU seconds lost if the attempt ends now: repeated work and the restart."""
        return self.job.gpus * (self.unsaved_s(now_s) + self.job.overhead_s)


class Reclaim(NamedTuple):
    """A preemption: jobs that a decision ends for another job. They still run."""

    at_s: float
    asked: JobRequest
    victims: tuple[str, ...]  # ids
    running: tuple[Attempt, ...]  # all running attempts, including the victims
    fleet: BaselineFleet  # with all of these allocated


OnReclaim = Callable[[Reclaim], None]


class Simulated:
    """A resolver, its log and its clusters."""

    def __init__(
        self,
        clusters: Sequence[ClusterSpec],
        jobs: Sequence[Job],
        policy: Policy,
        progress: Progress | None,
        queues: Sequence[QueueSetting] = (),
        on_reclaim: OnReclaim | None = None,
    ) -> None:
        self.resolver = Resolver("all", "simulate", policy)
        self._clusters = clusters
        self._jobs = jobs
        self._progress = progress
        self._fleet = BaselineFleet(clusters)  # the same fleet again, for metrics and checks
        check(self._fleet, jobs)
        self._numbers = {
            (cluster.name, spec.name): number
            for number, (cluster, spec) in enumerate(
                (cluster, spec) for cluster in clusters for spec in cluster.nodes
            )
        }
        self.meter = UsageMeter(self._fleet, jobs)
        self._sequence = 0
        self._facts = 0
        self._by_id = {job.request.id: number for number, job in enumerate(jobs)}
        if len(self._by_id) < len(jobs):
            raise SimulationError("two jobs of the list have the same id")
        self._requests: dict[int, JobRequest] = {}
        self._queues = queues
        self._on_reclaim = on_reclaim
        self._running: dict[int, Attempt] = {}
        self._left_s: dict[int, float] = {}  # preempted job -> remaining seconds of work
        self._tails: dict[int, int] = {}
        self._submitted_s: dict[int, float] = {}
        self._ends: list[tuple[float, int, int]] = []  # (time, job, attempt)
        self._attempts: dict[int, int] = {}
        self._started: dict[int, float] = {}
        self._ended: dict[int, float] = {}
        self._doing_s: dict[int, float] = {}  # running job -> seconds of work of its attempt
        self._used = self._wanted = 0.0
        self.lost_gpu_s = 0.0  # repeated work and restarts

    def outcomes(self) -> list[JobOutcome]:
        """Return the outcome of each job, by its number."""
        return [
            JobOutcome(self._started.get(n), self._ended.get(n)) for n in range(len(self._jobs))
        ]

    def play(self) -> None:
        """Run to the end of the list."""
        self._report(BEGAN_S)
        for number, setting in enumerate(self._queues, 1):
            self.resolver.on_control(setting, number)
        coming, after_s = 0, 0.0
        while coming < len(self._jobs) or self._ends:
            arrival = self._jobs[coming].at_s if coming < len(self._jobs) else float("inf")
            now_s = min(arrival, self._ends[0][0]) if self._ends else arrival
            now_s = min(now_s, max(self.resolver.wake_at_s() - BEGAN_S, after_s))
            after_s = now_s
            self._alive(BEGAN_S + now_s)
            while self._ends and self._ends[0][0] <= now_s:
                _, number, attempt = heapq.heappop(self._ends)
                if self._attempts.get(number) == attempt:  # else it was preempted before
                    self._end(number, now_s)
            while coming < len(self._jobs) and self._jobs[coming].at_s <= now_s:
                self._submit(coming, now_s)
                coming += 1
            self._decide(now_s)
            self.meter.look(now_s, self._used, self._wanted)

    # Facts

    def _stamp(self) -> Stamp:
        self._facts += 1
        return Stamp(epoch=1, counter=self._facts)

    def _report(self, at_s: float) -> None:
        for cluster in self._clusters:
            profile = ClusterProfile(
                cluster=cluster.name,
                stamp=self._stamp(),
                observed_at_s=at_s,
                labels=cluster.labels,
                nodes=len(cluster.nodes),
                gpus=cluster.gpus,
            )
            self.resolver.on_fact(profile, self._facts, at_s)
            for spec in cluster.nodes:
                memory_mib = gpu_memory_mib(spec.model) if spec.gpus else 0
                report = NodeReport(
                    cluster=cluster.name,
                    node=spec.name,
                    stamp=self._stamp(),
                    observed_at_s=at_s,
                    labels=cluster.node_labels(spec),
                    allocatable=spec.allocatable,
                    gpus=tuple(
                        GpuDevice(
                            index=index,
                            uuid=f"GPU-{cluster.name}-{spec.name}-{index}",
                            model=spec.model,
                            memory_mib=memory_mib,
                        )
                        for index in range(spec.gpus)
                    ),
                )
                self.resolver.on_fact(report, self._facts, at_s)

    def _alive(self, at_s: float) -> None:
        for cluster in self._clusters:
            sign = ClusterAlive(
                cluster=cluster.name, stamp=self._stamp(), observed_at_s=at_s, interval_s=FOREVER_S
            )
            self.resolver.on_fact(sign, self._facts, at_s)

    # The log

    def _append(self, number: int, event: WorkloadEvent, at_s: float) -> None:
        self._sequence += 1
        self._tails[number] = self._sequence
        self.resolver.on_event(event, self._sequence, at_s)

    def _submit(self, number: int, now_s: float) -> None:
        request = with_expectation(self._jobs[number])
        at_s = BEGAN_S + now_s
        self._requests[number] = request
        self._submitted_s[number] = at_s
        event = Submitted(
            tenant=TENANT,
            id=request.id,
            after=0,
            at_s=at_s,
            by="simulate",
            request=request,
            digest=request_digest(request),
        )
        self._append(number, event, at_s)
        self._wanted += self._jobs[number].gpus

    def _decide(self, now_s: float) -> None:
        at_s = BEGAN_S + now_s
        for _ in range(MOST_COMMITS):
            plan = self.resolver.decide(at_s)
            if plan is None:
                return
            self._sequence += 1
            self.resolver.on_decision(plan.decision, self._sequence)
            placed, leaving = [], []
            for event in plan.events:
                number = self._by_id[event.id]
                self._append(number, event, at_s)
                if isinstance(event, Placed):
                    placed.append((number, event))
                elif isinstance(event, EvictionRequested):
                    leaving.append(number)
            self.resolver.on_outcome(Stored(self._sequence), 0)
            for number, event in placed:
                self._start(number, event, now_s)
            if leaving and self._on_reclaim is not None:
                self._on_reclaim(self._reclaim(plan.decision, now_s))
            for number in leaving:
                self._leave(number, now_s)
        raise SimulationError(f"the resolver does not come to rest at {now_s:g} s of the list")

    def _head(self, number: int, at_s: float) -> dict[str, Any]:
        """Return the common fields of a job's events."""
        return {
            "tenant": TENANT,
            "id": self._jobs[number].request.id,
            "after": self._tails[number],
            "at_s": at_s,
            "by": "simulate",
        }

    def _start(self, number: int, placed: Placed, now_s: float) -> None:
        """Claim and run a placement at once. The fleet checks the capacity."""
        at_s = BEGAN_S + now_s
        job = self._jobs[number]
        where: dict[str, Any] = {"cluster": placed.cluster, "attempt": placed.attempt}
        claimed = Claimed(**self._head(number, at_s), **where, executor="simulate")
        self._append(number, claimed, at_s)
        self._append(number, Running(**self._head(number, at_s), **where, pods=placed.pods), at_s)
        again = number in self._left_s
        starting_s = job.overhead_s if again else 0.0
        left_s = self._left_s.pop(number) if again else job.duration_s
        allocations = self._take(placed)
        request = self._requests[number]
        self._running[number] = Attempt(job, request, now_s, starting_s, allocations)
        self._attempts[number] = placed.attempt
        self._doing_s[number] = left_s
        self._started.setdefault(number, now_s)
        heapq.heappush(self._ends, (now_s + starting_s + left_s, number, placed.attempt))
        self._used += job.gpus
        self._wanted -= job.gpus

    def _reclaim(self, decision: Decision, now_s: float) -> Reclaim:
        orders = decision.evictions
        asked = self._requests[self._by_id[orders[0].for_id]]  # a commit evicts for at most one job
        victims = tuple(order.id for order in orders)
        return Reclaim(now_s, asked, victims, tuple(self._running.values()), self._fleet)

    def _leave(self, number: int, now_s: float) -> None:
        """Evict an attempt at once, and requeue the job."""
        at_s = BEGAN_S + now_s
        attempt = self._stop(number)
        workload = self.resolver.know.open[key(TENANT, attempt.request.id)]
        worked_s = max(0.0, now_s - attempt.began_s - attempt.starting_s)
        unsaved_s = attempt.unsaved_s(now_s)
        self._left_s[number] = self._doing_s.pop(number) - (worked_s - unsaved_s)
        self.lost_gpu_s += attempt.lost_gpu_s(now_s)
        self._wanted += attempt.job.gpus
        event = Evicted(
            **self._head(number, at_s),
            cluster=workload.cluster,
            attempt=workload.attempt,
            reason=workload.leaving,
            blameless=True,
        )
        self._append(number, event, at_s)

    def _stop(self, number: int) -> Attempt:
        """Stop a running attempt."""
        attempt = self._running.pop(number)
        self._fleet.give_back(attempt.allocations)
        del self._attempts[number]
        self._used -= attempt.job.gpus
        return attempt

    def _take(self, placed: Placed) -> tuple[Allocation, ...]:
        sets = {pods.name: pods for pods in placed.request.pod_sets}
        allocations = []
        for binding in placed.pods:
            pods = sets[binding.pod.rpartition("-")[0]]
            where = self._numbers[placed.cluster, binding.node]
            milli = pods.gpu_milli if pods.gpus else 0
            allocation = Allocation(where, pods.cpu_milli, pods.memory_mib, milli, binding.gpus)
            self._fleet.take(allocation)
            allocations.append(allocation)
            if self._fleet.overdrawn(allocation):
                raise SimulationError(f"{placed.id} was placed on {binding.node} without room")
        return tuple(allocations)

    def _end(self, number: int, now_s: float) -> None:
        at_s = BEGAN_S + now_s
        request = self._requests.pop(number)
        workload = self.resolver.know.open[key(TENANT, request.id)]
        event = Succeeded(
            **self._head(number, at_s),
            cluster=workload.cluster,
            attempt=workload.attempt,
            digest=workload.digest,
            submitted_at_s=self._submitted_s.pop(number),
        )
        self._append(number, event, at_s)
        self._stop(number)
        del self._doing_s[number]
        self._ended[number] = now_s
        if self._progress is not None:
            self._progress(len(self._ended))


def run(
    clusters: Sequence[ClusterSpec],
    jobs: Sequence[Job],
    *,
    policy: Policy | None = None,
    progress: Progress | None = None,
    queues: Sequence[QueueSetting] = (),
    on_reclaim: OnReclaim | None = None,
) -> Run:
    """Run a list to its end. Raises SimulationError if a job fits nowhere."""
    ordered = sorted(jobs, key=lambda job: job.at_s)
    world = Simulated(clusters, ordered, policy or POLICY, progress, queues, on_reclaim)
    world.play()
    gpus = sum(sum(cluster.gpus.values()) for cluster in clusters)
    return Run(OURS, ordered, world.outcomes(), world.meter.spans, gpus, world.lost_gpu_s)

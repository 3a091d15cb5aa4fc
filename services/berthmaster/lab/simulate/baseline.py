"""The baselines in virtual time: at each arrival and each end, pending jobs are placed.

A started job runs to its end.
"""

import bisect
import heapq
from collections.abc import Sequence
from typing import NamedTuple

from berthmaster.lab.emulator.fleets import ClusterSpec
from berthmaster.lab.simulate.baseline_fleet import Allocation, BaselineFleet, FreeRoom, Shape
from berthmaster.lab.simulate.model import Job, JobOutcome, Progress, Run, SimulationError, Span
from berthmaster.lab.simulate.placement_rules import (
    BestFit,
    FirstFit,
    Fragmentation,
    mix_of,
    pod_sets_of,
)
from berthmaster.lab.simulate.policies import QueueEntry, QueuePolicy
from berthmaster.lib.engine.queueing.expectations import Durations, left_s

TENANT = "simulated"
SAMPLES = 400  # number of fragmentation samples per run: each scans every node


class UsageMeter:
    """The use of the fleet from event to event."""

    def __init__(self, fleet: BaselineFleet, jobs: Sequence[Job]) -> None:
        self.spans: list[Span] = []
        self._fleet = fleet
        self._fragmentation = Fragmentation(fleet, mix_of(pod_sets_of(jobs)))
        self._every = max(1, 2 * len(jobs) // SAMPLES)
        self._events = 0
        self._since: Span | None = None
        self._fragmented = 0.0

    def look(self, now_s: float, used_gpus: float, wanted_gpus: float) -> None:
        """Record the state after an event, valid until the next event."""
        if self._since is not None and now_s > self._since.at_s:
            self.spans.append(self._since._replace(for_s=now_s - self._since.at_s))
        if self._events % self._every == 0:
            fleet = self._fleet
            free = fleet.free_milli
            lost = float(self._fragmentation.lost(fleet.all, fleet.room).sum())
            self._fragmented = lost / free if free else 0.0
        self._events += 1
        self._since = Span(now_s, 0.0, used_gpus, wanted_gpus, self._fragmented)


class DurationEstimates:
    """The durations that a policy expects: given, or learned from ended jobs."""

    def __init__(self) -> None:
        self._learned = Durations()

    def expected_s(self, job: Job) -> float:
        if job.expected_s is not None:
            return job.expected_s
        return self._learned.expected_s(TENANT, job.request, job.at_s)

    def ended(self, job: Job) -> None:
        """Learn the duration of an ended job."""
        self._learned.learn(TENANT, job.request, job.at_s, job.duration_s)


Form = tuple[tuple[Shape, int], ...]  # equal for jobs that fit together or not at all


def form_of(job: Job) -> Form:
    """Return the shapes and numbers of a job's pods."""
    return tuple((Shape.of(pods), pods.count) for pods in job.request.pod_sets)


class _Reserved(NamedTuple):
    """The reservation of the first job that does not fit."""

    at_s: float
    spare: dict[int, FreeRoom]  # node -> free capacity at that time, once that job runs


def asked(job: Job) -> str:
    cpu = sum(pods.count * pods.cpu_milli for pods in job.request.pod_sets) / 1000
    return f"{job.gpus:g} GPUs and {cpu:g} CPUs"


def check(fleet: BaselineFleet, jobs: Sequence[Job]) -> None:
    """Check that every job fits into the empty fleet. Raises SimulationError.

    Otherwise the simulation would never end.
    """
    rule = FirstFit()
    known: set[Form] = set()
    for job in jobs:
        form = form_of(job)
        if form in known:
            continue
        known.add(form)
        allocations = fleet.allocate(job.request, rule)
        if allocations is None:
            raise SimulationError(
                f"job {job.request.id} asks for {asked(job)} and fits into no cluster, "
                "even an empty one; take it out of the list or take a larger fleet"
            )
        fleet.give_back(allocations)


def run(
    clusters: Sequence[ClusterSpec],
    jobs: Sequence[Job],
    policy: QueuePolicy,
    *,
    progress: Progress | None = None,
) -> Run:
    """Run a list to its end. Raises SimulationError if a job fits nowhere."""
    fleet = BaselineFleet(clusters)
    ordered = sorted(jobs, key=lambda job: job.at_s)
    check(fleet, ordered)
    played = _Played(fleet, ordered, policy, progress)
    played.play()
    return Run(policy.name, ordered, played.outcomes(), played.meter.spans, fleet.gpus)


class _Played:
    """One list under one policy."""

    def __init__(
        self,
        fleet: BaselineFleet,
        jobs: Sequence[Job],
        policy: QueuePolicy,
        progress: Progress | None,
    ) -> None:
        self.meter = UsageMeter(fleet, jobs)
        self._fleet = fleet
        self._jobs = jobs
        self._policy = policy
        self._progress = progress
        self._rule = BestFit()
        self._forms = [form_of(job) for job in jobs]
        self._estimates = DurationEstimates()
        self._started: dict[int, float] = {}
        self._ended: dict[int, float] = {}
        self._expected: dict[int, float] = {}
        self._waiting: list[tuple[tuple[float, ...], int]] = []
        self._ends: list[tuple[float, int]] = []
        self._allocations: dict[int, tuple[Allocation, ...]] = {}
        self._used = self._wanted = 0.0

    def outcomes(self) -> list[JobOutcome]:
        return [
            JobOutcome(self._started.get(n), self._ended.get(n)) for n in range(len(self._jobs))
        ]

    def play(self) -> None:
        coming = 0
        while coming < len(self._jobs) or self._ends:
            arrival = self._jobs[coming].at_s if coming < len(self._jobs) else float("inf")
            now_s = min(arrival, self._ends[0][0]) if self._ends else arrival
            while self._ends and self._ends[0][0] <= now_s:
                self._end(heapq.heappop(self._ends)[1], now_s)
            while coming < len(self._jobs) and self._jobs[coming].at_s <= now_s:
                self._come(coming)
                coming += 1
            self._start_who_fits(now_s)
            self.meter.look(now_s, self._used, self._wanted)

    def _come(self, number: int) -> None:
        job = self._jobs[number]
        expected_s = self._estimates.expected_s(job)
        self._expected[number] = expected_s
        one = QueueEntry(job, number, expected_s)
        bisect.insort(self._waiting, (self._policy.order(one), number))
        self._wanted += job.gpus

    def _end(self, number: int, now_s: float) -> None:
        self._fleet.give_back(self._allocations.pop(number))
        self._ended[number] = now_s
        self._used -= self._jobs[number].gpus
        self._estimates.ended(self._jobs[number])
        if self._progress is not None:
            self._progress(len(self._ended))

    def _start_who_fits(self, now_s: float) -> None:
        """Start jobs in order. After a shape does not fit, no job of that shape is tried."""
        gone: set[int] = set()
        no_room: set[tuple[Form, bool]] = set()
        reserved: _Reserved | None = None
        for _, number in self._waiting:
            job = self._jobs[number]
            brief = reserved is not None and now_s + self._expected[number] <= reserved.at_s
            what = (self._forms[number], brief)
            if what in no_room:
                continue
            spare = reserved.spare if reserved is not None and not brief else None
            allocations = self._fleet.allocate(job.request, self._rule, spare)
            if allocations is not None:
                self._start(number, allocations, now_s, spare)
                gone.add(number)
                continue
            if self._policy.blocked == "waits":
                break
            if self._policy.blocked == "reserved" and reserved is None:
                reserved = self._reserve(job, now_s)
                continue
            no_room.add(what)
        if gone:
            self._waiting = [entry for entry in self._waiting if entry[1] not in gone]

    def _start(
        self,
        number: int,
        allocations: tuple[Allocation, ...],
        now_s: float,
        spare: dict[int, FreeRoom] | None,
    ) -> None:
        job = self._jobs[number]
        self._allocations[number] = allocations
        self._started[number] = now_s
        heapq.heappush(self._ends, (now_s + job.duration_s, number))
        self._used += job.gpus
        self._wanted -= job.gpus
        for allocation in allocations:
            if spare is not None and allocation.node in spare:
                spare[allocation.node].charge(0, allocation)

    def _reserve(self, job: Job, now_s: float) -> _Reserved:
        """End running jobs in the expected order, until the job fits."""
        expected = sorted(
            (now_s + left_s(self._expected[n], now_s - self._started[n]), n)
            for n in self._allocations
        )
        given: list[Allocation] = []
        try:
            for at, (at_s, number) in enumerate(expected):
                self._fleet.give_back(self._allocations[number])
                given.extend(self._allocations[number])
                if at + 1 < len(expected) and expected[at + 1][0] == at_s:
                    continue
                allocations = self._fleet.allocate(job.request, self._rule)
                if allocations is not None:
                    spare = {s.node: self._fleet.room_of(s.node) for s in allocations}
                    self._fleet.give_back(allocations)
                    return _Reserved(at_s, spare)
        finally:
            for allocation in given:
                self._fleet.take(allocation)
        raise SimulationError(f"job {job.request.id} fits into no cluster, even an empty one")

"""Published policies that stop jobs at will, in virtual time, to be compared with ours.

::

    policy  order
    srtf    least expected rest
    srsf    least expected rest x GPUs
    las2d   least service, in three queues (Tiresias, NSDI'19, section 3.2)
    themis  unfairest first, leases of 20 minutes (Themis, NSDI'20, section 3)

All jobs are seated anew at every event, in the policy's order, first fit. A job's restart overhead
is taken from every stretch between two events in which it ran, which is how the simulators of
Tiresias and Muri count it. Themis knows no durations here: rho is (now - submitted) / (time that a
job has run), and the job with the greatest rho goes first.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from berthmaster.lab.emulator.fleets import ClusterSpec
from berthmaster.lab.simulate.baseline import DurationEstimates, Form, UsageMeter, check, form_of
from berthmaster.lab.simulate.baseline_fleet import Allocation, BaselineFleet
from berthmaster.lab.simulate.model import Job, JobOutcome, Run
from berthmaster.lab.simulate.placement_rules import FirstFit
from berthmaster.lib.engine.queueing.expectations import left_s

LAS_LIMITS_GPU_S = (3250.0, 7200.0)  # of Tiresias
LEASE_S = 1200.0  # of Themis


class Entry(NamedTuple):
    """One job as an order sees it."""

    job: Job
    number: int  # in the list, by arrival
    left_s: float  # as the policy believes
    attained_s: float  # that it has run
    since_s: float  # when it came, or last was stopped
    now_s: float


def _las_queue(attained_gpu_s: float) -> int:
    return sum(attained_gpu_s >= limit for limit in LAS_LIMITS_GPU_S)


def _unfairest(one: Entry) -> tuple[float, ...]:
    rho = (one.now_s - one.job.at_s) / one.attained_s if one.attained_s > 0 else float("inf")
    return (-rho, one.number)


class Policy(NamedTuple):
    """How a published policy decides."""

    order: Callable[[Entry], tuple[float, ...]]
    limits_gpu_s: tuple[float, ...] = ()  # of attained service at which the order changes
    lease_s: float | None = None  # after which room is given anew, if a job waits


POLICIES = {
    "srtf": Policy(lambda one: (one.left_s, one.number)),
    "srsf": Policy(lambda one: (one.left_s * one.job.share, one.number)),
    "las2d": Policy(
        lambda one: (_las_queue(one.attained_s * one.job.share), one.since_s, one.number),
        LAS_LIMITS_GPU_S,
    ),
    "themis": Policy(_unfairest, lease_s=LEASE_S),
}


class _State:
    """One job that runs or was stopped."""

    def __init__(self, job: Job, expected_s: float) -> None:
        self.job = job
        self.left_s = job.duration_s
        self.expected_s = expected_s
        self.attained_s = 0.0
        self.checked_s = self.since_s = job.at_s
        self.running = False

    def pass_time(self, now_s: float) -> None:
        """Bring it up to now."""
        if self.running:
            passed_s = now_s - self.checked_s
            self.left_s -= max(passed_s - self.job.overhead_s, 0.0)
            self.attained_s += passed_s
        self.checked_s = now_s

    def entry(self, number: int, now_s: float) -> Entry:
        """As an order sees it."""
        known = self.job.expected_s == self.job.duration_s
        rest_s = self.left_s if known else left_s(self.expected_s, self.attained_s)
        return Entry(self.job, number, rest_s, self.attained_s, self.since_s, now_s)


def play(name: str, clusters: Sequence[ClusterSpec], jobs: Sequence[Job]) -> Run:
    """Play a list to its end. Raises SimulationError if a job fits nowhere."""
    fleet, ordered = BaselineFleet(clusters), sorted(jobs, key=lambda job: job.at_s)
    check(fleet, ordered)
    played = _Played(fleet, ordered, POLICIES[name])
    played.play()
    outcomes = [JobOutcome(played.started.get(n), played.ended.get(n)) for n in range(len(ordered))]
    return Run(name, ordered, outcomes, played.meter.spans, fleet.gpus)


class _Played:
    def __init__(self, fleet: BaselineFleet, jobs: Sequence[Job], policy: Policy) -> None:
        self.meter = UsageMeter(fleet, jobs)
        self.started: dict[int, float] = {}
        self.ended: dict[int, float] = {}
        self._fleet, self._jobs, self._policy = fleet, jobs, policy
        self._forms = [form_of(job) for job in jobs]
        self._rule = FirstFit()
        self._estimates = DurationEstimates()
        self._open: dict[int, _State] = {}
        self._seated: list[Allocation] = []

    def play(self) -> None:
        coming, now_s = 0, 0.0
        while coming < len(self._jobs) or self._open:
            arrival = self._jobs[coming].at_s if coming < len(self._jobs) else float("inf")
            ends = {n: now_s + one.left_s for n, one in self._open.items() if one.running}
            ending = min(ends.values(), default=float("inf"))
            now_s = min(arrival, ending, self._next_turn(now_s))
            if now_s == ending:
                for number in [n for n, end_s in ends.items() if end_s == ending]:
                    self.ended[number] = now_s
                    self._estimates.ended(self._open.pop(number).job)
            while coming < len(self._jobs) and self._jobs[coming].at_s <= now_s:
                job = self._jobs[coming]
                self._open[coming] = _State(job, self._estimates.expected_s(job))
                coming += 1
            for one in self._open.values():
                one.pass_time(now_s)
            self._seat_all(now_s)

    def _next_turn(self, now_s: float) -> float:
        """When a running job's attained service reaches the next limit, or leases are over."""
        turns = [float("inf"), *self._at_limits(now_s)]
        lease_s = self._policy.lease_s
        if lease_s is not None and not all(one.running for one in self._open.values()):
            turns.append(now_s + lease_s)
        return min(turns)

    def _at_limits(self, now_s: float) -> Iterable[float]:
        for one in self._open.values():
            share = one.job.share
            attained = one.attained_s * share
            ahead = [limit for limit in self._policy.limits_gpu_s if attained < limit]
            if one.running and share > 0 and ahead:
                yield now_s + max((ahead[0] - attained) / share, 1e-3)

    def _seat_all(self, now_s: float) -> None:
        self._fleet.give_back(self._seated)
        self._seated = []
        no_room: set[Form] = set()
        used = wanted = 0.0
        entries = [one.entry(number, now_s) for number, one in self._open.items()]
        for entry in sorted(entries, key=self._policy.order):
            one, form = self._open[entry.number], self._forms[entry.number]
            seated = None
            if form not in no_room:
                seated = self._fleet.allocate(entry.job.request, self._rule)
            if seated is None:
                no_room.add(form)
                wanted += entry.job.gpus
                if one.running:
                    one.since_s = now_s
            else:
                self._seated += seated
                used += entry.job.gpus
                self.started.setdefault(entry.number, now_s)
            one.running = seated is not None
        self.meter.look(now_s, used, wanted)

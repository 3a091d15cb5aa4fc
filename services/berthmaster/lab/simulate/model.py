"""The data of a simulation: jobs, expected durations, and results.

Only the simulator knows a job's true duration. Policies see ``expected_s``: the truth, the truth
times a factor from a seed, or None. With None, policies predict from ended jobs.
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from berthmaster.lab.emulator.chance import uniform
from berthmaster.lib.engine.queueing.lines import gpu_share
from berthmaster.lib.messages.workload import JobRequest

Knowing = Literal["exact", "factor-two", "unknown"]
LONGEST_S: Final = 31_536_000.0  # limit of a request
SHORTEST_S: Final = 0.001


class SimulationError(ValueError):
    """The fleet, the jobs or the policy cannot be simulated. The text says what would be right."""


class Job(NamedTuple):
    at_s: float
    request: JobRequest
    duration_s: float
    expected_s: float | None = None  # duration that policies see
    overhead_s: float = 0.0  # seconds per stop and start; only preemptive policies pay it

    @property
    def gpus(self) -> float:
        """Return the GPUs of all pods, including fractions."""
        return sum(p.count * p.gpus * p.gpu_milli / 1000 for p in self.request.pod_sets)

    @property
    def share(self) -> float:
        """Return the size in GPUs; of a job without GPUs, the worth of its CPU."""
        return gpu_share(self.request)


class JobOutcome(NamedTuple):
    """The outcome of a job. ``started_s`` None = never started."""

    started_s: float | None
    ended_s: float | None


class Span(NamedTuple):
    """The use of the fleet from one event to the next."""

    at_s: float
    for_s: float
    used_gpus: float
    wanted_gpus: float  # by pending jobs
    fragmented: float  # fraction of free GPU capacity that fits no job of the mix


class Run(NamedTuple):
    """One list under one policy."""

    policy: str
    jobs: Sequence[Job]
    outcomes: Sequence[JobOutcome]
    spans: Sequence[Span]
    gpus: float  # of the fleet
    lost_gpu_s: float = 0.0  # of preempted jobs: repeated work and restarts


Progress = Callable[[int], None]  # gets the number of ended jobs


def told(jobs: Sequence[Job], knowing: Knowing, seed: int) -> list[Job]:
    """Return the jobs with the durations that policies may know.

    ``factor-two``: the truth times 2**u, u uniform from -1 to 1, from the seed and the job's id.
    """
    if knowing == "exact":
        return [job._replace(expected_s=job.duration_s) for job in jobs]
    if knowing == "unknown":
        return [job._replace(expected_s=None) for job in jobs]
    return [
        job._replace(
            expected_s=job.duration_s * 2 ** (2 * uniform(seed, "expected", job.request.id) - 1)
        )
        for job in jobs
    ]


def with_expectation(job: Job) -> JobRequest:
    """Return the request as submitted, with the expected duration if known."""
    expected_s = job.expected_s
    if expected_s is not None:
        expected_s = min(max(expected_s, SHORTEST_S), LONGEST_S)
    return msgspec.structs.replace(job.request, expected_duration_s=expected_s)

"""What a simulation is made of: jobs, what is believed of their durations, and what came out.

A job's true duration is the simulator's alone; policies see ``expected_s``: the truth, the truth
times a factor drawn from a seed, or None, and then they predict from what has ended.
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from berthmaster.lab.emulator.chance import uniform
from berthmaster.lib.engine.queueing.lines import gpu_share
from berthmaster.lib.messages.workload import JobRequest

Knowing = Literal["exact", "factor-two", "unknown"]
LONGEST_S: Final = 31_536_000.0  # what a request may state
SHORTEST_S: Final = 0.001


class SimulationError(ValueError):
    """The fleet, the jobs or the policy cannot be simulated; says what would do."""


class Job(NamedTuple):
    at_s: float
    request: JobRequest
    duration_s: float
    expected_s: float | None = None  # what policies are told
    overhead_s: float = 0.0  # of each stop and start; only preemptive policies pay it

    @property
    def gpus(self) -> float:
        """GPUs of all its pods, fractions counted."""
        return sum(p.count * p.gpus * p.gpu_milli / 1000 for p in self.request.pod_sets)

    @property
    def share(self) -> float:
        """Its size in GPUs; of a job without, what its CPU is worth."""
        return gpu_share(self.request)


class JobOutcome(NamedTuple):
    """What became of a job. Never started: ``started_s`` is None."""

    started_s: float | None
    ended_s: float | None


class Span(NamedTuple):
    """From one event to the next: how the fleet was used."""

    at_s: float
    for_s: float
    used_gpus: float
    wanted_gpus: float  # by jobs that wait
    fragmented: float  # share of free GPU room on which no job of the mix fits


class Run(NamedTuple):
    """One list under one policy."""

    policy: str
    jobs: Sequence[Job]
    outcomes: Sequence[JobOutcome]
    spans: Sequence[Span]
    gpus: float  # of the fleet
    lost_gpu_s: float = 0.0  # by those that were ended to make room: done again, and starting again


Progress = Callable[[int], None]  # told how many jobs have ended


def told(jobs: Sequence[Job], knowing: Knowing, seed: int) -> list[Job]:
    """The jobs with what policies may know of their durations.

    ``factor-two``: the truth times 2**u, u uniform from -1 to 1, of the seed and the job's id.
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
    """The request as it would be submitted: it states what is known of its duration."""
    expected_s = job.expected_s
    if expected_s is not None:
        expected_s = min(max(expected_s, SHORTEST_S), LONGEST_S)
    return msgspec.structs.replace(job.request, expected_duration_s=expected_s)

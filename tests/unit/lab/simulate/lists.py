"""Small job lists: a test states when jobs come, how large they are and how long they take."""

from collections.abc import Sequence

from berthmaster.lab.simulate.compare import play
from berthmaster.lab.simulate.model import Job, Knowing, Run, told
from berthmaster.lab.simulate.traces import even_fleet
from berthmaster.lib.messages.workload import PodSet
from tests.support.builders import job as request


def job(
    name: str,
    at_s: float,
    duration_s: float,
    gpus: int = 1,
    *,
    pods: int = 1,
    milli: int = 1000,
    overhead_s: float = 0.0,
) -> Job:
    """So many pods with so many GPUs each; its duration is known."""
    sets = (PodSet(count=pods, gpus=gpus, gpu_milli=milli, cpu_milli=100, memory_mib=10),)
    asked = request(name, pod_sets=sets)
    return Job(at_s, asked, duration_s, duration_s, overhead_s)


def started(policy: str, jobs: Sequence[Job], nodes: int = 1, gpus: int = 2) -> dict[str, float]:
    """When each job starts first, on so many nodes with so many GPUs."""
    return {name: start_s for name, (start_s, _) in times(run(policy, jobs, nodes, gpus)).items()}


def run(
    policy: str, jobs: Sequence[Job], nodes: int = 1, gpus: int = 2, knowing: Knowing | None = None
) -> Run:
    known = jobs if knowing is None else told(jobs, knowing, 1)
    return play(policy, even_fleet(nodes, gpus), known)


def times(played: Run) -> dict[str, tuple[float, float]]:
    """Start and end of each job; all have both."""
    found = {}
    for one, outcome in zip(played.jobs, played.outcomes, strict=True):
        assert outcome.started_s is not None
        assert outcome.ended_s is not None
        found[one.request.id] = (outcome.started_s, outcome.ended_s)
    return found

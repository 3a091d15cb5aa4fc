"""How well the run times of jobs, and a day's arrivals, are foretold from what was seen before.

Durations: the jobs of a list in the order of their submission. The first 70 % are learned from, and
the last 30 % are tested. Each is estimated when it is submitted, by what had ended until then, as
the resolver does. dlrm is Alibaba's list, with the application as a label; the lists of gavel say
how many steps a job does and not how long one takes, so a job counts as ended when the next one
comes, and a step as the unit of time of its kind. The baseline knows the same: the mean of the
ROLLING newest jobs of the application.

- ``ours_mape_percent``, ``rolling_mape_percent``: mean absolute percentage errors; of jobs below
  a second, as if they took one.
- ``error_below_rolling_percent``: how much less ours is, in per cent of the baseline.
- ``covered_percent``: jobs that ended within the interval from 10 to 90 %.

Arrivals: see on_the_way.py of this folder.
"""

import csv
import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from berthmaster.lab.simulate.traces import TRACES_VARIABLE
from berthmaster.lib.engine.queueing.expectations import Durations
from berthmaster.lib.engine.queueing.similar import Foreseen
from berthmaster.lib.messages.workload import JobRequest, PodSet, RunSpec
from scripts.benchmarks.trace_files import traces_folder

DLRM: Final = "dlrm/disaggregated_DLRM_trace.csv"
GAVEL: Final = "gavel-msr"
LEARNED: Final = 0.7
ROLLING: Final = 20
LEAST_JOBS: Final = 500  # of a list of gavel's: of fewer a third says nothing
BUDGETS: Final = {
    f"{name}_{what}": limit
    for name in ("dlrm", "gavel")
    for what, limit in (
        ("error_below_rolling_percent", (">=", 20.0)),
        ("covered_percent", (">=", 75.0)),
    )
}
NOTES: list[str] = []
TENANT: Final = "bench"


class Past(NamedTuple):
    """A job of a list. ``ends_s``: None = when the next one comes."""

    at_s: float
    ran_s: float
    ends_s: float | None
    application: str
    request: JobRequest


class Tested(NamedTuple):
    """What came of a list."""

    jobs: int
    ours: float  # mean absolute error, in shares of the truth
    rolling: float
    covered: float


def dlrm_jobs(text: str) -> list[Past]:
    """The jobs whose beginning and end are in the list."""
    jobs = []
    for row in csv.DictReader(text.splitlines()):
        if not (row["creation_time"] and row["deletion_time"]):
            continue
        at_s, ends_s = float(row["creation_time"]), float(row["deletion_time"])
        ran_s = max(0.0, ends_s - float(row["scheduled_time"] or at_s))
        pods = PodSet(
            cpu_milli=round(1000 * float(row["cpu_request"])),
            memory_mib=round(1024 * float(row["memory_request"])),
            gpus=round(float(row["gpu_request"])),
        )
        labels = {"app": row["app_name"], "role": row["role"]}
        request = JobRequest(id="job", pod_sets=(pods,), labels=labels)
        jobs.append(Past(at_s, ran_s, ends_s, row["app_name"], request))
    return sorted(jobs, key=lambda job: job.at_s)


def gavel_jobs(text: str) -> list[Past]:
    """The jobs of one list, whose times are in steps."""
    jobs = []
    for line in text.splitlines():
        kind, command, _, _, steps, at_s, gpus = line.split("\t")
        request = JobRequest(
            id="job",
            pod_sets=(PodSet(gpus=int(gpus)),),
            labels={"type": kind},
            run=RunSpec(image="gavel", command=tuple(command.split())),
        )
        jobs.append(Past(float(at_s), float(steps), None, kind, request))
    return sorted(jobs, key=lambda job: job.at_s)


def foretold(jobs: Sequence[Past], learned: float = LEARNED) -> Tested:
    """Estimate each job when it is submitted, and judge those after the first ``learned`` share."""
    durations = Durations()
    means: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=ROLLING))
    open_: list[tuple[float, int]] = []
    foreseen: dict[int, Foreseen | None] = {}
    first = int(len(jobs) * learned)
    ours = rolling = 0.0
    covered = tested = 0

    def end(number: int) -> None:
        job = jobs[number]
        known = foreseen.pop(number)
        if known is not None:
            durations.judge(known, job.ran_s)
        durations.learn(TENANT, job.request, job.at_s, job.ran_s)
        means[job.application].append(job.ran_s)
        means[""].append(job.ran_s)

    for number, job in enumerate(jobs):
        while open_ and open_[0][0] <= job.at_s:
            end(heapq.heappop(open_)[1])
        estimate = durations.estimate(TENANT, job.request)
        past = means.get(job.application) or means.get("")
        if number >= first and estimate is not None and past:
            truth_s = max(1.0, job.ran_s)
            ours += abs(estimate.middle_s - truth_s) / truth_s
            rolling += abs(sum(past) / len(past) - truth_s) / truth_s
            covered += estimate.low_s - 1e-6 <= job.ran_s <= estimate.high_s + 1e-6
            tested += 1
        foreseen[number] = durations.foresee(TENANT, job.request)
        heapq.heappush(open_, (job.at_s if job.ends_s is None else job.ends_s, number))
    return Tested(tested, ours / tested, rolling / tested, covered / tested)


def gavel_lists(folder: Path) -> Iterator[tuple[str, list[Past]]]:
    """The lists that are long enough, by name."""
    for path in sorted(folder.rglob("*.trace")):
        jobs = gavel_jobs(path.read_text())
        if len(jobs) >= LEAST_JOBS:
            yield path.stem, jobs


def _figures(name: str, tests: Iterable[Tested]) -> dict[str, float]:
    """Of all lists together, each job counting once."""
    found = list(tests)
    jobs = sum(one.jobs for one in found)
    ours = sum(one.ours * one.jobs for one in found) / jobs
    rolling = sum(one.rolling * one.jobs for one in found) / jobs
    return {
        f"{name}_jobs_count": float(jobs),
        f"{name}_ours_mape_percent": 100 * ours,
        f"{name}_rolling_mape_percent": 100 * rolling,
        f"{name}_error_below_rolling_percent": 100 * (1 - ours / rolling),
        f"{name}_covered_percent": 100 * sum(one.covered * one.jobs for one in found) / jobs,
    }


def measure() -> dict[str, float]:
    """All figures; nothing where there are no traces."""
    NOTES.clear()
    folder = traces_folder()
    if folder is None:
        NOTES.append(f"no traces: set {TRACES_VARIABLE} to a folder with {DLRM} and {GAVEL}")
        return {}
    figures: dict[str, float] = {}
    if (folder / DLRM).is_file():
        figures |= _figures("dlrm", [foretold(dlrm_jobs((folder / DLRM).read_text()))])
    else:
        NOTES.append(f"no {DLRM} in {folder}")
    tests = []
    for name, jobs in gavel_lists(folder / GAVEL):
        test = foretold(jobs)
        print(
            f"  gavel {name} {test.jobs:5} jobs  ours {100 * test.ours:8.0f} %  rolling "
            f"{100 * test.rolling:8.0f} %  covered {100 * test.covered:5.1f} %",
            flush=True,
        )
        tests.append(test)
    if tests:
        figures |= _figures("gavel", tests)
    else:
        NOTES.append(f"no lists in {folder / GAVEL}")
    return figures

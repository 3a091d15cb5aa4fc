"""How good and how dear the choice by trials is, on Sia's throughput tables.

Each job of Sia's lists has a model and a batch size. It may run on 1, 2, 4 or 8 GPUs of one node of
three kinds, as Sia's heterogeneous cluster has them. The first job of a model and batch size in a
list tries each of these configurations for ``BUDGET_S``; equal jobs after it take its results, as
the gateway does. A trial writes a progress line after each step, whose times vary by ``JITTER``,
and a line is read every 10 s. What a configuration really takes is the table's step time, and the
work of a job is the number of steps until its model's target.

- ``within_5_percent_share``: jobs whose chosen configuration is at most 5 % behind the best in
  hindsight, in steps a second (time) or GPU seconds a step (cost).
- ``cost_percent``: GPU time of the trials, of the GPU time of the jobs in their configurations.
- ``chosen_behind_percent``, ``as_asked_behind_percent``: median distance to the best, of the choice
  and of the baseline: the number of GPUs that the list asks for, on the kind with the most GPUs.
"""

import csv
import math
import random
from bisect import bisect_left
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from berthmaster.lab.simulate.traces import TRACES_VARIABLE
from berthmaster.lib.lifecycle.trials import seconds_a_step
from berthmaster.lib.messages.workload import TrialResult
from scripts.benchmarks.trace_files import traces_folder

FOLDER: Final = "sia"
LISTS: Final = ("philly", "saturn", "newtrace")
GPUS_A_NODE: Final = {"aws": 4, "dgx-ext": 8, "rtx": 8}
SIZES: Final = (1, 2, 4, 8)
BUDGET_S: Final = 45.0
READ_EVERY_S: Final = 10.0
JITTER: Final = 0.03  # standard deviation of a step's time, as a share
GOOD: Final = 1.05
LEAST_SHARE: Final = 0.7  # of the smallest measured batch; below it the table says nothing
BUDGETS: Final = {
    f"{name}_{by}_{what}": limit
    for name in LISTS
    for by in ("time", "cost")
    for what, limit in (("within_5_percent_share", (">=", 1.0)), ("cost_percent", ("<=", 2.0)))
}
NOTES: list[str] = []


class Configuration(NamedTuple):
    """GPUs of one node."""

    kind: str
    gpus: int


class Measured(NamedTuple):
    """One row of a table."""

    batch: int
    step_s: float
    sync_s: float


class Kind(NamedTuple):
    """Jobs with one model and batch size. ``step_s``: by configuration."""

    steps: float
    step_s: dict[Configuration, float]


def rows_of(path: Path) -> dict[str, list[Measured]]:
    """Return a table's rows by placement, smallest batch first."""
    found: dict[str, list[Measured]] = {}
    for row in csv.DictReader(path.read_text().splitlines()):
        measured = Measured(
            int(float(row["local_bsz"])), float(row["step_time"]), float(row["sync_time"])
        )
        found.setdefault(row["placement"], []).append(measured)
    return {placement: sorted(rows) for placement, rows in found.items()}


def step_time_s(rows: list[Measured], batch: float) -> float | None:
    """Return the time of a step with so many samples a GPU; batches that do not fit are
    accumulated, with one synchronisation. None below the measured batches.
    """
    passes = max(1, math.ceil(batch / rows[-1].batch))
    part = batch / passes
    if part < LEAST_SHARE * rows[0].batch:
        return None
    at = bisect_left([row.batch for row in rows], part)
    high = rows[min(at, len(rows) - 1)]
    low = rows[max(at - 1, 0)]
    share = (part - low.batch) / (high.batch - low.batch) if high.batch > low.batch else 0.0
    share = min(max(share, 0.0), 1.0)
    step_s = low.step_s + share * (high.step_s - low.step_s)
    sync_s = low.sync_s + share * (high.sync_s - low.sync_s)
    return step_s + (passes - 1) * (step_s - sync_s)


def steps_of(folder: Path, batch: int) -> float:
    """Return the steps to the target, from the measured batch size nearest to this one."""
    sizes = {int(path.stem.partition("-")[2]): path for path in folder.glob("validation-*.csv")}
    nearest = min(sizes, key=lambda size: abs(math.log(size / batch)))
    last = list(csv.DictReader(sizes[nearest].read_text().splitlines()))[-1]
    return float(last["iteration"]) * nearest / batch


def kind_of(folder: Path, batch: int) -> Kind:
    step_s: dict[Configuration, float] = {}
    for kind, most in GPUS_A_NODE.items():
        table = folder / f"placements-{kind}.csv"
        rows = rows_of(table) if table.exists() else {}
        for gpus in SIZES:
            if gpus <= most and str(gpus) in rows:
                seconds = step_time_s(rows[str(gpus)], batch / gpus)
                if seconds is not None:
                    step_s[Configuration(kind, gpus)] = seconds
    return Kind(steps_of(folder, batch), step_s)


def tried(step_s: float, chance: random.Random) -> TrialResult:
    """Return what the progress lines of a trial show."""
    lines: list[tuple[float, int]] = []  # time and step, as read
    at_s, step, read_at_s = 0.0, 0, READ_EVERY_S
    while at_s < BUDGET_S:
        before = at_s, step
        at_s += step_s * max(0.1, chance.gauss(1.0, JITTER))
        while read_at_s < at_s and read_at_s <= BUDGET_S:
            if step and before not in lines:
                lines.append(before)
            read_at_s += READ_EVERY_S
        step += 1
    if len(lines) < 2:
        return TrialResult(ended="stopped")
    (began_s, first), (ended_s, last) = lines[0], lines[-1]
    return TrialResult(ended="stopped", steps_per_s=(last - first) / (ended_s - began_s))


class Outcome(NamedTuple):
    """Sums of one list."""

    good: int
    jobs: int
    trials_gpu_s: float
    jobs_gpu_s: float
    behind: list[float]  # of the choice, as a multiple of the best
    asked_behind: list[float]


def run(root: Path, name: str, by: str) -> Outcome:
    good = jobs = 0
    trials_gpu_s = jobs_gpu_s = 0.0
    behind: list[float] = []
    asked_behind: list[float] = []
    kinds: dict[tuple[str, int], Kind] = {}
    for path in sorted((root / "workloads" / name).glob("*.csv")):
        chance = random.Random(path.stem)
        known: dict[tuple[str, int], Configuration] = {}
        for row in csv.DictReader(path.read_text().splitlines()):
            of = row["application"], int(row["batch_size"])
            if of not in kinds:
                kinds[of] = kind_of(root / "throughput" / of[0], of[1])
            kind = kinds[of]
            if not kind.step_s:
                continue
            each = list(kind.step_s)
            weight = {one: 1.0 if by == "time" else float(one.gpus) for one in each}
            if of not in known:
                steps_s = seconds_a_step([tried(kind.step_s[one], chance) for one in each])
                values = {
                    one: seconds * weight[one]
                    for one, seconds in zip(each, steps_s, strict=True)
                    if seconds is not None
                }
                known[of] = min(values, key=values.__getitem__) if values else each[0]
                trials_gpu_s += BUDGET_S * sum(one.gpus for one in each)
            chosen = known[of]
            truth = {one: kind.step_s[one] * weight[one] for one in each}
            best = min(truth.values())
            jobs += 1
            good += truth[chosen] <= GOOD * best
            behind.append(truth[chosen] / best)
            asked_behind.append(truth[as_asked(each, int(row["num_replicas"]))] / best)
            jobs_gpu_s += kind.steps * kind.step_s[chosen] * chosen.gpus
    return Outcome(good, jobs, trials_gpu_s, jobs_gpu_s, behind, asked_behind)


def as_asked(each: list[Configuration], gpus: int) -> Configuration:
    """Return the configuration nearest to the list's number of GPUs, on the largest kind."""
    return min(each, key=lambda one: (abs(one.gpus - gpus), -GPUS_A_NODE[one.kind], one.kind))


def measure() -> dict[str, float]:
    NOTES.clear()
    folder = traces_folder(FOLDER)
    if folder is None:
        NOTES.append(f"Sia's tables are not there; {TRACES_VARIABLE} names their folder")
        return {}
    figures: dict[str, float] = {}
    for name in LISTS:
        for by in ("time", "cost"):
            found = run(folder / FOLDER, name, by)
            figures |= {
                f"{name}_{by}_within_5_percent_share": found.good / found.jobs,
                f"{name}_{by}_cost_percent": 100 * found.trials_gpu_s / found.jobs_gpu_s,
                f"{name}_{by}_chosen_behind_percent": 100 * (median(found.behind) - 1),
                f"{name}_{by}_as_asked_behind_percent": 100 * (median(found.asked_behind) - 1),
            }
    return figures

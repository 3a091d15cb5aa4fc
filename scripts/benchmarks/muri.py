"""Muri's traces 1 and 3 on 8 nodes x 8 GPUs: published, reproduced, and ours without preemption.

Muri (SIGCOMM'22) published the averages of preemptive policies by its own simulator; ``srtf`` and
``srsf`` reproduce them with its iteration factor and restart overheads. Ours is the resolver's own
core; fifo, sjf (the first holds up all others) and easy know the same of durations as ours:

- ``exact``: what a job takes;
- ``factor-two``: that times 2**u, u uniform from -1 to 1, the same draw for all policies; five
  seeds, each printed, and their averages compared;
- ``unknown``: nothing. All predict with lib/engine/queueing/expectations.py from jobs that had
  ended: ours and sjf
  for their order, ours and easy for when room becomes free and who may go before. Ours does so
  again while a job waits, the others when it comes.

Ahead is how much less ours has than the best of fifo, sjf and easy, in per cent of that.

Policies that stop jobs at will are another class. Ours is set beside them all the same, as the
ratio of mean completions: to ``srsf`` where durations are known, and where they are not to the best
of Tiresias (``las2d``), Themis and AntMan's opportunistic starting, which without shared GPUs and
quotas is ``bestfit`` (preemptive.py says what is played of the others). At most 0.95
and 0.7 are wanted of an order that stops jobs too: so ours is measured once more (``equals``) with
a queue whose jobs may stop each other, checkpoints every ``interval`` of the trace, and the
resolver told how long jobs take to start on average.
"""

import csv
from collections.abc import Sequence

import msgspec

from berthmaster.lab.simulate import ours
from berthmaster.lab.simulate.compare import play
from berthmaster.lab.simulate.figures import RunSummary, summarize
from berthmaster.lab.simulate.model import Job, Knowing, told
from berthmaster.lab.simulate.traces import (
    MURI,
    MURI_FLEET,
    TRACES_VARIABLE,
    fleet_named,
    parse_muri,
)
from berthmaster.lib.messages.control import QueueSetting
from scripts.benchmarks import preemptive
from scripts.benchmarks.trace_files import traces_folder

PUBLISHED_S = {
    ("muri-1", "srtf"): 1_370_603.0,
    ("muri-1", "srsf"): 980_141.0,
    ("muri-3", "srtf"): 193_082.0,
    ("muri-3", "srsf"): 185_022.0,
}
ALSO_PUBLISHED = (
    "published averages in s, traces 1/3: Muri-S 867706/85503, Muri-L 1072010/88687, Tiresias "
    "3330371/347213, AntMan 5476391/305454, Themis 1823179/397059 (all preemptive or sharing GPUs)"
)
WITHOUT_PREEMPTION = ("berthmaster", "fifo", "sjf", "easy")
RIVALS = ("fifo", "sjf", "easy")
WITHOUT_DURATIONS = ("las2d", "themis", "bestfit")
SEEDS = (1, 2, 3, 4, 5)
KNOWING: tuple[Knowing, ...] = ("exact", "factor-two", "unknown")
BUDGETS = {
    f"{trace}_{policy}_off_percent".replace("-", "_"): ("<=", 1.0) for trace, policy in PUBLISHED_S
} | {
    f"{trace}_{knowing}_{what}_ahead_percent".replace("-", "_"): (">=", 0.0)
    for trace in MURI
    for knowing in KNOWING
    for what in ("completion", "wait_p99")
}
BUDGETS |= {
    f"{trace}_{against}_ratio".replace("-", "_"): ("<=", most)
    for trace in MURI
    for against, most in (
        ("exact_equals_to_srsf", 0.95),
        ("unknown_equals_to_best_preemptive", 0.7),
    )
}
NOTES: list[str] = []


def measure() -> dict[str, float]:
    """All policies on both traces; nothing where there are no traces."""
    NOTES[:] = [ALSO_PUBLISHED]
    folder = traces_folder(MURI["muri-1"])
    if folder is None:
        NOTES.append(f"no traces: set {TRACES_VARIABLE} to a folder with {MURI['muri-1']}")
        return {}
    figures: dict[str, float] = {}
    for trace, path in MURI.items():
        jobs = parse_muri((folder / path).read_text())
        for policy in ("srtf", "srsf"):
            average_s = run(policy, told(jobs, "exact", 0)).completion.mean_s
            published_s = PUBLISHED_S[trace, policy]
            figures[f"{trace}_{policy}_published_s"] = published_s
            figures[f"{trace}_{policy}_completion_s"] = average_s
            figures[f"{trace}_{policy}_off_percent"] = 100 * abs(average_s / published_s - 1)
        for knowing in KNOWING:
            figures |= compared(trace, jobs, knowing)
        figures |= stopping_equals(trace, checkpointed((folder / path).read_text(), jobs))
        figures |= beside_preemptive(trace, jobs, figures)
    return {name.replace("-", "_"): figure for name, figure in figures.items()}


def run(policy: str, jobs: list[Job]) -> RunSummary:
    """One policy on the fleet of the protocol."""
    fleet = fleet_named(MURI_FLEET, clusters=1, nodes=None)
    player = preemptive.play if policy in preemptive.POLICIES else play
    return summarize(player(policy, fleet, jobs))


def checkpointed(text: str, jobs: Sequence[Job]) -> list[Job]:
    """Each writes a checkpoint every ``interval`` of the trace, in milliseconds; where that is 0,
    every time that the trace's mean is."""
    rows = csv.DictReader(text.splitlines())
    every_s = {f"job-{int(row['job_id'])}": float(row["interval"]) / 1000 for row in rows}
    mean_s = sum(every_s.values()) / len(every_s)

    def with_checkpoints(job: Job) -> Job:
        every = every_s[job.request.id] or mean_s
        return job._replace(request=msgspec.structs.replace(job.request, checkpoint_every_s=every))

    return [with_checkpoints(job) for job in jobs]


def mean_restart_s(jobs: Sequence[Job]) -> float:
    """What an operator would tell the resolver."""
    return sum(job.overhead_s for job in jobs) / len(jobs)


def stopping_equals(trace: str, jobs: Sequence[Job]) -> dict[str, float]:
    """Ours, of a queue whose jobs may stop each other."""
    policy = msgspec.structs.replace(ours.POLICY, restart_s=mean_restart_s(jobs))
    queues = [QueueSetting(queue="default", preempts_equals=True)]
    fleet = fleet_named(MURI_FLEET, clusters=1, nodes=None)
    figures = {}
    both: tuple[Knowing, ...] = ("exact", "unknown")
    for knowing in both:
        played = ours.run(fleet, told(jobs, knowing, 0), policy=policy, queues=queues)
        average_s = summarize(played).completion.mean_s
        figures[f"{trace}_{knowing}_equals_completion_s"] = average_s
        print(f"  {trace} {knowing:10} {'equals':11} completion {average_s:12,.0f} s", flush=True)
    return figures


def beside_preemptive(trace: str, jobs: list[Job], known: dict[str, float]) -> dict[str, float]:
    """Ours, whose figures are known, as a share of what policies come to that stop jobs."""
    figures = {}
    for policy in WITHOUT_DURATIONS:
        average_s = run(policy, told(jobs, "unknown", 0)).completion.mean_s
        figures[f"{trace}_unknown_{policy}_completion_s"] = average_s
        print(f"  {trace} unknown    {policy:11} completion {average_s:12,.0f} s", flush=True)
    srsf_s = known[f"{trace}_srsf_completion_s"]
    best_s = min(figures[f"{trace}_unknown_{policy}_completion_s"] for policy in WITHOUT_DURATIONS)
    for who, which in (("berthmaster", ""), ("equals", "_equals")):
        known_s = known[f"{trace}_exact_{who}_completion_s"]
        figures[f"{trace}_exact{which}_to_srsf_ratio"] = known_s / srsf_s
        unknown_s = known[f"{trace}_unknown_{who}_completion_s"]
        figures[f"{trace}_unknown{which}_to_best_preemptive_ratio"] = unknown_s / best_s
    return figures


def compared(trace: str, jobs: list[Job], knowing: Knowing) -> dict[str, float]:
    """Ours beside those that do not stop jobs either, and how far it is ahead of the best."""
    seeds = SEEDS if knowing == "factor-two" else SEEDS[:1]
    completion, wait_p99 = {}, {}
    for policy in WITHOUT_PREEMPTION:
        runs = [run(policy, told(jobs, knowing, seed)) for seed in seeds]
        completion[policy] = sum(one.completion.mean_s for one in runs) / len(runs)
        wait_p99[policy] = sum(one.wait.p99_s for one in runs) / len(runs)
        each = "  ".join(f"{one.completion.mean_s:,.0f}/{one.wait.p99_s:,.0f}" for one in runs)
        print(
            f"  {trace} {knowing:10} {policy:11} completion {completion[policy]:12,.0f} s  "
            f"wait p99 {wait_p99[policy]:12,.0f} s" + (f"  each {each}" if len(runs) > 1 else ""),
            flush=True,
        )
    for what, values in (("completion", completion), ("wait p99", wait_p99)):
        beaten = [rival for rival in RIVALS if values["berthmaster"] < values[rival]]
        lost = [rival for rival in RIVALS if rival not in beaten]
        verdict = "ahead of fifo, sjf and easy" if len(beaten) == len(RIVALS) else "NOT AHEAD"
        print(f"  {trace} {knowing:10} {what}: {verdict}; behind: {', '.join(lost) or 'nobody'}")
    figures = {}
    for what, values in (("completion", completion), ("wait_p99", wait_p99)):
        ours, best = values["berthmaster"], min(values[rival] for rival in RIVALS)
        for policy, value in values.items():
            figures[f"{trace}_{knowing}_{policy}_{what}_s"] = value
        figures[f"{trace}_{knowing}_{what}_ahead_percent"] = 100 * (1 - ours / best)
    return figures

"""Thousands of simulated worlds: how many steps a second, and whether any seed finds a fault.

Part ``seeds``: worlds of seconds and minutes. Part ``hours``: a hundred thousand simulated hours,
fleets of long jobs (tests/simulation/pace.py says what is stretched there, and what is not) in turn
with worlds of minutes; it takes an hour or two of one core, keeps what it has done in a file, and
goes on there when it is started again on the same tree. Other seeds than those of the tests, unless
told otherwise. A seed that fails is named; its story is told by
``python -m tests.simulation SEED [--pace slow]``.
"""

import argparse
import hashlib
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec

from tests.simulation.many import CHUNK, outcome_of, outcomes_of
from tests.simulation.pace import FAST, in_turn
from tests.simulation.world import Outcome

FIRST_SEED = 100_000
FIRST_SLOW_SEED = 5_000_000
SEEDS = 2000
HOURS = 100_000.0
PROCESSES = 2
PARTS = ("seeds", "hours")
BUDGETS = {"failures_count": ("<=", 0.0)}
KEPT: Final = Path.home() / ".cache" / "berthmaster" / "simulated-hours.json"
SHOWN_S: Final = 60.0  # between two lines of progress that nobody watches
KEPT_S: Final = 10.0
ROOT: Final = Path(__file__).parents[2]


class Told(msgspec.Struct):
    """What worlds have shown so far."""

    tree: str = ""  # digest of the code that they were run with
    next_seed: int = 0
    seeds: int = 0
    took_s: float = 0.0
    cpu_s: float = 0.0
    virtual_s: float = 0.0
    counts: dict[str, int] = {}
    failed: list[int] = []

    def take(self, outcome: Outcome) -> None:
        """One more world."""
        self.next_seed = outcome.seed + 1
        self.seeds += 1
        self.virtual_s += outcome.passed_s
        counts = Counter(self.counts)
        counts.update(outcome.seen)
        counts["steps"] += outcome.steps
        counts["events"] += outcome.events
        counts["decisions"] += outcome.decisions
        self.counts = dict(counts)
        if outcome.finding is not None:
            self.failed.append(outcome.seed)

    def figures(self) -> dict[str, float]:
        """Everything that is told of it."""
        counts = Counter(self.counts)
        return {
            "seeds_count": float(self.seeds),
            "failures_count": float(len(self.failed)),
            "first_failed_seed": float(self.failed[0]) if self.failed else -1.0,
            "seeds_per_s": self.seeds / self.took_s,
            "steps_per_s": counts["steps"] / self.took_s,
            "steps_count": float(counts["steps"]),
            "events_count": float(counts["events"]),
            "decisions_count": float(counts["decisions"]),
            "jobs_count": float(counts["Submitted"]),
            "refused_commits_count": float(counts["refused commits"]),
            "void_events_count": float(counts["verdict void"]),
            "lies_count": float(counts["lies"]),
            "kills_count": float(counts["kills"]),
            "damages_count": float(counts["damages"]),
            "recoveries_count": float(counts["recoveries"]),
            "misfortunes_count": float(counts["misfortunes"]),
            "faults_per_hour": (counts["misfortunes"] + counts["lies"]) / (self.virtual_s / 3600),
            "virtual_hours": self.virtual_s / 3600,
            "took_s": self.took_s,
            "cpu_s": self.cpu_s,
        }


def measure(part: str = "seeds") -> dict[str, float]:
    """One of the parts."""
    return hours() if part == "hours" else seeds()


def seeds(
    number: int = SEEDS, first: int = FIRST_SEED, processes: int = PROCESSES
) -> dict[str, float]:
    """Run so many worlds, from seed ``first`` on."""
    told = Told()
    began_s = time.perf_counter()
    for outcome in outcomes_of(range(first, first + number), processes):
        told.take(outcome)
        _name(outcome)
        told.took_s = time.perf_counter() - began_s
        if told.seeds % CHUNK == 0 or told.seeds == number:
            line = f"\rsimulation: {told.seeds} of {number} seeds, {len(told.failed)} failed"
            print(line, end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return told.figures()


def hours(
    number: float = HOURS, first: int = FIRST_SLOW_SEED, kept: Path = KEPT
) -> dict[str, float]:
    """Run worlds until so many hours have been simulated, from where ``kept`` ends.
    In this process: whoever starts it says by its priority how much of a core it may have."""
    told = _kept(kept, first)
    wall_s, cpu_s = time.monotonic() - told.took_s, time.process_time() - told.cpu_s
    kept_s = shown_s = time.monotonic()
    while told.virtual_s < 3600 * number:
        pace = in_turn(told.next_seed)
        outcome = outcome_of(told.next_seed, pace)
        told.take(outcome)
        _name(outcome, "" if pace == FAST else "--pace slow")
        now_s = time.monotonic()
        told.took_s, told.cpu_s = now_s - wall_s, time.process_time() - cpu_s
        if now_s - kept_s >= KEPT_S:
            kept_s = now_s
            _keep(kept, told)
        if now_s - shown_s >= (1.0 if sys.stderr.isatty() else SHOWN_S):
            shown_s = now_s
            _show(told, number)
    _keep(kept, told)
    _show(told, number)
    return told.figures()


def _name(outcome: Outcome, how: str = "") -> None:
    if outcome.finding is not None:
        story = "\n".join(outcome.story)
        print(f"\nseed {outcome.seed} {how}: {outcome.finding.rule}\n{story}", file=sys.stderr)


def _show(told: Told, number: float) -> None:
    line = (
        f"simulation: {told.virtual_s / 3600:,.0f} of {number:,.0f} hours in {told.took_s:,.0f} s, "
        f"{told.cpu_s:,.0f} s of a processor, {told.seeds:,} seeds, {len(told.failed)} failed"
    )
    before, behind = ("\r", "") if sys.stderr.isatty() else ("", "\n")
    print(f"{before}{line}", end=behind, file=sys.stderr, flush=True)


def _kept(kept: Path, first: int) -> Told:
    """What was run before on this tree, or the beginning."""
    tree = _tree()
    try:
        told = msgspec.json.decode(kept.read_bytes(), type=Told)
    except FileNotFoundError:
        told = Told()
    except msgspec.DecodeError as error:
        print(f"{kept} cannot be read ({error}): beginning anew", file=sys.stderr)
        told = Told()
    if told.seeds and told.tree == tree:
        print(f"going on behind {told.seeds:,} seeds, see {kept}", file=sys.stderr)
        return told
    if told.seeds:
        print(f"{kept} is of another tree: beginning anew", file=sys.stderr)
    return Told(tree=tree, next_seed=first)


def _keep(kept: Path, told: Told) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    beside = kept.with_suffix(".new")
    beside.write_bytes(msgspec.json.encode(told))
    beside.replace(kept)


def _tree() -> str:
    """Of all code that a world consists of."""
    total = hashlib.blake2b(digest_size=16)
    for folder in ("services/berthmaster", "tests/simulation"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            total.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return total.hexdigest()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--hours", type=float, help="to be simulated, instead of seeds")
    parser.add_argument("--first", type=int, help="the first seed")
    parser.add_argument("--kept", type=Path, default=KEPT, help="where hours go on")
    args = parser.parse_args()
    if args.hours is not None:
        figures = hours(args.hours, args.first or FIRST_SLOW_SEED, args.kept)
    else:
        figures = seeds(args.seeds, args.first or FIRST_SEED)
    for name, figure in figures.items():
        print(f"{name:30} {figure:14,.2f}")

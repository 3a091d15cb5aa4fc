"""Thousands of simulated worlds: how many steps a second, and whether any seed finds a fault.

Other seeds than those of the tests, unless told otherwise. A seed that fails is named; its story is
told by ``python -m tests.simulation SEED``.
"""

import argparse
import sys
import time
from collections import Counter

from tests.simulation.many import CHUNK, outcomes_of
from tests.simulation.world import Outcome

FIRST_SEED = 100_000
SEEDS = 2000
PROCESSES = 2
BUDGETS = {"failures_count": ("<=", 0.0)}


def measure(
    seeds: int = SEEDS, first: int = FIRST_SEED, processes: int = PROCESSES
) -> dict[str, float]:
    """Run so many worlds, from seed ``first`` on."""
    began_s = time.perf_counter()
    totals: Counter[str] = Counter()
    passed_s = 0.0
    failed: list[int] = []
    for done, outcome in enumerate(outcomes_of(range(first, first + seeds), processes), 1):
        passed_s += outcome.passed_s
        _count(totals, outcome)
        if outcome.finding is not None:
            failed.append(outcome.seed)
            print(f"\nseed {outcome.seed}: {outcome.finding.rule}", file=sys.stderr)
        if done % CHUNK == 0 or done == seeds:
            line = f"\rsimulation: {done} of {seeds} seeds, {len(failed)} failed"
            print(line, end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    took_s = time.perf_counter() - began_s
    return {
        "seeds_count": float(seeds),
        "failures_count": float(len(failed)),
        "first_failed_seed": float(failed[0]) if failed else -1.0,
        "seeds_per_s": seeds / took_s,
        "steps_per_s": totals["steps"] / took_s,
        "events_count": float(totals["events"]),
        "decisions_count": float(totals["decisions"]),
        "refused_commits_count": float(totals["refused commits"]),
        "void_events_count": float(totals["verdict void"]),
        "kills_count": float(totals["kills"]),
        "virtual_hours": passed_s / 3600,
    }


def _count(totals: Counter[str], outcome: Outcome) -> None:
    totals.update(outcome.seen)
    totals["steps"] += outcome.steps
    totals["events"] += outcome.events
    totals["decisions"] += outcome.decisions


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first", type=int, default=FIRST_SEED)
    args = parser.parse_args()
    for name, figure in measure(args.seeds, args.first).items():
        print(f"{name:30} {figure:12.2f}")

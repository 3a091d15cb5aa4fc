"""Many seeds on several processors. In a module of its own, so that new processes can import it."""

import multiprocessing
from collections.abc import Iterable, Iterator
from functools import partial

from tests.simulation.pace import FAST, Pace
from tests.simulation.world import Outcome, reduced, run

CHUNK = 10


def outcome_of(seed: int, pace: Pace = FAST) -> Outcome:
    """One seed; if it fails, with as few faults as it needs."""
    outcome = run(seed, pace=pace)
    return outcome if outcome.finding is None else reduced(outcome, pace=pace)


def outcomes_of(
    seeds: Iterable[int], processes: int = 2, *, pace: Pace = FAST
) -> Iterator[Outcome]:
    if processes == 1:
        yield from (outcome_of(seed, pace) for seed in seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(partial(outcome_of, pace=pace), seeds, CHUNK)

"""Many seeds on several processors. In a module of its own, so that new processes can import it."""

import multiprocessing
from collections.abc import Iterable, Iterator
from functools import partial

from tests.simulation.faults import BALANCING, DAMAGE, Faults
from tests.simulation.pace import FAST, Pace
from tests.simulation.world import Outcome, reduced, run

CHUNK = 10


def outcome_of(seed: int, pace: Pace = FAST) -> Outcome:
    """One seed; if it fails, with as few faults as it needs. Damage is played beside all faults but
    in the crowds of small jobs that are balanced."""
    crowded = set(BALANCING) & set(Faults(seed).kinds)
    outcome = run(seed, DAMAGE if crowded else (), pace=pace)
    return outcome if outcome.finding is None else reduced(outcome, pace=pace)


def outcomes_of(
    seeds: Iterable[int], processes: int = 2, *, pace: Pace = FAST
) -> Iterator[Outcome]:
    """In order, as they come."""
    if processes == 1:
        yield from (outcome_of(seed, pace) for seed in seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(partial(outcome_of, pace=pace), seeds, CHUNK)

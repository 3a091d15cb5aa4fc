"""Many seeds on several processors. In a module of its own, so that new processes can import it."""

import multiprocessing
from collections.abc import Iterable, Iterator

from tests.simulation.world import Outcome, reduced, run

CHUNK = 10


def outcome_of(seed: int) -> Outcome:
    """One seed; if it fails, with as few faults as it needs."""
    outcome = run(seed)
    return outcome if outcome.finding is None else reduced(outcome)


def outcomes_of(seeds: Iterable[int], processes: int = 2) -> Iterator[Outcome]:
    """In order, as they come."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(outcome_of, seeds, CHUNK)

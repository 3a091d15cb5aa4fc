"""Hundreds of worlds, each from its seed; one that fails tells its story and how to repeat it."""

from collections import Counter

import pytest

from tests.simulation.faults import DAMAGE, KINDS, PROCESSES
from tests.simulation.many import outcomes_of
from tests.simulation.world import run

SEEDS = 200
DAMAGED = 40  # half of them are


@pytest.mark.timeout(1800)
def test_whatever_befalls_the_services_every_invariant_holds() -> None:
    outcomes = list(outcomes_of(range(SEEDS)))
    for outcome in outcomes:
        if outcome.finding is not None:
            print("\n".join(outcome.story))
    failed = [outcome.seed for outcome in outcomes if outcome.finding is not None]
    assert not failed, f"tell a story by: python -m tests.simulation {failed[0]}"

    # And all of this did happen on the way, else the above would say little.
    seen: Counter[str] = Counter()
    for outcome in outcomes:
        seen.update(outcome.seen)
    for what in (
        "Succeeded",
        "Failed",
        "Cancelled",
        "Evicted",
        "Withdrawn",
        "CancelRequested",
        "Reprioritized",
        "ResizeRequested",
        "Resized",
        "verdict void",
        "lies",
        "doubtful",
        "refused commits",
        "deadline by the resolver",
        "kills",
        "gangs",
        "gangs of several shapes",
        "borrowed",
        "room kept",
        "backfilled",
        "guessed anew",
        "reserved by an estimate",
        "rebalanced",
        "recoveries",
        "Carried",
        "recovery: claimed",
        "recovery: queued",
    ):
        assert seen[what] >= SEEDS / 50, f"{what}: {seen[what]} times in {SEEDS} seeds"


def test_damaged_log_is_noticed_and_recovered() -> None:
    outcomes = [run(seed, set(KINDS) - {*DAMAGE, *PROCESSES}) for seed in range(DAMAGED)]
    assert [(one.seed, one.finding) for one in outcomes if one.finding is not None] == []
    seen: Counter[str] = Counter()
    for outcome in outcomes:
        seen.update(outcome.seen)
    for what in ("recoveries", "unrecovered", "recovery: claimed", "recovery: queued"):
        assert seen[what] >= DAMAGED / 10, f"{what}: {seen[what]} times in {DAMAGED} seeds"


def test_a_seed_gives_the_same_world_each_time() -> None:
    for seed in (3, 4):
        assert run(seed) == run(seed)


def test_a_kind_of_fault_that_is_switched_off_does_not_happen() -> None:
    assert run(4, ("crash", "void", "damage")).seen["kills"] == 0

"""Who is due first: by size, sooner where everybody waits, and never never."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.lib.engine.queueing.lines import (
    EXPECTED,
    KEEP_LEFT,
    LEAST_PATIENCE_S,
    NO_OUTLOOK,
    STATED,
    STEP,
    Outlook,
    Rank,
    gpu_share,
    left_places,
    outlook,
    place,
    service_gpu_s,
)
from tests.support.builders import job, pod_set

AMOUNTS = st.floats(0, 1e12)
STRETCH, PATIENCE, AHEAD, KEEP_STRETCH, KEEP_PATIENCE, _ = STATED


def test_a_job_is_as_large_as_the_gpus_of_all_its_pods_or_as_its_cpu_is_worth() -> None:
    gang = job("gang", pod_sets=(pod_set(count=3, gpus=8), pod_set(name="b", count=2, gpus=1)))
    assert gpu_share(gang) == 26
    assert gpu_share(job("part", gpus=1, gpu_milli=250)) == 0.25
    assert gpu_share(job("cpu", gpus=0, cpu_milli=6000)) == 0.5
    assert service_gpu_s(gang, 100.0) == 2600


def test_small_jobs_pass_large_ones_until_those_have_waited_as_long_as_their_size() -> None:
    large = place(1000, 0.0, 8)
    due_at_s = STRETCH * 1000
    assert large == Rank(due_at_s, keep_at_s=KEEP_STRETCH * 1000, firm_at_s=due_at_s)
    assert place(10, 100.0, 1) < large
    assert place(10, STRETCH * 1000, 1) > large


def test_where_everybody_waits_nobody_waits_longer_than_the_backlog_and_wide_jobs_less() -> None:
    seen = Outlook(patience_s=1000, gpus=64)
    most_s = PATIENCE * 1000
    assert place(1e9, 50.0, 0, seen).due_at_s == 50 + most_s
    assert place(1e9, 50.0, 32, seen).due_at_s == 50 + most_s / 4 - AHEAD * 500
    assert place(1e9, 50.0, 64, seen).due_at_s == 50 - AHEAD * 1000
    assert place(1e9, 50.0, 999, seen) == place(1e9, 50.0, 64, seen)
    assert place(1, 50.0, 0, seen).due_at_s == 50 + STRETCH


def test_a_wide_job_takes_the_room_that_another_one_leaves_before_an_older_narrow_one() -> None:
    seen = Outlook(patience_s=1000, gpus=64)
    assert place(1e6, 500.0, 32, seen) < place(1e6, 0.0, 8, seen)
    assert place(1e6, 5000.0, 32, seen) > place(1e6, 0.0, 8, seen)
    # Nobody stands before all others because the backlog cannot be told.
    assert place(math.inf, 5.0, 32, Outlook(math.inf, 64)) == Rank(math.inf, math.inf, math.inf)


def test_where_a_duration_is_only_expected_wide_jobs_are_further_ahead() -> None:
    seen = Outlook(patience_s=1000, gpus=64)
    small, large = (place(gpu_s, 0.0, 0, seen, stated=False).due_at_s for gpu_s in (10, 1e7))
    assert 0 < small == EXPECTED.stretch * 10 < large == EXPECTED.patience * 1000
    wide = place(1e7, 0.0, 32, seen, stated=False)
    assert wide < place(1e7, 0.0, 32, seen)


def test_expected_duration_keeps_reserved_room_firm() -> None:
    seen = Outlook(patience_s=1000, gpus=64, left_gpu_s=1e6)
    for gpu_s in (10, 1e7):
        found = place(gpu_s, 0.0, 8, seen, stated=False)
        assert found.firm_at_s == found.keep_at_s
        assert found.keep_at_s == EXPECTED.keep_patience * 1000
        assert found.due_at_s <= EXPECTED.patience * 1000


def test_room_is_kept_before_a_job_is_due_and_not_before_it_has_waited_its_share() -> None:
    seen = Outlook(patience_s=1000, gpus=64)
    assert place(100, 50.0, 8, seen).keep_at_s == 50 + KEEP_STRETCH * 100
    assert place(1e9, 50.0, 8, seen).keep_at_s == 50 + KEEP_PATIENCE * 1000
    assert place(1e9, 50.0, 64, seen).keep_at_s == 50 + KEEP_PATIENCE * 1000


def test_who_is_left_behind_is_due_by_its_size_whatever_the_backlog() -> None:
    seen = Outlook(patience_s=1000, gpus=64, left_gpu_s=1e6)
    assert place(1e6, 0.0, 0, seen).due_at_s == PATIENCE * 1000
    left = place(1e6 + 1, 0.0, 0, seen)
    due_at_s = STRETCH * (1e6 + 1)
    assert left == Rank(due_at_s, keep_at_s=KEEP_LEFT * (1e6 + 1), firm_at_s=due_at_s)


def test_seven_jobs_in_a_thousand_may_be_left_behind_and_those_who_were_count() -> None:
    assert [left_places(jobs, 0) for jobs in (0, 1, 142, 143, 1000)] == [0, 1, 1, 2, 7]
    assert [left_places(1000, late) for late in (3, 7, 8)] == [4, 0, 0]


def test_patience_is_the_time_that_the_fleet_needs_in_steps_of_a_tenth() -> None:
    seen = outlook(64_000, 64)
    assert seen.patience_s == pytest.approx(1000, rel=STEP - 1)
    assert outlook(64_100, 64) == seen
    assert outlook(2 * 64_000, 64).patience_s > seen.patience_s
    assert outlook(0, 64, 5.0) == Outlook(LEAST_PATIENCE_S, 64, 5.0)
    assert outlook(1, 0) == Outlook(LEAST_PATIENCE_S, 0)
    assert outlook(math.inf, 64).patience_s == math.inf
    assert outlook(math.nan, 64).patience_s == LEAST_PATIENCE_S


@given(
    service=AMOUNTS,
    at_s=AMOUNTS,
    gpus=st.floats(0, 1e6),
    open_s=AMOUNTS,
    fleet=AMOUNTS,
    stated=st.booleans(),
)
def test_nobody_is_due_later_than_its_size_says_and_only_the_wide_before_they_come(
    service: float, at_s: float, gpus: float, open_s: float, fleet: float, stated: bool
) -> None:
    for seen in (NO_OUTLOOK, outlook(open_s, fleet), outlook(open_s, fleet, 0.0)):
        found = place(service, at_s, gpus, seen, stated=stated)
        terms = STATED if stated else EXPECTED
        assert at_s <= found.keep_at_s <= at_s + terms.keep_stretch * service
        assert found.keep_at_s <= found.firm_at_s or stated
        assert found.due_at_s <= at_s + terms.stretch * service
        if not gpus and seen.gpus:
            assert found.due_at_s >= at_s
        elif seen.patience_s < math.inf:
            assert found.due_at_s >= at_s - terms.ahead * seen.patience_s


@given(service=AMOUNTS, first_s=AMOUNTS, later_s=st.floats(0, 1e9), open_s=AMOUNTS)
def test_of_two_equal_jobs_the_first_goes_first(
    service: float, first_s: float, later_s: float, open_s: float
) -> None:
    seen = outlook(open_s, 64)
    assert place(service, first_s, 8, seen) <= place(service, first_s + later_s, 8, seen)


def test_the_dial_lets_small_jobs_go_before_wide_and_old_ones() -> None:
    """A wide job, an old one of 16 GPUs and a small one that has just come, on 64 GPUs."""

    def first(short_first: float) -> list[str]:
        seen = Outlook(3600.0, 64.0, short_first=short_first)
        found = {
            "wide": place(32 * 3600.0, 7000.0, 32.0, seen),
            "old": place(16 * 3600.0, 0.0, 16.0, seen),
            "small": place(3600.0, 7500.0, 1.0, seen),
        }
        return sorted(found, key=lambda name: found[name])

    assert first(0.0) == ["old", "wide", "small"]
    assert first(1.0) == ["small", "old", "wide"]
    # The more it leans, the longer may others wait before they are due.
    waits = [
        place(1e6, 0.0, 1.0, Outlook(3600.0, 64.0, short_first=dial)).due_at_s
        for dial in (0.0, 0.3, 0.6, 0.9, 1.0)
    ]
    assert waits == sorted(waits)
    assert waits[-1] < float("inf")

"""When a difference is worth a write; the laws hold for whatever the numbers do."""

from itertools import pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berthmaster.lib.ocm.core.pace import CONFLICTS, LARGE, SMALL, Pace, Rules

RULES = Rules(points=2.0, settle_s=30.0, burst=3.0, refill_s=10.0, validity_s=300.0)


def write(pace: Pace, now_s: float) -> None:
    pace.began(now_s)
    pace.wrote()


def test_a_large_difference_is_due_at_once_and_a_small_one_when_it_has_lasted() -> None:
    pace = Pace(RULES)
    assert pace.due_s(0.0, inf, 100.0) == inf
    assert pace.due_s(2.0, inf, 100.0) == 100.0
    write(pace, 100.0)
    assert pace.due_s(1.0, inf, 110.0) == 140.0
    assert pace.due_s(1.9, inf, 125.0) == 140.0  # counted from when they began to differ
    assert pace.due_s(5.0, inf, 126.0) <= 126.0  # it has grown large meanwhile
    # A tiny one goes along with the renewal.
    assert pace.due_s(0.9, 400.0, 127.0) == 400.0
    assert pace.due_s(0.9, inf, 127.0) == inf


def test_noise_that_comes_back_writes_nothing() -> None:
    pace = Pace(RULES)
    for second in range(1000):
        due_s = pace.due_s(1.0 if second % 20 else 0.0, inf, float(second))
        assert due_s > second


def test_what_is_equal_is_renewed_in_time_and_a_waiting_difference_goes_along() -> None:
    pace = Pace(RULES)
    assert pace.due_s(0.0, 250.0, 100.0) == 250.0
    assert pace.due_s(SMALL, 110.0, 100.0) == 110.0


def test_writes_cost_tokens_which_come_back() -> None:
    pace = Pace(RULES)
    for _ in range(3):
        assert pace.due_s(LARGE, inf, 100.0) <= 100.0
        write(pace, 100.0)
    assert pace.due_s(LARGE, inf, 100.0) == pytest.approx(110.0)
    assert pace.due_s(LARGE, inf, 104.0) == pytest.approx(110.0)
    write(pace, 110.0)
    assert pace.due_s(LARGE, inf, 110.0) == pytest.approx(120.0)
    assert pace.due_s(LARGE, inf, 1000.0) <= 1000.0


def test_failures_wait_longer_each_time_and_success_forgets_them() -> None:
    pace = Pace(Rules(burst=100.0, first_pause_s=1.0, longest_pause_s=60.0))
    now_s, pauses = 0.0, []
    for _ in range(9):
        pace.began(now_s)
        again_s = pace.failed(now_s)
        assert pace.due_s(LARGE, inf, now_s) == again_s
        pauses.append(again_s - now_s)
        now_s = again_s
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    write(pace, now_s)
    assert pace.failures == 0
    assert pace.due_s(LARGE, inf, now_s) <= now_s


def test_a_fight_over_an_object_is_not_endless() -> None:
    pace = Pace(Rules(burst=100.0))
    for _ in range(CONFLICTS):
        pace.began(50.0)
        pace.conflicted(50.0)
        assert pace.due_s(LARGE, inf, 50.0) <= 50.0
    pace.began(50.0)
    pace.conflicted(50.0)
    assert pace.due_s(LARGE, inf, 50.0) == 51.0


def test_a_clock_that_is_set_back_delays_nothing() -> None:
    pace = Pace(RULES)
    assert pace.due_s(SMALL, inf, 10_000.0) == 10_030.0
    assert pace.due_s(SMALL, inf, 100.0) == 130.0


moves = st.lists(
    st.tuples(st.floats(0.01, 20.0), st.floats(-100.0, 100.0)), min_size=1, max_size=120
)
rules = st.builds(
    Rules,
    points=st.floats(0.5, 20.0),
    settle_s=st.floats(1.0, 60.0),
    burst=st.integers(2, 10).map(float),
    refill_s=st.floats(0.5, 30.0),
    validity_s=st.floats(20.0, 600.0),
)


def story(
    rules: Rules, steps: list[tuple[float, float]], least: float = 0.0
) -> tuple[list[float], float]:
    """Writes as soon as they are due: (when each was, for how long at most something differed by
    so many points at least)."""
    pace = Pace(rules)
    now_s, truth, stands = 1000.0, 0.0, 0.0
    until_s = now_s + rules.validity_s
    since_s: float | None = None
    writes: list[float] = []
    oldest_s = 0.0
    for wait_s, value in [*steps, (10_000.0, steps[-1][1])]:
        truth = value
        ends_s = now_s + wait_s
        while True:
            gap = abs(truth - stands)
            differs = gap > 0 and gap >= least
            since_s = (since_s if since_s is not None else now_s) if differs else None
            renew_s = until_s - rules.validity_s + rules.renew_after_s
            due_s = max(now_s, pace.due_s(gap, renew_s, now_s))
            if due_s > ends_s:
                break
            now_s = due_s
            if since_s is not None:
                oldest_s = max(oldest_s, now_s - since_s)
            write(pace, now_s)
            writes.append(now_s)
            stands, since_s, until_s = truth, None, now_s + rules.validity_s
        now_s = ends_s
    return writes, oldest_s


@settings(max_examples=100, deadline=None)
@given(rules, moves)
def test_score_lags_for_bounded_time(rules: Rules, steps: list[tuple[float, float]]) -> None:
    _, oldest_s = story(rules, steps, rules.points / 2)
    assert oldest_s <= rules.settle_s + rules.refill_s + 1e-6
    _, oldest_s = story(rules, steps)
    slack_s = max(rules.settle_s, rules.renew_after_s) + rules.refill_s
    assert oldest_s <= slack_s + 1e-6


@settings(max_examples=100, deadline=None)
@given(rules, moves)
def test_hourly_writes_are_bounded(rules: Rules, steps: list[tuple[float, float]]) -> None:
    writes, _ = story(rules, steps)
    for first, at_s in enumerate(writes):
        within = sum(1 for other_s in writes[first:] if other_s - at_s <= 3600.0)
        assert within <= rules.burst + 3600.0 / rules.refill_s + 1


@settings(max_examples=100, deadline=None)
@given(rules, st.lists(st.tuples(st.floats(0.5, 3.0), st.floats(0.0, 1.0)), min_size=20))
def test_noise_below_band_rarely_writes(rules: Rules, steps: list[tuple[float, float]]) -> None:
    quiet = [(wait_s, share * rules.points * 0.99) for wait_s, share in steps]
    writes, _ = story(rules, quiet)
    apart_s = min(rules.settle_s, rules.renew_after_s)
    gaps = [after - before for before, after in pairwise(writes)]
    assert all(gap_s >= apart_s - 1e-6 for gap_s in gaps)


@settings(max_examples=100, deadline=None)
@given(rules, moves)
def test_what_stands_never_runs_out(rules: Rules, steps: list[tuple[float, float]]) -> None:
    writes, _ = story(rules, steps)
    renewed = [1000.0, *writes]
    slack_s = rules.renew_after_s + rules.refill_s
    gaps = [after - before for before, after in pairwise(renewed)]
    assert all(gap_s <= slack_s + 1e-6 for gap_s in gaps)

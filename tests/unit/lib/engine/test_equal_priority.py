"""Whether one that waits may stop its equals: what it weighs, and whether that pays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.lib.engine.queueing.preemption import CLEARLY, Remaining, Stopped, may_stop, pays

HOUR_S = 3600.0
rests = st.builds(Remaining, st.floats(1.0, 1e7), st.sampled_from([0.25, 1.0, 2.0, 4.0, 8.0, 32.0]))
stopped = st.builds(Stopped, rests, st.floats(0.0, 1e5))


def test_the_example_of_the_file() -> None:
    waits, runs = Remaining(HOUR_S, 1.0), Remaining(30 * HOUR_S, 8.0)
    assert round(runs.weight / waits.weight) == 129
    assert may_stop(waits, Stopped(runs, 600.0))
    assert pays(waits, [Stopped(runs, 600.0)])


@pytest.mark.parametrize(
    ("left_s", "gpus", "again_s", "may"),
    [
        (1501.0, 1.0, 100.0, True),
        (1500.0, 1.0, 100.0, False),  # not clearly more
        (1501.0, 1.0, 251.0, False),  # more would be done again than is gained
        (1199.0, 8.0, 0.0, False),  # wide, but the one that waits has hardly less left
        (1200.0, 8.0, 0.0, True),
    ],
)
def test_clearly_more_is_asked_for(left_s: float, gpus: float, again_s: float, may: bool) -> None:
    assert may_stop(Remaining(1000.0, 1.0), Stopped(Remaining(left_s, gpus), again_s)) is may


def test_several_that_wait_for_one_must_gain_more_than_they_lose() -> None:
    waits = Remaining(1000.0, 8.0)
    narrow = Stopped(Remaining(7920.0, 1.0), 100.0)
    assert pays(waits, [narrow] * 6)
    assert not pays(waits, [narrow] * 7)


@given(rests, stopped, st.floats(0.0, 1.0))
def test_eviction_is_never_mutual(waits: Remaining, runs: Stopped, done: float) -> None:
    """However far the one has come by then that it was stopped for."""
    if may_stop(waits, runs):
        now_runs = Remaining(waits.left_s * (1.0 - done), waits.gpus)
        assert now_runs.weight * CLEARLY < runs.remaining.weight
        assert not may_stop(runs.remaining, Stopped(now_runs, 0.0))


def test_where_one_is_learned_more_is_asked_for() -> None:
    waits, runs = Remaining(1000.0, 1.0, stated=False), Remaining(1900.0, 1.0)
    assert not may_stop(waits, Stopped(runs, 0.0))
    assert may_stop(waits, Stopped(Remaining(2001.0, 1.0), 0.0))

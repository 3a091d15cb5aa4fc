import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.lib.runtime.backoff import Backoff


def test_without_jitter_each_wait_doubles_up_to_the_most() -> None:
    backoff = Backoff(first_s=0.5, most_s=3, jitter=0)
    chance = random.Random(1)
    waits_s = [backoff.delay_s(failures, chance) for failures in range(6)]
    assert waits_s == [0, 0.5, 1, 2, 3, 3]


def test_the_same_seed_waits_the_same_and_another_does_not() -> None:
    backoff = Backoff()
    assert backoff.delay_s(3, random.Random(7)) == backoff.delay_s(3, random.Random(7))
    assert backoff.delay_s(3, random.Random(7)) != backoff.delay_s(3, random.Random(8))


@given(
    failures=st.integers(min_value=1, max_value=10**6),
    jitter=st.floats(min_value=0, max_value=1),
    seed=st.integers(),
)
def test_no_wait_is_longer_than_the_most_or_shorter_than_jitter_allows(
    failures: int, jitter: float, seed: int
) -> None:
    backoff = Backoff(first_s=0.1, most_s=10, jitter=jitter)
    full_s = Backoff(first_s=0.1, most_s=10, jitter=0).delay_s(failures, random.Random(0))
    wait_s = backoff.delay_s(failures, random.Random(seed))
    assert full_s * (1 - jitter) <= wait_s <= full_s <= 10


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"first_s": 0.0}, "first_s"),
        ({"first_s": 20.0}, "most_s"),
        ({"factor": 0.5}, "factor"),
        ({"jitter": 1.5}, "jitter"),
    ],
)
def test_a_backoff_that_makes_no_sense_is_refused(wrong: dict[str, float], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Backoff(**wrong)

"""How long a job will take, from how long its likes took."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.engine import predict
from berthmaster.engine.predict import (
    FIRST_GUESS_S,
    KEPT,
    SIZES_ENOUGH,
    SIZES_KEPT,
    Durations,
    KindHistory,
    Sizes,
    left_s,
    weighted_median,
)
from berthmaster.messages.workload import JobRequest
from tests.support.builders import job


def labelled(name: str, **labels: str) -> JobRequest:
    return msgspec.structs.replace(job(name), labels=labels)


def test_what_a_request_states_goes_before_all_that_was_learned() -> None:
    durations = Durations()
    for _ in range(5):
        durations.learn("team", job("a"), 10)
    assert durations.expected_s("team", job("b")) == 10
    told = msgspec.structs.replace(job("c"), expected_duration_s=77.0)
    assert durations.expected_s("team", told) == 77


def test_a_job_is_compared_with_its_own_kind_and_with_wider_ones_while_those_are_few() -> None:
    durations = Durations()
    assert durations.expected_s("team", job("first")) == FIRST_GUESS_S
    durations.learn("team", labelled("a", model="bert"), 100)
    assert durations.expected_s("other", job("wide", gpus=8)) == 100  # all there is
    for _ in range(3):
        durations.learn("team", labelled("b", model="vgg"), 5)
    assert durations.expected_s("team", labelled("c", model="vgg")) == 5
    assert durations.expected_s("team", labelled("d", model="bert")) == 5  # one is not enough
    for _ in range(2):
        durations.learn("team", labelled("e", model="bert"), 100)
    assert durations.expected_s("team", labelled("f", model="bert")) == 100
    assert durations.expected_s("other", labelled("g", model="bert")) == 100  # of the size


def test_newer_endings_count_more() -> None:
    assert weighted_median([7]) == 7
    assert weighted_median([1, 1, 1, 9, 9, 9]) == 9
    assert weighted_median([9] * 20 + [1] * 4) == 1
    assert weighted_median([9] * 20 + [1] * 3) == 9


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=KEPT))
def test_a_median_is_one_of_what_was_seen(durations_s: list[float]) -> None:
    median_s = weighted_median(durations_s)
    assert median_s in durations_s
    newest = durations_s[-1]
    assert weighted_median([*durations_s, *[newest] * 40]) == newest


def test_what_is_kept_restores_the_same_guesses_and_has_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(predict, "KINDS", 20)
    durations = Durations()
    for number in range(200):
        durations.learn(f"team-{number % 50}", job("a", gpus=number % 7), float(number))
    durations.learn("team-1", job("a"), math.nan)
    durations.learn("team-1", job("a"), -1.0)
    kept = durations.kept()
    assert len(kept) == 20
    assert max(len(history.durations_s) for history in kept) == KEPT
    again = Durations.restored(msgspec.convert(msgspec.to_builtins(kept), list[KindHistory]))
    assert again.kept() == kept
    assert again.expected_s("x", job("b")) == durations.expected_s("x", job("b"))


def test_who_overran_is_expected_to_run_on() -> None:
    assert left_s(100, 30) == 70
    assert left_s(100, 100) == 50
    assert left_s(100, 1000) == 500


def test_three_in_a_hundred_are_large_once_enough_are_known() -> None:
    sizes = Sizes()
    for number in range(SIZES_ENOUGH - 1):
        sizes.learn(number)
    assert sizes.large_gpu_s() == math.inf
    sizes.learn(math.inf)
    sizes.learn(-1)
    assert sizes.large_gpu_s() == math.inf
    for number in range(SIZES_ENOUGH - 1, 100):
        sizes.learn(number)
    assert sizes.large_gpu_s() == 96  # 97, 98 and 99 are larger
    assert Sizes(sizes.kept()).large_gpu_s() == 96


def test_sizes_of_long_ago_are_forgotten() -> None:
    sizes = Sizes([1e9] * SIZES_KEPT)
    assert sizes.large_gpu_s() == 1e9
    for _ in range(SIZES_KEPT):
        sizes.learn(1.0)
    assert sizes.large_gpu_s() == 1.0
    assert len(sizes.kept()) == SIZES_KEPT

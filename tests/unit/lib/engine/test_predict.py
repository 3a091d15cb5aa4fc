"""How long a job will take, from how long its likes took."""

import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.lib.engine.queueing import expectations
from berthmaster.lib.engine.queueing.expectations import (
    ENOUGH,
    FIRST_GUESS_S,
    KEPT,
    NEAREST,
    SIZES_ENOUGH,
    SIZES_KEPT,
    Durations,
    Ending,
    Sizes,
    expected_from,
    left_s,
    neighbours,
)
from berthmaster.lib.engine.queueing.expectations import LearnedDurations as Learned
from berthmaster.lib.messages.workload import JobRequest
from tests.support.builders import job

TIMES = st.floats(0, 1e9)
ENDINGS = st.lists(st.tuples(st.integers(0, 20).map(float), TIMES), min_size=1, max_size=30)


def labelled(name: str, **labels: str) -> JobRequest:
    return msgspec.structs.replace(job(name), labels=labels)


def test_what_a_request_states_goes_before_all_that_was_learned() -> None:
    durations = Durations()
    for at_s in range(5):
        durations.learn("team", job("a"), at_s, 10)
    assert durations.expected_s("team", job("b"), 9.0) == pytest.approx(10)
    told = msgspec.structs.replace(job("c"), expected_duration_s=77.0)
    assert durations.expected_s("team", told, 9.0) == 77


def test_a_job_is_compared_with_its_own_kind_and_with_wider_ones_while_those_are_few() -> None:
    durations = Durations()
    assert durations.expected_s("team", job("first"), 0.0) == FIRST_GUESS_S

    def ended(request: JobRequest, ran_s: float) -> None:  # stated: nothing of it was expected
        stated = msgspec.structs.replace(request, expected_duration_s=1.0)
        durations.learn("team", stated, 0.0, ran_s)

    def expected_s(tenant: str, request: JobRequest) -> float:
        return round(durations.expected_s(tenant, request, 0.0), 6)

    ended(labelled("a", model="bert"), 100)
    assert expected_s("other", job("wide", gpus=8)) == 100  # all there is
    for _ in range(ENOUGH):
        ended(labelled("b", model="vgg"), 5)
    assert expected_s("team", labelled("c", model="vgg")) == 5
    of_shape = expected_s("team", labelled("d", model="bert"))  # one of its labels is not enough
    assert 5 < of_shape < 100
    for _ in range(ENOUGH - 1):
        ended(labelled("e", model="bert"), 100)
    assert expected_s("team", labelled("f", model="bert")) == 100
    assert 5 < expected_s("other", labelled("g", model="bert")) < 100  # of the size


def test_labels_that_say_nothing_stop_to_count_and_those_that_tell_go_on() -> None:
    chance = random.Random(3)
    telling, idle = Durations(), Durations()
    for number in range(300):
        long = number // 10 % 2 == 0  # ten of a kind are submitted together
        ran_s = 10_000.0 if long else 10.0
        lucky = chance.choice(("a", "b"))
        idle.learn("team", labelled("x", run=lucky), 1000.0 * (number // 10), ran_s)
        mixed_s = 10_000.0 if lucky == "a" else 10.0
        telling.learn("team", labelled("x", run=lucky), 1000.0 * (number // 10), mixed_s)
    at_s = 1000.0 * 29
    assert idle.expected_s("team", labelled("y", run="a"), at_s) == pytest.approx(10, rel=0.1)
    assert idle.expected_s("team", labelled("y", run="b"), at_s) == pytest.approx(10, rel=0.1)
    assert telling.expected_s("team", labelled("y", run="a"), at_s) == pytest.approx(10_000)
    assert telling.expected_s("team", labelled("y", run="b"), at_s) == pytest.approx(10)


@given(ENDINGS, st.integers(0, 20).map(float))
def test_neighbours_are_nearest_submissions(endings: list[Ending], at_s: float) -> None:
    ordered = sorted(endings)
    near = neighbours(ordered, at_s)
    assert len(near) == min(NEAREST, len(endings))
    off = sorted(abs(at_s - submitted_s) for submitted_s, _ in endings)
    assert sorted(abs(at_s - submitted_s) for submitted_s, _ in near) == off[: len(near)]
    ran = [ran_s for _, ran_s in near]
    expected_s = expected_from(near, at_s)
    assert min(ran) * (1 - 1e-9) <= expected_s <= max(ran) * (1 + 1e-9)


def test_nearer_ones_count_more_on_either_side() -> None:
    near = [(0.0, 10.0), (10_000.0, 1000.0)]
    assert expected_from(near, 0.0) < 50
    assert expected_from(near, 10_000.0) > 950
    assert expected_from(near, 5000.0) == pytest.approx(505)


def test_stored_guesses_restore_equally(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expectations, "KINDS", 20)
    durations = Durations()
    for number in range(8 * KEPT):
        at_s = float(number * 7919 % 1000)
        durations.learn(f"team-{number % 50}", job("a", gpus=number % 3), at_s, float(number))
    for ran_s in (math.nan, -1.0, math.inf):
        durations.learn("team-1", job("a"), 0.0, ran_s)
    durations.learn("team-1", job("a"), math.nan, 1.0)
    kept = durations.kept()
    assert len(kept.kinds) == 20
    assert max(len(history.endings) for history in kept.kinds) == KEPT
    again = Durations(msgspec.convert(msgspec.to_builtins(kept), Learned))
    assert again.kept() == kept
    for at_s in (0.0, 333.0, 1e9):
        guess_s = durations.expected_s("x", job("b"), at_s)
        assert again.expected_s("x", job("b"), at_s) == guess_s


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

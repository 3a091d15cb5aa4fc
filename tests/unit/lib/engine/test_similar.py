"""Run times as intervals, from groups of similar jobs."""

import math
import random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.lib.engine.queueing.expectations import Durations, LearnedDurations
from berthmaster.lib.engine.queueing.similar import (
    ENOUGH,
    LONGEST_S,
    Calibration,
    Estimate,
    Group,
    left,
)
from berthmaster.lib.messages.workload import JobRequest, RunSpec
from tests.support.builders import job


def labelled(name: str, **labels: str) -> JobRequest:
    return msgspec.structs.replace(job(name), labels=labels)


def running(name: str, *command: str) -> JobRequest:
    return msgspec.structs.replace(job(name), run=RunSpec(image="train", command=command))


def test_estimate_is_none_until_enough_jobs_have_ended() -> None:
    durations = Durations()
    for number in range(ENOUGH):
        assert durations.estimate("team", job("next")) is None
        durations.learn("team", job(f"j{number}"), float(number), 60.0)
    estimate = durations.estimate("team", job("next"))
    assert estimate is not None
    assert math.isclose(estimate.middle_s, 60.0)
    assert estimate.jobs == ENOUGH


def test_estimate_of_a_job_goes_by_its_own_program_among_many_others() -> None:
    durations = Durations()
    chance = random.Random(7)
    for number in range(200):
        durations.learn(
            "team", running("x", f"other-{number % 20}"), number, chance.uniform(1, 1e4)
        )
    for number in range(20):
        durations.learn("team", running("x", "mine"), 200.0 + number, 500.0 + number)
    mine = durations.estimate("team", running("y", "mine"))
    others = durations.estimate("team", running("y", "unheard"))
    assert mine is not None
    assert others is not None
    assert 490 < mine.middle_s < 525
    assert mine.jobs == 20
    assert others.jobs >= 220
    assert others.high_s / others.low_s > 10 * mine.high_s / mine.low_s


def test_label_that_differs_in_each_job_does_not_hide_the_others() -> None:
    durations = Durations()
    for number in range(60):
        long = number % 2 == 0
        request = labelled("x", model="bert" if long else "mlp", run=f"r{number}")
        durations.learn("team", request, float(number), 1000.0 if long else 10.0)
    bert = durations.estimate("team", labelled("y", model="bert", run="r60"))
    mlp = durations.estimate("team", labelled("y", model="mlp", run="r61"))
    assert bert is not None
    assert mlp is not None
    assert (round(bert.middle_s), round(mlp.middle_s)) == (1000, 10)


def test_intervals_cover_eight_in_ten_where_run_times_change() -> None:
    chance = random.Random(1)
    durations = Durations()
    inside = judged = 0
    for number in range(3000):
        scale = 5.0 if number < 1500 else 7.0  # then all take longer, and vary more
        ran_s = math.exp(chance.gauss(scale, 0.5 if number < 1500 else 1.5))
        estimate = durations.estimate("team", job("x"))
        foreseen = durations.foresee("team", job("x"))
        if estimate is not None and number % 1500 > 700:
            inside += estimate.low_s <= ran_s <= estimate.high_s
            judged += 1
        if foreseen is not None:
            durations.judge(foreseen, ran_s)
        durations.learn("team", job("x"), float(number), ran_s)
    assert 0.75 < inside / judged < 0.85


def test_left_of_a_job_that_outlives_its_estimate_grows_with_its_age() -> None:
    whole = Estimate(60.0, 100.0, 200.0, 7)
    assert left(whole, 40.0) == Estimate(20.0, 60.0, 160.0, 7)
    assert left(whole, 150.0) == Estimate(0.0, 50.0, 50.0, 7)
    assert left(whole, 300.0) == Estimate(0.0, 150.0, 150.0, 7)


@given(
    st.lists(st.tuples(st.integers(1, 500), st.lists(st.floats(0, 1e300), min_size=1)), max_size=5),
    st.lists(st.floats(0, 1e300), max_size=50),
)
def test_estimates_are_ordered_and_finite_whatever_jobs_took(
    many: list[tuple[int, list[float]]], then: list[float]
) -> None:
    groups = sorted((Group(seen, ran_s) for seen, ran_s in many), key=lambda group: -group.seen)
    calibration = Calibration()
    for ran_s in [*then, 0.0]:
        estimate = calibration.estimate(groups)
        if estimate is not None:
            assert 0 <= estimate.low_s <= estimate.middle_s <= estimate.high_s <= 1.01 * LONGEST_S
        foreseen = calibration.foresee(groups)
        if foreseen is not None:
            calibration.judge(foreseen, ran_s)


def test_estimates_are_the_same_after_a_snapshot() -> None:
    chance = random.Random(5)
    durations = Durations()
    for number in range(400):
        request = labelled("x", model=chance.choice("abc"), run=str(number))
        foreseen = durations.foresee("team", request)
        ran_s = chance.uniform(1, 1000)
        if foreseen is not None:
            durations.judge(foreseen, ran_s)
        durations.learn("team", request, float(number), ran_s)
    kept = msgspec.msgpack.encode(durations.kept())
    again = Durations(msgspec.msgpack.decode(kept, type=LearnedDurations))
    for model in "abcd":
        request = labelled("y", model=model)
        assert again.estimate("team", request) == durations.estimate("team", request)
    assert again.kept() == durations.kept()

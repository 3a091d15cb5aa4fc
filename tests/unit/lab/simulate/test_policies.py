"""What each policy does with one node of two GPUs, told as start and end times."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berthmaster.control.resolver.policy import Policy
from berthmaster.lab.simulate import ours
from berthmaster.lab.simulate.model import Job, SimulationError
from berthmaster.lab.simulate.policies import BASELINES, POLICIES, baseline
from berthmaster.lab.simulate.traces import even_fleet
from tests.unit.lab.simulate.lists import job, run, started, times

# The first takes one GPU for long; a wide one comes next, then small ones, one of them short.
STORY = [
    job("long", 0, 100),
    job("wide", 1, 50, gpus=2),
    job("medium", 2, 120),
    job("short", 3, 20),
]


def test_first_come_first_served_lets_the_first_hold_up_all_others() -> None:
    assert started("fifo", STORY) == {"long": 0, "wide": 100, "medium": 150, "short": 150}


def test_shortest_first_takes_turns_by_duration_and_the_shortest_holds_up_the_rest() -> None:
    assert started("sjf", STORY) == {"long": 0, "wide": 100, "medium": 150, "short": 3}


def test_best_fit_passes_over_a_job_that_does_not_fit() -> None:
    assert started("bestfit", STORY) == {"long": 0, "wide": 122, "medium": 2, "short": 100}


def test_backfill_lets_only_those_before_the_first_that_do_not_delay_it() -> None:
    assert started("easy", STORY) == {"long": 0, "wide": 100, "medium": 150, "short": 3}


def test_ours_places_all_and_lets_small_jobs_pass_large_ones() -> None:
    found = started("berthmaster", STORY)
    assert found["long"] == 0
    assert found["short"] <= 100
    everybody = ours.run(even_fleet(1, 2), STORY, policy=Policy(order="arrival"))
    assert times(everybody)["wide"][0] <= 122


def test_a_job_that_can_never_run_is_told_before_anything_is_played() -> None:
    for policy in ("fifo", "berthmaster"):
        with pytest.raises(SimulationError, match=r"huge asks for 3 GPUs and .* fits"):
            run(policy, [job("huge", 0, 1, gpus=3)])


def test_an_unknown_policy_is_told_with_those_that_there_are() -> None:
    with pytest.raises(SimulationError, match="policy is 'best'; it is one of berthmaster, fifo"):
        baseline("best")
    assert POLICIES[0] == "berthmaster"
    assert set(POLICIES[1:]) == set(BASELINES)


def test_two_jobs_of_one_id_are_refused_as_the_log_would() -> None:
    with pytest.raises(SimulationError, match="same id"):
        run("berthmaster", [job("a", 0, 1), job("a", 1, 1)])


def test_without_knowledge_the_kinds_that_took_long_go_after_those_that_did_not() -> None:
    past = [job(f"s{n}", 10.0 * n, 5) for n in range(6)]
    past += [job(f"l{n}", 10.0 * n, 900, gpus=2) for n in range(4)]
    jobs = [
        *past,
        job("large", 8000, 1, gpus=2),
        job("now", 7999, 50, gpus=2),
        job("small", 8001, 7),
    ]
    found = times(run("sjf", jobs, knowing="unknown"))
    assert found["small"][0] <= found["large"][0]


LISTS = st.lists(
    st.tuples(
        st.integers(0, 300),
        st.integers(1, 200),
        st.sampled_from([(1, 1, 1000), (2, 1, 1000), (1, 1, 300), (4, 1, 1000), (4, 2, 1000)]),
    ),
    min_size=1,
    max_size=12,
)


def listed(drawn: list[tuple[int, int, tuple[int, int, int]]]) -> list[Job]:
    return [
        job(f"j{number}", at_s, for_s, gpus, pods=pods, milli=milli)
        for number, (at_s, for_s, (gpus, pods, milli)) in enumerate(drawn)
    ]


@pytest.mark.parametrize("policy", POLICIES)
@given(drawn=LISTS, knowing=st.sampled_from(["exact", "factor-two", "unknown"]))
@settings(max_examples=6, deadline=None)
def test_every_job_runs_once_in_full_and_no_gpu_twice(
    policy: str, drawn: list[tuple[int, int, tuple[int, int, int]]], knowing: str
) -> None:
    jobs = listed(drawn)
    played = run(policy, jobs, 2, 4, knowing)  # type: ignore[arg-type]
    again = run(policy, jobs, 2, 4, knowing)  # type: ignore[arg-type]
    assert played.outcomes == again.outcomes
    for one, (start_s, end_s) in zip(played.jobs, times(played).values(), strict=True):
        assert start_s >= one.at_s
        assert end_s - start_s == pytest.approx(one.duration_s)
    assert all(-1e-9 <= span.used_gpus <= 8 + 1e-9 for span in played.spans)  # sums of parts

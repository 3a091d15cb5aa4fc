"""What stands in an AddOnPlacementScore; OCM's formula and vectors are the scorer's test_ocm."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.hub.ocm.core.scores import (
    FIXED_NAMES,
    MAX_MODELS,
    OCM_NAMES,
    gap,
    model_name,
    models,
    of_percent,
    values,
    wanted,
)
from berthmaster.lib.messages.fleet import ClusterScore, ResourceScore
from berthmaster.lib.ocm.core.pace import LARGE, SMALL
from berthmaster.lib.ocm.core.view import MAX_NAME_CHARS, View, view
from tests.unit.control.scorer.builders import Story, pod, report
from tests.unit.hub.ocm.builders import score

T4, A100 = "gpuGang-Tesla-T4", "gpuGang-NVIDIA-A100"


def live(found: ClusterScore) -> View:
    said = view(found, silent_s=0)
    assert said.fresh
    return said


def test_the_names_are_ocms_eight_and_ours() -> None:
    assert set(OCM_NAMES) == {
        "cpuNodeAvailable", "memNodeAvailable", "gpuNodeAvailable", "tpuNodeAvailable",
        "cpuClusterAvailable", "memClusterAvailable", "gpuClusterAvailable", "tpuClusterAvailable",
    }  # fmt: skip
    assert set(FIXED_NAMES) - set(OCM_NAMES) == {
        "gpuIdle", "gpuCalm", "gpuUnfragmented", "gpuLargestGang", "freshness",
    }  # fmt: skip


def test_a_live_cluster_says_all_it_knows() -> None:
    said = live(score(free=12, gangs={"Tesla T4": 9, "NVIDIA A100": 3}, idle=75, fragmentation=10))
    assert values(said, (A100, T4)) == {
        "cpuNodeAvailable": 0,
        "memNodeAvailable": 0,
        "gpuNodeAvailable": 20,
        "tpuNodeAvailable": 0,
        "cpuClusterAvailable": 0,
        "memClusterAvailable": 0,
        "gpuClusterAvailable": 20,
        "tpuClusterAvailable": 0,
        "gpuIdle": 50,
        "gpuCalm": 100,
        "gpuUnfragmented": 80,
        "gpuLargestGang": -10,
        A100: -70,
        T4: -10,
        "freshness": 100,
    }


def test_ocms_vector_of_nodes_6_and_8_with_2_used_goes_from_the_nodes_to_the_object() -> None:
    story = Story()
    story.fact(report("n1", gpus=6))
    story.fact(report("n2", gpus=8, pods=(pod(0, 1),)))
    written = values(live(story.score()), ())
    assert (written["gpuClusterAvailable"], written["gpuNodeAvailable"]) == (20, -40)


@pytest.mark.parametrize(("free", "points"), [(0, -100), (3, -70), (2, -80)])
def test_ocms_vector_of_0_3_and_2_free_gpus(free: int, points: int) -> None:
    assert values(live(score(free=free)), ())["gpuClusterAvailable"] == points


@pytest.mark.parametrize(
    ("found", "silent_s", "reason", "message"),
    [
        (None, 30.0, "NoReport", "no agent of this cluster has reported to the fleet"),
        (score(), 30.0, "NotTold", "nobody has told its score for 30 s"),
        (score(freshness="stale", note="no sign"), 0.0, "Stale", "no sign"),
        (score(freshness="withdrawn"), 0.0, "Withdrawn", "its inputs are withdrawn"),
        (score(nodes=0), 0.0, "NoNodes", "no node of the cluster has reported yet"),
    ],
)
def test_what_is_not_known_is_the_worst_in_every_name(
    found: ClusterScore | None, silent_s: float, reason: str, message: str
) -> None:
    said = view(found, silent_s=silent_s)
    assert (said.reason, said.message, said.fresh) == (reason, message, False)
    assert values(said, (T4,)) == dict.fromkeys((*FIXED_NAMES, T4), -100)


def test_while_nobody_tells_what_stands_stays_and_else_what_was_told_last() -> None:
    silent = View("NotTold", "why", silence="why", last=score(free=20))
    worst = dict.fromkeys((*FIXED_NAMES, T4), -100)
    assert wanted(silent, (T4,), {"gpuIdle": 3, A100: 7}) == (
        View("NotTold", "why"),
        worst | {"gpuIdle": 3, A100: 7},
    )
    for nothing in ({}, worst):
        said, points = wanted(silent, (T4,), nothing)
        assert (said.reason, points["gpuClusterAvailable"], points[T4]) == ("NotTold", 100, 100)
    # Nobody has ever measured it: unknown is the worst.
    never = View("NoReport", "never heard of", silence="the scorer is away")
    assert wanted(never, (T4,), worst) == (View("NoReport", "never heard of"), worst)


def test_what_is_being_measured_anew_stays_until_it_is() -> None:
    back = View("Live", "", score(idle=None, fragmentation=100), settling=True)
    standing = {"gpuIdle": 80, "gpuUnfragmented": 60, "gpuClusterAvailable": 99}
    points = values(back, (), standing)
    assert (points["gpuIdle"], points["gpuUnfragmented"], points["gpuClusterAvailable"]) == (
        80, -100, 20,
    )  # fmt: skip
    assert values(View("Live", "", back.score), (), standing)["gpuIdle"] == -100


def test_a_single_thing_that_is_not_measured_is_the_worst_and_the_rest_counts() -> None:
    written = values(live(score(idle=None, calm=None, fragmentation=None)), ())
    unknown = {name for name, points in written.items() if points == -100}
    assert unknown == {"gpuIdle", "gpuCalm", "gpuUnfragmented"}


def test_a_cluster_without_a_model_of_the_fleet_is_the_worst_in_it_not_missing() -> None:
    assert values(live(score(gangs={"Tesla T4": 2})), (A100, T4))[A100] == -100


def test_models_that_read_alike_share_a_name_and_the_better_counts() -> None:
    found = score(gangs={"Tesla T4": 2, "Tesla-T4": 8})
    assert models([found]) == (T4,)
    assert values(live(found), (T4,))[T4] == -20


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Tesla T4", "gpuGang-Tesla-T4"),
        ("  NVIDIA A100-SXM4-80GB!", "gpuGang-NVIDIA-A100-SXM4-80GB"),
        ("", "gpuGang-unknown"),
        ("日本", "gpuGang-unknown"),
        ("x" * 200, "gpuGang-" + "x" * 55),
        ("x" * 54 + "----tail", "gpuGang-" + "x" * 54),
    ],
)
def test_a_models_name_fits(model: str, name: str) -> None:
    assert model_name(model) == name
    assert len(name) <= MAX_NAME_CHARS


def test_of_absurdly_many_models_some_are_told() -> None:
    found = score(gangs={f"m{n:04}": 1 for n in range(1000)})
    assert models([found]) == tuple(f"gpuGang-m{n:04}" for n in range(MAX_MODELS))
    assert len(values(live(found), models([found]))) == len(FIXED_NAMES) + MAX_MODELS


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_every_percentage_becomes_a_score(percent: float) -> None:
    assert -100 <= of_percent(percent) <= 100


@given(
    free=st.floats(-1e6, 1e6),
    full=st.floats(0.001, 1e6),
    points=st.integers(-100, 100),
    gangs=st.dictionaries(st.text(max_size=80), st.integers(0, 10**9), max_size=40),
    percents=st.lists(st.none() | st.floats(), min_size=3, max_size=3),
)
def test_whatever_a_score_says_every_value_is_one_that_the_api_takes(
    free: float, full: float, points: int, gangs: dict[str, int], percents: list[float | None]
) -> None:
    found = score(gangs=gangs, idle=percents[0], calm=percents[1], fragmentation=percents[2])
    resources = {
        name: ResourceScore(score=points, available=free, full_scale=full) for name in OCM_NAMES
    }
    for name, resource in resources.items():
        found.resources[name] = resource
    written = values(live(found), models([found]))
    assert set(FIXED_NAMES) <= set(written)
    assert all(-100 <= value <= 100 and isinstance(value, int) for value in written.values())
    assert all(0 < len(name) <= MAX_NAME_CHARS for name in written)


def test_a_difference_is_the_largest_and_telemetry_alone_weighs_little() -> None:
    before = dict.fromkeys(FIXED_NAMES, 0)
    assert gap(before, before) == 0
    assert gap(before, before | {"gpuClusterAvailable": -7, "cpuNodeAvailable": 3}) == 7
    assert gap(before, before | {"gpuIdle": 5}) == 1.0
    assert gap(before, before | {"gpuIdle": 1, "gpuCalm": 1}) == pytest.approx(0.2)
    # A name that is missing is read as 0, and so is worth haste; one too many is not.
    assert gap(before, before | {T4: -100}) == LARGE
    assert gap(before | {T4: 3}, before) == SMALL

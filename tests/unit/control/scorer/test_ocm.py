"""OCM's vectors, by their names in reference/ocm.md, through the formula and through the core."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.control.scorer.core.rules import Amount, ScoringRules
from berthmaster.control.scorer.core.score import (
    DEFAULT_FULL_SCALE,
    full_scale,
    normalise,
    round_up,
)
from berthmaster.lib.messages.fleet import ResourceScore
from tests.unit.control.scorer.builders import OCM_SCALE, Story, pod, report


def scores(story: Story, *names: str) -> dict[str, int]:
    resources = story.score().resources
    return {name: resources[name].score for name in names}


def test_gpu_nodes_6_and_8_with_a_pod_using_2_on_the_second() -> None:
    story = Story()
    story.fact(report("n1", gpus=6))
    story.fact(report("n2", gpus=8, pods=(pod(0, 1),)))
    resources = story.score().resources
    assert resources["gpuClusterAvailable"] == ResourceScore(
        score=20, available=12.0, full_scale=20.0
    )
    assert resources["gpuNodeAvailable"] == ResourceScore(score=-40, available=6.0, full_scale=20.0)


@pytest.mark.parametrize(("free", "score"), [(0, -100), (3, -70), (2, -80)])
def test_free_gpu_0_3_2(free: int, score: int) -> None:
    story = Story()
    story.fact(report(gpus=8, pods=(pod(*range(8 - free)),)))
    assert scores(story, "gpuClusterAvailable") == {"gpuClusterAvailable": score}
    assert normalise(free, 0, 20) == score


def test_zero_of_everything() -> None:
    story = Story()
    story.fact(report(gpus=0, cpu=0, memory_gib=0))
    assert {name: score.score for name, score in story.score().resources.items()} == dict.fromkeys(
        [
            f"{resource}{scope}Available"
            for resource in ("cpu", "mem", "gpu", "tpu")
            for scope in ("Node", "Cluster")
        ],
        -100,
    )


def test_cpu_33_3_is_truncated_toward_zero() -> None:
    story = Story()
    story.fact(report(cpu=33.3))
    assert scores(story, "cpuClusterAvailable", "cpuNodeAvailable") == {
        "cpuClusterAvailable": -33,
        "cpuNodeAvailable": -33,
    }


def test_both_ends_of_the_range_and_beyond_them() -> None:
    assert [normalise(v, 0, 100) for v in (-5, 0, 0.4, 50, 99.9, 100, 101)] == [
        -100, -100, -99, 0, 99, 100, 100,
    ]  # fmt: skip


def test_memory_is_measured_in_real_units_so_that_half_a_tebibyte_is_not_full() -> None:
    story = Story()
    story.fact(report(memory_gib=512))
    assert story.score().resources["memClusterAvailable"] == ResourceScore(
        score=0, available=512.0 * 1024, full_scale=1024.0 * 1024
    )


def test_thirty_and_sixty_free_gpus_do_not_tie_when_the_scale_is_the_fleets() -> None:
    story = Story(ScoringRules(dead_band=0.0))
    for at in range(4):
        story.fact(report(f"n{at}", cluster="small", gpus=8))
    for at in range(8):
        story.fact(report(f"n{at}", cluster="large", gpus=8))
    small, large = story.score("small").resources, story.score("large").resources
    assert small["gpuClusterAvailable"] == ResourceScore(
        score=-36, available=32.0, full_scale=100.0
    )
    assert large["gpuClusterAvailable"] == ResourceScore(score=28, available=64.0, full_scale=100.0)


def test_a_scale_is_what_is_set_else_the_fleets_else_the_default() -> None:
    assert full_scale(Amount(0, 0, 7, 0), Amount(130, 0, 900, 0)) == Amount(
        cpu=200, mem=DEFAULT_FULL_SCALE.mem, gpu=7, tpu=20
    )
    assert full_scale(OCM_SCALE, Amount(1e9, 1e9, 1e9, 1e9)) == OCM_SCALE


def test_a_range_moves_in_steps_of_1_2_and_5() -> None:
    assert [round_up(v) for v in (0, -1, 0.3, 1, 1.01, 2, 3, 5, 6, 99, 100, 101, 6212)] == [
        0, 0, 0.5, 1, 2, 2, 5, 5, 10, 100, 100, 200, 10_000,
    ]  # fmt: skip


amounts = st.floats(-1e9, 1e9)


@given(amounts, amounts, st.floats(0.001, 1e9))
def test_a_score_is_bounded_and_more_is_never_worse(one: float, other: float, most: float) -> None:
    low, high = sorted((one, other))
    assert -100 <= normalise(low, 0, most) <= normalise(high, 0, most) <= 100

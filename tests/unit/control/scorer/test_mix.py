import pytest

from berthmaster.control.scorer.core.mix import (
    DEFAULT_MIX,
    MAX_SHAPES,
    MAX_TYPICAL,
    Mix,
    MixWatch,
    PodShape,
    TypicalPod,
    distance,
)
from berthmaster.lib.messages.workload import PodSet


def watch(*, half_life_s: float = 3600, enough: float = 10) -> MixWatch:
    return MixWatch(half_life_s=half_life_s, enough_pods=enough)


def pods(count: int, gpus: int = 1, milli: int = 1000, cpu: int = 8, memory: int = 0) -> PodSet:
    return PodSet(
        count=count,
        cpu_milli=cpu * 1000,
        memory_mib=memory,
        gpus=gpus,
        gpu_milli=milli,
    )


def test_the_default_stands_in_until_enough_was_seen() -> None:
    seen = watch(enough=10)
    assert seen.typical(0) is DEFAULT_MIX
    seen.add([pods(9)], 0)
    assert seen.typical(0) is DEFAULT_MIX
    seen.add([pods(1)], 0)
    assert seen.typical(0) == Mix((TypicalPod(PodShape(8000, 1, 1000), 1.0, 0),), 8000, 0)


def test_the_default_is_a_whole_mix() -> None:
    assert sum(pod.share for pod in DEFAULT_MIX.pods) == pytest.approx(1)
    assert (DEFAULT_MIX.gang_cpu_milli, DEFAULT_MIX.gang_memory_mib) == (11_078, 41_807)


def test_popular_shapes_come_first_up_to_95_percent_and_are_renormalised() -> None:
    seen = watch()
    seen.add([pods(60, cpu=4, memory=1000), pods(36, milli=500), pods(4, gpus=8)], 0)
    assert seen.typical(0) == Mix(
        (
            TypicalPod(PodShape(4000, 1, 1000), 60 / 96, 1000),
            TypicalPod(PodShape(8000, 1, 500), 36 / 96, 0),
        ),
        4000,
        1000,
    )


def test_pods_without_gpus_say_nothing_about_gpus() -> None:
    seen = watch()
    seen.add([pods(1000, gpus=0), pods(9)], 0)
    assert seen.typical(0) is DEFAULT_MIX


def test_what_was_popular_long_ago_gives_way() -> None:
    seen = watch(half_life_s=100)
    seen.add([pods(1000, milli=500)], 0)
    seen.add([pods(10)], 1000)  # ten half-lives later the thousand weigh about one
    assert seen.typical(1000).pods[0].shape == PodShape(8000, 1, 1000)
    assert seen.typical(1000).pods[0].share == pytest.approx(10 / (10 + 1000 / 1024))


def test_silence_brings_the_default_back() -> None:
    seen = watch(half_life_s=100, enough=10)
    seen.add([pods(20)], 0)
    assert seen.typical(99) is not DEFAULT_MIX
    assert seen.typical(101) is DEFAULT_MIX
    assert seen.typical(1e9) is DEFAULT_MIX


def test_years_of_workloads_leave_the_weights_finite() -> None:
    seen = watch(half_life_s=1, enough=1)
    for year in range(5):
        seen.add([pods(3, cpu=year + 1)], year * 31_536_000.0)
    assert seen.typical(4 * 31_536_000.0) == Mix(
        (TypicalPod(PodShape(5000, 1, 1000), 1.0, 0),), 5000, 0
    )


def test_what_is_remembered_and_what_is_typical_are_bounded() -> None:
    seen = watch()
    for cpu in range(3 * MAX_SHAPES):
        seen.add([PodSet(cpu_milli=cpu, gpus=1)], 0)
    assert len(seen._seen) <= MAX_SHAPES
    assert len(seen.typical(0).pods) == MAX_TYPICAL


def test_distance_is_0_for_alike_and_1_for_nothing_in_common() -> None:
    one, other = watch(), watch()
    one.add([pods(10)], 0)
    other.add([pods(10, milli=500, cpu=8)], 0)
    assert distance(one.typical(0), one.typical(0)) == 0
    assert distance(one.typical(0), other.typical(0)) == 1
    both = watch()
    both.add([pods(10), pods(10, milli=500)], 0)
    assert distance(one.typical(0), both.typical(0)) == pytest.approx(0.5)

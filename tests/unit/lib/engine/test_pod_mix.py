"""The mix of arrivals: a fold that fades, is bounded, and is the same however it is come by."""

from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.lib.engine.scoring.pod_mix import (
    COUNTS_OF_ONE,
    FIRST_SAMPLE,
    LONGEST_PODS,
    MAX_TYPES,
    MEMORY_PODS,
    Mix,
    MixState,
    PodType,
    Sampled,
)
from berthmaster.lib.messages.workload import PodSet
from tests.support.builders import pod_set
from tests.unit.lib.engine.fleets import UNHURRIED

SHARED = pod_set(gpu_milli=470, cpu_milli=11_908)
WHOLE = pod_set(gpus=8, cpu_milli=64_000)
PLAIN = pod_set(gpus=0, cpu_milli=500)

arrivals = st.lists(
    st.builds(
        lambda gpus, milli, cpu, count: pod_set(
            gpus=gpus, gpu_milli=milli if gpus == 1 else 1000, cpu_milli=cpu, count=count
        ),
        st.integers(0, 3),
        st.sampled_from([100, 470, 1000]),
        st.sampled_from([500, 4000]),
        st.integers(1, 300),
    ),
    max_size=40,
)


def folded(pods: list[PodSet], state: MixState | None = None) -> Mix:
    mix = Mix(state)
    for each in pods:
        mix.add(each)
    return mix


def test_nothing_is_learned_before_there_is_something_to_learn_from() -> None:
    mix = folded([SHARED] * (FIRST_SAMPLE - 1))
    assert mix.newest == Sampled(0, ())
    mix.add(WHOLE)
    assert mix.newest.pods == FIRST_SAMPLE
    assert mix.newest.sample == (
        (PodType(1, 470, 11_908), COUNTS_OF_ONE * (FIRST_SAMPLE - 1)),
        (PodType(8, 1000, 64_000), COUNTS_OF_ONE),
    )


def test_a_gang_counts_as_its_pods_and_what_a_pod_without_gpus_says_of_them_does_not() -> None:
    mix = folded([pod_set(gpus=0, gpu_milli=300, cpu_milli=500, count=FIRST_SAMPLE)])
    assert mix.newest.sample == ((PodType(0, 0, 500), COUNTS_OF_ONE * FIRST_SAMPLE),)
    assert mix.state() == folded([PLAIN] * FIRST_SAMPLE).state()


def test_samples_are_taken_often_at_first_and_then_regularly() -> None:
    mix = Mix()
    taken: list[int] = []
    for _ in range(3 * MEMORY_PODS):
        before = mix.newest.pods
        mix.add(SHARED)
        if mix.newest.pods != before:
            taken.append(mix.newest.pods)
    assert taken[:4] == [32, 48, 72, 108]
    gaps = [b - a for a, b in pairwise(taken)]
    assert gaps == sorted(gaps)
    assert gaps[-1] == LONGEST_PODS


def test_what_stopped_arriving_fades_and_is_forgotten() -> None:
    mix = folded([SHARED] * 100)
    halvings = 0
    while PodType(1, 470, 11_908) in dict(mix.state().counts):
        mix.add(pod_set(gpus=8, cpu_milli=64_000, count=MEMORY_PODS))
        halvings += 1
        assert halvings < 20
    assert halvings > 5  # not at once either


def test_any_number_of_kinds_is_bounded() -> None:
    mix = Mix()
    for cpu in range(3 * MAX_TYPES):
        mix.add(pod_set(cpu_milli=cpu))
        assert len(mix.state().counts) <= MAX_TYPES


@UNHURRIED
@given(arrivals, st.integers(0, 40))
def test_restored_mix_learns_equally(pods: list[PodSet], at: int) -> None:
    whole = folded(pods)
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(folded(pods[:at]).state()), type=MixState)
    restored = folded(pods[at:], state)
    assert restored.state() == whole.state()
    assert restored.newest == whole.newest


@UNHURRIED
@given(arrivals)
def test_counts_are_whole_and_bounded(pods: list[PodSet]) -> None:
    state = folded(pods).state()
    total = sum(count for _, count in state.counts)
    assert total < 2 * COUNTS_OF_ONE * MEMORY_PODS
    assert state.pods == sum(each.count for each in pods)
    if state.pods * COUNTS_OF_ONE < 2 * COUNTS_OF_ONE * MEMORY_PODS:
        assert total == COUNTS_OF_ONE * state.pods

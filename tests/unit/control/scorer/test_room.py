import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from berthmaster.control.scorer.core.mix import DEFAULT_MIX, Mix, PodShape, TypicalPod, mix_of
from berthmaster.control.scorer.core.totals import (
    NodeRoom,
    ResourceUse,
    faulty_indices,
    room_of,
    stuck_of,
    use_of,
)
from berthmaster.lib.engine.fleet.clusters import without_closed
from berthmaster.lib.messages.fleet import Amounts, PodUse
from tests.unit.control.scorer.builders import gpu, pod, report


def a_mix(*pods: tuple[float, int, int, int]) -> Mix:
    """Shares of (cpu milli, GPUs, milli of each)."""
    return mix_of([TypicalPod(PodShape(cpu, n, milli), share, 0) for share, cpu, n, milli in pods])


def test_free_is_allocatable_less_foreign_less_ours() -> None:
    told = report(
        gpus=(gpu(0), gpu(1, foreign_milli=300), gpu(2), gpu(3)),
        cpu=64,
        memory_gib=256,
        tpus=4,
        foreign=Amounts(cpu_milli=4000, memory_mib=1024, gpu_milli=300, tpus=1),
        pods=(pod(2, 3, cpu=16, memory_gib=64), pod(1, milli=500)),
    )
    assert room_of(told) == NodeRoom(
        usable=True,
        cpu_milli=64_000,
        memory_mib=262_144,
        gpu_milli=4000,
        tpus=4,
        free_cpu_milli=43_000,
        free_memory_mib=262_144 - 1024 - 65 * 1024,
        free_gpu_milli=1200,
        free_tpus=3,
        left=(("A100", 1000), ("A100", 200), ("A100", 0), ("A100", 0)),
        devices=("A100",) * 4,
    )


@pytest.mark.parametrize("why", ["ready", "schedulable"])
def test_a_node_that_takes_no_pods_has_nothing_free_and_still_has_its_size(why: str) -> None:
    room = room_of(replace(report(gpus=2), **{why: False}))
    assert (room.usable, room.free, room.left) == (False, (0, 0, 0, 0), ())
    assert room.has == (128_000, 1024 * 1024, 2000, 0)


def test_an_unhealthy_gpu_and_a_lost_one_are_not_offered() -> None:
    told = report(gpus=(gpu(0), gpu(1, healthy=False), gpu(2)))
    assert room_of(told).left == (("A100", 1000), ("A100", 1000))
    lost = without_closed(told, faulty_indices(told, {"GPU-n1-2"}))
    assert (room_of(lost).left, room_of(lost).free_gpu_milli) == ((("A100", 1000),), 1000)


@pytest.mark.parametrize(
    ("unhealthy", "lost", "found"),
    [
        ((), {"#1"}, (1,)),
        # The device plugin knows of it: which of its GPUs that is, it does not say.
        ((3,), {"#1"}, ()),
        ((3,), {"#1", "#2"}, (1,)),
        ((3,), {"#3"}, ()),
        ((), {"#9", "GPU-elsewhere"}, ()),
    ],
)
def test_of_counted_gpus_those_are_lost_that_the_plugin_does_not_know_of(
    unhealthy: tuple[int, ...], lost: set[str], found: tuple[int, ...]
) -> None:
    gpus = tuple(replace(gpu(at, healthy=at not in unhealthy), uuid="") for at in range(4))
    assert faulty_indices(report(gpus=gpus), lost) == found


def test_a_node_that_reports_fewer_gpus_than_run_there_has_none_free() -> None:
    """Eight were in use when one fell off and the driver numbered the rest anew; then it lists
    two of which none is free, and owes what runs beyond."""
    room = room_of(report(gpus=2, pods=(pod(5, 6, 7),)))
    assert (room.left, room.free_gpu_milli, room.over_used) == (
        (("A100", 0), ("A100", 0)),
        -1000,
        True,
    )


def test_foreign_use_of_which_only_the_number_is_known_takes_the_freest_gpus() -> None:
    told = report(gpus=(gpu(0), gpu(1)), foreign=Amounts(gpu_milli=1400))
    assert room_of(told).left == (("A100", 600), ("A100", 0))


def test_a_node_with_less_allocatable_than_gpus_listed_is_believed_in_the_lesser() -> None:
    fewer = replace(
        report(gpus=4), allocatable=Amounts(cpu_milli=8000, memory_mib=10, gpu_milli=1000)
    )
    assert room_of(fewer).left_milli == 1000


def test_fgd_counts_what_is_too_small_and_all_of_it_where_the_node_cannot_host() -> None:
    room = room_of(report(gpus=(gpu(0), gpu(1, foreign_milli=600)), cpu=16))
    assert [milli for _, milli in room.left] == [1000, 400]

    whole = a_mix((1.0, 8000, 1, 1000))  # the 400 are too small
    half = a_mix((1.0, 8000, 1, 300))  # both are large enough
    two = a_mix((1.0, 8000, 2, 1000))  # the node cannot host it
    much_cpu = a_mix((1.0, 17_000, 1, 300))  # nor this
    both = a_mix((0.75, 8000, 1, 1000), (0.25, 8000, 2, 1000))
    assert [stuck_of(room, mix) for mix in (whole, half, two, much_cpu, both)] == [
        400_000,
        0,
        1_400_000,
        1_400_000,
        650_000,
    ]


def test_a_shape_of_another_model_finds_every_gpu_too_small() -> None:
    mix = mix_of([TypicalPod(PodShape(1000, 1, 500, ("H100",)), 1.0, 0)])
    room = room_of(report(gpus=(gpu(0), gpu(1, model="H100"))))
    assert stuck_of(room, mix) == 1_000_000
    assert stuck_of(room_of(report(gpus=1)), mix) == 1_000_000


def test_the_largest_gang_counts_whole_gpus_with_cpu_and_memory_beside_them() -> None:
    mix = mix_of([TypicalPod(PodShape(8000, 1, 1000), 1.0, 32 * 1024)])
    free = (gpu(0), gpu(1), gpu(2), gpu(3, foreign_milli=1), gpu(4, model="T4"))
    assert use_of(room_of(report(gpus=free)), mix).gang == (("A100", 3), ("T4", 1))
    assert use_of(room_of(report(gpus=free, cpu=17)), mix).gang == (("A100", 2), ("T4", 1))
    assert use_of(room_of(report(gpus=free, memory_gib=40)), mix).gang == (("A100", 1), ("T4", 1))
    assert use_of(room_of(report(gpus=free, cpu=7)), mix) == ResourceUse((), 4_999_000)


@given(
    st.lists(st.integers(0, 1000), max_size=8),
    st.lists(st.tuples(st.integers(0, 11), st.integers(1, 1000)), max_size=12),
    st.integers(0, 9000),
)
def test_more_use_never_leaves_more(
    foreign: list[int], pods: list[tuple[int, int]], hidden: int
) -> None:
    devices = tuple(gpu(at, foreign_milli=milli) for at, milli in enumerate(foreign))
    ours = tuple(pod(index, milli=milli) for index, milli in pods)
    total = sum(foreign)
    empty = room_of(report(gpus=devices, foreign=Amounts(gpu_milli=total)))
    used = room_of(report(gpus=devices, foreign=Amounts(gpu_milli=total + hidden), pods=ours))
    assert used.left_milli <= empty.left_milli
    assert used.free_gpu_milli == empty.free_gpu_milli - hidden - sum(milli for _, milli in pods)
    assert all(0 <= milli <= 1000 for _, milli in used.left)
    assert 0 <= stuck_of(used, DEFAULT_MIX) <= 1000 * used.left_milli


def test_tpus_of_our_pods_are_not_free_and_more_than_there_are_make_the_node_over_used() -> None:
    ours = tuple(
        PodUse(tenant="t", workload="w", attempt=1, pod=f"main-{n}", tpus=4) for n in range(3)
    )
    full, beyond = (room_of(report(gpus=0, tpus=8, pods=ours[:n])) for n in (2, 3))
    assert (full.free_tpus, full.over_used) == (0, False)
    assert (beyond.free_tpus, beyond.over_used) == (-4, True)

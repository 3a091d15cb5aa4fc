"""FreeRoom on nodes, and which node a rule of placement takes."""

import numpy as np
import pytest

from berthmaster.lab.emulator.fleets import ClusterSpec, NodeSpec
from berthmaster.lab.simulate.baseline_fleet import Allocation, BaselineFleet, Shape
from berthmaster.lab.simulate.placement_rules import (
    BestFit,
    FirstFit,
    Fragmentation,
    mix_of,
    pod_sets_of,
)
from berthmaster.lib.messages.workload import PodSet
from tests.support.builders import job as request
from tests.support.builders import pod_set
from tests.unit.lab.simulate.lists import job


def fleet(*gpus: int, clusters: int = 1) -> BaselineFleet:
    """Nodes with so many GPUs each, dealt to clusters in turn."""
    specs = [NodeSpec(f"n{at}", 8000, 1000, many, "A100") for at, many in enumerate(gpus)]
    return BaselineFleet(
        [
            ClusterSpec(f"c{number}", "eu", tuple(specs[number::clusters]))
            for number in range(clusters)
        ]
    )


def small(gpus: int = 1, milli: int = 1000, count: int = 1) -> tuple[PodSet, ...]:
    return (pod_set(count=count, gpus=gpus, gpu_milli=milli, cpu_milli=10, memory_mib=1),)


def test_a_pod_takes_the_fullest_gpus_and_gives_them_back() -> None:
    ground = fleet(4)
    part = request("part", pod_sets=small(milli=400))
    [first] = ground.allocate(part, BestFit()) or ()
    assert first == Allocation(0, 10, 1, 400, (0,))
    [second] = ground.allocate(part, BestFit()) or ()
    assert second.gpus == (0,)
    [third] = ground.allocate(part, BestFit()) or ()
    assert third.gpus == (1,)
    assert ground.free_milli == 4000 - 1200
    ground.give_back([first, second, third])
    assert ground.free_milli == 4000


def test_best_fit_takes_the_tightest_node_and_first_fit_the_first() -> None:
    pair = request("pair", pod_sets=small(gpus=2))
    assert [s.node for s in fleet(8, 2, 4).allocate(pair, BestFit()) or ()] == [1]
    assert [s.node for s in fleet(8, 2, 4).allocate(pair, FirstFit()) or ()] == [0]


def test_a_gang_is_whole_in_one_cluster_or_nowhere() -> None:
    ground = fleet(2, 2, 2, 2, clusters=2)  # c0 has n0 and n2, c1 has n1 and n3
    assert ground.allocate(request("five", pod_sets=small(count=5)), BestFit()) is None
    assert ground.free_milli == 8000
    allocations = ground.allocate(request("four", pod_sets=small(count=4)), BestFit())
    assert sorted(allocation.node for allocation in allocations or ()) == [0, 0, 1, 1]
    allocations = ground.allocate(request("three", pod_sets=small(count=3)), BestFit())
    assert sorted(allocation.node for allocation in allocations or ()) == [2, 2, 3]


def test_models_memory_and_labels_keep_pods_away() -> None:
    ground = fleet(2)
    for fields in (
        {"gpu_models": ("T4",)},
        {"gpu_memory_mib": 90_000},
        {"node_labels": {"a": "b"}},
    ):
        asked = request("x", pod_sets=(pod_set(memory_mib=1, **fields),))
        assert ground.allocate(asked, BestFit()) is None
    asked = request("y", pod_sets=(pod_set(memory_mib=1, gpu_models=("T4", "A100")),))
    assert ground.allocate(asked, BestFit()) is not None


def test_room_that_will_be_needed_later_counts_as_taken() -> None:
    ground = fleet(2, 2)
    spare = ground.room_of(0)
    spare.charge(0, Allocation(0, 0, 0, 1000, (0,)))
    assert ground.room_of(0).lesser(spare).gpu.tolist() == [[0, 1000]]
    pair = request("pair", pod_sets=small(gpus=2))
    assert [s.node for s in ground.allocate(pair, FirstFit(), {0: spare}) or ()] == [1]
    one = request("one", pod_sets=small())
    [allocation] = ground.allocate(one, FirstFit(), {0: spare}) or ()
    assert (allocation.node, allocation.gpus) == (0, (1,))


def test_the_fragmentation_of_a_node_is_what_the_usual_pods_cannot_use() -> None:
    mix = mix_of(
        pod_sets_of(
            [job("a", 0, 1), job("b", 0, 1), job("c", 0, 1, gpus=2), job("d", 0, 1, milli=500)]
        )
    )
    assert [(share, shape.gpus, shape.milli) for share, shape in mix] == [
        (0.5, 1, 1000),
        (0.25, 2, 1000),
        (0.25, 1, 500),
    ]
    ground = fleet(2, 1)
    fragmentation = Fragmentation(ground, mix)

    def lost(*gpus: int) -> float:
        room = ground.room_of(0)
        room.gpu[0, :] = gpus
        [found] = fragmentation.lost(np.array([0]), room)
        return float(found)

    assert lost(1000, 1000) == 0
    # 400 is too small for all; for the pair all 1400 are lost.
    assert lost(400, 1000) == pytest.approx(0.75 * 400 + 0.25 * 1400)
    assert lost(0, 0) == 0


def test_shapes_are_equal_where_pods_fit_alike() -> None:
    assert Shape.of(pod_set(name="a", count=3)) == Shape.of(pod_set(name="b"))
    assert Shape.of(pod_set(gpus=0, gpu_milli=1000)).milli == 0


@pytest.mark.parametrize(
    "too_much",
    [Allocation(0, 8001, 1, 0, ()), Allocation(0, 1, 1001, 0, ()), Allocation(0, 1, 1, 1001, (0,))],
    ids=["cpu", "memory", "gpu"],
)
def test_more_than_a_node_has_of_any_one_thing_is_too_much(too_much: Allocation) -> None:
    ground = fleet(1)
    ground.take(Allocation(0, 0, 0, 0, ()))
    assert not ground.overdrawn(too_much)
    ground.take(too_much)
    assert ground.overdrawn(too_much)

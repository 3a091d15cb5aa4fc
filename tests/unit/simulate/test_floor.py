"""Room on nodes, and which node a rule of placement takes."""

import pytest

from berthmaster.emulator.fleets import ClusterSpec, NodeSpec
from berthmaster.messages.workload import PodSet
from berthmaster.simulate.floor import Floor, Seat, Shape, copied, narrowed
from berthmaster.simulate.placing import (
    best_fit,
    first_fit,
    fragmented_milli,
    least_fragmenting,
    mix_of,
)
from tests.support.builders import job as request
from tests.support.builders import pod_set
from tests.unit.simulate.lists import job


def floor(*gpus: int, clusters: int = 1) -> Floor:
    """Nodes with so many GPUs each, dealt to clusters in turn."""
    specs = [NodeSpec(f"n{at}", 8000, 1000, many, "A100") for at, many in enumerate(gpus)]
    return Floor(
        [
            ClusterSpec(f"c{number}", "eu", tuple(specs[number::clusters]))
            for number in range(clusters)
        ]
    )


def small(gpus: int = 1, milli: int = 1000, count: int = 1) -> tuple[PodSet, ...]:
    return (pod_set(count=count, gpus=gpus, gpu_milli=milli, cpu_milli=10, memory_mib=1),)


def test_a_pod_takes_the_fullest_gpus_and_gives_them_back() -> None:
    ground = floor(4)
    part = request("part", pod_sets=small(milli=400))
    [first] = ground.seat(part, best_fit) or ()
    assert first == Seat(0, 10, 1, 400, (0,))
    [second] = ground.seat(part, best_fit) or ()
    assert second.gpus == (0,)
    [third] = ground.seat(part, best_fit) or ()
    assert third.gpus == (1,)
    assert ground.free_milli == 4000 - 1200
    ground.give_back([first, second, third])
    assert ground.free_milli == 4000


def test_best_fit_takes_the_tightest_node_and_first_fit_the_first() -> None:
    pair = request("pair", pod_sets=small(gpus=2))
    assert [s.node for s in floor(8, 2, 4).seat(pair, best_fit) or ()] == [1]
    assert [s.node for s in floor(8, 2, 4).seat(pair, first_fit) or ()] == [0]


def test_a_gang_is_whole_in_one_cluster_or_nowhere() -> None:
    ground = floor(2, 2, 2, 2, clusters=2)  # c0 has n0 and n2, c1 has n1 and n3
    assert ground.seat(request("five", pod_sets=small(count=5)), best_fit) is None
    assert ground.free_milli == 8000
    seats = ground.seat(request("four", pod_sets=small(count=4)), best_fit)
    assert sorted(seat.node for seat in seats or ()) == [0, 0, 1, 1]
    seats = ground.seat(request("three", pod_sets=small(count=3)), best_fit)
    assert sorted(seat.node for seat in seats or ()) == [2, 2, 3]


def test_models_memory_and_labels_keep_pods_away() -> None:
    ground = floor(2)
    for fields in (
        {"gpu_models": ("T4",)},
        {"gpu_memory_mib": 90_000},
        {"node_labels": {"a": "b"}},
    ):
        asked = request("x", pod_sets=(pod_set(memory_mib=1, **fields),))
        assert ground.seat(asked, best_fit) is None
    asked = request("y", pod_sets=(pod_set(memory_mib=1, gpu_models=("T4", "A100")),))
    assert ground.seat(asked, best_fit) is not None


def test_room_that_will_be_needed_later_counts_as_taken() -> None:
    ground = floor(2, 2)
    spare = copied(ground.nodes[0])
    spare.gpu = [0, 1000]
    assert narrowed(ground.nodes[0], spare).gpu == [0, 1000]
    pair = request("pair", pod_sets=small(gpus=2))
    assert [s.node for s in ground.seat(pair, first_fit, {0: spare}) or ()] == [1]
    one = request("one", pod_sets=small())
    [seat] = ground.seat(one, first_fit, {0: spare}) or ()
    assert (seat.node, seat.gpus) == (0, (1,))


def test_the_fragmentation_of_a_node_is_what_the_usual_pods_cannot_use() -> None:
    mix = mix_of(
        [job("a", 0, 1), job("b", 0, 1), job("c", 0, 1, gpus=2), job("d", 0, 1, milli=500)]
    )
    assert [(share, shape.gpus, shape.milli) for share, shape in mix] == [
        (0.5, 1, 1000),
        (0.25, 1, 500),
        (0.25, 2, 1000),
    ]
    [node] = floor(2).nodes
    assert fragmented_milli(node, mix) == 0
    node.gpu = [400, 1000]
    # 400 is too small for all; for the pair all 1400 are lost.
    assert fragmented_milli(node, mix) == pytest.approx(0.75 * 400 + 0.25 * 1400)
    node.gpu = [0, 0]
    assert fragmented_milli(node, mix) == 0


def test_least_fragmenting_leaves_whole_gpus_to_those_who_need_them() -> None:
    jobs = [job("w", 0, 1, gpus=2), job("p", 0, 1, milli=500)]
    ground = floor(2, 1)
    [seat] = ground.seat(jobs[1].request, least_fragmenting(mix_of(jobs))) or ()
    assert seat.node == 1  # on the pair's node it would cost the pair


def test_shapes_are_equal_where_pods_fit_alike() -> None:
    assert Shape.of(pod_set(name="a", count=3)) == Shape.of(pod_set(name="b"))
    assert Shape.of(pod_set(gpus=0, gpu_milli=1000)).milli == 0

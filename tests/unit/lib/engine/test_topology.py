"""How pods of a gang stand to each other: the fast choice against counting nodes one by one."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from berthmaster.lib.engine.fitting.fit import Bound, bind_gang
from berthmaster.lib.engine.fleet.fleet import Fleet
from berthmaster.lib.engine.fleet.needs import suitable_nodes
from berthmaster.lib.messages.fleet import NodeReport
from berthmaster.lib.messages.workload import PodSet, Topology
from tests.support.builders import node, pod_set
from tests.unit.lib.engine.fleets import UNHURRIED

RACK = "rack"


def fleet_of(*reports: NodeReport) -> Fleet:
    fleet = Fleet()
    for report in reports:
        fleet.put_node(report)
    fleet.arrange()
    return fleet


def racks(**cpus_of_nodes: tuple[int, ...]) -> Fleet:
    """Nodes without GPUs, by rack, with so many CPUs each; "none" has no label."""
    return fleet_of(
        *(
            node(
                name=f"{rack}{at}",
                gpus=0,
                cpu_milli=1000 * cpus,
                labels={} if rack == "none" else {RACK: rack},
            )
            for rack, each in cpus_of_nodes.items()
            for at, cpus in enumerate(each)
        )
    )


def cpus(count: int, each: int, **topology: object) -> PodSet:
    return pod_set(
        count=count,
        gpus=0,
        cpu_milli=1000 * each,
        memory_mib=0,
        topology=Topology(**topology),  # type: ignore[arg-type]
    )


def seated(fleet: Fleet, *sets: PodSet) -> Bound | None:
    before = [fleet.arrays.cpu.copy(), fleet.arrays.gpu.copy(), fleet.arrays.milli.copy()]
    suitables = [suitable_nodes(fleet, pods) for pods in sets]
    found = bind_gang(fleet, 0, sets, suitables)
    for array, was in zip(
        (fleet.arrays.cpu, fleet.arrays.gpu, fleet.arrays.milli), before, strict=True
    ):
        np.testing.assert_array_equal(array, was)  # it only looked
    return found


def nodes_of(found: Bound | None) -> list[str]:
    assert found is not None
    return [binding.node for binding in found.bindings]


# Armada's uniformity: all members of a gang on nodes of one label's value


def test_a_gang_of_three_that_no_domain_holds_goes_nowhere() -> None:
    # Two domains of one node with 32 CPUs each hold two members of 16 each.
    assert seated(racks(a=(32,), b=(32,)), cpus(3, 16, same=RACK)) is None
    assert seated(racks(a=(32,), b=(32,)), cpus(3, 16)) is not None  # without it, they may part


def test_a_gang_of_three_goes_to_the_domain_of_three_nodes() -> None:
    found = seated(racks(a=(32, 32), b=(32, 32, 32)), cpus(3, 32, same=RACK))
    assert sorted(nodes_of(found)) == ["b0", "b1", "b2"]


def test_nodes_without_the_label_are_in_no_domain() -> None:
    need = cpus(2, 32, same=RACK)
    fleet = racks(a=(32,), none=(32, 32, 32))
    assert seated(fleet, need) is None
    alone = racks(none=(32, 32))
    assert seated(alone, need) is None
    assert suitable_nodes(alone, need).why_not == {"c1": f"no node has the label ({RACK})"}


def test_of_domains_with_room_the_one_with_least_to_spare_is_taken() -> None:
    fleet = racks(a=(64, 64), b=(32, 32), c=(64,))
    assert set(nodes_of(seated(fleet, cpus(2, 32, same=RACK)))) <= {"b0", "b1", "c0"}
    assert {n[0] for n in nodes_of(seated(fleet, cpus(4, 32, same=RACK)))} == {"a"}


# One node, few nodes, many nodes


def test_pods_of_one_node_are_on_one_that_holds_them_all_and_best_fits() -> None:
    fleet = fleet_of(node(name="a", gpus=8), node(name="b", gpus=4), node(name="c", gpus=2))
    together = pod_set(count=2, gpus=2, topology=Topology(same="node"))
    assert nodes_of(seated(fleet, together)) == ["b", "b"]
    assert seated(fleet, replace(together, count=5)) is None


def test_sets_that_name_the_same_are_kept_together() -> None:
    fleet = racks(a=(32, 8), b=(32, 32, 1), c=(40,))
    worker = replace(cpus(2, 16, same=RACK), name="worker")
    leader = replace(cpus(1, 8, same=RACK), name="leader")
    found = seated(fleet, leader, worker)
    assert {n[0] for n in nodes_of(found)} in ({"a"}, {"c"})
    found = seated(fleet, replace(leader, count=4), worker)
    assert {n[0] for n in nodes_of(found)} == {"b"}
    # Each set has a node for itself, but none has one for both.
    alone = replace(worker, topology=Topology(same="node"))
    assert seated(racks(a=(32,), b=(32,)), alone, replace(leader, topology=alone.topology)) is None
    assert seated(racks(a=(32,), b=(40,)), alone, replace(leader, topology=alone.topology))


def test_sets_that_name_different_things_are_kept_apart_from_each_other() -> None:
    fleet = racks(a=(16, 16), b=(32,))
    first = replace(cpus(2, 16, same=RACK), name="first")
    second = replace(cpus(2, 16, same="node"), name="second")
    found = seated(fleet, first, second)
    assert nodes_of(found) == ["a0", "a1", "b0", "b0"]


@pytest.mark.parametrize(("limit", "nodes"), [(1, 4), (2, 2), (3, 2)])
def test_at_most_so_many_pods_are_on_a_node(limit: int, nodes: int) -> None:
    fleet = fleet_of(*(node(name=f"n{at}", gpus=8) for at in range(4)))
    found = nodes_of(seated(fleet, pod_set(count=4, topology=Topology(max_pods_a_node=limit))))
    assert max(found.count(name) for name in found) <= limit
    assert len(set(found)) >= nodes
    assert (
        seated(fleet, pod_set(count=4 * limit + 1, topology=Topology(max_pods_a_node=limit)))
        is None
    )


def test_few_nodes_are_the_largest_ones_and_the_last_is_the_tightest() -> None:
    fleet = fleet_of(
        node(name="a", gpus=2),
        node(name="b", gpus=8),
        node(name="c", gpus=3),
        node(name="d", gpus=6),
    )
    few = pod_set(count=10, cpu_milli=0, topology=Topology(nodes="fewest"))
    assert sorted(nodes_of(seated(fleet, few))) == ["a"] * 2 + ["b"] * 8
    assert set(nodes_of(seated(fleet, replace(few, count=3)))) == {"c"}


# Laws


@st.composite
def clusters(draw: st.DrawFn) -> Fleet:
    """Up to eight nodes in up to three racks."""
    return fleet_of(
        *(
            node(
                name=f"n{at}",
                gpus=draw(st.integers(0, 4)),
                cpu_milli=draw(st.integers(0, 8)) * 1000,
                labels=draw(st.sampled_from([{}, {RACK: "a"}, {RACK: "b"}, {RACK: "c"}])),
                schedulable=draw(st.sampled_from([True, True, False])),
            )
            for at in range(draw(st.integers(1, 8)))
        )
    )


@st.composite
def gangs(draw: st.DrawFn) -> PodSet:
    gpus = draw(st.integers(0, 2))
    return pod_set(
        count=draw(st.integers(1, 8)),
        gpus=gpus,
        gpu_milli=draw(st.sampled_from([300, 1000])) if gpus == 1 else 1000,
        cpu_milli=draw(st.integers(0, 3)) * 1000,
        memory_mib=0,
        topology=Topology(
            same=draw(st.sampled_from(["", "node", RACK])),
            max_pods_a_node=draw(st.integers(0, 3)),
            nodes=draw(st.sampled_from(["", "fewest"])),
        ),
    )


def slow_room(report: NodeReport, need: PodSet) -> int:
    """Pods that one node holds, counted one by one."""
    topology = need.topology
    assert topology is not None
    if not (report.ready and report.schedulable):
        return 0
    if topology.same == RACK and RACK not in report.labels:
        return 0
    cpu, gpus = report.allocatable.cpu_milli, [1000] * len(report.gpus)
    limit = topology.max_pods_a_node or need.count
    held = 0
    while held < min(limit, need.count) and cpu >= need.cpu_milli:
        taken = [at for at, free in enumerate(gpus) if free >= need.gpu_milli][: need.gpus]
        if len(taken) < need.gpus:
            break
        for at in taken:
            gpus[at] -= need.gpu_milli
        cpu -= need.cpu_milli
        held += 1
    return held


def slow_places(fleet: Fleet, need: PodSet) -> list[list[int]]:
    """Of each place that pods could share: what its nodes hold."""
    assert need.topology is not None
    places: dict[str, list[int]] = {}
    for report in fleet.reports():
        name = {"": "all", "node": report.node}.get(need.topology.same, report.labels.get(RACK, ""))
        places.setdefault(name, []).append(slow_room(report, need))
    return list(places.values())


@settings(UNHURRIED, max_examples=120)
@given(clusters(), gangs())
def test_seat_is_found_where_possible(fleet: Fleet, need: PodSet) -> None:
    assert need.topology is not None
    able = [rooms for rooms in slow_places(fleet, need) if sum(rooms) >= need.count]
    found = seated(fleet, need)
    assert (found is not None) == bool(able)
    if found is None:
        return
    names = [binding.node for binding in found.bindings]
    assert len(names) == need.count
    reports = {report.node: report for report in fleet.reports()}
    for name in set(names):
        assert names.count(name) <= slow_room(reports[name], need)
    if need.topology.same == "node":
        assert len(set(names)) == 1
    elif need.topology.same == RACK:
        assert len({reports[name].labels[RACK] for name in names}) == 1
    if need.topology.nodes == "fewest" and not need.topology.same:
        [rooms] = able
        fewest = next(n for n in range(1, 9) if sum(sorted(rooms, reverse=True)[:n]) >= need.count)
        assert len(set(names)) == fewest


@settings(UNHURRIED, max_examples=80)
@given(clusters(), st.lists(gangs(), min_size=2, max_size=3))
def test_mixed_gang_is_seated_whole(fleet: Fleet, sets: list[PodSet]) -> None:
    named = [replace(pods, name=f"s{at}", count=min(pods.count, 3)) for at, pods in enumerate(sets)]
    found = seated(fleet, *named)
    if found is None:
        return
    assert [b.pod for b in found.bindings] == [
        f"{pods.name}-{at}" for pods in named for at in range(pods.count)
    ]
    fleet.charge(found.holdings, +1)  # all of it at once is no more than there is
    assert (fleet.arrays.cpu >= 0).all()
    assert (fleet.arrays.gpu[fleet.arrays.gpu > -100_000] >= 0).all()


# Absurd input


@pytest.mark.parametrize(
    "topology",
    [
        Topology(max_pods_a_node=1),
        Topology(same="node"),
        Topology(same=RACK, nodes="fewest"),
        Topology(same="no-such-label"),
        Topology(nodes="fewest"),
    ],
)
def test_what_can_never_be_is_told_soon(topology: Topology) -> None:
    fleet = fleet_of(
        *(node(name=f"n{at:04}", gpus=8, labels={RACK: f"r{at % 300}"}) for at in range(1213))
    )
    assert len(fleet.names) == 1213
    began_s = time.process_time()
    assert seated(fleet, pod_set(count=4096, gpus=8, topology=topology)) is None
    assert time.process_time() - began_s < 60  # a bound on runaway, not on speed


def test_a_spread_of_many_pods_over_few_nodes_is_refused() -> None:
    fleet = fleet_of(*(node(name=f"n{at}", gpus=8) for at in range(10)))
    many = pod_set(count=4096, gpus=0, cpu_milli=0, memory_mib=0)
    assert seated(fleet, replace(many, topology=Topology(max_pods_a_node=1))) is None
    assert (
        len(
            set(
                nodes_of(
                    seated(fleet, replace(many, count=10, topology=Topology(max_pods_a_node=1)))
                )
            )
        )
        == 10
    )

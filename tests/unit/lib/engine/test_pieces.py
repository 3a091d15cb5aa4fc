"""TPUs and other extended resources as pieces of nodes, and slices that several nodes make up."""

from typing import Any

import numpy as np
from msgspec.structs import replace

from berthmaster.lib.engine.fitting.fit import Bound, bind_gang, holding
from berthmaster.lib.engine.fitting.topology import never
from berthmaster.lib.engine.fleet.fleet import Fleet
from berthmaster.lib.engine.fleet.needs import suitable_nodes
from berthmaster.lib.engine.scoring.score_cache import room_of
from berthmaster.lib.jobs.pods import pod_spec
from berthmaster.lib.lifecycle.workload import key
from berthmaster.lib.messages.fleet import Amounts, NodeReport, Taint
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import PodSet, RunSpec, Topology
from tests.support.builders import node

TPU = "google.com/tpu"
HCA = "rdma/hca"
LABELS = "cloud.google.com/gke-"


def host(
    name: str,
    *,
    cluster: str = "c1",
    tpus: int = 0,
    hca: int = 0,
    foreign: Amounts | None = None,
    topology: str = "",
    pool: str = "",
    kind: str = "tpu-v6e-slice",
) -> NodeReport:
    labels = {f"{LABELS}tpu-accelerator": kind} if tpus else {}
    if topology:
        labels[f"{LABELS}tpu-topology"] = topology
    if pool:
        labels[f"{LABELS}nodepool"] = pool
    report = node(cluster, name, gpus=0, labels=labels)
    pieces = {HCA: hca} if hca else {}
    allocatable = replace(report.allocatable, tpus=tpus, pieces=pieces)
    return replace(report, allocatable=allocatable, foreign=foreign or Amounts())


def fleet_of(*reports: NodeReport) -> Fleet:
    fleet = Fleet()
    for report in reports:
        fleet.put_node(report)
    fleet.arrange()
    return fleet


def room(fleet: Fleet, **fields: Any) -> list[int]:
    pods = PodSet(**fields)
    found: list[int] = room_of(fleet, pods, suitable_nodes(fleet, pods), slice(None)).tolist()
    return found


def why_not(fleet: Fleet, **fields: Any) -> str:
    return suitable_nodes(fleet, PodSet(**fields)).why_not.get("c1", "")


def seat(fleet: Fleet, *sets: PodSet) -> Bound | None:
    return bind_gang(fleet, 0, sets, [suitable_nodes(fleet, p) for p in sets])


def nodes_of(bound: Bound | None) -> dict[str, str]:
    return {b.pod: b.node for b in bound.bindings} if bound is not None else {}


def test_pieces_are_what_strangers_and_our_pods_leave_of_them() -> None:
    foreign = Amounts(tpus=1, pieces={HCA: 1})
    fleet = fleet_of(host("a", tpus=8, hca=4, foreign=foreign), host("b", hca=1))
    assert room(fleet, tpus=2) == [3, 0]
    assert room(fleet, resources={HCA: 1}) == [3, 1]
    assert room(fleet, tpus=1, resources={HCA: 2}) == [1, 0]
    held = holding("c1", PodBinding(pod="main-0", node="a"), PodSet(tpus=4, resources={HCA: 2}))
    fleet.hold(key("t", "one"), [held])
    assert (room(fleet, tpus=2), room(fleet, resources={HCA: 1})) == ([1, 0], [1, 1])
    # A report changes what strangers have, and what is ours stays charged.
    assert fleet.put_node(host("a", tpus=8, hca=4))
    assert (room(fleet, tpus=2), room(fleet, resources={HCA: 1})) == ([2, 0], [2, 1])
    assert not fleet.put_node(host("a", tpus=8, hca=4, foreign=foreign))
    fleet.release(key("t", "one"))
    assert (room(fleet, tpus=2), room(fleet, resources={HCA: 1})) == ([3, 0], [3, 1])
    # Of a node that nobody has reported yet it is charged once it is.
    fleet.hold(key("t", "two"), [holding("c1", PodBinding(pod="m-0", node="c"), PodSet(tpus=3))])
    fleet.put_node(host("c", tpus=4))
    fleet.arrange()
    assert room(fleet, tpus=1) == [7, 0, 1]


def test_nodes_without_them_say_what_is_missing() -> None:
    fleet = fleet_of(host("a", tpus=4, topology="2x2"), host("b", hca=1))
    assert why_not(fleet, tpus=4) == ""
    assert why_not(fleet, tpus=8) == "too few pieces a node (google.com/tpu)"
    assert why_not(fleet, tpus=4, tpu_topology="2x4", count=2) == "no such TPU topology (2x4)"
    assert why_not(fleet, tpus=1, tpu_accelerators=("tpu-v5p-slice",)) == "no such kind of TPU"
    assert why_not(fleet, tpus=1, resources={HCA: 1}) == "no such resource (rdma/hca)"
    assert why_not(fleet, resources={"none.example/x": 1}) == "no such resource (none.example/x)"
    assert why_not(fleet_of(host("b", hca=1)), tpus=1) == "no TPUs"
    # A slice takes all TPUs of each of its nodes.
    large = fleet_of(host("a", tpus=8, topology="4x4", pool="p"))
    asks: dict[str, Any] = {"tpus": 4, "tpu_topology": "4x4", "count": 4}
    assert why_not(large, **asks) == "TPU nodes of another size (8)"
    nowhere = fleet_of(host("a", tpus=4, topology="4x4"))
    assert why_not(nowhere, **asks) == f"no node has the label ({LABELS}nodepool)"


def test_who_asks_for_a_resource_tolerates_the_taint_of_its_name_and_no_other() -> None:
    tainted = replace(host("a", tpus=4, hca=1), taints=(Taint(key=TPU, value="present"),))
    fleet = fleet_of(tainted)
    assert why_not(fleet, tpus=4) == ""
    assert why_not(fleet, resources={HCA: 1}) == f"nodes are tainted ({TPU})"
    assert why_not(fleet) == f"nodes are tainted ({TPU})"
    going = replace(tainted, taints=(Taint(key=TPU, effect="NoExecute"),))
    assert why_not(fleet_of(going), tpus=4) == f"nodes are tainted ({TPU})"
    made = pod_spec(RunSpec(image="a"), PodSet(tpus=4), tenant="t", account="", devices={})
    assert made["tolerations"] == [{"key": TPU, "operator": "Exists", "effect": "NoSchedule"}]


def test_a_slice_is_seated_on_one_pool_that_has_it_free_and_several_on_pools_of_their_own() -> None:
    pools = {"east": "ab", "north": "cd", "west": "ef"}
    reports = [
        host(f"{pool}-{name}", tpus=4, topology="2x4", pool=pool)
        for pool, names in pools.items()
        for name in names
    ]
    fleet = fleet_of(*reports)
    one = PodSet(name="one", count=2, tpus=4, tpu_topology="2x4")
    assert nodes_of(seat(fleet, one)) == {"one-0": "east-a", "one-1": "east-b"}
    # Half a pool is no place, whoever has the other half.
    fleet.hold(key("t", "x"), [holding("c1", PodBinding(pod="m-0", node="east-b"), PodSet(tpus=1))])
    assert nodes_of(seat(fleet, one)) == {"one-0": "north-c", "one-1": "north-d"}
    two = replace(one, name="two")
    assert nodes_of(seat(fleet, one, two)) == {
        "one-0": "north-c",
        "one-1": "north-d",
        "two-0": "west-e",
        "two-1": "west-f",
    }
    assert seat(fleet, one, two, replace(one, name="three")) is None
    fleet.release(key("t", "x"))
    assert len({n.partition("-")[0] for n in nodes_of(seat(fleet, one, two)).values()}) == 2
    # Nothing is left charged by those that were tried.
    assert fleet.arrays.pieces[TPU].tolist() == [4] * 6


def test_many_slices_of_many_pools_are_found_at_once() -> None:
    fleet = fleet_of(
        *(
            host(f"n{pool:02}-{at}", tpus=4, topology="2x4", pool=f"p{pool}")
            for pool in range(12)
            for at in range(2)
        )
    )
    sets = [PodSet(name=f"s{n}", count=2, tpus=4, tpu_topology="2x4") for n in range(12)]
    seated = nodes_of(seat(fleet, *sets))
    assert len(seated) == 24
    assert len(set(seated.values())) == 24
    assert seat(fleet, *sets, replace(sets[0], name="more")) is None


def test_what_no_pool_could_ever_hold_is_told() -> None:
    slice_ = PodSet(count=4, tpus=4, tpu_topology="4x4")
    fleet = fleet_of(
        *(host(f"n{at}", tpus=4, topology="4x4", pool=f"p{at // 2}") for at in range(4))
    )
    said = never(fleet, 0, [slice_], [suitable_nodes(fleet, slice_)])
    assert said.endswith(f"({LABELS}nodepool)")
    whole = fleet_of(*(host(f"n{at}", tpus=4, topology="4x4", pool="p") for at in range(4)))
    assert never(whole, 0, [slice_], [suitable_nodes(whole, slice_)]) == ""
    spread = PodSet(count=3, resources={HCA: 2}, topology=Topology(max_pods_a_node=1))
    few = fleet_of(host("a", hca=2), host("b", hca=2), host("c", hca=1))
    assert never(few, 0, [spread], [suitable_nodes(few, spread)]).startswith("too few nodes")


def test_pods_go_where_fewest_pieces_stay_free_and_gpu_nodes_are_untouched() -> None:
    fleet = fleet_of(
        host("a", tpus=8), host("b", tpus=8, foreign=Amounts(tpus=5)), replace(node("c1", "c"))
    )
    assert nodes_of(seat(fleet, PodSet(count=3, tpus=1))) == {f"main-{n}": "b" for n in range(3)}
    assert nodes_of(seat(fleet, PodSet(tpus=4))) == {"main-0": "a"}
    assert np.array_equal(fleet.arrays.whole, [0, 0, 8])

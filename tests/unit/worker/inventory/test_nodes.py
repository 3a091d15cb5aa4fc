"""Whole nodes: what the fleet is told of them with what is on them."""

from typing import Any

import pytest

from berthmaster.lib.accelerators.written import ALLOCATED, read_hami
from berthmaster.lib.kube.bounds import bounded_labels
from berthmaster.lib.kube.controller.problems import Problem, Problems
from berthmaster.lib.messages.fleet import Amounts, GpuDevice, NodeReport, PodUse, Share, Taint
from berthmaster.worker.inventory.core.devices.dra import Offered
from berthmaster.worker.inventory.core.node_index import NodeIndex
from berthmaster.worker.inventory.core.nodes import UNUSABLE, shape_of
from tests.unit.worker.inventory.objects import (
    FALSE,
    NOW_S,
    STAMP,
    asks,
    claim,
    device,
    discovered,
    node,
    ours,
    pod,
    resource_slice,
)

GPU = "nvidia.com/gpu"


def book() -> NodeIndex:
    return NodeIndex("east", Problems())


def told(nodes: NodeIndex, name: str = "n1") -> NodeReport:
    report = nodes.report(name, STAMP, NOW_S)
    assert report is not None
    return report


def t4(index: int, foreign_milli: int = 0, *, healthy: bool = True) -> GpuDevice:
    return GpuDevice(
        index=index,
        uuid="",
        model="Tesla-T4",
        memory_mib=15_360,
        healthy=healthy,
        foreign_milli=foreign_milli,
    )


def use(pod_name: str, gpus: tuple[int, ...], gpu_milli: int = 1000, **more: Any) -> PodUse:
    return PodUse(
        tenant="acme",
        workload="train",
        attempt=more.pop("attempt", 1),
        pod=pod_name,
        gpus=gpus,
        gpu_milli=gpu_milli if gpus else 0,
        **more,
    )


def test_a_node_with_pods_of_ours_and_of_others() -> None:
    nodes = book()
    labels = discovered() | {"team": "vision"}
    nodes.set_node(
        node(
            "n1",
            {GPU: "4"},
            labels=labels,
            taints=[
                {"key": "gpu", "value": "yes", "effect": "NoSchedule"},
                {"key": "x", "effect": "Later"},
            ],
        )
    )
    nodes.set_pod(pod("notebook", {"cpu": "2", "memory": "1Gi", GPU: "1"}))
    nodes.set_pod(pod("logger", {"cpu": "100m", "memory": "100Mi"}, namespace="kube-system"))
    nodes.set_pod(ours("main-0", {"cpu": "1", "memory": "2Gi", GPU: "2"}))
    nodes.set_pod(pod("elsewhere", {GPU: "1"}, on="n2"))
    nodes.set_pod(pod("over", {GPU: "1"}, phase="Succeeded"))

    assert told(nodes) == NodeReport(
        cluster="east",
        node="n1",
        stamp=STAMP,
        observed_at_s=NOW_S,
        ready=True,
        schedulable=True,
        labels=labels,
        taints=(Taint(key="gpu", value="yes"),),
        allocatable=Amounts(cpu_milli=8000, memory_mib=16_384, gpu_milli=4000),
        foreign=Amounts(cpu_milli=2100, memory_mib=1124, gpu_milli=1000),
        # Ours are taken to have the first, the others' pods the last.
        gpus=(t4(0), t4(1), t4(2), t4(3, 1000)),
        pods=(use("main-0", (0, 1), cpu_milli=1000, memory_mib=2048),),
        fractions=False,
        problems=("taint x: unknown effect 'Later'",),
    )


def test_a_node_that_is_cordoned_not_ready_or_on_its_way_out_says_so() -> None:
    plain = shape_of(node(), Offered())
    assert (plain.ready, plain.schedulable) == (True, True)
    assert not shape_of(node(ready=FALSE), Offered()).ready
    assert not shape_of(node(ready="Unknown"), Offered()).ready
    assert not shape_of(node(unschedulable=True), Offered()).schedulable
    assert not shape_of(node(deleted=True), Offered()).schedulable


def test_gpus_stay_charged_to_whom_they_were_charged() -> None:
    nodes = book()
    nodes.set_node(node("n1", {GPU: "4"}, labels=discovered()))
    nodes.set_pod(ours("main-0", {GPU: "1"}))
    nodes.set_pod(ours("main-1", {GPU: "1"}))
    assert told(nodes).pods == (use("main-0", (0,)), use("main-1", (1,)))
    # Where the device plugin's choice is known, it counts, and the rest is guessed around it.
    nodes.set_pod(ours("main-2", {GPU: "1"}, annotations={"berthmaster.io/gpus": "0"}))
    assert told(nodes).pods == (use("main-0", (1,)), use("main-1", (2,)), use("main-2", (0,)))
    # More than one pod for each GPU cannot be, but a report must still be made.
    nodes.set_pod(pod("big", {GPU: "3"}))
    assert [gpu.foreign_milli for gpu in told(nodes).gpus] == [0, 1000, 1000, 1000]


def test_an_annotation_that_does_not_fit_the_node_or_the_pod_is_not_believed() -> None:
    nodes = book()
    nodes.set_node(node("n1", {GPU: "2"}, labels=discovered()))
    for wrong in ("7", "0,1", "first", "-1", ""):
        nodes.set_pod(ours("main-0", {GPU: "1"}, annotations={"berthmaster.io/gpus": wrong}))
        assert told(nodes).pods == (use("main-0", (0,)),)


def test_all_four_labels_make_a_pod_ours() -> None:
    nodes = book()
    nodes.set_node(node())
    partly = {"berthmaster.io/tenant": "acme", "berthmaster.io/workload": "train"}
    nodes.set_pod(pod("a", {"cpu": "1"}, labels=partly))
    whole = partly | {"berthmaster.io/pod": "main-0"}
    for n, attempt in enumerate(("", "0", "one", "1" * 10)):
        nodes.set_pod(
            pod(f"b{n}", {"cpu": "1"}, labels=whole | {"berthmaster.io/attempt": attempt})
        )
    assert (told(nodes).foreign.cpu_milli, told(nodes).pods) == (5000, ())


def test_an_unhealthy_gpu_is_listed_and_the_others_are_charged_before_it() -> None:
    nodes = book()
    nodes.set_node(node("n1", {GPU: "2"}, capacity={GPU: "3"}, labels=discovered()))
    nodes.set_pod(pod("a", {GPU: "1"}))
    assert told(nodes).gpus == (t4(0), t4(1, 1000), t4(2, healthy=False))
    assert told(nodes).allocatable.gpu_milli == 3000


def test_shares_are_charged_by_their_part_and_such_a_gpu_is_never_whole() -> None:
    nodes = book()
    shared = "nvidia.com/gpu.shared"
    labels = discovered(count=2) | {"nvidia.com/gpu.replicas": "4"}
    nodes.set_node(node("n1", {shared: "8"}, labels=labels))
    assert [(g.withheld_milli, g.foreign_milli) for g in told(nodes).gpus] == [(1, 0), (1, 0)]
    nodes.set_pod(pod("a", {shared: "1"}))
    nodes.set_pod(pod("b", {shared: "1"}))
    nodes.set_pod(ours("main-0", {shared: "1"}))
    report = told(nodes)
    assert [gpu.foreign_milli for gpu in report.gpus] == [0, 2 * 249]
    assert report.pods == (use("main-0", (0,), 249),)
    assert (report.fractions, report.shares) == (
        True,
        (Share(resource=shared, milli=250, count=8, kind="shared"),),
    )


def test_a_pod_may_have_several_parts_of_one_gpu_and_no_more_than_there_are() -> None:
    nodes = book()
    shared = "nvidia.com/gpu.shared"
    labels = discovered(count=1) | {"nvidia.com/gpu.replicas": "4"}
    nodes.set_node(node("n1", {shared: "4"}, labels=labels))
    nodes.set_pod(pod("a", {shared: "3"}))
    assert [(g.withheld_milli, g.foreign_milli) for g in told(nodes).gpus] == [(1, 3 * 249)]
    nodes.set_pod(pod("a", {shared: "99"}))
    assert [gpu.foreign_milli for gpu in told(nodes).gpus] == [4 * 249]  # with the rest: 997


def test_a_pod_that_goes_leaves_the_others_of_its_node() -> None:
    nodes = book()
    nodes.set_node(node("n1", {GPU: "3"}, labels=discovered()))
    for name in ("a", "b"):
        nodes.set_pod(pod(name, {GPU: "1"}))
    nodes.drop_pod(("team", "a"))
    assert [gpu.foreign_milli for gpu in told(nodes).gpus] == [0, 0, 1000]
    nodes.drop_pod(("team", "b"))
    assert [gpu.foreign_milli for gpu in told(nodes).gpus] == [0, 0, 0]


def test_hami_tells_which_gpus_a_pod_has_and_how_much_of_them() -> None:
    nodes = book()
    register = (
        '[{"id":"GPU-a","devmem":10000,"type":"NVIDIA-A10","health":true},'
        '{"id":"GPU-b","devmem":10000,"type":"NVIDIA-A10","health":true}]'
    )
    nodes.set_node(node("n1", {GPU: "20"}, annotations={"hami.io/node-nvidia-register": register}))
    asked = {GPU: "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "20"}
    chosen = {"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,3000,20:;"}
    nodes.set_pod(pod("known", asked, annotations=chosen))
    nodes.set_pod(pod("not-yet", {GPU: "1", "nvidia.com/gpumem-percentage": "50"}))
    part = {"nvidia.com/gpucores": "40", "nvidia.com/gpumem-percentage": "40"}
    nodes.set_pod(ours("main-0", {GPU: "1"} | part))
    report = told(nodes)
    # 3000 of 10,000 MiB is more than 20 % of the compute; half the memory is half the GPU.
    assert [gpu.foreign_milli for gpu in report.gpus] == [300, 500]
    assert report.pods == (use("main-0", (0,), 400),)
    # Who does not say how much memory gets all of it, whatever he says of the compute.
    nodes.drop_pod(("team", "not-yet"))
    nodes.set_pod(pod("greedy", {GPU: "1", "nvidia.com/gpucores": "10"}))
    assert [gpu.foreign_milli for gpu in told(nodes).gpus] == [300, 1000]


def test_hami_gives_no_gpu_to_more_pods_than_it_is_split_for() -> None:
    nodes = book()
    register = '[{"id":"GPU-a","count":4,"devmem":10000,"type":"NVIDIA-A10","health":true}]'
    nodes.set_node(node("n1", {GPU: "4"}, annotations={"hami.io/node-nvidia-register": register}))
    for number in range(4):
        chosen = {"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,100,1:;"}
        nodes.set_pod(pod(f"p{number}", {GPU: "1"}, annotations=chosen))
        assert [gpu.foreign_milli for gpu in told(nodes).gpus] == [250 * (number + 1)]


def test_of_hamis_init_containers_the_largest_counts_and_a_slice_is_of_its_gpu() -> None:
    def used(text: str, inits: int) -> list[Any]:
        return [tuple(use) for use in read_hami({ALLOCATED: text}, inits).uses]

    a, b = "GPU-a,NVIDIA,{},{}:", "GPU-b,NVIDIA,{},{}:"
    text = f"{a.format(500, 5)};{a.format(300, 20)};{a.format(200, 8)}{b.format(7, 1)};"
    text += f"{a.format(200, 8)};"
    assert used(text, 2) == [("GPU-a", 500, 20), ("GPU-b", 7, 1)]
    assert used(text, 0) == [("GPU-a", 1200, 41), ("GPU-b", 7, 1)]
    assert used(f"{a.format(500, 5)};;", 1) == [("GPU-a", 500, 5)]
    assert used("GPU-a[1-0],NVIDIA,9,3:;", 0) == [("GPU-a", 9, 3)]


def test_kais_keeper_of_a_shared_gpu_counts_as_its_sharers_do() -> None:
    nodes = book()
    nodes.set_node(node("n1", {GPU: "2"}, labels=discovered()))
    group = {"runai-gpu-group": "g1"}
    nodes.set_pod(pod("keeper", {GPU: "1"}, namespace="kai-resource-reservation", labels=group))
    assert [gpu.foreign_milli for gpu in told(nodes).gpus] == [0, 1000]
    nodes.set_pod(pod("a", labels=group, annotations={"gpu-fraction": "0.3"}))
    nodes.set_pod(pod("b", labels=group, annotations={"gpu-memory": "7650"}))  # of 15300
    assert [gpu.foreign_milli for gpu in told(nodes).gpus] == [0, 800]
    # Its own CPU is the keeper's; and whoever just says that he is of the group has what he asks.
    nodes.set_pod(
        pod("keeper", {GPU: "1", "cpu": "1"}, namespace="kai-resource-reservation", labels=group)
    )
    assert told(nodes).foreign == Amounts(cpu_milli=1000, gpu_milli=800)
    nodes.set_pod(pod("a", {GPU: "1"}, labels=group))
    nodes.drop_pod(("team", "b"))
    assert [gpu.foreign_milli for gpu in told(nodes).gpus] == [1000, 1000]


def test_kais_sharers_are_on_the_gpus_of_their_groups_whatever_would_fit_better() -> None:
    nodes = book()
    nodes.set_node(node("n1", {GPU: "4"}, labels=discovered()))

    def shares(name: str, fraction: str, *groups: str, mine: bool = False) -> None:
        several = len(groups) > 1
        labels = {f"runai-gpu-group/{g}" if several else "runai-gpu-group": g for g in groups}
        told = {"gpu-fraction": fraction, "gpu-fraction-num-devices": str(len(groups))}
        for group in groups:
            keeper = {"runai-gpu-group": group}
            nodes.set_pod(
                pod(group, {GPU: "1"}, namespace="kai-resource-reservation", labels=keeper)
            )
        made = ours if mine else pod
        nodes.set_pod(made(name, labels=labels, annotations=told))

    shares("a", "0.3", "g1")
    shares("b", "0.5", "g2")
    shares("c", "0.3", "g1")
    assert [gpu.foreign_milli for gpu in told(nodes).gpus] == [0, 0, 500, 600]
    shares("d", "0.2", "g1", "g3")
    assert [gpu.foreign_milli for gpu in told(nodes).gpus] == [0, 200, 500, 800]
    # One of ours shares with others: theirs is where it is.
    shares("main-0", "0.1", "g2", mine=True)
    report = told(nodes)
    assert sorted(gpu.foreign_milli for gpu in report.gpus) == [0, 200, 500, 800]
    assert report.gpus[report.pods[0].gpus[0]].foreign_milli == 500


def test_a_fraction_that_is_none_is_told_and_the_pods_other_use_still_counts() -> None:
    problems = Problems()
    nodes = NodeIndex("east", problems)
    nodes.set_node(node())
    nodes.set_pod(pod("a", {"cpu": "1"}, annotations={"gpu-fraction": "half"}))
    assert told(nodes).foreign == Amounts(cpu_milli=1000)
    why = "annotation gpu-fraction: 'half' is no share of a GPU"
    assert problems.take_new() == [Problem("pods", "team/a", why)]
    nodes.drop_pod(("team", "a"))
    assert (told(nodes).foreign, problems.count()) == (Amounts(), {})


@pytest.mark.parametrize(
    ("annotations", "why"),
    [
        ({"gpu-fraction": "0"}, "gpu-fraction: '0' is no share of a GPU"),
        ({"gpu-fraction": "1.01"}, "gpu-fraction: '1.01' is no share of a GPU"),
        ({"gpu-memory": "lots"}, "gpu-memory: 'lots' is no number of MiB"),
        ({"gpu-memory": "-1"}, "gpu-memory: '-1' is no number of MiB"),
        ({"gpu-memory": "123456789"}, "gpu-memory: '123456789' is no number of MiB"),
        (
            {"gpu-fraction": "1", "gpu-fraction-num-devices": "0"},
            "gpu-fraction-num-devices: '0' is no number of GPUs",
        ),
        (
            {"gpu-fraction": "1", "gpu-fraction-num-devices": "65"},
            "gpu-fraction-num-devices: '65' is no number of GPUs",
        ),
        ({"gpu-fraction": "1", "gpu-fraction-num-devices": "64"}, ""),
        ({"gpu-memory": "12345678"}, ""),
    ],
)
def test_what_of_a_shared_gpu_is_believed(annotations: dict[str, str], why: str) -> None:
    problems = Problems()
    nodes = NodeIndex("east", problems)
    nodes.set_pod(pod("a", annotations=annotations))
    problem = Problem("pods", "team/a", f"annotation {why}")
    assert problems.take_new() == ([problem] if why else [])


def test_tpus_are_counted_by_whoever_holds_them() -> None:
    nodes = book()
    nodes.set_node(node("n1", {"google.com/tpu": "8"}))
    nodes.set_pod(pod("a", {"google.com/tpu": "4"}))
    nodes.set_pod(ours("main-0", {"google.com/tpu": "2"}))
    report = told(nodes)
    assert (report.allocatable.tpus, report.foreign.tpus) == (8, 4)


def test_pieces_of_other_resources_are_counted_by_whoever_holds_them() -> None:
    nodes = book()
    nodes.set_node(node("n1", {"rdma/hca": "4", "google.com/tpu": "8"}))
    nodes.set_pod(pod("stranger", {"rdma/hca": "1", "not.here/x": "2"}))
    nodes.set_pod(ours("main-0", {"rdma/hca": "2", "google.com/tpu": "4"}))
    report = told(nodes)
    assert report.allocatable.pieces == {"rdma/hca": 4}
    assert report.foreign.pieces == {"rdma/hca": 1}
    assert report.pods == (use("main-0", (), tpus=4, pieces={"rdma/hca": 2}),)


def test_a_twelve_container_pod_of_a_stranger_is_foreign_with_all_it_asks() -> None:
    nodes = book()
    nodes.set_node(node("n1", {GPU: "4"}, labels=discovered()))
    containers = [asks({"cpu": "100m", GPU: "1"})] * 3 + [asks({"cpu": "50m"})] * 9
    nodes.set_pod(pod("many", spec={"containers": containers}))
    report = told(nodes)
    assert report.foreign == Amounts(cpu_milli=750, gpu_milli=3000)


# Devices by dynamic allocation


def dra_book() -> NodeIndex:
    nodes = book()
    nodes.set_node(node())
    full: dict[str, Any] = {"type": "gpu", "productName": "NVIDIA A100-SXM4-40GB"}
    listed = [device(f"gpu-{n}", memory="40Gi", uuid=f"GPU-{n}", **full) for n in (10, 2, 0)]
    nodes.set_slice(resource_slice("n1-gpus", listed))
    return nodes


def a100(number: int, index: int, foreign_milli: int = 0, healthy: bool = True) -> GpuDevice:
    return GpuDevice(
        index=index,
        uuid=f"GPU-{number}",
        model="NVIDIA-A100-SXM4-40GB",
        memory_mib=40_960,
        healthy=healthy,
        foreign_milli=foreign_milli,
    )


def test_slices_give_devices_and_claims_their_use() -> None:
    nodes = dra_book()
    assert told(nodes).gpus == (a100(0, 0), a100(2, 1), a100(10, 2))
    nodes.set_pod(pod("theirs"))
    nodes.set_pod(ours("main-0", {}))
    nodes.set_claim(claim("a", ["gpu-0"], pods=["theirs"]))
    nodes.set_claim(claim("b", ["gpu-2"], pods=["train-main-0"]))
    nodes.set_claim(claim("seen", ["gpu-10"], pods=["theirs"], admin=True))
    report = told(nodes)
    assert report.gpus == (a100(0, 0, 1000), a100(2, 1), a100(10, 2))
    assert report.pods == (use("main-0", (1,)),)
    assert report.allocatable.gpu_milli == 3000
    # A claim that nobody uses yet keeps its device all the same; one that is gone does not.
    nodes.set_claim(claim("c", ["gpu-10"]))
    nodes.drop_claim(("team", "a"))
    assert told(nodes).gpus == (a100(0, 0), a100(2, 1), a100(10, 2, 1000))


def test_a_claim_that_strangers_share_with_us_is_theirs() -> None:
    nodes = dra_book()
    nodes.set_pod(ours("main-0", {}))
    nodes.set_pod(pod("theirs"))
    nodes.set_claim(claim("a", ["gpu-0"], pods=["train-main-0", "theirs"]))
    assert (told(nodes).gpus[0], told(nodes).pods) == (a100(0, 0, 1000), (use("main-0", ()),))


def test_a_pool_counts_once_all_slices_of_its_newest_generation_are_there() -> None:
    problems = Problems()
    nodes = NodeIndex("east", problems)
    nodes.set_node(node())
    nodes.set_slice(resource_slice("old", [device("gpu-0", uuid="GPU-0")]))
    assert len(told(nodes).gpus) == 1
    part = resource_slice("new-1", [device("gpu-0", uuid="GPU-0")], generation=2, count=2)
    nodes.set_slice(part)
    assert len(told(nodes).gpus) == 0
    why = "pool n1 of gpu.nvidia.com: 1 of 2 slices"
    assert problems.take_new() == [Problem("nodes", "n1", why)]
    rest = resource_slice("new-2", [device("gpu-1", uuid="GPU-1")], generation=2, count=2)
    nodes.set_slice(rest)
    nodes.drop_slice(("", "old"))
    assert [gpu.uuid for gpu in told(nodes).gpus] == ["GPU-0", "GPU-1"]
    assert problems.count() == {}


def test_a_tainted_device_is_not_healthy_and_other_drivers_devices_are_none_of_ours() -> None:
    nodes = book()
    nodes.set_node(node())
    sick = device("gpu-0", uuid="GPU-0", taints=[{"key": "xid", "effect": "NoExecute"}])
    nodes.set_slice(resource_slice("gpus", [sick]))
    nodes.set_slice(resource_slice("nics", [device("nic-0")], driver="dra.net"))
    nodes.set_slice(resource_slice("tpus", [device("t0"), device("t1")], driver="tpu.google.com"))
    nodes.set_pod(pod("theirs"))
    nodes.set_claim(claim("t", ["t0"], pods=["theirs"], driver="tpu.google.com"))
    report = told(nodes)
    assert [gpu.healthy for gpu in report.gpus] == [False]
    assert (report.allocatable.tpus, report.foreign.tpus) == (2, 1)
    # What a claim names beside them is one that no slice lists, and what is ours is not foreign.
    nodes.set_claim(claim("t", ["t0", "t9"], pods=["theirs"], driver="tpu.google.com"))
    assert told(nodes).foreign.tpus == 2
    nodes.set_claim(claim("t", ["t0"], pods=["theirs"], driver="tpu.google.com"))
    nodes.set_pod(ours("main-0", {}))
    nodes.set_claim(claim("u", ["t1"], pods=["train-main-0"], driver="tpu.google.com"))
    assert told(nodes).foreign.tpus == 1


def test_mig_devices_are_parts_of_their_parent() -> None:
    nodes = book()
    nodes.set_node(node())
    parts = [
        device(f"mig-{n}", type="mig", parentUUID="GPU-0", profile="3g.20gb", memory="20Gi")
        for n in (0, 1)
    ]
    nodes.set_slice(resource_slice("gpus", parts))
    nodes.set_pod(pod("theirs"))
    nodes.set_claim(claim("a", ["mig-1"], pods=["theirs"]))
    (gpu,) = told(nodes).gpus
    # 6 of 7 slices are offered; the rest is nobody's to have.
    assert (gpu.uuid, gpu.memory_mib, gpu.foreign_milli) == ("GPU-0", 40_960, 428)
    assert gpu.withheld_milli == 143


def test_slices_name_the_gpus_that_a_device_plugin_counts() -> None:
    problems = Problems()
    nodes = NodeIndex("east", problems)
    nodes.set_node(node("n1", {GPU: "2"}, labels=discovered(count=2)))
    nodes.set_slice(resource_slice("gpus", [device(f"gpu-{n}", uuid=f"GPU-{n}") for n in (0, 1)]))
    nodes.set_pod(pod("a", {GPU: "1"}))
    report = told(nodes)
    assert [(gpu.uuid, gpu.model, gpu.foreign_milli) for gpu in report.gpus] == [
        ("GPU-0", "Tesla-T4", 0),
        ("GPU-1", "Tesla-T4", 1000),
    ]
    nodes.set_slice(resource_slice("gpus", [device("gpu-0", uuid="GPU-0")]))
    assert len(told(nodes).gpus) == 2
    why = "1 GPUs in slices, 2 by resources: the latter count"
    assert problems.take_new() == [Problem("nodes", "n1", why)]


# What cannot be right


def test_a_gpu_count_of_nonsense_takes_the_gpus_and_tells_why_and_the_rest_goes_on() -> None:
    problems = Problems()
    nodes = NodeIndex("east", problems)
    nodes.set_node(node("n1", {GPU: "-4"}, labels=discovered()))
    report = told(nodes)
    why = "nvidia.com/gpu: '-4' is negative, which no resource can be"
    assert (report.gpus, report.schedulable) == ((), True)
    assert report.allocatable == Amounts(cpu_milli=8000, memory_mib=16_384)
    assert report.taints == (Taint(key=UNUSABLE, value=why, effect="PreferNoSchedule"),)
    assert problems.take_new() == [Problem("nodes", "n1", why)]
    # Mended: nothing is left of it.
    nodes.set_node(node("n1", {GPU: "4"}, labels=discovered()))
    assert (len(told(nodes).gpus), told(nodes).taints) == (4, ())
    assert (problems.take_new(), problems.count()) == ([], {})


def test_cpu_or_memory_of_nonsense_closes_the_node() -> None:
    nodes = book()
    nodes.set_node(node("n1", {"memory": "-1Gi"}))
    why = "memory: '-1Gi' is negative, which no resource can be"
    report = told(nodes)
    assert (report.schedulable, report.allocatable) == (False, Amounts(cpu_milli=8000))
    assert report.taints == (Taint(key=UNUSABLE, value=why, effect="NoSchedule"),)


def test_a_node_that_cannot_be_read_is_closed_until_it_can() -> None:
    nodes = book()
    nodes.set_node(node("n1", {GPU: "4"}, labels=discovered()))
    nodes.doubt_node("n1", "cannot be read: labels")
    report = told(nodes)
    assert (report.ready, report.schedulable, report.gpus) == (False, False, ())
    assert report.taints[0].value == "cannot be read: labels"
    nodes.set_node(node("n1", {GPU: "4"}, labels=discovered()))
    assert len(told(nodes).gpus) == 4


def test_labels_are_bounded_and_what_schedulers_match_by_comes_first() -> None:
    noise = {f"feature.node.kubernetes.io/cpu-{n}": "true" for n in range(300)}
    few = {"team": "a", "topology.kubernetes.io/zone": "z1", "nvidia.com/gpu.deploy.dcgm": "true"}
    assert bounded_labels(noise | few) == ({"team": "a", "topology.kubernetes.io/zone": "z1"}, 0)
    many = {f"a{n:03}": "x" for n in range(100)} | {"kubernetes.io/arch": "arm64"}
    kept, left_out = bounded_labels(many)
    assert kept == {"kubernetes.io/arch": "arm64"} | {f"a{n:03}": "x" for n in range(63)}
    assert left_out == 37
    long = {f"b{n}": "y" * 3000 for n in range(4)}
    assert bounded_labels(long) == ({"b0": "y" * 3000, "b1": "y" * 3000}, 2)


# What counts as a change


def test_only_what_a_report_would_say_differently_is_a_change() -> None:
    nodes = book()
    nodes.set_node(node("n1", {GPU: "4"}, labels=discovered()))
    nodes.set_pod(pod("a", {GPU: "1"}))
    nodes.set_pod(ours("main-0", {GPU: "1"}))
    assert nodes.dirty == {"n1": True}
    nodes.dirty.clear()
    # A heartbeat, and pods whose status moves.
    nodes.set_node(node("n1", {GPU: "4"}, labels=discovered()))
    nodes.set_pod(pod("a", {GPU: "1"}))
    assert nodes.dirty == {}
    # Ours are known from the log, so they can wait; foreign ones are known from nowhere else.
    nodes.set_pod(ours("main-1", {GPU: "1"}))
    assert nodes.dirty == {"n1": False}
    nodes.drop_pod(("team", "a"))
    assert nodes.dirty == {"n1": True}
    nodes.dirty.clear()
    # A pod on a node that nobody has told of is told with the node.
    nodes.set_pod(pod("b", {GPU: "1"}, on="n9"))
    assert nodes.dirty == {}
    nodes.set_node(node("n9", {GPU: "1"}, labels=discovered()))
    assert nodes.dirty == {"n9": True}
    assert told(nodes, "n9").foreign.gpu_milli == 1000


A100_AND_MI300X = discovered("NVIDIA-A100-SXM4-80GB", 2, 81_920) | {
    "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"
}
AMD = "amd.com/gpu"


def test_pods_of_one_maker_stay_on_its_gpus_whatever_becomes_of_the_others() -> None:
    nodes = book()
    on_amd = {"berthmaster.io/gpus": "65"}
    nodes.set_pod(ours("main-0", {AMD: "1"}, annotations=on_amd))
    nodes.set_pod(pod("theirs", {GPU: "1"}))

    def held(nvidia: str, amd: str, capacity: str) -> dict[int, tuple[bool, int]]:
        offered, there = {GPU: nvidia, AMD: amd}, {GPU: nvidia, AMD: capacity}
        nodes.set_node(node("n1", offered, capacity=there, labels=A100_AND_MI300X))
        return {gpu.index: (gpu.healthy, gpu.foreign_milli) for gpu in told(nodes).gpus}

    both = {0: (True, 0), 1: (True, 1000), 64: (True, 0), 65: (True, 0)}
    assert held("2", "2", "2") == both
    assert [(use.gpus, use.gpu_milli) for use in told(nodes).pods] == [((65,), 1000)]
    # AMD's plugin is gone: its GPUs are ill, and after the kubelet's restart no longer there.
    assert held("2", "0", "2") == both | {64: (False, 0), 65: (False, 0)}
    assert [use.gpus for use in told(nodes).pods] == [(65,)]
    assert held("2", "0", "0") == {0: (True, 0), 1: (True, 1000)}
    assert [(use.gpus, use.gpu_milli) for use in told(nodes).pods] == [((), 0)]
    # And NVIDIA's number says nothing of AMD's.
    assert held("1", "2", "2") == {0: (True, 1000), 64: (True, 0), 65: (True, 0)}
    assert [use.gpus for use in told(nodes).pods] == [(65,)]


def test_each_gpu_tells_the_resource_that_it_is() -> None:
    nodes = book()
    nodes.set_node(node("n1", {GPU: "1", AMD: "1"}, labels=A100_AND_MI300X))
    assert [(gpu.model, gpu.resource) for gpu in told(nodes).gpus] == [
        ("NVIDIA-A100-SXM4-80GB", ""),
        ("AMD_Instinct_MI300X_OAM", AMD),
    ]


def test_gpus_of_one_maker_by_claim_stand_beside_anothers_that_are_counted() -> None:
    nodes = book()
    nodes.set_node(node("n1", {AMD: "2"}, labels=A100_AND_MI300X))
    nodes.set_slice(resource_slice("gpus", [device(f"gpu-{n}", uuid=f"GPU-{n}") for n in (0, 1)]))
    report = told(nodes)
    assert [(gpu.index, gpu.uuid) for gpu in report.gpus] == [
        (64, ""),
        (65, ""),
        (0, "GPU-0"),
        (1, "GPU-1"),
    ]
    assert report.problems == ()


def test_an_empty_a30_in_slices_is_held_by_nobody_and_full_ones_fill_it() -> None:
    nodes = book()
    name = "nvidia.com/mig-1g.6gb"
    nodes.set_node(node("n1", {name: "4"}, labels=discovered("NVIDIA-A30", 1, 24_576)))
    (gpu,) = told(nodes).gpus
    assert (gpu.withheld_milli, gpu.foreign_milli) == (1, 0)
    for at in range(4):
        nodes.set_pod(pod(f"p{at}", {name: "1"}))
    (gpu,) = told(nodes).gpus
    assert (gpu.withheld_milli, gpu.foreign_milli) == (1, 4 * 249)


def test_a_contradiction_is_told_with_the_node_and_keeps_nobody_away() -> None:
    nodes = book()
    nodes.set_node(node("n1", {GPU: "4"}, labels=discovered(count=8)))
    report = told(nodes)
    assert report.problems == ("labels count 8 GPUs and resources 4: the resources count",)
    assert report.taints == ()


def test_thousandths_that_pods_hold_are_parts_of_one_gpu_or_whole_ones() -> None:
    nodes, milli = book(), "berthmaster.io/gpu-milli"
    nodes.set_node(node("n1", {milli: "3000"}, labels=discovered(count=3)))
    nodes.set_pod(ours("main-0", {milli: "250"}))
    nodes.set_pod(ours("main-1", {milli: "2000"}))
    nodes.set_pod(pod("notebook", {milli: "600"}))
    report = told(nodes)
    held = {one.pod: (one.gpus, one.gpu_milli) for one in report.pods}
    assert held == {"main-0": ((0,), 250), "main-1": ((1, 2), 1000)}
    assert [gpu.foreign_milli for gpu in report.gpus] == [600, 0, 0]
    assert {gpu.resource for gpu in report.gpus} == {milli}
    assert report.allocatable.gpu_milli == 3000

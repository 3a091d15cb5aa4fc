"""What cannot be read of a holder of GPUs is the most that it could be, and a problem is told."""

from typing import Any

import pytest

from berthmaster.lib.kube.controller.problems import Problems
from berthmaster.lib.kube.mirror import MAX_ANNOTATION_CHARS, Mirror
from berthmaster.lib.kube.wire import Page
from berthmaster.lib.messages.fleet import NodeReport, Taint
from berthmaster.worker.inventory.core.node_index import NodeIndex
from berthmaster.worker.inventory.core.nodes import UNUSABLE
from tests.unit.worker.inventory.objects import (
    NOW_S,
    STAMP,
    claim,
    device,
    discovered,
    node,
    ours,
    pod,
    resource_slice,
)

GPU = "nvidia.com/gpu"
GROUP = {"runai-gpu-group": "g1"}
CHOSEN = "hami.io/vgpu-devices-allocated"
REGISTER = "hami.io/node-nvidia-register"
THREE = "\N{ARABIC-INDIC DIGIT THREE}"  # a digit, and none that Go reads


class Cluster:
    def __init__(self) -> None:
        self.problems = Problems()
        self.nodes = NodeIndex("east", self.problems)

    def report(self) -> NodeReport:
        found = self.nodes.report("n1", STAMP, NOW_S)
        assert found is not None
        return found

    @property
    def foreign(self) -> list[int]:
        return [gpu.foreign_milli for gpu in self.report().gpus]

    @property
    def told(self) -> list[str]:
        """What is wrong, once a report was made."""
        self.report()
        return [problem.text for problem in self.problems.take_new()]


def counted(gpus: int = 2) -> Cluster:
    """A node whose device plugin counts its GPUs."""
    cluster = Cluster()
    cluster.nodes.set_node(node("n1", {GPU: str(gpus)}, labels=discovered(count=gpus)))
    return cluster


# KAI's annotations and labels


NO_FRACTIONS = (
    *("NaN", "nan", "inf", "-inf", "-0.5", "0", "0.0", "1.01", "2", "half", "0.5Gi", "50%", "0,5"),
    *("1_0e-1", "0x1p-1", "1e-400", "1e999", "", " 0.5", f"0.{THREE}"),
)


@pytest.mark.parametrize("fraction", NO_FRACTIONS)
def test_a_fraction_that_cannot_be_read_is_a_whole_gpu(fraction: str) -> None:
    for labels in ({}, GROUP):
        cluster = counted()
        cluster.nodes.set_pod(pod("a", labels=labels, annotations={"gpu-fraction": fraction}))
        assert cluster.foreign == [0, 1000]
        assert cluster.told == [f"annotation gpu-fraction: {fraction!r} is no share of a GPU"]


@pytest.mark.parametrize(
    "memory", ["-1", "0", "NaN", "10Gi", "1e3", "", "2.5", "123456789", "\u0663"]
)
def test_gpu_memory_that_cannot_be_read_is_a_whole_gpu(memory: str) -> None:
    cluster = counted()
    cluster.nodes.set_pod(pod("a", labels=GROUP, annotations={"gpu-memory": memory}))
    assert cluster.foreign == [0, 1000]
    assert cluster.told == [f"annotation gpu-memory: {memory!r} is no number of MiB"]


def test_a_share_so_small_that_it_rounds_to_nothing_is_held() -> None:
    cluster = counted()
    cluster.nodes.set_pod(pod("a", annotations={"gpu-fraction": "0.0000001"}))
    assert (cluster.foreign, cluster.told) == ([0, 1], [])


def test_of_fraction_and_memory_the_larger_counts() -> None:
    both = {"gpu-fraction": "0.2", "gpu-memory": "7650"}  # of 15300 MiB
    cluster = counted()
    cluster.nodes.set_pod(pod("a", annotations=both))
    assert cluster.foreign == [0, 500]
    cluster.nodes.set_pod(pod("a", annotations=both | {"gpu-memory": "much"}))
    assert cluster.foreign == [0, 1000]


@pytest.mark.parametrize("devices", ["0", "-1", "two", "65", "1.5", "", "NaN", THREE])
def test_a_number_of_gpus_that_cannot_be_read_is_all_unless_groups_tell(devices: str) -> None:
    cluster = counted(4)
    told = {"gpu-fraction": "0.5", "gpu-fraction-num-devices": devices}
    cluster.nodes.set_pod(pod("a", annotations=told))
    assert cluster.foreign == [500, 500, 500, 500]
    why = f"annotation gpu-fraction-num-devices: {devices!r} is no number of GPUs"
    assert cluster.told == [why]
    groups = {f"runai-gpu-group/{name}": name for name in ("g1", "g2")}
    cluster.nodes.set_pod(pod("a", annotations=told, labels=groups))
    assert cluster.foreign == [0, 0, 500, 500]


def test_more_groups_than_the_annotation_says_are_as_many_gpus() -> None:
    groups = {f"runai-gpu-group/{name}": name for name in ("g1", "g2", "g3")}
    told = {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "1"}
    cluster = counted(4)
    cluster.nodes.set_pod(pod("a", annotations=told, labels=groups))
    assert cluster.foreign == [0, 500, 500, 500]
    # And fewer: the rest is somewhere.
    cluster.nodes.set_pod(
        pod("a", annotations=told | {"gpu-fraction-num-devices": "2"}, labels=GROUP)
    )
    assert cluster.foreign == [0, 0, 500, 500]


def test_more_groups_than_gpus_hold_what_they_hold() -> None:
    cluster = counted(2)
    for name in ("g1", "g2", "g3"):
        labels = {"runai-gpu-group": name}
        cluster.nodes.set_pod(pod(name, labels=labels, annotations={"gpu-fraction": "0.4"}))
    assert sum(cluster.foreign) == 1200


def test_a_sharer_without_a_share_has_the_whole_gpu_of_its_group() -> None:
    cluster = counted()
    keeper = pod("keeper", {GPU: "1"}, namespace="kai-resource-reservation", labels=GROUP)
    cluster.nodes.set_pod(keeper)
    cluster.nodes.set_pod(pod("a", labels=GROUP, annotations={"gpu-fraction": "0.3"}))
    assert cluster.foreign == [0, 300]
    cluster.nodes.set_pod(pod("a", labels=GROUP))
    assert cluster.foreign == [0, 1000]
    assert cluster.told == [
        "label runai-gpu-group: no annotation says how much of the GPU the pod has"
    ]


def test_a_keeper_counts_where_its_sharers_cannot_be_charged() -> None:
    """Of replicas KAI's parts are parts of what its keeper was given."""
    cluster = Cluster()
    labels = discovered(count=1) | {"nvidia.com/gpu.replicas": "4"}
    cluster.nodes.set_node(node("n1", {GPU: "4"}, labels=labels))
    keeper = pod("keeper", {GPU: "1"}, namespace="kai-resource-reservation", labels=GROUP)
    cluster.nodes.set_pod(keeper)
    cluster.nodes.set_pod(pod("a", labels=GROUP, annotations={"gpu-fraction": "0.3"}))
    assert cluster.foreign == [249]


# HAMi's lists


def by_hami(*uuids: str) -> Cluster:
    """A node of HAMi's, with GPUs of 10,000 MiB."""
    cluster = Cluster()
    entry = '{{"id":"{}","count":10,"devmem":10000,"type":"NVIDIA-A10","health":true}}'
    register = "[" + ",".join(entry.format(uuid) for uuid in uuids) + "]"
    count = str(10 * len(uuids))
    cluster.nodes.set_node(node("n1", {GPU: count}, annotations={REGISTER: register}))
    return cluster


SMALL = {GPU: "1", "nvidia.com/gpumem": "3000"}


NO_ENTRIES = (
    *("GPU-a,NVIDIA,3Gi,20", "GPU-a,NVIDIA,-5,20", "GPU-a,NVIDIA,0,20", "GPU-a,NVIDIA,NaN,20"),
    *("GPU-a,NVIDIA,1e3,20", "GPU-a,NVIDIA,0000000003000,20", f"GPU-a,NVIDIA,{THREE},20"),
    *("GPU-a,NVIDIA,3000,-20", "GPU-a,NVIDIA,3000,20%", "GPU-a,NVIDIA,3000", "GPU-a", "GPU-a,,,"),
)


@pytest.mark.parametrize("entry", NO_ENTRIES)
def test_an_entry_that_cannot_be_read_is_a_whole_gpu(entry: str) -> None:
    cluster = by_hami("GPU-a", "GPU-b")
    cluster.nodes.set_pod(pod("a", SMALL, annotations={CHOSEN: f"{entry}:;"}))
    assert cluster.foreign == [1000, 0]
    (why,) = cluster.told
    assert why.startswith(f"annotation {CHOSEN}: {entry!r} is no device and counts as a whole GPU")


@pytest.mark.parametrize("entry", ["", "junk", ",NVIDIA,3000,20", "GPU-x,NVIDIA,3000,20"])
def test_a_gpu_that_is_not_known_is_a_whole_one(entry: str) -> None:
    cluster = by_hami("GPU-a", "GPU-b")
    known = "GPU-b,NVIDIA,3000,20:"
    cluster.nodes.set_pod(pod("a", {GPU: "2"}, annotations={CHOSEN: f"{known}{entry}:;"}))
    assert cluster.foreign == [1000, 300]
    assert cluster.told
    # Where there is no other, it is that one.
    cluster = by_hami("GPU-b")
    cluster.nodes.set_pod(pod("a", {GPU: "2"}, annotations={CHOSEN: f"{known}{entry}:;"}))
    assert cluster.foreign[0] >= 1000


@pytest.mark.parametrize("text", ["", ";", ":;", ";;;"])
def test_a_list_of_no_device_is_as_many_gpus_as_the_pod_asks_for(text: str) -> None:
    cluster = by_hami("GPU-a", "GPU-b", "GPU-c")
    cluster.nodes.set_pod(pod("a", SMALL | {GPU: "2"}, annotations={CHOSEN: text}))
    assert cluster.foreign == [0, 1000, 1000]
    why = f"annotation {CHOSEN}: 0 devices of 2 that the pod asks for; 2 count as whole GPUs"
    assert cluster.told == [why]
    # Before HAMi has written it, what the pod asks for counts.
    cluster.nodes.set_pod(pod("a", SMALL | {GPU: "2"}))
    assert cluster.foreign == [0, 300, 300]


def test_a_list_that_is_longer_than_is_kept_cannot_be_read() -> None:
    found: list[Any] = []
    mirror: Mirror[Any] = Mirror(found.append)
    long = pod("a", SMALL, annotations={CHOSEN: "GPU-a,NVIDIA,1,1:" * 300, "note": "x" * 5000})
    assert len(long.metadata.annotations[CHOSEN]) > MAX_ANNOTATION_CHARS
    mirror.page(Page((long,), "1", first=True, last=True))
    kept = found[0].object
    assert kept.metadata.annotations == {CHOSEN: "", "note": ""}
    cluster = by_hami("GPU-a", "GPU-b")
    cluster.nodes.set_pod(kept)
    assert cluster.foreign == [0, 1000]


def test_a_stale_list_on_a_node_that_is_not_hamis_says_nothing() -> None:
    cluster = counted(4)
    cluster.nodes.set_pod(pod("a", {GPU: "1"}, annotations={CHOSEN: "GPU-x,NVIDIA,3000,20:;"}))
    assert cluster.foreign == [0, 0, 0, 1000]


def test_of_a_gpu_whose_memory_is_not_known_a_part_of_it_is_all() -> None:
    cluster = Cluster()
    register = '[{"id":"GPU-a","count":10,"type":"NVIDIA-A10","health":true}]'
    cluster.nodes.set_node(node("n1", {GPU: "10"}, annotations={REGISTER: register}))
    cluster.nodes.set_pod(pod("a", SMALL, annotations={CHOSEN: "GPU-a,NVIDIA,3000,20:;"}))
    assert cluster.foreign == [1000]


JSON = '[{"id":"GPU-a","count":10,"devmem":10000,"type":"NVIDIA-A10","health":true},%s]'
LINE = "GPU-a,10,10000,100,NVIDIA-A10,0,true:%s:"


@pytest.mark.parametrize(
    "register",
    [
        JSON % '{"id":"GPU-b","count":10,"devmem":"16Gi","type":"NVIDIA-A10","health":true}',
        JSON % '{"id":"GPU-b","count":10,"devmem":-1,"type":"NVIDIA-A10","health":true}',
        JSON % '{"id":"GPU-b","count":-1,"devmem":10000,"type":"NVIDIA-A10","health":true}',
        JSON % '{"id":"GPU-b","health":"yes"}',
        LINE % "GPU-b,10,16Gi,100,NVIDIA-A10,0,true",
        LINE % "GPU-b,10,-1,100,NVIDIA-A10,0,true",
        LINE % "GPU-b,10",
    ],
)
def test_one_device_of_a_node_that_cannot_be_read_gets_no_pods(register: str) -> None:
    cluster = Cluster()
    cluster.nodes.set_node(node("n1", {GPU: "20"}, annotations={REGISTER: register}))
    report = cluster.report()
    assert [(gpu.uuid, gpu.healthy) for gpu in report.gpus] == [("GPU-a", True), ("GPU-b", False)]
    (why,) = cluster.told
    assert why.startswith(f"annotation {REGISTER}: ")
    assert report.taints == (Taint(key=UNUSABLE, value=why[:250], effect="PreferNoSchedule"),)
    # Who is on it is charged to it.
    cluster.nodes.set_pod(pod("a", SMALL, annotations={CHOSEN: "GPU-b,NVIDIA,3000,20:;"}))
    assert cluster.foreign == [0, 1000]


# Requests, and our own annotation


def test_requests_that_cannot_be_read_are_all_that_there_is() -> None:
    cluster = counted(4)
    cluster.nodes.set_pod(pod("a", {GPU: "two", "cpu": "-1", "memory": "x"}))
    report = cluster.report()
    assert cluster.foreign == [1000, 1000, 1000, 1000]
    assert report.foreign.cpu_milli > report.allocatable.cpu_milli
    assert report.foreign.memory_mib > report.allocatable.memory_mib
    assert len(cluster.told) == 3
    # What can be read beside it is read.
    cluster.nodes.set_pod(pod("a", {GPU: "1", "cpu": "1", "odd.io/x": "?"}))
    assert (cluster.foreign, cluster.report().foreign.cpu_milli) == ([0, 0, 0, 1000], 1000)


def test_hamis_limit_that_cannot_be_read_is_a_whole_gpu() -> None:
    cluster = by_hami("GPU-a", "GPU-b")
    cluster.nodes.set_pod(pod("a", {GPU: "1", "nvidia.com/gpumem": "-3000"}))
    assert cluster.foreign == [0, 1000]


def test_our_own_list_of_gpus_that_cannot_be_read_is_told() -> None:
    cluster = counted()
    cluster.nodes.set_pod(ours("main-0", {GPU: "1"}, annotations={"berthmaster.io/gpus": "first"}))
    assert [use.gpus for use in cluster.report().pods] == [(0,)]
    (why,) = cluster.told
    assert why.startswith("annotation berthmaster.io/gpus: 'first' is no list of GPUs")


# Claims


def claimed(*, plugin: int = 0) -> Cluster:
    cluster = Cluster()
    labels = discovered(count=plugin) if plugin else {}
    cluster.nodes.set_node(node("n1", {GPU: str(plugin)} if plugin else {}, labels=labels))
    listed = [device(f"gpu-{at}", memory="40Gi", uuid=f"GPU-{at}") for at in range(2)]
    cluster.nodes.set_slice(resource_slice("gpus", listed))
    cluster.nodes.set_pod(pod("theirs"))
    return cluster


def test_a_claimed_device_that_no_slice_lists_is_a_whole_gpu() -> None:
    cluster = claimed()
    cluster.nodes.set_claim(claim("a", ["gpu-9"], pods=["theirs"]))
    assert cluster.foreign == [0, 1000]
    (why,) = cluster.told
    assert why.startswith("claim team/a: no ResourceSlice lists device 'gpu-9' of pool 'n1'")
    cluster.nodes.set_claim(claim("a", ["gpu-1", "gpu-9"]))  # nobody's yet
    assert cluster.foreign == [1000, 1000]
    cluster.nodes.drop_claim(("team", "a"))
    assert (cluster.foreign, cluster.problems.count()) == ([0, 0], {})


def test_a_claimed_device_counts_where_slices_and_the_plugin_contradict() -> None:
    cluster = claimed(plugin=4)
    cluster.nodes.set_claim(claim("a", ["gpu-0"], pods=["theirs"]))
    assert cluster.foreign == [0, 0, 0, 1000]


def test_a_claimed_device_of_another_nodes_pool_is_none_of_this_node() -> None:
    cluster = claimed()
    cluster.nodes.set_claim(claim("a", ["gpu-9"], pods=["theirs"], on="n2"))
    assert (cluster.foreign, cluster.told) == ([0, 0], [])


def test_consumed_capacity_that_cannot_be_read_is_told() -> None:
    cluster = claimed()
    cluster.nodes.set_claim(claim("a", ["gpu-0"], pods=["theirs"], consumed={"memory": "-1Gi"}))
    assert cluster.foreign == [1000, 0]
    assert cluster.told == ["memory: '-1Gi' is negative, which no resource can be"]


# Where it is told


def test_a_holder_that_cannot_be_read_is_a_taint_that_keeps_nobody_away() -> None:
    cluster = counted()
    cluster.nodes.set_pod(pod("a", annotations={"gpu-fraction": "NaN"}))
    why = "pod team/a: annotation gpu-fraction: 'NaN' is no share of a GPU"
    assert cluster.report().taints == (Taint(key=UNUSABLE, value=why, effect="PreferNoSchedule"),)
    cluster.nodes.drop_pod(("team", "a"))
    assert (cluster.report().taints, cluster.problems.count()) == ((), {})


def test_problems_with_holders_go_with_their_node() -> None:
    cluster = by_hami("GPU-a")
    cluster.nodes.set_pod(pod("a", SMALL, annotations={CHOSEN: "GPU-x,NVIDIA,3000,20:;"}))
    cluster.report()
    assert cluster.problems.count() == {"holders": 1}
    cluster.nodes.drop_node("n1")
    assert cluster.problems.count() == {}

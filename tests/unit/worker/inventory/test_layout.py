import itertools

import pytest
from msgspec.structs import replace

from berthmaster.lib.messages.fleet import Share
from berthmaster.worker.inventory.core.devices.layout import Gpu, Layout, Way, indices_of, layout_of
from berthmaster.worker.inventory.core.devices.models import UNKNOWN
from tests.unit.worker.inventory.objects import discovered, node

GPU = "nvidia.com/gpu"
T4 = Gpu("Tesla-T4", 15_360)
A100 = "NVIDIA-A100-SXM4-40GB"


def test_a_node_without_gpus_has_none_and_nothing_is_wrong() -> None:
    assert layout_of(node(), kai=False) == Layout()


def test_whole_gpus_and_those_that_the_device_plugin_has_given_up() -> None:
    found = layout_of(node("n", {GPU: "3"}, capacity={GPU: "4"}, labels=discovered()), kai=False)
    assert found == Layout(
        gpus=(T4, T4, T4, T4._replace(healthy=False)),
        ways=(Way(GPU, (0, 1, 2, 3), 1000, kai_mib=15_300),),
    )


def test_amd_gpus_and_tpus() -> None:
    labels = {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram": "192G"}
    offered = {"amd.com/gpu": "2", "google.com/tpu": "4"}
    found = layout_of(node("n", offered, labels=labels), kai=False)
    mi300 = Gpu("AMD_Instinct_MI300X_OAM", 192 * 1024, resource="amd.com/gpu")
    assert found == Layout(gpus=(mi300, mi300), ways=(Way("amd.com/gpu", (0, 1), 1000),), tpus=4)


def test_intel_gpus_are_whole_ones_by_the_name_of_their_driver() -> None:
    labels = {"gpu.intel.com/product": "Max_1100"}
    found = layout_of(node("n", {"gpu.intel.com/xe": "2"}, labels=labels), kai=False)
    max_1100 = Gpu("Max_1100", 49_152, resource="gpu.intel.com/xe")
    assert found == Layout(gpus=(max_1100, max_1100), ways=(Way("gpu.intel.com/xe", (0, 1), 1000),))


def test_replicas_under_a_name_of_their_own_are_shares_of_gpus_that_nobody_has_whole() -> None:
    labels = discovered("NVIDIA-A10-SHARED", 2, 23_028) | {
        "nvidia.com/gpu.replicas": "4",
        "nvidia.com/gpu.sharing-strategy": "time-slicing",
    }
    found = layout_of(node("n", {"nvidia.com/gpu.shared": "8"}, labels=labels), kai=False)
    a10 = Gpu("NVIDIA-A10", 23_028, reserved_milli=1)
    assert found == Layout(
        gpus=(a10, a10),
        ways=(Way("nvidia.com/gpu.shared", (0, 1), 250, "shared"),),
        shares=(Share(resource="nvidia.com/gpu.shared", milli=250, count=8, kind="shared"),),
    )


def test_replicas_under_the_plain_name_are_known_by_their_label_and_mps_divides_memory() -> None:
    labels = discovered("Tesla-T4-SHARED", 1) | {
        "nvidia.com/gpu.replicas": "3",
        "nvidia.com/gpu.sharing-strategy": "mps",
    }
    found = layout_of(node("n", {GPU: "3"}, labels=labels), kai=False)
    assert found == Layout(
        gpus=(T4._replace(reserved_milli=1),),
        ways=(Way(GPU, (0,), 333, "shared"),),
        shares=(
            Share(
                resource=GPU, milli=333, memory_mib=5120, count=3, kind="shared", isolation="memory"
            ),
        ),
    )


@pytest.mark.parametrize(
    ("labels", "isolation"),
    [
        ({"nvidia.com/gpu.sharing-strategy": "mps"}, "memory"),
        ({"nvidia.com/mps.capable": "true"}, "memory"),
        ({"nvidia.com/gpu.sharing-strategy": "none", "nvidia.com/mps.capable": "true"}, "memory"),
        ({"nvidia.com/gpu.sharing-strategy": "time-slicing"}, ""),
        ({"nvidia.com/gpu.sharing-strategy": "time-slicing", "nvidia.com/mps.capable": "true"}, ""),
        ({"nvidia.com/mps.capable": "false"}, ""),
        ({}, ""),
    ],
)
def test_labels_tell_memory_isolation(labels: dict[str, str], isolation: str) -> None:
    known = discovered("Tesla-T4-SHARED", 1) | {"nvidia.com/gpu.replicas": "4"} | labels
    (share,) = layout_of(node("n", {GPU: "4"}, labels=known), kai=False).shares
    assert (share.isolation, share.memory_mib) == (isolation, 3840 if isolation else 0)


def test_mig_instances_of_several_profiles_stand_on_as_few_gpus_as_can_hold_them() -> None:
    offered = {"nvidia.com/mig-1g.5gb": "7", "nvidia.com/mig-3g.20gb": "2"}
    found = layout_of(node("n", offered, labels=discovered(A100, 2, 40_960)), kai=False)
    # 13 slices of compute and 15 of memory: two GPUs, one with 7/7 of compute and one with 6/7.
    assert found == Layout(
        gpus=(Gpu(A100, 40_960, reserved_milli=1), Gpu(A100, 40_960, reserved_milli=143)),
        ways=(
            Way("nvidia.com/mig-1g.5gb", (0, 1), 142, "mig"),
            Way("nvidia.com/mig-3g.20gb", (0, 1), 428, "mig"),
        ),
        shares=(
            Share(
                resource="nvidia.com/mig-1g.5gb", milli=142, memory_mib=5120, count=7, kind="mig"
            ),
            Share(
                resource="nvidia.com/mig-3g.20gb", milli=428, memory_mib=20_480, count=2, kind="mig"
            ),
        ),
    )


def test_mig_instances_need_as_many_gpus_as_their_memory_does() -> None:
    # Five of 1/7 are one GPU by slices, but of 20 GiB each they are more than its 80 GiB.
    offered = {"nvidia.com/mig-1g.20gb": "5"}
    found = layout_of(node("n", offered, labels=discovered(A100, 2, 81_920)), kai=False)
    assert [gpu.reserved_milli for gpu in found.gpus] == [1000 - 428, 1000 - 285]


def test_mig_instances_under_the_plain_name_are_known_by_their_product() -> None:
    labels = discovered(f"{A100}-MIG-1g.5gb", 7, 4864)
    found = layout_of(node("n", {GPU: "7"}, labels=labels), kai=False)
    assert found == Layout(
        gpus=(Gpu(A100, 40_960, reserved_milli=1),),
        ways=(Way(GPU, (0,), 142, "mig"),),
        shares=(
            Share(resource=GPU, milli=142, memory_mib=5120, count=7, kind="mig", profile="1g.5gb"),
        ),
    )


def test_whole_gpus_stand_before_mig_instances_of_the_same_node() -> None:
    offered = {GPU: "1", "nvidia.com/mig-7g.40gb": "1"}
    found = layout_of(node("n", offered, labels=discovered(A100, 1, 40_960)), kai=False)
    assert [way.positions for way in found.ways] == [(0,), (1,)]
    assert [gpu.reserved_milli for gpu in found.gpus] == [0, 1]


JSON_OF_HAMI = (
    '[{"id":"GPU-a","count":10,"devmem":15360,"devcore":100,'
    '"type":"NVIDIA-Tesla T4","health":true},'
    '{"id":"GPU-b","count":10,"devmem":15360,"devcore":100,'
    '"type":"NVIDIA-Tesla T4","health":false}]'
)
LINE_OF_HAMI = (
    "GPU-a,10,15360,100,NVIDIA-Tesla T4,0,true:GPU-b,10,15360,100,NVIDIA-Tesla T4,0,false:"
)


@pytest.mark.parametrize("register", [JSON_OF_HAMI, LINE_OF_HAMI])
def test_hami_lists_its_devices_and_its_count_says_nothing(register: str) -> None:
    found = layout_of(
        node("n", {GPU: "20"}, annotations={"hami.io/node-nvidia-register": register}), kai=False
    )
    assert found == Layout(
        gpus=(Gpu("Tesla-T4", 15_360, "GPU-a"), Gpu("Tesla-T4", 15_360, "GPU-b", healthy=False)),
        ways=(Way(GPU, (0, 1), 1000, "hami", least_milli=100),),
        shares=(Share(resource="nvidia.com/gpucores", milli=10, count=200, kind="hami", parts=10),),
    )


def test_hami_skips_unhealthy_and_cordoned_gpus() -> None:
    """Its device plugin leaves out what is 0, empty or false."""
    ill = '{"id":"GPU-a","count":10,"devmem":15360,"devcore":100,"type":"NVIDIA-Tesla T4"}'
    well = ill.replace("GPU-a", "GPU-b").replace("}", ',"index":1,"health":true}')
    gone = well.replace("GPU-b", "GPU-c")
    told = {
        "hami.io/node-nvidia-register": f"[{ill},{well},{gone}]",
        "hami.io/device-cordon": "GPU-x, GPU-c,",
    }
    found = layout_of(node("n", {GPU: "20"}, annotations=told), kai=False)
    assert [(gpu.uuid, gpu.healthy) for gpu in found.gpus] == [
        ("GPU-a", False),
        ("GPU-b", True),
        ("GPU-c", False),
    ]


@pytest.mark.parametrize(
    "register",
    [
        "garbage",
        "[{",
        '[{"devmem":1024}]',
        '[{"id":"GPU-a"},{"id":"GPU-a"}]',
        '[{"devmem":1024},{"devmem":"much"}]',
        "GPU-a,10,much,100,NVIDIA-T4,0,true:",
        "",
        "[" + ",".join(f'{{"id":"GPU-{n}"}}' for n in range(65)) + "]",
        "[" * 70_000,
    ],
)
def test_a_list_of_hamis_that_cannot_be_read_leaves_the_node_without_gpus(register: str) -> None:
    annotated = node("n", {GPU: "20"}, annotations={"hami.io/node-nvidia-register": register})
    found = layout_of(annotated, kai=False)
    # Ten times as many as there are would be promised if the count were believed.
    assert (found.gpus, found.shares) == ((), ())
    assert found.problems[0].startswith("annotation hami.io/node-nvidia-register: ")


def test_where_kai_schedules_whole_gpus_are_shared_in_hundredths() -> None:
    share = Share(resource="gpu-fraction", milli=10, count=200, kind="kai", memory_mib=81_500)
    tesla = discovered("Tesla-T4", 2, 15_360)
    found = layout_of(node("n", {GPU: "2"}, labels=tesla), kai=True)
    assert found.shares == (replace(share, memory_mib=15_300),)  # it rounds what the label says
    found = layout_of(node("n", {GPU: "2"}, labels=discovered("NVIDIA-H100", 2, 81_559)), kai=True)
    assert (found.shares, found.gpus[0].memory_mib) == ((share,), 81_559)
    # Without that label it does not know, whoever else does.
    cloud = {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}
    found = layout_of(node("n", {GPU: "2"}, labels=cloud), kai=True)
    assert (found.shares, found.gpus[0].memory_mib) == ((replace(share, memory_mib=0),), 15_360)
    # What it keeps for sharers is NVIDIA's.
    assert layout_of(node("n", {"amd.com/gpu": "2"}), kai=True).shares == ()


def test_without_labels_the_model_is_unknown_and_a_clouds_label_is_translated() -> None:
    assert layout_of(node("n", {GPU: "1"}), kai=False).gpus == (Gpu(UNKNOWN, 0),)
    cloud = {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}
    assert layout_of(node("n", {GPU: "1"}, labels=cloud), kai=False).gpus == (T4,)


@pytest.mark.parametrize(
    ("offered", "labels", "why"),
    [
        (
            {GPU: "7"},
            discovered(f"{A100}-MIG-9g.1tb", 7, 4864),
            f"label nvidia.com/gpu.product: '{A100}-MIG-9g.1tb' names no MIG profile such as",
        ),
        (
            {GPU: "7"},
            discovered(f"{A100}-MIG-INVALID", 0, 0),
            f"label nvidia.com/gpu.product: '{A100}-MIG-INVALID' names no MIG profile",
        ),
        (
            {GPU: "7"},
            {"cloud.google.com/gke-gpu-partition-size": "1g"},
            "label cloud.google.com/gke-gpu-partition-size: '1g' names no MIG profile",
        ),
        ({"nvidia.com/mig-1g.10gb.max": "7"}, {}, "nvidia.com/mig-1g.10gb.max: no MIG profile"),
        ({"nvidia.com/mig-1g.10gb": "65000"}, {}, "nvidia.com/mig-1g.10gb: '65000' is more than"),
        ({"nvidia.com/mig-1g.10gb": "1000"}, {}, "nvidia.com/mig-1g.10gb: 1000 slices: more than"),
        ({GPU: "-2"}, {}, "nvidia.com/gpu: '-2' is negative, which no resource can be"),
        ({GPU: "many"}, {}, "nvidia.com/gpu: 'many' is no quantity: a number, perhaps"),
        ({GPU: "65"}, {}, "65 GPUs: more than any node has (64)"),
        ({GPU: "1000000"}, {}, "nvidia.com/gpu: '1000000' is more than any node has (10000)"),
        (
            {},
            discovered(count=8),
            "labels tell of 8 GPUs and allocatable of none: no device plugin runs",
        ),
        (
            {GPU: "4"},
            {"nvidia.com/gpu.replicas": "0"},
            "label nvidia.com/gpu.replicas: '0' is no number from 1 to 1000",
        ),
        ({"nvidia.com/mig-9g.1tb": "1"}, {}, "nvidia.com/mig-9g.1tb: no MIG profile that we know"),
    ],
)
def test_counts_that_cannot_be_right_leave_no_gpus_and_a_reason(
    offered: dict[str, str], labels: dict[str, str], why: str
) -> None:
    found = layout_of(node("n", offered, labels=labels), kai=False)
    assert found.gpus == ()
    assert [problem[: len(why)] for problem in found.problems] == [why]


def test_one_resource_of_nonsense_does_not_cost_the_others() -> None:
    offered = {GPU: "-1", "amd.com/gpu": "1", "google.com/tpu": "4"}
    found = layout_of(node("n", offered), kai=False)
    assert (len(found.gpus), found.tpus, len(found.problems)) == (1, 4, 1)


def test_a_memory_label_that_is_no_number_costs_only_the_memory() -> None:
    labels = discovered() | {"nvidia.com/gpu.memory": "15 GB"}
    found = layout_of(node("n", {GPU: "1"}, labels=labels), kai=False)
    assert found.gpus == (T4._replace(memory_mib=0),)
    assert found.problems == ("label nvidia.com/gpu.memory: '15 GB' is no number of MiB",)


def test_replicas_of_any_name_are_known_by_labels_and_their_number() -> None:
    labels = discovered(count=2) | {"nvidia.com/gpu.replicas": "4"}
    found = layout_of(node("n", {"nvidia.com/turns": "8"}, labels=labels), kai=False)
    gpu = T4._replace(reserved_milli=1)
    share = Share(resource="nvidia.com/turns", milli=250, count=8, kind="shared")
    assert (found.gpus, found.ways) == (
        (gpu, gpu),
        (Way("nvidia.com/turns", (0, 1), 250, "shared"),),
    )
    assert (found.shares[0].resource, found.shares[0].milli, found.shares[0].count) == (
        share.resource,
        share.milli,
        share.count,
    )
    assert found.pieces == ()
    # Of another number it is no replica, but some other resource.
    other = layout_of(node("n", {"nvidia.com/nics": "3"}, labels=labels), kai=False)
    assert (other.gpus, other.pieces) == ((), (("nvidia.com/nics", 3),))


def test_replicas_of_mig_slices_are_parts_of_slices() -> None:
    labels = {
        "nvidia.com/gpu.product": A100,
        "nvidia.com/gpu.memory": "40960",
        "nvidia.com/mig-1g.5gb.replicas": "2",
    }
    found = layout_of(node("n", {"nvidia.com/mig-1g.5gb.shared": "14"}, labels=labels), kai=False)
    assert [gpu.model for gpu in found.gpus] == [A100]
    assert found.ways == (Way("nvidia.com/mig-1g.5gb.shared", (0,), 71, "shared"),)
    (share,) = found.shares
    assert (share.resource, share.milli, share.count, share.kind) == (
        "nvidia.com/mig-1g.5gb.shared",
        71,
        14,
        "shared",
    )
    assert found.problems == ()


def test_googles_nodes_tell_partitions_and_clients_by_labels_of_their_own() -> None:
    a100 = {"cloud.google.com/gke-accelerator": "nvidia-tesla-a100"}
    cut = a100 | {"cloud.google.com/gke-gpu-partition-size": "1g.5gb"}
    found = layout_of(node("n", {GPU: "7"}, labels=cut), kai=False)
    assert [gpu.model for gpu in found.gpus] == [A100]
    (share,) = found.shares
    assert (share.kind, share.profile, share.count) == ("mig", "1g.5gb", 7)
    shared = a100 | {
        "cloud.google.com/gke-gpu-sharing-strategy": "mps",
        "cloud.google.com/gke-max-shared-clients-per-gpu": "4",
    }
    found = layout_of(node("n", {GPU: "8"}, labels=shared), kai=False)
    assert len(found.gpus) == 2
    (share,) = found.shares
    assert (share.kind, share.milli, share.memory_mib) == ("shared", 250, 10_240)


def test_what_no_row_knows_is_told_in_pieces_and_keeps_nobody_away() -> None:
    offered = {
        "rdma/hca": "4",
        "habana.ai/gaudi": "8",
        "gpu.intel.com/memory.max": "16Gi",
        "bad.example/x": "many",
        "none.example/x": "0",
        "hugepages-2Mi": "1Gi",
        "pods": "110",
    }
    found = layout_of(node("n", offered), kai=False)
    assert found.pieces == (
        ("gpu.intel.com/memory.max", 1_000_000),
        ("habana.ai/gaudi", 8),
        ("rdma/hca", 4),
    )
    assert found.problems == ()
    assert [doubt.partition(":")[0] for doubt in found.doubts] == ["bad.example/x"]
    many = layout_of(node("n", {f"e.example/r{at:02}": "1" for at in range(20)}), kai=False)
    assert len(many.pieces) == 16
    assert many.doubts == ("more than 16 other resources: e.example/r16 …",)


def cut(offered: dict[str, str], labels: dict[str, str]) -> Layout:
    named = {f"nvidia.com/mig-{name}": count for name, count in offered.items()}
    return layout_of(node("n", named, labels=labels), kai=False)


TWO = {"1g.10gb": "6", "2g.20gb": "4"}


@pytest.mark.parametrize(
    "labels",
    [
        discovered("NVIDIA-A100-SXM4-80GB", 2, 81_920),
        discovered("NVIDIA-H100-80GB-HBM3", 2, 81_559),
        # Labels that contradict the slices: such profiles are those of 80 GB.
        discovered(A100, 2, 40_960),
        # Without a count, and without any label.
        {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"},
        {},
    ],
)
def test_slices_of_two_full_gpus_stand_on_two_gpus(labels: dict[str, str]) -> None:
    found = cut(TWO, labels)
    assert [gpu.reserved_milli for gpu in found.gpus] == [1, 1]
    assert [(share.milli, share.count) for share in found.shares] == [(142, 6), (285, 4)]
    contradicts = labels.get("nvidia.com/gpu.memory") == "40960"
    assert bool(found.doubts) is contradicts
    assert found.problems == ()


@pytest.mark.parametrize(
    ("model", "memory", "count", "offered"),
    [
        ("NVIDIA-H100-80GB-HBM3", 81_559, 8, {"3g.40gb": "16"}),
        ("NVIDIA-H100-80GB-HBM3", 81_559, 8, {"1g.10gb": "16", "2g.20gb": "8", "3g.40gb": "8"}),
        ("NVIDIA-H100-80GB-HBM3", 81_559, 8, {"1g.10gb.me": "8", "1g.10gb": "48"}),
        ("NVIDIA-H200", 143_771, 8, {"1g.18gb": "56"}),
        ("NVIDIA-H20", 97_871, 8, {"1g.24gb": "32"}),
        ("NVIDIA-GH200-480GB", 97_871, 1, {"4g.48gb": "1", "3g.48gb": "1"}),
        ("NVIDIA-B200", 183_359, 8, {"1g.45gb": "32"}),
        ("NVIDIA-GB200", 189_471, 4, {"7g.189gb": "4"}),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", 97_887, 2, {"1g.24gb.gfx": "8"}),
        ("NVIDIA-A30", 24_576, 4, {"1g.6gb": "8", "2g.12gb": "4"}),
    ],
)
def test_slices_of_full_boards_stand_on_as_many_gpus(
    model: str, memory: int, count: int, offered: dict[str, str]
) -> None:
    for labels in (
        discovered(model, count, memory),
        {"nvidia.com/gpu.product": model},
        {"nvidia.com/gpu.product": model, "nvidia.com/gpu.memory": str(memory)},
    ):
        found = cut(offered, labels)
        assert len(found.gpus) == count, labels
        assert (found.problems, found.doubts) == ((), ()), labels


def test_slices_of_an_a30_are_quarters_and_leave_nothing_uncut() -> None:
    for offered, labels in (
        ({"nvidia.com/mig-1g.6gb": "4"}, discovered("NVIDIA-A30", 1, 24_576)),
        ({GPU: "4"}, discovered("NVIDIA-A30-MIG-1g.6gb", 4, 5_952)),
    ):
        found = layout_of(node("n", offered, labels=labels), kai=False)
        assert found.gpus == (Gpu("NVIDIA-A30", 24_576, reserved_milli=1),)
        assert [(share.milli, share.count) for share in found.shares] == [(250, 4)]
        assert (found.problems, found.doubts) == ((), ())


def test_gpus_that_labels_count_stand_there_though_slices_fit_on_fewer() -> None:
    found = cut({"1g.10gb": "2"}, discovered("NVIDIA-H100-80GB-HBM3", 4, 81_559))
    assert [gpu.reserved_milli for gpu in found.gpus] == [858, 858, 1000, 1000]
    assert found.doubts == ()


def test_labels_that_count_fewer_gpus_than_slices_need_are_a_doubt() -> None:
    found = cut({"3g.40gb": "6"}, discovered("NVIDIA-H100-80GB-HBM3", 2, 81_559))
    assert len(found.gpus) == 3
    (doubt,) = found.doubts
    needs = "2 GPUs, but the MIG slices need at least 3: the resources count"
    assert doubt == f"label nvidia.com/gpu.count: {needs}"
    mixed = layout_of(
        node("n", {GPU: "2", "nvidia.com/mig-7g.80gb": "1"}, labels=discovered("H100", 2, 81_559)),
        kai=False,
    )
    assert len(mixed.gpus) == 3
    assert mixed.doubts[0].endswith("need at least 1 beside 2 whole ones: the resources count")


def test_labels_that_count_other_whole_gpus_are_a_doubt() -> None:
    found = layout_of(node("n", {GPU: "4"}, labels=discovered(count=8)), kai=False)
    assert len(found.gpus) == 4
    assert found.doubts == ("labels count 8 GPUs and resources 4: the resources count",)


def test_slices_of_a_single_profile_are_counted_by_labels_as_slices() -> None:
    labels = discovered("NVIDIA-H100-80GB-HBM3-MIG-3g.40gb", 16, 40_320)
    found = layout_of(node("n", {GPU: "16"}, labels=labels), kai=False)
    assert (len(found.gpus), found.doubts) == (8, ())
    fewer = layout_of(node("n", {GPU: "14"}, labels=labels), kai=False)
    assert len(fewer.gpus) == 7
    assert fewer.doubts == ("label nvidia.com/gpu.count: 16 MIG slices, but resources count 14",)


def test_gpus_that_were_whole_before_they_were_cut_are_not_counted_twice() -> None:
    # The kubelet keeps the capacity of a resource whose plugin is gone for a while.
    named = {f"nvidia.com/mig-{name}": count for name, count in TWO.items()}
    labels = discovered("NVIDIA-A100-SXM4-80GB", 2, 81_920)
    after = node("n", named | {GPU: "0"}, capacity=named | {GPU: "2"}, labels=labels)
    assert len(layout_of(after, kai=False).gpus) == 2


def test_slices_that_the_plugin_has_given_up_keep_their_gpus() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    name = "nvidia.com/mig-3g.40gb"
    ill = layout_of(node("n", {name: "2"}, capacity={name: "4"}, labels=labels), kai=False)
    assert (len(ill.gpus), ill.shares[0].count) == (2, 2)
    none = layout_of(node("n", {name: "0"}, capacity={name: "4"}, labels=labels), kai=False)
    assert (len(none.gpus), none.shares) == (2, ())


def test_replicas_of_slices_of_one_profile_are_parts_of_slices() -> None:
    labels = discovered(f"{A100}-MIG-1g.5gb-SHARED", 7, 4864) | {"nvidia.com/gpu.replicas": "2"}
    found = layout_of(node("n", {GPU: "14"}, labels=labels), kai=False)
    assert found.gpus == (Gpu(A100, 40_960, reserved_milli=1),)
    assert found.ways == (Way(GPU, (0,), 71, "shared"),)
    (share,) = found.shares
    assert (share.kind, share.milli, share.count) == ("shared", 71, 14)


@pytest.mark.parametrize("spelt", ["1g.10gb.me", "1g.10gb-me", "1g.10gb.me.all", "1g.24gb.gfx"])
def test_suffixes_of_profiles_are_known(spelt: str) -> None:
    found = cut({spelt: "1"}, {})
    assert (found.problems, len(found.shares)) == ((), 1)


def test_slices_stand_on_their_own_gpus_beside_whole_ones() -> None:
    offered = {GPU: "1", "nvidia.com/mig-3g.20gb": "2"}
    found = layout_of(node("n", offered, labels=discovered(A100, 2, 40_960)), kai=False)
    assert [share.gpus for share in found.shares] == [(1,)]
    alone = cut({"3g.20gb": "2"}, discovered(A100, 1, 40_960))
    assert [share.gpus for share in alone.shares] == [()]


AMDS = {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram": "192G"}
MI300X = "AMD_Instinct_MI300X_OAM"
AMD = "amd.com/gpu"


def of_two_makers(nvidia: str | None, amd: str | None, intel: str | None = None) -> Layout:
    told = {GPU: nvidia, AMD: amd, "gpu.intel.com/xe": intel}
    offered = {name: count for name, count in told.items() if count is not None}
    labels = discovered("NVIDIA-A100-SXM4-80GB", 4, 81_920) | AMDS
    return layout_of(node("n", offered, labels=labels), kai=False)


def test_indices_of_a_maker_stay_when_anothers_number_changes() -> None:
    for nvidia, amd, intel in itertools.product((None, "0", "2", "4"), repeat=3):
        found = of_two_makers(nvidia, amd, intel)
        indices: dict[str, list[int]] = {}
        for index, gpu in zip(indices_of(found.gpus), found.gpus, strict=True):
            indices.setdefault(gpu.resource or GPU, []).append(index)
        wanted = {GPU: (0, nvidia), AMD: (64, amd), "gpu.intel.com/xe": (192, intel)}
        assert indices == {
            name: list(range(first, first + int(count)))
            for name, (first, count) in wanted.items()
            if count not in (None, "0")
        }


def test_nothing_of_a_maker_is_inferred_from_anothers_labels() -> None:
    found = layout_of(node("n", {GPU: "1", AMD: "1"}, labels=AMDS), kai=False)
    assert [(gpu.model, gpu.memory_mib, gpu.resource) for gpu in found.gpus] == [
        (UNKNOWN, 0, ""),
        (MI300X, 196_608, AMD),
    ]
    labels = discovered("NVIDIA-A100-SXM4-80GB", 1, 81_920)
    found = layout_of(node("n", {GPU: "1", AMD: "1"}, labels=labels), kai=False)
    assert [(gpu.model, gpu.memory_mib) for gpu in found.gpus] == [
        ("NVIDIA-A100-SXM4-80GB", 81_920),
        (UNKNOWN, 0),
    ]
    # Nor from what a cloud says of another maker's machine or GPUs.
    for told in (
        {"node.kubernetes.io/instance-type": "Standard_ND96isr_MI300X_v5"},
        {
            "karpenter.k8s.aws/instance-gpu-name": "radeon-pro-v520",
            "karpenter.k8s.aws/instance-gpu-manufacturer": "amd",
        },
    ):
        ours, theirs = layout_of(node("n", {GPU: "1", AMD: "1"}, labels=told), kai=False).gpus
        assert ours.model == UNKNOWN
        assert theirs.model != UNKNOWN
    gke = {"cloud.google.com/gke-accelerator": "nvidia-l4"}
    ours, theirs = layout_of(node("n", {GPU: "1", AMD: "1"}, labels=gke), kai=False).gpus
    assert (ours.model, theirs.model) == ("NVIDIA-L4", UNKNOWN)


def test_a_maker_whose_plugin_does_not_run_is_a_problem_beside_anothers_gpus() -> None:
    found = of_two_makers(None, "2")
    assert len(found.gpus) == 2
    assert found.problems == (
        "labels tell of 4 GPUs of nvidia and allocatable of none: no device plugin runs",
    )


def test_thousandths_are_gpus_that_are_had_whole_or_in_parts_of_any_size() -> None:
    resource = "berthmaster.io/gpu-milli"
    offered = {resource: "1000"}
    found = layout_of(
        node("n", offered, capacity={resource: "2000"}, labels=discovered()), kai=False
    )
    t4 = T4._replace(resource=resource)
    share = Share(resource=resource, milli=1, count=1000, kind="milli", isolation="memory")
    assert found.gpus == (t4, t4._replace(healthy=False))
    assert found.ways == (Way(resource, (0, 1), 1, "milli"),)
    assert found.shares == (share,)
    assert indices_of(found.gpus) == (0, 1)
    [by_turns] = layout_of(node("n", {f"{resource}.shared": "16000"}), kai=False).shares
    assert by_turns == replace(share, resource=f"{resource}.shared", count=16_000, isolation="none")

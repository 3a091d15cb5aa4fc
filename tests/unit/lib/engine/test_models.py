"""How people spell GPU models, and what nodes of real fleets report."""

import pytest

from berthmaster.lib.accelerators.table import PRODUCT
from berthmaster.lib.engine.fleet.fleet import Fleet
from berthmaster.lib.engine.fleet.gpus import is_model, is_one_of, labels_of
from berthmaster.lib.engine.fleet.needs import suitable_nodes
from berthmaster.lib.messages.workload import PodSet
from tests.support.builders import node

GKE = "cloud.google.com/gke-accelerator"

REPORTED = (
    "Tesla-T4",
    "NVIDIA-T400-4GB",
    "NVIDIA-A10",
    "NVIDIA-A10G",
    "NVIDIA-A100-SXM4-40GB",
    "NVIDIA-A100-SXM4-80GB",
    "NVIDIA-A100-80GB-PCIe",
    "NVIDIA-A30",
    "NVIDIA-L4",
    "NVIDIA-L40",
    "NVIDIA-L40S",
    "NVIDIA-H100-80GB-HBM3",
    "NVIDIA-H100-NVL",
    "NVIDIA-H100-PCIe",
    "NVIDIA-H20",
    "NVIDIA-H200",
    "NVIDIA-GH200-480GB",
    "NVIDIA-B200",
    "Tesla-V100-SXM2-16GB",
    "Tesla-V100-SXM2-32GB",
    "Tesla-P4",
    "Tesla-P40",
    "NVIDIA-RTX-A6000",
    "Quadro-RTX-6000",
    "NVIDIA-RTX-6000-Ada-Generation",
    "NVIDIA-GeForce-RTX-4080",
    "NVIDIA-GeForce-RTX-4080-SUPER",
    "AMD_Instinct_MI300X_OAM",
    "AMD-Instinct-MI210",
    "V100M32",
    "unknown",
)
A100S = {"NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"}
V100S = {"Tesla-V100-SXM2-16GB", "Tesla-V100-SXM2-32GB"}
H100S = {"NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-NVL", "NVIDIA-H100-PCIe"}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("T4", {"Tesla-T4"}),
        ("t4", {"Tesla-T4"}),
        ("Tesla-T4", {"Tesla-T4"}),
        ("Tesla T4", {"Tesla-T4"}),
        ("nvidia-tesla-t4", {"Tesla-T4"}),
        ("NVIDIA T4", {"Tesla-T4"}),
        ("Tesla-T4-SHARED", {"Tesla-T4"}),
        ("T400", {"NVIDIA-T400-4GB"}),
        ("A10", {"NVIDIA-A10"}),
        ("A10G", {"NVIDIA-A10G"}),
        ("A100", A100S),
        ("NVIDIA-A100", A100S),
        ("A100-SXM", {"NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-SXM4-80GB"}),
        ("a100 80g", {"NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"}),
        ("nvidia-a100-80gb", {"NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"}),
        ("nvidia-tesla-a100", {"NVIDIA-A100-SXM4-40GB"}),
        ("NVIDIA-A100-SXM4-80GB", {"NVIDIA-A100-SXM4-80GB"}),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", {"NVIDIA-A100-SXM4-40GB"}),
        ("NVIDIA-A100-PCIE-80GB", {"NVIDIA-A100-80GB-PCIe"}),
        ("L4", {"NVIDIA-L4"}),
        ("L40", {"NVIDIA-L40"}),
        ("l40s", {"NVIDIA-L40S"}),
        ("H100", H100S),
        ("nvidia-h100-80gb", {"NVIDIA-H100-80GB-HBM3"}),
        ("nvidia-h100-mega-80gb", {"NVIDIA-H100-80GB-HBM3"}),
        ("nvidia-h200-141gb", {"NVIDIA-H200"}),
        ("H200", {"NVIDIA-H200"}),
        ("H20", {"NVIDIA-H20"}),
        ("V100", V100S),
        ("V100M32", {"V100M32"}),
        ("P4", {"Tesla-P4"}),
        ("A6000", {"NVIDIA-RTX-A6000"}),
        ("RTX 6000", {"Quadro-RTX-6000"}),
        ("RTX-6000-Ada", {"NVIDIA-RTX-6000-Ada-Generation"}),
        ("4080", {"NVIDIA-GeForce-RTX-4080"}),
        ("RTX 4080 Super", {"NVIDIA-GeForce-RTX-4080-SUPER"}),
        ("MI300X", {"AMD_Instinct_MI300X_OAM"}),
        ("MI300", set()),
        ("mi210", {"AMD-Instinct-MI210"}),
        ("unknown", {"unknown"}),
        ("=NVIDIA-A10", {"NVIDIA-A10"}),
        ("=A10", set()),
        ("=Tesla-T4-SHARED", {"Tesla-T4"}),
        ("80GB", set()),
        ("SXM4", set()),
        ("RTX", set()),
        ("nvidia", set()),
        ("", set()),
        ("A100-SXM4-80GB-of-mine", set()),
    ],
)
def test_lookup_finds_exact_match_only(asked: str, found: set[str]) -> None:
    assert {model for model in REPORTED if is_model(asked, model)} == found


def test_every_name_that_a_node_reports_asks_for_itself_and_for_no_other() -> None:
    several = {"NVIDIA-H100-PCIe", "NVIDIA-H100-NVL"}  # without their memory
    for name in REPORTED:
        assert {model for model in REPORTED if is_model(name, model)} == {name}, name
    assert {model for model in several if is_model("H100-PCIe", model)} == {"NVIDIA-H100-PCIe"}


def test_one_of_several_will_do() -> None:
    assert is_one_of(("L4", "T4"), "Tesla-T4")
    assert not is_one_of(("L4", "A10"), "Tesla-T4")
    assert not is_one_of((), "Tesla-T4")


def test_nodes_are_asked_for_by_the_labels_that_name_their_models() -> None:
    nodes = [
        node("c", "n1", model="NVIDIA-A100-SXM4-80GB", labels={PRODUCT: "NVIDIA-A100-SXM4-80GB"}),
        node("c", "n2", model="NVIDIA-A100-SXM4-40GB", labels={GKE: "nvidia-tesla-a100"}),
        node("c", "n3", model="NVIDIA-A10", labels={PRODUCT: "NVIDIA-A10"}),
        node("c", "n4", model="NVIDIA-A100-80GB-PCIe", labels={}),
    ]
    assert labels_of(nodes, ("A100",)) == {
        GKE: ["nvidia-tesla-a100"],
        "kubernetes.io/hostname": ["n4"],
        PRODUCT: ["NVIDIA-A100-SXM4-80GB"],
    }
    assert labels_of(nodes, ("A10",)) == {PRODUCT: ["NVIDIA-A10"]}
    assert labels_of(nodes, ("=B200",)) == {PRODUCT: ["B200"]}


def test_the_fleet_s_filter_takes_any_spelling() -> None:
    fleet = Fleet()
    for name, model in (("n1", "NVIDIA-A10"), ("n2", "NVIDIA-A100-SXM4-80GB"), ("n3", "Tesla-T4")):
        fleet.put_node(node("c", name, model=model))
    fleet.arrange()

    def found(*models: str) -> list[str]:
        suitable = suitable_nodes(fleet, PodSet(gpus=1, gpu_models=models))
        return [fleet.names[slot][1] for slot in suitable.nodes.nonzero()[0]]

    assert found("A100") == ["n2"]
    assert found("a10", "nvidia-tesla-t4") == ["n1", "n3"]
    assert suitable_nodes(fleet, PodSet(gpus=1, gpu_models=("A30",))).why_not == {
        "c": "no such GPU model"
    }

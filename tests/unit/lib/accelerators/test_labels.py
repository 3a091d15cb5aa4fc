"""What nodes of clouds and makers' labellers tell of their GPUs."""

import pytest

from berthmaster.lib.accelerators.table import (
    Board,
    board_of_amd,
    board_of_cloud,
    board_of_intel,
    gpus_told,
    model_label,
    names_in,
)
from berthmaster.lib.engine.fleet.gpus import is_one_of

GKE = "cloud.google.com/gke-accelerator"
EKS = "k8s.amazonaws.com/accelerator"
KARPENTER = "karpenter.k8s.aws/instance-gpu-"
AUTO_MODE = "eks.amazonaws.com/instance-gpu-"
TYPE = "node.kubernetes.io/instance-type"


@pytest.mark.parametrize(
    ("labels", "board"),
    [
        ({GKE: "nvidia-tesla-t4"}, Board("Tesla-T4", 15_360)),
        ({GKE: "nvidia-next"}, Board("nvidia-next", 0)),
        ({GKE: "nvidia-tesla-t4", TYPE: "n1-standard-8"}, Board("Tesla-T4", 15_360)),
        ({EKS: "nvidia-a10g"}, Board("NVIDIA-A10G", 23_028)),
        ({EKS: "nvidia-tesla-a100", TYPE: "p4de.24xlarge"}, Board("NVIDIA-A100-SXM4-80GB", 81_920)),
        ({f"{KARPENTER}name": "l4", f"{KARPENTER}memory": "22888"}, Board("NVIDIA-L4", 22_888)),
        (
            {f"{KARPENTER}name": "a100", f"{KARPENTER}memory": "81920"},
            Board("NVIDIA-A100-SXM4-80GB", 81_920),
        ),
        ({f"{AUTO_MODE}name": "h100"}, Board("NVIDIA-H100-80GB-HBM3", 81_559)),
        ({f"{KARPENTER}name": "next", f"{KARPENTER}memory": "lots"}, Board("next", 0)),
        ({TYPE: "g4dn.xlarge"}, Board("Tesla-T4", 15_360)),
        ({TYPE: "gr6.4xlarge"}, Board("NVIDIA-L4", 23_034)),
        ({TYPE: "p6-b200.48xlarge"}, Board("NVIDIA-B200", 183_359)),
        ({TYPE: "Standard_NC24ads_A100_v4"}, Board("NVIDIA-A100-80GB-PCIe", 81_920)),
        (
            {TYPE: "Standard_ND96isr_H100_v5", "kubernetes.azure.com/accelerator": "nvidia"},
            Board("NVIDIA-H100-80GB-HBM3", 81_559),
        ),
        ({TYPE: "Standard_NV36ads_A10_v5"}, Board("NVIDIA-A10", 23_028)),
        ({TYPE: "Standard_NV6ads_A10_v5"}, None),  # a sixth of one
        ({TYPE: "g6f.large"}, None),  # an eighth
        ({TYPE: "k3s"}, None),
        ({TYPE: "n1-standard-8"}, None),  # any GPU can be attached to one
        ({}, None),
    ],
)
def test_cloud_model_names_are_translated(labels: dict[str, str], board: Board | None) -> None:
    assert board_of_cloud(labels) == board
    if TYPE in labels and len(labels) == 1:
        assert model_label(labels) == (TYPE if board is not None else None)


@pytest.mark.parametrize(
    ("labels", "board"),
    [
        (
            {"amd.com/gpu.product-name": "AMD_Instinct_MI210", "amd.com/gpu.vram": "64G"},
            Board("AMD_Instinct_MI210", 65_536),
        ),
        (
            {"amd.com/gpu.device-id": "74a1", "amd.com/gpu.vram": "192G"},
            Board("AMD_Instinct_MI300X_OAM", 196_608),
        ),
        # As older labellers wrote it, for nodes with GPUs of several kinds too.
        (
            {"beta.amd.com/gpu.device-id.740f": "8", "beta.amd.com/gpu.vram.64G": "8"},
            Board("AMD_Instinct_MI210", 65_536),
        ),
        ({"beta.amd.com/gpu.device-id.740f": "4", "beta.amd.com/gpu.device-id.738c": "4"}, None),
        ({TYPE: "Standard_ND96isr_MI300X_v5"}, Board("AMD_Instinct_MI300X_OAM", 196_592)),
        ({"amd.com/gpu.vram": "many"}, None),
    ],
)
def test_amds_labels_tell_model_and_memory(labels: dict[str, str], board: Board | None) -> None:
    assert board_of_amd(labels) == board


def test_intels_labels_tell_the_model_whose_memory_is_known() -> None:
    assert board_of_intel({"gpu.intel.com/product": "Max_1550"}) == Board("Max_1550", 131_072)
    assert board_of_intel({"gpu.intel.com/product": "Next"}) == Board("Next", 0)
    assert board_of_intel({}) is None


def test_the_number_of_gpus_is_told_by_discovery_or_a_cloud() -> None:
    assert gpus_told({"nvidia.com/gpu.count": "8", f"{KARPENTER}count": "4"}) == 8
    assert gpus_told({"cloud.google.com/gke-accelerator-count": "2"}) == 2
    assert gpus_told({f"{AUTO_MODE}count": "1"}) == 1
    assert gpus_told({f"{KARPENTER}count": "-1"}) == 0


def test_a_flavors_labels_name_models_as_people_ask_for_them() -> None:
    flavors = ({TYPE: "g5.xlarge"}, {EKS: "nvidia-a10g"}, {f"{KARPENTER}name": "a10g"})
    for labels in flavors:
        (name,) = names_in(labels)
        assert is_one_of(("A10G",), name), labels
    assert names_in({TYPE: "m5.large", "pool": "a"}) == []

"""What a GPU model is called in facts: what GPU feature discovery calls it, and nothing beside.

Facts name models as `kubectl get nodes -L nvidia.com/gpu.product` shows them ("Tesla-T4",
"NVIDIA-A100-SXM4-80GB"); how else people may spell them is engine/fleet/models.py's matter. Two
things are taken off, as they say how a GPU is handed out and not what it is: "-SHARED" (time
slicing, MPS) and "-MIG-1g.5gb". Where nothing was discovered, a cloud's label for accelerators is
translated; a name that we cannot translate stays as it is. The raw labels are in the report as
well. Pure.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

PRODUCT: Final = "nvidia.com/gpu.product"
_AMD_PRODUCT: Final = ("amd.com/gpu.product-name", "beta.amd.com/gpu.product-name")
_GKE: Final = "cloud.google.com/gke-accelerator"
_HANDED_OUT: Final = re.compile(r"(?:-SHARED|-MIG-[0-9][a-z0-9.+]*)+\Z")
_MEMORY: Final = re.compile(r"(?<![0-9])([0-9]{1,3})GB")

UNKNOWN: Final = "unknown"


class Known(NamedTuple):
    """A model under the name by which it is discovered, with its memory as drivers report it."""

    product: str
    memory_mib: int


# Google's names of accelerators (Google Kubernetes Engine, "GPU platforms"), as feature discovery
# names the same boards; memory as nvidia-smi shows it.
_CLOUD: Final[Mapping[str, Known]] = {
    "nvidia-tesla-t4": Known("Tesla-T4", 15_360),
    "nvidia-tesla-p4": Known("Tesla-P4", 7_680),
    "nvidia-tesla-p100": Known("Tesla-P100-PCIE-16GB", 16_384),
    "nvidia-tesla-v100": Known("Tesla-V100-SXM2-16GB", 16_384),
    "nvidia-l4": Known("NVIDIA-L4", 23_034),
    "nvidia-tesla-a100": Known("NVIDIA-A100-SXM4-40GB", 40_960),
    "nvidia-a100-80gb": Known("NVIDIA-A100-SXM4-80GB", 81_920),
    "nvidia-h100-80gb": Known("NVIDIA-H100-80GB-HBM3", 81_559),
    "nvidia-h100-mega-80gb": Known("NVIDIA-H100-80GB-HBM3", 81_559),
    "nvidia-h200-141gb": Known("NVIDIA-H200", 143_771),
}


def model_of(labels: Mapping[str, str], *, amd: bool = False) -> str:
    """The model of a node's GPUs."""
    if amd:
        return next((labels[key] for key in _AMD_PRODUCT if labels.get(key)), UNKNOWN)
    product = _HANDED_OUT.sub("", labels.get(PRODUCT, ""))
    if product:
        return product
    cloud = labels.get(_GKE, "")
    return _CLOUD[cloud].product if cloud in _CLOUD else cloud or UNKNOWN


def memory_of(labels: Mapping[str, str]) -> int:
    """Memory of one whole GPU in MiB, by the model's name; 0 = it does not say."""
    product = labels.get(PRODUCT, "")
    if product:
        found = _MEMORY.search(product)
        return int(found[1]) * 1024 if found else 0
    cloud = _CLOUD.get(labels.get(_GKE, ""))
    return cloud.memory_mib if cloud else 0


def named(product: str) -> str:
    """A device's own name for its model ("NVIDIA A100-SXM4-40GB") as discovery would label it."""
    return _HANDED_OUT.sub("", "-".join(product.split())) or UNKNOWN

"""Names of accelerators: the resources that pods request, and the labels that name the model.

Pure. Rules:

- Each resource name has a row. Names with a variable part (MIG profiles, renamed replicas) share
  one. The first matching row counts.
- Readers of nodes, queues and pods use this table, and have no list of their own.
- A name without a row is ``OTHER``: the request stays, and a service that cannot serve the name
  reports the name.

**Labels.** Feature discovery names a board most precisely, so its label comes first. A cloud's name
for an accelerator, or for a machine type with fixed GPUs, is translated to discovery's name of the
board. Unknown names stay unchanged. Memory is the value reported by the boards' drivers.

Sources: Google Kubernetes Engine, "GPU platforms"; AWS, "EC2 accelerated computing instances",
Karpenter's and EKS Auto Mode's well-known labels; Azure, "GPU accelerated VM sizes"; the node
labellers of AMD's and Intel's device plugins.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple

from berthmaster.lib.accelerators import mig


class How(StrEnum):
    """How devices of a resource name are allocated."""

    WHOLE = "whole"  # an exclusive GPU
    SHARED = "shared"  # a replica of a GPU: time slicing or MPS
    MIG = "mig"  # a MIG slice with a fixed profile
    LIMIT = "limit"  # HAMi's limit of a GPU fraction, beside the GPU itself
    MILLI = "milli"  # thousandths of a GPU, offered by `berth serve shares`
    TPU = "tpu"
    CLASS = "class"  # a device of a DeviceClass, by dynamic resource allocation
    OTHER = "other"  # unknown


class Row(NamedTuple):
    """One name, or all names with a prefix and a suffix."""

    name: str
    how: How
    maker: str  # of the device; "" = any
    end: str | None = None  # not None: all names with prefix ``name`` and this suffix

    def matches(self, name: str) -> bool:
        if self.end is None:
            return name == self.name
        return name.startswith(self.name) and name.endswith(self.end)


VENDOR: Final = "nvidia.com/"  # its device plugin accepts any name for replicas
NVIDIA: Final = "nvidia.com/gpu"  # usual name of a whole GPU
AMD: Final = "amd.com/gpu"
INTEL: Final = ("gpu.intel.com/i915", "gpu.intel.com/xe")  # depends on the driver
SHARED: Final = "nvidia.com/gpu.shared"
MIG: Final = "nvidia.com/mig-"
TPU: Final = "google.com/tpu"
CLASS: Final = "deviceclass.resource.kubernetes.io/"  # followed by the DeviceClass's name
GPU_MILLI: Final = "berthmaster.io/gpu-milli"  # compute and memory are limited
GPU_MILLI_SHARED: Final = "berthmaster.io/gpu-milli.shared"  # without limits: time slicing
GPU_PIECES: Final = 1000  # units of either make one GPU
HAMI_CORES: Final = "nvidia.com/gpucores"  # percent
HAMI_MEMORY: Final = "nvidia.com/gpumem"  # MiB
HAMI_MEMORY_PERCENT: Final = "nvidia.com/gpumem-percentage"

TABLE: Final = (
    Row(VENDOR, How.SHARED, "nvidia", end=".shared"),  # includes replicas of a MIG slice
    Row(NVIDIA, How.WHOLE, "nvidia"),
    Row(AMD, How.WHOLE, "amd"),
    *(Row(name, How.WHOLE, "intel") for name in INTEL),
    Row(TPU, How.TPU, "google"),
    Row(CLASS, How.CLASS, "", end=""),
    Row(MIG, How.MIG, "nvidia", end=""),
    Row(GPU_MILLI, How.MILLI, "nvidia"),
    Row(GPU_MILLI_SHARED, How.MILLI, "nvidia"),
    Row(HAMI_CORES, How.LIMIT, "nvidia"),
    Row(HAMI_MEMORY, How.LIMIT, "nvidia"),
    Row(HAMI_MEMORY_PERCENT, How.LIMIT, "nvidia"),
)

# The field of a pod set for each name. Names of other kinds go into ``resources``.
ASKED_BY: Final = {
    How.WHOLE: "gpus, and gpu_resource for those of one maker",
    How.SHARED: "gpus: 1 and gpu_milli or gpu_memory_mib",
    How.MIG: "mig_profile",
    How.LIMIT: "gpu_milli and gpu_memory_mib",
    How.MILLI: "gpus, and gpu_milli or gpu_memory_mib for a part of one",
    How.TPU: "tpus",
    How.CLASS: "claims",
}

# Limits of a process under MPS to less than its replica.
MPS_THREADS: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MPS_MEMORY: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"

# KAI's scheduler shares GPUs by annotations of pods.
KAI_FRACTION: Final = "gpu-fraction"
KAI_MEMORY: Final = "gpu-memory"  # MiB
KAI_DEVICES: Final = "gpu-fraction-num-devices"
_KAI_STEP_MIB: Final = 100


def kai_memory_mib(memory_mib: int) -> int:
    """Return KAI's usable memory of a GPU with this memory by its label: full hundreds of MiB."""
    return memory_mib // _KAI_STEP_MIB * _KAI_STEP_MIB


@lru_cache(maxsize=4096)
def how_of(name: str) -> How | None:
    """Return how a resource is allocated, or None for CPU, memory and huge pages."""
    row = row_of(name)
    if row is not None:
        return row.how
    return How.OTHER if is_extended(name) else None


@lru_cache(maxsize=4096)
def row_of(name: str) -> Row | None:
    """Return the row of a resource name, or None."""
    return next((row for row in TABLE if row.matches(name)), None)


def pieces_of_whole(name: str) -> int:
    """Return the units of a resource in one whole GPU."""
    return GPU_PIECES if how_of(name) is How.MILLI else 1


def maker_of(name: str) -> str:
    """Return the maker of a resource's devices, "" without a row."""
    row = row_of(name)
    return row.maker if row is not None else ""


# 244: Kubernetes counts each in a quota as "requests.<name>", whose domain has at most 253.
_NAME: Final = re.compile(
    r"(?=[^/]{1,244}/)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*"
    r"/[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z"
)


def is_resource_name(name: str) -> bool:
    """Return whether a node could offer an extended resource with this name."""
    return _NAME.match(name) is not None and is_extended(name)


def is_extended(name: str) -> bool:
    """Return whether the name is an extended resource: its domain is not Kubernetes' own."""
    domain, _, rest = name.partition("/")
    return bool(rest) and not domain.endswith("kubernetes.io") and not name.startswith("requests.")


PRODUCT: Final = "nvidia.com/gpu.product"
COUNT: Final = "nvidia.com/gpu.count"
AMD_PRODUCT: Final = ("amd.com/gpu.product-name", "beta.amd.com/gpu.product-name")
INTEL_PRODUCT: Final = "gpu.intel.com/product"
GKE: Final = "cloud.google.com/gke-accelerator"
GKE_COUNT: Final = "cloud.google.com/gke-accelerator-count"
GKE_PARTITION: Final = "cloud.google.com/gke-gpu-partition-size"  # a MIG profile
GKE_STRATEGY: Final = "cloud.google.com/gke-gpu-sharing-strategy"  # time-sharing or mps
GKE_CLIENTS: Final = "cloud.google.com/gke-max-shared-clients-per-gpu"
EKS: Final = "k8s.amazonaws.com/accelerator"
KARPENTER: Final = "karpenter.k8s.aws/instance-gpu-"
AUTO_MODE: Final = "eks.amazonaws.com/instance-gpu-"
_NAMES: Final = (f"{KARPENTER}name", f"{AUTO_MODE}name")
_MANUFACTURERS: Final = (f"{KARPENTER}manufacturer", f"{AUTO_MODE}manufacturer")
INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
_CLOUDS: Final = (GKE, INSTANCE_TYPE, *_NAMES, EKS)
# Labels with the model of a node's GPUs, in order of preference. The machine type counts only if
# its GPUs are of one model.
MODEL_LABELS: Final = (PRODUCT, *AMD_PRODUCT, GKE, *_NAMES, EKS, INTEL_PRODUCT, INSTANCE_TYPE)
_OF_MAKER: Final[Mapping[str, str]] = {
    PRODUCT: "nvidia",
    **dict.fromkeys(AMD_PRODUCT, "amd"),
    INTEL_PRODUCT: "intel",
}
_AMD_DEVICE: Final = ("amd.com/gpu.device-id", "beta.amd.com/gpu.device-id")
_AMD_MEMORY: Final = ("amd.com/gpu.vram", "beta.amd.com/gpu.vram")


class Board(NamedTuple):
    """A GPU by feature discovery's name, with its memory; 0 = unknown."""

    product: str
    memory_mib: int = 0

    @property
    def maker(self) -> str:
        """The maker. AMD's boards name their maker, all others here are NVIDIA's."""
        return "amd" if self.product.upper().startswith("AMD") else "nvidia"


_T4: Final = Board("Tesla-T4", 15_360)
_V100: Final = Board("Tesla-V100-SXM2-16GB", 16_384)
_A100: Final = Board("NVIDIA-A100-SXM4-40GB", 40_960)
_A100_80: Final = Board("NVIDIA-A100-SXM4-80GB", 81_920)
_A10G: Final = Board("NVIDIA-A10G", 23_028)
_L4: Final = Board("NVIDIA-L4", 23_034)
_L40S: Final = Board("NVIDIA-L40S", 46_068)
_H100: Final = Board("NVIDIA-H100-80GB-HBM3", 81_559)
_H200: Final = Board("NVIDIA-H200", 143_771)
_B200: Final = Board("NVIDIA-B200", 183_359)
_MI300X: Final = Board("AMD_Instinct_MI300X_OAM", 196_592)

_CLOUD: Final[Mapping[str, Board]] = {
    # Google's
    "nvidia-tesla-t4": _T4,
    "nvidia-tesla-p4": Board("Tesla-P4", 7_680),
    "nvidia-tesla-p100": Board("Tesla-P100-PCIE-16GB", 16_384),
    "nvidia-tesla-v100": _V100,
    "nvidia-l4": _L4,
    "nvidia-tesla-a100": _A100,
    "nvidia-a100-80gb": _A100_80,
    "nvidia-h100-80gb": _H100,
    "nvidia-h100-mega-80gb": _H100,
    "nvidia-h200-141gb": _H200,
    "nvidia-b200": _B200,
    # Amazon's
    "nvidia-tesla-k80": Board("Tesla-K80", 11_441),
    "nvidia-a10g": _A10G,
    "nvidia-l40s": _L40S,
    "nvidia-h100": _H100,
    "nvidia-h200": _H200,
    "k80": Board("Tesla-K80", 11_441),
    "t4": _T4,
    "t4g": Board("NVIDIA-T4G", 15_360),
    "v100": _V100,
    "a100": _A100,
    "a10g": _A10G,
    "l4": _L4,
    "l40s": _L40S,
    "h100": _H100,
    "h200": _H200,
    "b200": _B200,
}

# Machine types with whole GPUs of this model, by prefix or pattern.
_MACHINES: Final[tuple[tuple[re.Pattern[str], Board], ...]] = tuple(
    (re.compile(rf"{pattern}\Z"), board)
    for pattern, board in (
        (r"p3\.\d*xlarge", _V100),
        (r"p3dn\.\d+xlarge", Board("Tesla-V100-SXM2-32GB", 32_768)),
        (r"p4d\.\d+xlarge", _A100),
        (r"p4de\.\d+xlarge", _A100_80),
        (r"p5\.\d+xlarge", _H100),
        (r"p5en?\.\d+xlarge", _H200),
        (r"p6-b200\.\d+xlarge", _B200),
        (r"g4dn\.(?:\d*xlarge|metal)", _T4),
        (r"g5\.\d*xlarge", _A10G),
        (r"g5g\.(?:\d*xlarge|metal)", Board("NVIDIA-T4G", 15_360)),
        (r"gr?6\.\d*xlarge", _L4),
        (r"g6e\.\d*xlarge", _L40S),
        (r"Standard_NC\d+as_T4_v3", _T4),
        (r"Standard_NC\d+r?s_v3", Board("Tesla-V100-PCIE-16GB", 16_384)),
        (r"Standard_ND40rs_v2", Board("Tesla-V100-SXM2-32GB", 32_768)),
        (r"Standard_NC\d+ads_A100_v4", Board("NVIDIA-A100-80GB-PCIe", 81_920)),
        (r"Standard_ND96asr_v4", _A100),
        (r"Standard_ND96amsr_A100_v4", _A100_80),
        (r"Standard_NV(?:36|72)adm?s_A10_v5", Board("NVIDIA-A10", 23_028)),
        (r"Standard_NC\d+ads_H100_v5", Board("NVIDIA-H100-NVL", 95_830)),
        (r"Standard_ND96isr_H100_v5", _H100),
        (r"Standard_ND96isr_H200_v5", _H200),
        (r"Standard_ND96isr?_MI300X_v5", _MI300X),
    )
)

# AMD's by PCI device, where the labeller gives no name.
_AMD_DEVICES: Final[Mapping[str, Board]] = {
    "738c": Board("AMD_Instinct_MI100", 32_752),
    "740f": Board("AMD_Instinct_MI210", 65_520),
    "7408": Board("AMD_Instinct_MI250X", 65_520),
    "740c": Board("AMD_Instinct_MI250", 65_520),
    "74a1": _MI300X,
    "74a5": Board("AMD_Instinct_MI325X_OAM", 262_128),
}
_INTEL: Final[Mapping[str, int]] = {  # MiB
    "Flex_140": 6_144,
    "Flex_170": 16_384,
    "Max_1100": 49_152,
    "Max_1550": 131_072,
}


def model_label(labels: Mapping[str, str], maker: str = "") -> str | None:
    """Return the label with the model of a maker's GPUs ("" = any maker), or None.

    Nodes with the same value have the same GPUs.
    """
    for key in MODEL_LABELS:
        if not labels.get(key):
            continue
        if (of := _OF_MAKER.get(key)) is None:
            of = _maker_by(labels, key)
        if of and maker in ("", of):
            return key
    return None


def names_in(labels: Mapping[str, str]) -> list[str]:
    """Return the names of GPU models in labels, such as a flavor's."""
    found = []
    for key in MODEL_LABELS:
        value = labels.get(key)
        if value is None:
            continue
        if key == INSTANCE_TYPE:
            board = _by_machine(value)
            if board is not None:
                found.append(board.product)
        else:
            found.append(value)
    return found


def board_of_cloud(labels: Mapping[str, str], maker: str = "") -> Board | None:
    """Return the GPU named by a cloud's labels, or None without one of this maker ("" = any maker).

    The machine type is more precise than Amazon's short names, which are equal for boards with more
    memory.
    """
    key = next((key for key in _CLOUDS if _maker_by(labels, key)), None)
    if key is None or maker not in ("", _maker_by(labels, key)):
        return None
    return _board_by(labels, key)


def _board_by(labels: Mapping[str, str], key: str) -> Board | None:
    """Return the board named by one of a cloud's labels."""
    name = labels.get(key, "")
    if not name or key == INSTANCE_TYPE:
        return _by_machine(name)
    if key == GKE:
        return _CLOUD.get(name) or Board(name)
    board = _CLOUD.get(name.lower()) or Board(name)
    memory_mib = _whole(labels, (f"{KARPENTER}memory", f"{AUTO_MODE}memory"))
    if board is _A100 and memory_mib > _A100.memory_mib:
        return _A100_80
    return board if not memory_mib else board._replace(memory_mib=memory_mib)


def _maker_by(labels: Mapping[str, str], key: str) -> str:
    """Return the maker of the GPUs in one of a cloud's labels, or ""."""
    board = _board_by(labels, key)
    if board is None:
        return ""
    said = _first(labels, _MANUFACTURERS).lower() if key in (*_NAMES, EKS) else ""
    return said or board.maker


def board_of_amd(labels: Mapping[str, str]) -> Board | None:
    """Return a node's AMD GPU, from AMD's node labeller or a cloud."""
    memory = _first(labels, _AMD_MEMORY).upper().removesuffix("B").removesuffix("I")
    memory_mib = int(memory[:-1]) * 1024 if re.fullmatch(r"\d{1,6}G", memory) else 0
    if name := _first(labels, AMD_PRODUCT):
        return Board(name, memory_mib)
    board = _AMD_DEVICES.get(_first(labels, _AMD_DEVICE).lower()) or board_of_cloud(labels, "amd")
    if board is None:
        return Board("", memory_mib) if memory_mib else None
    return board._replace(memory_mib=memory_mib) if memory_mib else board


def board_of_intel(labels: Mapping[str, str]) -> Board | None:
    """Return a node's Intel GPU, from the rules of Intel's device plugin."""
    name = labels.get(INTEL_PRODUCT)
    return Board(name, _INTEL.get(name, 0)) if name else None


def devices_told(labels: Mapping[str, str]) -> int:
    """Return discovery's count of NVIDIA devices; 0 = unknown.

    The count is of GPUs, or of all MIG slices if the product is a slice.
    """
    return _whole(labels, (COUNT,))


def gpus_told(labels: Mapping[str, str], maker: str = "nvidia") -> int:
    """Return the number of a maker's GPUs by a node's labels; 0 = unknown."""
    if maker == "nvidia" and "-MIG-" not in labels.get(PRODUCT, ""):
        told = devices_told(labels)
        if told:
            return told
    makers = {of for key in _CLOUDS if (of := _maker_by(labels, key))} or {"nvidia"}
    if makers != {maker}:
        return 0
    return _whole(labels, (GKE_COUNT, f"{KARPENTER}count", f"{AUTO_MODE}count"))


_HANDED_OUT: Final = re.compile(
    rf"(?:-SHARED|-MIG-(?:INVALID|{mig.WORDS}|[0-9][a-z0-9.+]*))+\Z", re.IGNORECASE
)


def without_handing_out(product: str) -> str:
    """Return a product without its sharing suffix: -SHARED, -MIG-1g.5gb."""
    return _HANDED_OUT.sub("", product)


@lru_cache(maxsize=1024)
def _by_machine(kind: str) -> Board | None:
    return next((board for pattern, board in _MACHINES if pattern.match(kind)), None)


def _first(labels: Mapping[str, str], keys: tuple[str, ...]) -> str:
    """Return the value of the first existing label.

    Older labellers wrote the value into the key: ``beta.amd.com/gpu.vram.64G: "8"``.
    """
    for key in keys:
        if value := labels.get(key):
            return value
        if key.startswith("beta."):
            found = sorted(k for k in labels if k.startswith(f"{key}."))
            if len(found) == 1:
                return found[0].removeprefix(f"{key}.")
    return ""


def _whole(labels: Mapping[str, str], keys: tuple[str, ...]) -> int:
    for key in keys:
        value = labels.get(key, "")
        if re.fullmatch(r"[0-9]{1,8}", value):
            return int(value)
    return 0

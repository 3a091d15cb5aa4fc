"""The table: by which name an accelerator is asked for, and how it is had. Pure.

Rules of this file:

- A row for each name that pods ask by. Names that differ in a part (MIG's profiles, renamed
  replicas) share one. The first row that matches counts.
- Whoever reads a node, a queue or a pod asks here what a name is, and keeps no list of its own.
- What no row knows is ``OTHER``: it is still asked for, and whoever cannot serve it says so.
"""

import re
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple


class How(StrEnum):
    """How what is asked for by a name is had."""

    WHOLE = "whole"  # a GPU of its own
    SHARED = "shared"  # a replica of a GPU: time slicing or MPS
    MIG = "mig"  # a slice of a GPU, of a fixed profile
    LIMIT = "limit"  # HAMi's bound of a part of a GPU, beside the GPU itself
    MILLI = "milli"  # thousandths of a GPU, as `berth serve shares` offers them
    TPU = "tpu"
    CLASS = "class"  # a device of a DeviceClass, by dynamic allocation
    OTHER = "other"  # nobody here knows


class Row(NamedTuple):
    """One name, or all that begin or end so."""

    name: str
    how: How
    maker: str  # whose it is; "" = any's
    end: str | None = None  # not None: all names that begin with ``name`` and end so

    def matches(self, name: str) -> bool:
        if self.end is None:
            return name == self.name
        return name.startswith(self.name) and name.endswith(self.end)


VENDOR: Final = "nvidia.com/"  # whose device plugin lets replicas have any name
NVIDIA: Final = "nvidia.com/gpu"  # as which a whole GPU is asked for, usually
AMD: Final = "amd.com/gpu"
INTEL: Final = ("gpu.intel.com/i915", "gpu.intel.com/xe")  # by the driver
SHARED: Final = "nvidia.com/gpu.shared"
MIG: Final = "nvidia.com/mig-"
TPU: Final = "google.com/tpu"
CLASS: Final = "deviceclass.resource.kubernetes.io/"  # and the DeviceClass's name
GPU_MILLI: Final = "berthmaster.io/gpu-milli"  # held to compute and memory
GPU_MILLI_SHARED: Final = "berthmaster.io/gpu-milli.shared"  # held to nothing: time slicing
GPU_PIECES: Final = 1000  # of either are one GPU
HAMI_CORES: Final = "nvidia.com/gpucores"  # percent
HAMI_MEMORY: Final = "nvidia.com/gpumem"  # MiB
HAMI_MEMORY_PERCENT: Final = "nvidia.com/gpumem-percentage"

TABLE: Final = (
    Row(VENDOR, How.SHARED, "nvidia", end=".shared"),  # a slice's replicas too
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

# The field of a pod set by which each is asked for; what is not named here stands in ``resources``.
ASKED_BY: Final = {
    How.WHOLE: "gpus, and gpu_resource for those of one maker",
    How.SHARED: "gpus: 1 and gpu_milli or gpu_memory_mib",
    How.MIG: "mig_profile",
    How.LIMIT: "gpu_milli and gpu_memory_mib",
    How.MILLI: "gpus, and gpu_milli or gpu_memory_mib for a part of one",
    How.TPU: "tpus",
    How.CLASS: "claims",
}

# By which a process under MPS is held to less than its replica.
MPS_THREADS: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MPS_MEMORY: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"

# KAI's scheduler shares GPUs by annotations of pods.
KAI_FRACTION: Final = "gpu-fraction"
KAI_MEMORY: Final = "gpu-memory"  # MiB
KAI_DEVICES: Final = "gpu-fraction-num-devices"
_KAI_STEP_MIB: Final = 100


def kai_memory_mib(memory_mib: int) -> int:
    """What KAI hands out of a GPU that a node's label says has so much: full hundreds of MiB."""
    return memory_mib // _KAI_STEP_MIB * _KAI_STEP_MIB


@lru_cache(maxsize=4096)
def how_of(name: str) -> How | None:
    """How what is asked for by a resource's name is had; None for what no device is (CPU, memory,
    huge pages)."""
    row = row_of(name)
    if row is not None:
        return row.how
    return How.OTHER if is_extended(name) else None


@lru_cache(maxsize=4096)
def row_of(name: str) -> Row | None:
    """The row of a resource's name; None if no row knows it."""
    return next((row for row in TABLE if row.matches(name)), None)


def pieces_of_whole(name: str) -> int:
    """Return how many of a resource are one whole GPU."""
    return GPU_PIECES if how_of(name) is How.MILLI else 1


def maker_of(name: str) -> str:
    """Return the maker of the devices that a resource is; "" where no row says."""
    row = row_of(name)
    return row.maker if row is not None else ""


# 244: Kubernetes counts each in a quota as "requests.<name>", whose domain has at most 253.
_NAME: Final = re.compile(
    r"(?=[^/]{1,244}/)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*"
    r"/[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z"
)


def is_resource_name(name: str) -> bool:
    """Whether a node could offer an extended resource of this name."""
    return _NAME.match(name) is not None and is_extended(name)


def is_extended(name: str) -> bool:
    """Whether it is an extended resource, by Kubernetes' rule: a domain that is not its own."""
    domain, _, rest = name.partition("/")
    return bool(rest) and not domain.endswith("kubernetes.io") and not name.startswith("requests.")

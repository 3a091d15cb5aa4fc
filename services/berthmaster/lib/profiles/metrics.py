"""The metrics of a job: their names, what they can be, and where a message has them. Pure.

A value that no machine can have is refused alone. Example: an agent reports ``cpu_cores=1e9``
beside a right ``memory_mib``: the first is left out, and the second is kept.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec import structs

from berthmaster.lib.messages.telemetry import GpuUse, HostUse, JobFigures, JobOwner


class Bounds(NamedTuple):
    """The least and the most that a value can be."""

    least: float
    most: float

    def hold(self, value: float) -> bool:
        """Whether a value can be right; NaN cannot."""
        return self.least <= value <= self.most


RATE: Final = Bounds(0, 1e13)  # 10 TB/s
# Of one pod. A job can have as many times as much as it has pods.
HOST_BOUNDS: Final[Mapping[str, Bounds]] = MappingProxyType(
    {
        "cpu_cores": Bounds(0, 4096),
        "memory_mib": Bounds(0, 64 * 1024 * 1024),
        "disk_read_bytes_per_s": RATE,
        "disk_write_bytes_per_s": RATE,
        "network_receive_bytes_per_s": RATE,
        "network_transmit_bytes_per_s": RATE,
    }
)
GPU_METRICS: Final[Mapping[str, str]] = MappingProxyType(  # name -> field of GpuUse
    {
        "gpu_utilization_percent": "utilization_percent",
        "gpu_sm_active_percent": "sm_active_percent",
        "gpu_tensor_active_percent": "tensor_active_percent",
        "gpu_dram_active_percent": "dram_active_percent",
        "gpu_memory_bandwidth_percent": "memory_bandwidth_percent",
        "gpu_memory_used_mib": "memory_used_mib",
        "gpu_memory_max_percent": "memory_max_percent",
        "gpu_power_w": "power_w",
        "pcie_bytes_per_s": "pcie_bytes_per_s",
    }
)
METRICS: Final = (*GPU_METRICS, *HOST_BOUNDS)


def values_of(figures: JobFigures) -> dict[str, float]:
    """The metrics that a message has, by name."""
    found = {name: getattr(figures.use, field) for name, field in GPU_METRICS.items()}
    if figures.host is not None:
        found |= {name: getattr(figures.host, name) for name in HOST_BOUNDS}
    return {name: float(value) for name, value in found.items() if value is not None}


def plausible(figures: JobFigures) -> tuple[JobFigures, int]:
    """The message without values that no job can have, and how many these were."""
    changed: dict[str, HostUse | GpuUse | JobOwner] = {}
    refused = 0
    if (host := figures.host) is not None:
        pods = max(1, host.pods)
        wrong = [
            name
            for name, bounds in HOST_BOUNDS.items()
            if (value := getattr(host, name)) is not None
            and not bounds._replace(most=bounds.most * pods).hold(value)
        ]
        if wrong:
            changed["host"] = structs.replace(host, **dict.fromkeys(wrong))
        refused += len(wrong)
    if not _link_holds(figures.use):
        changed["use"] = structs.replace(figures.use, pcie_bytes_per_s=None)
        refused += 1
    if figures.owner is not None and not _link_holds(figures.owner.use):
        use = structs.replace(figures.owner.use, pcie_bytes_per_s=None)
        changed["owner"] = structs.replace(figures.owner, use=use)
        refused += 1
    return (structs.replace(figures, **changed) if changed else figures), refused


def _link_holds(use: GpuUse) -> bool:
    value = use.pcie_bytes_per_s
    return value is None or RATE._replace(most=RATE.most * max(1, use.gpus)).hold(value)

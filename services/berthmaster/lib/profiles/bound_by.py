"""What a job is bound by, from shares of what its GPUs and pods did. Pure.

Each rule names its threshold; the first that holds decides:

1. idle: its GPUs ran kernels for less than `IDLE` of the time, and its pods did nothing either.
2. network, input: its GPUs ran no kernel for `WAITING` of the time or more. The job waits for other
   pods where it sends `SYMMETRIC` of what it receives, as an all-reduce does, at `NETWORK_BYTES`
   a second and pod or more. Otherwise it waits for its input: data, the CPU, or its own pauses.
3. memory: the GPUs' memory moved data for `DRAM` of the time, and more, in parts of what each can
   reach, than the tensor cores worked.
4. compute: the rest.

Sources: NVIDIA, "DCGM feature overview", profiling metrics: a kernel that keeps memory busy reaches
a DRAM activity of about 0.8, hence `DRAM_REACHES`. SM activity below 0.5 tells of a GPU that is not
used well. `DRAM` is 60 % of what is reachable. Example: kernels 100 % of the time, SMs 98 %, DRAM
86 %, tensor cores 0 % is memory.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from berthmaster.lib.messages.profile import BoundBy

IDLE: Final = 0.05
WAITING: Final = 0.3
DRAM_REACHES: Final = 0.8
DRAM: Final = 0.6 * DRAM_REACHES
BANDWIDTH: Final = 0.6  # of the driver's own figure, a share of time, where counters lack
NETWORK_BYTES: Final = 25e6  # a fifth of a link of 1 Gbit/s
SYMMETRIC: Final = 0.25
BUSY_CORES: Final = 0.1  # of one pod; what is below does nothing
BUSY_BYTES: Final = 1e6  # a second and pod, of disks and network together
_NO_SHARES: Final[Mapping[str, float]] = MappingProxyType({})


class Verdict(NamedTuple):
    """``bound_by``: "" = nothing was measured. ``shares``: what it rests on."""

    bound_by: BoundBy
    shares: Mapping[str, float] = _NO_SHARES


def bound_by(values: Mapping[str, float], pods: int = 1) -> Verdict:
    """``values``: metrics by name (metrics.py), such as the medians of a profile."""
    pods = max(1, pods)
    busy = _share(values, "gpu_utilization_percent")
    if busy is None:
        return Verdict("")
    sm = _share(values, "gpu_sm_active_percent")
    tensor = _share(values, "gpu_tensor_active_percent")
    dram = _share(values, "gpu_dram_active_percent")
    bandwidth = _share(values, "gpu_memory_bandwidth_percent")
    received = values.get("network_receive_bytes_per_s", 0.0) / pods
    sent = values.get("network_transmit_bytes_per_s", 0.0) / pods
    disk = values.get("disk_read_bytes_per_s", 0.0) + values.get("disk_write_bytes_per_s", 0.0)
    cores = values.get("cpu_cores", 0.0) / pods
    shares = {"waiting": 1 - busy, "compute": sm if sm is not None else busy}
    memory = dram if dram is not None else bandwidth
    if tensor is not None:
        shares["tensor"] = tensor
    if memory is not None:
        shares["memory"] = memory
    shares = {name: round(share, 3) for name, share in shares.items()}
    if busy < 1 - WAITING:
        works = cores >= BUSY_CORES or disk / pods + received + sent >= BUSY_BYTES
        if busy < IDLE and not works:
            return Verdict("idle", shares)
        symmetric = sent >= SYMMETRIC * received and received >= SYMMETRIC * sent
        if symmetric and max(received, sent) >= NETWORK_BYTES:
            return Verdict("network", shares)
        return Verdict("input", shares)
    if dram is not None:
        if dram >= DRAM and dram / DRAM_REACHES >= (tensor or 0.0):
            return Verdict("memory", shares)
    elif bandwidth is not None and bandwidth >= BANDWIDTH and bandwidth >= (tensor or 0.0):
        return Verdict("memory", shares)
    return Verdict("compute", shares)


def _share(values: Mapping[str, float], name: str) -> float | None:
    value = values.get(name)
    return None if value is None else min(1.0, max(0.0, value / 100))

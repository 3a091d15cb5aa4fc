"""What a job with fractions of GPUs was granted, and what it was measured to use. Pure.

Example: two pods with ``gpu_milli=500`` on GPUs of 80 GiB are granted 1000 milli and 80 GiB
together. Measured are 62 % of each GPU and 96 GiB: both limits are exceeded.

Rules of this file:

- Fractions count, whole GPUs and MIG slices do not: these are isolated by hardware.
- A fraction by memory has no limit of compute, and one by compute gets that share of the memory.
- A missing measurement exceeds nothing. Some slack (``SLACK_PERCENT``) belongs to the measurement.
"""

from typing import Final

import msgspec

from berthmaster.lib.messages.telemetry import GpuUse
from berthmaster.lib.messages.workload import WHOLE_MILLI, ExceededLimit, JobRequest

SLACK_PERCENT: Final = 5.0  # points of a GPU, or percent of the memory
LEAST_SLACK_MIB: Final = 256  # for each device: what a driver needs for a context


class ShareUse(msgspec.Struct, frozen=True):
    """Sums over all devices of a job."""

    devices: int
    granted_milli: int | None  # None = compute is not limited
    used_milli: int | None  # None = not measured
    granted_mib: int | None  # None = not known
    used_mib: int | None

    @property
    def exceeded(self) -> tuple[ExceededLimit, ...]:
        """Return the limits that are exceeded."""
        found: list[ExceededLimit] = []
        if self.granted_milli is not None and self.used_milli is not None:
            slack = SLACK_PERCENT / 100 * WHOLE_MILLI * self.devices
            if self.used_milli > self.granted_milli + slack:
                found.append("compute")
        if self.granted_mib is not None and self.used_mib is not None:
            slack = max(LEAST_SLACK_MIB * self.devices, SLACK_PERCENT / 100 * self.granted_mib)
            if self.used_mib > self.granted_mib + slack:
                found.append("memory")
        return tuple(found)


def is_sharing(request: JobRequest) -> bool:
    """Return whether all GPUs of a job are fractions, so that measured sums are theirs alone."""
    sets = [pods for pods in request.pod_sets if pods.gpus]
    return bool(sets) and all(
        pods.gpu_milli < WHOLE_MILLI and not pods.mig_profile for pods in sets
    )


def share_use(request: JobRequest, use: GpuUse) -> ShareUse | None:
    """Return granted and measured amounts; None for a job without fractions, or while not all of
    its devices are measured."""
    sets = [pods for pods in request.pod_sets if pods.gpus]
    devices = sum(pods.gpus * pods.count for pods in sets)
    if not is_sharing(request) or use.gpus != devices:
        return None
    by_memory = any(pods.gpu_memory_mib for pods in sets)
    milli = sum(pods.gpus * pods.count * pods.gpu_milli for pods in sets)
    granted_mib: int | None = None
    if all(pods.gpu_memory_mib for pods in sets):
        granted_mib = sum(pods.gpus * pods.count * pods.gpu_memory_mib for pods in sets)
    elif not by_memory and use.memory_total_mib is not None:
        granted_mib = use.memory_total_mib * milli // (WHOLE_MILLI * devices)
    percent = use.utilization_percent if use.measured == use.gpus else None
    return ShareUse(
        devices=devices,
        granted_milli=None if by_memory else milli,
        used_milli=None if percent is None else round(percent * 10 * devices),
        granted_mib=granted_mib,
        used_mib=use.memory_used_mib,
    )

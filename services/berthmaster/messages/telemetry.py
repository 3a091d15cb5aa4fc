"""What the GPUs of one node do right now: an observation, lossy, never truth.

Telemetry feeds scores. Nobody places, evicts or frees anything because of it, so it travels on
core NATS, one message a node and interval, and a lost one is simply replaced by the next.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Percent = Annotated[float, Meta(ge=0, le=100)]
GpuHealth = Literal["ok", "degraded", "lost"]
TelemetrySource = Literal["nvml", "dcgm", "emulated"]


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One process that holds memory on a GPU, as the driver sees it."""

    pid: int
    kind: Literal["compute", "graphics", "mps"] = "compute"
    memory_mib: int | None = None  # None = the driver does not say (containers, MIG)
    sm_percent: Percent | None = None
    pod_uid: str | None = None  # from the process's cgroup, where it is in a pod


class MigInstance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One slice of a GPU in MIG mode."""

    uuid: str
    profile: str  # as in nvidia.com/mig-<profile>, for example "1g.5gb"
    memory_mib: int
    memory_used_mib: int | None = None


class GpuReading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU at one moment. None is "not measured" and never stands for zero."""

    index: int
    uuid: str
    model: str
    health: GpuHealth = "ok"
    health_reason: str = ""  # for people: why it is not ok
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    utilization_percent: Percent | None = None  # share of time in which a kernel ran
    memory_bandwidth_percent: Percent | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle_reasons: tuple[str, ...] = ()
    ecc_corrected: int | None = None  # since the driver was loaded
    ecc_uncorrected: int | None = None
    xid: int | None = None  # the newest XID error since the agent started
    mig: tuple[MigInstance, ...] = ()
    processes: tuple[GpuProcess, ...] = ()


class NodeTelemetry(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="telemetry.node.v1"
):
    """All GPUs of one node, once an interval.

    Subject: ``berth.telemetry.<cluster>.<node>`` (core NATS)
    """

    cluster: str
    node: str
    epoch: int  # of this agent's life: a later life has a larger one
    counter: int  # rises by one with each message of an epoch; gaps are lost messages
    observed_at_s: float  # the node's own clock: it may make us doubt, never reorder
    interval_s: float  # when to expect the next one
    source: TelemetrySource
    gpus: tuple[GpuReading, ...]

"""What the GPUs of a node, and those of a job, do right now: observations, lossy, never truth.

Telemetry feeds scores and people. No service evicts or frees anything because of it, and nothing is
placed by it but that GPUs which it calls lost get no new pods (``ClusterScore.lost_gpus``). So it
travels on core NATS, one message a node and interval, one a job and 30 s, and a lost one is simply
replaced by the next.
"""

from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import Meta

from berthmaster.lib.messages.terms import (
    Amount,
    Attempt,
    Index,
    Interval,
    Moment,
    Number,
    ObjectName,
)

MAX_MODEL_CHARS = 128
Percent = Annotated[float, Meta(ge=0, le=100)]
Watts = Annotated[float, Meta(ge=0, le=1e9)]
Celsius = Annotated[float, Meta(ge=-273.15, le=1000)]
Model = Annotated[str, Meta(max_length=MAX_MODEL_CHARS)]
Words = Annotated[str, Meta(max_length=2048)]
NodeName = Annotated[str, Meta(max_length=253)]
GpuHealth = Literal["ok", "degraded", "lost"]
TelemetrySource = Literal["nvml", "dcgm", "emulated"]


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One process that holds memory on a GPU, as the driver sees it."""

    pid: Amount
    kind: Literal["compute", "graphics", "mps"] = "compute"
    serves_mps: bool = False  # all that it does is what clients of MPS asked it to; it is nobody's
    memory_mib: Amount | None = None  # None = the driver does not say (containers, MIG)
    sm_percent: Percent | None = None
    pod_uid: str | None = None  # from the process's cgroup, where it is in a pod


class GpuPodUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all processes of one pod have of a GPU, together."""

    pod_uid: str
    processes: Annotated[int, Meta(ge=1, le=1 << 20)] = 1
    memory_mib: Amount | None = None  # None = the driver does not say of one of them
    sm_percent: Percent | None = None  # None = the driver says it of none of them


class GpuHolder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A container that was given a GPU, or a part of one, as the kubelet or an exporter says it."""

    namespace: str
    pod: str
    container: str = ""
    resource: str = ""  # by which it was asked for; of a claim the driver
    device: str = ""  # UUID of a MIG instance; "" = the GPU
    claim: str = ""  # of dynamic resource allocation
    parts: Index = 0  # of a device that is handed out several times; 0 = whole


class MigInstance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One slice of a GPU in MIG mode."""

    uuid: str
    profile: str  # as in nvidia.com/mig-<profile>, for example "1g.5gb"
    memory_mib: Amount
    memory_used_mib: Amount | None = None
    utilization_percent: Percent | None = None
    sm_active_percent: Percent | None = None


class GpuReading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU at one moment. None is "not measured" and never stands for zero."""

    index: Index
    uuid: ObjectName
    model: Model
    health: GpuHealth = "ok"
    health_reason: Words = ""  # for people: why it is not ok
    memory_total_mib: Amount | None = None
    memory_used_mib: Amount | None = None
    utilization_percent: Percent | None = None  # share of time in which a kernel ran
    sm_active_percent: Percent | None = None  # share of its SMs that had work, over some seconds
    memory_bandwidth_percent: Percent | None = None
    power_w: Watts | None = None
    power_limit_w: Watts | None = None
    temperature_c: Celsius | None = None
    sm_clock_mhz: Amount | None = None
    memory_clock_mhz: Amount | None = None
    throttle_reasons: tuple[str, ...] = ()
    ecc_corrected: Number | None = None  # since the driver was loaded
    ecc_uncorrected: Number | None = None
    xid: Index | None = None  # the newest XID error since the agent started
    mig: tuple[MigInstance, ...] = ()
    processes: tuple[GpuProcess, ...] = ()  # those with the most memory
    pods: tuple[GpuPodUse, ...] = ()  # whose processes are on it; those with the most memory
    other_processes: Index = 0  # that are in no pod, or whose pod is not known
    holders: tuple[GpuHolder, ...] = ()  # who was given it


class NodeTelemetry(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="telemetry.node.v1"
):
    """All GPUs of one node, once an interval.

    Subject: ``berth.telemetry.<cluster>.<node>`` (core NATS)
    """

    cluster: str
    node: str
    epoch: Number  # of this agent's life: a later life has a larger one
    counter: Number  # rises by one with each message of an epoch; gaps are lost messages
    observed_at_s: Moment  # the node's own clock: it may make us doubt, never reorder
    interval_s: Interval  # when to expect the next one
    source: TelemetrySource
    gpus: tuple[GpuReading, ...]
    lacks: tuple[str, ...] = ()  # what cannot be told at present and why, in words for people


# Jobs

FIGURES_S = 30.0  # between two messages about one job


class GpuUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What some GPUs did for somebody, over a while. None is "not measured", never zero.

    Of a GPU that several pods share, each has the part that its processes had: of the utilization
    what the driver says of them, of the power as much as of the utilization.
    """

    gpus: Index = 0  # devices held: a GPU, a MIG instance, a part of a GPU
    measured: Index = 0  # of those, with figures at all
    utilization_percent: Percent | None = None  # mean of its devices over the while
    utilization_max_percent: Percent | None = None  # the busiest device's highest reading
    sm_active_percent: Percent | None = None  # mean of the devices of which that is known
    memory_used_mib: Amount | None = None  # sum over its devices, as last read
    memory_total_mib: Amount | None = None  # of those devices
    power_w: Watts | None = None  # sum over its devices, mean over the while


class JobOwner(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What stands at the top of a job's ownerReferences, such as a JobSet or a RayJob."""

    kind: ObjectName
    name: ObjectName
    uid: ObjectName
    jobs: Annotated[int, Meta(ge=1, le=1 << 20)] = 1  # of its jobs have figures
    use: GpuUse = GpuUse()  # of all of them in this cluster


class JobFigures(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="telemetry.job.v1"
):
    """What one job's GPUs did in one cluster in the last half minute.

    Subject: ``berth.figures.<tenant>.<cluster>.<job>`` (core NATS). Of a job that came through us
    <job> is its id. Of any other <tenant> is ``-``, and <job> is ``<namespace>/<kind>/<name>`` as
    one token.
    """

    cluster: ObjectName
    namespace: ObjectName = ""
    kind: ObjectName = "Job"  # of the object whose pods these are; Pod = a pod that nobody owns
    name: ObjectName = ""
    uid: ObjectName = ""
    tenant: ObjectName = ""  # "" = it did not come through us
    id: ObjectName = ""
    attempt: Attempt = 0
    epoch: Number  # of whoever measures it: a later life has a larger one
    counter: Number  # rises by one with each message about this job; gaps are lost messages
    observed_at_s: Moment  # end of the while, by the cluster's own clock
    window_s: Interval = FIGURES_S  # how long the while was
    pods: Index = 0  # that hold GPUs
    nodes: Annotated[tuple[NodeName, ...], Meta(max_length=64)] = ()  # the first 64 by name
    use: GpuUse = GpuUse()
    idle_since_s: Moment | None = None  # since when no device of it did anything; None = busy
    idle_for_long: bool = False  # longer than this cluster's limit
    idle_limit_s: Moment = 0.0  # that limit; 0 = there is none
    disagreements: Annotated[tuple[Words, ...], Meta(max_length=64)] = ()
    # Of the sources on whose processes these are, in words.
    ended: bool = False  # the last message about it
    owner: JobOwner | None = None  # None = nothing stands above it


class NamedJob(Protocol):
    """What the subject of a job's figures is made of."""

    @property
    def tenant(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...


def job_key(job: NamedJob) -> str:
    """What a job is called in the subject of its figures."""
    return job.id if job.tenant else f"{job.namespace}/{job.kind}/{job.name}"

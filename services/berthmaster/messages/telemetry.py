"""What the GPUs of a node, and those of a job, do right now: observations, lossy, never truth.

Telemetry feeds scores and people. No service evicts or frees anything because of it, and nothing is
placed by it but that GPUs which it calls lost get no new pods (``ClusterScore.lost_gpus``). So it
travels on core NATS, one message a node and interval, one a job and 30 s, and a lost one is simply
replaced by the next.
"""

from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import Meta

Percent = Annotated[float, Meta(ge=0, le=100)]
GpuHealth = Literal["ok", "degraded", "lost"]
TelemetrySource = Literal["nvml", "dcgm", "emulated"]


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One process that holds memory on a GPU, as the driver sees it."""

    pid: int
    kind: Literal["compute", "graphics", "mps"] = "compute"
    serves_mps: bool = False  # all that it does is what clients of MPS asked it to; it is nobody's
    memory_mib: int | None = None  # None = the driver does not say (containers, MIG)
    sm_percent: Percent | None = None
    pod_uid: str | None = None  # from the process's cgroup, where it is in a pod


class GpuPodUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all processes of one pod have of a GPU, together."""

    pod_uid: str
    processes: Annotated[int, Meta(ge=1)] = 1
    memory_mib: int | None = None  # None = the driver does not say of one of them
    sm_percent: Percent | None = None  # None = the driver says it of none of them


class GpuHolder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A container that was given a GPU, or a part of one, as the kubelet or an exporter says it."""

    namespace: str
    pod: str
    container: str = ""
    resource: str = ""  # by which it was asked for; of a claim the driver
    device: str = ""  # UUID of a MIG instance; "" = the GPU
    claim: str = ""  # of dynamic resource allocation
    parts: Annotated[int, Meta(ge=0)] = 0  # of a device that is handed out several times; 0 = whole


class MigInstance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One slice of a GPU in MIG mode."""

    uuid: str
    profile: str  # as in nvidia.com/mig-<profile>, for example "1g.5gb"
    memory_mib: int
    memory_used_mib: int | None = None
    utilization_percent: Percent | None = None
    sm_active_percent: Percent | None = None


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
    sm_active_percent: Percent | None = None  # share of its SMs that had work, over some seconds
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
    processes: tuple[GpuProcess, ...] = ()  # those with the most memory
    pods: tuple[GpuPodUse, ...] = ()  # whose processes are on it; those with the most memory
    other_processes: int = 0  # that are in no pod, or whose pod is not known
    holders: tuple[GpuHolder, ...] = ()  # who was given it


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
    lacks: tuple[str, ...] = ()  # what cannot be told at present and why, in words for people


# Jobs

FIGURES_S = 30.0  # between two messages about one job


class GpuUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What some GPUs did for somebody, over a while. None is "not measured", never zero.

    Of a GPU that several pods share, each has the part that its processes had: of the utilization
    what the driver says of them, of the power as much as of the utilization.
    """

    gpus: Annotated[int, Meta(ge=0)] = 0  # devices held: a GPU, a MIG instance, a part of a GPU
    measured: Annotated[int, Meta(ge=0)] = 0  # of those, with figures at all
    utilization_percent: Percent | None = None  # mean of its devices over the while
    utilization_max_percent: Percent | None = None  # the busiest device's highest reading
    sm_active_percent: Percent | None = None  # mean of the devices of which that is known
    memory_used_mib: int | None = None  # sum over its devices, as last read
    memory_total_mib: int | None = None  # of those devices
    power_w: float | None = None  # sum over its devices, mean over the while


class JobOwner(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What stands at the top of a job's ownerReferences, such as a JobSet or a RayJob."""

    kind: str
    name: str
    uid: str
    jobs: Annotated[int, Meta(ge=1)] = 1  # of its jobs have figures
    use: GpuUse = GpuUse()  # of all of them in this cluster


class JobFigures(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="telemetry.job.v1"
):
    """What one job's GPUs did in one cluster in the last half minute.

    Subject: ``berth.figures.<tenant>.<cluster>.<job>`` (core NATS). Of a job that came through us
    <job> is its id. Of any other <tenant> is ``-``, and <job> is ``<namespace>/<kind>/<name>`` as
    one token.
    """

    cluster: str
    namespace: str = ""
    kind: str = "Job"  # of the object whose pods these are; Pod = a pod that nobody owns
    name: str = ""
    uid: str = ""
    tenant: str = ""  # "" = it did not come through us
    id: str = ""
    attempt: int = 0
    epoch: int  # of whoever measures it: a later life has a larger one
    counter: int  # rises by one with each message about this job; gaps are lost messages
    observed_at_s: float  # end of the while, by the cluster's own clock
    window_s: float = FIGURES_S  # how long the while was
    pods: Annotated[int, Meta(ge=0)] = 0  # that hold GPUs
    nodes: tuple[Annotated[str, Meta(max_length=253)], ...] = ()  # the first 64 by name
    use: GpuUse = GpuUse()
    idle_since_s: float | None = None  # since when no device of it did anything; None = busy
    idle_for_long: bool = False  # longer than this cluster's limit
    idle_limit_s: float = 0.0  # that limit; 0 = there is none
    disagreements: tuple[str, ...] = ()  # of the sources on whose processes these are, in words
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

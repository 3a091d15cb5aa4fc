"""GPU usage of nodes and jobs: lossy observations, never truth.

Telemetry feeds scores and displays. No service evicts or frees anything because of telemetry. Only
``ClusterScore.closed_gpus`` affects placement: faulty GPUs get no new pods. Messages travel on core
NATS, for each node once an interval and for each job every 30 s, and the next message replaces a
lost one.
"""

from typing import Annotated, Final, Literal, Protocol

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
# Throttle reasons with which the hardware defends itself, the worst first. A power cap or an idle
# clock is none of them.
HARDWARE_THROTTLES: Final = ("hw_power_brake", "hw_thermal_slowdown", "hw_slowdown")
TelemetrySource = Literal["nvml", "dcgm", "emulated"]


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One process with memory on a GPU, as the driver reports."""

    pid: Amount  # process id
    kind: Literal["compute", "graphics", "mps"] = "compute"  # use of the GPU
    serves_mps: bool = False  # True: an MPS server, which works for its clients
    memory_mib: Amount | None = None  # GPU memory in MiB; null = not reported (containers, MIG)
    sm_percent: Percent | None = None  # SM utilization; null = not measured
    pod_uid: str | None = None  # UID of the pod, from the cgroup of the process; null = no pod


class GpuPodUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All processes of one pod on a GPU."""

    pod_uid: str  # UID of the pod
    processes: Annotated[int, Meta(ge=1, le=1 << 20)] = 1  # number of processes
    memory_mib: Amount | None = None  # GPU memory in MiB; null = unknown for some process
    sm_percent: Percent | None = None  # SM utilization; null = unknown for all processes


class GpuHolder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A container with a GPU or a fraction of a GPU, as the kubelet or an exporter reports."""

    namespace: str
    pod: str  # name of the pod
    container: str = ""  # name of the container
    resource: str = ""  # extended resource of the request, or the driver of a ResourceClaim
    device: str = ""  # UUID of a MIG instance; "" = the whole GPU
    claim: str = ""  # name of the ResourceClaim; "" = no dynamic resource allocation
    parts: Index = 0  # number of replicas of a shared device; 0 = the whole device


class MigInstance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One MIG slice of a GPU."""

    uuid: str  # UUID of the MIG instance
    profile: str  # profile, as in nvidia.com/mig-<profile>, such as "1g.5gb"
    memory_mib: Amount  # memory in MiB
    memory_used_mib: Amount | None = None  # used memory in MiB; null = not measured
    utilization_percent: Percent | None = None
    # utilization_percent: share of time with a running kernel; null = not measured
    sm_active_percent: Percent | None = None  # share of SMs with work; null = not measured
    tensor_active_percent: Percent | None = None  # share of cycles with work in tensor cores
    dram_active_percent: Percent | None = None  # share of cycles in which memory moved data


class GpuReading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sample of one GPU. Null means not measured, never 0."""

    index: Index  # number of the GPU on the node
    uuid: ObjectName  # UUID of the GPU
    model: Model  # model of the GPU
    health: GpuHealth = "ok"  # ok, degraded or lost
    health_reason: Words = ""  # cause of bad health, for display; "" = unset
    memory_total_mib: Amount | None = None  # total memory in MiB
    memory_used_mib: Amount | None = None  # used memory in MiB
    utilization_percent: Percent | None = None  # share of time with a running kernel
    sm_active_percent: Percent | None = None  # share of SMs with work, over some seconds
    tensor_active_percent: Percent | None = None  # share of cycles with work in tensor cores
    dram_active_percent: Percent | None = None  # share of cycles in which memory moved data
    pcie_bytes_per_s: float | None = None  # PCIe traffic, both directions, over some seconds
    memory_bandwidth_percent: Percent | None = None  # use of the memory bandwidth
    power_w: Watts | None = None  # power draw in watts
    power_limit_w: Watts | None = None  # power limit in watts
    temperature_c: Celsius | None = None  # temperature in degrees Celsius
    sm_clock_mhz: Amount | None = None  # SM clock in MHz
    memory_clock_mhz: Amount | None = None  # memory clock in MHz
    throttle_reasons: tuple[str, ...] = ()  # reasons of a reduced clock, as the driver names them
    ecc_corrected: Number | None = None  # corrected ECC errors since the driver was loaded
    ecc_uncorrected: Number | None = None  # uncorrected ECC errors since the driver was loaded
    xid: Index | None = None  # newest XID error since the agent started; null = unset
    mig: tuple[MigInstance, ...] = ()  # MIG slices
    processes: tuple[GpuProcess, ...] = ()  # processes with the most memory
    pods: tuple[GpuPodUse, ...] = ()  # pods with the most memory
    other_processes: Index = 0  # number of processes outside of known pods
    holders: tuple[GpuHolder, ...] = ()  # containers with the GPU


class PodUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Usage of its node by the processes of one pod, since the sample before. Null means not
    measured, never 0."""

    pod_uid: Annotated[str, Meta(max_length=64)]  # uid of the pod
    cpu_cores: float | None = None  # CPU cores; 1.0 = one core was busy all the time
    memory_mib: float | None = None  # memory in MiB, without file cache that can be dropped
    disk_read_bytes_per_s: float | None = None  # bytes read from disks
    disk_write_bytes_per_s: float | None = None  # bytes written to disks
    network_receive_bytes_per_s: float | None = None  # null also in the network of the node itself
    network_transmit_bytes_per_s: float | None = None  # null also in the network of the node itself


class NodeTelemetry(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="telemetry.node.v1"
):
    """Samples of all GPUs of one node, once an interval.

    Subject: ``berth.telemetry.<cluster>.<node>`` (core NATS)
    """

    cluster: str
    node: str
    epoch: Number  # process run of the agent; a later run has a larger epoch
    counter: Number  # number of the message in its epoch; gaps are lost messages
    observed_at_s: Moment  # node's clock; a doubtful clock lowers trust and never reorders messages
    interval_s: Interval  # seconds to the next message
    source: TelemetrySource  # source of the samples
    gpus: tuple[GpuReading, ...]  # GPUs of the node
    pods: Annotated[tuple[PodUsage, ...], Meta(max_length=256)] = ()
    # pods: usage of the node by pod, those with the most CPU time; in every tenth message or so
    lacks: tuple[str, ...] = ()  # unavailable measurements and their causes, for display


# Jobs

FIGURES_S = 30.0  # between two messages about one job


class GpuUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Usage of some GPUs by one job over a window. Null means not measured, never 0.

    On a GPU shared by pods, each pod has the utilization of its processes as the driver reports,
    and the same share of the power.
    """

    gpus: Index = 0  # number of allocated devices: GPUs, MIG instances or fractions
    measured: Index = 0  # number of allocated devices with measurements
    utilization_percent: Percent | None = None  # mean over the devices and the window
    utilization_max_percent: Percent | None = None  # highest sample of the busiest device
    sm_active_percent: Percent | None = None  # mean over the devices with this measurement
    tensor_active_percent: Percent | None = None  # mean over the devices with this measurement
    dram_active_percent: Percent | None = None  # mean over the devices with this measurement
    memory_bandwidth_percent: Percent | None = None  # mean over the devices with this measurement
    pcie_bytes_per_s: float | None = None  # sum over the devices, both directions
    memory_max_percent: Percent | None = None  # highest sample of the fullest device's memory
    memory_used_mib: Amount | None = None  # sum over the devices, last sample, in MiB
    memory_total_mib: Amount | None = None  # total memory of the devices in MiB
    power_w: Watts | None = None  # sum over the devices, mean over the window, in watts


class HostUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Usage of their nodes by the pods of one job over a window: means, summed over the pods. Null
    means not measured, never 0."""

    pods: Index = 0  # number of measured pods
    cpu_cores: float | None = None  # CPU cores
    memory_mib: float | None = None  # memory in MiB, without file cache that can be dropped
    disk_read_bytes_per_s: float | None = None  # bytes read from disks
    disk_write_bytes_per_s: float | None = None  # bytes written to disks
    network_receive_bytes_per_s: float | None = None  # bytes received, loopback left out
    network_transmit_bytes_per_s: float | None = None  # bytes sent, loopback left out


class JobOwner(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Top object of a job's ownerReferences, such as a JobSet or a RayJob."""

    kind: ObjectName  # kind of the object
    name: ObjectName  # name of the object
    uid: ObjectName  # UID of the object
    jobs: Annotated[int, Meta(ge=1, le=1 << 20)] = 1
    # jobs: number of jobs of the owner with measurements
    use: GpuUse = GpuUse()  # usage of all jobs of the owner in this cluster


class JobFigures(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="telemetry.job.v1"
):
    """Usage of one job's GPUs in one cluster, over the last half minute.

    Subject: ``berth.figures.<tenant>.<cluster>.<job>`` (core NATS). <job> is the id of a managed
    job. For unmanaged jobs <tenant> is ``-``, and <job> is ``<namespace>/<kind>/<name>`` as one
    token.
    """

    cluster: ObjectName
    namespace: ObjectName = ""
    kind: ObjectName = "Job"  # kind of the object that owns the pods; Pod = a pod without an owner
    name: ObjectName = ""  # name of the object
    uid: ObjectName = ""  # UID of the object
    tenant: ObjectName = ""  # tenant of the job; "" = an unmanaged job
    id: ObjectName = ""  # id of the job; "" = an unmanaged job
    attempt: Attempt = 0
    epoch: Number  # process run of the reporter; a later run has a larger epoch
    counter: Number  # number of the message about this job; gaps are lost messages
    observed_at_s: Moment  # end of the window by the cluster's clock
    window_s: Interval = FIGURES_S  # length of the window in seconds
    pods: Index = 0  # number of pods with GPUs
    nodes: Annotated[tuple[NodeName, ...], Meta(max_length=64)] = ()
    # nodes: names of the nodes, the first 64
    use: GpuUse = GpuUse()  # usage over the window
    host: HostUse | None = None  # usage of the nodes over the window; null = not measured
    idle_since_s: Moment | None = None  # time since which every device is idle; null = busy
    idle_for_long: bool = False  # True: idle for longer than the limit
    idle_limit_s: Moment = 0.0  # the cluster's limit of idle time in seconds; 0 = no limit
    disagreements: Annotated[tuple[Words, ...], Meta(max_length=64)] = ()
    # disagreements: contradictions between sources about the owner of processes, for display
    ended: bool = False  # True: the last message about the job
    owner: JobOwner | None = None  # top object of the ownerReferences; null = unset


class NamedJob(Protocol):
    """Parts of the subject of a job's usage."""

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
    """Return the last token of the subject of a job's usage."""
    return job.id if job.tenant else f"{job.namespace}/{job.kind}/{job.name}"

"""Facts about the fleet: the last known value of a cluster, a node, a score.

A new fact replaces its predecessor. Each fact carries its writer's epoch and counter, and readers
drop a late fact. The age of a fact comes from the server's time stamp, never from a field.
"""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from berthmaster.lib.messages.terms import (
    Amount,
    Attempt,
    Index,
    Interval,
    LabelKey,
    ModelName,
    Moment,
    Number,
    ObjectName,
    Text,
)

Count = Amount
Milli = Amount  # 1000 = one whole GPU, or one CPU core
Quota = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]  # people write the most for "no limit"
Names = Annotated[tuple[ObjectName, ...], Meta(max_length=1024)]
Labels = dict[LabelKey, Text]

REFRESH_S = 3600.0  # maximum interval between two reports of the same fact, in seconds


class Stamp(msgspec.Struct, frozen=True, gc=False, kw_only=True, order=True):
    """Order of the facts of one subject: a larger stamp is newer, in whatever order
    facts arrive.
    """

    epoch: Number  # process run of the writer; a later run has a larger epoch
    counter: Number  # number of the fact in its epoch, rising


class Taint(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A Kubernetes taint. Pods without a matching toleration avoid the node or cluster."""

    key: ObjectName  # key of the taint
    value: Text = ""  # value of the taint
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"
    # effect: effect of the taint on pods without a toleration


class Amounts(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Quantities of the divisible resources of a node or a pod."""

    cpu_milli: Milli = 0  # CPU in milli
    memory_mib: Count = 0  # memory in MiB
    gpu_milli: Milli = 0  # GPU capacity in milli; 1000 = one whole GPU
    tpus: Count = 0  # number of TPU chips
    pieces: dict[LabelKey, Count] = {}  # units of other extended resources, by full name


class DeviceClaim(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """How pods obtain a device by dynamic resource allocation (DRA): a ResourceClaim in place of an
    extended resource.
    """

    driver: ObjectName  # DRA driver of the device, such as gpu.nvidia.com
    device_class: ObjectName  # DeviceClass to name in a ResourceClaim
    product: ObjectName = ""  # exact attribute productName of the device; "" = unset
    divisible: bool = False
    # divisible: True: several claims may share the device, by memory; only the scheduler enforces
    # the shares


class GpuDevice(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One GPU of a node. NVIDIA's GPUs are numbered from 0, AMD's from 64, other vendors' behind.
    Where only the number of GPUs of unmanaged pods is known, the inventory charges the last GPUs of
    the node.
    """

    index: Index  # number of the GPU on the node
    uuid: ObjectName  # UUID of the GPU
    model: ModelName  # model of the GPU
    memory_mib: Count  # memory in MiB
    healthy: bool = True  # False: new pods do not get the GPU
    foreign_milli: Milli = 0  # milli allocated to unmanaged pods
    withheld_milli: Milli = 0  # milli that no pod can get, such as capacity without a MIG instance
    nvlink_domain: Count | None = None
    # nvlink_domain: GPUs of one number are linked by NVLink; null = not reported
    numa_node: Count | None = None  # NUMA node of the GPU; null = not reported
    resource: ObjectName = ""  # extended resource of the whole GPU; "" = nvidia.com/gpu
    claim: DeviceClaim | None = None
    # claim: how to claim the GPU, if no extended resource counts the GPU; null = by resource
    parts_only: bool = False  # True: pods get replicas or slices of the GPU, never the whole GPU


class PodUse(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One pod managed by Berthmaster and its resources on a node, as the node reports."""

    tenant: ObjectName
    workload: ObjectName  # id of the job
    attempt: Attempt
    pod: ObjectName  # name of the pod, "<pod set>-<index>", unique within the attempt
    cpu_milli: Milli = 0  # CPU in milli
    memory_mib: Count = 0  # memory in MiB
    gpu_milli: Milli = 0  # milli of each GPU in ``gpus``
    gpus: tuple[Index, ...] = ()  # indices of GPUs on the node
    tpus: Count = 0  # number of TPU chips
    pieces: dict[LabelKey, Count] = {}  # units of other extended resources, by full name


class Share(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A GPU fraction offered by a node as an extended resource. One pod gets one."""

    resource: ObjectName
    # resource: extended resource, such as nvidia.com/gpu.shared or nvidia.com/mig-1g.10gb
    milli: Milli  # milli of a GPU's compute
    memory_mib: Count = 0  # memory in MiB; 0 = not limited, or unknown for kai
    count: Count = 0  # number on the node, allocated ones included
    kind: Literal["shared", "mig", "hami", "kai", "milli"] = "shared"
    # kind: mechanism that divides the GPU
    profile: ObjectName = ""  # MIG profile, such as 1g.10gb; "" = in the name of the resource
    isolation: Literal["", "hardware", "memory", "none"] = ""
    # isolation: isolation of the fraction, as in PodSet; "" = by kind: mig hardware, hami memory,
    # else none
    claim: DeviceClaim | None = None
    # claim: how to claim the fraction, if no extended resource counts fractions; null = by resource
    parts: Count = 0
    # parts: maximum number of fractions of one GPU, if any size is possible; 0 = not applicable
    gpus: tuple[Index, ...] = ()  # indices of the divided GPUs; empty = all GPUs of the node


class NodeReport(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag="fleet.node.v1"
):
    """The last known state of one node.

    Subject: ``berth.fleet.<cluster>.node.<node>``

    Free capacity = allocatable - foreign - live placements. ``pods`` has the observed pods for
    scores, displays and the audit, and frees nothing.
    """

    cluster: ObjectName
    node: ObjectName
    stamp: Stamp
    observed_at_s: Moment  # reporter's clock, for display only
    ready: bool = True  # condition Ready of the node
    schedulable: bool = True  # False: cordoned in Kubernetes
    labels: Labels = {}  # labels of the node
    taints: tuple[Taint, ...] = ()  # taints of the node
    allocatable: Amounts
    # allocatable: allocatable capacity; gpu_milli is 1000 for each GPU in ``gpus``, healthy or not
    foreign: Amounts = Amounts()  # capacity requested by unmanaged pods
    gpus: tuple[GpuDevice, ...] = ()  # GPUs of the node
    pods: tuple[PodUse, ...] = ()  # pods managed by Berthmaster
    fractions: bool = True  # False: the node allocates whole GPUs only
    shares: tuple[Share, ...] = ()  # GPU fractions on offer; empty = any number of milli
    problems: tuple[Text, ...] = ()  # contradictions and unreadable input, for operators


class NodeGone(msgspec.Struct, frozen=True, gc=False, kw_only=True, tag="fleet.node_gone.v1"):
    """The node was removed from its cluster.

    Subject: ``berth.fleet.<cluster>.node.<node>``
    """

    cluster: ObjectName
    node: ObjectName
    stamp: Stamp
    observed_at_s: Moment


class UnlistedKind(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A kind of object that the reporter cannot list. The fleet's knowledge of such objects dates
    from ``since_s``, or is empty.
    """

    kind: ObjectName  # kind of the objects, such as resourceslices.resource.k8s.io
    why: Text  # error message of the API server
    since_s: Moment  # time of the first error by the reporter's clock, for display only


KUBERNETES_VERSION: Final = "berth/kubernetes-version"  # property of a ClusterProfile


class ClusterProfile(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag="fleet.profile.v1"
):
    """Labels and properties of a cluster, which seldom change.

    Subject: ``berth.fleet.<cluster>.profile``
    """

    cluster: ObjectName
    stamp: Stamp
    observed_at_s: Moment
    labels: Labels = {}  # labels of the cluster
    taints: tuple[Taint, ...] = ()  # taints of the cluster
    properties: dict[Text, Text] = {}  # properties, as in ClusterProfile and ClusterClaim objects
    nodes: Count = 0  # number of nodes
    gpus: dict[ModelName, Count] = {}  # number of GPUs by model
    job_kinds: Names | None = None
    # job_kinds: kinds of job objects that the cluster serves: Job, JobSet, RayJob, VolcanoJob; null
    # = any
    counted_as: dict[ObjectName, ObjectName] = {}
    # counted_as: Kueue's name of a requested resource, where the names differ; for a DeviceClass
    # the key is deviceclass.resource.kubernetes.io/CLASS
    uid: ObjectName = ""  # UID of namespace kube-system; "" = unknown, or no Kubernetes
    uid_since_s: Moment = 0.0
    # uid_since_s: server's time at which the door first stored this uid for the cluster. Of several
    # clusters with one uid, only the earliest takes jobs.
    unlisted: tuple[UnlistedKind, ...] = ()  # kinds of objects that the reporter cannot list


class HubRoom(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Capacity of a whole cluster as measured by a hub: ``resourceUsage`` of KubeFleet."""

    allocatable: Amounts  # allocatable capacity of all nodes
    available: Amounts  # allocatable capacity less all requests
    observed_at_s: Moment  # clock of the cluster
    interval_s: Interval  # seconds to the next measurement


class Membership(
    msgspec.Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    omit_defaults=True,
    tag="fleet.membership.v1",
):
    """A cluster as its hub describes it: ClusterProfile, ManagedCluster and MemberCluster in one.

    Subject: ``berth.fleet.<cluster>.membership``

    The cluster's own profile exists beside this fact. The hub's value of a label wins, and taints
    of both apply.
    """

    cluster: ObjectName
    stamp: Stamp
    observed_at_s: Moment
    labels: Labels = {}  # labels of the cluster on the hub
    taints: tuple[Taint, ...] = ()  # taints of the cluster on the hub
    properties: dict[Text, Text] = {}
    # properties: properties of ClusterProfile and MemberCluster, and claims of ManagedCluster
    healthy: bool | None = None  # health of the cluster as the hub reports; null = not reported
    reason: Text = ""  # cause of bad health; "" = unset
    sources: tuple[str, ...] = ()  # kinds of the objects behind this fact
    gone: bool = False  # True: the hub has no such cluster any more
    room: HubRoom | None = None  # capacity measured by the hub; null = not measured


class QuotaAmount(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Quota of one resource in one flavor: CPU in milli, memory in MiB, all else in units."""

    nominal: Quota  # nominal quota
    used: Quota = 0  # used quota
    borrowing_limit: Quota | None = None  # maximum borrowed from the cohort; null = no limit
    lending_limit: Quota | None = None  # maximum lent to the cohort; null = the whole quota


class FlavorQuota(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Quota of a Kueue ClusterQueue or Cohort in one ResourceFlavor. Flavors with the same
    resources form a resource group, and Kueue tries these in the order of the report.
    """

    flavor: ObjectName  # name of the ResourceFlavor
    node_labels: Labels = {}  # labels of the flavor's nodes
    resources: dict[LabelKey, QuotaAmount] = {}  # quota by resource
    taints: tuple[Taint, ...] = ()  # taints of the flavor's nodes, which pods must tolerate


class CohortQuota(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A Kueue Cohort and its own quota, to which child cohorts without a queue add the quota that
    they lend.
    """

    cohort: ObjectName  # name of the Cohort
    parent: ObjectName = ""  # name of the parent Cohort; "" = unset
    flavors: tuple[FlavorQuota, ...] = ()  # quota by flavor


class LocalQueueReport(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A LocalQueue of the ClusterQueue."""

    namespace: ObjectName
    name: ObjectName  # name of the LocalQueue
    active: bool = True  # condition Active of the LocalQueue
    reason: Text = ""  # cause of being inactive; "" = unset
    stopped: ObjectName = ""  # stop policy in effect, Hold or HoldAndDrain; "" = not stopped


class QueueReport(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag="fleet.queue.v1"
):
    """A Kueue ClusterQueue of a cluster, with its LocalQueues.

    Subject: ``berth.fleet.<cluster>.queue.<cluster queue>``
    """

    cluster: ObjectName
    queue: ObjectName  # name of the ClusterQueue
    stamp: Stamp
    observed_at_s: Moment
    active: bool = True  # condition Active of the ClusterQueue
    reason: Text = ""  # cause of being inactive; "" = unset
    stopped: bool = False  # True: a stop policy is in effect
    stop_policy: ObjectName = ""  # stop policy, Hold or HoldAndDrain; "" = not stopped
    cohort: ObjectName = ""  # name of the cohort; "" = unset
    cohorts: tuple[CohortQuota, ...] = ()
    # cohorts: the cohort and its ancestors that exist as Cohort objects
    prefers_own: bool = False  # True: tries its next flavor before borrowing (whenCanBorrow)
    flavors: tuple[FlavorQuota, ...] = ()  # quota by flavor
    local_queues: tuple[LocalQueueReport, ...] = ()  # LocalQueues of the ClusterQueue
    pending: Count = 0  # number of pending Workloads
    admitted: Count = 0  # number of admitted Workloads
    gone: bool = False  # True: removed from the cluster
    preempts: bool = False  # True: Kueue may preempt Workloads for this queue


class CopyReport(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag="fleet.copy.v1"
):
    """A Kueue Workload that MultiKueue copied to a worker cluster, in its state there.

    Subject: ``berth.fleet.<cluster>.copy.<namespace>.<workload>``

    The hub does not report why a copy is not admitted. This fact does.
    """

    cluster: ObjectName
    namespace: ObjectName
    workload: ObjectName  # name of the Workload, equal on hub and worker
    stamp: Stamp
    observed_at_s: Moment
    origin: ObjectName = ""  # label kueue.x-k8s.io/multikueue-origin; "" = unset
    quota_reserved: bool = False  # condition QuotaReserved
    admitted: bool = False  # condition Admitted
    evicted: bool = False  # condition Evicted
    finished: bool = False  # condition Finished
    message: Text = ""  # message of the most informative condition
    gone: bool = False  # True: removed from the cluster
    looked_at: bool = True  # True: the cluster's Kueue has set a condition
    unscheduled: Count = 0  # number of pods for which the cluster's scheduler finds no node
    scheduler: Text = ""  # scheduler's message for one of the unscheduled pods; "" = unset
    reason: Text = ""
    # reason: Kueue's reason for the missing quota; the set of reasons depends on Kueue's version
    flavors: tuple[dict[LabelKey, ObjectName], ...] = ()  # flavor by resource, for each pod set
    blocked_by: Text = ""
    # blocked_by: object that occupies the name of the job and is not MultiKueue's, such as "Job
    # team/train"; Kueue cannot create the job. "" = unset
    succeeded: Count = 0
    # succeeded: number of jobs that completed for copies of this name since the inventory started;
    # more than 1 means that the hub missed an end and started the job again

    @property
    def ran(self) -> bool:
        """Return True once the job of the copy has started there."""
        return (self.admitted or self.finished) and not (self.evicted or self.blocked_by)

    @property
    def running(self) -> bool:
        """Return True while the job of the copy may run there."""
        return self.admitted and not (self.evicted or self.finished or self.blocked_by)


class ClusterAlive(msgspec.Struct, frozen=True, gc=False, kw_only=True, tag="fleet.alive.v1"):
    """A heartbeat: the cluster's reporter is connected and has sent all changes.

    Subject: ``berth.fleet.<cluster>.alive``
    """

    cluster: ObjectName
    stamp: Stamp
    observed_at_s: Moment
    interval_s: Interval  # seconds to the next heartbeat


class ResourceScore(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One AddOnPlacementScore value and the quantities behind the value."""

    score: Annotated[int, Meta(ge=-100, le=100)]  # value of the AddOnPlacementScore, -100 to 100
    available: float  # free cores, MiB, GPUs or TPUs
    full_scale: float  # free quantity that scores 100


Freshness = Literal["fresh", "stale", "withdrawn"]
GpuFault = Literal["lost", "ecc", "throttled"]


class ClosedGpu(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A GPU that telemetry found faulty. New pods stay away until the GPU was well for a while, or
    until an operator opens it after ``since_s``.
    """

    index: Count  # number of the GPU in the node's report
    fault: GpuFault
    # fault: lost: no answer, or a fatal XID; ecc: uncorrectable memory errors; throttled: slowed
    # down by its own hardware for long
    since_s: Moment  # scorer's time of the newest sign of the fault
    reason: Text = ""  # details for operators


class ClusterScore(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag="fleet.score.v1"
):
    """Score of a cluster and its freshness.

    Subject: ``berth.fleet.<cluster>.score``

    ``resources`` uses OCM's names: {cpu,mem,gpu,tpu}NodeAvailable and
    {cpu,mem,gpu,tpu}ClusterAvailable.
    """

    cluster: str
    stamp: Stamp
    freshness: Freshness  # fresh, stale (lower trust) or withdrawn (no new placements)
    input_age_s: float  # age of the oldest relevant input at the calculation, in seconds
    resources: dict[str, ResourceScore] = {}  # values by AddOnPlacementScore name
    idle_gpu_percent: float | None = (
        None  # measured idle share of healthy GPUs; null = no telemetry
    )
    calm_gpu_percent: float | None = None
    # calm_gpu_percent: share of partly allocated GPUs measured below 70 % busy; 100 = no such GPU,
    # null = no telemetry. A GPU without a measurement counts as busy.
    free_gpus: float = 0.0  # free GPU capacity on schedulable nodes, in GPUs
    largest_gang: dict[str, Count] = {}  # largest possible gang of 1-GPU pods by GPU model
    fragmentation_percent: float | None = (
        None  # share of free GPU capacity unusable for the typical mix of jobs; null = no telemetry
    )
    telemetry_nodes: Count = 0  # number of nodes with live telemetry
    nodes: Count = 0  # number of nodes
    note: str = ""  # cause of being stale or withdrawn, for display; "" = unset
    closed_gpus: dict[str, tuple[ClosedGpu, ...]] = {}
    # closed_gpus: GPUs by node that telemetry found faulty. New pods do not get these GPUs, and
    # missing telemetry opens none.


FleetFact = (
    ClusterAlive
    | ClusterProfile
    | Membership
    | NodeReport
    | NodeGone
    | QueueReport
    | CopyReport
    | ClusterScore
)

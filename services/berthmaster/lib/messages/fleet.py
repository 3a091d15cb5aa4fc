"""Facts about the fleet: the last known value of a cluster, a node, a score.

A fact is replaced by its successor, never edited. Each carries its writer's epoch and counter, so
that a late one is recognised and dropped; its age is the server's time stamp, never a field here.
"""

from typing import Annotated, Literal

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

REFRESH_S = 3600.0  # whoever reports facts tells all of them again at least so often


class Stamp(msgspec.Struct, frozen=True, gc=False, kw_only=True, order=True):
    """Orders the facts of one subject: larger is newer, whatever the order of arrival."""

    epoch: Number  # one life of the writer; a new life takes a larger one
    counter: Number  # rises with each fact of that life


class Taint(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A Kubernetes taint; pods without a matching toleration stay away."""

    key: ObjectName
    value: Text = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


class Amounts(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Amounts of the divisible resources of a node or a pod."""

    cpu_milli: Milli = 0
    memory_mib: Count = 0
    gpu_milli: Milli = 0
    tpus: Count = 0
    pieces: dict[LabelKey, Count] = {}  # of other extended resources, by their full names


class DeviceClaim(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """How a device is had by dynamic resource allocation (DRA): by a claim, and not by counting."""

    driver: ObjectName  # whose attributes and capacity a selector compares, such as gpu.nvidia.com
    device_class: ObjectName  # the DeviceClass that a claim names
    product: ObjectName = ""  # attribute productName, letter by letter; "" = none
    divisible: bool = False
    # Several claims may have it, each as much of its memory as it asks for; nobody holds them to
    # that but the scheduler, which counts.


class GpuDevice(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One GPU that a node offers. Where only the number of GPUs that foreign pods use is known,
    the inventory charges it to the last GPUs of the node. Each maker's GPUs are numbered by
    themselves: NVIDIA's from 0, AMD's from 64, others' behind them."""

    index: Index
    uuid: ObjectName
    model: ModelName
    memory_mib: Count
    healthy: bool = True  # False: not offered to new pods
    foreign_milli: Milli = 0  # held by pods that are not ours
    withheld_milli: Milli = 0  # that no pod can have: what MIG leaves uncut, what keeps parts apart
    nvlink_domain: Count | None = None  # GPUs of one number are linked by NVLink; None = not told
    numa_node: Count | None = None  # None = not told
    resource: ObjectName = ""  # by which pods ask for it whole; "" = nvidia.com/gpu
    claim: DeviceClaim | None = None  # how it is claimed, where no resource counts it
    parts_only: bool = False  # True: handed out as replicas or slices, never as a whole GPU


class PodUse(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One pod of ours that holds resources on a node, as the node sees it."""

    tenant: ObjectName
    workload: ObjectName
    attempt: Attempt
    pod: ObjectName  # "<pod set>-<index>", unique within the attempt
    cpu_milli: Milli = 0
    memory_mib: Count = 0
    gpu_milli: Milli = 0  # of each GPU named below
    gpus: tuple[Index, ...] = ()  # indices
    tpus: Count = 0
    pieces: dict[LabelKey, Count] = {}  # of other extended resources, by their full names


class Share(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A part of a GPU that a node offers as an extended resource: one pod takes one."""

    resource: ObjectName  # such as nvidia.com/gpu.shared or nvidia.com/mig-1g.10gb
    milli: Milli  # of a GPU's compute
    memory_mib: Count = 0  # 0 = not limited; kai: what there is of a whole GPU, 0 = not told
    count: Count = 0  # on the node, free or not
    kind: Literal["shared", "mig", "hami", "kai", "milli"] = "shared"
    profile: ObjectName = ""  # of MIG, such as 1g.10gb, where the resource's name does not say it
    isolation: Literal["", "hardware", "memory", "none"] = ""
    # How hard its limit is: see PodSet.isolation. "" = as its kind is: mig's hardware, hami's
    # memory, the others' none.
    claim: DeviceClaim | None = None  # how it is claimed, where no resource counts it
    parts: Count = 0  # into which a GPU is split at most, where any size is had; 0 = no matter
    gpus: tuple[Index, ...] = ()  # indices of the GPUs that it is a part of; empty = all


class NodeReport(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag="fleet.node.v1"
):
    """The last known state of one node.

    Subject: ``berth.fleet.<cluster>.node.<node>``

    Free = allocatable - foreign - our live placements. ``pods`` shows what of ours really is
    there: it serves scores, people and the audit, and frees nothing.
    """

    cluster: ObjectName
    node: ObjectName
    stamp: Stamp
    observed_at_s: Moment  # the reporter's own clock, for people
    ready: bool = True
    schedulable: bool = True  # False: cordoned in Kubernetes
    labels: Labels = {}
    taints: tuple[Taint, ...] = ()
    allocatable: Amounts  # gpu_milli is 1000 x the GPUs listed, healthy or not
    foreign: Amounts = Amounts()  # what pods that are not ours request
    gpus: tuple[GpuDevice, ...] = ()
    pods: tuple[PodUse, ...] = ()
    fractions: bool = True  # False: its GPUs are handed out whole only
    shares: tuple[Share, ...] = ()  # how a part of a GPU is asked for; empty = in any milli
    problems: tuple[Text, ...] = ()  # contradictions and what cannot be read, for operators


class NodeGone(msgspec.Struct, frozen=True, gc=False, kw_only=True, tag="fleet.node_gone.v1"):
    """The node was removed from its cluster.

    Subject: ``berth.fleet.<cluster>.node.<node>``
    """

    cluster: ObjectName
    node: ObjectName
    stamp: Stamp
    observed_at_s: Moment


class UnlistedKind(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Objects that the reporter cannot read although the API server answers it: what the fleet
    knows of them is as of ``since_s``, or nothing."""

    kind: ObjectName  # such as resourceslices.resource.k8s.io
    why: Text  # the API server's words
    since_s: Moment  # the reporter's own clock, for people


class ClusterProfile(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag="fleet.profile.v1"
):
    """What a cluster is: labels and properties that seldom change.

    Subject: ``berth.fleet.<cluster>.profile``
    """

    cluster: ObjectName
    stamp: Stamp
    observed_at_s: Moment
    labels: Labels = {}
    taints: tuple[Taint, ...] = ()
    properties: dict[Text, Text] = {}  # as in ClusterProfile and ClusterClaim
    nodes: Count = 0
    gpus: dict[ModelName, Count] = {}  # model -> devices
    job_kinds: Names | None = None
    # Job objects that can be made: Job, JobSet, RayJob, VolcanoJob; None = any.
    counted_as: dict[ObjectName, ObjectName] = {}
    # What pods ask for -> the resource that its Kueue counts it as, where that is another. Claimed
    # devices of a DeviceClass are deviceclass.resource.kubernetes.io/CLASS.
    uid: ObjectName = ""  # of namespace kube-system; "" = not known, or no Kubernetes
    uid_since_s: Moment = 0.0
    # When the door first stored this uid of this cluster, by the server's clock: agents cannot set
    # it. Of several clusters with one uid the earliest counts; the others take no jobs.
    unlisted: tuple[UnlistedKind, ...] = ()  # by kind


class HubRoom(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What a hub has measured of a cluster as a whole: KubeFleet's ``resourceUsage``."""

    allocatable: Amounts
    available: Amounts  # of that, what no pod asks for
    observed_at_s: Moment  # by the cluster's own clock
    interval_s: Interval  # when to expect the next


class Membership(
    msgspec.Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    omit_defaults=True,
    tag="fleet.membership.v1",
):
    """What a hub says of a cluster: its ClusterProfile, ManagedCluster and MemberCluster, as one.

    Subject: ``berth.fleet.<cluster>.membership``

    Beside the cluster's own profile, which says what the cluster says of itself. Where both name a
    label, the hub's counts; taints of both count.
    """

    cluster: ObjectName
    stamp: Stamp
    observed_at_s: Moment
    labels: Labels = {}
    taints: tuple[Taint, ...] = ()
    properties: dict[Text, Text] = {}
    # Of ClusterProfile and MemberCluster, and claims of ManagedCluster.
    healthy: bool | None = None  # None = the hub does not say
    reason: Text = ""  # why it is not healthy
    sources: tuple[str, ...] = ()  # kinds of the objects that this is made of
    gone: bool = False  # the hub no longer knows it
    room: HubRoom | None = None  # None = the hub measures none


class QuotaAmount(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One resource of one flavor; CPU in milli, memory in MiB, all else in pieces."""

    nominal: Quota
    used: Quota = 0
    borrowing_limit: Quota | None = None  # None = all of the cohort's
    lending_limit: Quota | None = None  # None = all of it may be lent to the cohort


class FlavorQuota(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What a Kueue ClusterQueue or Cohort has of one ResourceFlavor. Flavors of the same resources
    are a resource group, and Kueue tries them in the order of the report."""

    flavor: ObjectName
    node_labels: Labels = {}
    resources: dict[LabelKey, QuotaAmount] = {}
    taints: tuple[Taint, ...] = ()  # of its nodes, that pods have to tolerate by themselves


class CohortQuota(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A Kueue Cohort: what it has beside its queues'. What child cohorts without any queue lend it
    counts as its own, since nobody else tells of them."""

    cohort: ObjectName
    parent: ObjectName = ""
    flavors: tuple[FlavorQuota, ...] = ()


class LocalQueueReport(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A LocalQueue that leads to the ClusterQueue."""

    namespace: ObjectName
    name: ObjectName
    active: bool = True
    reason: Text = ""
    stopped: ObjectName = ""  # Hold or HoldAndDrain, its own or its ClusterQueue's is told by that


class QueueReport(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag="fleet.queue.v1"
):
    """A Kueue ClusterQueue of a cluster, with its LocalQueues.

    Subject: ``berth.fleet.<cluster>.queue.<cluster queue>``
    """

    cluster: ObjectName
    queue: ObjectName
    stamp: Stamp
    observed_at_s: Moment
    active: bool = True
    reason: Text = ""  # why it is not active
    stopped: bool = False  # Hold or HoldAndDrain
    stop_policy: ObjectName = ""  # which of them; "" = not stopped
    cohort: ObjectName = ""
    cohorts: tuple[CohortQuota, ...] = ()  # its cohort and those above it, if they are objects
    prefers_own: bool = False  # tries its next flavor before it borrows (whenCanBorrow)
    flavors: tuple[FlavorQuota, ...] = ()
    local_queues: tuple[LocalQueueReport, ...] = ()
    pending: Count = 0  # workloads
    admitted: Count = 0
    gone: bool = False  # it was removed
    preempts: bool = False  # its Kueue may end other Workloads for one that waits in it


class CopyReport(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag="fleet.copy.v1"
):
    """A Kueue Workload that MultiKueue has copied to a worker cluster, as it stands there.

    Subject: ``berth.fleet.<cluster>.copy.<namespace>.<workload>``

    The hub says nothing of a copy that is not admitted; only this says why.
    """

    cluster: ObjectName
    namespace: ObjectName
    workload: ObjectName  # the same name on hub and worker
    stamp: Stamp
    observed_at_s: Moment
    origin: ObjectName = ""  # label kueue.x-k8s.io/multikueue-origin
    quota_reserved: bool = False
    admitted: bool = False
    evicted: bool = False
    finished: bool = False
    message: Text = ""  # of the condition that says most
    gone: bool = False  # it was removed
    looked_at: bool = True  # by the cluster's Kueue, which has said something of it
    unscheduled: Count = 0  # pods of its job for which the cluster's scheduler finds no node
    scheduler: Text = ""  # its words for one of them
    reason: Text = ""  # Kueue's for having no quota; which there are differs by its version
    flavors: tuple[dict[LabelKey, ObjectName], ...] = ()  # of each pod set: resource -> flavor
    # An object there that has the name of its job and is not MultiKueue's, such as
    # "Job team/train": Kueue can make no job beside it. "" = none was found.
    blocked_by: Text = ""
    # Jobs that have completed for copies of this name in this cluster, since its inventory started.
    # More than 1: the hub did not read the end of one, and began it again.
    succeeded: Count = 0

    @property
    def ran(self) -> bool:
        """Its job runs there, or has run there to its end."""
        return (self.admitted or self.finished) and not (self.evicted or self.blocked_by)

    @property
    def running(self) -> bool:
        """It was admitted, and neither taken back nor finished: its job may run there."""
        return self.admitted and not (self.evicted or self.finished or self.blocked_by)


class ClusterAlive(msgspec.Struct, frozen=True, gc=False, kw_only=True, tag="fleet.alive.v1"):
    """The cluster's reporter is connected and has nothing older than this to tell.

    Subject: ``berth.fleet.<cluster>.alive``
    """

    cluster: ObjectName
    stamp: Stamp
    observed_at_s: Moment
    interval_s: Interval  # when to expect the next one


class ResourceScore(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One AddOnPlacementScore value with the amounts behind it."""

    score: Annotated[int, Meta(ge=-100, le=100)]
    available: float  # cores, MiB, GPUs or TPUs
    full_scale: float  # the available amount that scores 100


Freshness = Literal["fresh", "stale", "withdrawn"]


class ClusterScore(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag="fleet.score.v1"
):
    """How attractive a cluster is now, with how fresh that is.

    Subject: ``berth.fleet.<cluster>.score``

    ``resources`` holds OCM's names: {cpu,mem,gpu,tpu}NodeAvailable and
    {cpu,mem,gpu,tpu}ClusterAvailable.
    """

    cluster: str
    stamp: Stamp
    freshness: Freshness
    input_age_s: float  # age of the oldest input that counts, when this was computed
    resources: dict[str, ResourceScore] = {}
    idle_gpu_percent: float | None = (
        None  # measured idle share of healthy GPUs; None = no telemetry
    )
    calm_gpu_percent: float | None = None
    # Of the GPUs that are taken in part, how many are measured below 70 % busy; without any 100;
    # None = no telemetry. One that is not measured counts as busy.
    free_gpus: float = 0.0  # GPUs' worth of free milli on schedulable nodes
    largest_gang: dict[
        str, Count
    ] = {}  # GPU model -> whole GPUs one gang of 1-GPU pods could get now
    fragmentation_percent: float | None = (
        None  # share of free GPU milli that the typical job mix cannot use
    )
    telemetry_nodes: Count = 0  # nodes with live telemetry
    nodes: Count = 0
    note: str = ""  # for people: why stale or withdrawn
    lost_gpus: dict[str, tuple[Count, ...]] = {}
    # Node -> indices of its GPUs, as its report lists them, that telemetry calls lost. They get no
    # new pods, whatever the report says of them. Silence of the telemetry heals none.


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

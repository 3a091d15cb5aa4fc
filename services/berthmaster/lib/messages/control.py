"""Operators' settings: queues, cordons and lost clusters, as the last value of each subject."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from berthmaster.lib.messages.placement import PartWeights, Via
from berthmaster.lib.messages.runtimes import RuntimeSetting


class QueuePlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Namespace and Kueue queue of a queue's jobs in one cluster."""

    namespace: str = "default"  # namespace of the jobs
    service_account: str = ""  # service account of the pods; "" = the namespace's default
    local_queue: str = ""  # Kueue LocalQueue, for via worker and hub; "" = the queue's own name


Amount = Annotated[int, Meta(ge=0, le=1 << 50)]


class QueueAmounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Quota of one resource. Null means 0, or no limit for the capability."""

    guarantee: Amount | None = None  # quota never borrowed by others while needed here; null = 0
    deserved: Amount | None = None  # quota up to which the queue goes before others; null = 0
    capability: Amount | None = None  # quota never exceeded; null = no limit


Allowed = Annotated[tuple[Annotated[str, Meta(max_length=512)], ...], Meta(max_length=256)]


class QueueAllows(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of the requests of a queue. Null allows everything, an empty list nothing."""

    tolerations: Annotated[
        Allowed | None,
        Meta(description="Keys of the taints that jobs may tolerate; None = all, empty = none."),
    ] = None
    node_labels: Annotated[
        Allowed | None,
        Meta(
            description="Keys of the node labels that jobs may require; None = all, empty = none."
        ),
    ] = None
    images: Annotated[
        Allowed | None,
        Meta(description="Images that jobs may run, or prefixes that end in / or :; None = all."),
    ] = None
    gpu_models: Annotated[
        Allowed | None,
        Meta(description="GPU models, of which a job that needs GPUs must name some; None = all."),
    ] = None
    resources: Annotated[
        Allowed | None,
        Meta(
            description="Extended resources that jobs may request, such as rdma/hca; None = all, "
            "or none where GPU models are listed."
        ),
    ] = None  # an extended resource may be an accelerator of any maker


class JobDefaults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Defaults of a queue's jobs. Null keeps the general default."""

    max_run_s: Annotated[
        Annotated[float, Meta(gt=0, le=31_536_000)] | None,
        Meta(description="Longest run of jobs that set none; None = no limit."),
    ] = None
    checkpoint_every_s: Annotated[
        Annotated[float, Meta(gt=0, le=31_536_000)] | None,
        Meta(description="Checkpoint interval of jobs that set none; None = unknown."),
    ] = None
    grace_s: Annotated[
        Annotated[float, Meta(ge=0, le=3600)] | None,
        Meta(description="Grace period of jobs that set none; None = the cluster's default."),
    ] = None
    preemptible: Annotated[
        bool | None,
        Meta(description="Whether jobs that do not set this may be preempted; None = yes."),
    ] = None


# What happens to idle jobs of a queue for a job that waits.
IdleThen = Literal["report", "shrink", "hold", "end"]
GpuMilli = Annotated[int, Meta(ge=0)]
Jobs = Annotated[int, Meta(ge=0)]


class QueueSetting(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="control.queue.v1"
):
    """A queue, the share of a tenant, under a name for requests.

    Subject: ``berth.control.queue.<queue>``

    Quota is GPU milli of any model, as nodes charge. Null means no limit for the capability and 0
    for the guarantee. ``resources`` has other quota by name: ``cpu`` in milli, ``memory`` in MiB,
    ``gpu/<model>`` in GPU milli of the model, and extended resources in units by full name, such as
    ``rdma/hca`` and ``google.com/tpu``. For ``via`` worker and hub, the clusters' Kueue governs
    order and quota, and the amounts here limit nothing.
    """

    queue: str
    tenants: Annotated[
        tuple[str, ...], Meta(description="Tenants that may use the queue; empty = all.")
    ] = ()
    parent: Annotated[
        str,
        Meta(
            max_length=63,
            description="Parent queue, whose quota this queue has a share of; a parent takes no "
            'requests. "" = a share of the fleet.',
        ),
    ] = ""
    priority: Annotated[
        int, Meta(description="Among queues of one parent, a higher priority goes first.")
    ] = 0
    weight: Annotated[
        float,
        Meta(
            gt=0,
            le=1_000_000,
            description="Fair share, in proportion to queues of the same parent.",
        ),
    ] = 1.0
    guarantee_gpu_milli: Annotated[
        GpuMilli | None,
        Meta(
            description="GPUs that other queues never borrow while this one needs them; None = 0."
        ),
    ] = None
    deserved_gpu_milli: Annotated[
        GpuMilli | None,
        Meta(description="GPUs up to which the queue goes before others; None = 0."),
    ] = None
    capability_gpu_milli: Annotated[
        GpuMilli | None, Meta(description="GPUs that the queue never exceeds; None = no limit.")
    ] = None
    resources: dict[str, QueueAmounts] = {}  # quota of other resources by name
    max_job_gpu_milli: Annotated[
        GpuMilli | None, Meta(description="GPUs of all pods of one job; None = no limit.")
    ] = None
    max_running_jobs: Annotated[
        Jobs | None, Meta(description="Jobs that are placed and have not ended; None = no limit.")
    ] = None
    max_waiting_jobs: Annotated[
        Jobs | None,
        Meta(description="Pending jobs, beyond which submits are refused; None = no limit."),
    ] = None
    max_evictions_per_hour: Annotated[
        Jobs | None,
        Meta(description="Preemptions of the queue's jobs in an hour; None = the fleet's limit."),
    ] = None
    max_priority: Annotated[
        int | None, Meta(description="Highest priority that a job may have; None = no limit.")
    ] = None
    allows: QueueAllows = QueueAllows()  # limits of requests
    profile: Annotated[
        str,
        Meta(
            max_length=63,
            description='Profile that ranks clusters for jobs; "" = the default of the resolver.',
        ),
    ] = ""
    weights: Annotated[
        PartWeights,
        Meta(
            description="Weights of score parts, -10 to 10, in place of the profile's; empty = as "
            "the profile says."
        ),
    ] = {}
    via: Annotated[
        Via,
        Meta(
            description="direct: a plain Job in the worker cluster; worker: a Job for its Kueue; "
            "hub: a Job for the hub's MultiKueue."
        ),
    ] = "direct"
    places: Annotated[
        dict[str, QueuePlace],
        Meta(
            description="Where jobs are created, by cluster; hub is the hub, and * is every other "
            "cluster."
        ),
    ] = {}
    preempts: Annotated[
        Literal["never", "queue", "all"],
        Meta(
            description="Jobs of lower priority that a job may preempt: none, those of its queue, "
            "or those of all queues down to what these deserve."
        ),
    ] = "queue"
    preempts_equals: Annotated[
        bool,
        Meta(
            description="Whether a pending job may preempt one of its own queue and priority that "
            "has clearly more work left."
        ),
    ] = False
    rebalances: Annotated[
        Literal["never", "queue", "all"],
        Meta(
            description="Running jobs that may be moved so that a pending job fits: none, those of "
            "its queue, or those of all queues of no higher priority."
        ),
    ] = "never"
    idle_after_s: Annotated[
        Annotated[float, Meta(ge=60, le=31_536_000)] | None,
        Meta(
            description="Time for which all GPUs of a job must be measured idle until the job "
            "counts as idle; None = never."
        ),
    ] = None
    idle_below_percent: Annotated[
        float,
        Meta(gt=0, le=100, description="Utilization in percent below which a GPU is idle."),
    ] = 5.0
    idle_then: Annotated[
        IdleThen,
        Meta(
            description="What an idle job does for a pending job that needs its GPUs. report: "
            "nothing; shrink: continue with its fewest pods; hold: be evicted and held; end: be "
            "evicted and cancelled."
        ),
    ] = "report"
    trial_gpu_h_a_day: Annotated[
        Annotated[float, Meta(ge=0, le=1_000_000)] | None,
        Meta(
            description="GPU hours of trials of the queue's jobs within 24 hours; None = no trials."
        ),
    ] = None
    defaults: JobDefaults = JobDefaults()  # defaults of jobs, copied at submission
    held: Annotated[
        bool, Meta(description="Whether the queue accepts requests and dispatches none.")
    ] = False
    deleted: Annotated[
        bool, Meta(description="Whether the queue refuses new requests; its jobs continue.")
    ] = False
    set_by: str = ""
    set_at_s: float = 0.0


# Who cordons a node on which jobs of several owners failed.
FAILING_NODE_BY: Final = "gateway: the node fails everybody's jobs"


class Cordon(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="control.cordon.v1"
):
    """Excludes a cluster or a node from new placements. Running jobs stay, unless ``drain`` moves
    them away at the least cost.

    Subject: ``berth.control.cordon.<cluster>.<node or ->``
    """

    cluster: str
    node: str | None = None  # name of the node; null = the whole cluster
    cordoned: bool  # False: the cordon ended
    drain: bool = False  # True: decisions also move running jobs away
    drain_by_s: float | None = None
    # drain_by_s: time by which no managed job runs here, in seconds since 1970; null = no limit
    reason: str = ""
    set_by: str = ""
    set_at_s: float = 0.0


class GpuCordon(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="control.gpu.v1"
):
    """Excludes one GPU from new pods. Running pods continue. Without ``cordoned``, the GPU takes
    pods, even if telemetry closed it before ``set_at_s``.

    Subject: ``berth.control.gpu.<cluster>.<node>.<index>``
    """

    cluster: str
    node: str
    gpu: Annotated[int, Meta(ge=0, le=1023)]  # number of the GPU in the node's report
    cordoned: bool  # False: the GPU takes pods
    reason: str = ""
    set_by: str = ""
    set_at_s: float = 0.0


class ClusterLost(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="control.lost.v1"
):
    """An operator's statement that a cluster is gone for good. Attempts claimed there are requeued.

    Subject: ``berth.control.lost.<cluster>``
    """

    cluster: str
    lost: bool  # False: the cluster is back
    reason: str = ""
    set_by: str = ""
    set_at_s: float = 0.0


ControlFact = QueueSetting | RuntimeSetting | Cordon | GpuCordon | ClusterLost

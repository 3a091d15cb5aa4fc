"""A job request and its event history. Events are appended and never edited.

States of a workload (the table is in lib/lifecycle/states.py)::

    submitted ─▶ QUEUED ─placed─▶ PLACED ─claimed─▶ CLAIMED ─admitted─▶ ADMITTED ─running─▶ RUNNING
                   ▲ ▲──withdrawn───┘                 │                    │                 │
                   └────────────evicted───────────────┴────────────────────┴─────────────────┘
    endings: succeeded, failed, cancelled.
    without a change of state: released, reprioritized, held, hold_released, cancel_requested,
    move_requested, eviction_requested, resize_requested, resized, progressed, checkpointed.
    carried ─▶ the state of the old log: the first event after `berth recover` built a new log.

Subject of every event: ``berth.workload.<tenant>.<id>.<kind>.<cluster or ->``. ``after`` is the
sequence of the workload's last event when the writer decided, and 0 for the first event. Every
reader ignores an event whose ``after`` is not the workload's previous sequence.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from berthmaster.lib.messages.placement import MAIN_CELL, PartWeights, PodBinding, Target
from berthmaster.lib.messages.runtimes import Runtime, RuntimeUse
from berthmaster.lib.messages.terms import LabelText, Name, Toleration

__all__ = ["LabelText", "Name", "Toleration"]

WHOLE_MILLI = 1000  # of a GPU
MAX_GPUS_A_POD = 64
MAX_TPUS_A_POD = 64
MAX_PIECES_A_POD = 1_000_000  # of one other resource
MAX_RESOURCES = 16  # other resources, by their names
MAX_CLAIMS = 16
MAX_PODS = 4096
MAX_POD_SETS = 16
MAX_PARTS = 16  # of a divided job
MAX_CHOICES = 16  # configurations of one pod set
MAX_TOLERATIONS = 32
ONE_NODE = "node"  # topology level of a single node
MAX_PREFERRED_MODELS = 8
MAX_DEPENDENCIES = 64
MAX_ARRAY_JOBS = 10_000  # of one array
MAX_ARRAY_INDEX = 99_999
MAX_PRIORITY = 1_000_000
TRIAL_PRIORITY = -MAX_PRIORITY  # of trials alone: requests have a higher one

WorkloadId = Annotated[
    str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$(?!\n)", min_length=1, max_length=52)
]  # 52: Kubernetes object names are made of the id and the attempt
SetName = Annotated[str, Meta(pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$(?!\n)", max_length=63)]
Labels = Annotated[dict[LabelText, LabelText], Meta(max_length=64)]


# How hard the limit of a part of a GPU is, the hardest first; "" = any.
Isolation = Literal["", "hardware", "memory", "none"]


class Topology(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Where the pods of a set stand relative to each other on the nodes of their cluster. A rule
    left out is free: then pods go where they cost the least.
    """

    same: Annotated[
        LabelText,
        Meta(
            description="Node label of which all pods get one value, such as "
            "topology.kubernetes.io/zone; node = all pods on one node."
        ),
    ] = ""
    max_pods_a_node: Annotated[
        int,
        Meta(ge=0, le=MAX_PODS, description="Most pods of the set on one node; 0 = no limit."),
    ] = 0
    nodes: Annotated[
        Literal["", "fewest"], Meta(description="fewest: all pods on as few nodes as possible.")
    ] = ""
    gpu_domain: Annotated[
        Literal["", "required"],
        Meta(
            description="required: the GPUs of each pod are linked by NVLink, or belong to one "
            'NUMA node where nodes report no links; "" = preferred.'
        ),
    ] = ""


class Choose(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Configurations of the pods, of which the resolver takes one for each attempt."""

    gpus: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=MAX_GPUS_A_POD)], ...],
        Meta(
            max_length=MAX_CHOICES,
            description="Numbers of GPUs of each pod to choose from, the preferred first; empty = "
            "gpus.",
        ),
    ] = ()
    gpu_models: Annotated[
        tuple[LabelText, ...],
        Meta(
            max_length=MAX_CHOICES,
            description="GPU models to choose from, one for all pods, the preferred first; empty = "
            "gpu_models.",
        ),
    ] = ()
    by: Annotated[
        Literal["start", "time", "cost"],
        Meta(
            description="What to take: start = the first in the list with free capacity; time = "
            "the shortest, cost = the cheapest run by similar jobs, also if the job waits for it."
        ),
    ] = "start"


class TrialConfiguration(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One configuration to try. A field left out is as in the job."""

    gpus: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_GPUS_A_POD)] | None,
        Meta(description="GPUs of each pod; None = gpus."),
    ] = None
    gpu_models: Annotated[
        tuple[LabelText, ...],
        Meta(max_length=32, description="Accepted GPU models; empty = gpu_models."),
    ] = ()
    args: Annotated[
        Annotated[tuple[str, ...], Meta(max_length=256)] | None,
        Meta(description="Arguments in place of run.args; None = run.args."),
    ] = None
    env: Annotated[
        dict[str, str],
        Meta(max_length=256, description="Environment variables in addition to run.env."),
    ] = {}


class Trial(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Short runs of the job in several configurations, before the job itself."""

    budget_s: Annotated[
        float,
        Meta(ge=30, le=86_400, description="Run time of each trial, which then ends."),
    ]
    configurations: Annotated[
        tuple[TrialConfiguration, ...],
        Meta(min_length=1, max_length=MAX_CHOICES, description="Configurations to try."),
    ]
    then: Annotated[
        Literal["best", "report"],
        Meta(description="best: run the job in the best configuration; report: end the job."),
    ] = "best"
    by: Annotated[
        Literal["time", "cost"],
        Meta(
            description="The best configuration: time = most steps a second; cost = most steps for "
            "the price of its GPUs."
        ),
    ] = "time"
    wait_s: Annotated[
        float,
        Meta(
            ge=60,
            le=2_592_000,
            description="Longest wait of the job for its trials, from its submission or the end of "
            "a hold; then the best result so far counts.",
        ),
    ] = 3600.0


class PodSet(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A number of equal pods."""

    name: Name = "main"  # name of the pod set, unique within the job
    count: Annotated[
        int, Meta(ge=1, le=MAX_PODS, description="Number of pods, which start together.")
    ] = 1
    min_count: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_PODS)] | None,
        Meta(description="Fewest pods with which the job starts and continues; None = count."),
    ] = None
    max_count: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_PODS)] | None,
        Meta(
            description="Most pods; the job grows where no other job needs the GPUs. None = count."
        ),
    ] = None
    cpu_milli: Annotated[
        int, Meta(ge=0, le=10_000_000, description="CPUs of each pod, in thousandths.")
    ] = 1000
    memory_mib: Annotated[int, Meta(ge=0, le=1 << 30, description="Memory of each pod.")] = 1024
    gpus: Annotated[int, Meta(ge=0, le=MAX_GPUS_A_POD, description="GPUs of each pod.")] = 0
    gpu_milli: Annotated[int, Meta(ge=1, le=WHOLE_MILLI)] = (
        WHOLE_MILLI  # thousandths of each GPU; below 1000 only for one GPU
    )
    gpu_memory_mib: Annotated[
        int,
        Meta(
            ge=0, le=1 << 24, description="Least memory of each GPU, or of the fraction of a GPU."
        ),
    ] = 0
    gpu_models: Annotated[
        tuple[LabelText, ...],
        Meta(max_length=32, description="Accepted GPU models; empty = any."),
    ] = ()
    prefer_gpu_models: Annotated[
        tuple[LabelText, ...],
        Meta(
            max_length=MAX_PREFERRED_MODELS,
            description="Accepted GPU models to take first, in this order; the job waits for none "
            "of them.",
        ),
    ] = ()
    mig_profile: Annotated[
        str, Meta(max_length=32, description="MIG slice of each pod, such as 1g.10gb.")
    ] = ""
    gpu_resource: Annotated[str, Meta(max_length=253)] = ""
    # gpu_resource: extended resource to request whole GPUs by, such as amd.com/gpu; "" = any maker
    isolation: Annotated[
        Isolation,
        Meta(
            description="Least isolation of a GPU fraction: hardware (MIG or a whole GPU), memory "
            '(MPS, HAMi-core) or none (time slicing, KAI alone); "" = any.'
        ),
    ] = ""
    tpus: Annotated[int, Meta(ge=0, le=MAX_TPUS_A_POD, description="TPU chips of each pod.")] = 0
    tpu_accelerators: Annotated[
        tuple[LabelText, ...],
        Meta(
            max_length=32,
            description="Accepted TPU kinds, such as tpu-v5-lite-podslice; empty = any.",
        ),
    ] = ()
    tpu_topology: Annotated[
        str,
        Meta(
            max_length=32,
            description="Chips of the TPU slice that all pods form, such as 2x4 or 2x2x4; "
            '"" = any.',
        ),
    ] = ""
    resources: Annotated[
        dict[LabelText, Annotated[int, Meta(ge=1, le=MAX_PIECES_A_POD)]],
        Meta(
            max_length=MAX_RESOURCES,
            description="Units of other extended resources of each pod, such as rdma/hca.",
        ),
    ] = {}
    claims: Annotated[
        tuple[LabelText, ...],
        Meta(
            max_length=MAX_CLAIMS,
            description="ResourceClaimTemplates in the pods' namespace, or ResourceClaims that all "
            "pods share.",
        ),
    ] = ()
    topology: Topology | None = None  # where the pods stand relative to each other; null = anywhere
    choose: Choose | None = None
    # choose: configurations of which the resolver takes one; null = as the other fields say
    trial: Trial | None = None  # configurations to try before the job runs; null = none
    node_labels: Annotated[Labels, Meta(description="Labels that nodes must have.")] = {}
    tolerations: Annotated[tuple[Toleration, ...], Meta(max_length=MAX_TOLERATIONS)] = ()
    # tolerations: taints of nodes and clusters to tolerate


class SecretKey(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One value of the Kubernetes Secret ``<tenant>.<name>`` in the namespace of the pods. A
    request reaches only Secrets made for its own tenant.
    """

    name: Name  # name of the Secret without the prefix of the tenant
    key: Annotated[str, Meta(pattern=r"^[-._a-zA-Z0-9]+$(?!\n)", min_length=1, max_length=253)]
    # key: key inside the Secret


class RunSpec(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The container of the pods. Real clusters need an image, emulated clusters ignore the whole
    spec.
    """

    image: Annotated[
        str, Meta(max_length=1024, description="Container image; emulated clusters need none.")
    ] = ""
    command: Annotated[tuple[str, ...], Meta(max_length=256)] = ()
    # command: entrypoint of the container; empty = the image's own
    args: Annotated[tuple[str, ...], Meta(max_length=256)] = ()
    # args: arguments of the entrypoint; empty = the image's own
    env: Annotated[
        dict[str, str],
        Meta(
            max_length=256,
            description="Environment variables; their values are visible, so none may be a secret.",
        ),
    ] = {}
    secret_env: Annotated[
        Mapping[LabelText, SecretKey],
        Meta(
            max_length=64,
            description="Environment variables from Secrets TENANT.NAME in the pods' namespace.",
        ),
    ] = {}


class Dependency(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Another job of the same tenant to wait for."""

    id: WorkloadId  # id of the job to wait for
    until: Literal["succeeded", "ended"] = "succeeded"
    # until: state to wait for; ended = succeeded, failed or cancelled


Loss = Annotated[float, Meta(ge=-1e300, le=1e300)]


class Checkpoint(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Saved state for a restart of the job."""

    step: Annotated[int, Meta(ge=0, le=1 << 53)]  # training step of the checkpoint
    uri: Annotated[str, Meta(min_length=1, max_length=1024)]
    # uri: location of the checkpoint, visible to every reader of the job


class Divide(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Permission to run the pods of one job in several clusters, a part in each."""

    by: Annotated[
        Literal["room", "weight"],
        Meta(
            description="Run pods in several clusters. room: in as few as possible, where no "
            "cluster has room for all; weight: in all that have room, by their weights."
        ),
    ] = "room"
    weights: Annotated[
        dict[LabelText, Annotated[int, Meta(ge=1, le=1000)]], Meta(max_length=MAX_PARTS)
    ] = {}  # share of the pods by cluster, for these clusters only; empty = by free capacity
    min_part: Annotated[
        int, Meta(ge=1, le=MAX_PODS, description="Fewest pods of a divided job in one cluster.")
    ] = 1
    gang: bool = True
    # gang: True: all parts start together or none does. False: each part may start and end alone.
    address: Annotated[str, Meta(pattern=r"^([a-zA-Z0-9]([-.a-zA-Z0-9]*[a-zA-Z0-9])?)?$(?!\n)")] = (
        ""
    )
    # address: host name of the first pod, reachable from all clusters; then the pods of all parts
    # form one group. "" = each part forms its own group.


class Part(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Identity of one part of a divided job."""

    job: WorkloadId  # id of the divided job
    attempt: int  # attempt of the divided job
    number: int  # number of this part, from 0
    clusters: tuple[str, ...]  # first cluster of each part
    pods: tuple[int, ...]  # number of pods of each part
    gang: bool = True  # whether all parts start together
    address: str = ""  # host name of the first pod of all; "" = each part forms its own group
    checkpoint: Checkpoint | None = None
    # checkpoint: checkpoint to continue from; null = start from the beginning


class JobRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The job as requested. All pods start together on one cluster, or none does; a divided job
    spans several clusters.

    Events carry the request and therefore tolerate fields of newer versions. A user sends the
    strict form, SubmitRequest.
    """

    id: Annotated[WorkloadId, Meta(description="Id of the job, unique for its tenant.")]
    queue: Annotated[Name, Meta(description="Queue of the job.")] = "default"
    priority: Annotated[
        int,
        Meta(
            ge=TRIAL_PRIORITY, le=MAX_PRIORITY, description="A job of higher priority goes first."
        ),
    ] = 0
    pod_sets: Annotated[tuple[PodSet, ...], Meta(min_length=1, max_length=MAX_POD_SETS)] = (
        PodSet(),
    )  # groups of equal pods
    clusters: Annotated[
        tuple[LabelText, ...],
        Meta(max_length=64, description="Accepted clusters; empty = any."),
    ] = ()
    cluster_labels: Annotated[Labels, Meta(description="Labels that the cluster must have.")] = {}
    run: RunSpec = RunSpec()  # container of the pods
    expected_duration_s: Annotated[
        Annotated[float, Meta(gt=0, le=31_536_000)] | None,
        Meta(description="Expected run time; None = learned from similar jobs."),
    ] = None
    deadline_s: Annotated[
        Annotated[float, Meta(gt=0, le=31_536_000)] | None,
        Meta(
            description="Time after the claim at which the pods are stopped, so that the job may "
            "be placed again where its cluster stays silent; None = never."
        ),
    ] = None
    max_evictions: Annotated[int, Meta(ge=0, le=1000)] = 10
    # max_evictions: evictions to survive; one more fails the job
    retries: Annotated[
        int, Meta(ge=0, le=100, description="Number of new attempts after failures of the job.")
    ] = 0
    backoff_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="Time from a failure to the first retry; doubled with each, at most 1 h.",
        ),
    ] = 10.0
    no_retry_exit_codes: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=255)], ...],
        Meta(max_length=64, description="Exit codes after which the job is not retried."),
    ] = ()
    runtime: Runtime | None = None  # runtime template of the pods; null = plain, without a template
    runtime_used: RuntimeUse | None = None
    # runtime_used: runtime resolved by the gateway; requests leave this out
    preemptible: Annotated[
        bool, Meta(description="Whether the job may be preempted once it is claimed.")
    ] = True
    checkpoint_every_s: Annotated[
        Annotated[float, Meta(gt=0, le=31_536_000)] | None,
        Meta(
            description="Checkpoint interval, which limits the work that an eviction loses; "
            "None = no limit."
        ),
    ] = None
    grace_s: Annotated[
        Annotated[float, Meta(ge=0, le=3600)] | None,
        Meta(description="Time from SIGTERM to SIGKILL; None = the queue's or cluster's default."),
    ] = None
    max_run_s: Annotated[
        Annotated[float, Meta(gt=0, le=31_536_000)] | None,
        Meta(
            description="Run time of all attempts after which the job fails; work lost by "
            "evictions does not count. None = no limit."
        ),
    ] = None
    stalls_after_s: Annotated[
        Annotated[float, Meta(ge=60, le=31_536_000)] | None,
        Meta(
            description="Time without a new progress line after which the attempt ends and the job "
            "is requeued; None = no limit."
        ),
    ] = None
    labels: Annotated[Labels, Meta(description="Labels of the submitter; not interpreted.")] = {}
    profile: Annotated[
        str, Meta(max_length=63, description='Profile that ranks clusters; "" = the queue\'s.')
    ] = ""
    weights: Annotated[
        PartWeights,
        Meta(description="Weights of score parts, -10 to 10, in place of the profile's."),
    ] = {}
    data: Annotated[
        tuple[LabelText, ...],
        Meta(
            max_length=64,
            description="Locations of the data: clusters, or labels or properties of clusters as "
            "key=value.",
        ),
    ] = ()
    set: Annotated[SetName, Meta(description="Name shared by several jobs of a tenant.")] = ""
    set_at_most: Annotated[int, Meta(ge=1, le=MAX_ARRAY_JOBS)] | None = None
    # set_at_most: maximum number of placed jobs of the set; null = no limit
    array_index: Annotated[int, Meta(ge=0, le=MAX_ARRAY_INDEX)] | None = None
    # array_index: index in the set, passed to pods as BERTH_ARRAY_INDEX; null = no array
    depends_on: Annotated[
        tuple[Dependency, ...],
        Meta(
            max_length=MAX_DEPENDENCIES,
            description="Jobs that must succeed or end first; where one no longer can, this job is "
            "cancelled.",
        ),
    ] = ()
    divide: Divide | None = None
    # divide: how to divide the job over clusters; null = all pods in one cluster
    part: Part | None = None
    # part: identity as a part of a divided job, set by the resolver; requests leave this out
    trial_of: str = ""
    # trial_of: id of the job that this is a trial of, set by the gateway; requests leave this out


TrialEnd = Literal["succeeded", "failed", "stopped", "not_run"]


class TrialResult(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Outcome of one trial. Without a step rate and without success there is no result."""

    ended: TrialEnd
    # ended: stopped = at the end of its time; not_run = got no GPUs in time, or was evicted
    steps_per_s: float | None = None  # by progress lines; null = fewer than two
    ran_s: float = 0.0  # run time of the last attempt
    cluster: str = ""  # cluster of the last attempt; "" = never placed
    reason: str = ""  # why the trial ended; "" = unset
    at_s: float = 0.0  # server's time of the end
    job: str = ""  # id of the equal job whose trial this was; "" = the job itself


class Progress(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Progress of a job, as the job reports."""

    step: Annotated[int, Meta(ge=0, le=1 << 53)]  # training step reached
    loss: Loss | None = None  # value of the loss; null = not reported, or not a number
    eta_s: Annotated[float, Meta(ge=0, le=315_360_000)] | None = None
    # eta_s: seconds to the expected end; null = not reported


class HubObject(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Object on a hub behind a workload: a Workload of Kueue or a ResourceBinding of Karmada."""

    namespace: str  # namespace of the object on the hub
    name: str  # name of the object on the hub
    uid: str = ""  # UID of the object on the hub; "" = unknown
    owner: str = ""  # "<kind>/<name>" of the user's job object; "" = unset
    local_queue: str = ""  # Kueue LocalQueue of the object; "" = unset
    cluster_queue: str = ""  # Kueue ClusterQueue of the object; "" = unset
    hub: str = ""  # id of the hub's cluster; only this hub's reports may end the workload
    system: Literal["kueue", "karmada"] = "kueue"  # system that owns the object


# Cause of the end of an attempt before its work was done; "" = unknown. Faults of the job: exit and
# out_of_memory. A job that could not start: not_started. One without progress: stalled. Faults of
# the cluster: an eviction by the kubelet or an operator (evicted), preempted by the scheduler, a
# lost node or GPU, a late start (late), and the time limit of the job (deadline).
Fault = Literal[
    "",
    "exit",
    "out_of_memory",
    "not_started",
    "stalled",
    "evicted",
    "preempted",
    "node_lost",
    "gpu_lost",
    "late",
    "deadline",
]


class Event(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Common fields of all events of a workload."""

    tenant: str
    id: str
    after: int  # stream sequence of the workload's previous event as known to the writer; 0 = unset
    at_s: float  # writer's clock, for display only; the stream gives the order
    by: str  # service and instance of the writer
    cause: str = ""  # reason of the write, such as a request id, a decision or a pod; "" = unset


class Submitted(Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.submitted.v1"):
    """Accepted for placement."""

    request: JobRequest  # job as accepted, defaults of its queue included
    digest: str  # hash of the request; the same id with another hash is another job
    cell: str = MAIN_CELL  # cell whose resolver places the workload
    origin: HubObject | None = None
    # origin: object on a hub that became this workload; null = submitted by a request


class Reprioritized(
    Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.reprioritized.v1"
):
    """The priority changed."""

    priority: int  # new priority


class Released(Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.released.v1"):
    """All dependencies are satisfied, and the workload may be placed."""

    trials: tuple[TrialResult, ...] = ()  # results in the order of the configurations


class Held(Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.held.v1"):
    """The workload waits until a release. An unclaimed attempt is withdrawn, and a decision evicts
    a claimed one.
    """

    who: str  # "tenant acme", or the name given by an operator
    operator: bool = False  # True: an operator set the hold, and only operators release it
    reason: str = ""  # reason given by the requester; "" = unset


class HoldReleased(
    Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.hold_released.v1"
):
    """The hold ended."""

    who: str  # "tenant acme", or the name given by an operator
    reason: str = ""  # reason given by the requester; "" = unset


class MoveRequested(
    Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.move_requested.v1"
):
    """A request to end this attempt by a decision. ``evict`` ends the attempt at once. ``move``
    first reserves capacity elsewhere.
    """

    cluster: str
    attempt: int
    how: Literal["move", "evict"]  # move = after a reservation elsewhere; evict = at once
    who: str  # "tenant acme", or the name given by an operator
    to: str = ""  # target cluster of a move; "" = any other cluster
    reason: str = ""  # reason given by the requester; "" = unset


class Checkpointed(
    Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.checkpointed.v1"
):
    """A checkpoint of the job, reported by its pods through the executor or by its tenant. The next
    attempt receives this checkpoint, and an eviction loses only later work.
    """

    cluster: str
    attempt: int
    checkpoint: Checkpoint  # newest checkpoint of the job


class Progressed(
    Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.progressed.v1"
):
    """Progress of the job, reported by its pods through the executor or by its tenant. Reports are
    rare, to keep histories short. ``eta_s`` counts from the time of storing.
    """

    cluster: str
    attempt: int
    progress: Progress  # newest progress of the job
    age_s: Annotated[float, Meta(ge=0, le=315_360_000)] = 0.0
    # age_s: seconds from the job's line to this event


class IdleChanged(
    Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.idle_changed.v1"
):
    """All GPUs of the attempt were measured idle for as long as its queue says, or no longer are.
    The gateway appends this, and repeats a verdict while the queue acts on it.
    """

    cluster: str  # cluster of the attempt
    attempt: int  # number of the attempt
    idle: bool  # True: idle; False: not idle any more, or not measured
    since_s: float = 0.0  # server's time of the first idle sample
    utilization_percent: float = 0.0  # highest utilization of any of its GPUs since then
    reason: str = ""  # why the attempt is not idle any more; "" = unset


ExceededLimit = Literal["compute", "memory"]


class LimitExceeded(
    Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.limit_exceeded.v1"
):
    """A job with fractions of GPUs used more than it was granted for minutes. The gateway appends
    this once for each attempt and limit; the job continues.
    """

    cluster: str  # cluster of the attempt
    attempt: int  # number of the attempt
    limit: ExceededLimit  # compute in GPU milli, or memory in MiB
    granted: int  # sum over all GPU fractions of the job
    used: int  # measured sum over the same


# What follows for a job once it is evicted for being idle; "" = it waits again.
AfterEviction = Literal["", "hold", "end"]


class CancelRequested(
    Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.cancel_requested.v1"
):
    """A request to cancel. The executor stops the pods and then appends ``cancelled``."""

    cluster: str
    reason: str = ""  # reason given by the requester; "" = unset


class EvictionRequested(
    Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.eviction_requested.v1"
):
    """A decision to preempt the attempt. The executor ends the pods and then appends ``evicted``.
    Until then the capacity stays allocated.
    """

    cluster: str
    attempt: int
    reason: str  # precedence that the beneficiary has; names no workload of another tenant
    decision: int
    cell: str = MAIN_CELL
    to: str = ""  # cluster with a reservation for the evicted workload; "" = unset
    then: AfterEviction = ""  # what follows the eviction of an idle job; "" = the job waits again


class ResizeRequested(
    Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.resize_requested.v1"
):
    """A decision to change the number of pods of the attempt. The executor starts or ends pods and
    then appends ``resized``. Until then the old and the new pods stay allocated.
    """

    cluster: str
    attempt: int
    pods: tuple[PodBinding, ...]  # all pods after the change, including those already running
    reason: str  # cause of the change; names no workload of another tenant
    decision: int
    cell: str = MAIN_CELL


class Placed(Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.placed.v1"):
    """One attempt got a placement. The event carries the request, so an executor needs no other
    read.
    """

    cluster: str
    attempt: int  # number of the attempt, from 1; object names contain id and attempt
    pods: tuple[PodBinding, ...]  # node and GPUs of each pod
    request: JobRequest  # job to run
    decision: int  # number of the decision in the chain of its cell
    cell: str = MAIN_CELL
    submitted_at_s: float = 0.0  # server's time of the submission; 0 = unknown
    target: Target = Target()
    # target: how the executor creates the job object; emulated clusters ignore this
    checkpoint: Checkpoint | None = None  # last checkpoint of an earlier attempt; null = unset
    ran_s: float = 0.0  # run time of earlier attempts that counts toward max_run_s


class PartPlace(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One part of a divided job, a workload of its own."""

    id: str  # id of the workload of the part
    cluster: str
    pods: int  # number of pods of the part


class Divided(Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.divided.v1"):
    """One attempt was divided over several clusters. The same commit submits each part as a
    workload of its own, with a reservation. The attempt ends after all parts have ended.
    """

    attempt: int
    parts: tuple[PartPlace, ...]  # placement of each part
    decision: int
    cell: str = MAIN_CELL


class Committed(Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.committed.v1"):
    """A decision to start a divided gang, once all of its parts are claimed. The pods of every part
    start now.
    """

    cluster: str  # cluster of the part; "" for the divided job itself
    attempt: int
    decision: int
    cell: str = MAIN_CELL


class Withdrawn(Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.withdrawn.v1"):
    """The placement was withdrawn before a claim."""

    cluster: str
    attempt: int
    reason: str  # reason of the withdrawal
    decision: int
    cell: str = MAIN_CELL


class Claimed(Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.claimed.v1"):
    """An executor is about to create the pods. From now on only the executor, the job's deadline or
    an operator ends the attempt.
    """

    cluster: str
    attempt: int
    executor: str  # id of the executor, the owner of the attempt


class Admitted(Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.admitted.v1"):
    """Kueue in the cluster admitted the job. Clusters without Kueue skip this event."""

    cluster: str
    attempt: int
    resizable: bool = False  # True: the cluster's queue allows other numbers of pods during the run


class Running(Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.running.v1"):
    """All pods run. ``pods`` has the nodes and GPUs that the cluster chose."""

    cluster: str
    attempt: int
    pods: tuple[PodBinding, ...]  # observed node and GPUs of each pod


class Resized(Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.resized.v1"):
    """The resize is complete, and no other pod is left."""

    cluster: str
    attempt: int
    pods: tuple[PodBinding, ...]  # all pods of the attempt now
    reason: str = ""  # why the number differs from the order; "" = as ordered


class State(StrEnum):
    """State of a workload. NEW is the state before the first event."""

    NEW = "new"
    QUEUED = "queued"
    DIVIDED = "divided"  # over clusters: its parts are workloads of their own
    PLACED = "placed"
    CLAIMED = "claimed"
    ADMITTED = "admitted"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Hold(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A hold on a workload."""

    who: str  # "tenant acme", or the name given by an operator
    since_s: float  # server's time of the hold
    operator: bool = False  # True: only operators release the hold
    reason: str = ""  # reason given by the requester; "" = unset


class Wish(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A request to end or to move an attempt."""

    how: str  # move or evict
    who: str  # "tenant acme", or the name given by an operator
    since_s: float  # server's time of the request
    to: str = ""  # target cluster; "" = any other cluster
    reason: str = ""  # reason given by the requester; "" = unset


class Idle(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A verdict that all GPUs of an attempt are idle. Times are the server's."""

    since_s: float  # time of the first idle sample
    seen_s: float = 0.0  # time of the newest verdict
    utilization_percent: float = 0.0  # highest utilization of any of its GPUs since ``since_s``


class Exceeded(msgspec.Struct, frozen=True, gc=False):
    """A limit that an attempt exceeds, with sums over its GPU fractions: GPU milli or MiB."""

    limit: ExceededLimit  # compute or memory
    granted: int  # granted amount
    used: int  # measured amount


class CarriedWorkload(msgspec.Struct, gc=False, kw_only=True, omit_defaults=True):
    """State of an open workload, as all readers fold. Times are the server's, in seconds since
    1970.
    """

    state: State = State.NEW  # state after the last event
    request: JobRequest | None = None
    # request: job to run, in the size of the open attempt; null = only the tombstone is known
    wished: JobRequest | None = None
    # wished: request as submitted, if the open attempt has another size or a chosen configuration;
    # null = no difference
    digest: str = ""  # hash of the request
    cell: str = MAIN_CELL  # cell whose resolver places the workload
    origin: HubObject | None = None
    # origin: object on a hub behind the workload; null = submitted by a request
    priority: int = 0  # current priority
    released: bool = False  # True: all dependencies are satisfied
    trials: tuple[TrialResult, ...] = ()  # results of the job's trials, once all have ended
    submitted_sequence: int = 0  # stream sequence of the submission
    submitted_at_s: float = 0.0
    attempt: int = 0  # number of placements so far; the last one is open while the state is live
    evictions: int = 0  # number of evictions counted against ``max_evictions``
    failures: int = 0  # failures of the job that led to a retry
    retry_at_s: float = 0.0  # earliest time of the next placement; 0 = at once
    last_fault: Fault = ""  # cause of the last eviction
    repeats: int = 0
    # repeats: number of consecutive evictions by ``last_fault``, if the job may be at fault
    cluster: str = ""  # cluster of the open or last attempt
    pods: tuple[PodBinding, ...] = ()  # pods that hold capacity: as placed, then as observed
    resizing: tuple[PodBinding, ...] = ()
    # resizing: all pods after a pending resize; empty = no resize is pending
    resized_at_s: float = 0.0  # time of the last resize; 0 = never
    resizable: bool = False
    # resizable: True: the cluster's queue allows other numbers of pods for the open attempt
    coming: int = 0  # number of pods that a pending resize adds
    kept_size: str = ""  # why the last resize failed; "" = no failure
    kept_sizes: int = 0  # number of consecutive failed resizes
    target: Target = Target()  # how the open or last attempt's job object is created
    decision: int = 0  # number of the decision of the open or last attempt; 0 = unset
    placed_at_s: float = 0.0
    claimed_at_s: float = 0.0
    running_at_s: float = 0.0
    idle: Idle | None = None  # verdict on the open attempt; null = not known to be idle
    exceeded: tuple[ExceededLimit, ...] = ()  # limits that the open attempt exceeded
    after_eviction: AfterEviction = ""
    # after_eviction: what follows the eviction of the open or last attempt; "" = it waits again
    executor: str = ""  # owner of the open or last attempt
    cancel_requested: bool = False  # True: cancel as soon as possible, also after this attempt
    leaving: str = ""  # why the open attempt is being evicted; "" = stays
    leads_to: str = ""  # cluster with a reservation for the workload after its eviction; "" = unset
    moves: int = 0  # attempts evicted for other workloads
    parts: tuple[PartPlace, ...] = ()  # parts of the open attempt of a divided job
    committed: bool = False  # True: pods of the divided gang may start
    hold: Hold | None = None  # hold on the workload; null = not held
    wish: Wish | None = None  # pending request to move or evict the open attempt; null = unset
    checkpoint: Checkpoint | None = None  # last reported checkpoint; null = unset
    checkpoint_at_s: float = 0.0  # time of the last checkpoint
    progress: Progress | None = None  # last progress of the newest attempt; null = unset
    progress_at_s: float = 0.0  # time of the last progress report
    ran_s: float = 0.0  # run time of past attempts that counts toward max_run_s
    reason: str = ""  # reason of the last withdrawal, eviction or ending


class Carried(Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.carried.v1"):
    """The first event of a workload in a log built by `berth recover`: its state in the old log,
    joined with reports of clusters. The archive has the earlier events.
    """

    workload: CarriedWorkload  # state to continue from
    cluster: str = ""  # cluster of the open attempt; "" = no attempt is open


class Evicted(Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.evicted.v1"):
    """The attempt ended before its work was done, and its pods are gone or declared lost. The
    workload is requeued.
    """

    cluster: str
    attempt: int
    reason: str  # reason of the eviction
    blameless: bool = False  # True: counts neither against the cluster nor against the workload
    fault: Fault = ""  # cause of the eviction
    node: str = ""  # node of the cause; "" = unknown or several
    exit_code: int | None = None  # exit code of the container; null = unset
    checkpoint: Checkpoint | None = None
    # checkpoint: last checkpoint of the first part of a divided job; null = unset


class Ending(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The last event of a workload, kept as its tombstone with digest and submission."""

    attempt: int = 0  # number of the last attempt; 0 = never placed
    cluster: str = ""  # cluster of the last attempt; "" = never placed
    digest: str
    submitted_at_s: float
    reason: str = ""  # reason of the end; "" = unset


class Succeeded(Ending, frozen=True, kw_only=True, omit_defaults=True, tag="workload.succeeded.v1"):
    """All pods completed."""


class Failed(Ending, frozen=True, kw_only=True, omit_defaults=True, tag="workload.failed.v1"):
    """The job failed for good."""

    exit_code: int | None = None  # exit code of the container; null = unset
    fault: Fault = ""  # cause of the failure
    node: str = ""  # node of the cause; "" = unknown or several


class Cancelled(Ending, frozen=True, kw_only=True, omit_defaults=True, tag="workload.cancelled.v1"):
    """The job was cancelled, as requested."""


WorkloadEvent = (
    Submitted
    | Released
    | Reprioritized
    | Held
    | HoldReleased
    | IdleChanged
    | LimitExceeded
    | CancelRequested
    | MoveRequested
    | EvictionRequested
    | ResizeRequested
    | Checkpointed
    | Progressed
    | Placed
    | Divided
    | Committed
    | Withdrawn
    | Claimed
    | Admitted
    | Running
    | Resized
    | Carried
    | Evicted
    | Succeeded
    | Failed
    | Cancelled
)

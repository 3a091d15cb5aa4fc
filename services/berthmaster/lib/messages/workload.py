"""One job request and its life, as events that are appended and never edited.

The life of a workload (the table is lib/lifecycle/states.py)::

    submitted ─▶ QUEUED ─placed─▶ PLACED ─claimed─▶ CLAIMED ─admitted─▶ ADMITTED ─running─▶ RUNNING
                   ▲ ▲──withdrawn───┘                 │                    │                 │
                   └────────────evicted───────────────┴────────────────────┴─────────────────┘
    endings: succeeded, failed, cancelled. A wish to cancel, to move or to hold it, an order to make
    room or to have another number of pods, that it has that many, how far it is, a checkpoint, a
    new priority, and that the jobs before it are done (released) change no state.
    carried ─▶ the state that it had: the first event of a workload that `berth recover` took over
    into a new log.

Subject of every event: ``berth.workload.<tenant>.<id>.<kind>.<cluster or ->``. ``after`` is the
sequence of the aggregate's event on which this one was decided (0 for the first): an event whose
``after`` is not its aggregate's previous sequence is void for every reader.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from berthmaster.lib.messages.placement import MAIN_CELL, PartWeights, PodBinding, Target
from berthmaster.lib.messages.runtimes import Runtime, RuntimeUse
from berthmaster.lib.messages.terms import LabelText, Name, Toleration

__all__ = ["LabelText", "Name", "Toleration"]  # and all that is defined here

MAX_GPUS_A_POD = 64
MAX_TPUS_A_POD = 64
MAX_PIECES_A_POD = 1_000_000  # of one other resource
MAX_RESOURCES = 16  # other resources, by their names
MAX_CLAIMS = 16
MAX_PODS = 4096
MAX_POD_SETS = 16
MAX_PARTS = 16  # of a divided job
MAX_TOLERATIONS = 32
ONE_NODE = "node"  # of a topology: what all pods have in common
MAX_PREFERRED_MODELS = 8
MAX_DEPENDENCIES = 64
MAX_ARRAY_JOBS = 10_000  # of one array
MAX_ARRAY_INDEX = 99_999

WorkloadId = Annotated[
    str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$(?!\n)", min_length=1, max_length=52)
]  # 52: Kubernetes object names are made of the id and the attempt
SetName = Annotated[str, Meta(pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$(?!\n)", max_length=63)]
Labels = Annotated[dict[LabelText, LabelText], Meta(max_length=64)]


# How hard the limit of a part of a GPU is, the hardest first; "" = any.
Isolation = Literal["", "hardware", "memory", "none"]


class Topology(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """How the pods of a set are to stand to each other on the nodes of their one cluster. What is
    not said is free: then pods go where they cost least."""

    same: Annotated[
        LabelText,
        Meta(
            description="Node label of which all pods get one value, such as "
            "topology.kubernetes.io/zone; node = all pods on one node."
        ),
    ] = ""  # pod sets of a job that name the same label share its value
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


class PodSet(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A number of equal pods."""

    name: Name = "main"
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
    cpu_milli: Annotated[int, Meta(ge=0, le=10_000_000, description="CPUs of each pod.")] = 1000
    memory_mib: Annotated[int, Meta(ge=0, le=1 << 30, description="Memory of each pod.")] = 1024
    gpus: Annotated[int, Meta(ge=0, le=MAX_GPUS_A_POD, description="GPUs of each pod.")] = 0
    gpu_milli: Annotated[int, Meta(ge=1, le=1000)] = (
        1000  # of each of them; < 1000 only for one GPU
    )
    gpu_memory_mib: Annotated[
        int,
        Meta(
            ge=0, le=1 << 24, description="Least memory of each GPU, or of the fraction of a GPU."
        ),
    ] = 0  # a fraction of so much memory, however large it is, has gpu_milli 1
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
    # As which its whole GPUs are asked for, such as amd.com/gpu: those and no other maker's.
    # Empty = any.
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
    ] = ()  # values of the node label cloud.google.com/gke-tpu-accelerator
    tpu_topology: Annotated[
        str,
        Meta(
            max_length=32,
            description="Chips of the TPU slice that all pods form, such as 2x4 or 2x2x4; "
            '"" = any.',
        ),
    ] = ""  # with more chips than one pod has, the pods are a gang on one node pool
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
    topology: Topology | None = None
    node_labels: Annotated[Labels, Meta(description="Labels that nodes must have.")] = {}
    tolerations: Annotated[tuple[Toleration, ...], Meta(max_length=MAX_TOLERATIONS)] = ()


class SecretKey(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One value of a Kubernetes Secret. The Secret is called ``<tenant>.<name>`` and is in the
    namespace of the pods: no request reaches a Secret that was not made for its tenant."""

    name: Name  # without the tenant
    key: Annotated[str, Meta(pattern=r"^[-._a-zA-Z0-9]+$(?!\n)", min_length=1, max_length=253)]


class RunSpec(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What the pods run. Executors for real clusters need the image; emulated ones ignore all."""

    image: Annotated[
        str, Meta(max_length=1024, description="Container image; emulated clusters need none.")
    ] = ""
    command: Annotated[tuple[str, ...], Meta(max_length=256)] = ()
    args: Annotated[tuple[str, ...], Meta(max_length=256)] = ()
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
    """Another job of the same tenant that must have ended before."""

    id: WorkloadId
    until: Literal["succeeded", "ended"] = "succeeded"  # ended: however it ended


Loss = Annotated[float, Meta(ge=-1e300, le=1e300)]


class Checkpoint(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What a job goes on from when it is started again."""

    step: Annotated[int, Meta(ge=0, le=1 << 53)]
    uri: Annotated[str, Meta(min_length=1, max_length=1024)]  # where it is; everybody sees it


class Divide(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """That the pods of a job may run in several clusters, each of which gets a part of them."""

    by: Annotated[
        Literal["room", "weight"],
        Meta(
            description="Run pods in several clusters. room: in as few as possible, where no "
            "cluster has room for all; weight: in all that have room, by their weights."
        ),
    ] = "room"
    weights: Annotated[
        dict[LabelText, Annotated[int, Meta(ge=1, le=1000)]], Meta(max_length=MAX_PARTS)
    ] = {}  # of clusters, and no others get any; empty = each by its room
    min_part: Annotated[
        int, Meta(ge=1, le=MAX_PODS, description="Fewest pods of a divided job in one cluster.")
    ] = 1
    gang: bool = True
    # All parts start together or none does. False: pods that need no others; a part that ends
    # before its work is done goes on by itself.
    address: Annotated[str, Meta(pattern=r"^([a-zA-Z0-9]([-.a-zA-Z0-9]*[a-zA-Z0-9])?)?$(?!\n)")] = (
        ""
    )
    # Where the first pod of all is reachable from all clusters, which only their network can give;
    # then its pods are told of one world. Empty: each part finds together by itself.


class Part(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Which part of a divided job a workload is."""

    job: WorkloadId
    attempt: int  # of that job
    number: int  # of this part, from 0
    clusters: tuple[str, ...]  # of all parts; this is where they begin
    pods: tuple[int, ...]  # so many each
    gang: bool = True
    address: str = ""
    checkpoint: Checkpoint | None = None  # that the job goes on from


class JobRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What a person asks for. All pods of it start together on one cluster, or none does; on
    several, if it may be divided.

    Events carry it, so it tolerates fields of a newer version; as a request it is a SubmitRequest.
    """

    id: Annotated[WorkloadId, Meta(description="Id of the job, unique for its tenant.")]
    queue: Annotated[Name, Meta(description="Queue of the job.")] = "default"
    priority: Annotated[
        int,
        Meta(ge=-1_000_000, le=1_000_000, description="A job of higher priority goes first."),
    ] = 0
    pod_sets: Annotated[tuple[PodSet, ...], Meta(min_length=1, max_length=MAX_POD_SETS)] = (
        PodSet(),
    )
    clusters: Annotated[
        tuple[LabelText, ...],
        Meta(max_length=64, description="Accepted clusters; empty = any."),
    ] = ()
    cluster_labels: Annotated[Labels, Meta(description="Labels that the cluster must have.")] = {}
    run: RunSpec = RunSpec()
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
    max_evictions: Annotated[int, Meta(ge=0, le=1000)] = 10  # one more eviction is a failure
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
    runtime: Runtime | None = None  # None = plain, without any template
    runtime_used: RuntimeUse | None = None  # filled in by the gateway; requests leave it out
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
    # set_at_most: it gets no place while so many jobs of its set have one; None: any number.
    array_index: Annotated[int, Meta(ge=0, le=MAX_ARRAY_INDEX)] | None = None
    # array_index: its number in its set; its pods have it as BERTH_ARRAY_INDEX.
    depends_on: Annotated[
        tuple[Dependency, ...],
        Meta(
            max_length=MAX_DEPENDENCIES,
            description="Jobs that must succeed or end first; where one no longer can, this job is "
            "cancelled.",
        ),
    ] = ()
    divide: Divide | None = None  # None: all pods run in one cluster
    part: Part | None = None  # filled in by the resolver; requests leave it out


class Progress(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """How far a job is, in its own words. ``eta_s``: until it ends."""

    step: Annotated[int, Meta(ge=0, le=1 << 53)]
    loss: Loss | None = None  # None = it has none, or it is no number
    eta_s: Annotated[float, Meta(ge=0, le=315_360_000)] | None = None  # None = it does not say


class HubObject(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The object on a hub that a workload of ours stands for: a Workload of Kueue's, or a
    ResourceBinding of Karmada's."""

    namespace: str
    name: str
    uid: str = ""
    owner: str = ""  # "<kind>/<name>" of the job that people made
    local_queue: str = ""
    cluster_queue: str = ""
    hub: str = ""  # id of the hub's cluster: of whose objects nobody else's absence says anything
    system: Literal["kueue", "karmada"] = "kueue"


# What ended an attempt before its work was done; "" = not told. Of the job itself: exit and
# out_of_memory. Not able to start, be it for what the request names: not_started. The rest is what
# its cluster did: the kubelet or a person evicted it, its scheduler preempted it, a node or a GPU
# was lost, it was in the way, it took too long to start (late), its time was over (deadline).
Fault = Literal[
    "",
    "exit",
    "out_of_memory",
    "not_started",
    "evicted",
    "preempted",
    "node_lost",
    "gpu_lost",
    "late",
    "deadline",
]


class Event(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What every event of a workload carries."""

    tenant: str
    id: str
    after: int
    at_s: float  # the writer's clock, for people; order is the stream's
    by: str  # service and instance that wrote it
    cause: str = ""  # what made it write: a request id, a decision, a pod


class Submitted(Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.submitted.v1"):
    """Accepted for placement."""

    request: JobRequest
    digest: str  # of the request's content: the same id with another digest is another job
    cell: str = MAIN_CELL  # whose decider places it
    origin: HubObject | None = None  # made with kubectl on a hub, not by a request


class Reprioritized(
    Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.reprioritized.v1"
):
    """Its priority is another from now on."""

    priority: int


class Released(Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.released.v1"):
    """The jobs that it depends on have come about: from now on it waits for its place."""


class Held(Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.held.v1"):
    """A person says that it waits, whoever's turn it is, until it is released. An attempt that is
    claimed is ended for that by a decision; one that is not is taken back."""

    who: str  # "tenant acme", or an operator as he calls himself
    operator: bool = False  # then only an operator releases it
    reason: str = ""


class HoldReleased(
    Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.hold_released.v1"
):
    """It is not held any more."""

    who: str
    reason: str = ""


class MoveRequested(
    Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.move_requested.v1"
):
    """A wish of a person: a decision ends this attempt, if it can be carried out. ``move``: once
    room is kept for it elsewhere; ``evict``: at once, and it waits again wherever that leads."""

    cluster: str
    attempt: int
    how: Literal["move", "evict"]
    who: str
    to: str = ""  # of a move, the cluster; "" = any other than the one it is in
    reason: str = ""


class Checkpointed(
    Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.checkpointed.v1"
):
    """The job has written a checkpoint: work before it is not lost when the attempt ends, and the
    next attempt is told of it. Said by its pods by way of the executor, or by its tenant."""

    cluster: str
    attempt: int
    checkpoint: Checkpoint


class Progressed(
    Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.progressed.v1"
):
    """How far the job is by now. Said by its pods by way of the executor, or by its tenant; seldom
    enough that a story stays short. When it will end counts from when this is stored."""

    cluster: str
    attempt: int
    progress: Progress


class CancelRequested(
    Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.cancel_requested.v1"
):
    """A wish: the claimant stops the pods and then says ``cancelled``."""

    cluster: str
    reason: str = ""


class EvictionRequested(
    Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.eviction_requested.v1"
):
    """A decision: the attempt makes room for a workload of better right. The claimant ends the pods
    and then says ``evicted``; until it has, nobody is given the room."""

    cluster: str
    attempt: int
    reason: str  # whose right it is, without naming other tenants' workloads
    decision: int
    cell: str = MAIN_CELL
    to: str = ""  # the cluster in which room is kept for it meanwhile; "" = in none


class ResizeRequested(
    Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.resize_requested.v1"
):
    """A decision: the attempt goes on with these pods, fewer or more than it has. The claimant
    starts or ends the others and then says ``resized``; until it has, the attempt holds the room of
    all of them, and nobody is given any of it."""

    cluster: str
    attempt: int
    pods: tuple[PodBinding, ...]  # all that it shall have, those that it has among them
    reason: str  # without naming other tenants' workloads
    decision: int
    cell: str = MAIN_CELL


class Placed(Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.placed.v1"):
    """One attempt was given its place. Carries the request: an executor needs no other read."""

    cluster: str
    attempt: int  # 1 for the first placement; object names are made of id and attempt
    pods: tuple[PodBinding, ...]
    request: JobRequest
    decision: int  # number in the chain of its cell
    cell: str = MAIN_CELL
    submitted_at_s: float = 0.0  # server's time; 0 = not told, then whoever needs it reads the log
    target: Target = Target()  # how to make it there; emulated clusters need none of it
    checkpoint: Checkpoint | None = None  # that an earlier attempt has told last
    ran_s: float = 0.0  # that earlier attempts ran for and max_run_s counts


class PartPlace(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One part of a divided job: a workload of its own."""

    id: str
    cluster: str
    pods: int


class Divided(Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.divided.v1"):
    """One attempt was given places in several clusters: its parts were submitted with it, as
    workloads of their own, and room is kept for each. It ends when they have ended."""

    attempt: int
    parts: tuple[PartPlace, ...]
    decision: int
    cell: str = MAIN_CELL


class Committed(Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.committed.v1"):
    """A decision about all parts of a gang and their job: every part is claimed, so that the pods
    of all of them start now."""

    cluster: str  # of the part; "" of the job
    attempt: int
    decision: int
    cell: str = MAIN_CELL


class Withdrawn(Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.withdrawn.v1"):
    """The placement was taken back before anybody claimed it."""

    cluster: str
    attempt: int
    reason: str
    decision: int
    cell: str = MAIN_CELL


class Claimed(Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.claimed.v1"):
    """An executor is about to create the pods; now only it, or a person, ends the attempt."""

    cluster: str
    attempt: int
    executor: str


class Admitted(Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.admitted.v1"):
    """The cluster's own queueing (Kueue) let it in. Clusters without such skip this."""

    cluster: str
    attempt: int
    resizable: bool = False  # it lets the number of pods change while they run


class Running(Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.running.v1"):
    """All its pods run; ``pods`` says where they really are."""

    cluster: str
    attempt: int
    pods: tuple[PodBinding, ...]


class Resized(Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.resized.v1"):
    """It has these pods now, and no other is left. What was ordered, or as near as the cluster came
    to that: then with the reason."""

    cluster: str
    attempt: int
    pods: tuple[PodBinding, ...]
    reason: str = ""


class State(StrEnum):
    """Where a workload stands. NEW is before its first event."""

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
    """Who holds a workload, since when and why."""

    who: str
    since_s: float
    operator: bool = False
    reason: str = ""


class Wish(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Who wants an attempt to leave its cluster, since when, and for which."""

    how: str  # move, evict
    who: str
    since_s: float
    to: str = ""
    reason: str = ""


class CarriedWorkload(msgspec.Struct, gc=False, kw_only=True, omit_defaults=True):
    """All that readers keep of an open workload. Times are the server's, in seconds since 1970."""

    state: State = State.NEW
    request: JobRequest | None = None  # None: only the tombstone was seen
    wished: JobRequest | None = None
    # As it was requested, while an attempt is open of which ``request`` says how many pods it has;
    # None: that is the same.
    digest: str = ""
    cell: str = MAIN_CELL  # whose decider places it
    origin: HubObject | None = None
    priority: int = 0
    released: bool = False  # the jobs that it depends on have come about
    submitted_sequence: int = 0
    submitted_at_s: float = 0.0
    attempt: int = 0  # number of placements so far; the last one is open while the state is live
    evictions: int = 0
    failures: int = 0  # of its own, after which it was to be tried again
    retry_at_s: float = 0.0  # before which it is placed nowhere
    last_fault: Fault = ""  # what ended the last attempt that was evicted
    repeats: int = 0  # so many in a row were ended by that, of what may be the job's own doing
    cluster: str = ""  # of the open or last attempt
    pods: tuple[PodBinding, ...] = ()  # as placed; as observed once it runs; all that hold capacity
    resizing: tuple[PodBinding, ...] = ()  # those that it shall have; () = what it has
    resized_at_s: float = 0.0  # of the last change of their number
    resizable: bool = False  # the open attempt's queue there lets their number change
    coming: int = 0  # of ``resizing``, those that it did not have
    kept_size: str = ""  # why it has not the pods that it was to have last; "" = it has
    kept_sizes: int = 0  # so many times in a row
    target: Target = Target()  # of the open or last attempt
    decision: int = 0
    placed_at_s: float = 0.0
    claimed_at_s: float = 0.0
    running_at_s: float = 0.0
    executor: str = ""
    cancel_requested: bool = False  # it outlives the attempt
    leaving: str = ""  # why the open attempt is to be evicted for another; "" = it is not
    leads_to: str = ""  # the cluster in which capacity is reserved for it meanwhile
    moves: int = 0  # attempts that were evicted for others
    parts: tuple[PartPlace, ...] = ()  # of the open attempt, if it is divided over clusters
    committed: bool = False  # of the open attempt of a divided gang or of its parts: pods may start
    hold: Hold | None = None
    wish: Wish | None = None  # about the open attempt
    checkpoint: Checkpoint | None = None  # the last that was reported
    checkpoint_at_s: float = 0.0
    progress: Progress | None = None  # of the last attempt, as it reported last
    progress_at_s: float = 0.0
    ran_s: float = 0.0  # of attempts that are over, what max_run_s counts
    reason: str = ""  # of the last withdrawal, eviction or ending


class Carried(Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.carried.v1"):
    """The first event of a workload in a log that `berth recover` has built: as it stood in the log
    before, joined with what clusters hold of it. Its earlier events are in the archive."""

    workload: CarriedWorkload
    cluster: str = ""  # of its open attempt


class Evicted(Event, frozen=True, kw_only=True, omit_defaults=True, tag="workload.evicted.v1"):
    """The attempt is over and its pods are gone (or declared lost); the workload waits again."""

    cluster: str
    attempt: int
    reason: str
    blameless: bool = False  # counts for nobody: not the cluster's doing, nor the workload's
    fault: Fault = ""
    node: str = ""  # on which that happened, where it was one
    exit_code: int | None = None
    checkpoint: Checkpoint | None = None  # of a divided job: that its first part told last


class Ending(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The last event of a workload. It stays as the tombstone, hence digest and submission."""

    attempt: int = 0  # 0 = it never was placed
    cluster: str = ""
    digest: str
    submitted_at_s: float
    reason: str = ""


class Succeeded(Ending, frozen=True, kw_only=True, omit_defaults=True, tag="workload.succeeded.v1"):
    """All pods completed."""


class Failed(Ending, frozen=True, kw_only=True, omit_defaults=True, tag="workload.failed.v1"):
    """It will not run again."""

    exit_code: int | None = None
    fault: Fault = ""
    node: str = ""  # on which that happened, where it was one


class Cancelled(Ending, frozen=True, kw_only=True, omit_defaults=True, tag="workload.cancelled.v1"):
    """A person's wish was carried out."""


WorkloadEvent = (
    Submitted
    | Released
    | Reprioritized
    | Held
    | HoldReleased
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

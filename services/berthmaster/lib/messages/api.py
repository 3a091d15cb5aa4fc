"""Requests and replies of the API: what people and programs send, what they get back.

Subjects: ``berth.api.<tenant>.<verb>`` for tenants, ``berth.operator.<verb>`` for operators. The
tenant is part of the subject, so NATS permissions enforce it. Unknown fields are refused in
requests, and only there: a misspelt field would otherwise be silently ignored.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from berthmaster.lib.messages.control import (
    JobDefaults,
    QueueAllows,
    QueueAmounts,
    QueuePlace,
    QueueSetting,
)
from berthmaster.lib.messages.placement import Choice, Decision, RankedCluster, Reservation
from berthmaster.lib.messages.profile import Profile
from berthmaster.lib.messages.runtimes import Runtime, RuntimeSetting
from berthmaster.lib.messages.suggest import Suggestions
from berthmaster.lib.messages.telemetry import JobFigures
from berthmaster.lib.messages.usage import Trends, UsageReport
from berthmaster.lib.messages.workload import (
    MAX_CHOICES,
    MAX_DEPENDENCIES,
    MAX_POD_SETS,
    MAX_PRIORITY,
    MAX_TOLERATIONS,
    TRIAL_PRIORITY,
    Checkpoint,
    Choose,
    Dependency,
    Divide,
    JobRequest,
    LabelText,
    Loss,
    PartPlace,
    PodSet,
    Progress,
    RunSpec,
    SecretKey,
    SetName,
    Toleration,
    Topology,
    Trial,
    TrialConfiguration,
    TrialResult,
    WorkloadEvent,
    WorkloadId,
)

Reason = Annotated[str, Meta(max_length=1024)]
Named = Annotated[str, Meta(min_length=1, max_length=253)]
MOST_EVENTS = 500  # in one page
WorkloadStateName = Literal[
    "queued", "placed", "claimed", "admitted", "running", "succeeded", "failed", "cancelled"
]


class Refusal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.refusal.v1"):
    """The error of a refused request, with the accepted values. A refused request
    changes nothing.
    """

    code: Literal[
        "malformed",
        "invalid",
        "too_large",
        "conflict",
        "not_found",
        "forbidden",
        "overloaded",
        "unavailable",
    ]  # class of the error
    field: str  # JSON path such as "pod_sets[0].gpus"; "" = the request as a whole
    value: str  # value as sent, shortened
    expected: str  # accepted values, in words
    retry: bool = False  # True: the same request may succeed later
    retry_after_s: float = 0.0  # seconds until a retry may succeed; 0 = unknown


class StrictToleration(Toleration, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A toleration in a request."""


class StrictTopology(Topology, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topology in a request."""


class StrictChoose(Choose, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configurations to choose from, in a request."""


class StrictTrialConfiguration(
    TrialConfiguration, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """A configuration to try, in a request."""


class StrictTrial(Trial, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configurations to try, in a request."""

    configurations: Annotated[
        tuple[StrictTrialConfiguration, ...], Meta(min_length=1, max_length=MAX_CHOICES)
    ]  # configurations to try


class StrictPodSet(PodSet, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pod set in a request."""

    tolerations: Annotated[tuple[StrictToleration, ...], Meta(max_length=MAX_TOLERATIONS)] = ()
    # tolerations: taints of nodes and clusters to tolerate
    topology: StrictTopology | None = None
    # topology: where the pods stand relative to each other; null = anywhere
    choose: StrictChoose | None = None
    # choose: configurations of which the resolver takes one; null = as the other fields say
    trial: StrictTrial | None = None  # configurations to try before the job runs; null = none


class StrictSecretKey(SecretKey, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value of a Secret in a request."""


class StrictRunSpec(RunSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The container of the pods in a request."""

    secret_env: Annotated[Mapping[LabelText, StrictSecretKey], Meta(max_length=64)] = {}
    # secret_env: environment variables from Secrets TENANT.NAME in the pods' namespace


class StrictRuntime(Runtime, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A runtime in a request."""


class StrictDependency(Dependency, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A dependency in a request."""


class StrictDivide(Divide, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Permission to divide a job in a request."""


class SubmitRequest(JobRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job to run. All pods start together on one cluster, or none does; a divided job spans
    several clusters.
    """

    priority: Annotated[
        int,
        Meta(
            ge=TRIAL_PRIORITY + 1,
            le=MAX_PRIORITY,
            description="A job of higher priority goes first.",
        ),
    ] = 0
    pod_sets: Annotated[tuple[StrictPodSet, ...], Meta(min_length=1, max_length=MAX_POD_SETS)] = (
        StrictPodSet(),
    )  # groups of equal pods
    run: StrictRunSpec = StrictRunSpec()  # container of the pods
    runtime: StrictRuntime | None = None
    # runtime: runtime template of the pods; null = plain, without a template
    runtime_used: None = None  # set by the gateway; always null in a request
    depends_on: Annotated[tuple[StrictDependency, ...], Meta(max_length=MAX_DEPENDENCIES)] = ()
    # depends_on: jobs that must end first
    divide: StrictDivide | None = None
    # divide: how to divide the job over clusters; null = all pods in one cluster
    part: None = None  # set by the resolver; always null in a request
    trial_of: Literal[""] = ""  # set by the gateway; always empty in a request


class SubmitReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.submitted.v1"
):
    """Durable acceptance of a job."""

    tenant: str
    id: str
    sequence: int  # stream sequence of the ``submitted`` event, or of the tombstone after cleanup
    existing: bool = False  # True: the same request was accepted before
    state: WorkloadStateName = "queued"


class HelloRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Ask for the server's time and the protocol. Changes nothing."""


class HelloReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.hello.v1"):
    """Facts about the bus for a client without JetStream rights."""

    now_s: float  # seconds since 1970 by the server's clock, the base of all ages
    protocol: int = 1  # version of the protocol, raised when older requests or replies stop working


class CancelRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Cancel one workload. Repeating the request is harmless."""

    id: WorkloadId
    reason: Reason = ""  # reason for the event history; "" = unset


class ReprioritizeRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Change the priority of one workload."""

    id: WorkloadId
    priority: Annotated[int, Meta(ge=TRIAL_PRIORITY + 1, le=MAX_PRIORITY)]


class ChangeReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.changed.v1"
):
    """The change is recorded, or nothing was left to do."""

    tenant: str
    id: str
    state: WorkloadStateName
    note: str = ""
    # note: explanation for display, such as "its executor was asked to stop it"; "" = unset


class HoldRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Hold one workload until its release. A running workload needs ``evict``. Repeating the
    request is harmless.
    """

    id: WorkloadId
    reason: Reason = ""  # reason for the event history; "" = unset
    evict: bool = False  # True: evict the workload if an attempt is open


class ReleaseRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Release a held workload. Only operators release an operator's hold."""

    id: WorkloadId
    reason: Reason = ""  # reason for the event history; "" = unset


class EvictRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Evict the attempt of a workload, which is requeued. Counts against neither the job nor the
    cluster.
    """

    id: WorkloadId
    reason: Reason = ""  # reason for the event history; "" = unset


class MoveRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Move a workload to another cluster. Its attempt ends once capacity is reserved there."""

    id: WorkloadId
    to: Annotated[str, Meta(max_length=253)] = ""  # target cluster; "" = any other cluster
    reason: Reason = ""  # reason for the event history; "" = unset


class CheckpointedRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Report a checkpoint, from which the next attempt continues."""

    id: WorkloadId
    step: Annotated[int, Meta(ge=0, le=1 << 53)]  # training step of the checkpoint
    uri: Annotated[str, Meta(min_length=1, max_length=1024)]  # location of the checkpoint
    attempt: Annotated[int, Meta(ge=1)] | None = None
    # attempt: attempt that wrote the checkpoint; null = the last one


class ProgressedRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Report the progress of a running workload."""

    id: WorkloadId
    step: Annotated[int, Meta(ge=0, le=1 << 53)]  # training step reached
    loss: Loss | None = None  # value of the loss; null = not reported
    eta_s: Annotated[float, Meta(ge=0, le=315_360_000)] | None = None
    # eta_s: seconds to the expected end; null = not reported
    attempt: Annotated[int, Meta(ge=1)] | None = None
    # attempt: attempt that made the progress; null = the last one


Who = Annotated[str, Meta(max_length=128)]


class JobOrderRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """An operator action on one workload of any tenant (verbs ``hold_job``, ``release_job``,
    ``evict_job`` and ``move_job``).
    """

    tenant: Named
    id: WorkloadId
    reason: Reason = ""  # reason for the event history; "" = unset
    who: Who = ""  # name of the operator, stored with the action
    evict: bool = False  # hold_job: evict the workload if an attempt is open
    to: Annotated[str, Meta(max_length=253)] = ""
    # to: move_job: target cluster; "" = any other cluster


class GetRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Read one workload."""

    id: WorkloadId
    story: bool = False  # True: include all events


class WorkloadView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of one workload."""

    tenant: str
    id: str
    state: WorkloadStateName
    queue: str = ""
    priority: int = 0
    attempt: int = 0
    evictions: int = 0
    cluster: str = ""
    gpus: float = 0.0  # GPUs charged to the open or last attempt; while pending, requested GPUs
    gpu_models: tuple[str, ...] = ()  # accepted GPU models; empty = any
    pods: int = 0  # number of pods
    submitted_at_s: float = 0.0
    changed_at_s: float = 0.0  # server's time of the last event
    sequence: int = 0  # stream sequence of the last event
    cancel_requested: bool = False  # True: a cancel is under way
    held_by: str = ""  # requester of the hold; "" = not held
    checkpoint: Checkpoint | None = None  # last reported checkpoint; null = unset
    progress: Progress | None = None  # last progress of the newest attempt; null = unset
    progress_at_s: float = 0.0  # server's time of the last progress report
    reason: str = ""  # reason of the last eviction, withdrawal or ending
    set: str = ""  # set of the job; "" = unset
    array_index: int | None = None  # index in the set; null = no array
    labels: dict[str, str] = {}  # labels of the submitter
    waits_for: tuple[str, ...] = ()  # ids of unfinished dependencies
    parts: tuple[PartPlace, ...] = ()  # parts of the open attempt of a divided job
    part_of: str = ""  # id of the job that this is a part or a trial of; "" = neither
    trials: tuple[TrialResult, ...] = ()  # results of the job's trials, once all have ended

    @property
    def clusters(self) -> tuple[str, ...]:
        """Return the cluster of the job, or the clusters of its parts."""
        return tuple(dict.fromkeys(part.cluster for part in self.parts)) or (
            (self.cluster,) if self.cluster else ()
        )


class RecordedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event with its stream metadata."""

    sequence: int  # stream sequence
    stored_at_s: float  # server's time of storing
    event: WorkloadEvent  # event as written
    void: bool = False  # True: stored after a lost race, and ignored


class GetReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.workload.v1"
):
    """Reply to ``get``."""

    workload: WorkloadView  # state of the workload
    request: JobRequest | None = None  # job as accepted; null = only the tombstone is left
    story: tuple[RecordedEvent, ...] = ()  # events, oldest first; empty unless requested
    figures: tuple[JobFigures, ...] = ()  # usage of its GPUs in the last half minute, if reported
    expected: "Expectation | None" = None
    # expected: start and end, which `berth job` asks ``why`` for; null = unknown or not asked


class LogsRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Read a part of the log of one pod. To follow a log, repeat the request with the
    last cursor.
    """

    id: WorkloadId
    pod: Annotated[int, Meta(ge=0, le=4095)] = 0  # index of the pod in the order of names
    previous: bool = False  # True: the attempt before the last one
    after: Annotated[str, Meta(max_length=96)] = ""
    # after: ``cursor`` of the last reply; "" = from the start
    tail: Annotated[int, Meta(ge=0, le=100_000)] | None = None
    # tail: only this number of last lines, in the first request; null = all
    since_s: Annotated[float, Meta(gt=0, le=31_536_000)] | None = None
    # since_s: only lines of the last seconds, in the first request; null = all
    wait_s: Annotated[float, Meta(ge=0, le=5)] = 0.0  # seconds to wait for new lines


class LogsReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.logs.v1"):
    """Reply to ``logs``, with at most 96 KiB of a log."""

    tenant: str
    id: str
    state: WorkloadStateName
    attempt: int = 0
    cluster: str = ""
    pod: int = 0  # index of the pod
    pods: int = 0  # number of pods of the attempt; 0 = unknown
    data: bytes = b""  # whole lines of any bytes: time (RFC 3339), a blank, text
    cursor: str = ""  # position for the next request
    cut: bool = False  # True: earlier lines are missing, because of age or a slow reader
    kept: bool = False  # True: the stored end of a log that no longer exists
    ended: bool = False  # True: the attempt's log is complete
    note: str = ""  # cause of an empty reply, for display; "" = unset


class ListRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Read workloads of one tenant, newest first. A divided job is one workload that names its
    parts.
    """

    states: tuple[WorkloadStateName, ...] = ()  # only these states; empty = all
    queue: LabelText = ""  # only this queue; "" = all
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100  # maximum number of workloads
    before: int = 0  # only submissions before this sequence; 0 = from the newest
    set: SetName = ""  # only this set; "" = all
    labels: Annotated[dict[LabelText, LabelText], Meta(max_length=16)] = {}
    # labels: only workloads with all these labels
    since_s: Annotated[float, Meta(ge=0)] = 0.0
    # since_s: only workloads with an event since then, in seconds since 1970
    parts: bool = False  # True: include parts of divided jobs as workloads of their own


class ListReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.workloads.v1"
):
    """Reply to ``list``. ``counts`` covers all workloads of the tenant in the log, a divided job
    once.
    """

    workloads: tuple[WorkloadView, ...] = ()  # workloads, newest first
    counts: dict[WorkloadStateName, int] = {}  # number of workloads by state
    next_before: int = 0  # ``before`` of the next page; 0 = the end


class EventsRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Read the events of a tenant's workloads by pages, to catch up after an absence."""

    after: Annotated[int, Meta(ge=0)] | None = None
    # after: stream sequence to start behind; null = only report the end of the log
    limit: Annotated[int, Meta(ge=1, le=MOST_EVENTS)] = 100  # maximum number of events


class EventsReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.events.v1"
):
    """Reply to ``events``, in the log's order. The log keeps only the ending of workloads that
    ended long ago; ``get`` with the event history reads the archive.
    """

    events: tuple[RecordedEvent, ...] = ()  # events of the tenant's workloads
    next_after: int  # ``after`` of the next page
    more: bool = False  # True: more events may exist


class GpusRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """List the GPUs of the fleet for a pod of a given size."""

    gpus: Annotated[int, Meta(ge=1, le=64)] = 1  # GPUs of the pod
    queue: LabelText = ""  # only GPUs allowed to this queue; "" = all


class GpuStock(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """GPUs of one model in the fleet, without names of nodes or other tenants' jobs."""

    model: str  # model as nodes report
    memory_mib: int = 0  # memory of the smallest GPU, in MiB
    clusters: int = 0  # number of clusters with the model
    gpus: int = 0  # number of healthy GPUs
    open_gpus: int = 0  # number of GPUs open to new jobs
    free_gpu_milli: int = 0  # free milli of open GPUs
    free_gpus: int = 0  # wholly free open GPUs
    most_on_a_node: int = 0  # maximum of wholly free GPUs on one open node
    expected_wait_s: float | None = None  # expected wait in seconds; 0 = none, null = unknown
    wait_low_s: float | None = None
    # wait_low_s: wait in seconds that one in ten is shorter than; null = all ends are stated
    wait_high_s: float | None = None
    # wait_high_s: wait in seconds that one in ten is longer than; null = all ends are stated
    wait_jobs: int = 0  # number of similar jobs that the wait rests on; 0 = all ends are stated
    why_not: str = ""  # why the queue may not use the model; "" = allowed
    price_least: float | None = None
    # price_least: lowest price of a GPU hour, in the clusters' currency; null = no price
    price_most: float | None = None  # highest price of a GPU hour; null = no price


class GpusReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.gpus.v1"):
    """Reply to ``gpus`` from current knowledge, most free GPUs first. Waits assume that jobs end as
    stated, or else as similar jobs did, and that no other job arrives.
    """

    models: tuple[GpuStock, ...] = ()  # GPUs by model
    waiting: int = 0  # number of pending workloads of all tenants


class WhyRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Explain the placement or the wait of a workload."""

    id: WorkloadId | None = None  # id of the workload; null = reasons of all pending workloads


class QueueStanding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Usage and limits of a queue. Null limits are not set."""

    queue: str  # name of the queue
    used_gpu_milli: int = 0  # GPU milli of live placements
    used: dict[str, int] = {}  # usage by resource: cpu, memory, gpu, gpu/<model>
    running: int = 0  # number of live placements
    max_running_jobs: int | None = None  # limit of live placements
    waiting: int = 0  # number of pending workloads
    guarantee_gpu_milli: int | None = None  # guaranteed GPU milli
    deserved_gpu_milli: int | None = None  # deserved GPU milli
    capability_gpu_milli: int | None = None  # maximum GPU milli
    borrowed_gpu_milli: int = 0  # usage beyond the deserved or guaranteed GPU milli
    priority: int = 0  # priority of the queue
    held: bool = False  # True: the queue dispatches no jobs


class QueueAccount(QueueStanding, frozen=True, kw_only=True, omit_defaults=True):
    """Usage and limits of a queue and of its parent queues."""

    parents: tuple[QueueStanding, ...] = ()
    # parents: parent queues, nearest first, each with the usage of all queues below


class Expectation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The expected start, end and run time of an open job. One job in ten is below a low end, and
    one in ten above a high end.
    """

    by: Literal["stated", "similar"]
    # by: similar = at least one duration is estimated from similar jobs; stated = none is
    jobs: int = 0
    # jobs: number of similar jobs behind the estimate that rests on the fewest; 0 = all is stated
    starts_s: float | None = None
    # starts_s: median start, in seconds since 1970; null = unknown, or the job has a placement
    starts_low_s: float | None = None  # low end of the start; null = as of starts_s
    starts_high_s: float | None = None  # high end of the start; null = as of starts_s
    ends_s: float | None = None  # median end, in seconds since 1970; null = unknown
    ends_low_s: float | None = None  # low end of the end; null = unknown
    ends_high_s: float | None = None  # high end of the end; null = unknown
    lasts_s: float | None = None
    # lasts_s: median run time of all attempts together, in seconds; null = unknown
    lasts_low_s: float | None = None  # low end of the run time; null = unknown
    lasts_high_s: float | None = None  # high end of the run time; null = unknown


class WhyReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.why.v1"):
    """Reply to ``why`` from current knowledge."""

    tenant: str
    id: str = ""
    state: WorkloadStateName | None = None
    summary: str  # one line for display
    position: int | None = None
    # position: position in the order of all pending workloads, 1 = next; null = not pending
    waiting: int = 0  # number of pending workloads
    queue_position: int | None = None
    # queue_position: position among pending workloads of the queue, 1 = next; null = not pending
    account: QueueAccount | None = None  # usage and limits of the workload's queue
    accounts: tuple[QueueStanding, ...] = ()  # without an id: queues open to the tenant
    first_free_s: float | None = None
    # first_free_s: estimated time of free capacity, in seconds since 1970; null = unknown
    expected: Expectation | None = None  # expected start and end; null = unknown
    reservation: Reservation | None = None  # capacity reserved for the workload; null = unset
    held_back: int = 0  # number of earlier jobs with a reservation that this one would fit in
    filtered: dict[str, str] = {}  # reason by cluster that does not fit a pending workload
    reasons: dict[str, int] = {}
    # reasons: number of clusters (one workload) or of workloads (all) by reason
    hints: tuple[str, ...] = ()  # suggestions for a faster start
    choice: Choice | None = None  # placement and its reasons; null = not placed
    decision: int = 0
    decided_at_s: float = 0.0  # time of the decision
    figures: tuple[JobFigures, ...] = ()  # usage of its GPUs in the last half minute, if reported


class DryRunReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.dry_run.v1"
):
    """Placement of a request if submitted now, ahead of all pending jobs."""

    placed: bool  # True: some cluster fits now
    summary: str  # one line for display
    ranking: tuple[RankedCluster, ...] = ()  # clusters that fit, best first
    filtered: dict[str, str] = {}  # reason by cluster that does not fit
    choice: Choice | None = None  # placement and its reasons; null = unset
    expected: Expectation | None = None  # expected start and end; null = unknown


class CordonRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Cordon a cluster, a node or a GPU (verb ``cordon``), or end a cordon and its drain (verb
    ``uncordon``).
    """

    cluster: Named
    node: Named | None = None  # name of the node; null = the whole cluster
    gpu: Annotated[
        Annotated[int, Meta(ge=0, le=1023)] | None,
        Meta(description="Index of one GPU of the node; None = the whole node."),
    ] = None  # uncordon opens also a GPU that telemetry found faulty before
    reason: Reason = ""  # reason for the record; "" = unset
    who: Who = ""  # name of the operator, stored with the action


class DrainRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Cordon a cluster or a node and move its running jobs away. ``uncordon`` ends both, ``cordon``
    ends only the drain.
    """

    cluster: Named
    node: Named | None = None  # name of the node; null = the whole cluster
    reason: Reason = ""  # reason for the record; "" = unset
    who: Who = ""  # name of the operator, stored with the action
    by_s: float | None = None
    # by_s: time limit in seconds since 1970, in the future; null = as capacity becomes free


class RebalanceRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A supposed setting of rebalancing for all queues. Operators only."""

    whose: Literal["queue", "all"] = "all"
    # whose: jobs that may be moved, as in ``rebalances`` of a queue
    moves: Annotated[int, Meta(ge=1, le=64)] | None = None
    # moves: maximum number of moves for one job; null = the current setting
    after_s: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    # after_s: minimum wait of the pending job in seconds; null = the current setting


class AddedCluster(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A supposed new cluster without jobs: a copy of another cluster, or equal nodes of one GPU
    model, shaped like the fleet's largest such node.
    """

    name: Named  # name of the new cluster
    like: Annotated[str, Meta(max_length=253)] = ""
    # like: cluster to copy with nodes and labels; "" = by model
    model: Annotated[str, Meta(max_length=316)] = ""  # GPU model of the nodes; "" = by like
    nodes: Annotated[int, Meta(ge=1, le=10_000)] = 1  # number of nodes
    gpus_a_node: Annotated[int, Meta(ge=1, le=64)] | None = None
    # gpus_a_node: GPUs of each node; null = as in the fleet, else 8
    gpu_memory_mib: Annotated[int, Meta(ge=1, le=1 << 24)] | None = (
        None  # memory of each GPU in MiB; null = as in the fleet, else 80 GiB
    )


class SupposedPlace(QueuePlace, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A namespace of a supposed queue."""


class SupposedAmounts(QueueAmounts, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Quota of a supposed queue."""


class SupposedAllows(QueueAllows, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of the requests of a supposed queue."""


class SupposedDefaults(JobDefaults, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defaults of the jobs of a supposed queue."""


class SupposedQueue(
    QueueSetting,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag=False,
):
    """A supposed queue, with all of its settings."""

    resources: dict[str, SupposedAmounts] = {}  # type: ignore[assignment]  # noqa: RUF012
    # resources: quota of other resources by name
    places: dict[str, SupposedPlace] = {}  # type: ignore[assignment]  # noqa: RUF012
    # places: where jobs are created, by cluster
    allows: SupposedAllows = SupposedAllows()  # limits of requests
    defaults: SupposedDefaults = SupposedDefaults()  # defaults of jobs


class WhatifRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Show the effect of one change, without changing anything. Exactly one field is set."""

    submit: SubmitRequest | None = None  # job to submit
    cordon: CordonRequest | None = None  # cluster or node to cordon
    uncordon: CordonRequest | None = None  # cluster or node to uncordon
    add_cluster: AddedCluster | None = None  # cluster to add
    queue: SupposedQueue | None = None  # queue to set
    drain: DrainRequest | None = None  # cluster or node to drain
    preempt: WorkloadId | None = None
    # preempt: id of a pending job of the own tenant, for which jobs would be preempted
    preempt_for: SubmitRequest | None = None  # a job to submit, for which jobs would be preempted
    rebalance: RebalanceRequest | None = None  # setting of rebalancing


class Ended(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt that would be ended or moved."""

    tenant: str
    id: str
    queue: str
    cluster: str
    gpus: float = 0.0  # number of GPUs
    lost_gpu_s: float = 0.0  # cost in GPU seconds
    why: str = ""  # reason of the end
    to: str = ""  # cluster with a reservation for the workload; "" = requeued
    for_id: str = ""  # beneficiary as <tenant>/<id>; "" = unset
    nodes: tuple[str, ...] = ()  # current nodes, for a rebalancing
    to_nodes: tuple[str, ...] = ()  # future nodes, for a rebalancing


class Rebalanced(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One pending job, and the moves that would let the job start."""

    tenant: str
    id: str
    queue: str
    gpus: float = 0.0  # requested GPUs
    cluster: str = ""  # cluster of the start; "" = nothing would be moved
    nodes: tuple[str, ...] = ()  # nodes of the start
    moves: int = 0  # number of jobs to move
    waited_s: float = 0.0  # time since the submission, in seconds
    saves_s: float = 0.0  # saved waiting time in seconds
    gain_gpu_s: float = 0.0  # gain in GPU seconds
    cost_gpu_s: float = 0.0  # cost in GPU seconds
    why_not: str = ""  # why nothing would be moved; "" = jobs would be moved


class Moved(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One workload that a change would affect."""

    tenant: str
    id: str
    queue: str
    gpus: float = 0.0  # requested GPUs of all pods
    was: str = ""  # current cluster; "" = pending
    would: str = ""  # future cluster; "" = pending


class WhatifReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.whatif.v1"
):
    """Effect of a change, by the deciding code on a copy of current knowledge. Lists are cut to
    some hundred entries of the requesting tenant; ``counts`` covers all.
    """

    change: str  # the change in words
    summary: str  # one line for display
    placed: tuple[Moved, ...] = ()  # pending workloads that would be placed
    waits: tuple[Moved, ...] = ()  # workloads about to be placed that would stay pending
    elsewhere: tuple[Moved, ...] = ()
    # elsewhere: placed workloads that would go elsewhere if placed again; running ones stay
    stranded: tuple[Moved, ...] = ()  # pending workloads that no cluster could take any more
    counts: dict[str, int] = {}  # length of each list before cutting
    hidden: int = 0  # number of other tenants' workloads in the counts
    capped: tuple[str, ...] = ()  # parts of the calculation left out to save time
    job: WhyReply | None = None  # explanation for the submitted job
    ended: tuple[Ended, ...] = ()  # attempts that would be ended or moved, cheapest first
    lost_gpu_s: float = 0.0  # total cost in GPU seconds
    rebalances: tuple[Rebalanced, ...] = ()
    # rebalances: pending jobs: first those that would start, then the others


class LostRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Declare a cluster lost (verb ``lost``), or undo that (verb ``found``)."""

    cluster: Named
    reason: Annotated[str, Meta(min_length=1, max_length=1024)]  # reason for the record


class CordonsRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """List cordons."""

    cluster: Annotated[str, Meta(max_length=253)] = ""  # only this cluster; "" = all


class StillThere(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A workload that still runs on a cordoned cluster or node."""

    tenant: str
    id: str
    gpus: float = 0.0  # number of GPUs
    since_s: float = 0.0  # server's time of the claim
    why: str = ""  # drain: why the workload is still there, or its target


class CordonView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One cordon and the progress of its drain."""

    cluster: str
    node: str | None = None  # name of the node; null = the whole cluster
    gpu: int | None = None  # index of the cordoned GPU; null = the whole node
    drain: bool = False  # True: running jobs are moved away
    drain_by_s: float | None = None  # time limit of the drain in seconds since 1970; null = unset
    reason: str = ""
    set_by: str = ""
    set_at_s: float = 0.0
    matches: bool = True  # False: no cluster or node has this name
    nearest: str = ""  # similar existing name, if none matches; "" = unset
    jobs: int = 0  # number of managed jobs that hold capacity there
    gpus: float = 0.0  # number of GPUs of those jobs
    still_there: tuple[StillThere, ...] = ()  # first of the jobs


class CordonsReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.cordons.v1"
):
    """Reply to ``cordons``."""

    cordons: tuple[CordonView, ...] = ()  # cordons in force


class OperatorReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.done.v1"
):
    """The operator's setting is stored durably."""

    sequence: int  # stream sequence of the setting
    note: str = ""  # explanation for display; "" = unset


ApiReply = (
    Refusal
    | HelloReply
    | SubmitReply
    | ChangeReply
    | GetReply
    | ListReply
    | LogsReply
    | EventsReply
    | GpusReply
    | WhyReply
    | DryRunReply
    | WhatifReply
    | UsageReport
    | Trends
    | Profile
    | Suggestions
    | OperatorReply
    | CordonsReply
)
JOB_VERBS = ("hold", "release", "evict", "move")  # of a tenant, for its own
JOB_ORDERS = ("hold_job", "release_job", "evict_job", "move_job")  # of operators, for everybody's
PLACE_VERBS = ("cordon", "uncordon", "drain")
OPERATOR_VERBS = (
    *PLACE_VERBS,
    *("lost", "found", "queue", "runtime"),
    *JOB_ORDERS,
    "list",
)
GATEWAY_VERBS = (
    *("hello", "submit", "cancel", "reprioritize", "get", "list", "events", "logs"),
    *JOB_VERBS,
    *("checkpointed", "progressed"),
)
RESOLVER_VERBS = ("why", "dry_run", "whatif", "gpus")
HUB_VERBS = ("why",)  # what a hub's own decider answers, too
RESOLVER_OPERATOR_VERBS = ("whatif", "cordons")  # of all tenants' workloads
USAGE_VERBS = ("report", "trends", "profile", "suggest")
# USAGE_VERBS: of a tenant's jobs, and for operators of all jobs
__all__ = ["ApiReply", "Decision", "QueueSetting", "RuntimeSetting"]

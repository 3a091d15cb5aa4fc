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
from berthmaster.lib.messages.runtimes import Runtime, RuntimeSetting
from berthmaster.lib.messages.telemetry import JobFigures
from berthmaster.lib.messages.usage import Trends, UsageReport
from berthmaster.lib.messages.workload import (
    MAX_DEPENDENCIES,
    MAX_POD_SETS,
    MAX_TOLERATIONS,
    Checkpoint,
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
    """Why a request was not carried out, and what would have been right. Nothing was changed."""

    code: Literal[
        "malformed",
        "invalid",
        "too_large",
        "conflict",
        "not_found",
        "forbidden",
        "overloaded",
        "unavailable",
    ]
    field: str  # JSON path such as "pod_sets[0].gpus"; "" = the request as a whole
    value: str  # what was sent there, shortened
    expected: str  # what would be right, in words
    retry: bool = False  # True: the same request may succeed later
    retry_after_s: float = 0.0  # sooner it will hardly; 0 = nobody knows when


class StrictToleration(Toleration, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A toleration as a person sends it."""


class StrictTopology(Topology, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topology as a person sends it."""


class StrictPodSet(PodSet, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pod set as a person sends it."""

    tolerations: Annotated[tuple[StrictToleration, ...], Meta(max_length=MAX_TOLERATIONS)] = ()
    topology: StrictTopology | None = None


class StrictSecretKey(SecretKey, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value of a Secret as a person names it."""


class StrictRunSpec(RunSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the pods run, as a person sends it."""

    secret_env: Annotated[Mapping[LabelText, StrictSecretKey], Meta(max_length=64)] = {}


class StrictRuntime(Runtime, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A runtime as a person names it."""


class StrictDependency(Dependency, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job that must have ended before, as a person names it."""


class StrictDivide(Divide, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a job may be divided, as a person says it."""


class SubmitRequest(JobRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person asks for. All pods of it start together on one cluster, or none does; on
    several, if it may be divided."""

    pod_sets: Annotated[tuple[StrictPodSet, ...], Meta(min_length=1, max_length=MAX_POD_SETS)] = (
        StrictPodSet(),
    )
    run: StrictRunSpec = StrictRunSpec()
    runtime: StrictRuntime | None = None
    runtime_used: None = None  # for the gateway to fill in
    depends_on: Annotated[tuple[StrictDependency, ...], Meta(max_length=MAX_DEPENDENCIES)] = ()
    divide: StrictDivide | None = None
    part: None = None  # for the resolver to fill in


class SubmitReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.submitted.v1"
):
    """The workload is durably in the log."""

    tenant: str
    id: str
    sequence: int  # of its ``submitted`` event; after purging, of its tombstone
    existing: bool = False  # True: the same request had been accepted before
    state: WorkloadStateName = "queued"


class HelloRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Who is there, and what time is it? Changes nothing."""


class HelloReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.hello.v1"):
    """What somebody who may ask JetStream nothing must know of the bus."""

    now_s: float  # seconds since 1970 by the server's clock, by which all ages are measured
    protocol: int = 1  # one higher where requests or replies of before are not understood any more


class CancelRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Cancel one workload. Repeating it is harmless."""

    id: WorkloadId
    reason: Reason = ""


class ReprioritizeRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Give one workload another priority."""

    id: WorkloadId
    priority: Annotated[int, Meta(ge=-1_000_000, le=1_000_000)]


class ChangeReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.changed.v1"
):
    """A cancel or a new priority was recorded (or nothing was left to do)."""

    tenant: str
    id: str
    state: WorkloadStateName
    note: str = ""  # for people, such as "its executor was asked to stop it"


class HoldRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Hold one workload: it waits until it is released. One that runs is held only if it may be
    ended for that. Repeating it is harmless."""

    id: WorkloadId
    reason: Reason = ""
    evict: bool = False


class ReleaseRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Hold a workload no more. What an operator holds, operators release."""

    id: WorkloadId
    reason: Reason = ""


class EvictRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """End the attempt of a workload, which waits again; it counts against nobody."""

    id: WorkloadId
    reason: Reason = ""


class MoveRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Have a workload go on in another cluster: its attempt is ended once room is kept there."""

    id: WorkloadId
    to: Annotated[str, Meta(max_length=253)] = ""  # "" = any other cluster
    reason: Reason = ""


class CheckpointedRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A workload has written a checkpoint, which its next attempt goes on from."""

    id: WorkloadId
    step: Annotated[int, Meta(ge=0, le=1 << 53)]
    uri: Annotated[str, Meta(min_length=1, max_length=1024)]
    attempt: Annotated[int, Meta(ge=1)] | None = None  # None = the last one


class ProgressedRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """How far a workload is that runs."""

    id: WorkloadId
    step: Annotated[int, Meta(ge=0, le=1 << 53)]
    loss: Loss | None = None
    eta_s: Annotated[float, Meta(ge=0, le=315_360_000)] | None = None  # until it ends
    attempt: Annotated[int, Meta(ge=1)] | None = None  # None = the last one


Who = Annotated[str, Meta(max_length=128)]


class JobOrderRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What an operator wants of one workload of any tenant (verbs ``hold_job``, ``release_job``,
    ``evict_job`` and ``move_job``)."""

    tenant: Named
    id: WorkloadId
    reason: Reason = ""
    who: Who = ""  # as he calls himself: kept in the log beside what was done
    evict: bool = False  # of hold_job: also if it runs
    to: Annotated[str, Meta(max_length=253)] = ""  # of move_job: the cluster; "" = any other


class GetRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One workload; with its story if asked."""

    id: WorkloadId
    story: bool = False


class WorkloadView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One workload as it stands."""

    tenant: str
    id: str
    state: WorkloadStateName
    queue: str = ""
    priority: int = 0
    attempt: int = 0
    evictions: int = 0
    cluster: str = ""
    gpus: float = 0.0  # that its open or last attempt is charged with; waiting: that it asks for
    gpu_models: tuple[str, ...] = ()
    pods: int = 0
    submitted_at_s: float = 0.0
    changed_at_s: float = 0.0  # server's time of its last event
    sequence: int = 0  # of its last event
    cancel_requested: bool = False
    held_by: str = ""  # who holds it; "" = nobody
    checkpoint: Checkpoint | None = None  # the last that was told
    progress: Progress | None = None  # of the last attempt, as it said last
    progress_at_s: float = 0.0  # server's time
    reason: str = ""  # of the last eviction, withdrawal or ending
    set: str = ""
    array_index: int | None = None
    labels: dict[str, str] = {}
    waits_for: tuple[str, ...] = ()  # ids of jobs that must end before it may be placed
    parts: tuple[PartPlace, ...] = ()  # of its open attempt, if that is divided over clusters
    part_of: str = ""  # the divided job that it is a part of

    @property
    def clusters(self) -> tuple[str, ...]:
        """Where it is: of a divided job, where its parts are."""
        return tuple(dict.fromkeys(part.cluster for part in self.parts)) or (
            (self.cluster,) if self.cluster else ()
        )


class RecordedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event with what the stream knows of it."""

    sequence: int
    stored_at_s: float
    event: WorkloadEvent
    void: bool = False  # lost a race: stored, and without effect


class GetReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.workload.v1"
):
    """The answer to ``get``."""

    workload: WorkloadView
    request: JobRequest | None = None  # None: only the tombstone is left
    story: tuple[RecordedEvent, ...] = ()
    figures: tuple[JobFigures, ...] = ()  # what its GPUs do, where that was told of lately


class LogsRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Some of the log of one pod of a workload. Who follows asks again with the last cursor."""

    id: WorkloadId
    pod: Annotated[int, Meta(ge=0, le=4095)] = 0  # in the order of their names
    previous: bool = False  # of the attempt before the last one
    after: Annotated[str, Meta(max_length=96)] = ""  # ``cursor`` of the last reply
    tail: Annotated[int, Meta(ge=0, le=100_000)] | None = None  # at first: the last lines only
    since_s: Annotated[float, Meta(gt=0, le=31_536_000)] | None = None  # at first: so far back
    wait_s: Annotated[float, Meta(ge=0, le=5)] = 0.0  # for something to be written


class LogsReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.logs.v1"):
    """The answer to ``logs``; at most 96 KiB of a log."""

    tenant: str
    id: str
    state: WorkloadStateName
    attempt: int = 0
    cluster: str = ""
    pod: int = 0
    pods: int = 0  # how many the attempt has; 0 = not known
    data: bytes = b""  # whole lines: time (RFC 3339), a blank, text; whatever bytes those are
    cursor: str = ""
    cut: bool = False  # lines before these were left out: too old, or not asked for in time
    kept: bool = False  # this is the end that was kept of a log that is gone
    ended: bool = False  # nothing more will come of this attempt
    note: str = ""  # for people: why there is nothing


class ListRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Workloads of one tenant, newest first. A divided job is one, which names its parts."""

    states: tuple[WorkloadStateName, ...] = ()  # empty = all
    queue: LabelText = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    before: int = 0  # a submission sequence: only older ones; 0 = from the newest
    set: SetName = ""  # only of this set
    labels: Annotated[dict[LabelText, LabelText], Meta(max_length=16)] = {}  # only with all these
    since_s: Annotated[float, Meta(ge=0)] = 0.0  # only those of which something happened since then
    parts: bool = False  # those of divided jobs too, as workloads of their own


class ListReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.workloads.v1"
):
    """The answer to ``list``; ``counts`` covers all of the tenant's workloads still in the log, and
    takes a divided one for one."""

    workloads: tuple[WorkloadView, ...] = ()
    counts: dict[WorkloadStateName, int] = {}
    next_before: int = 0  # 0 = that was all


class EventsRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What has happened to a tenant's workloads, page by page: for who was away for a while."""

    after: Annotated[int, Meta(ge=0)] | None = None  # a sequence; None: only where the log ends
    limit: Annotated[int, Meta(ge=1, le=MOST_EVENTS)] = 100


class EventsReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.events.v1"
):
    """The answer to ``events``, in the log's order. Of a workload that ended long ago the log has
    its end alone; ``get`` with the story has the rest."""

    events: tuple[RecordedEvent, ...] = ()
    next_after: int  # where to go on: nothing of this tenant's is left out before it
    more: bool = False  # there may be more at once


class GpusRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Which GPUs there are, for who wants so many in one pod."""

    gpus: Annotated[int, Meta(ge=1, le=64)] = 1
    queue: LabelText = ""  # what may be had through this queue; "" = whatever there is


class GpuStock(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """GPUs of one model in the fleet. Neither nodes nor other tenants' jobs are told of."""

    model: str  # as nodes report it
    memory_mib: int = 0  # of the smallest of them
    clusters: int = 0  # that have some
    gpus: int = 0  # healthy ones
    open_gpus: int = 0  # of them where new jobs are taken now
    free_gpu_milli: int = 0  # of the open ones
    free_gpus: int = 0  # of the open ones, wholly free
    most_on_a_node: int = 0  # wholly free ones on one open node
    expected_wait_s: float | None = None  # 0 = now; None: no known end makes room
    why_not: str = ""  # why the queue lets nobody have them
    price_least: float | None = None  # of a GPU hour, in whatever money the clusters tell
    price_most: float | None = None


class GpusReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.gpus.v1"):
    """Answered by the resolver from what it knows now; most free ones first. Waits are as if all
    jobs ended as they said and nobody else came."""

    models: tuple[GpuStock, ...] = ()
    waiting: int = 0  # workloads that wait in all, everybody's


class WhyRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Why there, or why not yet. Without an id: the reasons of all that wait."""

    id: WorkloadId | None = None


class QueueStanding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a queue stands: what it has, what it may have. None: nobody set such a bound."""

    queue: str
    used_gpu_milli: int = 0  # of its live placements
    used: dict[str, int] = {}  # the same by resource: cpu, memory, gpu, gpu/<model>
    running: int = 0  # its live placements
    max_running_jobs: int | None = None
    waiting: int = 0  # its workloads that wait
    guarantee_gpu_milli: int | None = None
    deserved_gpu_milli: int | None = None
    capability_gpu_milli: int | None = None
    borrowed_gpu_milli: int = 0  # used beyond what it deserves, or is guaranteed
    priority: int = 0
    held: bool = False


class QueueAccount(QueueStanding, frozen=True, kw_only=True, omit_defaults=True):
    """How a queue stands, and those above it, each with all below it."""

    parents: tuple[QueueStanding, ...] = ()  # the nearest first


class WhyReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.why.v1"):
    """Answered by the resolver from what it knows now."""

    tenant: str
    id: str = ""
    state: WorkloadStateName | None = None
    summary: str  # one line for people
    position: int | None = None  # in the order of all that wait, 1 = next
    waiting: int = 0  # workloads that wait in all
    queue_position: int | None = None  # among those of its queue, 1 = next
    account: QueueAccount | None = None  # of its queue
    accounts: tuple[QueueStanding, ...] = ()  # without an id: of all queues open to the tenant
    first_free_s: float | None = None  # about when there may be room, if jobs end as they said
    reservation: Reservation | None = None  # room that is kept for it
    held_back: int = 0  # jobs before it for which room is kept that it would fit in
    filtered: dict[str, str] = {}  # cluster -> why it is out, for one that waits
    reasons: dict[str, int] = {}  # reason -> clusters (one workload) or workloads (all)
    hints: tuple[str, ...] = ()  # what would help
    choice: Choice | None = None  # for one that is placed
    decision: int = 0
    decided_at_s: float = 0.0
    figures: tuple[JobFigures, ...] = ()  # what its GPUs do, where that was told of lately


class DryRunReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.dry_run.v1"
):
    """Where a request would go if it were submitted now, ahead of nothing and nobody."""

    placed: bool
    summary: str
    ranking: tuple[RankedCluster, ...] = ()
    filtered: dict[str, str] = {}
    choice: Choice | None = None


class CordonRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Cordon (verb ``cordon``) a cluster or one node of it, or take that and a drain back
    (verb ``uncordon``)."""

    cluster: Named
    node: Named | None = None
    reason: Reason = ""
    who: Who = ""  # as whoever asks calls himself


class DrainRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Cordon a cluster or one node of it (verb ``drain``) and move away what runs there. Undone by
    ``uncordon``; ``cordon`` ends the drain and keeps the cordon."""

    cluster: Named
    node: Named | None = None
    reason: Reason = ""
    who: Who = ""
    by_s: float | None = None  # seconds since 1970, in the future; None = as room can be had


class RebalanceRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """How rebalancing is supposed to be set, for all queues. Operators may ask that alone."""

    whose: Literal["queue", "all"] = "all"  # as ``rebalances`` of a queue
    moves: Annotated[int, Meta(ge=1, le=64)] | None = None  # at most, for one job; None = as is set
    after_s: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    # For so long a job has to have waited; None = as is set.


class AddedCluster(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A cluster that does not exist yet: empty, open, and idle. Either like another one, or so
    many nodes of a GPU model, which look like the fleet's largest of that model, if it has one."""

    name: Named
    like: Annotated[str, Meta(max_length=253)] = ""  # a cluster to copy, nodes and labels
    model: Annotated[str, Meta(max_length=316)] = ""
    nodes: Annotated[int, Meta(ge=1, le=10_000)] = 1
    gpus_a_node: Annotated[int, Meta(ge=1, le=64)] | None = None  # None = as known; else 8
    gpu_memory_mib: Annotated[int, Meta(ge=1, le=1 << 24)] | None = (
        None  # None = as known; else 80 GiB
    )


class SupposedPlace(QueuePlace, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A place of a queue as a person supposes it."""


class SupposedAmounts(QueueAmounts, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a queue has of one resource as a person supposes it."""


class SupposedAllows(QueueAllows, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What requests of a queue may ask for as a person supposes it."""


class SupposedDefaults(JobDefaults, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds for a queue's jobs that do not say it, as a person supposes it."""


class SupposedQueue(
    QueueSetting,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag=False,
):
    """A queue as a person supposes it: all of it, as it would be set."""

    resources: dict[str, SupposedAmounts] = {}  # type: ignore[assignment]  # noqa: RUF012
    places: dict[str, SupposedPlace] = {}  # type: ignore[assignment]  # noqa: RUF012
    allows: SupposedAllows = SupposedAllows()
    defaults: SupposedDefaults = SupposedDefaults()


class WhatifRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What would move if one thing were otherwise: exactly one field is given. Nothing changes."""

    submit: SubmitRequest | None = None
    cordon: CordonRequest | None = None
    uncordon: CordonRequest | None = None
    add_cluster: AddedCluster | None = None
    queue: SupposedQueue | None = None
    drain: DrainRequest | None = None
    preempt: WorkloadId | None = None  # of the asker's tenant: who would be ended for it
    preempt_for: SubmitRequest | None = None  # the same for a job that is not submitted
    rebalance: RebalanceRequest | None = None


class Ended(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt that would be ended."""

    tenant: str
    id: str
    queue: str
    cluster: str
    gpus: float = 0.0
    lost_gpu_s: float = 0.0  # what that would cost
    why: str = ""
    to: str = ""  # where room would be kept for it; "" = it would wait
    for_id: str = ""  # who would begin, as <tenant>/<id>; "" = nobody but itself
    nodes: tuple[str, ...] = ()  # where its pods are, if that matters
    to_nodes: tuple[str, ...] = ()  # where they would be


class Rebalanced(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job that waits, and whether others would be moved for it."""

    tenant: str
    id: str
    queue: str
    gpus: float = 0.0
    cluster: str = ""  # where it would begin; "" = nothing would be moved
    nodes: tuple[str, ...] = ()
    moves: int = 0  # jobs
    waited_s: float = 0.0
    saves_s: float = 0.0  # of waiting
    gain_gpu_s: float = 0.0
    cost_gpu_s: float = 0.0
    why_not: str = ""  # nothing would be moved for it


class Moved(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One workload that a change would move."""

    tenant: str
    id: str
    queue: str
    gpus: float = 0.0  # GPUs' worth that it asks for in all
    was: str = ""  # cluster; "" = it waits
    would: str = ""  # cluster; "" = it would wait


class WhatifReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.whatif.v1"
):
    """What would move, by the very functions that decide, on a copy of what the resolver knows.
    Lists are cut to some hundred entries, and to the asker's own tenant; ``counts`` are of all."""

    change: str  # in words
    summary: str  # one line for people
    placed: tuple[Moved, ...] = ()  # wait now, and would be placed
    waits: tuple[Moved, ...] = ()  # about to be placed now, and would wait
    elsewhere: tuple[Moved, ...] = ()  # placed; what runs stays, but anew it would go elsewhere
    stranded: tuple[
        Moved, ...
    ] = ()  # wait for room, and no cluster would be left that could have it
    counts: dict[str, int] = {}  # of each list
    hidden: int = 0  # workloads of other tenants in those counts
    capped: tuple[str, ...] = ()  # what was not looked at, for it would have taken too long
    job: WhyReply | None = None  # of the submitted one
    ended: tuple[Ended, ...] = ()  # would be ended or moved, the cheapest first
    lost_gpu_s: float = 0.0  # what that would cost in all
    rebalances: tuple[Rebalanced, ...] = ()  # for whom: those that would begin, then the others


class LostRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Declare a cluster lost (verb ``lost``), or found again (verb ``found``)."""

    cluster: Named
    reason: Annotated[str, Meta(min_length=1, max_length=1024)]


class CordonsRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Which cordons there are; of one cluster, or of all."""

    cluster: Annotated[str, Meta(max_length=253)] = ""


class StillThere(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A workload that runs in a cordoned place."""

    tenant: str
    id: str
    gpus: float = 0.0
    since_s: float = 0.0  # server's time of its claim
    why: str = ""  # of a drain: why it is still there, or where it goes


class CordonView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One cordon, and how its drain stands."""

    cluster: str
    node: str | None = None
    drain: bool = False
    drain_by_s: float | None = None
    reason: str = ""
    set_by: str = ""
    set_at_s: float = 0.0
    matches: bool = True  # False: nothing of that name is known
    nearest: str = ""  # then, what may have been meant
    jobs: int = 0  # of ours that hold room there
    gpus: float = 0.0
    still_there: tuple[StillThere, ...] = ()  # the first of them


class CordonsReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.cordons.v1"
):
    """The answer to ``cordons``."""

    cordons: tuple[CordonView, ...] = ()


class OperatorReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="api.done.v1"
):
    """What an operator asked for is set, durably."""

    sequence: int
    note: str = ""


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
RESOLVER_OPERATOR_VERBS = ("whatif", "cordons")  # of all tenants' workloads
USAGE_VERBS = ("report", "trends")  # of a tenant's jobs, and for operators of all jobs
__all__ = ["ApiReply", "Decision", "QueueSetting", "RuntimeSetting"]

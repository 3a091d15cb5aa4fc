"""Messages between agents of worker clusters and the door.

Subjects are ``berth.agent.<cluster>.<verb>``. NATS permissions enforce the cluster in the subject.
``berth.assign.<cluster>.news`` carries a Nudge, a wake-up message.

An agent reads no stream. Reads are levels, not edges: events behind a cursor, or all that is open.
Repeating a write is harmless. ``log`` names the stream incarnation of a cursor, and after a change
of incarnation the agent reads everything again.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from berthmaster.lib.messages.api import Refusal, WorkloadStateName
from berthmaster.lib.messages.fleet import (
    ClusterAlive,
    ClusterProfile,
    CopyReport,
    FleetFact,
    NodeGone,
    NodeReport,
    QueueReport,
)
from berthmaster.lib.messages.placement import MAIN_CELL, PodBinding, Target
from berthmaster.lib.messages.workload import (
    MAX_PODS,
    Admitted,
    Cancelled,
    CancelRequested,
    Checkpoint,
    Checkpointed,
    Claimed,
    Committed,
    Evicted,
    EvictionRequested,
    Failed,
    Fault,
    JobRequest,
    Placed,
    Progressed,
    Resized,
    ResizeRequested,
    Running,
    Succeeded,
)

PROTOCOL = 1
MAX_TOLD = 200  # events of one request
MAX_REPORTED = 200  # facts of one request
MAX_AGENT_BYTES = 512 * 1024  # of one request
MAX_POLL_S = 15.0
MAX_KEEP_S = 30 * 86_400.0

Sequence = Annotated[int, Meta(ge=0, le=1 << 62)]
Seconds = Annotated[float, Meta(ge=0, le=MAX_POLL_S)]
LogName = Annotated[str, Meta(max_length=128)]
MAX_RECEIPT_CHARS = 256 * 1024
Receipt = Annotated[str, Meta(max_length=MAX_RECEIPT_CHARS)]
Token = Annotated[str, Meta(max_length=512)]
DrawnName = Annotated[str, Meta(min_length=1, max_length=64)]
ExecutorEvent = (
    Claimed
    | Admitted
    | Running
    | Resized
    | Checkpointed
    | Progressed
    | Evicted
    | Succeeded
    | Failed
    | Cancelled
)
HintEvent = (
    Placed | CancelRequested | EvictionRequested | ResizeRequested | Committed | Evicted | Failed
)
AgentFact = ClusterAlive | ClusterProfile | NodeReport | NodeGone | QueueReport | CopyReport
FactKind = Literal["alive", "profile", "node", "queue", "copy", "score", "membership"]
LeaseName = Literal["executor", "inventory", "claims"]
AgentService = Literal["executor", "inventory", "telemetry", "claims", "emulator", "agent"]


class GreetRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ask for the server's time and the limits of the door."""


class GreetReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.hello.v1"
):
    """Limits of the door."""

    now_s: float  # server's clock, in seconds since 1970
    protocol: int = PROTOCOL  # version of the protocol
    max_events: int = MAX_TOLD  # maximum number of events of one request
    max_facts: int = MAX_REPORTED  # maximum number of facts of one request
    max_bytes: int = MAX_AGENT_BYTES  # maximum size of one request in bytes
    max_poll_s: float = MAX_POLL_S  # maximum ``wait_s`` of a request
    same_as: str = ""  # cluster that reported the same uid earlier; "" = unset


class TakeRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Fetch events behind a cursor for this cluster's executor, and wait if none exist."""

    after: Sequence = 0  # cursor of the last reply; 0 = everything that is open
    log: LogName = ""  # incarnation of the stream that the cursor belongs to
    wait_s: Seconds = 0.0  # seconds to wait for an event
    page: Annotated[str, Meta(max_length=1200)] = ""
    # page: ``next`` of the last reply, if a list continues; "" = unset


class Hint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One stored event. Later events of the workload may exist."""

    sequence: int  # stream sequence of the event
    event: HintEvent  # event as written
    held: bool = False  # in a list: True = the placement is claimed
    receipt: str = ""
    # receipt: placement signed by the door, to store with the job object; recovers the attempt if a
    # damaged log loses its placement


class TakeReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.taken.v1"):
    """Events since the cursor, or a list of all that is open in this cluster."""

    cursor: int  # cursor for the next request
    log: str = ""  # incarnation of the stream that the cursor belongs to
    reset: bool = False  # True: the hints list everything open here; anything else is not open
    next: str = ""  # page of the list to request next; "" = the end
    hints: tuple[Hint, ...] = ()  # events


class TellRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Store events, each guarded by its ``after``."""

    events: Annotated[tuple[ExecutorEvent, ...], Meta(min_length=1, max_length=MAX_TOLD)]
    # events: events to store
    again: bool = False  # True: a repeated request, after an unknown result


class TellOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result for one event. ``behind``: nothing was stored, since the door had not read the log so
    far.
    """

    result: Literal["stored", "refused", "unknown", "behind"]  # stored, refused, unknown or behind
    sequence: int = 0  # stream sequence of the event; 0 = not stored
    why: str = ""  # cause, for display; "" = unset


class TellReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.told.v1"):
    """Results in the order of the events."""

    outcomes: tuple[TellOutcome, ...]  # result of each event
    position: int = 0
    # position: sequence up to which the door had read the log; after a refusal, read the workload
    # at least so far


class StoryRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Read one workload from a view of the log no older than ``after``."""

    tenant: Token
    id: Token
    after: Sequence = 0  # minimum sequence of the view; 0 = any
    receipt: Receipt = ""  # receipt of the placement whose pods the executor holds; "" = unset
    executor: Annotated[str, Meta(max_length=300)] = ""  # executor that holds the pods


class OwnWorkload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A workload placed in this cluster, in its state at ``sequence``."""

    tenant: str
    id: str
    state: WorkloadStateName
    sequence: int  # stream sequence of the last event, the ``after`` of the next
    attempt: int
    cluster: str
    request: JobRequest | None = None
    digest: str = ""
    cell: str = MAIN_CELL
    priority: int = 0
    submitted_at_s: float = 0.0  # server's times
    placed_at_s: float = 0.0
    claimed_at_s: float = 0.0
    running_at_s: float = 0.0
    changed_at_s: float = 0.0
    evictions: int = 0
    failures: int = 0  # failures of the job that led to a retry
    last_fault: Fault = ""  # cause of the last eviction; "" = unset
    repeats: int = 0  # number of consecutive evictions by ``last_fault``
    ran_s: float = 0.0  # run time of past attempts that counts toward max_run_s
    checkpoint: Checkpoint | None = None  # last reported checkpoint; null = unset
    pods: tuple[PodBinding, ...] = ()  # node and GPUs of each pod
    target: Target = Target()  # how to create the job object
    executor: str = ""
    cancel_requested: bool = False  # True: a cancel is under way
    leaving: str = ""  # why the attempt is being evicted; "" = stays
    resizing: tuple[PodBinding, ...] = ()
    # resizing: all pods after a pending resize; empty = none is pending
    committed: bool = False  # True: pods of the divided gang may start


class StoryReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.story.v1"
):
    """The workload, or None if no attempt is open in this cluster."""

    workload: OwnWorkload | None = None  # state of the workload; null = not open in this cluster
    failed: str = ""
    # failed: why the events cannot be read, so that the executor must not act; "" = readable
    receipt: str = ""  # receipt of the placement, as in Hint
    why: str = ""  # why the executor's attempt is not the log's, for display; "" = unset
    now_s: float = 0.0
    # now_s: server's time of the reply, from which the executor computes ages; 0 = not sent


class FactsRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Read this cluster's facts behind a cursor, and wait if none exist."""

    kinds: Annotated[tuple[FactKind, ...], Meta(max_length=7)] = ()  # only these kinds; empty = all
    after: Sequence = 0  # cursor of the last reply; 0 = all facts
    log: LogName = ""  # incarnation of the stream that the cursor belongs to
    wait_s: Seconds = 0.0  # seconds to wait for a fact


class OwnFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One stored fact."""

    sequence: int  # stream sequence of the fact
    stored_at_s: float  # server's time of storing
    fact: FleetFact  # fact as written


class FactsReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.facts.v1"
):
    """Facts in the order of storing."""

    cursor: int  # cursor for the next request
    log: str = ""  # incarnation of the stream that the cursor belongs to
    reset: bool = False  # True: the cursor was invalid, and the reply starts from the first fact
    more: bool = False  # True: more facts exist
    epoch: int = 0  # newest epoch of this cluster's writers
    facts: tuple[OwnFact, ...] = ()  # facts


class ReportedFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fact to store. Its subject follows from its content."""

    fact: AgentFact  # fact to store
    keep_s: Annotated[float, Meta(gt=0, le=MAX_KEEP_S)] | None = None
    # keep_s: seconds until the fact expires; null = never


class ReportRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Store facts of this cluster."""

    facts: Annotated[tuple[ReportedFact, ...], Meta(min_length=1, max_length=MAX_REPORTED)]
    # facts: facts to store


class ReportOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result for one fact. After ``forbidden``, ``too_large`` and ``too_many`` a retry is
    pointless.
    """

    result: Literal["stored", "forbidden", "too_large", "too_many", "unavailable"]
    # result: stored, or the class of the error
    sequence: int = 0  # stream sequence of the fact; 0 = not stored
    why: str = ""  # cause, for display; "" = unset


class ReportReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.reported.v1"
):
    """Results in the order of the facts."""

    outcomes: tuple[ReportOutcome, ...]  # result of each fact


class LeaseRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Read, take, renew or release one of this cluster's leases."""

    name: LeaseName  # name of the lease
    act: Literal["read", "write", "release"] = "read"  # operation
    version: Sequence = 0  # version that was read; 0 = unset
    holder: Annotated[str, Meta(max_length=300)] = ""  # future holder
    ttl_s: Annotated[float, Meta(gt=0, le=3600)] = 1.0
    # ttl_s: seconds after the last renewal until another may take the lease


class LeaseReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.lease.v1"
):
    """State of the lease. ``outdated``: another holder wrote first, and nothing was written."""

    version: int = 0  # version of the lease; 0 = none exists
    holder: str = ""  # current holder; "" = unset
    ttl_s: float = 0.0  # seconds after the last renewal until another may take the lease
    epoch: int = 0  # epoch of the holder's process run
    outdated: bool = False  # True: another holder wrote first


class DeadRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Store a message that an agent could not handle."""

    service: AgentService  # service that failed
    subject: Annotated[str, Meta(max_length=2000)]  # subject of the message
    reason: Annotated[str, Meta(max_length=8000)]  # error
    workload: Annotated[str, Meta(max_length=1200)] = ""
    # workload: "<tenant>/<id>" of the workload; "" = unset
    body: bytes = b""  # message, shortened


class DeadReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.dead.v1"):
    """Result of a request to store a dead letter."""

    kept: bool  # True: stored


class PlacementReceipt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Content of the door's signed receipt for a placement. An executor stores the receipt with the
    job object, unread.
    """

    tenant: str
    id: str
    cluster: str
    attempt: int
    request: JobRequest
    digest: str
    pods: tuple[PodBinding, ...]  # node and GPUs of each pod
    decision: int
    sequence: int  # stream sequence of ``placed``
    submitted_sequence: int  # stream sequence of ``submitted``
    log: str = ""  # incarnation of the stream
    cell: str = MAIN_CELL
    priority: int = 0
    evictions: int = 0
    submitted_at_s: float = 0.0
    placed_at_s: float = 0.0
    target: Target = Target()  # how to create the job object


class HeldAttempt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt whose object an executor holds, or is claiming, with its receipt."""

    tenant: Token
    id: Token
    attempt: Annotated[int, Meta(ge=1)]
    receipt: Receipt = ""  # receipt of the placement; "" = unset
    executor: Annotated[str, Meta(max_length=300)] = ""  # executor that holds the attempt
    pods: Annotated[tuple[PodBinding, ...], Meta(max_length=MAX_PODS)] = ()
    # pods: pods of an elastic job that run or are being created


class HoldingsRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One page of the attempts that an executor holds, as requested by `berth recover` (verb
    ``holdings``).
    """

    inquiry: DrawnName  # id of the inquiry, from the Nudge
    listing: DrawnName  # random id of this listing; pages of two listings do not combine
    page: Annotated[int, Meta(ge=0, le=1 << 31)]  # number of the page, from 0
    last: bool  # True: the last page
    held: Annotated[tuple[HeldAttempt, ...], Meta(max_length=MAX_TOLD)] = ()  # attempts


class HoldingsReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.holdings.v1"
):
    """The page was passed on."""


class HeldPage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="held.v1"):
    """One page of the attempts that a cluster holds, with the proofs of their receipts.

    Subject: ``berth.held.<cluster>``
    """

    cluster: str
    inquiry: str  # id of the inquiry
    listing: str  # random id of the listing
    page: int  # number of the page, from 0
    last: bool  # True: the last page
    held: tuple["ProvenAttempt", ...] = ()  # attempts


class ProvenAttempt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt that a cluster holds."""

    tenant: str
    id: str
    attempt: int
    receipt: PlacementReceipt | None = None
    # receipt: content of the receipt signed by the door; null = no valid receipt
    executor: str = ""  # executor that holds the attempt
    pods: tuple[PodBinding, ...] = ()  # pods of an elastic job that run or are being created


class Nudge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.nudge.v1"):
    """A wake-up message: the log has events for this cluster, to fetch if the cursor is before
    them.

    Subject: ``berth.assign.<cluster>.news``; from `berth recover` to the door
    ``berth.inquiry.<cluster>``
    """

    sequence: int  # stream sequence of the newest event
    inquiry: str = ""
    # inquiry: id of an inquiry of `berth recover`, to answer with the verb ``holdings``; "" = unset


LogCursor = Annotated[str, Meta(max_length=64)]  # how far a log was read, see lib/jobs/lines.py
MAX_LOG_BYTES = 96 * 1024  # of one answer: a third more in JSON, and still below a tenant's limit
MAX_LOG_ENDS_TOLD = 64  # ends in one request
MAX_LOG_ENDS = 8  # pods of an attempt of which the end is kept
MAX_LOG_WAIT_S = 5.0


class LogAsk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.log_ask.v1"):
    """A request of the gateway for a part of a pod's log, answered once.

    Subject: ``berth.assign.<cluster>.logs``
    """

    ask: str  # random id of the request, to repeat in the answer
    reader: str  # gateway that sent the request
    tenant: str
    id: str
    attempt: int
    pod: int = 0  # index of the pod in the order of names
    after: LogCursor = ""  # cursor of the last answer; "" = from the start
    tail: int | None = None  # only this number of last lines, from the start; null = all
    since_s: float | None = None  # only lines of the last seconds, from the start; null = all
    max_bytes: int = MAX_LOG_BYTES  # maximum size of the answer in bytes
    wait_s: float = 0.0  # seconds to wait for new lines


class LogChunk(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.log_chunk.v1"
):
    """A part of a pod's log. The door forwards the part to the reader unread.

    Subject: ``berth.agent.<cluster>.logs``, passed on as ``berth.logs.<cluster>.<reader>``
    """

    ask: str  # id of the request
    reader: str  # gateway that sent the request
    data: bytes = b""  # whole lines as the kubelet writes: time, a blank, text
    cursor: LogCursor = ""  # cursor for the next request
    pods: Annotated[int, Meta(ge=0, le=MAX_PODS)] = 0  # number of pods of the attempt
    ended: bool = False  # True: the log is complete
    why: Annotated[str, Meta(max_length=2048)] = ""
    # why: cause of an empty part, for display; "" = unset


class PodLogEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of the log of one pod, read before its removal."""

    tenant: Token
    id: Token
    attempt: Annotated[int, Meta(ge=1, le=1 << 31)]
    pod: Annotated[int, Meta(ge=0, le=MAX_LOG_ENDS - 1)] = 0  # index of the pod
    pods: Annotated[int, Meta(ge=1, le=MAX_PODS)] = 1  # number of pods of the attempt
    data: Annotated[bytes, Meta(max_length=MAX_LOG_BYTES)] = b""  # whole lines: time, a blank, text
    cut: bool = False  # True: earlier lines are missing


class LogEndRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Store the ends of some pods' logs for a day."""

    ends: Annotated[tuple[PodLogEnd, ...], Meta(min_length=1, max_length=MAX_LOG_ENDS_TOLD)]
    # ends: ends of logs
    after: Sequence = 0  # minimum sequence to read the log to; 0 = any


class LogEndReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.log_end.v1"
):
    """Result for all ends. Nothing is stored for an attempt that was never in the
    sender's cluster.
    """

    kept: bool  # True: all stored


MAX_HUB_ASKED = 256


class HubPods(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Pods of this cluster sent by a hub's Kueue, by their labels."""

    namespace: Annotated[str, Meta(max_length=63)]
    workload: Annotated[str, Meta(max_length=253)] = ""
    # workload: name of the Kueue Workload, equal on the hub; "" = unknown
    job: Annotated[str, Meta(max_length=253)] = ""  # Job that owns the pods; "" = another owner


class HubWorkRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Find the workloads of pods. Only workloads placed in this cluster are found."""

    asked: Annotated[tuple[HubPods, ...], Meta(max_length=MAX_HUB_ASKED)]  # pods to find
    after: Sequence = 0  # minimum sequence to read the log to; 0 = any


class HubWork(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """An open workload placed in this cluster by a hub."""

    tenant: str
    id: str
    attempt: int
    sequence: int  # stream sequence of the last event
    pod_sets: tuple[str, ...] = ()  # names of the pod sets in order


class HubWorkReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.hub_work.v1"
):
    """Workloads in the order of the request. None: no workload, or not yet."""

    found: tuple[HubWork | None, ...] = ()  # workload of each entry


DOOR_VERBS = (  # those that are answered
    *("hello", "take", "tell", "story", "facts", "report", "lease", "dead", "log_end", "hub_work"),
    "holdings",
)

DoorReply = (
    GreetReply
    | TakeReply
    | TellReply
    | StoryReply
    | FactsReply
    | ReportReply
    | LeaseReply
    | DeadReply
    | LogEndReply
    | HubWorkReply
    | HoldingsReply
    | Refusal
)

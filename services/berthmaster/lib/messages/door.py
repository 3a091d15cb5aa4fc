"""What agents of worker clusters and the door say to each other.

Subjects: ``berth.agent.<cluster>.<verb>``; the cluster is part of the subject, so NATS permissions
enforce it. ``berth.assign.<cluster>.news`` carries a Nudge: something may be worth taking.

An agent has no stream and no consumer. What it must know it takes, as a level and not as an edge:
behind a cursor, or all that is open; what it has to say it tells, and telling it twice is harmless.
``log`` names the making of a stream whose sequences a cursor means: another one, and all is told
anew.
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
    """Who is there, and what time is it?"""


class GreetReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.hello.v1"
):
    """The door is open."""

    now_s: float  # the server's clock
    protocol: int = PROTOCOL
    max_events: int = MAX_TOLD  # of one request
    max_facts: int = MAX_REPORTED
    max_bytes: int = MAX_AGENT_BYTES
    max_poll_s: float = MAX_POLL_S
    same_as: str = ""
    # Another cluster whose profile has the same uid and had it first; "" = there is none.


class TakeRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What must this cluster's executor know beyond a cursor? Waits for it if there is nothing."""

    after: Sequence = 0  # the cursor of the last answer; 0: all that is open
    log: LogName = ""
    wait_s: Seconds = 0.0
    page: Annotated[str, Meta(max_length=1200)] = ""  # of a list that goes on: ``next`` of before


class Hint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One stored event, which need not be its workload's last any more."""

    sequence: int
    event: HintEvent
    held: bool = False  # of a list: its placement was claimed by now
    receipt: str = ""  # of a placement, signed by the door: to be kept with the job object. If a
    # damaged log loses the placement, it brings the attempt back.


class TakeReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.taken.v1"):
    """What happened since, or a list of all that is open in this cluster."""

    cursor: int
    log: str = ""
    reset: bool = False  # the hints are a list of what is open; what is not in it is not open here
    next: str = ""  # the list goes on: ask for this page
    hints: tuple[Hint, ...] = ()


class TellRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Store these events, each behind its guard ``after``."""

    events: Annotated[tuple[ExecutorEvent, ...], Meta(min_length=1, max_length=MAX_TOLD)]
    again: bool = False  # they were told before, and nobody knows what came of that


class TellOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one event. ``behind``: nothing was stored, the door had not read so far."""

    result: Literal["stored", "refused", "unknown", "behind"]
    sequence: int = 0  # of the event
    why: str = ""


class TellReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.told.v1"):
    """One outcome an event, in their order."""

    outcomes: tuple[TellOutcome, ...]
    position: int = 0  # how far the log had been read: whoever was refused reads no older story


class StoryRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How does one workload stand, by a view of the log that is not older than ``after``?"""

    tenant: Token
    id: Token
    after: Sequence = 0
    receipt: Receipt = ""  # of the placement whose pods the asker holds, as it got it
    executor: Annotated[str, Meta(max_length=300)] = ""  # who holds them


class OwnWorkload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A workload that is placed in this cluster, as all events up to ``sequence`` add up."""

    tenant: str
    id: str
    state: WorkloadStateName
    sequence: int  # the guard of the next event
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
    failures: int = 0  # of its own
    last_fault: Fault = ""
    repeats: int = 0  # attempts in a row that were ended by that
    ran_s: float = 0.0  # of attempts that are over, what max_run_s counts
    checkpoint: Checkpoint | None = None  # the last that was told
    pods: tuple[PodBinding, ...] = ()
    target: Target = Target()
    executor: str = ""
    cancel_requested: bool = False
    leaving: str = ""  # why the attempt is to make room for another; "" = it is not
    resizing: tuple[PodBinding, ...] = ()  # pods that it shall have; () = what it has
    committed: bool = False  # of a part of a gang: its pods may start


class StoryReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.story.v1"
):
    """None: it is not open in this cluster, whatever else it may be."""

    workload: OwnWorkload | None = None
    failed: str = ""  # its events cannot be read: nothing must be done about it
    receipt: str = ""  # of its placement, as in Hint
    why: str = ""  # what the asker holds is not the log's, for people
    now_s: float = 0.0  # server's time of the answer, with a workload: by it the asker knows how
    # long ago that one's times are, whatever its own clock says. 0 = not told


class FactsRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """This cluster's facts of some kinds beyond a cursor. Waits for one if there are none."""

    kinds: Annotated[tuple[FactKind, ...], Meta(max_length=7)] = ()  # empty = all
    after: Sequence = 0
    log: LogName = ""
    wait_s: Seconds = 0.0


class OwnFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fact as it is stored."""

    sequence: int
    stored_at_s: float
    fact: FleetFact


class FactsReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.facts.v1"
):
    """Facts in the order in which they were stored."""

    cursor: int
    log: str = ""
    reset: bool = False  # the cursor was of no use: this is the beginning of all of them
    more: bool = False
    epoch: int = 0  # the newest of this cluster's writers
    facts: tuple[OwnFact, ...] = ()


class ReportedFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fact to be stored; its subject follows from it."""

    fact: AgentFact
    keep_s: Annotated[float, Meta(gt=0, le=MAX_KEEP_S)] | None = None  # None = for good


class ReportRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Store these facts of this cluster."""

    facts: Annotated[tuple[ReportedFact, ...], Meta(min_length=1, max_length=MAX_REPORTED)]


class ReportOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one fact. ``forbidden``, ``too_large`` and ``too_many``: repeating is
    pointless."""

    result: Literal["stored", "forbidden", "too_large", "too_many", "unavailable"]
    sequence: int = 0
    why: str = ""


class ReportReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.reported.v1"
):
    """One outcome a fact, in their order."""

    outcomes: tuple[ReportOutcome, ...]


class LeaseRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Read one of this cluster's leases, take it, renew it or give it back."""

    name: LeaseName
    act: Literal["read", "write", "release"] = "read"
    version: Sequence = 0  # what was read; 0 = none
    holder: Annotated[str, Meta(max_length=300)] = ""
    ttl_s: Annotated[float, Meta(gt=0, le=3600)] = 1.0


class LeaseReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.lease.v1"
):
    """How the lease stands now. ``outdated``: somebody else wrote first, nothing was written."""

    version: int = 0  # 0 = there is none
    holder: str = ""  # "" = nobody's
    ttl_s: float = 0.0
    epoch: int = 0
    outdated: bool = False


class DeadRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Keep a message that an agent could not handle."""

    service: AgentService
    subject: Annotated[str, Meta(max_length=2000)]
    reason: Annotated[str, Meta(max_length=8000)]
    workload: Annotated[str, Meta(max_length=1200)] = ""
    body: bytes = b""


class DeadReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.dead.v1"):
    """Whether it is kept."""

    kept: bool


class PlacementReceipt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the door signs of a placement. An executor keeps it with the job object, opaque."""

    tenant: str
    id: str
    cluster: str
    attempt: int
    request: JobRequest
    digest: str
    pods: tuple[PodBinding, ...]
    decision: int
    sequence: int  # of ``placed``
    submitted_sequence: int
    log: str = ""  # incarnation
    cell: str = MAIN_CELL
    priority: int = 0
    evictions: int = 0
    submitted_at_s: float = 0.0
    placed_at_s: float = 0.0
    target: Target = Target()


class HeldAttempt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt whose object an executor holds, or whose claim is under way, and its receipt."""

    tenant: Token
    id: Token
    attempt: Annotated[int, Meta(ge=1)]
    receipt: Receipt = ""
    executor: Annotated[str, Meta(max_length=300)] = ""  # who holds it
    # Of a job that grows and shrinks: the pods that it has by now, and those that are being made.
    pods: Annotated[tuple[PodBinding, ...], Meta(max_length=MAX_PODS)] = ()


class HoldingsRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Verb ``holdings``: one page of what an executor holds, as `berth recover` has asked."""

    inquiry: DrawnName  # as the Nudge had it
    listing: DrawnName  # another one each time that what is held is listed: an executor that was
    # started anew lists in another order, so that pages of two listings do not add up
    page: Annotated[int, Meta(ge=0, le=1 << 31)]
    last: bool  # no page follows
    held: Annotated[tuple[HeldAttempt, ...], Meta(max_length=MAX_TOLD)] = ()


class HoldingsReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.holdings.v1"
):
    """The page was passed on."""


class HeldPage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="held.v1"):
    """One page of what a cluster holds, with what its receipts prove.

    Subject: ``berth.held.<cluster>``
    """

    cluster: str
    inquiry: str
    listing: str
    page: int
    last: bool
    held: tuple["ProvenAttempt", ...] = ()


class ProvenAttempt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt that a cluster holds."""

    tenant: str
    id: str
    attempt: int
    receipt: PlacementReceipt | None = None  # None: there is none that the door signed for it
    executor: str = ""  # who holds it
    pods: tuple[PodBinding, ...] = ()  # as HeldAttempt has them


class Nudge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.nudge.v1"):
    """The log holds something for this cluster: take it, if the cursor is before it.

    Subject: ``berth.assign.<cluster>.news``; from `berth recover` to the door
    ``berth.inquiry.<cluster>``
    """

    sequence: int
    inquiry: str = ""  # of `berth recover`: report with the verb ``holdings`` what is held


LogCursor = Annotated[str, Meta(max_length=64)]  # how far a log was read, see lib/jobs/lines.py
MAX_LOG_BYTES = 96 * 1024  # of one answer: a third more in JSON, and still below a tenant's limit
MAX_LOG_ENDS_TOLD = 64  # ends in one request
MAX_LOG_ENDS = 8  # pods of an attempt of which the end is kept
MAX_LOG_WAIT_S = 5.0


class LogAsk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.log_ask.v1"):
    """The gateway wants some of a pod's log: one answer, and no more until it asks again.

    Subject: ``berth.assign.<cluster>.logs``
    """

    ask: str  # drawn at random: who answers has heard it
    reader: str  # the gateway that asks
    tenant: str
    id: str
    attempt: int
    pod: int = 0  # in the order of their names
    after: LogCursor = ""
    tail: int | None = None  # of a log from its beginning: the last lines only
    since_s: float | None = None  # the same: what was written in the last seconds
    max_bytes: int = MAX_LOG_BYTES
    wait_s: float = 0.0  # for something to be written


class LogChunk(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.log_chunk.v1"
):
    """Some of a pod's log. The door passes it on to who asked and looks at nothing else of it.

    Subject: ``berth.agent.<cluster>.logs``, passed on as ``berth.logs.<cluster>.<reader>``
    """

    ask: str
    reader: str
    data: bytes = b""  # whole lines as the kubelet writes them: time, a blank, text
    cursor: LogCursor = ""  # for the next ask
    pods: Annotated[int, Meta(ge=0, le=MAX_PODS)] = 0  # how many the attempt has
    ended: bool = False  # nothing more will be written
    why: Annotated[str, Meta(max_length=2048)] = ""  # why there is nothing to read


class PodLogEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of the log of one pod that is about to be removed."""

    tenant: Token
    id: Token
    attempt: Annotated[int, Meta(ge=1, le=1 << 31)]
    pod: Annotated[int, Meta(ge=0, le=MAX_LOG_ENDS - 1)] = 0
    pods: Annotated[int, Meta(ge=1, le=MAX_PODS)] = 1  # how many the attempt has
    data: Annotated[bytes, Meta(max_length=MAX_LOG_BYTES)] = b""
    cut: bool = False  # there was more before


class LogEndRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Keep the ends of some pods' logs for a day."""

    ends: Annotated[tuple[PodLogEnd, ...], Meta(min_length=1, max_length=MAX_LOG_ENDS_TOLD)]
    after: Sequence = 0  # of the log: it is read so far at the least


class LogEndReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.log_end.v1"
):
    """Whether all of them are kept. Of an attempt that was never in the asker's cluster none is."""

    kept: bool


MAX_HUB_ASKED = 256


class HubPods(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Pods of this cluster that a hub's Kueue has sent, by what they say of themselves."""

    namespace: Annotated[str, Meta(max_length=63)]
    workload: Annotated[str, Meta(max_length=253)] = ""  # of Kueue, the same name on the hub
    job: Annotated[str, Meta(max_length=253)] = ""  # whose pods they are, if that is a Job


class HubWorkRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whose pods these are. Only of what is placed in this cluster an answer is given."""

    asked: Annotated[tuple[HubPods, ...], Meta(max_length=MAX_HUB_ASKED)]
    after: Sequence = 0  # of the log: it is read so far at the least


class HubWork(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """An open workload that runs here by way of a hub."""

    tenant: str
    id: str
    attempt: int
    sequence: int  # of its last event
    pod_sets: tuple[str, ...] = ()  # their names, in their order


class HubWorkReply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="door.hub_work.v1"
):
    """In the order in which it was asked; None: it is nobody's, or not yet."""

    found: tuple[HubWork | None, ...] = ()


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

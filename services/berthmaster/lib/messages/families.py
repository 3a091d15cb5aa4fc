"""The families of messages: a decoder for each, built once, and the parts of each subject.

A reader decodes with the family of its subject, so a message on the wrong subject is an error.
Decoders and the encoder keep no state between calls. Decoding untrusted bytes may raise UNREADABLE,
which includes invalid UTF-8 beside msgspec.DecodeError.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar, get_args

import msgspec

from berthmaster.lib.messages.api import (
    GATEWAY_VERBS,
    OPERATOR_VERBS,
    RESOLVER_OPERATOR_VERBS,
    RESOLVER_VERBS,
    USAGE_VERBS,
    ApiReply,
    CancelRequest,
    CheckpointedRequest,
    CordonRequest,
    CordonsRequest,
    DrainRequest,
    EventsRequest,
    EvictRequest,
    GetRequest,
    GpusRequest,
    HelloRequest,
    HoldRequest,
    JobOrderRequest,
    ListRequest,
    LogsRequest,
    LostRequest,
    MoveRequest,
    ProgressedRequest,
    ReleaseRequest,
    ReprioritizeRequest,
    SubmitRequest,
    WhatifRequest,
    WhyRequest,
)
from berthmaster.lib.messages.control import ControlFact, QueueSetting
from berthmaster.lib.messages.door import (
    DeadRequest,
    DoorReply,
    FactsRequest,
    GreetRequest,
    HeldPage,
    HoldingsRequest,
    HubWorkReply,
    HubWorkRequest,
    LeaseRequest,
    LogAsk,
    LogChunk,
    LogEndRequest,
    Nudge,
    ReportedFact,
    ReportRequest,
    StoryRequest,
    TakeRequest,
    TellRequest,
)
from berthmaster.lib.messages.fleet import FleetFact
from berthmaster.lib.messages.login import LoginAnswer, LoginRequest
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.messages.profile import ProfileRequest
from berthmaster.lib.messages.quality import QualityReport
from berthmaster.lib.messages.records import ArchivedStory, DeadLetter, Lease, LogEnd, LogMark
from berthmaster.lib.messages.runtimes import RuntimeSetting
from berthmaster.lib.messages.suggest import SuggestRequest
from berthmaster.lib.messages.telemetry import JobFigures, NodeTelemetry
from berthmaster.lib.messages.usage import TrendsRequest, UsageReportRequest
from berthmaster.lib.messages.workload import JobRequest, WorkloadEvent

T_co = TypeVar("T_co", covariant=True)

ENCODER: Final = msgspec.json.Encoder()
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Reader(Protocol[T_co]):
    """A decoder of one type of message. Raises one of UNREADABLE."""

    def decode(self, data: bytes, /) -> T_co: ...


class JobRequestReader:
    """Decoder of submitted jobs: refuses unknown fields, and returns the type of events."""

    def __init__(self) -> None:
        self._strict = msgspec.json.Decoder(SubmitRequest)
        self._plain = msgspec.json.Decoder(JobRequest)

    def decode(self, data: bytes, /) -> JobRequest:
        """Decode a request. Raises one of UNREADABLE."""
        self._strict.decode(data)
        return self._plain.decode(data)

    def convert(self, value: object) -> JobRequest:
        """The same for a request of plain dicts and lists. Raises msgspec.ValidationError."""
        msgspec.convert(value, SubmitRequest)
        return msgspec.convert(value, JobRequest)


# Decoder of each subject family; names as in lib/nats/subjects.py.
EVENTS: Final = msgspec.json.Decoder(WorkloadEvent)
DECISIONS: Final = msgspec.json.Decoder(Decision)
QUALITY: Final = msgspec.json.Decoder(QualityReport)
TELEMETRY: Final = msgspec.json.Decoder(NodeTelemetry)
JOB_FIGURES: Final = msgspec.json.Decoder(JobFigures)
FLEET_FACTS: Final = msgspec.json.Decoder(FleetFact)
CONTROL_FACTS: Final = msgspec.json.Decoder(ControlFact)
DEAD_LETTERS: Final = msgspec.json.Decoder(DeadLetter)
ARCHIVED_STORIES: Final = msgspec.json.Decoder(ArchivedStory)
LEASES: Final = msgspec.json.Decoder(Lease)
LOG_MARKS: Final = msgspec.json.Decoder(LogMark)
DOOR_REPLIES: Final = msgspec.json.Decoder(DoorReply)
LOG_ASKS: Final = msgspec.json.Decoder(LogAsk)
LOG_CHUNKS: Final = msgspec.json.Decoder(LogChunk)
LOG_ENDS: Final = msgspec.json.Decoder(LogEnd)
NUDGES: Final = msgspec.json.Decoder(Nudge)
HELD_PAGES: Final = msgspec.json.Decoder(HeldPage)
API_REPLIES: Final = msgspec.json.Decoder(ApiReply)
LOGIN_ANSWERS: Final[Reader[LoginAnswer]] = msgspec.json.Decoder(LoginAnswer)

# Requests carry no tag: the verb in the subject gives the type.
JOB_REQUESTS: Final = JobRequestReader()  # submit, dry_run
HELLO_REQUESTS: Final = msgspec.json.Decoder(HelloRequest)
CANCEL_REQUESTS: Final = msgspec.json.Decoder(CancelRequest)
REPRIORITIZE_REQUESTS: Final = msgspec.json.Decoder(ReprioritizeRequest)
HOLD_REQUESTS: Final = msgspec.json.Decoder(HoldRequest)
RELEASE_REQUESTS: Final = msgspec.json.Decoder(ReleaseRequest)
EVICT_REQUESTS: Final = msgspec.json.Decoder(EvictRequest)
MOVE_REQUESTS: Final = msgspec.json.Decoder(MoveRequest)
CHECKPOINTED_REQUESTS: Final = msgspec.json.Decoder(CheckpointedRequest)
PROGRESSED_REQUESTS: Final = msgspec.json.Decoder(ProgressedRequest)
JOB_ORDERS: Final = msgspec.json.Decoder(JobOrderRequest)
GET_REQUESTS: Final = msgspec.json.Decoder(GetRequest)
LIST_REQUESTS: Final = msgspec.json.Decoder(ListRequest)
EVENTS_REQUESTS: Final = msgspec.json.Decoder(EventsRequest)
GPUS_REQUESTS: Final = msgspec.json.Decoder(GpusRequest)
LOGS_REQUESTS: Final = msgspec.json.Decoder(LogsRequest)
WHY_REQUESTS: Final = msgspec.json.Decoder(WhyRequest)
WHATIF_REQUESTS: Final = msgspec.json.Decoder(WhatifRequest)
USAGE_REPORT_REQUESTS: Final = msgspec.json.Decoder(UsageReportRequest)
PROFILE_REQUESTS: Final = msgspec.json.Decoder(ProfileRequest)
SUGGEST_REQUESTS: Final = msgspec.json.Decoder(SuggestRequest)
TRENDS_REQUESTS: Final = msgspec.json.Decoder(TrendsRequest)
CORDON_REQUESTS: Final = msgspec.json.Decoder(CordonRequest)
DRAIN_REQUESTS: Final = msgspec.json.Decoder(DrainRequest)
CORDONS_REQUESTS: Final = msgspec.json.Decoder(CordonsRequest)
LOST_REQUESTS: Final = msgspec.json.Decoder(LostRequest)  # lost, found
QUEUE_REQUESTS: Final = msgspec.json.Decoder(QueueSetting)
RUNTIME_REQUESTS: Final = msgspec.json.Decoder(RuntimeSetting)

TAKE_REQUESTS: Final = msgspec.json.Decoder(TakeRequest)
TELL_REQUESTS: Final = msgspec.json.Decoder(TellRequest)
STORY_REQUESTS: Final = msgspec.json.Decoder(StoryRequest)
FACTS_REQUESTS: Final = msgspec.json.Decoder(FactsRequest)
REPORT_REQUESTS: Final = msgspec.json.Decoder(ReportRequest)
REPORTED_FACTS: Final = msgspec.json.Decoder(ReportedFact)  # an element of a report request
LEASE_REQUESTS: Final = msgspec.json.Decoder(LeaseRequest)
DEAD_REQUESTS: Final = msgspec.json.Decoder(DeadRequest)
LOG_END_REQUESTS: Final = msgspec.json.Decoder(LogEndRequest)
HUB_WORK_REQUESTS: Final = msgspec.json.Decoder(HubWorkRequest)
HUB_WORK_REPLIES: Final = msgspec.json.Decoder(HubWorkReply)
HOLDINGS_REQUESTS: Final = msgspec.json.Decoder(HoldingsRequest)
LOGIN_REQUESTS: Final = msgspec.json.Decoder(LoginRequest)

AGENT_REQUESTS: Final[Mapping[str, type[msgspec.Struct]]] = MappingProxyType(
    {
        "hello": GreetRequest,
        "take": TakeRequest,
        "tell": TellRequest,
        "story": StoryRequest,
        "facts": FactsRequest,
        "report": ReportRequest,
        "lease": LeaseRequest,
        "dead": DeadRequest,
        "log_end": LogEndRequest,
        "hub_work": HubWorkRequest,
        "holdings": HoldingsRequest,
    }
)

REQUEST_TYPES: Final[Mapping[str, type[msgspec.Struct]]] = MappingProxyType(
    {
        "hello": HelloRequest,
        "submit": SubmitRequest,
        "cancel": CancelRequest,
        "reprioritize": ReprioritizeRequest,
        "hold": HoldRequest,
        "release": ReleaseRequest,
        "evict": EvictRequest,
        "move": MoveRequest,
        "checkpointed": CheckpointedRequest,
        "progressed": ProgressedRequest,
        "get": GetRequest,
        "list": ListRequest,
        "logs": LogsRequest,
        "events": EventsRequest,
        "gpus": GpusRequest,
        "why": WhyRequest,
        "dry_run": SubmitRequest,
        "whatif": WhatifRequest,
        "report": UsageReportRequest,
        "trends": TrendsRequest,
        "profile": ProfileRequest,
        "suggest": SuggestRequest,
        "cordon": CordonRequest,
        "uncordon": CordonRequest,
        "drain": DrainRequest,
        "cordons": CordonsRequest,
        "hold_job": JobOrderRequest,
        "release_job": JobOrderRequest,
        "evict_job": JobOrderRequest,
        "move_job": JobOrderRequest,
        "lost": LostRequest,
        "found": LostRequest,
        "queue": QueueSetting,
        "runtime": RuntimeSetting,
    }
)
TENANT_VERBS: Final = (*GATEWAY_VERBS, *RESOLVER_VERBS, *USAGE_VERBS)
VERBS: Final = tuple(dict.fromkeys((*TENANT_VERBS, *OPERATOR_VERBS, *RESOLVER_OPERATOR_VERBS)))


def members(family: Any) -> tuple[type[msgspec.Struct], ...]:
    """Return the struct types of a union, or the single struct itself."""
    return get_args(family) or (family,)


def tag_of(message: type[msgspec.Struct]) -> str | None:
    """Return the tag of the type, such as ``workload.placed.v1``; None if untagged."""
    tag = message.__struct_config__.tag
    if tag is not None and not isinstance(tag, str):
        raise TypeError(f"{message.__name__} has the tag {tag!r}; tags are texts here")
    return tag


def _kind(event: type[msgspec.Struct]) -> str:
    """``workload.placed.v1`` is of kind ``placed``: a later version goes to the same subject."""
    tag = tag_of(event)
    family, kind, _version = (tag or "").split(".")
    if family != "workload":
        raise TypeError(f"{event.__name__} is not an event of a workload")
    return kind


EVENT_KINDS: Final[Mapping[type[msgspec.Struct], str]] = MappingProxyType(
    {event: _kind(event) for event in members(WorkloadEvent)}
)


def event_kind(event: WorkloadEvent) -> str:
    """Return the kind token of the event's subject, such as ``cancel_requested``."""
    return EVENT_KINDS[type(event)]


def event_cluster(event: WorkloadEvent) -> str | None:
    """Return the cluster of the event's subject; None for ``-``."""
    return getattr(event, "cluster", None) or None


def encode(message: msgspec.Struct) -> bytes:
    return ENCODER.encode(message)

"""What the gateway's core is told, beside the outcomes that all cores share (lifecycle)."""

import msgspec

from berthmaster.lib.lifecycle.instructions import Answered, Reloaded
from berthmaster.lib.messages.api import RecordedEvent
from berthmaster.lib.messages.control import Cordon, QueueSetting
from berthmaster.lib.messages.runtimes import RuntimeSetting
from berthmaster.lib.messages.telemetry import JobFigures
from berthmaster.lib.messages.workload import WorkloadEvent


class Requested(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody asks. ``ref`` names this request in all that follows from it."""

    ref: str
    verb: str
    data: bytes
    tenant: str | None = None  # None: an operator asks


class Abandoned(msgspec.Struct, frozen=True, kw_only=True):
    """The request under this ref took longer than it may."""

    ref: str


class Breathed(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of Breathe: it is this conversation's turn again."""

    ref: str


class Logged(msgspec.Struct, frozen=True, kw_only=True):
    """The stream WORKLOADS has one more event. They come in stream order."""

    event: WorkloadEvent
    sequence: int
    stored_at_s: float
    is_astray: bool = False  # its subject names another: it is void


class UnreadableEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The stream WORKLOADS has an event that this version cannot read."""

    tenant: str
    id: str
    sequence: int
    why: str


class CaughtUp(msgspec.Struct, frozen=True):
    """Everything that was in WORKLOADS at the start has been told."""


class LogReplaced(msgspec.Struct, frozen=True):
    """WORKLOADS is another stream than before: all that was told of it is void."""


class LogDamaged(msgspec.Struct, frozen=True, kw_only=True):
    """WORKLOADS or CONTROL is not what it was, in these words; "" = it is, or that was accepted."""

    why: str


class QueueSet(msgspec.Struct, frozen=True, kw_only=True):
    """A queue's setting, as CONTROL has it under this sequence."""

    setting: QueueSetting
    sequence: int


class CordonSet(msgspec.Struct, frozen=True, kw_only=True):
    """What CONTROL has of a cluster or node."""

    cordon: Cordon


class RuntimeSet(msgspec.Struct, frozen=True, kw_only=True):
    """A runtime, as CONTROL has it under this sequence."""

    setting: RuntimeSetting
    sequence: int


class QueuesListed(msgspec.Struct, frozen=True):
    """All of CONTROL is about to be told, perhaps of a new stream: its sequences count from now."""


class QueuesKnown(msgspec.Struct, frozen=True):
    """Everything that was in CONTROL at the start has been told."""


class FiguresHeard(msgspec.Struct, frozen=True, kw_only=True):
    """What the GPUs of a job did, as its cluster measured it just now."""

    figures: JobFigures


class LogSize(msgspec.Struct, frozen=True, kw_only=True):
    bytes: int
    max_bytes: int  # -1 = no limit


class Storing(msgspec.Struct, frozen=True):
    """Whether WORKLOADS takes what is written: "", or why it does not."""

    trouble: str


class StoryRead(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of ReadStory."""

    ref: str
    events: tuple[RecordedEvent, ...] = ()  # in the log
    archived: tuple[RecordedEvent, ...] = ()  # looked up only if the log's begin is not there
    unreadable: str = ""  # why the log's story ends before its end
    failed: str = ""  # could not be read now


class Tick(msgspec.Struct, frozen=True):
    """Time has passed: about once a second."""


Event = (
    Requested
    | Answered
    | Breathed
    | Reloaded
    | StoryRead
    | Abandoned
    | Logged
    | UnreadableEvent
    | CaughtUp
    | LogReplaced
    | LogDamaged
    | QueueSet
    | RuntimeSet
    | CordonSet
    | QueuesListed
    | QueuesKnown
    | FiguresHeard
    | LogSize
    | Storing
    | Tick
)

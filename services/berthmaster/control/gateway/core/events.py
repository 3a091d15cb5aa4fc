"""Events of the gateway's core, beside the outcomes that all cores share (lifecycle)."""

import msgspec

from berthmaster.lib.lifecycle.instructions import Answered, Reloaded
from berthmaster.lib.messages.api import RecordedEvent
from berthmaster.lib.messages.control import Cordon, QueueSetting
from berthmaster.lib.messages.runtimes import RuntimeSetting
from berthmaster.lib.messages.telemetry import JobFigures
from berthmaster.lib.messages.workload import WorkloadEvent


class Requested(msgspec.Struct, frozen=True, kw_only=True):
    """A request arrived. ``ref`` names the request in all that follows."""

    ref: str
    verb: str
    data: bytes
    tenant: str | None = None  # None: from an operator


class Abandoned(msgspec.Struct, frozen=True, kw_only=True):
    """The request under this ref exceeded its time limit."""

    ref: str


class Breathed(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of Breathe: the conversation may continue."""

    ref: str


class Logged(msgspec.Struct, frozen=True, kw_only=True):
    """The stream WORKLOADS has one more event. They come in stream order."""

    event: WorkloadEvent
    sequence: int
    stored_at_s: float
    is_astray: bool = False  # the subject names another workload: the event is void


class UnreadableEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The stream WORKLOADS has an event that this version cannot read."""

    tenant: str
    id: str
    sequence: int
    why: str


class CaughtUp(msgspec.Struct, frozen=True):
    """WORKLOADS has been read to its end at the start."""


class LogReplaced(msgspec.Struct, frozen=True):
    """WORKLOADS is another stream than before: all its earlier events are void."""


class LogDamaged(msgspec.Struct, frozen=True, kw_only=True):
    """WORKLOADS or CONTROL has lost data. ``why`` is "" if sound, or after an accepted loss."""

    why: str


class QueueSet(msgspec.Struct, frozen=True, kw_only=True):
    """A queue's setting, stored in CONTROL under this sequence."""

    setting: QueueSetting
    sequence: int


class CordonSet(msgspec.Struct, frozen=True, kw_only=True):
    """A cordon or uncordon of a cluster or node, stored in CONTROL."""

    cordon: Cordon


class RuntimeSet(msgspec.Struct, frozen=True, kw_only=True):
    """A runtime, stored in CONTROL under this sequence."""

    setting: RuntimeSetting
    sequence: int


class QueuesListed(msgspec.Struct, frozen=True):
    """A listing of CONTROL begins, perhaps of a new stream: sequences count from now."""


class QueuesKnown(msgspec.Struct, frozen=True):
    """CONTROL has been read to its end at the start."""


class FiguresHeard(msgspec.Struct, frozen=True, kw_only=True):
    """GPU usage of a job, as its cluster just measured."""

    figures: JobFigures


class LogSize(msgspec.Struct, frozen=True, kw_only=True):
    bytes: int
    max_bytes: int  # -1: no limit


class Storing(msgspec.Struct, frozen=True):
    """Whether WORKLOADS stores writes. ``trouble`` is "" if so, else the reason."""

    trouble: str


class StoryRead(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of ReadStory."""

    ref: str
    events: tuple[RecordedEvent, ...] = ()  # in the log
    archived: tuple[RecordedEvent, ...] = ()  # read only if the log lacks the first event
    unreadable: str = ""  # why the history stops before its end, or ""
    failed: str = ""  # why the read failed, or ""


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

"""Events of the archivist's core. Each task has its own ref."""

import msgspec

from berthmaster.lib.messages.api import RecordedEvent


class EndingSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The log has an ending. ``remove``: remove the tombstone, not the history."""

    ref: str
    tenant: str
    id: str
    sequence: int
    stored_at_s: float
    behind: int = 0  # later endings of the same kind that were not delivered yet
    remove: bool = False


class DecisionSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The log has a decision. Its bytes stay outside the core."""

    ref: str
    cell: str
    number: int
    sequence: int
    stored_at_s: float


class StoryRead(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of ReadStory: every event of the workload in the log."""

    ref: str
    events: tuple[RecordedEvent, ...] = ()
    unreadable: str = ""  # why an event of another version cannot be read, or ""
    failed: str = ""  # why the read failed, or ""


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of WriteStory and WriteDecision: archived, or ``failed`` says why the outcome is
    unknown.
    """

    ref: str
    failed: str = ""


class NextDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of ReadNextDecision. ``sequence`` 0 means no later decision."""

    ref: str
    sequence: int = 0
    unreadable: bool = False
    failed: str = ""


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of RemoveEvents and RemoveDecision."""

    ref: str
    failed: str = ""


Told = StoryRead | Written | NextDecision | Removed
Event = EndingSeen | DecisionSeen | Told

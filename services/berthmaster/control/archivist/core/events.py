"""What the archivist's core is told. Each task has a ref of its own."""

import msgspec

from berthmaster.lib.messages.api import RecordedEvent


class EndingSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The log has an ending. ``remove``: it is the tombstone's turn, not the story's."""

    ref: str
    tenant: str
    id: str
    sequence: int
    stored_at_s: float
    behind: int = 0  # endings of its kind that were stored after it, and not told of yet
    remove: bool = False


class DecisionSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The log has a decision; its bytes stay with the shell."""

    ref: str
    cell: str
    number: int
    sequence: int
    stored_at_s: float


class StoryRead(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of ReadStory: every event of the aggregate that is in the log."""

    ref: str
    events: tuple[RecordedEvent, ...] = ()
    unreadable: str = ""  # an event that this version does not know, and why
    failed: str = ""  # could not be read now


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of WriteStory and WriteDecision: the archive has it, unless ``failed`` says why
    nobody knows."""

    ref: str
    failed: str = ""


class NextDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of ReadNextDecision. ``sequence``: 0 = there is none."""

    ref: str
    sequence: int = 0
    unreadable: bool = False
    failed: str = ""


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of RemoveEvents and RemoveDecision."""

    ref: str
    failed: str = ""


Told = StoryRead | Written | NextDecision | Removed
Event = EndingSeen | DecisionSeen | Told

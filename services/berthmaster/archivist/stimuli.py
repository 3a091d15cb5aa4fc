"""The words between the archivist's core and its shell."""

import msgspec

from berthmaster.lifecycle.instructions import Answered
from berthmaster.messages.api import RecordedEvent
from berthmaster.messages.records import ArchivedStory

# What the core is told. Each task has a ref of its own.


class EndingSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The log has an ending. ``remove``: it is the tombstone's turn, not the story's."""

    ref: str
    tenant: str
    id: str
    sequence: int
    stored_at_s: float
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


class ArchiveRead(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of ReadArchive and ReadArchivedDecision."""

    ref: str
    guard: int = 0  # last sequence under the archive's subject
    events: tuple[RecordedEvent, ...] = ()  # of stories: all that is there
    same: bool = False  # of decisions: the last one there is ours, byte for byte
    failed: str = ""


class LastDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of ReadLastDecision: the chain's last sequence."""

    ref: str
    sequence: int = 0
    failed: str = ""


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of RemoveEvents and RemoveDecision."""

    ref: str
    failed: str = ""


# What the core asks for.


class ReadStory(msgspec.Struct, frozen=True, kw_only=True):
    """Read the whole aggregate. Answer: StoryRead."""

    ref: str
    tenant: str
    id: str


class ReadArchive(msgspec.Struct, frozen=True, kw_only=True):
    """Read what the archive has under this id. Answer: ArchiveRead."""

    ref: str
    tenant: str
    id: str


class WriteStory(msgspec.Struct, frozen=True, kw_only=True):
    """Archive events, if the archive's subject still is at ``guard``. Answer: Answered."""

    ref: str
    story: ArchivedStory
    guard: int


class RemoveEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Remove these events, in this order; those that are gone already do not matter. Answer:
    Removed."""

    ref: str
    sequences: tuple[int, ...]


class WriteDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Archive the decision, if its subject there still is at ``guard``. Answer: Answered."""

    ref: str
    cell: str
    number: int
    guard: int


class ReadArchivedDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Compare what the archive has under this number with ours. Answer: ArchiveRead."""

    ref: str
    cell: str
    number: int


class ReadLastDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Find the end of the cell's chain. Answer: LastDecision."""

    ref: str
    cell: str


class RemoveDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Remove this one message from the chain. Answer: Removed."""

    ref: str
    sequence: int


# How a task ends.


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing is left to do for it. ``archived``: events written; ``removed``: something went."""

    ref: str
    archived: int = 0
    removed: bool = False


class Later(msgspec.Struct, frozen=True, kw_only=True):
    """Tell it again after a pause (None: growing pauses). ``failed``: something is wrong."""

    ref: str
    why: str
    pause_s: float | None = None
    failed: bool = False


class Frozen(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing is touched: a person, or a newer version, must look."""

    ref: str
    why: str


Stimulus = EndingSeen | DecisionSeen | StoryRead | ArchiveRead | LastDecision | Removed | Answered
Told = StoryRead | ArchiveRead | LastDecision | Removed | Answered
Ask = (
    ReadStory
    | ReadArchive
    | WriteStory
    | RemoveEvents
    | WriteDecision
    | ReadArchivedDecision
    | ReadLastDecision
    | RemoveDecision
)
End = Done | Later | Frozen

"""What the archivist's core asks for, and how a task ends: done, later, or frozen."""

import msgspec

from berthmaster.lib.messages.records import ArchivedStory


class ReadStory(msgspec.Struct, frozen=True, kw_only=True):
    """Read the whole aggregate. Answer: StoryRead."""

    ref: str
    tenant: str
    id: str


class WriteStory(msgspec.Struct, frozen=True, kw_only=True):
    """Archive events. Answer: Written."""

    ref: str
    story: ArchivedStory


class RemoveEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Remove these events, in this order; those that are gone already do not matter. Answer:
    Removed."""

    ref: str
    sequences: tuple[int, ...]


class WriteDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Archive the decision. Answer: Written."""

    ref: str
    cell: str
    number: int


class ReadNextDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Find what stands behind this decision in its cell's chain. Answer: NextDecision."""

    ref: str
    cell: str
    sequence: int


class RemoveDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Remove this one message from the chain. Answer: Removed."""

    ref: str
    sequence: int


class TaskDone(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing is left to do for it. ``archived``: events written; ``removed``: something went."""

    ref: str
    archived: int = 0
    removed: bool = False


class TaskLater(msgspec.Struct, frozen=True, kw_only=True):
    """Tell it again after a pause (None: growing pauses). ``failed``: something is wrong."""

    ref: str
    why: str
    pause_s: float | None = None
    failed: bool = False


class TaskFrozen(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing is touched: a person, or a newer version, must look."""

    ref: str
    why: str


Ask = ReadStory | WriteStory | RemoveEvents | WriteDecision | ReadNextDecision | RemoveDecision
End = TaskDone | TaskLater | TaskFrozen

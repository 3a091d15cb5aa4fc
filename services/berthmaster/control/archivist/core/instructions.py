"""Instructions of the archivist's core, and the ends of a task: done, later, or frozen."""

import msgspec

from berthmaster.lib.messages.records import ArchivedStory


class ReadStory(msgspec.Struct, frozen=True, kw_only=True):
    """Read all events of a workload. Outcome: StoryRead."""

    ref: str
    tenant: str
    id: str


class WriteStory(msgspec.Struct, frozen=True, kw_only=True):
    """Archive events. Outcome: Written."""

    ref: str
    story: ArchivedStory


class RemoveEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Remove these events, in this order. Events removed before are no fault. Outcome: Removed."""

    ref: str
    sequences: tuple[int, ...]


class WriteDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Archive the decision. Outcome: Written."""

    ref: str
    cell: str
    number: int


class ReadNextDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Find the next decision in its cell's chain. Outcome: NextDecision."""

    ref: str
    cell: str
    sequence: int


class RemoveDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Remove this one message from the chain. Outcome: Removed."""

    ref: str
    sequence: int


class TaskDone(msgspec.Struct, frozen=True, kw_only=True):
    """The task is done. ``archived``: number of events written, ``removed``: whether any was
    removed.
    """

    ref: str
    archived: int = 0
    removed: bool = False


class TaskLater(msgspec.Struct, frozen=True, kw_only=True):
    """Deliver the message again after a pause (None: growing pauses). ``failed``: an error
    occurred.
    """

    ref: str
    why: str
    pause_s: float | None = None
    failed: bool = False


class TaskFrozen(msgspec.Struct, frozen=True, kw_only=True):
    """The task changes nothing until an operator, or a newer version, resolves the fault."""

    ref: str
    why: str


Ask = ReadStory | WriteStory | RemoveEvents | WriteDecision | ReadNextDecision | RemoveDecision
End = TaskDone | TaskLater | TaskFrozen

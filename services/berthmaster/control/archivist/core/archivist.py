"""When an event history moves to the archive, and the order: copy, confirm, then remove. Pure.

A task begins with an ending or a decision in the log. A task is a generator that yields one
instruction, receives the outcome, and returns an end. Call ``handle(event, now_s)`` and pass each
outcome back under its ref, until an End is returned.

A crash may follow any step, and two archivists may run the same step. The next try continues from
the stored state:

- The archive only grows. After a crash, or by two archivists, a history may be written twice, and
  readers take the first copy of each event. The first copy is complete, because removal waits for
  its confirmation. A process does not write again what it has seen confirmed.
- Events before the ending are removed by their sequences, so the tombstone stays, whatever was
  stored since. A workload whose ending was not applied is not changed.
- ``submitted`` is removed first, then void events, then the rest, oldest first. A reader in between
  recognises the partial history of an ended workload by the missing events (see lifecycle.fold).
  Example: 40 (after=30) was applied and 50 (after=30) lost its race. With only 40 removed, a reader
  that stopped at 30 would apply 50.
- The void events after a tombstone are removed with the tombstone, else the id could not be used
  again.
- A history with a second ``submitted`` or ending, which lost its race, is archived and stays in the
  log: a partial removal would make that event look like the beginning or the end.
- A decision is removed only if a later readable one follows. Each chain keeps its last decision,
  and an unreadable decision keeps the place that its predecessor shows.
"""

from collections.abc import Generator, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from berthmaster.control.archivist.core.events import (
    DecisionSeen,
    EndingSeen,
    Event,
    NextDecision,
    Removed,
    StoryRead,
    Told,
    Written,
)
from berthmaster.control.archivist.core.instructions import (
    Ask,
    End,
    ReadNextDecision,
    ReadStory,
    RemoveDecision,
    RemoveEvents,
    TaskDone,
    TaskFrozen,
    TaskLater,
    WriteDecision,
    WriteStory,
)
from berthmaster.lib.lifecycle.fold import Verdict, fold_history
from berthmaster.lib.lifecycle.states import Ending
from berthmaster.lib.messages.api import RecordedEvent
from berthmaster.lib.messages.families import encode
from berthmaster.lib.messages.records import ArchivedStory
from berthmaster.lib.messages.workload import Carried, Submitted

T = TypeVar("T", bound=Told)
LONGEST_PAUSE_S: Final = 3600.0  # maximum pause between two checks of a due time
SEEN_S: Final = 10.0  # minimum age of an ending moved for the number limit: readers have read it
FASTEST_PER_S: Final = 1000.0  # endings: assumed maximum rate while a message waits
STORY_FRAME_BYTES: Final = 512  # of an ArchivedStory around its events
LAST_STAYS: Final = "the last of its chain stays"
STORY_FIRST_S: Final = 1.0  # pause of a tombstone until its history is archived
MAX_COPIED: Final = 100_000  # remembered copies. A forgotten one is only written again


class ArchiveRules(msgspec.Struct, frozen=True, kw_only=True):
    """Retention limits. The service's settings give the reasons for these defaults."""

    story_after_s: float = 600.0
    max_ended: int = 20_000  # histories of each kind of ending that wait for the archive
    tombstone_after_s: float = 30 * 86_400.0
    max_tombstones: int = 500_000  # of each kind of ending
    decision_after_s: float = 3600.0
    max_part_bytes: int = 900_000  # of one archived message. Longer histories have several


class Step(NamedTuple):
    """Outcome of the last instruction."""

    told: Told


Task = Generator[Ask, Step, End]


class Copies:
    """Confirmed copies in the archive, not written again if the removal has to be repeated."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int], None] = {}

    def has(self, seen: EndingSeen | DecisionSeen) -> bool:
        """Return whether this process has archived the history or decision, perhaps without
        removal.
        """
        return _name(seen) in self._known

    def add(self, seen: EndingSeen | DecisionSeen) -> None:
        """Note a confirmed copy."""
        self._known[_name(seen)] = None
        if len(self._known) > MAX_COPIED:
            del self._known[next(iter(self._known))]

    def drop(self, seen: EndingSeen | DecisionSeen) -> None:
        self._known.pop(_name(seen), None)


def _name(seen: EndingSeen | DecisionSeen) -> tuple[str, str, int]:
    if isinstance(seen, EndingSeen):
        return seen.tenant, seen.id, seen.sequence
    return "", seen.cell, seen.sequence


class Archivist:
    def __init__(self, rules: ArchiveRules | None = None) -> None:
        self._rules = rules or ArchiveRules()
        self._tasks: dict[str, Task] = {}
        self._copies = Copies()

    @property
    def open_tasks(self) -> int:
        """Return the number of open tasks."""
        return len(self._tasks)

    def handle(self, event: Event, now_s: float) -> list[Ask | End]:
        """Take one event, and return one instruction or one end."""
        match event:
            case EndingSeen():
                wait_s = event.stored_at_s - now_s + self._wait_of(event)
                task = _remove(event) if event.remove else _story(self._rules, self._copies, event)
                return self._begin(event.ref, task, wait_s, self._pause_of(event))
            case DecisionSeen():
                wait_s = event.stored_at_s + self._rules.decision_after_s - now_s
                task = _decision(self._rules, self._copies, event)
                return self._begin(event.ref, task, wait_s)
            case _:
                known = self._tasks.get(event.ref)
                return [] if known is None else self._advance(event.ref, known, Step(event))

    def drop(self, ref: str) -> None:
        """Forget a task that was cancelled. Its message will be delivered again."""
        self._tasks.pop(ref, None)

    def _wait_of(self, event: EndingSeen) -> float:
        rules = self._rules
        if event.remove:
            few = event.behind < rules.max_tombstones
            return max(rules.tombstone_after_s if few else 0.0, rules.story_after_s)
        if event.behind >= rules.max_ended:
            return min(SEEN_S, rules.story_after_s)
        return rules.story_after_s

    def _pause_of(self, event: EndingSeen) -> float:
        """Return the pause before a message that is not due is checked again, short enough for the
        number limit.
        """
        most = self._rules.max_tombstones if event.remove else self._rules.max_ended
        return min(LONGEST_PAUSE_S, max(1.0, (most - event.behind) / FASTEST_PER_S))

    def _begin(
        self, ref: str, task: Task, wait_s: float, pause_s: float = LONGEST_PAUSE_S
    ) -> list[Ask | End]:
        if wait_s > 0:
            return [TaskLater(ref=ref, why="not due", pause_s=min(wait_s, pause_s))]
        return self._advance(ref, task, None)

    def _advance(self, ref: str, task: Task, step: Step | None) -> list[Ask | End]:
        try:
            ask = next(task) if step is None else task.send(step)
        except StopIteration as end:
            self._tasks.pop(ref, None)
            result: End = end.value
            return [result]
        self._tasks[ref] = task
        return [ask]


def _put_off(ref: str, why: str) -> TaskLater:
    return TaskLater(ref=ref, why=why, failed=True)


# Event histories


def _story(rules: ArchiveRules, copies: Copies, seen: EndingSeen) -> Task:
    """Archive the history, then remove all events of the workload but the ending."""
    ref = seen.ref
    read = _is(StoryRead, (yield ReadStory(ref=ref, tenant=seen.tenant, id=seen.id)))
    if read.failed:
        return _put_off(ref, read.failed)
    if read.unreadable:
        return TaskFrozen(ref=ref, why=read.unreadable)
    story = _up_to_ending(seen, read.events)
    if len(story) < 2:
        return TaskDone(ref=ref)  # removed before, or the ending was never applied
    archived = 0
    if not copies.has(seen):
        for part in _parts(story, rules.max_part_bytes):
            writing = ArchivedStory(tenant=seen.tenant, id=seen.id, events=tuple(part))
            written = _is(Written, (yield WriteStory(ref=ref, story=writing)))
            if written.failed:
                return _put_off(ref, written.failed)
            archived += len(part)
        copies.add(seen)
    if stays(story):
        return TaskDone(ref=ref, archived=archived)
    removed = _is(Removed, (yield RemoveEvents(ref=ref, sequences=removal_order(story[:-1]))))
    if removed.failed:
        return _put_off(ref, removed.failed)
    copies.drop(seen)
    return TaskDone(ref=ref, archived=archived, removed=True)


def stays(story: Sequence[RecordedEvent]) -> bool:
    """Return whether nothing of this history is removed: it has two beginnings, or two endings."""
    begins = sum(isinstance(recorded.event, Submitted | Carried) for recorded in story)
    ends = sum(isinstance(recorded.event, Ending) for recorded in story)
    return begins > 1 or ends > 1


def removal_order(story: Sequence[RecordedEvent]) -> tuple[int, ...]:
    """Return the order of removal: beginnings, then void events, then the rest, oldest first."""

    def rank(one: RecordedEvent) -> tuple[bool, bool, int]:
        return not isinstance(one.event, Submitted | Carried), not one.void, one.sequence

    return tuple(one.sequence for one in sorted(story, key=rank))


def _remove(seen: EndingSeen) -> Task:
    """Remove a tombstone after its history was archived."""
    ref = seen.ref
    read = _is(StoryRead, (yield ReadStory(ref=ref, tenant=seen.tenant, id=seen.id)))
    if read.failed:
        return _put_off(ref, read.failed)
    if read.unreadable:
        return TaskFrozen(ref=ref, why=read.unreadable)
    story = _up_to_ending(seen, read.events)
    if not story or stays(story):
        return TaskDone(ref=ref)  # removed, or the ending was never applied
    if len(story) > 1:
        return TaskLater(ref=ref, why="its story is still to be archived", pause_s=STORY_FIRST_S)
    behind = [one.sequence for one in read.events if one.sequence > seen.sequence]
    removed = _is(Removed, (yield RemoveEvents(ref=ref, sequences=(*behind, seen.sequence))))
    if removed.failed:
        return _put_off(ref, removed.failed)
    return TaskDone(ref=ref, removed=True)


def _up_to_ending(seen: EndingSeen, events: Sequence[RecordedEvent]) -> list[RecordedEvent]:
    """Return the history up to this ending, with void events marked. Empty if the ending was not
    applied.
    """
    work, verdicts = fold_history(seen.tenant, seen.id, events)
    story: list[RecordedEvent] = []
    for recorded, verdict in zip(events, verdicts, strict=True):
        void = verdict is not Verdict.COUNTED
        story.append(msgspec.structs.replace(recorded, void=void))
        if recorded.sequence == seen.sequence:
            return story if not void and work.ended else []
    return []


def _parts(story: Sequence[RecordedEvent], max_bytes: int) -> Iterator[list[RecordedEvent]]:
    """Yield parts of as many events as fit into one message, at least one."""
    part: list[RecordedEvent] = []
    size = STORY_FRAME_BYTES
    for recorded in story:
        bytes_ = len(encode(recorded)) + 1
        if part and size + bytes_ > max_bytes:
            yield part
            part, size = [], STORY_FRAME_BYTES
        part.append(recorded)
        size += bytes_
    yield part


# Decisions


def _decision(rules: ArchiveRules, copies: Copies, seen: DecisionSeen) -> Task:
    """Copy a decision and remove it, after a later one in the chain."""
    ref = seen.ref
    look = ReadNextDecision(ref=ref, cell=seen.cell, sequence=seen.sequence)
    behind = _is(NextDecision, (yield look))
    if behind.failed:
        return _put_off(ref, behind.failed)
    if not behind.sequence or behind.unreadable:
        why = "what stands behind it cannot be read" if behind.unreadable else LAST_STAYS
        pause_s = min(max(rules.decision_after_s, 1.0), LONGEST_PAUSE_S)
        return TaskLater(ref=ref, why=why, pause_s=pause_s)
    archived = 0
    if not copies.has(seen):
        written = _is(Written, (yield WriteDecision(ref=ref, cell=seen.cell, number=seen.number)))
        if written.failed:
            return _put_off(ref, written.failed)
        copies.add(seen)
        archived = 1
    removed = _is(Removed, (yield RemoveDecision(ref=ref, sequence=seen.sequence)))
    if removed.failed:
        return _put_off(ref, removed.failed)
    copies.drop(seen)
    return TaskDone(ref=ref, archived=archived, removed=True)


def _is(kind: type[T], step: Step) -> T:
    if not isinstance(step.told, kind):
        raise TypeError(f"told {type(step.told).__name__}, expected {kind.__name__}")
    return step.told

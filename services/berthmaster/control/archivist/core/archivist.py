"""When a story moves to the archive, and in which order: copy, confirm, only then remove. Pure.

A task begins with an ending or a decision that the log has, and is a generator: it yields one
instruction, is sent what came of it, and returns how it ends. Every step may be the last before a
crash, and every step may be done by two archivists at once; the next try finds what is there:

- the archive only ever grows: after a crash, or by two at once, a story may be written a second
  time, and readers take the first of each event. The first copy is whole: nothing is removed before
  it is confirmed. What this life has confirmed it does not write again;
- what lies below the ending is removed by its sequences, so the tombstone stays whatever was stored
  meanwhile; an aggregate whose ending did not count is not touched;
- its ``submitted`` is removed first, then what did not count, then the rest from the oldest on:
  whoever reads in between sees by what is missing that this is left of an ended life (see
  lifecycle.fold). For example, 40 (after=30) counted and 50 (after=30) lost its race: a reader that
  stopped at 30 would apply 50 if only 40 were gone;
- with a tombstone goes what stands behind it, all of it void: else the id could not be used again;
- a story with a second ``submitted`` or ending, which lost its race, is archived and stays: half
  removed, that one would look like the beginning or the end of the life;
- a decision goes only while a later one that can be read stands behind it: each chain keeps its
  last, and what nobody can read keeps the place that its forerunner tells.

To drive it: ``handle(event, now_s)``; feed each outcome back under its ref, until an End comes.
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
LONGEST_PAUSE_S: Final = 3600.0  # a due time far away is looked at again now and then
SEEN_S: Final = 10.0  # from its ending until a story may go for its number: readers have heard it
FASTEST_PER_S: Final = 1000.0  # endings: so soon too many may have come after one that waits
STORY_FRAME_BYTES: Final = 512  # of an ArchivedStory around its events
LAST_STAYS: Final = "the last of its chain stays"
STORY_FIRST_S: Final = 1.0  # a tombstone waits for its story to move
MAX_COPIED: Final = 100_000  # copies that are remembered; a forgotten one is made again, no more


class ArchiveRules(msgspec.Struct, frozen=True, kw_only=True):
    """How long what stays where; the service's settings say why these defaults."""

    story_after_s: float = 600.0
    max_ended: int = 20_000  # stories of each kind of ending that wait for that
    tombstone_after_s: float = 30 * 86_400.0
    max_tombstones: int = 500_000  # of each kind of ending
    decision_after_s: float = 3600.0
    max_part_bytes: int = 900_000  # of one archived message; longer stories are several


class Step(NamedTuple):
    """What came of the last instruction."""

    told: Told


Task = Generator[Ask, Step, End]


class Copies:
    """What the archive was seen to take: it is not written again if the removal has to be."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int], None] = {}

    def has(self, seen: EndingSeen | DecisionSeen) -> bool:
        """Whether it was archived in this life, and perhaps not removed."""
        return _name(seen) in self._known

    def add(self, seen: EndingSeen | DecisionSeen) -> None:
        """The archive has it."""
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
    """``handle`` is all there is to it."""

    def __init__(self, rules: ArchiveRules | None = None) -> None:
        self._rules = rules or ArchiveRules()
        self._tasks: dict[str, Task] = {}
        self._copies = Copies()

    @property
    def open_tasks(self) -> int:
        """Tasks that have not ended."""
        return len(self._tasks)

    def handle(self, event: Event, now_s: float) -> list[Ask | End]:
        """Take one event; one instruction or one end comes back."""
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
        """The shell gave a task up; it will be told of again."""
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
        """What is not due is looked at again before too many can have come after it."""
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


# Stories


def _story(rules: ArchiveRules, copies: Copies, seen: EndingSeen) -> Task:
    """Archive the story, then remove all of the aggregate but its ending."""
    ref = seen.ref
    read = _is(StoryRead, (yield ReadStory(ref=ref, tenant=seen.tenant, id=seen.id)))
    if read.failed:
        return _put_off(ref, read.failed)
    if read.unreadable:
        return TaskFrozen(ref=ref, why=read.unreadable)
    story = _up_to_ending(seen, read.events)
    if len(story) < 2:
        return TaskDone(ref=ref)  # removed before, or gone, or an ending that never counted
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
    """Whether nothing of this story is removed: it has two beginnings, or two endings."""
    begins = sum(isinstance(recorded.event, Submitted | Carried) for recorded in story)
    ends = sum(isinstance(recorded.event, Ending) for recorded in story)
    return begins > 1 or ends > 1


def removal_order(story: Sequence[RecordedEvent]) -> tuple[int, ...]:
    """What begins a life first, then what is void, then from the oldest on."""

    def rank(one: RecordedEvent) -> tuple[bool, bool, int]:
        return not isinstance(one.event, Submitted | Carried), not one.void, one.sequence

    return tuple(one.sequence for one in sorted(story, key=rank))


def _remove(seen: EndingSeen) -> Task:
    """Remove a tombstone, which is what is left of a story that was archived."""
    ref = seen.ref
    read = _is(StoryRead, (yield ReadStory(ref=ref, tenant=seen.tenant, id=seen.id)))
    if read.failed:
        return _put_off(ref, read.failed)
    if read.unreadable:
        return TaskFrozen(ref=ref, why=read.unreadable)
    story = _up_to_ending(seen, read.events)
    if not story or stays(story):
        return TaskDone(ref=ref)  # gone, or an ending that never counted
    if len(story) > 1:
        return TaskLater(ref=ref, why="its story is still to be archived", pause_s=STORY_FIRST_S)
    behind = [one.sequence for one in read.events if one.sequence > seen.sequence]
    removed = _is(Removed, (yield RemoveEvents(ref=ref, sequences=(*behind, seen.sequence))))
    if removed.failed:
        return _put_off(ref, removed.failed)
    return TaskDone(ref=ref, removed=True)


def _up_to_ending(seen: EndingSeen, events: Sequence[RecordedEvent]) -> list[RecordedEvent]:
    """The life that this ending ended, with its void events marked; nothing if it did not count."""
    work, verdicts = fold_history(seen.tenant, seen.id, events)
    story: list[RecordedEvent] = []
    for recorded, verdict in zip(events, verdicts, strict=True):
        void = verdict is not Verdict.COUNTED
        story.append(msgspec.structs.replace(recorded, void=void))
        if recorded.sequence == seen.sequence:
            return story if not void and work.ended else []
    return []


def _parts(story: Sequence[RecordedEvent], max_bytes: int) -> Iterator[list[RecordedEvent]]:
    """Of each as many events as fit one message, at least one."""
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
    """Copy a decision and remove it, once a later one stands behind it in the chain."""
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

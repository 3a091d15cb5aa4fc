"""When a story moves to the archive, and in which order: copy, confirm, only then remove. Pure.

A task begins with an ending or a decision that the log has, and is a generator: it yields one
instruction, is sent what came of it, and returns how it ends. Every step may be the last before a
crash, and every step may be done by two archivists at once; the next try finds what is there:

- the archive is written behind a guard, and after a refusal compared event by event with the log,
  so nothing is there twice and nothing is taken for archived because a number looks right;
- what lies below the ending is removed by its sequences, so the tombstone stays whatever was stored
  meanwhile; an aggregate whose ending did not count is not touched;
- its ``submitted`` is removed first, then from the oldest to the newest: whoever reads in between
  sees by what is missing that this is left of an ended life (see lifecycle.fold). From the newest
  on, an ending behind a gap could as well be somebody's lie;
- a story with a second ``submitted`` or ending, which lost its race, is archived and stays: half
  removed, that one would look like the beginning or the end of the life;
- a decision goes only while a later one stands behind it, so each chain keeps its last.

To drive it: ``handle(event, now_s)``; feed each outcome back under its ref, until an End comes.
"""

from collections.abc import Generator, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from berthmaster.archivist.events import (
    ArchiveRead,
    DecisionSeen,
    EndingSeen,
    Event,
    LastDecision,
    Removed,
    StoryRead,
    Told,
)
from berthmaster.archivist.instructions import (
    Ask,
    End,
    ReadArchive,
    ReadArchivedDecision,
    ReadLastDecision,
    ReadStory,
    RemoveDecision,
    RemoveEvents,
    TaskDone,
    TaskFrozen,
    TaskLater,
    WriteDecision,
    WriteStory,
)
from berthmaster.lifecycle.fold import Verdict, judged_story
from berthmaster.lifecycle.instructions import Answered, Refused, Stored, Unknown
from berthmaster.messages.api import RecordedEvent
from berthmaster.messages.families import encode
from berthmaster.messages.records import ArchivedStory
from berthmaster.messages.workload import Cancelled, Failed, Submitted, Succeeded

T = TypeVar("T", bound=Told)
LONGEST_PAUSE_S: Final = 3600.0  # a due time far away is looked at again now and then
SEEN_S: Final = 10.0  # from its ending until a story may go for its number: readers have heard it
FASTEST_PER_S: Final = 1000.0  # endings: so soon too many may have come after one that waits
STORY_FRAME_BYTES: Final = 512  # of an ArchivedStory around its events


class ArchiveRules(msgspec.Struct, frozen=True, kw_only=True):
    """How long what stays where; the service's settings say why these defaults."""

    story_after_s: float = 600.0
    max_ended: int = 20_000  # stories of each kind of ending that wait for that
    tombstone_after_s: float = 30 * 86_400.0
    decision_after_s: float = 3600.0
    max_part_bytes: int = 900_000  # of one archived message; longer stories are several
    max_tries: int = 20  # writes of one story before it is put off


class Step(NamedTuple):
    """What came of the last instruction."""

    told: Told


Task = Generator[Ask, Step, End]


class Archivist:
    """``handle`` is all there is to it."""

    def __init__(self, rules: ArchiveRules | None = None) -> None:
        self._rules = rules or ArchiveRules()
        self._tasks: dict[str, Task] = {}

    @property
    def open_tasks(self) -> int:
        """Tasks that have not ended."""
        return len(self._tasks)

    def handle(self, event: Event, now_s: float) -> list[Ask | End]:
        """Take one event; one instruction or one end comes back."""
        match event:
            case EndingSeen():
                wait_s = event.stored_at_s - now_s + self._wait_of(event)
                task = _remove(self._rules, event) if event.remove else _story(self._rules, event)
                return self._begin(event.ref, task, wait_s, self._pause_of(event))
            case DecisionSeen():
                wait_s = event.stored_at_s + self._rules.decision_after_s - now_s
                return self._begin(event.ref, _decision(self._rules, event), wait_s)
            case _:
                known = self._tasks.get(event.ref)
                return [] if known is None else self._advance(event.ref, known, Step(event))

    def drop(self, ref: str) -> None:
        """The shell gave a task up; it will be told of again."""
        self._tasks.pop(ref, None)

    def _wait_of(self, event: EndingSeen) -> float:
        rules = self._rules
        if event.remove:
            return max(rules.tombstone_after_s, rules.story_after_s)
        if event.behind >= rules.max_ended:
            return min(SEEN_S, rules.story_after_s)
        return rules.story_after_s

    def _pause_of(self, event: EndingSeen) -> float:
        """What is not due is looked at again before too many can have come after it."""
        if event.remove:
            return LONGEST_PAUSE_S
        return max(1.0, (self._rules.max_ended - event.behind) / FASTEST_PER_S)

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


def _story(rules: ArchiveRules, seen: EndingSeen) -> Task:
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
    failed = yield from _archived(rules, seen, story)
    if failed:
        return _put_off(ref, failed)
    if stays(story):
        return TaskDone(ref=ref, archived=len(story))
    removed = _is(Removed, (yield RemoveEvents(ref=ref, sequences=removal_order(story[:-1]))))
    if removed.failed:
        return _put_off(ref, removed.failed)
    return TaskDone(ref=ref, archived=len(story), removed=True)


def stays(story: Sequence[RecordedEvent]) -> bool:
    """Whether nothing of this story is removed: it has two beginnings, or two endings."""
    begins = sum(isinstance(recorded.event, Submitted) for recorded in story)
    ends = sum(isinstance(recorded.event, Succeeded | Failed | Cancelled) for recorded in story)
    return begins > 1 or ends > 1


def removal_order(story: Sequence[RecordedEvent]) -> tuple[int, ...]:
    """What begins a life first, then from the oldest on."""
    begins = [one for one in story if isinstance(one.event, Submitted)]
    rest = [one for one in story if not isinstance(one.event, Submitted)]
    return tuple(one.sequence for one in (*begins, *rest))


def _remove(rules: ArchiveRules, seen: EndingSeen) -> Task:
    """Remove a tombstone; a story that is still above it is archived first."""
    ref = seen.ref
    end = yield from _story(rules, seen)
    if not isinstance(end, TaskDone):
        return end
    read = _is(StoryRead, (yield ReadStory(ref=ref, tenant=seen.tenant, id=seen.id)))
    if read.failed or read.unreadable:
        return _put_off(ref, read.failed or read.unreadable)
    if not read.events or read.events[0].sequence != seen.sequence:
        return TaskDone(ref=ref, archived=end.archived)  # not the tombstone, so nothing of ours
    removed = _is(Removed, (yield RemoveEvents(ref=ref, sequences=(seen.sequence,))))
    if removed.failed:
        return _put_off(ref, removed.failed)
    return TaskDone(ref=ref, archived=end.archived, removed=True)


def _up_to_ending(seen: EndingSeen, events: Sequence[RecordedEvent]) -> list[RecordedEvent]:
    """The life that this ending ended, with its void events marked; nothing if it did not count."""
    work, verdicts = judged_story(seen.tenant, seen.id, events)
    story: list[RecordedEvent] = []
    for recorded, verdict in zip(events, verdicts, strict=True):
        void = verdict is not Verdict.COUNTED
        story.append(msgspec.structs.replace(recorded, void=void))
        if recorded.sequence == seen.sequence:
            return story if not void and work.ended else []
    return []


def _archived(
    rules: ArchiveRules, seen: EndingSeen, story: Sequence[RecordedEvent]
) -> Generator[Ask, Step, str]:
    """Write what the archive does not have; "" once it has all, else why not."""
    guard = 0  # most often nothing is there, and no look is needed to write
    missing = list(story)
    for _ in range(rules.max_tries):
        if not missing:
            return ""
        part = _first_part(missing, rules.max_part_bytes)
        writing = ArchivedStory(tenant=seen.tenant, id=seen.id, events=tuple(part))
        write = WriteStory(ref=seen.ref, story=writing, guard=guard)
        match _is(Answered, (yield write)).outcome:
            case Stored(sequence):
                guard = sequence
                missing = missing[len(part) :]
            case Unknown(why):
                return why
            case Refused():
                look = ReadArchive(ref=seen.ref, tenant=seen.tenant, id=seen.id)
                there = _is(ArchiveRead, (yield look))
                if there.failed:
                    return there.failed
                guard = there.guard
                # Of a story whose removal was cut short not all is judged as it was.
                known = {recorded.sequence: _as_stored(recorded) for recorded in there.events}
                missing = [e for e in story if known.get(e.sequence) != _as_stored(e)]
    return "" if not missing else "its archive keeps changing, or it is very long: the rest later"


def _as_stored(recorded: RecordedEvent) -> RecordedEvent:
    return msgspec.structs.replace(recorded, void=False)


def _first_part(events: Sequence[RecordedEvent], max_bytes: int) -> list[RecordedEvent]:
    """As many events as fit one message, at least one."""
    part: list[RecordedEvent] = []
    size = STORY_FRAME_BYTES
    for recorded in events:
        size += len(encode(recorded)) + 1
        if part and size > max_bytes:
            break
        part.append(recorded)
    return part


# Decisions


def _decision(rules: ArchiveRules, seen: DecisionSeen) -> Task:
    """Copy a decision; remove it once a later one stands behind it in the chain."""
    ref = seen.ref
    failed = yield from _decision_archived(rules, seen)
    if failed:
        return _put_off(ref, failed)
    last = _is(LastDecision, (yield ReadLastDecision(ref=ref, cell=seen.cell)))
    if last.failed:
        return _put_off(ref, last.failed)
    if last.sequence <= seen.sequence:
        pause_s = min(max(rules.decision_after_s, 1.0), LONGEST_PAUSE_S)
        return TaskLater(ref=ref, why="the last of its chain stays", pause_s=pause_s)
    removed = _is(Removed, (yield RemoveDecision(ref=ref, sequence=seen.sequence)))
    if removed.failed:
        return _put_off(ref, removed.failed)
    return TaskDone(ref=ref, archived=1, removed=True)


def _decision_archived(rules: ArchiveRules, seen: DecisionSeen) -> Generator[Ask, Step, str]:
    guard = 0
    for _ in range(rules.max_tries):
        write = WriteDecision(ref=seen.ref, cell=seen.cell, number=seen.number, guard=guard)
        match _is(Answered, (yield write)).outcome:
            case Stored():
                return ""
            case Unknown(why):
                return why
            case Refused():
                look = ReadArchivedDecision(ref=seen.ref, cell=seen.cell, number=seen.number)
                there = _is(ArchiveRead, (yield look))
                if there.failed or there.same:
                    return there.failed
                guard = there.guard  # another chain's decision had this number
    return "its archive keeps changing"


def _is(kind: type[T], step: Step) -> T:
    if not isinstance(step.told, kind):
        raise TypeError(f"told {type(step.told).__name__}, expected {kind.__name__}")
    return step.told

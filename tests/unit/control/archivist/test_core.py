"""The archivist step by step: what it asks for, and that no order of events loses a story."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berthmaster.control.archivist.core.archivist import ArchiveRules, Archivist
from berthmaster.control.archivist.core.events import (
    DecisionSeen,
    EndingSeen,
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
from berthmaster.lib.lifecycle.fold import fold_history
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.messages.api import RecordedEvent
from berthmaster.lib.messages.records import ArchivedStory
from berthmaster.lib.messages.workload import (
    Cancelled,
    Claimed,
    JobRequest,
    Placed,
    Submitted,
    Succeeded,
    WorkloadEvent,
)

RULES = ArchiveRules(story_after_s=10, tombstone_after_s=100, decision_after_s=10)
JOB = JobRequest(id="train")
COMMON = {"tenant": "ann", "id": "train", "at_s": 0.0, "by": "test"}
HERE = {"cluster": "c1", "attempt": 1}
ENDING = {"digest": "d", "submitted_at_s": 1.0}


def event(kind: type[WorkloadEvent], after: int, **fields: object) -> WorkloadEvent:
    return kind(**(COMMON | {"after": after} | fields))  # type: ignore[arg-type]


def recorded(sequence: int, what: WorkloadEvent, *, void: bool = False) -> RecordedEvent:
    return RecordedEvent(sequence=sequence, stored_at_s=float(sequence), event=what, void=void)


SUBMITTED = recorded(1, event(Submitted, 0, request=JOB, digest="d"))
PLACED = recorded(2, event(Placed, 1, **HERE, pods=(), request=JOB, decision=1))
CLAIMED = recorded(3, event(Claimed, 2, **HERE, executor="e"))
ENDED = recorded(4, event(Succeeded, 3, **HERE, **ENDING))
STORY = (SUBMITTED, PLACED, CLAIMED, ENDED)
SEEN = EndingSeen(ref="r", tenant="ann", id="train", sequence=4, stored_at_s=4.0)
READ = ReadStory(ref="r", tenant="ann", id="train")
REMOVE = RemoveEvents(ref="r", sequences=(1, 2, 3))
DONE = TaskDone(ref="r", archived=4, removed=True)
WRITTEN = Written(ref="r")


def read(*events: RecordedEvent) -> StoryRead:
    return StoryRead(ref="r", events=events)


def write(*events: RecordedEvent) -> WriteStory:
    return WriteStory(ref="r", story=ArchivedStory(tenant="ann", id="train", events=events))


def play(
    seen: EndingSeen | DecisionSeen, *told: Told, rules: ArchiveRules = RULES, now_s: float = 1000.0
) -> list[Ask | End]:
    """Everything that the archivist asks for when it is told these things in turn."""
    archivist = Archivist(rules)
    asked: list[Ask | End] = archivist.handle(seen, now_s)
    for each in told:
        asked += archivist.handle(each, now_s)
    assert len(asked) == 1 + len(told)
    assert archivist.open_tasks == (
        0 if isinstance(asked[-1], TaskDone | TaskLater | TaskFrozen) else 1
    )
    return asked


def as_read(log: Sequence[RecordedEvent]) -> tuple[State, int]:
    """What whoever reads the log now takes the workload for."""
    work, _ = fold_history("ann", "train", log)
    return work.state, work.sequence


def test_a_story_is_copied_and_confirmed_before_all_but_its_ending_is_removed() -> None:
    assert play(SEEN, read(*STORY), WRITTEN, Removed(ref="r")) == [
        READ,
        write(*STORY),
        REMOVE,
        DONE,
    ]


def test_nothing_is_read_before_its_time() -> None:
    assert play(SEEN, now_s=13.5) == [TaskLater(ref="r", why="not due", pause_s=0.5)]
    assert play(SEEN, now_s=14.0) == [READ]
    far = ArchiveRules(story_after_s=10**6, max_ended=10**9)
    far_away = TaskLater(ref="r", why="not due", pause_s=3600.0)
    assert play(SEEN, rules=far, now_s=14.0) == [far_away]


def test_behind_too_many_it_goes_as_soon_as_its_end_was_heard() -> None:
    few = ArchiveRules(story_after_s=600.0, max_ended=5_000)
    behind = msgspec.structs.replace(SEEN, behind=5_000)
    assert play(behind, rules=few, now_s=13.0) == [TaskLater(ref="r", why="not due", pause_s=1.0)]
    assert play(behind, rules=few, now_s=14.0) == [READ]
    # Until then it is looked at before so many can have come.
    waits = msgspec.structs.replace(SEEN, behind=2_000)
    assert play(waits, rules=few, now_s=14.0) == [TaskLater(ref="r", why="not due", pause_s=3.0)]
    last = msgspec.structs.replace(SEEN, behind=4_999)
    assert play(last, rules=few, now_s=14.0) == [TaskLater(ref="r", why="not due", pause_s=1.0)]


def test_what_was_copied_in_this_life_is_not_copied_again() -> None:
    archivist = Archivist(RULES)
    archivist.handle(SEEN, 1000.0)
    archivist.handle(read(*STORY), 1000.0)
    archivist.handle(WRITTEN, 1000.0)
    away = archivist.handle(Removed(ref="r", failed="no leader"), 1000.0)
    assert away == [TaskLater(ref="r", why="no leader", failed=True)]

    archivist.handle(SEEN, 1001.0)
    assert archivist.handle(read(*STORY), 1001.0) == [REMOVE]
    assert archivist.handle(Removed(ref="r"), 1001.0) == [TaskDone(ref="r", removed=True)]


def test_after_a_crash_behind_the_removal_nothing_is_left_to_do() -> None:
    assert play(SEEN, read(ENDED)) == [READ, TaskDone(ref="r")]


def test_a_long_story_is_archived_in_parts() -> None:
    rules = msgspec.structs.replace(RULES, max_part_bytes=1)  # one event a part
    told = (read(*STORY), WRITTEN, WRITTEN, WRITTEN, WRITTEN, Removed(ref="r"))
    assert play(SEEN, *told, rules=rules) == [
        READ,
        *(write(event) for event in STORY),
        REMOVE,
        DONE,
    ]


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ([StoryRead(ref="r", failed="no answer")], "no answer"),
        ([read(*STORY), Written(ref="r", failed="who knows")], "who knows"),
        ([read(*STORY), WRITTEN, Removed(ref="r", failed="no leader")], "no leader"),
    ],
)
def test_unconfirmed_copy_is_never_removed(told: Sequence[Told], why: str) -> None:
    asked = play(SEEN, *told)
    assert asked[-1] == TaskLater(ref="r", why=why, failed=True)
    assert REMOVE not in asked[:-2]


def test_an_event_of_a_newer_version_freezes_the_story() -> None:
    assert play(SEEN, StoryRead(ref="r", unreadable="workload.paused.v1")) == [
        READ,
        TaskFrozen(ref="r", why="workload.paused.v1"),
    ]


VOID_END = recorded(4, event(Cancelled, 2, **ENDING, attempt=1))


@pytest.mark.parametrize(
    "events",
    [
        (),  # gone, tombstone and all
        (recorded(9, event(Submitted, 0, request=JOB, digest="d")),),  # the id lives again
        (SUBMITTED, PLACED, CLAIMED, VOID_END),  # lost a race: still claimed
        (SUBMITTED, PLACED),  # an old answer
    ],
)
def test_story_without_ending_stays(events: tuple[RecordedEvent, ...]) -> None:
    assert play(SEEN, read(*events)) == [READ, TaskDone(ref="r")]


def test_a_void_event_is_archived_as_one() -> None:
    void = recorded(3, event(Placed, 1, **HERE, pods=(), request=JOB, decision=2))
    ending = recorded(4, event(Cancelled, 3, **ENDING, attempt=1))
    asked = play(SEEN, read(SUBMITTED, PLACED, void, ending), WRITTEN)
    marked = msgspec.structs.replace(void, void=True)
    remove = RemoveEvents(ref="r", sequences=(1, 3, 2))  # what did not count before what did
    assert asked == [READ, write(SUBMITTED, PLACED, marked, ending), remove]


def test_what_was_stored_behind_the_ending_changes_nothing() -> None:
    late = recorded(7, event(Claimed, 2, **HERE, executor="late"))
    assert play(SEEN, read(*STORY, late), WRITTEN) == [READ, write(*STORY), REMOVE]


def test_a_story_with_a_submit_that_lost_its_race_is_archived_and_stays() -> None:
    void = recorded(3, event(Submitted, 0, request=JOB, digest="other"))
    claimed = recorded(4, event(Claimed, 3, **HERE, executor="e"))
    ending = recorded(5, event(Succeeded, 4, **HERE, **ENDING))
    story = [SUBMITTED, PLACED, void, claimed, ending]
    seen = msgspec.structs.replace(SEEN, sequence=5)
    assert play(seen, read(*story), WRITTEN)[-1] == TaskDone(ref="r", archived=5)
    assert as_read(story) == (State.SUCCEEDED, 5)
    # Without the submit that won it would come to life again.
    assert as_read([void, claimed, ending]) == (State.QUEUED, 5)


def test_a_story_with_an_ending_that_lost_its_race_is_archived_and_stays() -> None:
    lost = recorded(3, event(Cancelled, 1, **ENDING, attempt=1))
    claimed = recorded(4, event(Claimed, 3, **HERE, executor="e"))
    ending = recorded(5, event(Succeeded, 4, **HERE, **ENDING))
    story = [SUBMITTED, PLACED, lost, claimed, ending]
    seen = msgspec.structs.replace(SEEN, sequence=5)
    assert play(seen, read(*story), WRITTEN)[-1] == TaskDone(ref="r", archived=5)


def test_a_removal_that_was_cut_short_goes_on_behind_a_second_copy() -> None:
    """The first copy is whole, and readers take the first."""
    assert play(SEEN, read(CLAIMED, ENDED), WRITTEN, Removed(ref="r")) == [
        READ,
        write(msgspec.structs.replace(CLAIMED, void=True), ENDED),
        RemoveEvents(ref="r", sequences=(3,)),
        TaskDone(ref="r", archived=2, removed=True),
    ]


# tombstones

TOMB = msgspec.structs.replace(SEEN, remove=True)
BURY = RemoveEvents(ref="r", sequences=(4,))


def test_a_tombstone_is_removed_when_its_time_has_come() -> None:
    assert play(TOMB, now_s=103.0) == [TaskLater(ref="r", why="not due", pause_s=1.0)]
    told = (read(ENDED), Removed(ref="r"))
    assert play(TOMB, *told, now_s=104.0) == [READ, BURY, TaskDone(ref="r", removed=True)]


def test_void_events_behind_a_tombstone_go_with_it() -> None:
    late = recorded(7, event(Claimed, 2, **HERE, executor="late"))
    asked = play(TOMB, read(ENDED, late), now_s=104.0)
    assert asked == [READ, RemoveEvents(ref="r", sequences=(7, 4))]


def test_of_too_many_tombstones_the_oldest_go_as_soon_as_their_stories_may() -> None:
    few = msgspec.structs.replace(RULES, max_tombstones=3_000)
    behind = msgspec.structs.replace(TOMB, behind=3_000)
    assert play(behind, rules=few, now_s=13.0) == [TaskLater(ref="r", why="not due", pause_s=1.0)]
    assert play(behind, rules=few, now_s=14.0) == [READ]
    waits = msgspec.structs.replace(TOMB, behind=1_000)
    assert play(waits, rules=few, now_s=14.0) == [TaskLater(ref="r", why="not due", pause_s=2.0)]


def test_a_tombstone_waits_for_its_story_to_move() -> None:
    later = TaskLater(ref="r", why="its story is still to be archived", pause_s=1.0)
    assert play(TOMB, read(*STORY)) == [READ, later]
    assert play(TOMB, read(CLAIMED, ENDED)) == [READ, later]
    dark = StoryRead(ref="r", unreadable="workload.paused.v1")
    assert play(TOMB, dark) == [READ, TaskFrozen(ref="r", why="workload.paused.v1")]


@pytest.mark.parametrize("events", [(), (SUBMITTED, PLACED, CLAIMED, VOID_END)])
def test_an_ending_that_is_no_tombstone_is_not_removed(events: tuple[RecordedEvent, ...]) -> None:
    assert play(TOMB, read(*events)) == [READ, TaskDone(ref="r")]


# decisions

DECISION = DecisionSeen(ref="r", cell="all", number=7, sequence=70, stored_at_s=0.0)
NEXT = ReadNextDecision(ref="r", cell="all", sequence=70)
COPY = WriteDecision(ref="r", cell="all", number=7)


def test_a_decision_is_copied_and_goes_once_a_later_one_stands_behind_it() -> None:
    told = (NextDecision(ref="r", sequence=71), WRITTEN, Removed(ref="r"))
    assert play(DECISION, *told) == [
        NEXT,
        COPY,
        RemoveDecision(ref="r", sequence=70),
        TaskDone(ref="r", archived=1, removed=True),
    ]


def test_a_decision_is_left_alone_until_it_is_due() -> None:
    assert play(DECISION, now_s=4.0) == [TaskLater(ref="r", why="not due", pause_s=6.0)]
    assert play(DECISION, now_s=10.0) == [NEXT]


@pytest.mark.parametrize(
    ("behind", "why"),
    [
        (NextDecision(ref="r"), "the last of its chain stays"),
        (
            NextDecision(ref="r", sequence=71, unreadable=True),
            "what stands behind it cannot be read",
        ),
    ],
)
def test_last_decision_of_chain_stays(behind: NextDecision, why: str) -> None:
    later = TaskLater(ref="r", why=why, pause_s=10.0)
    assert play(DECISION, behind) == [NEXT, later]
    assert play(DECISION, NextDecision(ref="r", failed="away"))[-1] == TaskLater(
        ref="r", why="away", failed=True
    )


def test_a_decision_whose_removal_failed_is_not_copied_again() -> None:
    archivist = Archivist(RULES)
    told = (NextDecision(ref="r", sequence=71), WRITTEN, Removed(ref="r", failed="no leader"))
    archivist.handle(DECISION, 1000.0)
    for each in told:
        archivist.handle(each, 1000.0)
    archivist.handle(DECISION, 1001.0)
    again = archivist.handle(NextDecision(ref="r", sequence=71), 1001.0)
    assert again == [RemoveDecision(ref="r", sequence=70)]


# laws


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_unarchived_events_never_leave_log(data: st.DataObject) -> None:
    """A log and an archive in memory, two archivists whose steps interleave, crashes at any
    point, answers that get lost: in the end story and tombstone are where they belong."""
    log = list(STORY)
    archive: list[RecordedEvent] = []
    rules = msgspec.structs.replace(
        RULES, max_part_bytes=data.draw(st.sampled_from([1, 700, 9999]))
    )

    def perform(step: Ask, *, calm: bool = False) -> Told:
        nonlocal log
        lost = not calm and data.draw(st.booleans(), label="answer lost")
        match step:
            case ReadStory():
                return StoryRead(ref="r", events=tuple(log), failed="lost" if lost else "")
            case WriteStory():
                if lost and data.draw(st.booleans(), label="and not stored"):
                    return Written(ref="r", failed="lost")
                archive.extend(step.story.events)
                return Written(ref="r", failed="lost" if lost else "")
            case RemoveEvents():
                assert set(step.sequences) <= {e.sequence for e in archive}
                done = len(step.sequences)
                if not calm:  # it may be killed between any two
                    done = data.draw(st.integers(0, done), label="removed before the end")
                gone = step.sequences[:done]
                log = [e for e in log if e.sequence not in gone]
                failed = "lost" if lost or done < len(step.sequences) else ""
                return Removed(ref="r", failed=failed)
            case _:
                raise AssertionError(step)

    running: list[tuple[Archivist, list[Ask | End]]] = []
    for _ in range(data.draw(st.integers(0, 40))):
        if len(running) < 2 and data.draw(st.booleans(), label="start one"):
            archivist = Archivist(rules)
            running.append((archivist, archivist.handle(SEEN, 1000.0)))
        elif running:
            archivist, (step,) = running.pop(data.draw(st.integers(0, len(running) - 1)))
            if not isinstance(step, TaskDone | TaskLater | TaskFrozen) and data.draw(
                st.integers(0, 9)
            ):
                running.append((archivist, archivist.handle(perform(step), 1000.0)))
        assert log[-1] == ENDED
        assert as_read(log) == (State.SUCCEEDED, 4)
    last = Archivist(rules)
    (step,) = last.handle(SEEN, 1000.0)
    while not isinstance(step, TaskDone):
        assert not isinstance(step, TaskLater | TaskFrozen)
        (step,) = last.handle(perform(step, calm=True), 1000.0)
    assert log == [ENDED]
    first: dict[int, RecordedEvent] = {}
    for copy in archive:
        first.setdefault(copy.sequence, copy)
    assert sorted(first.values(), key=lambda e: e.sequence) == list(STORY)

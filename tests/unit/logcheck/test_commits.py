"""Commits that a log does not hold whole: at its end, in its middle, and when that is damage."""

import msgspec
import pytest

from berthmaster.bus import subjects
from berthmaster.bus.event_subjects import event_subject
from berthmaster.logcheck.core import Damage, LastCommit, Reading, Seen, read_through
from berthmaster.messages.families import encode
from berthmaster.messages.placement import Choice
from berthmaster.messages.workload import Placed, WorkloadEvent
from tests.bus.tools import cancelled, decision, placed

STREAM = "WORKLOADS"


def choice(name: str) -> Choice:
    return Choice(tenant="acme", id=name, attempt=1, cluster="c1", pods=(), ranking=())


def of_commit(name: str, number: int) -> Placed:
    return msgspec.structs.replace(placed(name, 1), cause=f"decision/all/{number}")


def commit(number: int, *names: str, says: bool = True) -> tuple[str, bytes]:
    made = msgspec.structs.replace(
        decision(number, 0),
        placements=tuple(map(choice, names)),
        events=len(names) if says else None,
    )
    return subjects.decision("all"), encode(made)


def stored(event: WorkloadEvent) -> tuple[str, bytes]:
    return event_subject(event), encode(event)


def reading(*messages: tuple[str, bytes] | None, accepted_to: int = 0) -> Reading:
    """Of a log that begins with these; None = a number that is not there."""
    found = Reading(accepted_to=accepted_to)
    for number, message in enumerate(messages, 1):
        if message is not None:
            found.saw(number, *message)
    return found


def damage(found: Reading, last: int = 0) -> list[Damage]:
    found.ends(last)
    return read_through(STREAM, found, [])


A, B = stored(of_commit("a", 12)), stored(of_commit("b", 12))
OTHER = stored(cancelled("x", 1))


@pytest.mark.parametrize("says", [True, False], ids=["counted", "by its orders"])
def test_a_log_that_ends_in_the_middle_of_a_commit_has_lost_the_rest(says: bool) -> None:
    [told] = damage(reading(OTHER, commit(12, "a", "b", says=says), A))
    assert told.what == (
        "ends in the middle of a commit: decision 12 of cell all, message 2, was stored with "
        "2 events; 4 is missing"
    )
    assert told.missing == ((4, 4),)
    assert told.jobs == ("acme/b",)
    assert damage(reading(OTHER, commit(12, "a", "b", says=says), A, B)) == []


def test_a_log_that_ended_there_and_has_grown_again_is_told_to_have_lost_it() -> None:
    found = reading(commit(12, "a", "b"), A, OTHER, B)
    [told] = damage(found)
    assert told.what == (
        "has lost the rest of a commit: decision 12 of cell all, message 1, was stored with "
        "2 events, and under 3 stands another's"
    )
    assert told.missing == ()  # under its number something stands that nobody may pass over
    assert told.jobs == ("acme/b",)
    assert found.flaws == 1


def test_an_event_of_the_same_job_is_not_the_one_that_is_lost() -> None:
    again = stored(msgspec.structs.replace(cancelled("a", 1), cause="gateway-1/9"))
    assert damage(reading(commit(12, "a"), again))[0].jobs == ("acme/a",)


def test_the_next_decision_does_not_belong_to_the_one_before() -> None:
    next_one = commit(13, "c"), stored(of_commit("c", 13))
    [told] = damage(reading(commit(12, "a", "b"), A, *next_one))
    assert "decision 12" in told.what
    assert "under 3" in told.what


def test_what_was_removed_on_purpose_or_cannot_be_read_tears_no_commit() -> None:
    unreadable = (A[0], b"{")
    assert damage(reading(commit(12, "a", "b"), None, B)) == []
    assert damage(reading(commit(12, "a", "b"), unreadable, B)) == []
    assert damage(reading((subjects.decision("all"), b"{"), OTHER)) == []
    # The server gives the number of its last message, whether that is there or not.
    assert damage(reading(commit(12, "a", "b"), A), last=3) == []


def test_what_a_person_accepted_is_not_found_again_and_what_comes_later_is() -> None:
    torn = commit(12, "a", "b"), A
    assert damage(reading(*torn, accepted_to=2)) == []
    assert damage(reading(*torn, OTHER, accepted_to=2)) == []
    [told] = damage(reading(*torn, commit(13, "c"), accepted_to=2))
    assert "decision 13" in told.what


def test_the_end_of_a_log_that_is_followed_is_damage_once_it_stays_there() -> None:
    last = LastCommit(settle_s=3.0)
    found = reading(commit(12, "a", "b"), A)

    def look(at_s: float, end: int = 2) -> Damage | None:
        return last.look(STREAM, found, Seen("c1", 1, end, end), at_s)

    assert look(10.0) is None  # a batch that is being stored
    assert look(11.0, end=3) is None  # it has not been read yet
    assert look(12.0) is None
    assert look(14.9) is None
    told = look(15.0)
    assert told is not None
    assert told.missing == ((3, 3),)
    found.saw(3, *B)
    assert look(16.0, end=3) is None
    assert last.look(STREAM, None, Seen("c1", 1, 3, 3), 99.0) is None


def test_each_look_at_another_commit_begins_anew() -> None:
    last = LastCommit(settle_s=3.0)
    messages = []
    for at in range(4):
        messages += [commit(at + 1, f"j{at}")]
        found, end = reading(*messages), len(messages)
        assert last.look(STREAM, found, Seen("c1", 1, end, end), 2.0 * at) is None
        messages += [stored(of_commit(f"j{at}", at + 1))]

"""What a log is held against: gaps, digests, marks, what was accepted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.lifecycle.flaws import Gap
from berthmaster.logcheck import core
from berthmaster.logcheck.core import (
    BLOCK,
    Archived,
    Damage,
    Link,
    Numbers,
    Reading,
    Remembered,
    Seen,
    apart,
    counted,
    first_doubt,
    held_against,
    is_of,
    is_short,
    known_digests,
    own_memory,
    read_through,
    together,
    unsettled,
    with_what_was,
    within,
    words,
)
from berthmaster.messages.control import LogAccepted
from berthmaster.messages.records import LogMark, StreamMark

NUMBERS = st.sets(st.integers(1, 300), max_size=80)


def gaps_of(numbers: set[int]) -> list[Gap]:
    return list(together((number, number) for number in numbers))


def numbers_of(gaps: list[Gap]) -> set[int]:
    return {number for first, last in gaps for number in range(first, last + 1)}


def read(numbers: range, known: dict[int, set[str]] | None = None, *, other: int = 0) -> Reading:
    """A pass over these; from ``other`` on the messages hold something else."""
    reading = Reading(1, known)
    for number in numbers:
        body = b"other" if other and number >= other else b"body"
        reading.saw(number, "berth.workload.t.j.submitted.-", body)
    return reading


def marked(
    reading: Reading, *, created: str = "c1", damage: str = "", accepted_at_s: float = 0.0
) -> Remembered:
    one = StreamMark(
        stream="WORKLOADS",
        created=created,
        sequence=reading.last,
        digests=reading.digests(),
        damage=damage,
        accepted_at_s=accepted_at_s,
    )
    return Remembered(LogMark(service="gateway", at_s=10.0, streams=(one,)), 10.0)


def against(kept: Remembered, seen: Seen | None, accepted_at_s: float = 0.0) -> list[Damage]:
    accepted = None
    if accepted_at_s:
        accepted = LogAccepted(stream="WORKLOADS", created="c1", sequence=1)
    marks = counted("WORKLOADS", [kept], accepted, accepted_at_s)
    return held_against("WORKLOADS", seen, marks, accepted)


def test_a_service_that_lives_remembers_itself_what_nobody_has_kept() -> None:
    was = StreamMark(stream="WORKLOADS", created="c1", sequence=4, accepted_at_s=0.0)
    (own,) = own_memory("door", [was], read(range(1, 41)), 40, "WORKLOADS", 27.0)
    (damage,) = against(own, Seen("c2", 1, 4, 4))
    assert damage.missing == ((5, 40),)
    assert "was made anew; the one before went up to 40" in str(damage)
    (damage,) = against(own, Seen("c1", 1, 39, 39))
    assert "door saw it go up to 40" in str(damage)
    assert against(own, Seen("c1", 1, 41, 41)) == []
    # What a person has accepted since is another log.
    assert against(own, Seen("c1", 1, 4, 4), accepted_at_s=28.0) == []
    # Who has read less than was there when it looked knows at least that.
    (own,) = own_memory("door", [was], read(range(1, 3)), 2, "WORKLOADS", 27.0)
    assert own.mark.streams == (was,)
    assert own_memory("door", [], None, 0, "WORKLOADS", 27.0) == []
    # And who has written what it has not read yet knows that as well.
    (own,) = own_memory("door", [was], read(range(1, 5)), 7, "WORKLOADS", 27.0)
    (damage,) = against(own, Seen("c1", 1, 6, 6))
    assert damage.missing == ((7, 7),)


def test_what_was_accepted_must_be_there_ever_since() -> None:
    accepted = LogAccepted(stream="WORKLOADS", created="c2", sequence=17)
    marks = counted("WORKLOADS", [marked(read(range(1, 29)))], accepted, 20.0)
    assert held_against("WORKLOADS", Seen("c2", 1, 17, 17), marks, accepted) == []
    (damage,) = held_against("WORKLOADS", Seen("c2", 1, 12, 12), marks, accepted)
    assert "whoever accepted it saw it go up to 17" in str(damage)
    assert damage.missing == ((13, 17),)
    (damage,) = held_against("WORKLOADS", Seen("c3", 1, 12, 12), marks, accepted)
    assert "was made anew" in str(damage)


def test_what_was_accepted_must_hold_what_it_held_when_it_was_looked_at() -> None:
    """It lost its end once more before it was stored that a person goes on with it, and was as long
    again before anybody looked. All that was remembered of it until then counts no more."""
    lost = (5, 6)
    looked = Reading(1, {}, [lost])
    for number in (*range(1, 5), *range(7, 41)):
        looked.saw(number, "berth.workload.t.j.submitted.-", b"body")
    accepted = LogAccepted(
        stream="WORKLOADS",
        created="c1",
        sequence=40,
        missing=core.told([lost]),
        digests=looked.digests(),
    )
    marks = counted("WORKLOADS", [marked(read(range(1, 61)))], accepted, 20.0)
    assert held_against("WORKLOADS", Seen("c1", 1, 44, 42), marks, accepted) == []
    known = known_digests("c1", marks)
    same, other = Reading(1, known, [lost]), Reading(1, known, [lost])
    for number in (*range(1, 5), *range(7, 45)):
        same.saw(number, "berth.workload.t.j.submitted.-", b"body")
        body = b"other" if number >= 39 else b"body"
        other.saw(number, "berth.workload.t.j.submitted.-", body)
    assert read_through("WORKLOADS", same, []) == []
    (damage,) = read_through("WORKLOADS", other, [])
    assert "is another log than it was: what it holds up to 40 has another digest" in str(damage)


@pytest.mark.parametrize(
    ("last", "start"),
    [(1, 1), (BLOCK * 15 + 3, 1), (BLOCK * 16, BLOCK + 1), (BLOCK * 16 + 1, BLOCK + 1)],
)
def test_the_newest_blocks_of_a_log_are_remembered(last: int, start: int) -> None:
    assert core.newest_start(last) == start
    whole = read(range(1, last + 1)).digests()
    newest = Reading(start)
    for number in range(start, last + 1):
        newest.saw(number, "berth.workload.t.j.submitted.-", b"body")
    assert newest.digests().items() <= whole.items()
    assert max(newest.digests()) == last


# One pass


def test_a_pass_finds_the_gaps_and_those_at_the_end() -> None:
    reading = Reading()
    for number in (1, 2, 5, 9):
        reading.saw(number, "s", b"")
    reading.ends(12)
    assert reading.gaps == [(3, 4), (6, 8), (10, 12)]
    reading.saw(9, "s", b"again")  # of a follower that began anew
    reading.ends(11)
    assert reading.gaps == [(3, 4), (6, 8), (10, 12)]


def test_what_was_read_last_is_known_again() -> None:
    three = core.Single(3, "berth.workload.t.b.submitted.-", b"three")
    assert not three.is_other("berth.workload.t.b.submitted.-", b"three")
    assert three.is_other("berth.workload.t.c.submitted.-", b"three")
    assert three.is_other("berth.workload.t.b.submitted.-", b"other")


def test_the_last_that_was_known_is_asked_for_through_the_next_connection() -> None:
    last = core.LastKnown()
    assert last.unproved(1) == ()  # nothing was known yet
    one, three, two = (core.Single(number, "s", b"old") for number in (1, 3, 2))
    for each in (one, three, two):  # as they are acknowledged, in any order
        last.knows(1, each)
    assert last.newest == three
    assert last.unproved(1) == ()
    # What is stored since then has numbers that were given before, and says nothing of them.
    last.knows(2, core.Single(2, "s", b"new"))
    last.knows(2, core.Single(3, "s", b"new"))
    assert last.unproved(2) == (three,)
    # Nobody has asked yet when that connection is lost, too.
    four = core.Single(4, "s", b"new")
    last.knows(2, four)
    assert last.unproved(3) == (three, four)
    last.proved(three)
    assert last.unproved(3) == (four,)
    # However often that is: as many as are kept, the first and the newest.
    for through in range(4, 40):
        last.knows(through, core.Single(through + 1, "s", b""))
    kept = last.unproved(40)
    assert len(kept) == core.MOST_UNPROVED
    assert (kept[0], kept[-1].number) == (four, 40)
    # The next connection is lost while the newest is asked for.
    last.knows(40, core.Single(41, "s", b""))
    newest = last.unproved(41)[-1]
    last.knows(41, core.Single(42, "s", b""))
    last.unproved(42)
    last.proved(newest)
    assert last.unproved(42)[-1].number == 42


def test_a_longer_log_that_began_alike_is_the_same_log() -> None:
    for last in (1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7):
        known = known_digests(
            "c1",
            [(s, kept) for kept in [marked(read(range(1, last + 1))).mark] for s in kept.streams],
        )
        assert last in known
        assert read(range(1, last + 500), known).other == []


@pytest.mark.parametrize("other", [1, BLOCK, 2 * BLOCK, 2 * BLOCK + 3])
def test_a_log_that_holds_something_else_is_another_one(other: int) -> None:
    last = 2 * BLOCK + 3
    mark = marked(read(range(1, last + 1))).mark
    known = known_digests("c1", [(mark.streams[0], mark)])
    reading = read(range(1, last + 100), known, other=other)
    assert reading.other
    assert reading.other[0] >= other
    (damage,) = read_through("WORKLOADS", reading, [])
    assert "is another log than it was" in str(damage)


@pytest.mark.parametrize("other", [0, 1500], ids=["healed", "grown again"])
def test_regrown_log_is_compared_with_memory(other: int) -> None:
    remembered = marked(read(range(1, 1601)))
    marks = [(remembered.mark.streams[0], remembered.mark)]
    short, shorter = Seen("c1", 1, 1499, 1499), Seen("c1", 1, 1400, 1400)
    assert is_short(short, marks)
    doubt = first_doubt(short, marks).also(shorter, marks)
    # Whoever has seen it since remembers something else, and that changes nothing.
    later = marked(read(range(1, 1701), other=other))
    doubt = doubt.also(Seen("c1", 1, 1700, 1700), [(later.mark.streams[0], later.mark)])
    assert not is_short(Seen("c1", 1, 1700, 1700), marks)
    assert (doubt.end, doubt.farthest, doubt.start) == (1400, 1700, BLOCK + 1)
    assert doubt.can_be_settled
    reading = Reading(doubt.start, doubt.digests)
    for number in range(doubt.start, 1701):
        body = b"other" if other and number >= other else b"body"
        reading.saw(number, "berth.workload.t.j.submitted.-", body)
    assert reading.other == ([1600] if other else [])


def test_a_stream_of_which_nothing_was_remembered_but_its_length_stays_in_doubt() -> None:
    mark = StreamMark(stream="WORKLOADS", created="c1", sequence=20)
    marks = [(mark, LogMark(service="gateway", at_s=1.0, streams=(mark,)))]
    doubt = first_doubt(Seen("c1", 1, 12, 12), marks)
    assert not doubt.can_be_settled
    assert "ended at 12, went up to 20 before" in unsettled("WORKLOADS", doubt).what
    assert not is_short(Seen("c2", 1, 12, 12), marks)  # another stream: told as that
    assert not is_short(None, marks)


def test_a_digest_tells_number_subject_and_payload_apart() -> None:
    told = set()
    for number, subject, data in ((1, "a", b"bc"), (1, "ab", b"c"), (1, "a", b"bd")):
        reading = Reading()
        reading.saw(number, subject, data)
        told.add(reading.digests()[1])
    assert len(told) == 3


def test_of_a_block_from_which_something_was_removed_no_digest_is_told() -> None:
    reading = Reading()
    for number in range(1, 2 * BLOCK + 1):
        if number != 5:
            reading.saw(number, "s", b"")
    assert list(reading.digests()) == [2 * BLOCK]
    late = Reading(10)
    late.saw(10, "s", b"")
    assert late.digests() == {}


def test_a_decision_is_told_by_the_one_behind_it_once_the_archive_has_it() -> None:
    reading = Reading()
    reading.saw(30, "berth.decision.all", b'{"cell": "all", "number": 4, "after": 17}')
    reading.saw(31, "berth.decision.all", b"not json")
    gap = [(17, 17)]
    empty = Archived()
    empty.settle(reading.links)
    assert empty.numbers.without(gap) == gap  # it was never archived: it is lost

    # The archive has number 4 first, and the one before it comes later, after a restart.
    first = Archived()
    first.decision(Link("all", 4, 17))
    first.settle()
    kept = {cell: bytes(numbers) for cell, numbers in first.decisions.items()}
    later = Archived(bytes(first.numbers), kept, first.links)
    later.decision(Link("hub", 3, 9))
    later.settle()
    assert later.numbers.without(gap) == gap
    later.decision(Link("all", 3, 9))
    later.settle()
    assert later.numbers.without(gap) == []


# Sets of numbers


@given(NUMBERS, NUMBERS)
def test_numbers_leave_what_they_do_not_have(missing: set[int], known: set[int]) -> None:
    numbers = Numbers()
    for number in known:
        numbers.add(number)
    again = Numbers(bytes(numbers))
    assert numbers_of(again.without(gaps_of(missing))) == missing - known


@given(NUMBERS, NUMBERS)
def test_what_is_apart_is_in_the_one_and_not_in_the_other(a: set[int], b: set[int]) -> None:
    assert numbers_of(apart(gaps_of(a), gaps_of(b))) == a - b
    assert all(within(number, gaps_of(a)) == (number in a) for number in range(302))


@given(NUMBERS, st.integers(1, 10))
def test_fewer_gaps_hold_all_that_the_many_held(numbers: set[int], most: int) -> None:
    fewer = together(gaps_of(numbers), most)
    assert len(fewer) <= most
    assert numbers <= numbers_of(list(fewer))


def test_the_nearest_gaps_become_one() -> None:
    assert together([(1, 2), (4, 5), (50, 51)], 2) == ((1, 5), (50, 51))
    assert words([(1, 1), (4, 5), (7, 7)], 2) == "1, 4 to 5 and 1 more gaps"


# Marks


def test_a_log_that_ends_before_its_mark_is_shorter() -> None:
    kept = marked(read(range(1, 921)))
    assert against(kept, Seen("c1", 1, 920, 920)) == []
    assert against(kept, Seen("c1", 1, 930, 930)) == []
    (damage,) = against(kept, Seen("c1", 1, 460, 460))
    assert str(damage) == (
        "WORKLOADS ends at 460; gateway saw it go up to 920: 460 messages are missing, 461 to 920"
    )
    assert damage.missing == ((461, 920),)


def test_a_log_that_was_made_anew_is_told_however_long_it_is() -> None:
    kept = marked(read(range(1, 10)))
    (short,) = against(kept, Seen("c2", 0, 0, 0))
    assert (short.missing, "was made anew" in short.what) == (((1, 9),), True)
    (long,) = against(kept, Seen("c2", 1, 50, 50))
    assert (long.missing, "was made anew" in long.what) == ((), True)
    # Another, which follows on, tells of the new one how far it had seen the one before.
    both = counted("WORKLOADS", [kept, marked(read(range(1, 13)), created="c2")], None, 0.0)
    (farther,) = held_against("WORKLOADS", Seen("c2", 1, 5, 5), both, None)
    assert farther.missing == ((6, 12),)
    assert "the one before went up to 12" in farther.what
    (grown,) = held_against("WORKLOADS", Seen("c2", 1, 12, 12), both, None)
    assert "the one before went up to 9" in grown.what
    (gone,) = against(kept, None)
    assert gone == Damage(stream="WORKLOADS", what="is not there", missing=((1, 9),))


def test_what_was_remembered_before_a_person_accepted_counts_no_more() -> None:
    kept = marked(read(range(1, 10)), accepted_at_s=9.0)
    assert against(kept, Seen("c1", 1, 4, 4), accepted_at_s=11.0) == []
    assert len(against(kept, Seen("c1", 1, 4, 4), accepted_at_s=9.0)) == 1


def test_a_mark_that_reaches_less_far_keeps_how_far_the_stream_went_and_what_it_held() -> None:
    (far,) = marked(read(range(1, 10))).mark.streams
    (near,) = marked(read(range(1, 5)), damage="ends in the middle of a commit").mark.streams
    kept = [(far, LogMark(service="gateway", at_s=10.0, streams=(far,)))]
    both = with_what_was(near, "gateway", kept)
    assert (both.sequence, both.damage) == (9, near.damage)
    assert both.digests == {**near.digests, **far.digests}
    assert with_what_was(near, "door", kept) == near  # that one tells of it itself
    assert with_what_was(far, "gateway", [(near, kept[0][1])]) == far
    (other,) = marked(read(range(1, 5)), created="c2").mark.streams
    assert with_what_was(other, "gateway", kept) == other


def test_what_another_service_found_and_what_the_server_lost_is_told() -> None:
    kept = marked(read(range(1, 10)), damage="has lost 1 messages that nobody removed: 4")
    (found,) = against(kept, Seen("c1", 1, 9, 8))
    assert found.what == "has lost 1 messages that nobody removed: 4 (found by gateway)"
    (lost,) = held_against("WORKLOADS", Seen("c1", 1, 9, 9, 1234), [], None)
    assert lost.what == "could not be read whole: the server lost 1,234 bytes of its files"


def test_below_what_the_archive_remembers_nobody_can_say_what_was_removed() -> None:
    reading = Reading()
    reading.saw(100, "s", b"")
    assert read_through("WORKLOADS", reading, [(1, 60), (70, 99)], 100) == []
    (damage,) = read_through("WORKLOADS", reading, [(1, 60), (70, 99)], 80)
    assert damage.missing == ((80, 99),)


def test_an_accepted_gap_leaves_its_block_a_digest_and_marks_that_differ_are_damage() -> None:
    def read(numbers: range, known: dict[int, set[str]], last: bytes = b"9") -> Reading:
        reading = Reading(1, known, ((3, 4),))
        for number in numbers:
            if number not in (3, 4):
                reading.saw(number, "a", last if number == 9 else b"x")
        return reading

    mine = read(range(1, 10), {}).digests()
    assert list(mine) == [9]
    assert read(range(1, 12), {9: {mine[9]}}).other == []
    # The log lost 9 and gave the number to another message: one of two readers has seen that.
    assert read(range(1, 12), {9: {mine[9]}}, b"other").other == [9]
    assert read(range(1, 12), {9: {mine[9], "another"}}).other == [9]
    unaccepted = Reading(1, {})
    for number in (1, 2, 5):
        unaccepted.saw(number, "a", b"x")
    assert unaccepted.digests() == {}


def test_under_the_number_that_a_life_began_with_something_else_of_it_is_no_beginning() -> None:
    held, submitted = "berth.workload.t.j.held.-", "berth.workload.t.j.submitted.-"
    assert is_of(held, "t/j")
    assert not is_of(held, "t/j", begins=True)
    assert is_of(submitted, "t/j", begins=True)
    assert not is_of(submitted, "t/other", begins=True)
    assert not is_of("berth.decision.all", "t/j")

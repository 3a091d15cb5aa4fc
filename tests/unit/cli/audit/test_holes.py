"""Sequences that neither the log nor its archive has."""

from hypothesis import given
from hypothesis import strategies as st

from berthmaster.cli.audit.holes import Link, Sequences, hole_words


def link(number: int, after: int, cell: str = "all") -> Link:
    return Link(cell=cell, number=number, after=after)


def test_log_without_a_gap_has_no_hole() -> None:
    found = Sequences()
    found.add(range(1, 10))
    assert found.holes(9) == []
    assert hole_words([]) == ""


def test_missing_sequences_are_told_in_stretches() -> None:
    found = Sequences()
    found.add([2, 3, 7, 9])
    assert found.holes(12) == [(1, 1), (4, 6), (8, 8), (10, 12)]
    assert hole_words(found.holes(12)) == (
        "WORKLOADS has lost 8 messages that nobody removed: 1, 4 to 6, 8, 10 to 12"
    )
    assert hole_words(found.holes(12), most=1).endswith("nobody removed: 1 and 3 more")


def test_archived_histories_fill_holes() -> None:
    """The example of the module: 8 is a decision that is archived."""
    found = Sequences()
    found.add([1, 2, 9])
    found.add([3, 4, 5, 6])
    found.decision(link(11, 2), archived=True)
    found.decision(link(12, 8), archived=False)
    assert found.holes(9) == [(7, 7)]


def test_decision_that_is_not_archived_is_a_hole() -> None:
    found = Sequences()
    found.add([1, 3])
    found.decision(link(12, 2), archived=False)
    assert found.holes(3) == [(2, 2)]
    found.decision(link(11, 0, cell="hub"), archived=True)  # of another chain
    assert found.holes(3) == [(2, 2)]
    found.decision(link(11, 0), archived=True)
    assert found.holes(3) == []


def test_chain_of_archived_decisions_is_known_up_to_the_last() -> None:
    """Each names the one before; the newest of the archive is named by the log's first."""
    found = Sequences()
    found.add([4])
    for number in (1, 2, 3):
        found.decision(link(number, number - 1), archived=True)
    found.decision(link(4, 3), archived=False)
    assert found.holes(4) == []


def test_nothing_before_the_first_known_sequence_is_a_hole() -> None:
    """A recovered log begins far above the old one; an archive forgets what is old."""
    found = Sequences()
    found.first = 1_000_000
    found.add([3, 1_000_000, 1_000_002])
    assert found.holes(1_000_002) == [(1_000_001, 1_000_001)]


@given(st.sets(st.integers(1, 60)), st.integers(1, 30), st.integers(0, 60))
def test_holes_and_known_sequences_make_up_the_log(known: set[int], first: int, last: int) -> None:
    found = Sequences()
    found.first = first
    found.add(known)
    lost = {one for a, b in found.holes(last) for one in range(a, b + 1)}
    assert lost == set(range(first, last + 1)) - known

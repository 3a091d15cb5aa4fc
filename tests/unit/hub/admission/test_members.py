"""Which clusters a configuration lists, and in which order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.hub.admission.core.members import MOST, Members, members, names_of
from tests.unit.hub.admission.hub_objects import cluster

NAMES = tuple(f"c{number:02}" for number in range(30))


def known(*names: str) -> dict[str, str]:
    return {name: name for name in names}


@pytest.mark.parametrize(
    ("why", "current", "wanted", "free", "expected"),
    [
        ("the decisions' order", "", "b a", "", Members(("b", "a"), (), (), ())),
        ("a member keeps its place", "c a", "a b c", "", Members(("c", "a", "b"), (), (), ())),
        ("who goes stays listed", "a b", "b", "", Members(("a", "b"), ("a",), (), ())),
        ("until it may leave", "a b", "b c", "a", Members(("b", "c"), (), (), ())),
        ("who is wanted never leaves", "a b", "a b", "a b", Members(("a", "b"), (), (), ())),
        ("nobody wanted: all stay", "a b", "", "a b", Members(("a", "b"), ("a", "b"), (), ())),
        ("not known who: as it is", "a b", None, "a b", Members(("a", "b"), (), (), ())),
        ("a stranger is not listed", "", "a x", "", Members(("a",), (), (), ("x",))),
        ("only strangers", "a", "x", "a", Members(("a",), ("a",), (), ("x",))),
        ("a member that Kueue lost", "x a", "x a", "", Members(("x", "a"), ("x",), (), ("x",))),
        ("nobody at all", "", "", "", Members((), (), (), ())),
    ],
)
def test_members(why: str, current: str, wanted: str | None, free: str, expected: Members) -> None:
    asked = None if wanted is None else tuple(wanted.split())
    there = known("a", "b", "c")
    assert members(tuple(current.split()), asked, there, free=free.split()) == expected, why


def test_marks_stay_while_it_is_not_known_who_is_wanted() -> None:
    found = members(("a", "b"), None, known("a", "b"), marked=("b", "gone"))
    assert found == Members(("a", "b"), ("b",), (), ())


def test_the_first_twenty_are_listed_and_the_rest_is_named() -> None:
    found = members((), NAMES, known(*NAMES))
    assert found == Members(NAMES[:20], (), NAMES[20:], ())


def test_a_full_configuration_takes_the_next_when_somebody_has_left() -> None:
    full, wanted = NAMES[:20], NAMES[1:21]
    found = members(full, wanted, known(*NAMES))
    assert found == Members(full, (NAMES[0],), (NAMES[20],), ())
    found = members(full, wanted, known(*NAMES), free=(NAMES[0],))
    assert found == Members((*NAMES[1:20], NAMES[20]), (), (), ())


def test_decisions_may_use_the_name_of_the_fleet() -> None:
    east = cluster("hub-east", annotations={"berthmaster.io/cluster": "east"})
    known_by = names_of({"hub-east": east, "west": cluster("west")})
    assert known_by == {"east": "hub-east", "hub-east": "hub-east", "west": "west"}
    assert members((), ("east", "west", "hub-east"), known_by).clusters == ("hub-east", "west")


some = st.lists(st.sampled_from(NAMES), unique=True, max_size=30)


@given(
    current=st.lists(st.sampled_from(NAMES), unique=True, max_size=MOST),
    wanted=st.none() | some,
    there=some,
    free=some,
    marked=some,
)
def test_laws(
    current: list[str],
    wanted: list[str] | None,
    there: list[str],
    free: list[str],
    marked: list[str],
) -> None:
    asked = None if wanted is None else tuple(wanted)
    found = members(tuple(current), asked, known(*there), marked=marked, free=free)
    assert len(found.clusters) <= MOST
    assert len(set(found.clusters)) == len(found.clusters)
    # Nobody who may not leave is missing, and who stays keeps the order and stands first.
    kept = [name for name in current if name in found.clusters]
    assert set(current) - set(found.clusters) <= set(free)
    assert list(found.clusters[: len(kept)]) == kept
    # Who came is wanted and known, in the order of the wish.
    fresh = found.clusters[len(kept) :]
    assert list(fresh) == [n for n in wanted or () if n in fresh and n in there]
    # It is never emptied, and nothing open is unwanted.
    assert found.clusters or not current
    assert wanted is None or set(found.open) <= set(wanted)
    assert set(found.draining) <= set(current)
    # Once more, nothing changes.
    again = members(found.clusters, asked, known(*there), marked=found.draining, free=())
    assert again.clusters == found.clusters
    assert again.draining == found.draining

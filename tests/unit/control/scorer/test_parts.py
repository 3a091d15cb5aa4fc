"""The agenda, the largest value, the shards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.control.scorer.core.scorer import Agenda
from berthmaster.control.scorer.core.shard import Shard, parse_shard, shard_of
from berthmaster.control.scorer.core.totals import Largest


def test_an_agenda_gives_what_is_due_in_order_and_once() -> None:
    agenda: Agenda[str] = Agenda()
    agenda.set("late", 9)
    agenda.set("soon", 2)
    agenda.set("sooner", 1)
    agenda.set("moved", 3)
    agenda.set("moved", 8)
    agenda.advance("late", 10)  # no: it is due earlier already
    agenda.advance("late", 7)
    agenda.drop("soon")
    assert agenda.next_s() == 1
    assert agenda.pop_due(7) == ["sooner", "late"]
    assert agenda.pop_due(7) == []
    assert (agenda.next_s(), len(agenda)) == (8, 1)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20))))
def test_an_agenda_that_is_moved_a_lot_stays_small_and_right(moves: list[tuple[int, int]]) -> None:
    agenda: Agenda[int] = Agenda()
    for key, at_s in moves * 20:
        agenda.set(key, at_s)
    assert len(agenda._heap) <= 4 * 6 + 65
    known = dict(moves)
    assert sorted(agenda.pop_due(10)) == sorted(key for key, at_s in known.items() if at_s <= 10)
    assert agenda.next_s() == min((at_s for at_s in known.values() if at_s > 10), default=None)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.integers(-9, 9))))
def test_the_largest_value_is_that_of_those_that_are_there(
    changes: list[tuple[str, int | None]],
) -> None:
    largest, there = Largest(), dict[str, int]()
    for key, value in changes:
        largest.put(key, value)
        if value is None:
            there.pop(key, None)
        else:
            there[key] = value
        assert largest.value() == max([0, *there.values()])


def test_a_shard_is_the_same_on_every_machine_for_ever() -> None:
    names = ("east", "a.b c", "", "grün", "-")
    assert [shard_of(name, 8) for name in names] == [2, 1, 5, 8, 8]


@given(st.text(), st.integers(1, 64))
def test_each_cluster_has_exactly_one_shard(name: str, count: int) -> None:
    owners = [at for at in range(1, count + 1) if Shard(at, count).owns(name)]
    assert owners == [shard_of(name, count)]


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/0", "a/b", "1/2\n", "-1/2", "1/99999"])
def test_what_is_no_shard_is_told_apart(text: str) -> None:
    assert parse_shard(text) is None


def test_a_shard_names_its_lease() -> None:
    shard = parse_shard("2/8")
    assert shard == Shard(2, 8)
    assert shard.lease == "scorer.2-of-8"

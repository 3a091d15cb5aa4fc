"""Pods over clusters, with Karmada's published divisions as vectors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.control.resolver.core.deciding.division import by_weight, divided, on_fewest
from berthmaster.lib.messages.workload import Divide


@pytest.mark.parametrize(
    ("pods", "weights", "divided"),
    [
        (13, {"m1": 3, "m2": 2, "m3": 1}, {"m1": 7, "m2": 4, "m3": 2}),
        (14, {"m1": 3, "m2": 2, "m3": 1}, {"m1": 7, "m2": 5, "m3": 2}),
        (12, {"m1": 20, "m2": 12, "m3": 6}, {"m1": 6, "m2": 4, "m3": 2}),
        (5, {"m1": 1, "idle": 0}, {"m1": 5, "idle": 0}),
    ],
)
def test_by_weight(pods: int, weights: dict[str, int], divided: dict[str, int]) -> None:
    assert by_weight(pods, weights) == divided


def test_on_as_few_clusters_as_have_the_room() -> None:
    assert on_fewest(12, {"m1": 6, "m2": 8, "m3": 10}) == {"m2": 5, "m3": 7}
    assert on_fewest(10, {"m1": 6, "m2": 8, "m3": 10}) == {"m3": 10}
    assert on_fewest(12, {"m1": 3, "m2": 3, "m3": 3, "full": 0}) == {"m1": 3, "m2": 3, "m3": 3}


@given(
    pods=st.integers(1, 60),
    room=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 20), max_size=6),
)
def test_division_stays_within_room(pods: int, room: dict[str, int]) -> None:
    parts = on_fewest(pods, room)
    assert sum(parts.values()) == min(pods, sum(room.values()))
    assert all(0 < count <= room[name] for name, count in parts.items())
    if parts:  # with one cluster less it would not be enough
        largest = sorted(room.values(), reverse=True)[: len(parts) - 1]
        assert sum(largest) < pods


def test_more_pods_beside_those_that_there_are() -> None:
    room = {"m1": 10, "m2": 10, "m3": 10}
    more = by_weight(12, room, room)
    assert {name: held + more[name] for name, held in (("m1", 2), ("m2", 4), ("m3", 6))} == {
        "m1": 6,
        "m2": 8,
        "m3": 10,
    }
    left = by_weight(
        6, {"m1": 3, "m2": 3}, {"m1": 3, "m2": 3}
    )  # of 6 on m1, and 6 on m3 that is gone
    assert {"m1": 6 + left["m1"], "m2": left["m2"]} == {"m1": 9, "m2": 3}


@pytest.mark.parametrize(
    ("how", "pods", "room", "parts"),
    [
        (Divide(), 12, {"m1": 6, "m2": 8, "m3": 10}, {"m2": 5, "m3": 7}),
        (Divide(by="weight"), 12, {"m1": 20, "m2": 12, "m3": 6}, {"m1": 6, "m2": 4, "m3": 2}),
        (Divide(by="weight"), 12, {"m1": 3, "m2": 3, "m3": 3}, {}),
        (
            Divide(by="weight", weights={"m1": 3, "m2": 2, "m3": 1}),
            14,
            {"m1": 14, "m2": 14, "m3": 14, "m4": 14},
            {"m1": 7, "m2": 5, "m3": 2},
        ),
        (
            Divide(by="weight", weights={"m1": 9, "m2": 1}),
            6,
            {"m1": 4, "m2": 9},
            {"m1": 4, "m2": 2},
        ),
        (Divide(min_part=4), 12, {"m1": 10, "m2": 4}, {"m1": 8, "m2": 4}),
        (Divide(min_part=3), 5, {"m1": 4, "m2": 4}, {}),
        (
            Divide(by="weight", min_part=4),
            12,
            {"a": 9, "b": 8, "c": 7, "d": 6},
            {"a": 4, "b": 4, "c": 4},
        ),
    ],
)
def test_divided(how: Divide, pods: int, room: dict[str, int], parts: dict[str, int]) -> None:
    assert divided(pods, room, how) == parts


@given(
    how=st.builds(
        Divide,
        by=st.sampled_from(("room", "weight")),
        min_part=st.integers(1, 6),
        weights=st.just({}),
    ),
    pods=st.integers(1, 60),
    room=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 20), max_size=6),
)
def test_all_pods_are_divided_or_none_is(how: Divide, pods: int, room: dict[str, int]) -> None:
    parts = divided(pods, room, how)
    assert sum(parts.values()) in (0, pods)
    assert all(how.min_part <= count <= room[name] for name, count in parts.items())

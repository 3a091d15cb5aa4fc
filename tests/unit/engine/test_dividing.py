"""Pods over clusters, with Karmada's published divisions as vectors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.engine.queueing.dividing import by_weight, on_fewest


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
def test_all_that_fits_is_divided_and_nobody_gets_more_than_its_room(
    pods: int, room: dict[str, int]
) -> None:
    parts = on_fewest(pods, room)
    assert sum(parts.values()) == min(pods, sum(room.values()))
    assert all(0 < count <= room[name] for name, count in parts.items())
    if parts:  # with one cluster less it would not be enough
        largest = sorted(room.values(), reverse=True)[: len(parts) - 1]
        assert sum(largest) < pods

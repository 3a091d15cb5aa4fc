"""Clusters by score: the same bits in C as by numpy, and no call ends the process."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berthmaster.lib.engine.scoring.cluster_scores import (
    Field,
    Fixed,
    Ranked,
    SetFit,
    fit_costs,
    in_order,
    ranked,
    shown,
)
from berthmaster.lib.engine.scoring.compiled import COMPILED, cards
from berthmaster.lib.engine.scoring.value import NOT_HERE, worth_of
from berthmaster.lib.messages.workload import PodSet
from tests.support.builders import pod_set
from tests.unit.lib.engine.fleets import UNHURRIED, pods
from tests.unit.lib.engine.test_compiled import MIXES, SPOILT, WRONG

in_c = pytest.mark.skipif(
    not COMPILED, reason="engine.scoring._cards is not built here (no compiler or headers?)"
)

FACTORS = st.sampled_from([0.0, 0.25, 0.5, 1 / 3, -0.125])


def field_of(clusters: int, seed: int, room: float, fit: float) -> Field:
    chance = np.random.default_rng(seed)
    return Field(
        free_milli=chance.choice([0, 1, 470, 64_000, 10**15], clusters),
        all_milli=chance.choice([0, 1, 3000, 64_000, 10**15 + 1], clusters),
        total=chance.choice([0.0, 12.5, 100 / 3, -7.0], clusters),
        room=room,
        fit=fit,
    )


def fixed_of(clusters: int, seed: int) -> Fixed:
    parts = ("idle", "interference", "wait")[: seed % 4]
    return Fixed(parts, np.random.default_rng(seed + 3).random((len(parts), clusters)) * 100.0)


def bests(clusters: int, seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    chance = np.random.default_rng(seed + 1)
    return chance.choice([NOT_HERE, 0.0, -1.0, 0.1, 0.7, 1e9], clusters).astype(np.float32)


@in_c
@settings(UNHURRIED, max_examples=200)
@given(
    st.integers(0, 200),
    st.integers(0, 1 << 32),
    FACTORS,
    FACTORS,
    st.lists(pods(), min_size=1, max_size=3),
    st.sampled_from(MIXES),
    st.booleans(),
)
def test_clusters_ranked_in_c_have_the_bits_of_those_that_numpy_ranks(
    clusters: int, seed: int, room: float, fit: float, needs: list[PodSet], mix: Any, single: bool
) -> None:
    field = field_of(clusters, seed, room, fit)
    may = np.random.default_rng(seed + 2).random(clusters) < 0.8

    def by(*, compiled: bool) -> Ranked:
        worth = worth_of(mix)
        sets = [
            SetFit(bests(clusters, seed + number), *fit_costs(need, worth))
            for number, need in enumerate(needs)
        ]
        return ranked(field, sets, may, single=single, compiled=compiled)

    ours, twins = by(compiled=True), by(compiled=False)
    assert ours.values.tobytes() == twins.values.tobytes()
    assert (ours.able, ours.order) == (twins.able, twins.order)
    fixed = fixed_of(clusters, seed)
    told = shown(ours.values, field.parts, fixed, ours.order, compiled=True)
    assert told == shown(twins.values, field.parts, fixed, ours.order, compiled=False)
    assert [list(parts) for _, parts in told] == [[*field.parts, *fixed.parts]] * len(told)


def test_the_best_come_first_and_the_unable_not_at_all() -> None:
    score = np.array([1.0, 3.0, 3.0, 9.0, 2.0])
    able = np.array([True, True, True, False, True])
    assert in_order(score, able) == [1, 2, 4, 0]


# Calls that are wrong

CLUSTERS = 6


def handed() -> list[Any]:
    field = field_of(CLUSTERS, 1, 0.5, 0.5)
    may = np.ones(CLUSTERS, np.bool_)
    sets = ((bests(CLUSTERS, 1), 50.0, 50.0), (bests(CLUSTERS, 2), 25.0, 50.0))
    return [np.zeros((3, CLUSTERS)), *field, sets, may, True]


@in_c
@pytest.mark.parametrize("spoilt", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("how", SPOILT)
def test_wrong_arrays_are_refused(spoilt: int, how: str) -> None:
    arrays, rank = handed(), getattr(cards, "rank")  # noqa: B009 - of any type
    arrays[spoilt] = SPOILT[how](arrays[spoilt])
    if how == "other byte order" and arrays[spoilt].dtype == np.bool_:
        rank(*arrays)
        return
    with pytest.raises(WRONG):
        rank(*arrays)


@in_c
@pytest.mark.parametrize("how", SPOILT)
def test_a_set_with_a_wrong_array_is_refused(how: str) -> None:
    arrays = handed()
    spoilt = SPOILT[how](bests(CLUSTERS, 1))
    for sets in (((spoilt, 50.0, 50.0),), (arrays[6][0], (spoilt, 50.0, 50.0))):
        arrays[6] = sets
        with pytest.raises(WRONG):
            cards.rank(*arrays)


@in_c
def test_other_things_are_refused() -> None:
    rank: Any = cards.rank
    show: Any = cards.shown
    values = np.zeros((3, CLUSTERS))
    for at, other in (
        (4, "1"),
        (5, None),
        (8, None),
        (6, ()),
        (6, ((),)),
        (0, np.empty((2, CLUSTERS))),
    ):
        arrays = handed()
        arrays[at] = other
        with pytest.raises(WRONG):
            rank(*arrays)
    with pytest.raises(TypeError):
        rank(*handed()[:-1])
    fixed = np.zeros((1, CLUSTERS))
    of_request, of_cluster = ("fit", "room"), ("idle",)
    for args in (
        (),
        (values, of_request, [0]),
        (values, list(of_request), fixed, of_cluster, [0]),
        (values, of_request, fixed, list(of_cluster), [0]),
        (values, of_request, fixed, of_cluster, (0,)),
    ):
        with pytest.raises(TypeError):
            show(*args)
    for wrong in (
        (values, ("fit",), fixed, of_cluster),
        (values, of_request, fixed, ()),
        (values, of_request, np.zeros((1, CLUSTERS - 1)), of_cluster),
    ):
        with pytest.raises(ValueError, match="long, not"):
            show(*wrong, [0])
    for number in (-1, CLUSTERS, 1 << 70):
        with pytest.raises((IndexError, OverflowError)):
            show(values, of_request, fixed, of_cluster, [number])


@in_c
@pytest.mark.parametrize("how", SPOILT)
def test_wrong_arrays_of_what_is_shown_are_refused(how: str) -> None:
    for spoilt in (0, 2):
        args: list[Any] = [np.zeros((2, 6)), ("fit",), np.zeros((1, 6)), ("idle",), [0]]
        args[spoilt] = SPOILT[how](args[spoilt])
        with pytest.raises(WRONG):
            cards.shown(*args)


@in_c
def test_what_cannot_be_written_is_refused() -> None:
    arrays = handed()
    arrays[0].flags.writeable = False
    with pytest.raises(WRONG):
        cards.rank(*arrays)


def test_a_pod_needs_a_node_and_a_gang_its_bound() -> None:
    field, best = field_of(3, 1, 0.5, 0.5), np.array([NOT_HERE, 1.0, NOT_HERE], np.float32)
    may = np.array([True, True, False])
    args = field, [SetFit(best, *fit_costs(pod_set(), worth_of(())))], may
    assert ranked(*args, single=True).order == [1]
    assert sorted(ranked(*args, single=False).order) == [0, 1]

"""Each component of a score: its bounds whatever it is fed, and what its words promise."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from berthmaster.lib.engine.fleet.shares import wants_fraction
from berthmaster.lib.engine.fleetview.components import (
    BUSY,
    FITS,
    NO_NODES,
    NO_QUOTA,
    PRICE,
    ROWS,
    matches,
    price_of,
    score_headroom,
    score_idle,
    score_interference,
    score_locality,
    score_price,
    score_tier,
    score_wait,
)
from berthmaster.lib.engine.fleetview.ranking import BY_NODES
from berthmaster.lib.engine.scoring.cluster_scores import (
    UNKNOWN,
    Floats,
    fit_costs,
    percent_a_milli,
    recorded,
    score_fit,
    score_room,
)
from berthmaster.lib.engine.scoring.profiles import COMPONENTS
from berthmaster.lib.engine.scoring.value import worth_of
from berthmaster.lib.messages.workload import PodSet
from tests.support.builders import pod_set

NO_MIX = worth_of(())
absurd = st.sampled_from(
    [math.nan, math.inf, -math.inf, -1.0, -0.0, 0.0, 5e-324, 1e308, 100.0, 1e-9]
)
values = absurd | st.floats(allow_nan=True, allow_infinity=True) | st.floats(0, 100)
COUNT = 5
rows = st.lists(values, min_size=COUNT, max_size=COUNT).map(np.array)
amounts = st.lists(st.integers(-(1 << 40), 1 << 50), min_size=COUNT, max_size=COUNT).map(
    lambda found: np.array(found, np.int64)
)
masks = st.lists(st.booleans(), min_size=COUNT, max_size=COUNT).map(
    lambda found: np.array(found, np.bool_)
)
pods = st.builds(
    lambda gpus, milli: pod_set(gpus=gpus, gpu_milli=milli if gpus == 1 else 1000),
    st.integers(0, 64),
    st.integers(1, 1000),
)
scores = st.lists(
    st.floats(width=32, allow_nan=False) | st.just(-math.inf), min_size=COUNT, max_size=COUNT
).map(lambda found: np.array(found, np.float32))


def of_room(free: NDArray[np.int64], has: NDArray[np.int64]) -> Floats:
    return score_room(free, percent_a_milli(has))


# Every component with what it is made of; none may be missing.
FED: dict[str, tuple[Callable[..., Floats], tuple[st.SearchStrategy[Any], ...]]] = {
    "fit": (lambda p, best: score_fit(best, fit_costs(p, NO_MIX)), (pods, scores)),
    "room": (of_room, (amounts, amounts)),
    "idle": (score_idle, (rows,)),
    "interference": (score_interference, (rows,)),
    "wait": (score_wait, (rows, rows, rows)),
    "price": (score_price, (rows, masks)),
    "locality": (score_locality, (rows, st.integers(-1, 64))),
    "tier": (score_tier, (rows,)),
    "headroom": (score_headroom, (rows, masks)),
}
ALWAYS_KNOWN = {"fit", "room"}


def test_every_component_has_a_row_a_description_and_a_place_in_this_test() -> None:
    assert list(ROWS) == list(COMPONENTS) == list(FED)
    for name, about in COMPONENTS.items():
        functions = [each for each in (ROWS[name].of_clusters, ROWS[name].of_request) if each]
        assert len(functions) == (name not in BY_NODES)
        assert 20 < len(about) < 100


@pytest.mark.parametrize("name", COMPONENTS)
def test_a_part_stays_within_its_bounds_whatever_it_is_fed(name: str) -> None:
    part, fed = FED[name]

    @settings(max_examples=300, deadline=None)
    @given(st.tuples(*fed))
    def check(given_: tuple[Any, ...]) -> None:
        found = part(*given_)
        assert found.shape == (COUNT,)
        assert found.dtype == np.float64
        known = ~np.isnan(found)
        assert known.all() or name not in ALWAYS_KNOWN
        assert ((found[known] >= 0.0) & (found[known] <= 100.0)).all()
        assert all(0.0 <= recorded(each) <= 100.0 for each in found.tolist())

    check()


@pytest.mark.parametrize(
    "name", sorted(set(COMPONENTS) - ALWAYS_KNOWN - {"price", "locality", "headroom"})
)
def test_what_is_no_amount_is_not_known_and_changes_nothing_for_others(name: str) -> None:
    part, fed = FED[name]
    good = np.array([10.0, 20.0, 30.0])
    for wrong in (math.nan, math.inf, -math.inf, -1.0):
        bad = np.array([10.0, wrong, 30.0])
        for at in range(len(fed)):
            found = part(*(bad if at == other else good for other in range(len(fed))))
            right = part(*(good for _ in fed))
            assert math.isnan(found[1])
            assert found[[0, 2]].tolist() == right[[0, 2]].tolist()


def row(*given_: float) -> Floats:
    return np.array(given_, np.float64)


@given(pods=pods, best=scores, free=amounts, has=amounts)
def test_fit_and_room_are_what_plain_doubles_come_to_bit_by_bit(
    pods: PodSet, best: NDArray[np.float32], free: NDArray[np.int64], has: NDArray[np.int64]
) -> None:
    a_gpu = 50.0 / max(1, pods.gpus)
    own = NO_MIX.hole.item(pods.gpu_milli) if wants_fraction(pods) else 0.0
    by_hand = [within(score * a_gpu + (50.0 + a_gpu * own)) for score in best.tolist()]
    assert score_fit(best, fit_costs(pods, NO_MIX)).tolist() == by_hand

    shares = zip(free.tolist(), has.tolist(), strict=True)
    by_hand = [within(100.0 / max(1, milli) * left) for left, milli in shares]
    assert of_room(free, has).tolist() == by_hand


def within(value: float) -> float:
    return min(max(value, 0.0), 100.0)


def test_fit_is_even_where_a_pod_costs_what_it_asks_for() -> None:
    best = np.array([0.0, -1.0, 1.0, -9.0, -np.inf], np.float32)
    assert score_fit(best, fit_costs(pod_set(gpus=1), NO_MIX)).tolist() == [
        50.0,
        0.0,
        100.0,
        0.0,
        0.0,
    ]
    assert score_fit(best, fit_costs(pod_set(gpus=2), NO_MIX)).tolist() == [
        50.0,
        25.0,
        75.0,
        0.0,
        0.0,
    ]


def test_room_is_the_free_share_and_a_cluster_without_gpus_has_none() -> None:
    free, has = np.array([0, 2500, 8000, 0]), np.array([8000, 10_000, 8000, 0])
    assert of_room(free, has).tolist() == [0.0, 25.0, 100.0, 0.0]


def test_wait_counts_who_is_ahead_in_lengths_of_a_job_and_halves_what_is_borrowed() -> None:
    ahead, admitted = row(0, 0, 5, 5, 50), row(0, 0, 0, 4, 9)
    found = score_wait(ahead, admitted, row(0, 1, 0, 0, 1))
    assert found.round(4).tolist() == [100.0, 50.0, 16.6667, 50.0, 8.3333]


def test_price_compares_with_the_cheapest_that_could_take_it() -> None:
    everybody = np.ones(4, np.bool_)
    prices = row(4, 1, 2, UNKNOWN)
    assert score_price(prices, everybody).tolist()[:3] == [25.0, 100.0, 50.0]
    assert math.isnan(score_price(prices, everybody)[3])
    full = np.array([True, False, True, True])  # the cheapest has no room
    assert score_price(prices, full).tolist()[:3] == [50.0, 100.0, 100.0]
    free = score_price(row(0, 1, 0, 3), everybody)
    assert free.tolist() == [100.0, 0.0, 100.0, 0.0]
    assert np.isnan(score_price(row(UNKNOWN, UNKNOWN), everybody[:2])).all()
    nobody = score_price(row(1, 2), np.zeros(2, np.bool_))
    assert np.isnan(nobody).all()


@pytest.mark.parametrize(
    ("told_", "model", "right"),
    [
        ({}, "A100", None),
        ({PRICE: "2.5"}, "A100", 2.5),
        ({PRICE: "2.5"}, "", 2.5),
        ({PRICE: "2.5", f"{PRICE}.A100": "4"}, "NVIDIA-A100-SXM4-80GB", 4.0),
        ({PRICE: "2.5", f"{PRICE}.A100": "4"}, "T4", 2.5),
        ({PRICE: "2.5", f"{PRICE}.A100": "4"}, "", 2.5),
        ({f"{PRICE}.A10": "4"}, "A100", None),
        ({f"{PRICE}.A100": "dear", PRICE: "2"}, "A100", None),
        ({PRICE: "0"}, "A100", 0.0),
        ({PRICE: "-1"}, "A100", None),
        ({PRICE: "inf"}, "A100", None),
        ({PRICE: "nan"}, "A100", None),
        ({PRICE: "$2"}, "A100", None),
        ({PRICE: "1" * 400}, "A100", None),
        ({PRICE: ""}, "A100", None),
    ],
)
def test_a_price_is_a_bare_number_and_one_for_the_model_goes_before(
    told_: dict[str, str], model: str, right: float | None
) -> None:
    found = price_of(told_, model)
    assert math.isnan(found) if right is None else found == right


def test_locality_is_the_share_of_the_words_that_hold() -> None:
    told_ = {"region": "eu", "topology.kubernetes.io/zone": "eu-1", "empty": ""}
    data = ("berlin", "region=eu", "region=us", "empty=")
    assert matches(data, "berlin", told_) == 3
    assert matches(data, "paris", {"region": "us"}) == 1
    assert matches(("region",), "berlin", told_) == 0
    found = score_locality(row(3, 1, 0), len(data))
    assert found.tolist() == [75.0, 25.0, 0.0]
    assert score_locality(row(0), 0).tolist() == [0.0]


def test_each_tier_is_a_third_and_what_is_no_tier_is_not_known() -> None:
    found = score_tier(np.array([FITS, BUSY, NO_NODES, NO_QUOTA, UNKNOWN]))
    assert [round(value, 2) for value in found.tolist()[:4]] == [100.0, 66.67, 33.33, 0.0]
    assert np.isnan(found[4])


def test_headroom_is_beside_the_most_of_those_among_the_choice() -> None:
    gpus, all_ = np.array([40.0, 10.0, 0.0, 80.0]), np.ones(4, np.bool_)
    among = np.array([True, True, True, False])
    assert score_headroom(gpus, among).tolist()[:3] == [100.0, 25.0, 0.0]
    assert score_headroom(gpus, all_).tolist() == [50.0, 12.5, 0.0, 100.0]
    assert score_headroom(np.zeros(4), all_).tolist() == [0.0] * 4

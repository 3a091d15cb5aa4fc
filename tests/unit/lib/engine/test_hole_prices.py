"""Prices of parts of GPUs against their slow, exact twin: every pattern, every vertex."""

from fractions import Fraction
from functools import lru_cache
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berthmaster.lib.engine.scoring.value import MAX_SIZES, hole_prices, hole_values
from tests.unit.lib.engine.fleets import UNHURRIED

demands = st.dictionaries(st.integers(150, 999), st.integers(1, 1000), min_size=1, max_size=3)


def patterns(sizes: tuple[int, ...], room: int = 1000) -> list[tuple[int, ...]]:
    """Every way in which pods of these sizes share a GPU."""
    if not sizes:
        return [()]
    return [
        (number, *rest)
        for number in range(room // sizes[0] + 1)
        for rest in patterns(sizes[1:], room - number * sizes[0])
    ]


def solve(rows: list[list[Fraction]], right: list[Fraction]) -> list[Fraction] | None:
    """Gauss, exactly; None if there is no single solution."""
    n = len(rows)
    matrix = [[*row, value] for row, value in zip(rows, right, strict=True)]
    for at in range(n):
        pivot = next((r for r in range(at, n) if matrix[r][at]), None)
        if pivot is None:
            return None
        matrix[at], matrix[pivot] = matrix[pivot], matrix[at]
        matrix[at] = [value / matrix[at][at] for value in matrix[at]]
        for r in range(n):
            if r != at and matrix[r][at]:
                factor = matrix[r][at]
                matrix[r] = [a - factor * b for a, b in zip(matrix[r], matrix[at], strict=True)]
    return [row[n] for row in matrix]


def fewest_gpus(demand: dict[int, int]) -> Fraction:
    """The optimum, from every vertex of the dual: prices >= 0, and no pattern pays more than 1."""
    sizes = tuple(sorted(demand))
    n = len(sizes)
    limits = [([Fraction(v) for v in p], Fraction(1)) for p in patterns(sizes) if any(p)]
    limits += [
        ([Fraction(-1) if i == at else Fraction(0) for i in range(n)], Fraction(0))
        for at in range(n)
    ]
    # A pattern that is part of another binds nothing that the other does not.
    full = {
        tuple(row)
        for row, _ in limits
        if not any(
            other != row and all(a <= b for a, b in zip(row, other, strict=True))
            for other, _ in limits
        )
    }
    tight = [(row, right) for row, right in limits if tuple(row) in full or right == 0]
    best = Fraction(0)
    for chosen in combinations(tight, n):
        vertex = solve([row for row, _ in chosen], [right for _, right in chosen])
        if vertex is None or any(
            sum(a * x for a, x in zip(row, vertex, strict=True)) > right for row, right in tight
        ):
            continue
        paid = (demand[s] * x for s, x in zip(sizes, vertex, strict=True))
        best = max(best, sum(paid, Fraction(0)))
    return best


@settings(UNHURRIED, max_examples=60)
@given(demands)
def test_price_uses_fewest_gpus(demand: dict[int, int]) -> None:
    prices = hole_prices(demand)
    sizes = tuple(sorted(demand))
    assert tuple(prices) == sizes
    assert all(price >= 0 for price in prices.values())
    for pattern in patterns(sizes):
        paid = sum(n * prices[size] for n, size in zip(pattern, sizes, strict=True))
        assert paid <= 1 + 1e-7
    paid = sum(demand[size] * price for size, price in prices.items())
    assert paid == pytest.approx(float(fewest_gpus(demand)), rel=1e-7)


@settings(UNHURRIED, max_examples=40)
@given(st.dictionaries(st.integers(1, 999), st.integers(1, 9), max_size=6))
def test_a_hole_is_worth_the_most_that_pods_in_it_pay(demand: dict[int, int]) -> None:
    prices = hole_prices(demand)

    @lru_cache(None)
    def most(room: int) -> float:
        return max((prices[s] + most(room - s) for s in prices if s <= room), default=0.0)

    values = hole_values(prices)
    for room in range(0, 1000, 7):
        assert values[room] == pytest.approx(min(1.0, most(room)), abs=1e-9)
    assert values[1000] == 1.0
    assert (values[1:] >= values[:-1] - 1e-12).all()


def test_pods_that_halve_a_gpu_are_worth_half_of_it() -> None:
    assert hole_prices({500: 3}) == pytest.approx({500: 0.5})
    values = hole_values(hole_prices({500: 3}))
    assert [float(values[room]) for room in (0, 499, 500, 999, 1000)] == [0.0, 0.0, 0.5, 0.5, 1.0]


def test_a_pod_that_needs_a_gpu_of_its_own_costs_all_of_it_unless_another_fits_beside() -> None:
    assert hole_prices({810: 1}) == pytest.approx({810: 1.0})
    # Many small ones: what is left beside 810 is taken by one of them, so it costs the rest only.
    assert hole_prices({810: 1, 160: 1000}) == pytest.approx({810: 5 / 6, 160: 1 / 6})
    # Few small ones fill up what is left anyhow: they are worth nothing.
    assert hole_prices({810: 1000, 160: 1}) == pytest.approx({810: 1.0, 160: 0.0})


def test_nothing_shared_is_nothing_worth_but_a_whole_gpu_is_one() -> None:
    assert hole_prices({}) == {}
    assert hole_prices({1000: 5, 0: 3, 300: 0, -5: 1}) == {}
    values = hole_values({})
    assert (float(values[999]), float(values[1000])) == (0.0, 1.0)


def test_any_number_of_sizes_is_bounded_to_those_most_asked_for() -> None:
    prices = hole_prices({size: size for size in range(1, 1000)})
    assert sorted(prices) == list(range(1000 - MAX_SIZES, 1000))


def test_the_same_demand_has_the_same_prices_to_the_bit() -> None:
    demand = {50: 7, 110: 24, 160: 74, 230: 140, 320: 328, 370: 47, 460: 128, 470: 750, 650: 253}
    again = hole_prices(dict(reversed(demand.items())))
    assert hole_prices(demand) == again
    assert hole_prices({size: 10 * n for size, n in demand.items()}) == again

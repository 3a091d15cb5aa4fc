"""Prices of free GPU fractions (holes), from the mix of pods that share GPUs.

Example: of four pods three request 500 milli and one 250. Then a hole of 500 is worth 0.5 GPUs,
holes of 250 and 300 are worth 0.25, and a hole of 200 is worth nothing.

Packing shared pods into few GPUs is a cutting stock problem. The duals of its linear relaxation are
prices: the real cost of a pod of each size, in GPUs. A hole is worth the most that pods in it could
pay. A whole GPU is worth 1, and no combination in one GPU pays more. So a hole that a likely pod
fills exactly is worth more than its size.

The solver generates columns: a pattern (number of pods of each size on one GPU) enters if it pays
more than a GPU at present prices, as a knapsack finds. Element-wise arithmetic in a fixed order
gives equal prices on every machine.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

WHOLE: Final = 1000
MAX_SIZES: Final = 48  # most requested sizes; holes of other sizes are priced by these
_MAX_PIVOTS: Final = 2000  # safety bound, tens are usual
_EPSILON: Final = 1e-9
_DIGITS: Final = 9  # digits of a price, equal for any order of pivots


def hole_prices(demand: Mapping[int, int]) -> dict[int, float]:
    """Return the price in GPUs by size in milli. ``demand``: relative frequency of sizes."""
    asked = {size: n for size, n in demand.items() if 0 < size < WHOLE and n > 0}
    most = sorted(asked, key=lambda size: (-asked[size] * size, size))[:MAX_SIZES]
    sizes = sorted(most)
    if not sizes:
        return {}
    duals = _duals(sizes, [asked[size] for size in sizes])
    return {size: round(dual, _DIGITS) for size, dual in zip(sizes, duals, strict=True)}


def _duals(sizes: Sequence[int], demand: Sequence[int]) -> list[float]:
    """Revised simplex on patterns: min sum x, each demand met; one column enters at a time."""
    fill = np.array([WHOLE // size for size in sizes], np.float64)
    inverse = np.diag(1.0 / fill)  # of the basis; at first each size alone
    amounts = np.array(demand, np.float64) / sum(demand) / fill
    costs = np.ones(len(sizes))
    duals = costs / fill
    for _ in range(_MAX_PIVOTS):
        lowest = int(duals.argmin())
        if duals[lowest] < -_EPSILON:  # more of this size than requested costs nothing
            column = np.zeros(len(sizes))
            column[lowest] = -1.0
            cost, gain = 0.0, -float(duals[lowest])
        else:
            column, paid = best_pattern(sizes, duals)
            cost, gain = 1.0, paid - 1.0
        if gain <= _EPSILON:
            break
        step = (inverse * column).cumsum(axis=1)[:, -1]  # in order, as no product of BLAS is
        ratio = np.where(step > _EPSILON, amounts / np.where(step > _EPSILON, step, 1.0), np.inf)
        leaves = int(ratio.argmin())
        if not np.isfinite(ratio[leaves]):
            break
        amounts = np.maximum(amounts - ratio[leaves] * step, 0.0)
        amounts[leaves] = ratio[leaves]
        costs[leaves] = cost
        row = inverse[leaves] / step[leaves]
        inverse = inverse - step[:, np.newaxis] * row
        inverse[leaves] = row
        duals = (inverse * costs[:, np.newaxis]).cumsum(axis=0)[-1]
    return [max(0.0, float(dual)) for dual in duals]


def best_pattern(
    sizes: Sequence[int], prices: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """Return the pattern that pays most on one GPU, and its pay."""
    stages = [np.zeros(WHOLE + 1)]
    for size, price in zip(sizes, prices.tolist(), strict=True):
        stages.append(_with_size(stages[-1], size, price))
    pattern = np.zeros(len(sizes))
    room = WHOLE
    for at in range(len(sizes) - 1, -1, -1):
        before, size, price = stages[at], sizes[at], float(prices[at])
        pays = [before[room - n * size] + n * price for n in range(room // size + 1)]
        number = pays.index(max(pays))
        pattern[at] = number
        room -= number * size
    return pattern, float(stages[-1][WHOLE])


def _with_size(value: NDArray[np.float64], size: int, price: float) -> NDArray[np.float64]:
    """The best value of each room, any number of this size allowed: doubling makes every number."""
    if price <= 0.0:
        return value
    value = value.copy()
    step = size
    while step <= WHOLE:
        np.maximum(value[step:], value[:-step] + price, out=value[step:])
        step, price = 2 * step, 2 * price
    return value


def hole_values(prices: Mapping[int, float]) -> NDArray[np.float64]:
    """Return the worth of 0 to 1000 free milli: the most that shared pods there pay; 1 for a whole
    GPU.
    """
    value = np.zeros(WHOLE + 1)
    for size in sorted(prices):
        value = _with_size(value, size, prices[size])
    value = np.minimum(value, 1.0)
    value[WHOLE] = 1.0
    return value

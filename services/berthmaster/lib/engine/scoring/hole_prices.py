"""What a hole in a GPU is worth: the prices of parts, from the pods that share GPUs.

To pack the shared pods that arrive into as few GPUs as possible is a cutting stock problem. The
duals of its linear relaxation are prices: what part of a GPU one pod of a size really costs. A hole
is worth the most that pods in it could pay; a whole GPU is worth 1, and no mix of pods in one GPU
ever pays more. So a hole that a likely pod fills exactly is worth more than its size, one that
nobody fills is worth nothing, and two holes can be compared.

Solved by column generation: a pattern (how many pods of each size share one GPU) enters when it
pays more than a GPU at today's prices, which a knapsack finds. Only element-wise arithmetic in one
order: the same prices on every machine.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

WHOLE: Final = 1000
MAX_SIZES: Final = 48  # the most asked for; of the rest, holes are worth what these would pay
_MAX_PIVOTS: Final = 2000  # a bound that is never met: tens are usual
_EPSILON: Final = 1e-9
_DIGITS: Final = 9  # of a price: the same whichever way it was come by


def hole_prices(demand: Mapping[int, int]) -> dict[int, float]:
    """Size in milli of one GPU -> what a pod of it is worth, in GPUs. ``demand``: how often each
    size is asked for; only proportions matter."""
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
        if duals[lowest] < -_EPSILON:  # more of it than is asked for costs nothing
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
    """How many pods of each size share a GPU so that they pay most, and what they pay."""
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
    """What a GPU with so much free is worth: of 0..1000 milli, the most that shared pods in it pay;
    a whole one is worth 1."""
    value = np.zeros(WHOLE + 1)
    for size in sorted(prices):
        value = _with_size(value, size, prices[size])
    value = np.minimum(value, 1.0)
    value[WHOLE] = 1.0
    return value

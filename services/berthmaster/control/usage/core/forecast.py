"""Forecast of arrivals for the next day, from counts of equal time slots. Pure.

The forecast of a slot mixes the level of the last slots with the counts at the same time of day on
earlier days. The weight of the level halves after each ``HALF_LIFE`` slots. Medians are used
because counts are skewed: the median has the least absolute error.

Example: 3, 5 and 4 jobs arrived in the last three slots, and about one at this time of day on
earlier days. The level is 4. The next slot gets 0.84 * 4 + 0.16 * 1 = 3.5 jobs. Twelve slots later
the level has a weight of 0.125, and the forecast is 1.4.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

DAYS: Final = 28  # of history, for the time of day
AROUND: Final = 1 / 24  # fraction of a day that counts before and after the time of day
LEVEL: Final = 0.5  # weight of the newest slot in the level
NEWEST: Final = 3  # slots whose median is the other half of the level
HALF_LIFE: Final = 4.0  # slots
LOW: Final = 0.1
HIGH: Final = 0.9


class Forecast(NamedTuple):
    """Arrivals in one slot: the median, and the interval from 10 to 90 %."""

    low: float
    middle: float
    high: float


def forecast(counts: Sequence[float], slots_a_day: int, ahead: int) -> list[Forecast]:
    """Forecast the next ``ahead`` slots, at most a day. ``counts``: of all slots so far without a
    gap, oldest first. With less than a day of counts, only the level is used.
    """
    if not counts:
        return []
    level = 0.0
    for count in counts[-10 * NEWEST :]:
        level += LEVEL * (count - level)
    newest = sorted(counts[-NEWEST:])
    level = (level + newest[len(newest) // 2]) / 2
    found = []
    for step in range(1, min(ahead, slots_a_day) + 1):
        usual = sorted(_usual(counts, slots_a_day, len(counts) - 1 + step))
        weight = 0.5 ** (step / HALF_LIFE) if usual else 1.0
        low, middle, high = (_quantile(usual or [level], q) for q in (LOW, 0.5, HIGH))
        mixed = weight * level + (1 - weight) * middle
        found.append(Forecast(min(low, mixed), mixed, max(high, mixed)))
    return found


def _usual(counts: Sequence[float], slots_a_day: int, at: int) -> list[float]:
    """Return the counts around the same time of day on earlier days."""
    around = max(1, round(AROUND * slots_a_day))
    found: list[float] = []
    for day in range(1, DAYS + 1):
        middle = at - day * slots_a_day
        if middle < 0:
            break
        found += counts[max(0, middle - around) : middle + around + 1]
    return found


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile ``share``. ``ordered``: ascending, not empty."""
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])

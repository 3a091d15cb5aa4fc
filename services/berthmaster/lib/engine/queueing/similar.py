"""How long a job takes, as an interval: from how long similar jobs took.

A job belongs to several groups: all jobs, those of its size, its tenant, its shape, its program
(image and command), each of its labels, and all its labels together. ``expectations.py`` keeps the
run times of each group. ``mixed`` shrinks them into one distribution: it begins with the group that
has seen the fewest endings and goes on to the widest. A group of n endings counts n / (n +
SHRINKAGE), and all wider groups share the rest. So two endings of the very same program count half,
and sixty nearly everything.

Example: all 400 jobs took between 10 s and 10 h. The three with the label model=bert took 100,
110 and 120 s. A fourth one weighs those three with 3 / 5, so its median is 110 s and its interval
is wide. After sixty endings it is about 100 to 120 s.

How fast old endings fade differs from place to place: a sweep repeats the last minutes, a nightly
job the last month. ``HALF_LIVES`` are tried side by side, and the one that was least off counts.

The interval is calibrated: ``Calibration`` counts how often jobs ended outside the interval that
was estimated when they were submitted, and widens or narrows it until one in ten ends below and
one in ten above.

Pure: run times in, estimates out. ``state`` and the constructor carry a ``Calibration`` through a
snapshot.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

import msgspec

SHRINKAGE: Final = 2.0  # endings that all wider groups count together
NEWEST: Final = 64  # endings of a group that count
ENOUGH: Final = 3  # endings, before anything is estimated
HALF_LIVES: Final[tuple[float | None, ...]] = (2.0, 12.0, None)  # in endings; None = no fading
LOW: Final = 0.1
HIGH: Final = 0.9
FADE: Final = 100.0  # estimates after which how far off older ones were has faded
STEP: Final = 0.02  # by which one ending moves the interval
LEAST_SPREAD: Final = 0.1  # of logarithms: equal run times may still differ by a tenth
WIDEST: Final = 12.0  # spreads
LONGEST_S: Final = 1e10
_NEGLIGIBLE: Final = 1e-4  # share of a distribution
_DEVIATIONS: Final = 1.28  # between the median and either end, of a normal distribution


class Estimate(NamedTuple):
    """How long a job takes in all, in seconds, and from how many similar jobs that is known."""

    low_s: float  # one in ten takes less
    middle_s: float  # the median
    high_s: float  # one in ten takes longer
    jobs: int  # endings of the closest group that has ENOUGH


class Foreseen(msgspec.Struct, frozen=True, array_like=True):
    """An estimate as it was before calibration, in logarithms: kept until its job ends."""

    median: float
    below: float  # spread of what takes less
    above: float
    medians: tuple[float, ...]  # by half-life


class CalibrationState(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot keeps."""

    low: float = -_DEVIATIONS
    high: float = _DEVIATIONS
    judged: float = 0.0
    off: tuple[float, ...] = (0.0,) * len(HALF_LIVES)


class Group(NamedTuple):
    """The endings of one group."""

    seen: int  # ever
    ran_s: Sequence[float]  # the newest, oldest first


@cache
def _fading(count: int, half_life: float | None) -> tuple[tuple[float, ...], float]:
    """Return the weights of so many endings, the oldest first, and their sum."""
    fading = 1.0 if half_life is None else 0.5 ** (1.0 / half_life)
    weights = tuple(fading ** (count - 1 - at) for at in range(count))
    return weights, sum(weights)


def mixed(groups: Sequence[Group], half_life: float | None) -> list[tuple[float, float]]:
    """Return logarithms of run times with their weights, sorted. ``groups``: the widest first."""
    found: list[tuple[float, float]] = []
    rest = 1.0  # share of the distribution that is left to wider groups
    for at in reversed(range(len(groups))):
        newest = groups[at].ran_s[-NEWEST:]
        weights, total = _fading(len(newest), half_life)
        share = total / (total + SHRINKAGE) if at else 1.0
        found += [
            (math.log1p(ran_s), weight)
            for ran_s, w in zip(newest, weights, strict=True)
            if (weight := rest * share * w / total) > _NEGLIGIBLE
        ]
        rest *= 1.0 - share
        if rest <= _NEGLIGIBLE:
            break
    found.sort()
    return found


def quantiles(weighted: Sequence[tuple[float, float]], shares: Sequence[float]) -> list[float]:
    """Return the values below which these shares of the weight are. ``weighted``: sorted, not
    empty; ``shares``: ascending."""
    total = sum(weight for _, weight in weighted)
    found, passed, at = [], 0.0, 0
    for share in shares:
        while at < len(weighted) - 1 and passed + weighted[at][1] < share * total:
            passed += weighted[at][1]
            at += 1
        found.append(weighted[at][0])
    return found


class Calibration:
    """Which half-life counts, and how wide intervals must be."""

    def __init__(self, state: CalibrationState = CalibrationState()) -> None:  # noqa: B008
        self._low, self._high = state.low, state.high
        self._judged = state.judged
        self._off = list(state.off)

    def estimate(self, groups: Sequence[Group]) -> Estimate | None:
        """Estimate from a job's groups, the widest first; None while too little is known."""
        if not groups or max(group.seen for group in groups) < ENOUGH:
            return None
        seen = self._spread(mixed(groups, HALF_LIVES[self._best]))
        low, high = self._interval(*seen)
        jobs = next(group.seen for group in reversed(groups) if group.seen >= ENOUGH)
        median_s = _seconds(seen[0])
        return Estimate(min(_seconds(low), median_s), median_s, max(_seconds(high), median_s), jobs)

    def foresee(self, groups: Sequence[Group]) -> Foreseen | None:
        """Return what ``judge`` needs when the job ends; None while too little is known."""
        if not groups or max(group.seen for group in groups) < ENOUGH:
            return None
        spreads = [self._spread(mixed(groups, half_life)) for half_life in HALF_LIVES]
        return Foreseen(*spreads[self._best], tuple(spread[0] for spread in spreads))

    def judge(self, foreseen: Foreseen, ran_s: float) -> None:
        """Learn from how far off an estimate was."""
        value = math.log1p(ran_s)
        self._judged = min(FADE, self._judged + 1.0)
        for at, median in enumerate(foreseen.medians):
            self._off[at] += (abs(median - value) - self._off[at]) / self._judged
        away = value - foreseen.median
        away /= foreseen.below if away < 0 else foreseen.above
        self._low = _moved(self._low, LOW, away)
        self._high = _moved(self._high, HIGH, away)

    def state(self) -> CalibrationState:
        return CalibrationState(
            low=self._low, high=self._high, judged=self._judged, off=tuple(self._off)
        )

    @property
    def _best(self) -> int:
        """The half-life that was least off; of equal ones the longest."""
        return min(range(len(HALF_LIVES)), key=lambda at: (self._off[at], -at))

    @staticmethod
    def _spread(weighted: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
        """Return the median, and the spread below and above."""
        low, median, high = quantiles(weighted, (LOW, 0.5, HIGH))
        below = (median - low) / _DEVIATIONS + LEAST_SPREAD
        return median, below, (high - median) / _DEVIATIONS + LEAST_SPREAD

    def _interval(self, median: float, below: float, above: float) -> tuple[float, float]:
        low = median + self._low * (below if self._low < 0 else above)
        return low, median + self._high * (below if self._high < 0 else above)


def _moved(bound: float, share: float, away: float) -> float:
    """Return a bound of the interval after one more ending, so that in the long run this share of
    the endings is below."""
    step = STEP * (1.0 + abs(bound))
    moved = bound + (step * (share - 1.0) if away < bound else step * share)
    return min(WIDEST, max(-WIDEST, moved))


def _seconds(logarithm: float) -> float:
    return math.expm1(min(math.log1p(LONGEST_S), max(0.0, logarithm)))


def left(estimate: Estimate, ran_s: float) -> Estimate:
    """Return the time that a job still takes which has run for ``ran_s``.

    Past the median, the end of the interval is the best that is known. Past that, the job is
    expected to run for half as long again.

    Example: similar jobs take 60 to 200 s, half of them at most 100 s. After 40 s, 20 to 160 s are
    left and 60 s are expected. After 150 s, 50 s are expected. After 300 s, 150 s.
    """
    high_s = estimate.high_s - ran_s if ran_s < estimate.high_s else 0.5 * ran_s
    middle_s = estimate.middle_s - ran_s if ran_s < estimate.middle_s else high_s
    return Estimate(
        max(0.0, estimate.low_s - ran_s), middle_s, max(high_s, middle_s), estimate.jobs
    )

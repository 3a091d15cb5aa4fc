"""Life tables: the remaining work of jobs of unknown duration, from jobs of the same size.

For jobs of about the same number of GPUs the table counts run times of ended jobs and of open jobs,
in steps of duration. Open jobs are censored observations: without these, long jobs would be
missing.

The table gives the time that a job needs *for an ending*: of all time slices that the job may get,
the one with the least time per expected ending. This is the inverse of Gittins' index, which ends
jobs earliest on average if durations are unknown (Gittins, 1979; Aalto et al., 2009). The value
falls and rises with age. If jobs end within a minute or last for days, a new job needs little for
an ending, and a job of one hour needs days.

Example: nine of ten jobs end in the step up to 100 s, and one in the step up to 10,000 s. A new job
gets a slice of 100 s, because ten jobs then run up to 100 s and nine end. That is less per ending
than running all to their ends. A job at 150 s needs as much as the tenth.

Rules of this file:

- Endings spread evenly within a step, and a job has the age of its step's beginning. Otherwise each
  ending would seem to predict the exact next one. So the value changes as the age crosses a step,
  more seldom as the job ages.
- One virtual ending, spread over all steps from LEAST_S to MOST_S, adds to the observed ones: for a
  new size every duration is possible, and longer jobs than the longest so far exist.
- Counts are whole numbers and are halved over time, so a restored or reported table is equal.
- Decisions report their tables, because these depend on more than the log keeps, and renew the
  tables after RENEWED_AT times as many endings.

Pure.
"""

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from berthmaster.lib.messages.placement import LifeTable, Lives

STEPS_AN_OCTAVE: Final = 3
OCTAVES: Final = 26  # from a second to two years
STEPS: Final = STEPS_AN_OCTAVE * OCTAVES + 1  # the first step is below a second
LEAST_S: Final = 60.0
MOST_S: Final = 3e6
FADES_AT: Final = 4096  # endings of one size at which all of its counts are halved
RENEWED_AT: Final = 1.1
LEAST_SIZE, MOST_SIZE = -4, 20  # powers of two of GPUs
LOOKED_AT: Final = 4096  # maximum number of open jobs to sample, at equal distances

NO_LIVES: Final = Lives()
Ages = Iterable[tuple[float, float]]  # GPUs, run time so far


def size_of(gpus: float) -> float:
    """The least power of two that is not less; jobs without GPUs are of the least size."""
    if not gpus > 0:
        return 2.0**LEAST_SIZE
    share, power = math.frexp(gpus)  # exact, as logarithms are not
    power -= share == 0.5
    return 2.0 ** min(max(power, LEAST_SIZE), MOST_SIZE)


def step_of(age_s: float) -> int:
    if not age_s >= 1.0:
        return 0
    share, octave = math.frexp(min(age_s, 2.0**OCTAVES))
    part = int((share - 0.5) * 2 * STEPS_AN_OCTAVE)
    return min((octave - 1) * STEPS_AN_OCTAVE + part + 1, STEPS - 1)


def begins_s(step: int) -> float:
    if step <= 0:
        return 0.0
    octave, part = divmod(step - 1, STEPS_AN_OCTAVE)
    return math.ldexp(0.5 + part / (2 * STEPS_AN_OCTAVE), octave + 1)


class LivesSeen:
    """How many ended after so long, by size: a fold of endings."""

    def __init__(self, kept: Lives = NO_LIVES) -> None:
        self._take(kept)

    def _take(self, kept: Lives) -> None:
        self.endings = kept.endings  # total number of endings
        self._ended = {table.gpus: list(_padded(table.ended)) for table in kept.tables}

    def learn(self, gpus: float, ran_s: float) -> None:
        """A job ended well after so long."""
        if not 0 <= ran_s < math.inf:
            return
        self.endings += 1
        ended = self._ended.setdefault(size_of(gpus), [0] * STEPS)
        ended[step_of(ran_s)] += 1
        if sum(ended) > FADES_AT:
            ended[:] = [count // 2 for count in ended]

    def told(self, lives: Lives) -> None:
        """A decision told more than was seen here, where much of the log was purged."""
        if lives.endings > self.endings:
            self._take(lives)

    def tabulated(self, open_: Ages = (), every: int = 1) -> Lives:
        """Return the tables, with open jobs sampled one in ``every``."""
        ages: dict[float, list[int]] = {}
        for gpus, age_s in open_:
            ages.setdefault(size_of(gpus), [0] * STEPS)[step_of(age_s)] += every
        none = [0] * STEPS
        tables = tuple(
            LifeTable(
                gpus=size,
                ended=_trimmed(self._ended.get(size, none)),
                open=_trimmed(ages.get(size, none)),
            )
            for size in sorted({*self._ended, *ages})
        )
        return Lives(endings=self.endings, tables=tables)


def _padded(counts: tuple[int, ...]) -> tuple[int, ...]:
    return (*counts[:STEPS], *([0] * (STEPS - len(counts))))


def _trimmed(counts: list[int]) -> tuple[int, ...]:
    end = len(counts)
    while end and not counts[end - 1]:
        end -= 1
    return tuple(counts[:end])


def is_due(own: LivesSeen, newest: Lives) -> bool:
    """Whether enough has ended since the newest tables were made."""
    return own.endings > RENEWED_AT * newest.endings


class Rests:
    """The remaining work of jobs by these tables."""

    def __init__(self, lives: Lives = NO_LIVES) -> None:
        self.lives = lives
        self._by_size: Mapping[float, tuple[float, ...]] = {
            table.gpus: rests_of(table.ended, table.open) for table in lives.tables
        }

    def rest_s(self, gpus: float, age_s: float) -> float:
        """Return the need for an ending of a job with this size and age."""
        rests = self._by_size.get(size_of(gpus))
        return (rests if rests is not None else rests_of((), ()))[step_of(age_s)]


@lru_cache(maxsize=64)
def rests_of(ended: tuple[int, ...], open_: tuple[int, ...]) -> tuple[float, ...]:
    """By step: the least time for each ending that is to be expected."""
    first, last = step_of(LEAST_S), step_of(MOST_S)
    anything = 1.0 / (last - first + 1)
    counts = [
        count + (anything if first <= step <= last else 0.0)
        for step, count in enumerate(_padded(ended))
    ]
    shares = _shares(counts, _padded(open_))
    left = 1.0 - sum(shares, 0.0)  # share of jobs beyond the longest known
    lasts = [begins_s(step + 1) - begins_s(step) for step in range(STEPS)]
    found = [0.0] * STEPS
    for step in range(STEPS - 1, -1, -1):
        left += shares[step]
        alive, ends, spent_s, best = left, 0.0, 0.0, math.inf
        for at in range(step, STEPS):
            spent_s += lasts[at] * (alive - shares[at] / 2)
            alive -= shares[at]
            ends += shares[at]
            if ends > 1e-12:
                best = min(best, spent_s / ends)
        found[step] = best if best < math.inf else max(begins_s(step), LEAST_S)
    return tuple(found)


def _shares(ended: list[float], open_: tuple[int, ...]) -> list[float]:
    """Return the share of jobs that end in each step, by Kaplan and Meier (1958). An open job
    counts for half of its present step.
    """
    at_risk = sum(ended, 0.0) + sum(open_, 0.0)
    going_on, shares = 1.0, []
    for ends, stand in zip(ended, open_, strict=True):
        risk = at_risk - stand / 2
        share = min(1.0, ends / risk) if risk > 0 else 0.0
        shares.append(going_on * share)
        going_on *= 1.0 - share
        at_risk -= ends + stand
    return shares

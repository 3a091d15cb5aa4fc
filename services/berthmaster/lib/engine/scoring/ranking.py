"""The clusters in the order of their scores: worked out in C where that was built, else by numpy.

The usual score is fit x its factor, plus room x its factor, plus what depends on neither request
nor room; fit and room are parts/fit.py's and parts/room.py's. Both ways give the same bits.
"""

from collections.abc import Sequence
from math import floor
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from berthmaster.lib.engine.scoring.compiled import COMPILED, cards
from berthmaster.lib.engine.scoring.parts import fit as fit_part
from berthmaster.lib.engine.scoring.parts import room as room_part
from berthmaster.lib.engine.scoring.parts.values import Floats
from berthmaster.lib.engine.scoring.value import NOT_HERE

NO_ROOM: Final = np.array(NOT_HERE, np.float32)  # of no dimension: faster than a float


class Field(NamedTuple):
    """What of the clusters all requests of one kind rank them by."""

    free_milli: NDArray[np.int64]  # [C]
    all_milli: NDArray[np.int64]  # [C]
    total: Floats  # [C], what the other parts come to
    room: float  # factors; 0 = it does not count
    fit: float

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of those of fit and room that count."""
        return _PARTS[bool(self.fit), bool(self.room)]


_PARTS = {(f, r): ("fit",) * f + ("room",) * r for f in (False, True) for r in (False, True)}


class SetFit(NamedTuple):
    """What one pod set of a request finds in the clusters."""

    best: NDArray[np.float32]  # [C], the score of each one's best node
    a_gpu: float  # as in fit_part.Costs
    even: float


class Ranked(NamedTuple):
    values: Floats  # [1 + parts, C]: the score, and the parts of ``Field.parts``
    able: bytes  # of each cluster, whether it could take the request
    order: list[int]  # numbers of those, the best first, ties by number


NOTHING: Final = Ranked(np.zeros((1, 0)), b"", [])


def ranked(
    field: Field,
    sets: Sequence[SetFit],
    may: NDArray[np.bool_],
    *,
    single: bool,
    compiled: bool = COMPILED,
) -> Ranked:
    """``sets``: at least one. ``may``: clusters that may take the request; a single pod needs a
    node, too."""
    if compiled:
        values = np.empty((1 + len(field.parts), len(may)))
        return Ranked(values, *cards.rank(values, *field, tuple(sets), may, single))
    able = may & (sets[0].best > NO_ROOM) if single else may
    values = weighed(field, fit_of(sets) if field.fit else None)
    return Ranked(values, able.tobytes(), in_order(values[0], able))


def fit_of(sets: Sequence[SetFit]) -> Floats:
    """Of each cluster, what it is for the set that fits worst."""
    least: Floats = np.minimum.reduce(
        [fit_part.part(best, fit_part.Costs(*costs)) for best, *costs in sets]
    )
    return least


def weighed(field: Field, fit: Floats | None) -> Floats:
    """The scores and what they are made of. ``fit``: None = does not count."""
    parts: list[Floats] = []
    score = field.total
    if field.room:
        percent = room_part.percent_a_milli(field.all_milli)
        room = room_part.part(field.free_milli, percent)
        score = field.room * room
        parts = [room]
    if fit is not None:
        score = score + field.fit * fit if parts else field.fit * fit
        parts = [fit, *parts]
    if parts:
        score = score + field.total
    return np.array([score, *parts])


def in_order(score: Floats, able: NDArray[np.bool_]) -> list[int]:
    """Numbers of the able, the best first. They are in the order of their names: that decides
    ties."""
    last = np.where(able, -score, np.inf)
    order: list[int] = last.argsort(kind="stable").tolist()
    del order[np.count_nonzero(able) :]
    return order


class Fixed(NamedTuple):
    """The parts that depend on the clusters alone."""

    parts: tuple[str, ...]
    values: Floats  # [parts, C], what is not known as records have it


def shown(
    values: Floats,
    parts: tuple[str, ...],
    fixed: Fixed,
    numbers: list[int],
    *,
    compiled: bool = COMPILED,
) -> list[tuple[float, dict[str, float]]]:
    """Scores and parts of some clusters as records have them."""
    if compiled:
        return cards.shown(values, parts, fixed.values, fixed.parts, numbers)
    names, found = (*parts, *fixed.parts), []
    for number in numbers:
        of_it = (*values[:, number].tolist(), *fixed.values[:, number].tolist())
        score, *others = map(to_show, of_it)
        found.append((score, dict(zip(names, others, strict=True))))
    return found


def to_show(value: float) -> float:
    """As records have a score and its parts: four places, enough to see what decided."""
    return floor(value * 1e4 + 0.5) / 1e4

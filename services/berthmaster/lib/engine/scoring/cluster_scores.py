"""Scores and order of clusters: in C if compiled, else in numpy, with equal bits.

The usual score is fit x factor + room x factor + a constant sum. fleetview/components.py has the
other components.

``fit`` measures how little a pod costs beyond itself on the cluster's best node. The cost is
fragmentation for the observed mix of pods and GPUs left without CPU, by value.py, in GPUs, relative
to the requested GPUs. ``room`` is the free share of the cluster's GPUs.
"""

from collections.abc import Sequence
from math import floor
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from berthmaster.lib.engine.fleet.shares import wants_fraction
from berthmaster.lib.engine.scoring.compiled import COMPILED, cards
from berthmaster.lib.engine.scoring.value import NOT_HERE, Worth
from berthmaster.lib.messages.workload import PodSet

Floats = NDArray[np.float64]

UNKNOWN: Final = np.nan
MOST: Final = 100.0
# Bounds as arrays of no dimension: with a few clusters, numpy takes half as long for those.
_LEAST: Final = np.array(0.0)
_MOST: Final = np.array(MOST)
_EVEN: Final = 50.0  # fit of a pod that costs the worth of its GPUs; twice that is 0
NO_ROOM: Final = np.array(NOT_HERE, np.float32)  # of no dimension: faster than a float


def believed(values: Floats) -> Floats:
    """Return the same, with UNKNOWN in place of values that are not finite or below 0."""
    return np.where(np.isfinite(values) & (values >= 0.0), values, UNKNOWN)


def within_bounds(values: Floats) -> Floats:
    """Cut to 0..100; UNKNOWN stays."""
    bounded: Floats = np.minimum(np.maximum(values, _LEAST), _MOST)
    return bounded


def recorded(value: float) -> float:
    """Return a component as in records: UNKNOWN is 0, the worst."""
    return value if value == value else 0.0


def all_recorded(components: Sequence[Floats], count: int) -> Floats:
    """Return the components of ``count`` clusters as records have them, a row for each."""
    rows: Floats = np.array(components, np.float64).reshape(len(components), count)
    return np.where(np.isnan(rows), 0.0, rows)


class Costs(NamedTuple):
    """How a node's score becomes fit: x ``a_gpu``, plus ``even``."""

    a_gpu: float
    even: float


def fit_costs(pods: PodSet, worth: Worth) -> Costs:
    own = worth.hole.item(pods.gpu_milli) if wants_fraction(pods) else 0.0
    a_gpu = _EVEN / max(1, pods.gpus)
    return Costs(a_gpu, _EVEN + a_gpu * own)


def score_fit(best: NDArray[np.float32], costs: Costs) -> Floats:
    """Return fit by the scores of the clusters' best nodes.

    The least where no node has room, 100 where the pod saves what its GPUs are worth.
    """
    return within_bounds(best.astype(np.float64) * costs.a_gpu + costs.even)


def percent_a_milli(all_milli: NDArray[np.int64]) -> Floats:
    """Return the percentage of all its GPUs that one free milli is."""
    return MOST / np.maximum(all_milli, 1)


def score_room(free_milli: NDArray[np.int64], percent: Floats) -> Floats:
    """Return room by the free milli on open nodes; ``percent``: of ``percent_a_milli``."""
    return within_bounds(percent * free_milli)


class Field(NamedTuple):
    """Common ranking data of all requests of one kind."""

    free_milli: NDArray[np.int64]  # [C]
    all_milli: NDArray[np.int64]  # [C]
    total: Floats  # [C], sum of the other components
    room: float  # factors; 0 = unused
    fit: float

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the names of the used components among fit and room."""
        return _PARTS[bool(self.fit), bool(self.room)]


_PARTS = {(f, r): ("fit",) * f + ("room",) * r for f in (False, True) for r in (False, True)}


class SetFit(NamedTuple):
    """Result of one pod set of a request in the clusters."""

    best: NDArray[np.float32]  # [C], the score of each one's best node
    a_gpu: float  # as in Costs
    even: float


class Ranked(NamedTuple):
    values: Floats  # [1 + parts, C]: the score, and the components of ``Field.parts``
    able: bytes  # a byte for each cluster that fits
    order: list[int]  # numbers of those clusters, best first, ties by number


NOTHING: Final = Ranked(np.zeros((1, 0)), b"", [])


def ranked(
    field: Field,
    sets: Sequence[SetFit],
    may: NDArray[np.bool_],
    *,
    single: bool,
    compiled: bool = COMPILED,
) -> Ranked:
    """Rank clusters. ``sets``: at least one. ``may``: clusters to consider; a single pod also needs
    a node.
    """
    if compiled:
        values = np.empty((1 + len(field.parts), len(may)))
        return Ranked(values, *cards.rank(values, *field, tuple(sets), may, single))
    able = may & (sets[0].best > NO_ROOM) if single else may
    values = weighed(field, fit_of(sets) if field.fit else None)
    return Ranked(values, able.tobytes(), in_order(values[0], able))


def fit_of(sets: Sequence[SetFit]) -> Floats:
    """Return each cluster's fit for the worst-fitting set."""
    least: Floats = np.minimum.reduce([score_fit(best, Costs(*costs)) for best, *costs in sets])
    return least


def weighed(field: Field, fit: Floats | None) -> Floats:
    """Return the scores and their components. ``fit``: None = unused."""
    parts: list[Floats] = []
    score = field.total
    if field.room:
        percent = percent_a_milli(field.all_milli)
        room = score_room(field.free_milli, percent)
        score = field.room * room
        parts = [room]
    if fit is not None:
        score = score + field.fit * fit if parts else field.fit * fit
        parts = [fit, *parts]
    if parts:
        score = score + field.total
    return np.array([score, *parts])


def in_order(score: Floats, able: NDArray[np.bool_]) -> list[int]:
    """Return the numbers of clusters that fit, best first. Numbers follow names, which
    decide ties.
    """
    last = np.where(able, -score, np.inf)
    order: list[int] = last.argsort(kind="stable").tolist()
    del order[np.count_nonzero(able) :]
    return order


class Fixed(NamedTuple):
    """The constant components."""

    parts: tuple[str, ...]
    values: Floats  # [parts, C]; UNKNOWN as in records


def shown(
    values: Floats,
    parts: tuple[str, ...],
    fixed: Fixed,
    numbers: list[int],
    *,
    compiled: bool = COMPILED,
) -> list[tuple[float, dict[str, float]]]:
    """Return scores and components of some clusters as in records."""
    if compiled:
        return cards.shown(values, parts, fixed.values, fixed.parts, numbers)
    names, found = (*parts, *fixed.parts), []
    for number in numbers:
        of_it = (*values[:, number].tolist(), *fixed.values[:, number].tolist())
        score, *others = map(to_show, of_it)
        found.append((score, dict(zip(names, others, strict=True))))
    return found


def to_show(value: float) -> float:
    """Return a value rounded to four places, enough to see the difference."""
    return floor(value * 1e4 + 0.5) / 1e4

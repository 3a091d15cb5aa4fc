"""What all parts share: the value that says "not known", and the bounds."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

UNKNOWN: Final = np.nan
MOST: Final = 100.0
# The bounds as arrays of no dimension: with a few clusters, numpy takes half as long for those.
_LEAST: Final = np.array(0.0)
_MOST: Final = np.array(MOST)


def believed(values: Floats) -> Floats:
    """The same, UNKNOWN where they are no amounts of anything."""
    return np.where(np.isfinite(values) & (values >= 0.0), values, UNKNOWN)


def within_bounds(values: Floats) -> Floats:
    """Into 0..100; UNKNOWN stays."""
    bounded: Floats = np.minimum(np.maximum(values, _LEAST), _MOST)
    return bounded


def told(value: float) -> float:
    """As records have it: what is not known is the worst."""
    return value if value == value else 0.0


def all_told(parts: Sequence[Floats], count: int) -> Floats:
    """The same of all parts of so many clusters, a row for each."""
    rows: Floats = np.array(parts, np.float64).reshape(len(parts), count)
    return np.where(np.isnan(rows), 0.0, rows)

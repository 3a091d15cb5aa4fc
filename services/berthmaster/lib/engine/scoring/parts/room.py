"""Room: the free share of the cluster's GPUs."""

import numpy as np
from numpy.typing import NDArray

from berthmaster.lib.engine.scoring.parts.values import MOST, Floats, within_bounds


def percent_a_milli(all_milli: NDArray[np.int64]) -> Floats:
    """Per cent of all its GPUs that a free milli is."""
    return MOST / np.maximum(all_milli, 1)


def part(free_milli: NDArray[np.int64], percent: Floats) -> Floats:
    """From what is free on open nodes; ``percent``: of ``percent_a_milli``."""
    return within_bounds(percent * free_milli)

"""Fresh: how recently the cluster was heard of."""

import numpy as np

from berthmaster.engine.scoring.parts.values import MOST, Floats


def part(age_s: Floats, stale_after_s: float) -> Floats:
    """100 just now, 0 from where it counts as silent; always known: never heard of is 0."""
    # fmax: what is no number is 0.
    with np.errstate(all="ignore"):
        return np.minimum(np.fmax(MOST * (1.0 - age_s / np.float64(stale_after_s)), 0.0), MOST)

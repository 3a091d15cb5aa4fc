"""Headroom: how many GPUs the job could have there now, beside the cluster that has the most.

Counts where a hub's Kueue hands Workloads to clusters, in place of room: what people expect of
MultiKueue is the cluster with the most free GPUs, not with the largest free share. It is the lesser
of free GPUs and quota left. Of 40, 10 and 0 GPUs the first has 100, the second 25, the third 0.
"""

import numpy as np
from numpy.typing import NDArray

from berthmaster.lib.engine.scoring.parts.values import MOST, Floats, believed


def part(gpus: Floats, among: NDArray[np.bool_]) -> Floats:
    """100 for the most of those that are ``among`` the choice; 0 for all if none has any."""
    gpus = believed(gpus)
    known = gpus[among & ~np.isnan(gpus)]
    most = known.max() if known.size else 0.0
    with np.errstate(all="ignore"):
        return np.minimum(MOST * (gpus / most), MOST) if most > 0 else 0.0 * gpus

"""Tier: how soon the pods could start where the job may be sent although it has to wait there.

Counts where a hub's Kueue hands Workloads to clusters. Four tiers: it fits now; it has quota and
the nodes are busy; it has quota and the nodes are yet to come (autoscaling); it has no quota now.
"""

from typing import Final

import numpy as np

from berthmaster.lib.engine.scoring.parts.values import MOST, Floats, believed

FITS: Final = 0.0
BUSY: Final = 1.0
NO_NODES: Final = 2.0
NO_QUOTA: Final = 3.0


def part(tier: Floats) -> Floats:
    """100 where it fits now, a third less for each tier behind."""
    return MOST * (1.0 - np.minimum(believed(tier), NO_QUOTA) / NO_QUOTA)

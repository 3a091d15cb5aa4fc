"""Wait: how soon the cluster's own queue would let the job start.

Counts for queues that the clusters' Kueue governs. The unit is the length of a job: with as many
before it as have been let in, it waits about as long as one of those runs. What can only be had by
borrowing may be taken back, so it counts half: guaranteed quota goes before borrowed.
"""

from typing import Final

import numpy as np

from berthmaster.lib.engine.scoring.parts.values import MOST, Floats, believed

BORROWED: Final = 0.5


def part(ahead: Floats, admitted: Floats, borrows: Floats) -> Floats:
    """``ahead``: jobs that wait in its ClusterQueue, ``admitted``: let in, ``borrows``: 1 where it
    does not fit into the queue's own quota. UNKNOWN in any of them: of the whole."""
    ahead, admitted, borrows = believed(ahead), believed(admitted), believed(borrows)
    lengths = ahead / (admitted + 1.0)
    return MOST / (1.0 + lengths) * np.where(borrows > 0, BORROWED, 1.0 + 0.0 * borrows)

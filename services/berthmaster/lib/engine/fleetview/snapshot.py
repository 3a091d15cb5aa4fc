"""What all requests of one decision have in common: the clusters as of one time.

Whatever depends on no request is worked out once a snapshot, and only if somebody asks for it.
"""

from collections.abc import Hashable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from berthmaster.lib.engine.fleetview.weighting import RankingPolicy, Weightings
from berthmaster.lib.engine.scoring.cluster_scores import Floats
from berthmaster.lib.engine.scoring.cluster_table import ClusterTable
from berthmaster.lib.engine.scoring.value import Worth
from berthmaster.lib.messages.placement import Pressure

MOST_AGE_S: Final = 1e9  # that a record tells


class Filtered(NamedTuple):
    """The clusters that are out for requests of one shape, whatever room they have."""

    why: dict[str, str]  # cluster -> why
    open: NDArray[np.bool_]  # [C], not among them
    busy: dict[bytes, dict[str, str]]  # which have room -> why all others are out
    shares: bool  # the shape asks for part of a GPU


class ClusterSnapshot:
    def __init__(
        self,
        policy: RankingPolicy,
        now_s: float,
        table: ClusterTable,
        worth: Worth,
        pressure: Pressure,
    ) -> None:
        seen = table.at(now_s, stale_after_s=policy.stale_after_s, avoid_s=policy.avoid_s)
        self.policy = policy
        self.now_s = now_s
        self.table = table
        self.worth = worth  # of holes, by the mix seen so far
        self.pressure = pressure  # which nodes are scarce by it
        self.clusters = table.names  # in the order of the fleet's arrays
        self.age_s = _ages_to_show(seen.age_s)  # for records
        self.closed = seen.closed  # number -> why it takes no new placements
        self.open = table.open  # names of those that do
        # By key of a shape, b"" = that asks nothing of clusters, and whether the hub makes copies.
        # Kept while the same clusters are closed.
        self.filtered: dict[Hashable, Filtered] = table.filtered
        self.weightings = Weightings(policy, table)


def _ages_to_show(age_s: Floats) -> list[float]:
    """As records have them: in whole milliseconds."""
    ages: list[float] = (np.floor(np.minimum(age_s, MOST_AGE_S) * 1e3) / 1e3).tolist()
    return ages

"""Ranks clusters that other Placements chose less often first. Pure."""

from typing import Final

from berthmaster.hub.placement.core.scheduling.plugin import MOST, Clusters, Scored, Snapshot
from berthmaster.hub.placement.core.scheduling.request import Request

NAME: Final = "Balance"
DESCRIPTION: Final = (
    "100 for a cluster that no other Placement has chosen, -100 for the one chosen most often"
)


def score(snapshot: Snapshot, request: Request, clusters: Clusters) -> Scored:
    """Score 2 * int(100 * (0.5 - count / most)), over all decisions but this Placement's."""
    counts = snapshot.elsewhere
    most = max(counts.values(), default=0)
    if not most:
        return Scored({cluster.name: MOST for cluster in clusters})
    return Scored(
        {
            cluster.name: 2 * int(MOST * (0.5 - counts.get(cluster.name, 0) / most))
            for cluster in clusters
        }
    )

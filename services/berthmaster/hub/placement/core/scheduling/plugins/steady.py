"""Ranks clusters that are already chosen first. Pure."""

from typing import Final

from berthmaster.hub.placement.core.scheduling.plugin import MOST, Clusters, Scored, Snapshot
from berthmaster.hub.placement.core.scheduling.request import Request

NAME: Final = "Steady"
DESCRIPTION: Final = "100 for a cluster that this Placement has chosen already, else 0"


def score(snapshot: Snapshot, request: Request, clusters: Clusters) -> Scored:
    """Score MOST for a cluster in the current decisions, else 0."""
    decided = snapshot.decided
    return Scored({cluster.name: MOST if cluster.name in decided else 0 for cluster in clusters})

"""The kinds watched on a hub. Only AddOnPlacementScore may be missing."""

from typing import Final

from berthmaster.hub.placement.core.objects import (
    AddOnPlacementScore,
    ManagedCluster,
    ManagedClusterSet,
    ManagedClusterSetBinding,
    Placement,
    PlacementDecision,
)
from berthmaster.lib.kube.controller.watch import Watched
from berthmaster.lib.kube.resources import (
    ADD_ON_PLACEMENT_SCORES,
    MANAGED_CLUSTER_SET_BINDINGS,
    MANAGED_CLUSTER_SETS,
    MANAGED_CLUSTERS,
    PLACEMENT_DECISIONS,
    PLACEMENTS,
)

WATCHED: Final = (
    Watched(PLACEMENTS, Placement),
    Watched(PLACEMENT_DECISIONS, PlacementDecision),
    Watched(MANAGED_CLUSTERS, ManagedCluster),
    Watched(MANAGED_CLUSTER_SETS, ManagedClusterSet),
    Watched(MANAGED_CLUSTER_SET_BINDINGS, ManagedClusterSetBinding),
    Watched(ADD_ON_PLACEMENT_SCORES, AddOnPlacementScore, optional=True),
)

"""The kinds watched on a hub.

AddOnPlacementScore and the kinds of sig-multicluster may be missing. The latter may be denied, too,
and never delay a decision.
"""

from typing import Final

from berthmaster.hub.placement.core.objects import (
    MANAGED_BY,
    OURS,
    AddOnPlacementScore,
    CandidateCluster,
    ManagedClusterSet,
    ManagedClusterSetBinding,
    Placement,
    PlacementDecision,
)
from berthmaster.lib.kube.controller.watch import Watch, Watched
from berthmaster.lib.kube.multicluster import ClusterProfile, DecisionSlice
from berthmaster.lib.kube.resources import (
    ADD_ON_PLACEMENT_SCORES,
    CLUSTER_PROFILES,
    DECISION_SLICES,
    MANAGED_CLUSTER_SET_BINDINGS,
    MANAGED_CLUSTER_SETS,
    MANAGED_CLUSTERS,
    PLACEMENT_DECISIONS,
    PLACEMENTS,
)

SLICES: Final = "decisionslices"  # name of the mirror of sig-multicluster's PlacementDecisions
WATCHED: Final = (
    Watched(PLACEMENTS, Placement),
    Watched(PLACEMENT_DECISIONS, PlacementDecision),
    Watched(MANAGED_CLUSTERS, CandidateCluster),
    Watched(MANAGED_CLUSTER_SETS, ManagedClusterSet),
    Watched(MANAGED_CLUSTER_SET_BINDINGS, ManagedClusterSetBinding),
    Watched(ADD_ON_PLACEMENT_SCORES, AddOnPlacementScore, optional=True),
    Watched(CLUSTER_PROFILES, ClusterProfile, optional=True, deniable=True),
    Watched(
        DECISION_SLICES,
        DecisionSlice,
        optional=True,
        deniable=True,
        labels=f"{MANAGED_BY}={OURS}",
        part=SLICES,
    ),
)


class PlacementWatch(Watch):
    def lacks(self, name: str) -> bool:
        """Return whether an optional kind is not served, or a deniable one denied."""
        if not self.watched[name].deniable:
            return super().lacks(name)
        faults = self.reflectors[name].faults
        return faults.is_absent or faults.denied_for_s(self.now()) > 0

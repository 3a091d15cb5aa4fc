"""The fields of Open Cluster Management's objects, and the marks of Berthmaster's objects. Pure.

berthmaster.lib.kueue has Kueue's own objects. Every field may be missing or null.
"""

from typing import Final

from berthmaster.lib.kube.objects import Conditioned, Conditions, Object, Struct
from berthmaster.lib.kueue.multikueue import MultiKueueConfig

OCM_GROUP: Final = "cluster.open-cluster-management.io"
PLACEMENT_LABEL: Final = f"{OCM_GROUP}/placement"  # on a PlacementDecision
GROUP_INDEX_LABEL: Final = f"{OCM_GROUP}/decision-group-index"
# On the decisions of Berthmaster's evaluator (berth serve placement): the last good request, which
# the evaluator uses after a wrong edit.
REQUEST_ANNOTATION: Final = "berthmaster.io/placement-request"

# On a MultiKueueConfig: Berthmaster as owner, and the check. Both are required.
MANAGED_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "berthmaster-admission"
CHECK_ANNOTATION: Final = "berthmaster.io/admission-check"


# Open Cluster Management's objects


class PlacementStatus(Conditions, frozen=True):
    """The status, written after the decisions."""

    number_of_selected_clusters: int | None = None


class Placement(Conditioned, frozen=True):
    """The wanted clusters. The conditions show whether the scheduler accepts the Placement."""

    status: PlacementStatus | None = None


class Decision(Struct, frozen=True):
    """A selected cluster, by the name of its ManagedCluster."""

    cluster_name: str = ""


class DecisionStatus(Struct, frozen=True):
    """At most a hundred clusters."""

    decisions: tuple[Decision, ...] | None = None


class PlacementDecision(Object, frozen=True):
    """A page of a Placement's selection."""

    status: DecisionStatus | None = None

    @property
    def clusters(self) -> tuple[str, ...]:
        """Return the cluster names, in the page's order."""
        found = (self.status and self.status.decisions) or ()
        return tuple(one.cluster_name for one in found if one.cluster_name)

    @property
    def decided_anyway(self) -> bool:
        """Return whether the page stays valid while its Placement is misconfigured."""
        return REQUEST_ANNOTATION in self.metadata.annotations


# Kueue's objects


def check_of(config: MultiKueueConfig) -> str:
    """Return the check of a configuration by Berthmaster, or ""."""
    if config.metadata.labels.get(MANAGED_LABEL) != MANAGER:
        return ""
    return config.metadata.annotations.get(CHECK_ANNOTATION, "")

"""What is read of Open Cluster Management, and what marks a MultiKueueConfig as ours. Pure.

Kueue's own objects are in berthmaster.lib.kueue. Every field may be missing or null.
"""

from typing import Final

from berthmaster.lib.kube.objects import Conditioned, Conditions, Object, Struct
from berthmaster.lib.kueue.multikueue import MultiKueueConfig

OCM_GROUP: Final = "cluster.open-cluster-management.io"
PLACEMENT_LABEL: Final = f"{OCM_GROUP}/placement"  # on a PlacementDecision
GROUP_INDEX_LABEL: Final = f"{OCM_GROUP}/decision-group-index"
# On the decisions of our own evaluator (berth serve placement): the last good request, by which it
# goes on deciding after a wrong edit.
REQUEST_ANNOTATION: Final = "berthmaster.io/placement-request"

# On a MultiKueueConfig: that it is ours, and of which check. Both are needed.
MANAGED_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "berthmaster-admission"
CHECK_ANNOTATION: Final = "berthmaster.io/admission-check"


# Open Cluster Management's


class PlacementStatus(Conditions, frozen=True):
    """Written after the decisions that it is about."""

    number_of_selected_clusters: int | None = None


class Placement(Conditioned, frozen=True):
    """Which clusters are wanted; its conditions say whether its scheduler understands it."""

    status: PlacementStatus | None = None


class Decision(Struct, frozen=True):
    """One cluster that a Placement selects: the name of its ManagedCluster."""

    cluster_name: str = ""


class DecisionStatus(Struct, frozen=True):
    """At most a hundred clusters."""

    decisions: tuple[Decision, ...] | None = None


class PlacementDecision(Object, frozen=True):
    """A page of what a Placement selects."""

    status: DecisionStatus | None = None

    @property
    def clusters(self) -> tuple[str, ...]:
        """Their names, in the page's order."""
        found = (self.status and self.status.decisions) or ()
        return tuple(one.cluster_name for one in found if one.cluster_name)

    @property
    def decided_anyway(self) -> bool:
        """Whether it stays right while its Placement is misconfigured."""
        return REQUEST_ANNOTATION in self.metadata.annotations


# Kueue's


def check_of(config: MultiKueueConfig) -> str:
    """The check of ours that a configuration was made for, or ""."""
    if config.metadata.labels.get(MANAGED_LABEL) != MANAGER:
        return ""
    return config.metadata.annotations.get(CHECK_ANNOTATION, "")

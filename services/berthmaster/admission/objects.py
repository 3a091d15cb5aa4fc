"""What is read of a hub's objects: Kueue's (v1beta2) and Open Cluster Management's. Pure.

What is here is this service's own, since services share only messages and the bus; what all read of
MultiKueue's objects is in kubernetes/multikueue.py. Every field may be missing or null.
"""

from typing import Final

from berthmaster.kubernetes.multikueue import MultiKueueConfig
from berthmaster.kubernetes.objects import Condition, Conditioned, Object, Struct, holds

OCM_GROUP: Final = "cluster.open-cluster-management.io"
PLACEMENT_LABEL: Final = f"{OCM_GROUP}/placement"  # on a PlacementDecision
GROUP_INDEX_LABEL: Final = f"{OCM_GROUP}/decision-group-index"

# On a MultiKueueConfig: that it is ours, and of which check. Both are needed.
MANAGED_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "berthmaster-admission"
CHECK_ANNOTATION: Final = "berthmaster.io/admission-check"

PENDING: Final = "Pending"
READY: Final = "Ready"


# Open Cluster Management's


class Placement(Conditioned, frozen=True):
    """Which clusters are wanted; its conditions say whether its scheduler understands it."""


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


# Kueue's


def check_of(config: MultiKueueConfig) -> str:
    """The check of ours that a configuration was made for, or ""."""
    if config.metadata.labels.get(MANAGED_LABEL) != MANAGER:
        return ""
    return config.metadata.annotations.get(CHECK_ANNOTATION, "")


class CheckState(Struct, frozen=True):
    """One admission check of a Workload."""

    name: str = ""
    state: str = ""
    message: str = ""
    last_transition_time: str | None = None


class WorkloadStatus(Struct, frozen=True):
    """How it stands."""

    conditions: tuple[Condition, ...] | None = None
    admission_checks: tuple[CheckState, ...] | None = None
    nominated_cluster_names: tuple[str, ...] | None = None
    cluster_name: str | None = None


class Workload(Object, frozen=True):
    """A Workload of the hub."""

    status: WorkloadStatus | None = None

    def holds(self, kind: str) -> bool:
        """Whether a condition is there and true."""
        return holds((self.status and self.status.conditions) or (), kind)

    @property
    def checks(self) -> tuple[CheckState, ...]:
        """Its admission checks."""
        return (self.status and self.status.admission_checks) or ()

    def check(self, name: str) -> CheckState | None:
        """One of them."""
        return next((one for one in self.checks if one.name == name), None)

    @property
    def clusters(self) -> frozenset[str]:
        """Where it is or may come to be: nominated, or admitted there."""
        if self.status is None:
            return frozenset()
        chosen = (self.status.cluster_name,) if self.status.cluster_name else ()
        return frozenset((*(self.status.nominated_cluster_names or ()), *chosen))

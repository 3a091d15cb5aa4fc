"""What is read of a hub's objects: Kueue's (v1beta2) and Open Cluster Management's. Pure.

The structs are this service's own, since services share only messages and the bus. Every field may
be missing or null.
"""

from typing import Final

from berthmaster.kubernetes.objects import Condition, Object, Struct, condition, holds

CONTROLLER: Final = "berthmaster.io/placement"
MULTIKUEUE: Final = "kueue.x-k8s.io/multikueue"
OCM_GROUP: Final = "cluster.open-cluster-management.io"
PLACEMENT_LABEL: Final = f"{OCM_GROUP}/placement"  # on a PlacementDecision
GROUP_INDEX_LABEL: Final = f"{OCM_GROUP}/decision-group-index"

# On a MultiKueueConfig: that it is ours, and of which check. Both are needed.
MANAGED_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "berthmaster-admission"
CHECK_ANNOTATION: Final = "berthmaster.io/admission-check"
DRAINING_ANNOTATION: Final = "berthmaster.io/draining"  # its clusters that take nothing new
FLEET_NAME_ANNOTATION: Final = "berthmaster.io/cluster"  # on a MultiKueueCluster

PENDING: Final = "Pending"
READY: Final = "Ready"


class Status(Struct, frozen=True):
    """A status of which only conditions are read."""

    conditions: tuple[Condition, ...] | None = None


class Conditioned(Object, frozen=True):
    """An object of which metadata and conditions are read."""

    status: Status | None = None

    def condition(self, kind: str) -> Condition | None:
        """One condition of its status."""
        return condition((self.status and self.status.conditions) or (), kind)


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


class Parameters(Struct, frozen=True):
    """The object that configures a check."""

    api_group: str | None = None
    kind: str = ""
    name: str = ""


class AdmissionCheckSpec(Struct, frozen=True):
    """Who sees to the check, and by which configuration."""

    controller_name: str = ""
    parameters: Parameters | None = None


class AdmissionCheck(Conditioned, frozen=True):
    """A check that Workloads must pass."""

    spec: AdmissionCheckSpec = AdmissionCheckSpec()

    @property
    def ours(self) -> bool:
        """Whether this controller sees to it. Those with a ConfigMap are the dispatcher's: they
        choose by cluster labels, for each Workload (see multikueue/parameters.py)."""
        if self.spec.controller_name != CONTROLLER:
            return False
        parameters = self.spec.parameters
        return parameters is None or parameters.kind != "ConfigMap"

    @property
    def config(self) -> str:
        """The MultiKueueConfig that a check of MultiKueue's names, or ""."""
        parameters = self.spec.parameters
        if self.spec.controller_name != MULTIKUEUE or parameters is None:
            return ""
        return parameters.name


class MultiKueueConfigSpec(Struct, frozen=True):
    """The clusters of a MultiKueue check."""

    clusters: tuple[str, ...] | None = None


class MultiKueueConfig(Object, frozen=True):
    """Which clusters a MultiKueue check sends to, in order."""

    spec: MultiKueueConfigSpec = MultiKueueConfigSpec()

    @property
    def clusters(self) -> tuple[str, ...]:
        """MultiKueueClusters by name."""
        return self.spec.clusters or ()

    @property
    def draining(self) -> tuple[str, ...]:
        """Those that take nothing new."""
        text = self.metadata.annotations.get(DRAINING_ANNOTATION, "")
        return tuple(name for name in text.split(",") if name)

    @property
    def owner(self) -> str:
        """The check of ours that it was made for, or ""."""
        if self.metadata.labels.get(MANAGED_LABEL) != MANAGER:
            return ""
        return self.metadata.annotations.get(CHECK_ANNOTATION, "")


class MultiKueueCluster(Conditioned, frozen=True):
    """A worker cluster, as the hub's Kueue knows it."""

    @property
    def fleet_name(self) -> str:
        """What it is called on the bus."""
        return self.metadata.annotations.get(FLEET_NAME_ANNOTATION) or self.metadata.name

    @property
    def connected(self) -> bool:
        """Whether Kueue reaches it."""
        active = self.condition("Active")
        return active is not None and active.true


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

"""The fields of Karmada's objects that the service reads. Pure.

The versions are work.karmada.io/v1alpha2, policy.karmada.io/v1alpha1 and
cluster.karmada.io/v1alpha1, as of Karmada 1.18. Every field may be missing.
"""

from typing import Any, Final

import msgspec

from berthmaster.lib.kube.objects import (
    Condition,
    LabelRequirement,
    LabelSelector,
    Object,
    Struct,
)
from berthmaster.lib.kueue.podsets.templates import NodeSelector, PodToleration, Quantity

# spec.schedulerName of policies whose bindings Berthmaster schedules
SCHEDULER: Final = "berthmaster"
SCHEDULED: Final = "Scheduled"  # Karmada's condition
QUEUE: Final = "berthmaster.io/queue"  # label of a policy
PRIORITY: Final = "berthmaster.io/priority"  # label of a policy
ATTEMPT: Final = "berthmaster.io/attempt"  # annotation of a binding: the attempt of its release
OVER: Final = "berthmaster.io/over"  # annotation of a binding: reason why it is never placed again
# Annotation of a binding: the placement of its release. Karmada's taint manager reads the
# annotation, and evicts no binding without it.
APPLIED: Final = "policy.karmada.io/applied-placement"
_POLICY: Final = "propagationpolicy.karmada.io"


class NodeClaim(Struct, frozen=True):
    """The nodes that a replica may use."""

    hard_node_affinity: NodeSelector | None = None
    node_selector: dict[str, str] | None = None
    tolerations: tuple[PodToleration, ...] | None = None


class Requirements(Struct, frozen=True):
    """The resource request of each replica."""

    node_claim: NodeClaim | None = None
    resource_request: dict[str, Quantity] | None = None


class Reference(Struct, frozen=True):
    """The object to propagate."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class FieldSelector(Struct, frozen=True):
    """Requirements of a cluster's provider, region and zones."""

    match_expressions: tuple[LabelRequirement, ...] | None = None


class ClusterAffinity(Struct, frozen=True):
    """The allowed clusters. All fields must match."""

    label_selector: LabelSelector | None = None
    field_selector: FieldSelector | None = None
    cluster_names: tuple[str, ...] | None = None
    exclude: tuple[str, ...] | None = None


class SpreadConstraint(Struct, frozen=True):
    """The number of clusters, regions or similar groups to spread over."""

    spread_by_field: str = ""
    spread_by_label: str = ""
    max_groups: int = 0
    min_groups: int = 0


class Placement(Struct, frozen=True):
    """The placement of the policy."""

    cluster_affinity: ClusterAffinity | None = None
    cluster_affinities: tuple[ClusterAffinity, ...] | None = None
    cluster_tolerations: tuple[PodToleration, ...] | None = None
    spread_constraints: tuple[SpreadConstraint, ...] | None = None


class Suspension(Struct, frozen=True):
    """The suspended operations."""

    scheduling: bool | None = None


class TargetCluster(Struct, frozen=True):
    name: str = ""
    replicas: int = 0


class SchedulePriority(Struct, frozen=True):
    """The priority, behind Karmada's own feature gate."""

    priority: int = 0


class BindingSpec(Struct, frozen=True):
    resource: Reference = Reference()
    replicas: int = 0
    replica_requirements: Requirements | None = None
    clusters: tuple[TargetCluster, ...] | None = None
    placement_as_written: dict[str, Any] | None = msgspec.field(default=None, name="placement")
    scheduler_name: str = ""
    suspension: Suspension | None = None
    schedule_priority: SchedulePriority | None = None

    @property
    def placement(self) -> Placement:
        """Return the placement of the policy, as far as known. Raises msgspec.ValidationError."""
        return msgspec.convert(self.placement_as_written or {}, Placement)


class AggregatedItem(Struct, frozen=True):
    """The object's state in one member cluster."""

    cluster_name: str = ""
    status: dict[str, Any] | None = None
    applied: bool = False
    applied_message: str = ""
    health: str = ""

    @property
    def finished(self) -> tuple[str, str]:
        """Return (Complete or Failed, message) of a Job, or ("", "") before the end."""
        conditions = (self.status or {}).get("conditions")
        for one in conditions if isinstance(conditions, list) else ():
            told = one if isinstance(one, dict) else {}
            if told.get("type") in ("Complete", "Failed") and told.get("status") == "True":
                words = ": ".join(str(told[k]) for k in ("reason", "message") if told.get(k))
                return str(told["type"]), words
        return "", ""

    @property
    def active(self) -> int:
        """Return the number of a Job's pods that have not ended."""
        told = (self.status or {}).get("active")
        return told if isinstance(told, int) else 0


class BindingStatus(Struct, frozen=True):
    conditions: tuple[Condition, ...] | None = None
    aggregated_status: tuple[AggregatedItem, ...] | None = None
    scheduler_observed_generation: int = 0


class ResourceBinding(Object, frozen=True):
    """An object that Karmada propagates."""

    spec: BindingSpec = BindingSpec()
    status: BindingStatus | None = None

    @property
    def held(self) -> bool:
        """Return whether scheduling is suspended."""
        return self.spec.suspension is not None and bool(self.spec.suspension.scheduling)

    @property
    def deleting(self) -> bool:
        """Return whether the binding is being deleted."""
        return bool(self.metadata.deletion_timestamp)

    @property
    def attempt(self) -> str:
        """Return the attempt of the last release."""
        return self.metadata.annotations.get(ATTEMPT, "")

    @property
    def where(self) -> tuple[str, ...]:
        """Return the target clusters."""
        return tuple(one.name for one in self.spec.clusters or ())

    @property
    def scheduled(self) -> Condition | None:
        """Return Karmada's current condition."""
        found = (self.status and self.status.conditions) or ()
        return next((one for one in found if one.type == SCHEDULED), None)

    @property
    def is_observed(self) -> bool:
        """Return whether the status confirms that the scheduler has seen the current spec.

        Until then, Karmada keeps objects in a removed cluster for minutes.
        """
        seen = self.status.scheduler_observed_generation if self.status is not None else 0
        return seen == self.metadata.generation

    @property
    def items(self) -> tuple[AggregatedItem, ...]:
        """Return the state in each cluster that has a copy of the object."""
        return (self.status and self.status.aggregated_status) or ()

    def item(self, cluster: str) -> AggregatedItem | None:
        """Return the state in one cluster."""
        return next((one for one in self.items if one.cluster_name == cluster), None)

    @property
    def policy(self) -> tuple[str, str]:
        """Return (namespace, name) of the binding's policy. No namespace: a
        ClusterPropagationPolicy."""
        told = self.metadata.annotations
        if name := told.get(f"{_POLICY}/name"):
            return told.get(f"{_POLICY}/namespace", ""), name
        return "", told.get(f"cluster{_POLICY}/name", "")


class Policy(Object, frozen=True):
    """A PropagationPolicy or ClusterPropagationPolicy. Only the labels are read."""


class Taint(Struct, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class ClusterSpec(Struct, frozen=True):
    provider: str = ""
    region: str = ""
    zone: str = ""
    zones: tuple[str, ...] | None = None
    taints: tuple[Taint, ...] | None = None


class KarmadaCluster(Object, frozen=True):
    """A member cluster of Karmada."""

    spec: ClusterSpec = ClusterSpec()

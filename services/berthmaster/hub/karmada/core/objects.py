"""What is read of Karmada's objects. Pure.

work.karmada.io/v1alpha2, policy.karmada.io/v1alpha1 and cluster.karmada.io/v1alpha1, as Karmada
1.18 has them. Every field may be missing.
"""

from typing import Any, Final

import msgspec

from berthmaster.lib.kube.objects import Condition, Object, Struct
from berthmaster.lib.kueue.podsets.templates import (
    NodeSelector,
    PodToleration,
    Quantity,
    Requirement,
)

SCHEDULER: Final = "berthmaster"  # spec.schedulerName of policies whose bindings are ours
SCHEDULED: Final = "Scheduled"  # Karmada's condition
QUEUE: Final = "berthmaster.io/queue"  # label of a policy
PRIORITY: Final = "berthmaster.io/priority"  # label of a policy
ATTEMPT: Final = "berthmaster.io/attempt"  # annotation of a binding: for which it was let go
OVER: Final = "berthmaster.io/over"  # annotation of a binding: it is not placed again, and why
# Annotation of a binding: by which placement it was let go. Karmada's taint manager reads it, and
# takes nothing from a cluster without it.
APPLIED: Final = "policy.karmada.io/applied-placement"
_POLICY: Final = "propagationpolicy.karmada.io"


class NodeClaim(Struct, frozen=True):
    """Which nodes a replica can be on."""

    hard_node_affinity: NodeSelector | None = None
    node_selector: dict[str, str] | None = None
    tolerations: tuple[PodToleration, ...] | None = None


class Requirements(Struct, frozen=True):
    """What each replica asks for."""

    node_claim: NodeClaim | None = None
    resource_request: dict[str, Quantity] | None = None


class Reference(Struct, frozen=True):
    """The object that is to be propagated."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class LabelSelector(Struct, frozen=True):
    match_labels: dict[str, str] | None = None
    match_expressions: tuple[Requirement, ...] | None = None


class FieldSelector(Struct, frozen=True):
    """Of clusters' provider, region and zones."""

    match_expressions: tuple[Requirement, ...] | None = None


class ClusterAffinity(Struct, frozen=True):
    """Which clusters will do; all that is said must hold."""

    label_selector: LabelSelector | None = None
    field_selector: FieldSelector | None = None
    cluster_names: tuple[str, ...] | None = None
    exclude: tuple[str, ...] | None = None


class SpreadConstraint(Struct, frozen=True):
    """Over how many clusters, regions or the like it is to be spread."""

    spread_by_field: str = ""
    spread_by_label: str = ""
    max_groups: int = 0
    min_groups: int = 0


class Placement(Struct, frozen=True):
    """What the policy says of where."""

    cluster_affinity: ClusterAffinity | None = None
    cluster_affinities: tuple[ClusterAffinity, ...] | None = None
    cluster_tolerations: tuple[PodToleration, ...] | None = None
    spread_constraints: tuple[SpreadConstraint, ...] | None = None


class Suspension(Struct, frozen=True):
    """What is held."""

    scheduling: bool | None = None


class TargetCluster(Struct, frozen=True):
    name: str = ""
    replicas: int = 0


class SchedulePriority(Struct, frozen=True):
    """By Karmada's own gate."""

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
        """What the policy says of where, as far as we read it. Raises msgspec.ValidationError."""
        return msgspec.convert(self.placement_as_written or {}, Placement)


class AggregatedItem(Struct, frozen=True):
    """How the object stands in one member cluster."""

    cluster_name: str = ""
    status: dict[str, Any] | None = None
    applied: bool = False
    applied_message: str = ""
    health: str = ""

    @property
    def finished(self) -> tuple[str, str]:
        """(Complete or Failed of a Job, its words); ("", "") while it is neither."""
        conditions = (self.status or {}).get("conditions")
        for one in conditions if isinstance(conditions, list) else ():
            told = one if isinstance(one, dict) else {}
            if told.get("type") in ("Complete", "Failed") and told.get("status") == "True":
                words = ": ".join(str(told[k]) for k in ("reason", "message") if told.get(k))
                return str(told["type"]), words
        return "", ""

    @property
    def active(self) -> int:
        """How many of a Job's pods are there and have not ended."""
        told = (self.status or {}).get("active")
        return told if isinstance(told, int) else 0


class BindingStatus(Struct, frozen=True):
    conditions: tuple[Condition, ...] | None = None
    aggregated_status: tuple[AggregatedItem, ...] | None = None
    scheduler_observed_generation: int = 0


class ResourceBinding(Object, frozen=True):
    """One object that Karmada propagates."""

    spec: BindingSpec = BindingSpec()
    status: BindingStatus | None = None

    @property
    def held(self) -> bool:
        """Whether nobody is to schedule it."""
        return self.spec.suspension is not None and bool(self.spec.suspension.scheduling)

    @property
    def deleting(self) -> bool:
        """Whether it is on its way out."""
        return bool(self.metadata.deletion_timestamp)

    @property
    def attempt(self) -> str:
        """For which attempt it was let go last."""
        return self.metadata.annotations.get(ATTEMPT, "")

    @property
    def where(self) -> tuple[str, ...]:
        """The clusters that it goes to."""
        return tuple(one.name for one in self.spec.clusters or ())

    @property
    def scheduled(self) -> Condition | None:
        """Karmada's condition, as it stands."""
        found = (self.status and self.status.conditions) or ()
        return next((one for one in found if one.type == SCHEDULED), None)

    @property
    def is_observed(self) -> bool:
        """Whether its status says that its scheduler has seen what it asks for now. Until then
        Karmada keeps what it takes from a cluster there, for minutes."""
        seen = self.status.scheduler_observed_generation if self.status is not None else 0
        return seen == self.metadata.generation

    @property
    def items(self) -> tuple[AggregatedItem, ...]:
        """How it stands in each cluster that has something of it."""
        return (self.status and self.status.aggregated_status) or ()

    def item(self, cluster: str) -> AggregatedItem | None:
        """How it stands in a cluster."""
        return next((one for one in self.items if one.cluster_name == cluster), None)

    @property
    def policy(self) -> tuple[str, str]:
        """(namespace, name) of the policy that it is propagated by; no namespace: a
        ClusterPropagationPolicy."""
        told = self.metadata.annotations
        if name := told.get(f"{_POLICY}/name"):
            return told.get(f"{_POLICY}/namespace", ""), name
        return "", told.get(f"cluster{_POLICY}/name", "")


class Policy(Object, frozen=True):
    """A PropagationPolicy or ClusterPropagationPolicy: only its labels matter here."""


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
    """A member of Karmada's."""

    spec: ClusterSpec = ClusterSpec()

"""Workloads: what jobs ask of Kueue, and how they stand. Pure.

v1beta2, the version that is stored. Every field may be missing or null: what a person or an older
Kueue left out is not an error.
"""

from berthmaster.kubernetes.objects import Condition, Object, Struct, condition, holds
from berthmaster.kueue.names import EVICTED, FINISHED, QUOTA_RESERVED

# Pod templates, as far as a request is made of them

Quantity = str | int | float | None


class Resources(Struct, frozen=True):
    """What one container asks for."""

    requests: dict[str, Quantity] | None = None
    limits: dict[str, Quantity] | None = None


class Container(Struct, frozen=True):
    """One container."""

    resources: Resources | None = None
    restart_policy: str | None = None  # Always, on an init container: a sidecar


class Requirement(Struct, frozen=True):
    """One expression of a node selector term."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class Term(Struct, frozen=True):
    """Expressions that all must hold."""

    match_expressions: tuple[Requirement, ...] | None = None


class NodeSelector(Struct, frozen=True):
    """Terms of which one must hold."""

    node_selector_terms: tuple[Term, ...] | None = None


class NodeAffinity(Struct, frozen=True):
    """Only what is required matters for where pods can run."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class Affinity(Struct, frozen=True):
    """Of a pod."""

    node_affinity: NodeAffinity | None = None


class PodToleration(Struct, frozen=True):
    """Of a pod."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class ResourceClaim(Struct, frozen=True):
    """Devices that a pod asks for by an object of its own (dynamic resource allocation)."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(Struct, frozen=True):
    """What decides where a pod can run."""

    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[PodToleration, ...] | None = None
    resource_claims: tuple[ResourceClaim, ...] | None = None
    resources: Resources | None = None  # of the pod as a whole
    overhead: dict[str, Quantity] | None = None  # of its RuntimeClass


class TemplateMetadata(Struct, frozen=True):
    """Of a pod template."""

    annotations: dict[str, str] | None = None


class PodTemplate(Struct, frozen=True):
    """Of a pod set."""

    metadata: TemplateMetadata | None = None
    spec: PodSpec | None = None


class KueuePodSet(Struct, frozen=True):
    """Equal pods of a Workload."""

    name: str = "main"
    count: int = 1
    template: PodTemplate | None = None


# Workloads


class WorkloadSpec(Struct, frozen=True):
    """What is asked for."""

    pod_sets: tuple[KueuePodSet, ...] | None = None
    queue_name: str = ""
    active: bool | None = None
    priority: int | None = None


class CheckState(Struct, frozen=True):
    """One admission check of a Workload."""

    name: str = ""
    state: str = ""
    message: str = ""
    last_transition_time: str | None = None


class PodSetAssignment(Struct, frozen=True):
    """What Kueue counts for all pods of a set: the resources that it governs, with overhead,
    defaults and transformations."""

    name: str = "main"
    resource_usage: dict[str, Quantity] | None = None


class Admission(Struct, frozen=True):
    """Where quota is reserved on the hub."""

    cluster_queue: str = ""
    pod_set_assignments: tuple[PodSetAssignment, ...] | None = None


class WorkloadStatus(Struct, frozen=True):
    """How it stands."""

    conditions: tuple[Condition, ...] | None = None
    admission: Admission | None = None
    admission_checks: tuple[CheckState, ...] | None = None
    nominated_cluster_names: tuple[str, ...] | None = None
    cluster_name: str | None = None


class Workload(Object, frozen=True):
    """How a Workload stands, without what it asks for: pod templates are most of its size, and
    most mirrors need none."""

    status: WorkloadStatus | None = None

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """All that Kueue says of it."""
        return (self.status and self.status.conditions) or ()

    def condition(self, type: str) -> Condition | None:
        """One condition of its status."""
        return condition(self.conditions, type)

    def holds(self, type: str) -> bool:
        """Whether a condition is there and true."""
        return holds(self.conditions, type)

    @property
    def nominated(self) -> tuple[str, ...]:
        """The clusters that it may be copied to, as the API has them."""
        return (self.status and self.status.nominated_cluster_names) or ()

    @property
    def cluster_name(self) -> str:
        """The one that admitted it, by MultiKueue's name; "" = none yet."""
        return (self.status and self.status.cluster_name) or ""

    @property
    def clusters(self) -> frozenset[str]:
        """Where it is or may come to be: nominated, or admitted there."""
        chosen = (self.cluster_name,) if self.cluster_name else ()
        return frozenset((*self.nominated, *chosen))

    @property
    def checks(self) -> tuple[CheckState, ...]:
        """Its admission checks."""
        return (self.status and self.status.admission_checks) or ()

    def check(self, name: str) -> CheckState | None:
        """One of them."""
        return next((one for one in self.checks if one.name == name), None)

    @property
    def poisoned(self) -> bool:
        """Kueue's manager ends on it, at every start: quota and an eviction without the admission
        that both are about. Its merge patch of a preemption leaves it so (see contract.py)."""
        admission = self.status is not None and self.status.admission is not None
        return (
            not admission
            and self.holds(QUOTA_RESERVED)
            and self.holds(EVICTED)
            and not self.holds(FINISHED)
        )

    @property
    def deleting(self) -> bool:
        """Somebody asked for its deletion."""
        return bool(self.metadata.deletion_timestamp)

    @property
    def owner(self) -> tuple[str, str]:
        """(kind, name) of the job that it was made for; ("", "") if it has none."""
        for reference in self.metadata.owner_references:
            if reference.controller:
                return reference.kind, reference.name
        first = next(iter(self.metadata.owner_references), None)
        return (first.kind, first.name) if first is not None else ("", "")


class KueueWorkload(Workload, frozen=True):
    """The whole of it."""

    spec: WorkloadSpec = WorkloadSpec()

    @property
    def active(self) -> bool:
        """Nobody switched it off."""
        return self.spec.active is not False

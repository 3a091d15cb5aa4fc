"""Kueue's objects on a hub, as far as they are read here; v1beta2, the version that is stored.
MultiKueue's own, which other services read too, are in kubernetes/multikueue.py.

Every field may be missing or null: what a person or an older Kueue left out is not an error.
"""

from typing import Final

from berthmaster.kubernetes.objects import Condition, Object, Struct, condition, holds

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
SELECTOR_ANNOTATION: Final = "berthmaster.io/cluster-selector"  # on a ClusterQueue or LocalQueue

PENDING: Final = "Pending"
READY: Final = "Ready"


# Pod templates, as far as a request is made of them

Quantity = str | int | float | None


class Resources(Struct, frozen=True):
    """What one container asks for."""

    requests: dict[str, Quantity] | None = None
    limits: dict[str, Quantity] | None = None


class Container(Struct, frozen=True):
    """One container."""

    resources: Resources | None = None


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


class PodSpec(Struct, frozen=True):
    """What decides where a pod can run."""

    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[PodToleration, ...] | None = None


class PodTemplate(Struct, frozen=True):
    """Of a pod set."""

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


class Admission(Struct, frozen=True):
    """Where quota is reserved on the hub."""

    cluster_queue: str = ""


class WorkloadStatus(Struct, frozen=True):
    """How it stands."""

    conditions: tuple[Condition, ...] | None = None
    admission: Admission | None = None
    admission_checks: tuple[CheckState, ...] | None = None
    nominated_cluster_names: tuple[str, ...] | None = None
    cluster_name: str | None = None


class KueueWorkload(Object, frozen=True):
    """A Workload of a hub."""

    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus | None = None

    def condition(self, type: str) -> Condition | None:
        """One condition of its status."""
        return condition((self.status and self.status.conditions) or (), type)

    def holds(self, type: str) -> bool:
        """Whether a condition is there and true."""
        return holds((self.status and self.status.conditions) or (), type)

    @property
    def active(self) -> bool:
        """Nobody switched it off."""
        return self.spec.active is not False

    @property
    def nominated(self) -> tuple[str, ...]:
        """The clusters that it may be copied to, as the API has them."""
        return (self.status and self.status.nominated_cluster_names) or ()

    @property
    def cluster_name(self) -> str:
        """The one that admitted it, by MultiKueue's name; "" = none yet."""
        return (self.status and self.status.cluster_name) or ""

    @property
    def checks(self) -> tuple[CheckState, ...]:
        """Its admission checks."""
        return (self.status and self.status.admission_checks) or ()

    def check(self, name: str) -> CheckState | None:
        """One of them."""
        return next((one for one in self.checks if one.name == name), None)

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


# Queues


class CheckRule(Struct, frozen=True):
    """A check that a ClusterQueue wants."""

    name: str = ""


class CheckStrategy(Struct, frozen=True):
    """All of them."""

    admission_checks: tuple[CheckRule, ...] | None = None


class ClusterQueueSpec(Struct, frozen=True):
    """What of a hub's ClusterQueue matters here."""

    admission_checks_strategy: CheckStrategy | None = None
    admission_checks: tuple[str, ...] | None = None  # v1beta1's


class ClusterQueue(Object, frozen=True):
    """A ClusterQueue of a hub."""

    spec: ClusterQueueSpec = ClusterQueueSpec()

    @property
    def check_names(self) -> tuple[str, ...]:
        """The checks that its Workloads need."""
        strategy = self.spec.admission_checks_strategy
        rules = (strategy.admission_checks if strategy is not None else None) or ()
        return tuple(rule.name for rule in rules) + (self.spec.admission_checks or ())


class LocalQueueSpec(Struct, frozen=True):
    """Where it leads."""

    cluster_queue: str = ""


class LocalQueue(Object, frozen=True):
    """A LocalQueue of a hub."""

    spec: LocalQueueSpec = LocalQueueSpec()


# Jobs of the hub


class JobSpec(Struct, frozen=True):
    """What of a hub's Job matters here."""

    suspend: bool | None = None
    managed_by: str | None = None


class JobStatus(Struct, frozen=True):
    """As MultiKueue copies it from the worker."""

    active: int | None = None
    ready: int | None = None
    succeeded: int | None = None
    conditions: tuple[Condition, ...] | None = None


class HubJob(Object, frozen=True):
    """A batch/v1 Job of a hub."""

    spec: JobSpec = JobSpec()
    status: JobStatus | None = None

    @property
    def runs(self) -> bool:
        """Pods of it run somewhere: all that are wanted now are ready, or some have ended well."""
        status = self.status
        if status is None:
            return False
        active, ready = status.active or 0, status.ready or 0
        return ready > 0 if status.ready is not None else active > 0

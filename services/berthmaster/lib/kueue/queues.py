"""ClusterQueues with their quota, and LocalQueues, flavors and cohorts. Pure.

The types follow v1beta2, the stored version. Every field may be missing or null, as operators and
older Kueue versions leave fields out. Quantities stay text until they are read, so that a malformed
quantity spoils its own value only, not the object.
"""

from typing import Final

from berthmaster.lib.kube.objects import Condition, Conditioned, Object, Struct, condition
from berthmaster.lib.kueue.names import ACTIVE

Quantity = str | int
_HELD: Final = ("Hold", "HoldAndDrain")
_NEXT_FLAVOR: Final = "TryNextFlavor"
_NEVER: Final = "Never"


class ResourceQuota(Struct, frozen=True):
    name: str = ""
    nominal_quota: Quantity = 0
    borrowing_limit: Quantity | None = None
    lending_limit: Quantity | None = None


class FlavorQuotas(Struct, frozen=True):
    name: str = ""
    resources: tuple[ResourceQuota, ...] | None = None


class ResourceGroup(Struct, frozen=True):
    """Resources that share the same flavors."""

    flavors: tuple[FlavorQuotas, ...] | None = None


class CheckRule(Struct, frozen=True):
    """A check required by a ClusterQueue."""

    name: str = ""


class CheckStrategy(Struct, frozen=True):
    admission_checks: tuple[CheckRule, ...] | None = None


class FlavorFungibility(Struct, frozen=True):
    """When Kueue tries the next flavor."""

    when_can_borrow: str | None = None


class BorrowPreemption(Struct, frozen=True):
    """Whether a borrowing queue may preempt others in the cohort."""

    policy: str | None = None
    max_priority_threshold: int | None = None  # of the preempted Workloads


class Preemption(Struct, frozen=True):
    """The Workloads that a ClusterQueue may preempt."""

    within_cluster_queue: str | None = None
    reclaim_within_cohort: str | None = None
    borrow_within_cohort: BorrowPreemption | None = None


class ClusterQueueSpec(Struct, frozen=True):
    """The quota of a ClusterQueue, and its rules."""

    resource_groups: tuple[ResourceGroup, ...] | None = None
    cohort_name: str | None = None
    stop_policy: str | None = None
    flavor_fungibility: FlavorFungibility | None = None
    preemption: Preemption | None = None
    admission_checks_strategy: CheckStrategy | None = None
    admission_checks: tuple[str, ...] | None = None  # of v1beta1


class ResourceUsage(Struct, frozen=True):
    name: str = ""
    total: Quantity = 0


class FlavorUsage(Struct, frozen=True):
    name: str = ""
    resources: tuple[ResourceUsage, ...] | None = None


class ClusterQueueStatus(Struct, frozen=True):
    conditions: tuple[Condition, ...] | None = None
    flavors_reservation: tuple[FlavorUsage, ...] | None = None
    pending_workloads: int | None = None
    admitted_workloads: int | None = None


class ClusterQueue(Object, frozen=True):
    spec: ClusterQueueSpec = ClusterQueueSpec()
    status: ClusterQueueStatus | None = None

    @property
    def check_names(self) -> tuple[str, ...]:
        """The checks that the queue's Workloads need."""
        strategy = self.spec.admission_checks_strategy
        rules = (strategy.admission_checks if strategy is not None else None) or ()
        return tuple(rule.name for rule in rules) + (self.spec.admission_checks or ())

    @property
    def groups(self) -> tuple[ResourceGroup, ...]:
        return self.spec.resource_groups or ()

    @property
    def resources(self) -> set[str]:
        """All resources with quota in this queue."""
        flavors = (flavor for group in self.groups for flavor in group.flavors or ())
        return {one.name for flavor in flavors for one in flavor.resources or ()}

    @property
    def preempts(self) -> bool:
        """Whether Kueue may evict a Workload for another Workload of this queue."""
        rules = self.spec.preemption
        if rules is None:
            return False
        within, across = [rules.within_cluster_queue], [rules.reclaim_within_cohort]
        if rules.borrow_within_cohort is not None:
            across.append(rules.borrow_within_cohort.policy)
        asked = within + (across if self.spec.cohort_name else [])
        return any(policy not in (None, "", _NEVER) for policy in asked)

    @property
    def held(self) -> str:
        """The stop policy that holds the queue, or ""."""
        return _held(self.spec.stop_policy)

    @property
    def prefers_own(self) -> bool:
        """Whether the queue tries its next flavor before borrowing."""
        found = self.spec.flavor_fungibility
        return found is not None and found.when_can_borrow == _NEXT_FLAVOR

    @property
    def active(self) -> Condition | None:
        """The condition Active; None = not reported yet."""
        return condition((self.status and self.status.conditions) or (), ACTIVE)


class LocalQueueSpec(Struct, frozen=True):
    cluster_queue: str = ""
    stop_policy: str | None = None


class LocalQueue(Conditioned, frozen=True):
    """The access of a namespace to a ClusterQueue."""

    spec: LocalQueueSpec = LocalQueueSpec()

    @property
    def held(self) -> str:
        """The stop policy that holds the queue, or ""."""
        return _held(self.spec.stop_policy)

    @property
    def active(self) -> Condition | None:
        """The condition Active; None = not reported yet."""
        return self.condition(ACTIVE)


def _held(policy: str | None) -> str:
    return policy if policy in _HELD else ""


class FlavorTaint(Struct, frozen=True):
    """A taint of a flavor's nodes. The effect may be unknown."""

    key: str = ""
    value: str = ""
    effect: str = ""


class FlavorToleration(Struct, frozen=True):
    """A toleration that Kueue adds to pods of a flavor."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class ResourceFlavorSpec(Struct, frozen=True):
    """The nodes of a flavor."""

    node_labels: dict[str, str] | None = None
    node_taints: tuple[FlavorTaint, ...] | None = None
    tolerations: tuple[FlavorToleration, ...] | None = None


class ResourceFlavor(Object, frozen=True):
    spec: ResourceFlavorSpec = ResourceFlavorSpec()


class CohortSpec(Struct, frozen=True):
    """The parent of a cohort, and quota beyond its queues' own."""

    parent_name: str | None = None
    resource_groups: tuple[ResourceGroup, ...] | None = None


class Cohort(Object, frozen=True):
    """Queues that lend quota to each other. A cohort named only by its queues needs no object."""

    spec: CohortSpec = CohortSpec()

    @property
    def groups(self) -> tuple[ResourceGroup, ...]:
        return self.spec.resource_groups or ()

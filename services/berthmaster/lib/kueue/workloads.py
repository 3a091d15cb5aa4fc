"""Workloads: what jobs ask of Kueue, and how they stand. Pure.

v1beta2, the version that is stored. Every field may be missing or null: what a person or an older
Kueue left out is not an error.

**Slices.** The Workloads of a Job whose number of pods changes (Kueue's elastic jobs): slices, of
which one has quota and at most one waits to take its place. Pure.

Kueue leaves a Job running whose slice it evicts while another waits: it finishes the first, and
sees the second as what the Job is (0.19.2). Its pods then run without any quota, and those that
they were evicted for may find no node. So whoever runs such a Job has to look.
"""

from collections.abc import Iterable
from typing import NamedTuple

from berthmaster.lib.kube.objects import Condition, Object, Struct, condition, holds
from berthmaster.lib.kueue.names import EVICTED, FINISHED, QUOTA_RESERVED
from berthmaster.lib.kueue.podsets.templates import Quantity, TemplateSet

# Workloads


class WorkloadSpec(Struct, frozen=True):
    pod_sets: tuple[TemplateSet, ...] | None = None
    queue_name: str = ""
    active: bool | None = None
    priority: int | None = None


class CheckState(Struct, frozen=True):
    name: str = ""
    state: str = ""
    message: str = ""
    last_transition_time: str | None = None


class PodSetAssignment(Struct, frozen=True):
    """What Kueue counts for all pods of a set: the resources that it governs, with overhead,
    defaults and transformations; and the flavor that it gave of each."""

    name: str = "main"
    flavors: dict[str, str] | None = None
    resource_usage: dict[str, Quantity] | None = None


class Admission(Struct, frozen=True):
    """Where quota is reserved on the hub."""

    cluster_queue: str = ""
    pod_set_assignments: tuple[PodSetAssignment, ...] | None = None


class WorkloadStatus(Struct, frozen=True):
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
    spec: WorkloadSpec = WorkloadSpec()

    @property
    def active(self) -> bool:
        """Nobody switched it off."""
        return self.spec.active is not False


class Slices(NamedTuple):
    have_quota: bool  # one of them has, and keeps it
    waits: bool  # one has none yet
    words: str = ""  # Kueue's, of that one


def slices_of(found: Iterable[Workload]) -> Slices | None:
    """None: there is none that is not over, so that nothing can be said."""
    left = [each for each in found if not each.holds(FINISHED)]
    if not left:
        return None
    waiting = [each for each in left if not each.holds(QUOTA_RESERVED)]
    told = (each.condition(QUOTA_RESERVED) for each in waiting)
    return Slices(
        have_quota=any(each.holds(QUOTA_RESERVED) and not each.holds(EVICTED) for each in left),
        waits=bool(waiting),
        words=next((one.message for one in told if one is not None), ""),
    )

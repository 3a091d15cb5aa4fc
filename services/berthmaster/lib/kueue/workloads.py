"""Workloads: the requests of jobs to Kueue, and their status. Pure.

The types follow v1beta2, the stored version. Every field may be missing or null, as operators and
older Kueue versions leave fields out.

**Slices.** The Workloads of a Job with a variable number of pods (Kueue's elastic jobs). One slice
has quota, and at most one waits to replace it. If Kueue evicts a slice while another waits, Kueue
leaves the Job running: the first slice is marked finished, and the second one now stands for the
Job (0.19.2). The pods then run without quota, and the preempting pods may find no node. The runner
of such a Job therefore has to check its slices.
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
    """Kueue's accounting for all pods of a set.

    Holds the resources under quota, with overhead, defaults and transformations, and their flavors.
    """

    name: str = "main"
    flavors: dict[str, str] | None = None
    resource_usage: dict[str, Quantity] | None = None


class Admission(Struct, frozen=True):
    """The quota reservation on the hub."""

    cluster_queue: str = ""
    pod_set_assignments: tuple[PodSetAssignment, ...] | None = None


class WorkloadStatus(Struct, frozen=True):
    conditions: tuple[Condition, ...] | None = None
    admission: Admission | None = None
    admission_checks: tuple[CheckState, ...] | None = None
    nominated_cluster_names: tuple[str, ...] | None = None
    cluster_name: str | None = None


class Workload(Object, frozen=True):
    """A Workload's status, without its requests.

    Pod templates are most of a Workload's size, and most mirrors need none.
    """

    status: WorkloadStatus | None = None

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """All conditions of the status."""
        return (self.status and self.status.conditions) or ()

    def condition(self, type: str) -> Condition | None:
        """Return the condition of this type, or None."""
        return condition(self.conditions, type)

    def holds(self, type: str) -> bool:
        """Return whether the condition exists with status True."""
        return holds(self.conditions, type)

    @property
    def nominated(self) -> tuple[str, ...]:
        """The nominated clusters, as in the API."""
        return (self.status and self.status.nominated_cluster_names) or ()

    @property
    def cluster_name(self) -> str:
        """MultiKueue's name of the admitting cluster; "" = none yet."""
        return (self.status and self.status.cluster_name) or ""

    @property
    def clusters(self) -> frozenset[str]:
        """The clusters with a nomination or the admission."""
        chosen = (self.cluster_name,) if self.cluster_name else ()
        return frozenset((*self.nominated, *chosen))

    @property
    def checks(self) -> tuple[CheckState, ...]:
        return (self.status and self.status.admission_checks) or ()

    def check(self, name: str) -> CheckState | None:
        """Return the state of one check, or None."""
        return next((one for one in self.checks if one.name == name), None)

    @property
    def poisoned(self) -> bool:
        """Whether the Workload crashes Kueue's manager at every start.

        Such a Workload has quota and an eviction, but no admission. Kueue's merge patch of a
        preemption leaves this state (see contract.py).
        """
        admission = self.status is not None and self.status.admission is not None
        return (
            not admission
            and self.holds(QUOTA_RESERVED)
            and self.holds(EVICTED)
            and not self.holds(FINISHED)
        )

    @property
    def deleting(self) -> bool:
        """Whether deletion was requested."""
        return bool(self.metadata.deletion_timestamp)

    @property
    def owner(self) -> tuple[str, str]:
        """(kind, name) of the owning job; ("", "") without one."""
        for reference in self.metadata.owner_references:
            if reference.controller:
                return reference.kind, reference.name
        first = next(iter(self.metadata.owner_references), None)
        return (first.kind, first.name) if first is not None else ("", "")


class KueueWorkload(Workload, frozen=True):
    spec: WorkloadSpec = WorkloadSpec()

    @property
    def active(self) -> bool:
        """Whether the Workload has not been deactivated."""
        return self.spec.active is not False


class Slices(NamedTuple):
    have_quota: bool  # a slice has quota and is not evicted
    waits: bool  # a slice has no quota yet
    words: str = ""  # Kueue's message for the waiting slice


def slices_of(found: Iterable[Workload]) -> Slices | None:
    """Return the state of a Job's slices, or None without an unfinished slice."""
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

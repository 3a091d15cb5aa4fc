"""Pods and PodGroups as an executor reads them. lib/jobs/objects.py has job objects."""

from typing import Final

import msgspec

from berthmaster.lib.jobs.objects import PodSpec
from berthmaster.lib.kube.objects import Condition, Object, Struct, seconds

DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
MAIN_CONTAINER: Final = "main"
_UNSCHEDULABLE: Final = "Unschedulable"


class GroupStatus(Struct, frozen=True):
    """Status of Volcano's group in its queue."""

    phase: str = ""  # Pending, Inqueue, Running, Unknown, Completed
    conditions: tuple[Condition, ...] | None = ()


class GroupSpec(Struct, frozen=True):
    queue: str = ""


class GroupObject(Object, frozen=True):
    """A PodGroup of Volcano, created by the executor or by the Job's controller."""

    spec: GroupSpec = GroupSpec()
    status: GroupStatus = GroupStatus()

    @property
    def let_in(self) -> bool:
        """Return whether its queue admitted it, so that pods are created."""
        return self.status.phase not in ("", "Pending")

    @property
    def waits_in(self) -> str:
        """Describe its wait for the queue. Volcano gives the reason in an event."""
        meta = self.metadata
        return (
            f"Volcano's queue {self.spec.queue} has not let it in: "
            f"`kubectl describe podgroup -n {meta.namespace} {meta.name}` says why"
        )

    @property
    def waits_for(self) -> str:
        """Return the scheduler's message for waiting pods; "" without one. Old conditions stay
        true, so the newest counts.
        """
        told = [one for one in self.status.conditions or () if one.true]
        last = max(told, key=_by_time, default=None)
        if last is None or last.type != _UNSCHEDULABLE:
            return ""
        return last.message or last.reason


def _by_time(told: Condition) -> tuple[str, bool]:
    """Sort key: times have a resolution of seconds, and within a second the success is
    the newer.
    """
    return told.last_transition_time or "", told.type != _UNSCHEDULABLE


_KAI_EVICTED: Final = "kai.scheduler/last-eviction-timestamp"


class KaiGroupObject(Object, frozen=True):
    """A PodGroup of KAI, which creates one for the pods of each Job, with the Job's labels."""

    @property
    def evicted_s(self) -> float | None:
        """Return the time of KAI's last decision to remove pods. KAI deletes them and writes
        nothing on the pods, unless configured (``updatePodEvictionCondition``).
        """
        try:
            return seconds(self.metadata.annotations.get(_KAI_EVICTED)) or None
        except ValueError:
            return None  # not written by KAI


class Waiting(Struct, frozen=True):
    reason: str = ""
    message: str = ""


class Terminated(Struct, frozen=True):
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    finished_at: str | None = None


class ContainerState(Struct, frozen=True):
    """One of the two, or neither while running."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class DeviceHealth(Struct, frozen=True):
    """The kubelet's health of one allocated device."""

    resource_id: str = msgspec.field(default="", name="resourceID")
    health: str = ""


class DevicesHealth(Struct, frozen=True):
    """The same of all of one resource."""

    name: str = ""
    resources: tuple[DeviceHealth, ...] | None = ()


class ContainerStatus(Struct, frozen=True):
    name: str = ""
    state: ContainerState = ContainerState()
    allocated_resources_status: tuple[DevicesHealth, ...] | None = ()


class PodStatus(Struct, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] | None = ()
    container_statuses: tuple[ContainerStatus, ...] | None = ()


class PodObject(Object, frozen=True):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def main_container(self) -> str:
        """Return the container whose log is the pod's; "" = the only one, or the API server's
        default.
        """
        named = self.metadata.annotations.get(DEFAULT_CONTAINER, "")
        names = [each.name for each in self.status.container_statuses or ()]
        if named or len(names) < 2:
            return named
        return MAIN_CONTAINER if MAIN_CONTAINER in names else names[0]

    @property
    def over(self) -> bool:
        """Return whether it can never run again. A pod being deleted is not over before
        it is gone.
        """
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def leaving(self) -> bool:
        return self.metadata.deletion_timestamp is not None

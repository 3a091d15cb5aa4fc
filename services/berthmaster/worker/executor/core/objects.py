"""What an executor reads of pods and of their PodGroups. Of job objects: lib/jobs/objects.py."""

from typing import Final

import msgspec

from berthmaster.lib.jobs.objects import PodSpec
from berthmaster.lib.kube.objects import Condition, Object, Struct, seconds

DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
MAIN_CONTAINER: Final = "main"
_UNSCHEDULABLE: Final = "Unschedulable"


class GroupStatus(Struct, frozen=True):
    """How a group of Volcano's stands in its queue."""

    phase: str = ""  # Pending, Inqueue, Running, Unknown, Completed
    conditions: tuple[Condition, ...] | None = ()


class GroupSpec(Struct, frozen=True):
    queue: str = ""


class GroupObject(Object, frozen=True):
    """A PodGroup of Volcano's: one that we made, or that its controller made for its Job."""

    spec: GroupSpec = GroupSpec()
    status: GroupStatus = GroupStatus()

    @property
    def let_in(self) -> bool:
        """Whether its queue has room for it, so that its pods are made."""
        return self.status.phase not in ("", "Pending")

    @property
    def waits_in(self) -> str:
        """Where it waits to be let in. Volcano says why in an event, for whoever may read those."""
        meta = self.metadata
        return (
            f"Volcano's queue {self.spec.queue} has not let it in: "
            f"`kubectl describe podgroup -n {meta.namespace} {meta.name}` says why"
        )

    @property
    def waits_for(self) -> str:
        """Why its pods do not start, in the scheduler's words; "" = it says nothing. What it said
        before it found room stays there and stays true: the last one counts."""
        told = [one for one in self.status.conditions or () if one.true]
        last = max(told, key=_by_time, default=None)
        if last is None or last.type != _UNSCHEDULABLE:
            return ""
        return last.message or last.reason


def _by_time(told: Condition) -> tuple[str, bool]:
    """Times are told in seconds: of one second, what says that it found room."""
    return told.last_transition_time or "", told.type != _UNSCHEDULABLE


_KAI_EVICTED: Final = "kai.scheduler/last-eviction-timestamp"


class KaiGroupObject(Object, frozen=True):
    """A PodGroup of KAI's: it makes one for the pods of each Job, with the labels of that."""

    @property
    def evicted_s(self) -> float | None:
        """When KAI decided last to take pods of it away. It deletes those pods and, unless it is
        told to (``updatePodEvictionCondition``), writes nothing on them."""
        try:
            return seconds(self.metadata.annotations.get(_KAI_EVICTED)) or None
        except ValueError:
            return None  # no word of KAI's


class Waiting(Struct, frozen=True):
    reason: str = ""
    message: str = ""


class Terminated(Struct, frozen=True):
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    finished_at: str | None = None


class ContainerState(Struct, frozen=True):
    """One of the two, or neither while it runs."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class DeviceHealth(Struct, frozen=True):
    """What the kubelet knows of one device that a container has."""

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
        """The one whose log is the pod's; "" = it has but one, or the API server knows."""
        named = self.metadata.annotations.get(DEFAULT_CONTAINER, "")
        names = [each.name for each in self.status.container_statuses or ()]
        if named or len(names) < 2:
            return named
        return MAIN_CONTAINER if MAIN_CONTAINER in names else names[0]

    @property
    def over(self) -> bool:
        """It can never run again. A pod that is being deleted is not over before it is gone."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def leaving(self) -> bool:
        """Somebody deletes it."""
        return self.metadata.deletion_timestamp is not None

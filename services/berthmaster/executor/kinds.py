"""What an executor reads of Jobs, JobSets and pods: the fields that tell how an attempt stands."""

from typing import Final

import msgspec

from berthmaster.kubernetes.objects import Condition, Object, Struct


class JobSpec(Struct, frozen=True):
    """Of a Job and of a JobSet alike."""

    suspend: bool | None = None
    parallelism: int | None = None  # of a Job
    completions: int | None = None


class JobStatus(Struct, frozen=True):
    """Of a Job; a JobSet has only the conditions."""

    active: int | None = None  # pods that are pending or running and not on their way out
    terminating: int | None = None  # pods on their way out
    failed: int | None = None
    conditions: tuple[Condition, ...] | None = ()


DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
MAIN_CONTAINER: Final = "main"


class JobObject(Object, frozen=True):
    """A Job or a JobSet: they tell how they stand in the same form."""

    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class Waiting(Struct, frozen=True):
    """Why a container does not run yet."""

    reason: str = ""
    message: str = ""


class Terminated(Struct, frozen=True):
    """How a container ended."""

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
    """One container of a pod."""

    name: str = ""
    state: ContainerState = ContainerState()
    allocated_resources_status: tuple[DevicesHealth, ...] | None = ()


class PodSpec(Struct, frozen=True):
    """Where the scheduler has put it."""

    node_name: str = ""


class PodStatus(Struct, frozen=True):
    """How a pod stands."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] | None = ()
    container_statuses: tuple[ContainerStatus, ...] | None = ()


class PodObject(Object, frozen=True):
    """A pod of ours."""

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

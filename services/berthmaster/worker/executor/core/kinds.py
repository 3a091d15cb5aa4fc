"""What an executor reads of Jobs, JobSets, Volcano's Jobs, RayJobs and pods: how an attempt stands.

A Job and a JobSet tell it by conditions, Volcano's Job and a RayJob by phases: read as conditions
here, so that there is one reading of them all.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from berthmaster.lib.kube.objects import Condition, Object, Struct, seconds
from berthmaster.lib.kueue.names import ELASTIC_GATE, ELASTIC_JOB


class Gate(Struct, frozen=True):
    """What holds a pod back from the scheduler."""

    name: str = ""


class PodSpec(Struct, frozen=True):
    """Where the scheduler has put it, and what holds it back."""

    node_name: str = ""
    scheduling_gates: tuple[Gate, ...] | None = ()

    @property
    def waits_for_kueue(self) -> bool:
        """Whether it may not start before Kueue lets so many pods of its Job in."""
        return any(gate.name == ELASTIC_GATE for gate in self.scheduling_gates or ())


class JobTemplate(Struct, frozen=True):
    spec: PodSpec = PodSpec()


class JobSpec(Struct, frozen=True):
    """Of a Job and of a JobSet alike."""

    suspend: bool | None = None
    parallelism: int | None = None  # of a Job
    completions: int | None = None
    template: JobTemplate = JobTemplate()  # of a Job


class VolcanoState(Struct, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""


class JobStatus(Struct, frozen=True):
    """Of a Job; a JobSet has only the conditions, Volcano's Job its state, a RayJob what follows
    it."""

    active: int | None = None  # pods that are pending or running and not on their way out
    terminating: int | None = None  # pods on their way out
    failed: int | None = None
    conditions: tuple[Condition, ...] | None = ()
    state: VolcanoState = VolcanoState()
    job_status: str = ""  # what Ray says of the job
    job_deployment_status: str = ""  # what KubeRay says of it and its cluster
    reason: str = ""  # why that is Failed
    message: str = ""


# What a phase of Volcano's is among a Job's conditions; others are of a job that is not over.
_CONDITIONS: Final[Mapping[str, str]] = {
    "Completed": "Complete",
    "Terminating": "FailureTarget",
    "Terminated": "Failed",
    "Failed": "Failed",
}
_ABORTED: Final = ("Aborting", "Aborted")  # it may be resumed, as what is suspended may be


DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
MAIN_CONTAINER: Final = "main"
APP_FAILED: Final = "AppFailed"  # KubeRay's word for a job that failed by itself


class JobObject(Object, frozen=True):
    """A Job, a JobSet, a Job of Volcano's, or a RayJob."""

    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()

    @property
    def is_elastic_to_kueue(self) -> bool:
        """Whether Kueue lets its number of pods change while they run: it is asked to, and has put
        its gate before them, which one does not that is too old or has that switched off."""
        asked = self.metadata.annotations.get(ELASTIC_JOB) == "true"
        return asked and self.spec.template.spec.waits_for_kueue

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """How it stands, in the form that Jobs have it."""
        state = self.status.state
        if self.by_kuberay:
            return _of_ray(self.status)
        if not state.phase:
            return self.status.conditions or ()
        kind = _CONDITIONS.get(state.phase)
        if kind is None:
            return ()
        told = Condition(type=kind, status="True", reason=state.phase, message=state.message)
        return (told,)

    @property
    def by_kuberay(self) -> bool:
        """Whether it is a RayJob of which KubeRay has said something."""
        return bool(self.status.job_deployment_status)

    @property
    def suspended(self) -> bool:
        """Whether no pod of it runs until somebody says so."""
        return bool(self.spec.suspend) or self.status.state.phase in _ABORTED


def _of_ray(status: JobStatus) -> tuple[Condition, ...]:
    """A RayJob's as conditions; none while it is not over."""
    match status.job_deployment_status:
        case "Complete" if status.job_status == "SUCCEEDED":
            kind = "Complete"
        case "Complete" | "Failed" | "ValidationFailed":
            kind = "Failed"
        case "Suspended":
            kind = "Suspended"
        case _:
            return ()
    stopped = APP_FAILED if status.job_status in ("FAILED", "STOPPED") else ""
    reason = status.reason or stopped or status.job_deployment_status
    message = status.message or f"Ray says {status.job_status or 'nothing'}"
    return (Condition(type=kind, status="True", reason=reason, message=message),)


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

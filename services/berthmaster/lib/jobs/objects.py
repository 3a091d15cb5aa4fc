"""The fields of a job object that services read, for all kinds: specification and status. Pure.

A Job and a JobSet report their status by conditions. Kinds with phases extend `JobObject` and map
their phases to the conditions of a Job (lib/jobs/kinds).
"""

from berthmaster.lib.kube.objects import Condition, Object, Struct
from berthmaster.lib.kueue.names import ELASTIC_GATE, ELASTIC_JOB


class Gate(Struct, frozen=True):
    """A scheduling gate, which keeps the scheduler from placing a pod."""

    name: str = ""


class PodSpec(Struct, frozen=True):
    """The node of a pod, and its scheduling gates."""

    node_name: str = ""
    scheduling_gates: tuple[Gate, ...] | None = ()

    @property
    def waits_for_kueue(self) -> bool:
        """Whether the pod has Kueue's gate of elastic jobs, and so waits for quota."""
        return any(gate.name == ELASTIC_GATE for gate in self.scheduling_gates or ())


class JobTemplate(Struct, frozen=True):
    spec: PodSpec = PodSpec()


class JobSpec(Struct, frozen=True):
    suspend: bool | None = None
    parallelism: int | None = None  # of a Job
    completions: int | None = None
    template: JobTemplate = JobTemplate()  # of a Job


class JobStatus(Struct, frozen=True):
    """The status of a Job. A JobSet has only the conditions."""

    active: int | None = None  # pending or running pods, without terminating ones
    terminating: int | None = None  # terminating pods
    failed: int | None = None
    conditions: tuple[Condition, ...] | None = ()


class JobObject(Object, frozen=True):
    """A Job or a JobSet. Other kinds extend this type."""

    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()

    @property
    def is_elastic_to_kueue(self) -> bool:
        """Whether Kueue supports a change of the number of running pods.

        The job must request elasticity, and Kueue must have added its gate to the pods. Kueue adds
        none when too old, or with the feature disabled.
        """
        asked = self.metadata.annotations.get(ELASTIC_JOB) == "true"
        return asked and self.spec.template.spec.waits_for_kueue

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions, in a Job's form. Empty while the job has not ended."""
        return self.status.conditions or ()

    @property
    def suspended(self) -> bool:
        """Whether all pods are stopped until the job is resumed."""
        return bool(self.spec.suspend)

    @property
    def waits_in_queue(self) -> bool:
        """Whether the job waits in a queue of its own scheduler, before pods are created."""
        return False

"""What is read of a job object, whatever its kind: what it shall be, and how it stands. Pure.

A Job and a JobSet report how they stand by conditions. Kinds that report phases instead extend
`JobObject` and read their phases as the conditions of a Job (lib/jobs/kinds).
"""

from berthmaster.lib.kube.objects import Condition, Object, Struct
from berthmaster.lib.kueue.names import ELASTIC_GATE, ELASTIC_JOB


class Gate(Struct, frozen=True):
    """A scheduling gate: it holds a pod back from the scheduler."""

    name: str = ""


class PodSpec(Struct, frozen=True):
    """The node of a pod, and its scheduling gates."""

    node_name: str = ""
    scheduling_gates: tuple[Gate, ...] | None = ()

    @property
    def waits_for_kueue(self) -> bool:
        """Whether it may not start before Kueue lets so many pods of its Job in."""
        return any(gate.name == ELASTIC_GATE for gate in self.scheduling_gates or ())


class JobTemplate(Struct, frozen=True):
    spec: PodSpec = PodSpec()


class JobSpec(Struct, frozen=True):
    suspend: bool | None = None
    parallelism: int | None = None  # of a Job
    completions: int | None = None
    template: JobTemplate = JobTemplate()  # of a Job


class JobStatus(Struct, frozen=True):
    """The status of a Job; a JobSet has only the conditions."""

    active: int | None = None  # pods that are pending or running and not on their way out
    terminating: int | None = None  # pods on their way out
    failed: int | None = None
    conditions: tuple[Condition, ...] | None = ()


class JobObject(Object, frozen=True):
    """A Job or a JobSet; other kinds have types of their own that extend it."""

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
        """How it stands, in the form that Jobs have it; empty while it is not over."""
        return self.status.conditions or ()

    @property
    def suspended(self) -> bool:
        """Whether no pod of it runs until its `suspend` is taken back."""
        return bool(self.spec.suspend)

    @property
    def waits_in_queue(self) -> bool:
        """Whether it waits in a queue of its own kind's scheduler, before pods are made."""
        return False

"""A Job of Volcano (batch.volcano.sh): its differences from a Job of Kubernetes. Pure.

Rules:

- Each pod set is a task. All pods of all tasks form one gang, and Volcano starts all or none.
- As in a Job, pods are not created again. Volcano terminates the whole job when a pod fails or is
  evicted, and keeps ended pods, which show the reason. Berthmaster places an evicted attempt again.
- Volcano numbers the pods. The number is also set in the variable of Kubernetes' Jobs, so that one
  command works with both.
- Volcano has no deadline. The executor ends late jobs. Each pod also gets the time left at its
  creation, and so ends without an executor too.
- A Volcano Job has no TTL after its end: its executor reads the outcome, then deletes the job.
- Jobs in a queue of the cluster's Kueue, elastic jobs, and jobs with GPU fractions allocated by
  other schedulers are always Jobs or JobSets (lib/lifecycle/attempts.py).
"""

from collections.abc import Mapping
from typing import Any, Final

from berthmaster.lib.jobs.kinds.kind import JobKind, JobPlan
from berthmaster.lib.jobs.objects import JobObject, JobStatus
from berthmaster.lib.jobs.pods import Document, from_annotation
from berthmaster.lib.kube.labels import VOLCANO_INDEX
from berthmaster.lib.kube.objects import Condition, Struct
from berthmaster.lib.kube.resources import VOLCANO_JOBS
from berthmaster.lib.lifecycle.attempts import VOLCANO_JOB as NAME
from berthmaster.lib.lifecycle.attempts import takes_pod_sets
from berthmaster.lib.messages.placement import Via
from berthmaster.lib.messages.workload import JobRequest

INDEX_VARIABLE: Final = "JOB_COMPLETION_INDEX"
# Adds host names to pods. The Service is the executor's, and network policy is out of scope.
_NAMES: Final = ["--publish-not-ready-addresses=true", "--disable-network-policy=true"]
# Volcano's phases of an ended job as conditions of a Job.
_CONDITIONS: Final[Mapping[str, str]] = {
    "Completed": "Complete",
    "Terminating": "FailureTarget",
    "Terminated": "Failed",
    "Failed": "Failed",
}
_ABORTED: Final = ("Aborting", "Aborted")  # may be resumed, like a suspended job


class VolcanoState(Struct, frozen=True):
    phase: str = ""
    message: str = ""


class VolcanoStatus(JobStatus, frozen=True):
    state: VolcanoState = VolcanoState()


class VolcanoJobObject(JobObject, frozen=True):
    status: VolcanoStatus = VolcanoStatus()

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions of a Job for the phase."""
        state = self.status.state
        kind = _CONDITIONS.get(state.phase)
        if kind is None:
            return ()
        told = Condition(type=kind, status="True", reason=state.phase, message=state.message)
        return (told,)

    @property
    def suspended(self) -> bool:
        """Whether all pods are stopped until the job is resumed."""
        return bool(self.spec.suspend) or self.status.state.phase in _ABORTED

    @property
    def waits_in_queue(self) -> bool:
        """Whether the queue has not admitted the job yet, or the controller is late."""
        return self.status.state.phase in ("", "Pending")


class _VolcanoJob(JobKind):
    name = NAME
    resource = VOLCANO_JOBS
    max_name_chars = 52  # a host name adds -s15-4095
    object_type = VolcanoJobObject
    setting = "volcano"
    has_substitute = True
    needs_letter = True  # Volcano creates Services with this name
    index_annotation = VOLCANO_INDEX
    is_gang = True
    has_queue = True
    ends_on_eviction = True
    pod_failures = frozenset({"Failed", "Terminated"})

    def fits(self, request: JobRequest, via: Via) -> bool:
        return takes_pod_sets(NAME, request.pod_sets, via)

    def spec(self, plan: JobPlan) -> Document:
        counts = [pods.count for pods in plan.request.pod_sets]
        tasks = enumerate(zip(counts, plan.templates, strict=True))
        made: Document = {
            "minAvailable": sum(counts),
            "queue": plan.queue or "default",
            "schedulerName": plan.scheduler,
            "maxRetry": 1,
            "policies": [{"events": ["PodFailed", "PodEvicted"], "action": "TerminateJob"}],
            "tasks": [
                {"name": f"s{number}", "replicas": count, "minAvailable": count, "template": pod}
                for number, (count, pod) in tasks
            ],
        }
        if plan.service:
            made["plugins"] = {"svc": list(_NAMES)}
        return made

    def complete_pod(self, spec: Document, left_s: int | None) -> None:
        """Set a pod's number within its set, and its time limit. The request's variables stay."""
        [main] = spec["containers"]
        env: list[Any] = main.get("env", [])
        if all(each["name"] != INDEX_VARIABLE for each in env):
            index = {"name": INDEX_VARIABLE, "valueFrom": from_annotation(VOLCANO_INDEX)}
            main["env"] = [index, *env]
        if left_s is not None:
            spec["activeDeadlineSeconds"] = left_s


VOLCANO_JOB: Final = _VolcanoJob()

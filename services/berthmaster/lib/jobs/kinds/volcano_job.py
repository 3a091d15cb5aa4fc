"""A Job of Volcano's (batch.volcano.sh): what of it is not as in a Job of Kubernetes'. Pure.

Rules of this file:

- Each pod set is a task. All pods of all tasks are one gang: Volcano starts so many or none.
- As in a Job no pod is made twice: Volcano is told to terminate the whole when a pod fails or is
  taken away, and keeps those that have ended, which say why. An attempt that was evicted there is
  placed anew by us.
- Its pods are numbered by Volcano, and told so under the name that Kubernetes' Jobs use, so that
  one command runs under both.
- A deadline is not among what Volcano keeps. The executor ends what is too late, and each pod has
  the time that was left when it was made, so that it ends without an executor too.
- It has no time to live after its end: who reads the end deletes it, and until then it tells it.
- What starts in a queue of the cluster's Kueue, varies in size, or takes parts of GPUs that others'
  schedulers hand out, is a Job or a JobSet in any case (lib/lifecycle/attempts.py).
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
# Host names for pods; the Service that they are looked up in is ours, and who may talk to whom is
# not for this to say.
_NAMES: Final = ["--publish-not-ready-addresses=true", "--disable-network-policy=true"]
# What a phase of Volcano's is among a Job's conditions; others are of a job that is not over.
_CONDITIONS: Final[Mapping[str, str]] = {
    "Completed": "Complete",
    "Terminating": "FailureTarget",
    "Terminated": "Failed",
    "Failed": "Failed",
}
_ABORTED: Final = ("Aborting", "Aborted")  # it may be resumed, as what is suspended may be


class VolcanoState(Struct, frozen=True):
    phase: str = ""
    message: str = ""


class VolcanoStatus(JobStatus, frozen=True):
    state: VolcanoState = VolcanoState()


class VolcanoJobObject(JobObject, frozen=True):
    status: VolcanoStatus = VolcanoStatus()

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """How it stands, from its phase."""
        state = self.status.state
        kind = _CONDITIONS.get(state.phase)
        if kind is None:
            return ()
        told = Condition(type=kind, status="True", reason=state.phase, message=state.message)
        return (told,)

    @property
    def suspended(self) -> bool:
        """Whether no pod of it runs until it is resumed."""
        return bool(self.spec.suspend) or self.status.state.phase in _ABORTED

    @property
    def waits_in_queue(self) -> bool:
        """Whether its phase is from before its queue let it in, or its controller is late."""
        return self.status.state.phase in ("", "Pending")


class _VolcanoJob(JobKind):
    name = NAME
    resource = VOLCANO_JOBS
    max_name_chars = 52  # of a host name: -s15-4095
    object_type = VolcanoJobObject
    setting = "volcano"
    has_substitute = True
    needs_letter = True  # Volcano makes Services of its name, which may have to begin so
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
        """Give a pod its number within its set, and its time. What the request sets stays."""
        [main] = spec["containers"]
        env: list[Any] = main.get("env", [])
        if all(each["name"] != INDEX_VARIABLE for each in env):
            index = {"name": INDEX_VARIABLE, "valueFrom": from_annotation(VOLCANO_INDEX)}
            main["env"] = [index, *env]
        if left_s is not None:
            spec["activeDeadlineSeconds"] = left_s


VOLCANO_JOB: Final = _VolcanoJob()

"""A request with a runtime of Ray as a RayJob for KubeRay, in place of a Job. Pure.

Rules:

- Each pod is a worker group of its own. So each pod keeps its name in the attempt and its
  placement, and uses the same template as other pods: volumes, Secrets, rights.
- KubeRay submits the command to the head by HTTP, so no unplaced pod is created. Ray would write
  the command's output to a file of the head. The output goes to the log of the head's container
  instead, the source of logs and progress reports.
- KubeRay runs the job once, because Berthmaster decides about retries. After the job KubeRay
  removes its cluster, so that no GPU stays allocated.
- Features without a field in KubeRay's definitions are not used, such as Kubernetes' own groups.
- Jobs in a queue of the cluster, elastic jobs, parts of divided jobs and jobs with too many pods
  for one object use Jobs, as in clusters without KubeRay.
"""

import copy
import re
import shlex
from collections.abc import Collection
from typing import Final

from berthmaster.lib.jobs.gangs import Gangs
from berthmaster.lib.jobs.kinds.kind import Failure, JobKind, JobPlan
from berthmaster.lib.jobs.objects import JobObject, JobStatus
from berthmaster.lib.jobs.pods import Document
from berthmaster.lib.kube import labels
from berthmaster.lib.kube.objects import Condition
from berthmaster.lib.kube.resources import RAY_JOBS
from berthmaster.lib.lifecycle.pods import is_elastic
from berthmaster.lib.messages.placement import Via
from berthmaster.lib.messages.workload import JobRequest

MAX_PODS: Final = 100
APP_FAILED: Final = "AppFailed"  # KubeRay's reason for a job that failed by itself
_EXIT_CODE: Final = re.compile(r"exit code (\d{1,3})\b")
_TO_THE_LOG: Final = (
    'o=/proc/1/fd/1; if (: >> "$o") 2>/dev/null; then exec "$@" >> "$o" 2>&1; fi; exec "$@"'
)


class RayStatus(JobStatus, frozen=True):
    job_status: str = ""  # of the job, by Ray
    job_deployment_status: str = ""  # of job and cluster, by KubeRay
    reason: str = ""  # why the deployment status is Failed
    message: str = ""


class RayJobObject(JobObject, frozen=True):
    status: RayStatus = RayStatus()

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions of a Job for the status of Ray and KubeRay."""
        status = self.status
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


class _RayJob(JobKind):
    name = "RayJob"
    resource = RAY_JOBS
    max_name_chars = 47  # KubeRay's limit
    object_type = RayJobObject
    has_substitute = True
    needs_letter = True  # KubeRay creates Services with this name
    joins_peers = False  # Ray joins the pods
    lacks_gangs = frozenset({Gangs.KUBERNETES, Gangs.WORKLOAD})
    stops_by_suspending = True
    replaces_pods = True
    pod_failures = frozenset({"Failed"})

    def fits(self, request: JobRequest, via: Via) -> bool:
        used = request.runtime_used
        if used is None or not used.template.kuberay:
            return False
        few = sum(pods.count for pods in request.pod_sets) <= MAX_PODS
        return few and via == "direct" and request.part is None and not is_elastic(request)

    def spec(self, plan: JobPlan) -> Document:
        request = plan.request
        pods = [
            _pod(template, f"{pods.name}-{index}")
            for pods, template in zip(request.pod_sets, plan.templates, strict=True)
            for index in range(pods.count)
        ]
        command = ("/bin/sh", "-c", _TO_THE_LOG, "ray", *request.run.command, *request.run.args)
        made: Document = {
            "entrypoint": shlex.join(command),
            "submissionMode": "HTTPMode",
            "backoffLimit": 0,
            "shutdownAfterJobFinishes": True,
            "rayClusterSpec": {
                "headGroupSpec": {
                    "rayStartParams": {"dashboard-host": "0.0.0.0"},
                    "template": pods[0],
                },
                "workerGroupSpecs": [
                    {
                        "groupName": f"p{number}",
                        "replicas": 1,
                        "minReplicas": 1,
                        "maxReplicas": 1,
                        "rayStartParams": {},
                        "template": pod,
                    }
                    for number, pod in enumerate(pods[1:], 1)
                ],
            },
        }
        if plan.left_s is not None:
            made["activeDeadlineSeconds"] = plan.left_s
        return made

    def failure(self, why: Condition) -> Failure | None:
        """Return the failure, since KubeRay removes the pods of a failed job."""
        if why.reason == APP_FAILED:
            code = _EXIT_CODE.search(why.message)
            return Failure(why.message, by_job=True, exit_code=int(code[1]) if code else None)
        return Failure(f"KubeRay: {why.reason}: {why.message}", by_job=False)


def _pod(template: Document, name: str) -> Document:
    """Return the template of one pod, without its command, since KubeRay runs Ray there."""
    pod = copy.deepcopy(template)
    pod["metadata"]["labels"][labels.POD] = labels.value(name)
    if labels.value(name) != name:
        pod["metadata"].setdefault("annotations", {})[labels.POD] = name
    [main] = pod["spec"]["containers"]
    main.pop("command", None)
    main.pop("args", None)
    return pod


RAY_JOB: Final = _RayJob()


def made_as(request: JobRequest, via: Via, kinds: Collection[str] | None) -> str:
    """Return how a cluster with these kinds of jobs runs Ray's pods, as text.

    "" = the request does not use Ray, or the kinds are unknown.
    """
    used = request.runtime_used
    if used is None or not used.template.kuberay or kinds is None:
        return ""
    if RAY_JOB.name in kinds and not RAY_JOB.fits(request, via):
        return "pods of ours, as its queue, size or division asks for them"
    return ray_words(kinds)


def ray_words(kinds: Collection[str]) -> str:
    """Return the same text for any request with a runtime of Ray."""
    served = RAY_JOB.name in kinds
    return "a RayJob: KubeRay is served" if served else "pods of ours: no KubeRay there"

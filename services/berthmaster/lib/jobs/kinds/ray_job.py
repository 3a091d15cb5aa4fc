"""A request with a runtime of Ray as KubeRay wants it: a RayJob in place of a Job of ours. Pure.

Rules of this file:

- Each pod is a group of its own, so that each is known by its name in the attempt, stands where it
  was placed, and is made from the same template as any other pod of ours: volumes, Secrets, rights.
- KubeRay submits the command to the head by HTTP: no pod is made that nobody placed. Ray would keep
  what the command writes in a file of the head; it goes to the log of the head's container instead,
  where logs and what jobs say of themselves are read.
- KubeRay has one try: whether there is another is decided by us. When the job is over it removes
  its cluster, so that nothing holds GPUs.
- What KubeRay's definitions have no field for (groups of Kubernetes' own) is not used here.
- What starts in a queue of the cluster, varies in size, is a part of a job over clusters, or has
  more pods than fit into one object, stays a Job of ours, as where KubeRay is not served.
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
APP_FAILED: Final = "AppFailed"  # KubeRay's word for a job that failed by itself
_EXIT_CODE: Final = re.compile(r"exit code (\d{1,3})\b")
_TO_THE_LOG: Final = (
    'o=/proc/1/fd/1; if (: >> "$o") 2>/dev/null; then exec "$@" >> "$o" 2>&1; fi; exec "$@"'
)


class RayStatus(JobStatus, frozen=True):
    job_status: str = ""  # what Ray says of the job
    job_deployment_status: str = ""  # what KubeRay says of it and its cluster
    reason: str = ""  # why that is Failed
    message: str = ""


class RayJobObject(JobObject, frozen=True):
    status: RayStatus = RayStatus()

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """How it stands, from what Ray and KubeRay say."""
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
    max_name_chars = 47  # KubeRay's bound
    object_type = RayJobObject
    has_substitute = True
    needs_letter = True  # KubeRay makes Services of its name, which may have to begin so
    joins_peers = False  # Ray does
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
        """KubeRay removes the pods of a job that has failed, so they say nothing any more."""
        if why.reason == APP_FAILED:
            code = _EXIT_CODE.search(why.message)
            return Failure(why.message, by_job=True, exit_code=int(code[1]) if code else None)
        return Failure(f"KubeRay: {why.reason}: {why.message}", by_job=False)


def _pod(template: Document, name: str) -> Document:
    """One pod. What it runs is KubeRay's to say: Ray itself."""
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
    """What Ray's pods are made by in a cluster of these kinds of jobs, in words; "" = it is none of
    Ray's, or nobody says."""
    used = request.runtime_used
    if used is None or not used.template.kuberay or kinds is None:
        return ""
    if RAY_JOB.name in kinds and not RAY_JOB.fits(request, via):
        return "pods of ours, as its queue, size or division asks for them"
    return ray_words(kinds)


def ray_words(kinds: Collection[str]) -> str:
    """The same of any request that KubeRay may be for."""
    served = RAY_JOB.name in kinds
    return "a RayJob: KubeRay is served" if served else "pods of ours: no KubeRay there"

"""A Job: one pod set. Pure.

Failed pods are not created again (``backoffLimit`` 0), so the first failure ends the attempt.
"""

from typing import Final

from berthmaster.lib.jobs.kinds.kind import JobKind, JobPlan
from berthmaster.lib.jobs.pods import Document
from berthmaster.lib.kube.resources import JOBS
from berthmaster.lib.messages.placement import Via
from berthmaster.lib.messages.workload import JobRequest, PodSet


class _Job(JobKind):
    name = "Job"
    resource = JOBS
    max_name_chars = 58  # a host name is the Job's name with an index, at most 63
    stops_by_suspending = True

    def fits(self, request: JobRequest, via: Via) -> bool:
        return len(request.pod_sets) == 1

    def spec(self, plan: JobPlan) -> Document:
        return job_spec(plan.request.pod_sets[0], plan.templates[0], plan.left_s)

    def part_name(self, name: str, number: int) -> str:
        return name


def job_spec(pods: PodSet, template: Document, left_s: int | None) -> Document:
    """Return the specification of a Job of one pod set."""
    spec: Document = {
        "parallelism": pods.count,
        "completions": pods.count,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": template,
    }
    if left_s is not None:
        spec["activeDeadlineSeconds"] = left_s
    return spec


JOB: Final = _Job()

"""A JobSet: any number of pod sets, one Job each. The first failure ends the attempt. Pure."""

from typing import Final

from berthmaster.lib.jobs.kinds.job import job_spec
from berthmaster.lib.jobs.kinds.kind import JobKind, JobPlan
from berthmaster.lib.jobs.pods import Document
from berthmaster.lib.kube.resources import JOB_SETS
from berthmaster.lib.lifecycle.attempts import JOB_SET as NAME
from berthmaster.lib.messages.placement import Via
from berthmaster.lib.messages.workload import JobRequest


class _JobSet(JobKind):
    name = NAME
    resource = JOB_SETS
    max_name_chars = 46  # with -s15-0-4095 and five random characters a host name has 63
    pod_failures = frozenset({"FailedJobs"})

    def fits(self, request: JobRequest, via: Via) -> bool:
        return True

    def spec(self, plan: JobPlan) -> Document:
        sets = zip(plan.request.pod_sets, plan.templates, strict=True)
        specs = [job_spec(pods, template, plan.left_s) for pods, template in sets]
        return {
            "failurePolicy": {"maxRestarts": 0},
            "network": {"enableDNSHostnames": False},  # the executor creates the Service
            "replicatedJobs": [
                {"name": f"s{number}", "replicas": 1, "template": {"spec": each}}
                for number, each in enumerate(specs)
            ],
        }

    def host_prefix(self, name: str, number: int) -> str:
        return f"{self.part_name(name, number)}-0-"


JOB_SET: Final = _JobSet()

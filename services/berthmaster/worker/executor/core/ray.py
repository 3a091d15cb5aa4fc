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
- Which requests those are is in lib/requests/ray_jobs.py: whoever explains asks there too.
"""

import copy
import shlex
from collections.abc import Sequence
from typing import Final

from berthmaster.lib.jobs.pods import Document
from berthmaster.lib.kube import labels
from berthmaster.lib.messages.workload import JobRequest
from berthmaster.worker.executor.core.gangs import Gangs

NOT_SAID: Final = (Gangs.KUBERNETES, Gangs.WORKLOAD)
_TO_THE_LOG: Final = (
    'o=/proc/1/fd/1; if (: >> "$o") 2>/dev/null; then exec "$@" >> "$o" 2>&1; fi; exec "$@"'
)


def spec(request: JobRequest, templates: Sequence[Document], left_s: int | None) -> Document:
    """The RayJob's, from a template for each pod set."""
    pods = [
        _pod(template, f"{pods.name}-{index}")
        for pods, template in zip(request.pod_sets, templates, strict=True)
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
    if left_s is not None:
        made["activeDeadlineSeconds"] = left_s
    return made


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

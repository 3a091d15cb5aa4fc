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
"""

from collections.abc import Sequence
from typing import Any, Final

from berthmaster.lib.jobs.pods import Document

INDEX_VARIABLE: Final = "JOB_COMPLETION_INDEX"
PREEMPTABLE: Final = "volcano.sh/preemptable"  # annotation of a pod
# Host names for pods; the Service that they are looked up in is ours, and who may talk to whom is
# not for this to say.
_NAMES: Final = ["--publish-not-ready-addresses=true", "--disable-network-policy=true"]


def number(spec: Document, index: Document, left_s: int | None) -> None:
    """Have a pod know its number within its set, and its time. What the request sets stays."""
    [main] = spec["containers"]
    env: list[Any] = main.get("env", [])
    if all(each["name"] != INDEX_VARIABLE for each in env):
        main["env"] = [{"name": INDEX_VARIABLE, "valueFrom": index}, *env]
    if left_s is not None:
        spec["activeDeadlineSeconds"] = left_s


def spec(
    counts: Sequence[int],
    templates: Sequence[Document],
    queue: str,
    scheduler: str,
    *,
    named: bool,
) -> Document:
    """All of it. ``named``: its pods find each other by name."""
    made: Document = {
        "minAvailable": sum(counts),
        "queue": queue or "default",
        "schedulerName": scheduler,
        "maxRetry": 1,
        "policies": [{"events": ["PodFailed", "PodEvicted"], "action": "TerminateJob"}],
        "tasks": [
            {"name": f"s{number}", "replicas": count, "minAvailable": count, "template": template}
            for number, (count, template) in enumerate(zip(counts, templates, strict=True))
        ],
    }
    if named:
        made["plugins"] = {"svc": list(_NAMES)}
    return made

"""The page of error codes: refusals, faults of attempts, exit codes of `berth`."""

from collections.abc import Mapping
from typing import Final, get_args, get_type_hints

from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.workload import Fault
from scripts.reference.markdown import MADE_BY, table

HEAD: Final = """# Error codes

{made_by}

Programs compare codes. Texts are for people and may change.

## Refusals

A refusal has `code`, `field` (a path such as `pod_sets[0].gpus`), `value` (shortened) and
`expected`. Nothing was changed. With `retry` the same request may succeed later, not before
`retry_after_s`.

```json
{{"type": "api.refusal.v1", "code": "invalid", "field": "pod_sets[0].gpus", "value": "65",
 "expected": "at most 64"}}
```
"""
CODES: Final[Mapping[str, tuple[str, str]]] = {
    "malformed": ("no JSON, an unknown or a duplicate field", "correct the request"),
    "invalid": ("a value that cannot be", "correct the field"),
    "too_large": ("more bytes than the limit", "send less"),
    "conflict": ("the id is used by another request, or the job changed meanwhile", "another id"),
    "not_found": ("no such job, queue, cluster or log", "check the name and the tenant"),
    "forbidden": ("the queue, or the action, is not open to you", "ask an operator"),
    "overloaded": ("a limit of the tenant, the queue or the service", "wait `retry_after_s`"),
    "unavailable": ("the bus or the log cannot store now", "send the same request again"),
}
FAULTS: Final[Mapping[str, tuple[str, str]]] = {
    "exit": ("a container exited with a code other than 0", "`retries`, then failed"),
    "out_of_memory": ("a container exceeded its memory", "`retries`, then failed"),
    "not_started": ("a pod could not start: image, Secret, volume", "requeued; failed after three"),
    "stalled": ("no new progress line for `stalls_after_s`", "requeued; failed after three"),
    "evicted": ("the kubelet, a drain or an operator evicted a pod", "requeued"),
    "preempted": ("the cluster's scheduler or Kueue preempted a pod", "requeued"),
    "node_lost": ("the node stopped answering", "requeued; failed after three"),
    "gpu_lost": ("a GPU became unhealthy", "requeued; failed after three"),
    "late": ("not all pods ran within the executor's limit", "requeued"),
    "deadline": ("`deadline_s` passed", "requeued"),
}
EXITS: Final = (
    ("0", "done"),
    ("1", "refused, failed, or not found"),
    ("2", "the command line or a setting is wrong"),
    ("3", "a library or device is missing"),
    ("4", "no bus or no gateway answers"),
    ("5", "not done within `--at-most`"),
)


def page() -> str:
    """Return the page. Raises KeyError for a code without a text."""
    codes = get_args(get_type_hints(Refusal)["code"])
    faults = [fault for fault in get_args(Fault) if fault]
    return "\n".join(
        [
            HEAD.format(made_by=MADE_BY),
            table(("code", "cause", "what to do"), ((f"`{each}`", *CODES[each]) for each in codes)),
            "",
            "## Faults of attempts\n",
            "`berth job` shows why an attempt ended early. `max_evictions` limits requeues.\n",
            table(("fault", "cause", "follows"), ((f"`{e}`", *FAULTS[e]) for e in faults)),
            "",
            "## Exit codes of `berth`\n",
            table(("exit code", "meaning"), EXITS),
            "",
        ]
    )

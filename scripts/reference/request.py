"""The page of request fields: an annotated job file, every field, and where each works.

What works under ``direct``, ``worker`` and ``hub`` is what the gateway's own checks answer to a
request with that field.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from berthmaster.control.gateway.core.shared_state import order_refusal
from berthmaster.lib.messages.api import Refusal, SubmitRequest
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.requests import validation
from berthmaster.lib.requests.queues import refusal_of
from scripts.reference.fields import Schema, fields_table
from scripts.reference.markdown import MADE_BY, table
from scripts.schema_tools.json_schema import Message, name_of, schema_of

HEAD: Final = """# Request fields

{made_by}

A request is JSON or YAML. Unknown fields are refused. [Write a job file](../users/job-file.md)
shows the way from file to running job.

## A whole job file

```yaml
{example}```
"""
MODES: Final = """## Which fields work where

`via` of the queue says who starts its jobs ([queues](../concepts/queues.md#who-governs-a-queue)).
A refused field names the queue's `via` in the answer. Fields not listed work everywhere.
"""
# A job as a user would write it: two pods of a gang, beside settings for retries and ranking.
EXAMPLE: Final[Mapping[str, Any]] = {
    "id": "train-1",
    "queue": "research",
    "priority": 10,
    "labels": {"team": "nlp"},
    "pod_sets": [
        {
            "name": "worker",
            "count": 2,
            "cpu_milli": 16000,
            "memory_mib": 65536,
            "gpus": 4,
            "gpu_models": ["A100", "H100"],
            "prefer_gpu_models": ["H100"],
            "resources": {"rdma/hca": 1},
            "topology": {"same": "topology.kubernetes.io/zone", "max_pods_a_node": 1},
            "node_labels": {"pool": "train"},
            "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        }
    ],
    "run": {
        "image": "registry.example/train:1",
        "command": ["python", "train.py"],
        "args": ["--lr", "1"],
        "env": {"LOG_LEVEL": "info"},
        "secret_env": {"WANDB_API_KEY": {"name": "wandb", "key": "api-key"}},
    },
    "runtime": {"name": "torch", "parameters": {"max_restarts": 1}},
    "clusters": ["berlin", "paris"],
    "cluster_labels": {"tier": "gold"},
    "profile": "balanced",
    "weights": {"locality": 8},
    "data": ["topology.kubernetes.io/region=eu-north"],
    "expected_duration_s": 7200,
    "max_run_s": 43200,
    "retries": 2,
    "backoff_s": 30,
    "no_retry_exit_codes": [2],
    "max_evictions": 10,
    "preemptible": True,
    "checkpoint_every_s": 600,
    "grace_s": 120,
    "stalls_after_s": 900,
    "depends_on": [{"id": "prepare", "until": "succeeded"}],
}
# Requests that differ from a plain one in the field that is tried.
TRIALS: Final[Mapping[str, Mapping[str, Any]]] = {
    "several pod sets": {"pod_sets": [{"gpus": 1}, {"name": "b", "gpus": 1}]},
    "gpu_milli": {"pod_sets": [{"gpus": 1, "gpu_milli": 500}]},
    "gpu_memory_mib": {"pod_sets": [{"gpus": 1, "gpu_memory_mib": 40960}]},
    "mig_profile": {"pod_sets": [{"gpus": 1, "gpu_milli": 142, "mig_profile": "1g.10gb"}]},
    "isolation": {"pod_sets": [{"gpus": 1, "isolation": "memory"}]},
    "tpus, tpu_topology": {"pod_sets": [{"tpus": 4, "tpu_topology": "2x2"}]},
    "resources": {"pod_sets": [{"gpus": 1, "resources": {"rdma/hca": 1}}]},
    "claims": {"pod_sets": [{"claims": ["nic"]}]},
    "choose": {"pod_sets": [{"gpus": 1, "choose": {"gpus": [1, 2]}}]},
    "trial": {
        "pod_sets": [{"trial": {"budget_s": 60, "configurations": [{"gpus": 1}, {"gpus": 2}]}}]
    },
    "topology": {"pod_sets": [{"count": 2, "gpus": 1, "topology": {"same": "node"}}]},
    "min_count, max_count": {"pod_sets": [{"count": 4, "min_count": 2, "gpus": 1}]},
    "runtime of one pod": {"runtime": {"name": "torch"}},
    "runtime of several pods": {"pod_sets": [{"count": 2}], "runtime": {"name": "torch"}},
    "divide": {"pod_sets": [{"count": 4}], "divide": {"by": "room"}},
    "deadline_s": {"deadline_s": 3600},
    "max_run_s": {"max_run_s": 3600},
    "stalls_after_s": {"stalls_after_s": 900},
    "checkpoint_every_s, grace_s": {"checkpoint_every_s": 600, "grace_s": 60},
    "depends_on": {"depends_on": [{"id": "prepare"}]},
    "set_at_most": {"set": "sweep", "set_at_most": 8},
    "clusters, cluster_labels": {"clusters": ["berlin"], "cluster_labels": {"tier": "gold"}},
    "profile, weights, data": {"profile": "spread", "weights": {"fit": 1}, "data": ["berlin"]},
}
FILLED_IN: Final = frozenset({"runtime_used", "part", "trial_of"})  # by services, never by people
VIAS: Final = ("direct", "worker", "hub")


def page() -> str:
    """Return the page."""
    schema = schema_of(Message(name_of(SubmitRequest), SubmitRequest))
    parts = [HEAD.format(made_by=MADE_BY, example="".join(_yaml(EXAMPLE, schema, schema, "")))]
    for title, part in _structs(schema):
        parts += [f"## {title}\n", fields_table(part, without=FILLED_IN)]
    rows = ((_label(name), *_answers(trial)) for name, trial in TRIALS.items())
    return "\n".join([*parts, MODES, table(("field", *VIAS), rows), ""])


def _structs(schema: Schema) -> Iterator[tuple[str, Schema]]:
    yield "Fields of a job", schema
    titles = {
        "StrictPodSet": "Fields of `pod_sets`",
        "StrictChoose": "Fields of `choose`",
        "StrictTrial": "Fields of `trial`",
        "StrictTrialConfiguration": "Fields of `trial.configurations`",
        "StrictTopology": "Fields of `topology`",
        "StrictToleration": "Fields of `tolerations`",
        "StrictRunSpec": "Fields of `run`",
        "StrictSecretKey": "Fields of `run.secret_env`",
        "StrictRuntime": "Fields of `runtime`",
        "StrictDependency": "Fields of `depends_on`",
        "StrictDivide": "Fields of `divide`",
    }
    for name in schema["$defs"]:
        if name not in titles:
            raise KeyError(f"{name} has no title on the page of request fields")
    yield from ((title, schema["$defs"][name]) for name, title in titles.items())


def _yaml(value: Mapping[str, Any], part: Schema, schema: Schema, indent: str) -> Iterator[str]:
    """Yield the lines of a job file, with each field's meaning behind it."""
    for name, each in value.items():
        field = part["properties"][name]
        below = _struct_of(field, schema)
        note = field.get("description", "").split(";")[0].rstrip(".")
        comment = f"  # {note}" if note else ""
        if isinstance(each, list) and below is not None and isinstance(each[0], dict):
            yield f"{indent}{name}:{comment}\n"
            for item in each:
                lines = list(_yaml(item, below, schema, f"{indent}    "))
                yield f"{indent}  - {lines[0].lstrip()}"
                yield from lines[1:]
        elif isinstance(each, dict) and below is not None:
            yield f"{indent}{name}:{comment}\n"
            yield from _yaml(each, below, schema, f"{indent}  ")
        else:
            yield f"{indent}{name}: {_plain(each)}{comment}\n"


def _plain(value: object) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, str) and re.fullmatch(r"[a-z][\w./-]*(:[\w.-]+)?", value):
        return value
    return msgspec.json.encode(value).decode().replace('","', '", "').replace('":', '": ')


def _struct_of(field: Schema, schema: Schema) -> Schema | None:
    """Return the schema of the struct in a field, its items included; None for plain values."""
    for each in (field, *field.get("anyOf", ()), *field.get("allOf", ()), field.get("items", {})):
        if isinstance(each, Mapping) and "$ref" in each:
            found: Schema = schema["$defs"][each["$ref"].rpartition("/")[2]]
            return found
    return None


def _label(name: str) -> str:
    """Return names of fields as code, other words as they are."""
    fields = name.split(", ")
    return name if " " in fields[0] else ", ".join(f"`{field}`" for field in fields)


def _answers(trial: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple("yes" if _refusal(trial, via) is None else "refused" for via in VIAS)


def _refusal(trial: Mapping[str, Any], via: str) -> Refusal | None:
    """Return what the gateway answers to a request with this field in a queue with this ``via``."""
    body = msgspec.json.encode({"id": "a", "queue": "q", "pod_sets": [{"gpus": 1}], **trial})
    request = validation.job_request(body)
    if isinstance(request, Refusal):
        raise ValueError(f"{trial}: {request.field}: {request.expected}")
    queues = {
        "q": msgspec.convert({"queue": "q", "via": via, "trial_gpu_h_a_day": 20.0}, QueueSetting)
    }
    return refusal_of(queues, "t", request, {}) or order_refusal(request, via)

"""``choose`` of pod sets: what is filled in, and each refusal with its field."""

import json
from typing import Any

import pytest

from berthmaster.lib.lifecycle.choices import configurations, largest, smallest
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.control import QueueAllows, QueueSetting
from berthmaster.lib.messages.workload import JobRequest
from berthmaster.lib.requests.queues import refusal_of
from berthmaster.lib.requests.validation import job_request


def read(pods: dict[str, Any], **fields: Any) -> JobRequest | Refusal:
    sets = fields.pop("pod_sets", [pods])
    return job_request(json.dumps({"id": "a", "pod_sets": sets} | fields).encode())


def accepted(pods: dict[str, Any]) -> JobRequest:
    request = read(pods)
    assert isinstance(request, JobRequest), request
    return request


def seen(request: JobRequest) -> tuple[int, tuple[str, ...]]:
    [pods] = request.pod_sets
    return pods.gpus, pods.gpu_models


def test_request_gets_the_first_number_and_all_models() -> None:
    request = accepted({"choose": {"gpus": [4, 8], "gpu_models": ["H100", "A100"]}})
    assert seen(request) == (4, ("H100", "A100"))
    assert list(map(seen, configurations(request))) == [
        (4, ("H100",)),
        (4, ("A100",)),
        (8, ("H100",)),
        (8, ("A100",)),
    ]
    assert seen(smallest(request)) == (4, ("H100", "A100"))
    assert seen(largest(request)) == (8, ("H100", "A100"))
    written = accepted({"gpus": 8, "gpu_models": ["T4"], "choose": {"gpus": [4, 8]}})
    assert seen(written) == (8, ("T4",))
    assert configurations(accepted({"gpus": 1})) == ()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no configuration": ({"choose": {}}, "choose"),
    "no number": ({"choose": {"gpus": [0]}}, "choose.gpus[0]"),
    "a number twice": ({"choose": {"gpus": [1, 2, 1]}}, "choose.gpus[2]"),
    "a model twice": ({"gpus": 1, "choose": {"gpu_models": ["T4", "T4"]}}, "choose.gpu_models[1]"),
    "an unknown order": ({"choose": {"gpus": [1], "by": "luck"}}, "choose.by"),
    "an unknown field": ({"choose": {"gpu": [1]}}, "choose.gpu"),
    "too many": ({"choose": {"gpus": [1, 2, 3, 4, 5], "gpu_models": list("abcd")}}, "choose"),
    "another number": ({"gpus": 3, "choose": {"gpus": [1, 2]}}, "gpus"),
    "models of no GPU": ({"choose": {"gpu_models": ["T4"]}}, "choose"),
    "two lists of models": (
        {"gpus": 1, "gpu_models": ["T4"], "choose": {"gpu_models": ["H100"]}},
        "gpu_models",
    ),
    "a preference too": (
        {"gpus": 1, "prefer_gpu_models": ["T4"], "choose": {"gpu_models": ["T4"]}},
        "prefer_gpu_models",
    ),
    "a part of a GPU": ({"gpus": 1, "gpu_milli": 500, "choose": {"gpus": [1]}}, "gpu_milli"),
    "elastic": ({"count": 2, "min_count": 1, "choose": {"gpus": [1]}}, "min_count"),
    "one GPU in a domain": (
        {"gpus": 2, "topology": {"gpu_domain": "required"}, "choose": {"gpus": [1, 2]}},
        "choose.gpus",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_choice_that_contradicts_the_pod_set_is_refused(name: str) -> None:
    pods, field = BAD[name]
    refusal = read(pods)
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.field) == ("invalid", f"pod_sets[0].{field}")


def test_choice_of_a_divided_job_or_of_two_pod_sets_is_refused() -> None:
    pods = {"count": 2, "choose": {"gpus": [1, 2]}}
    divided = read(pods, divide={"by": "room"})
    assert isinstance(divided, Refusal)
    assert divided.field == "divide"
    two = read({}, pod_sets=[pods | {"name": "a"}, pods | {"name": "b"}])
    assert isinstance(two, Refusal)
    assert two.field == "pod_sets[1].choose"


def test_queue_refuses_the_largest_choice_and_models_that_it_does_not_allow() -> None:
    request = accepted({"choose": {"gpus": [1, 8], "gpu_models": ["T4", "H100"]}})

    def field(**fields: Any) -> str:
        queues = {"default": QueueSetting(queue="default", **fields)}
        refusal = refusal_of(queues, "acme", request, {})
        return refusal.field if refusal is not None else ""

    assert field() == ""
    assert field(max_job_gpu_milli=4000) == "pod_sets"
    assert field(max_job_gpu_milli=8000) == ""
    allows = QueueAllows(gpu_models=("T4",))
    assert field(allows=allows) == "pod_sets[0].choose.gpu_models"
    assert field(via="hub") == "pod_sets[0].choose"
    assert field(via="worker") == ""

"""Lists of texts in requests and settings: members are trimmed, and an empty one is refused."""

import json
from typing import Any

import pytest

from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.workload import JobRequest
from berthmaster.lib.requests import validation
from berthmaster.lib.requests.templates import runtime_setting

RIGHT = "a text with more than blanks, or no such member"


def read(kind: str, body: dict[str, Any]) -> Any:
    match kind:
        case "request":
            return validation.job_request(json.dumps({"id": "a"} | body).encode())
        case "queue":
            tag = {"type": "control.queue.v1", "queue": "q"}
            return validation.queue_setting(json.dumps(tag | body).encode())
        case _:
            tag = {"type": "control.runtime.v1", "runtime": "mine"}
            return runtime_setting(json.dumps(tag | body).encode())


EMPTY: list[tuple[str, dict[str, Any], str, str]] = [
    ("request", {"clusters": [""]}, "clusters[0]", '""'),
    ("request", {"clusters": ["a", " \t\n"]}, "clusters[1]", '" \\t\\n"'),
    ("request", {"data": ["a", ""]}, "data[1]", '""'),
    ("request", {"pod_sets": [{"gpu_models": [""]}]}, "pod_sets[0].gpu_models[0]", '""'),
    (
        "request",
        {"pod_sets": [{"name": "x"}, {"prefer_gpu_models": ["A", ""]}]},
        "pod_sets[1].prefer_gpu_models[1]",
        '""',
    ),
    ("request", {"pod_sets": [{"claims": [" "]}]}, "pod_sets[0].claims[0]", '" "'),
    ("queue", {"allows": {"tolerations": ["gpu", ""]}}, "allows.tolerations[1]", '""'),
    ("queue", {"allows": {"node_labels": [""]}}, "allows.node_labels[0]", '""'),
    ("queue", {"allows": {"images": ["a/", " "]}}, "allows.images[1]", '" "'),
    ("queue", {"allows": {"gpu_models": [""]}}, "allows.gpu_models[0]", '""'),
    ("queue", {"tenants": ["a", ""]}, "tenants[1]", '""'),
    ("runtime", {"clusters": ["", "a"]}, "clusters[0]", '""'),
    ("runtime", {"queues": ["a", ""]}, "queues[1]", '""'),
    ("runtime", {"template": {"env_from_secrets": [""]}}, "template.env_from_secrets[0]", '""'),
]


@pytest.mark.parametrize(("kind", "body", "field", "value"), EMPTY)
def test_an_empty_member_is_refused_with_its_index(
    kind: str, body: dict[str, Any], field: str, value: str
) -> None:
    right = Refusal(code="invalid", field=field, value=value, expected=RIGHT)
    assert read(kind, body) == right


def test_variable_with_a_number_names_the_quotes() -> None:
    assert read("request", {"run": {"env": {"LR": 0.1}}}) == Refusal(
        code="invalid",
        field="run.env.LR",
        value="0.1",
        expected="text in quotes",
    )


def test_a_label_of_clusters_without_a_name_is_refused() -> None:
    found = read("request", {"cluster_labels": {"region": "eu", " ": "x"}})
    right = "a label or property of clusters, such as region"
    assert found == Refusal(
        code="invalid", field='cluster_labels[" "]', value='" "', expected=right
    )


def test_members_are_trimmed() -> None:
    pods = {"gpus": 1, "gpu_models": [" H100\t", "A100"], "claims": ["x "]}
    request = read("request", {"clusters": [" a "], "pod_sets": [pods]})
    assert isinstance(request, JobRequest)
    assert request.clusters == ("a",)
    assert request.pod_sets[0].gpu_models == ("H100", "A100")
    assert request.pod_sets[0].claims == ("x",)
    queue = read("queue", {"allows": {"tolerations": [" gpu "]}, "tenants": ["acme "]})
    assert isinstance(queue, QueueSetting)
    assert (queue.allows.tolerations, queue.tenants) == (("gpu",), ("acme",))


def test_a_member_that_is_no_text_is_named_where_it_stands() -> None:
    found = read("request", {"clusters": [" a ", 7]})
    assert isinstance(found, Refusal)
    assert (found.field, found.value) == ("clusters[1]", "7")


def test_a_name_given_twice_is_refused_beside_a_member_that_is_trimmed() -> None:
    found = validation.job_request(b'{"id":"a","clusters":[" a "],"clusters":["b"]}')
    assert isinstance(found, Refusal)
    assert (found.code, found.field) == ("malformed", "clusters")

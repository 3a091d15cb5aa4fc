"""A refusal about a map names the member at fault, whatever the map holds."""

import json
from typing import Any

import pytest

from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.requests import validation
from berthmaster.lib.requests.templates import runtime_setting

PIECES = "a whole number from 1 to 1000000"
AMOUNT = "a whole number from 0 to 1125899906842624, or null"
KINDS = '"boolean", "integer", "number", "string"'
PIECE = 'pod_sets[0].resources["b/c"]'


def pieces(wrong: Any) -> dict[str, Any]:
    return {"id": "a", "pod_sets": [{"resources": {"rdma/hca": 1, "b/c": wrong, "d/e": 1}}]}


MEMBERS: list[tuple[dict[str, Any], str, str, str]] = [
    (pieces(0), PIECE, "0", PIECES),
    (pieces("1"), PIECE, '"1"', PIECES),
    (pieces(1.5), PIECE, "1.5", PIECES),
    (pieces(True), PIECE, "true", PIECES),
    (pieces(None), PIECE, "null", PIECES),
    (pieces([]), PIECE, "[]", PIECES),
    (pieces(10**25), PIECE, str(10**25), PIECES),
    (
        {
            "id": "a",
            "pod_sets": [{"count": 2}],
            "divide": {"by": "weight", "weights": {"a": 3, "b": 1001}},
        },
        "divide.weights.b",
        "1001",
        "a whole number from 1 to 1000",
    ),
    (
        {"id": "a", "runtime": {"name": "r", "parameters": {"x": 1, "y": [1]}}},
        "runtime.parameters.y",
        "[1]",
        "true or false, a whole number, a number, text",
    ),
    (
        {"id": "a", "labels": {"x": "1", "y": 5}},
        "labels.y",
        "5",
        "text in quotes of at most 316 characters",
    ),
    (
        {"id": "a", "run": {"secret_env": {"x": {"name": "a", "key": "/"}}}},
        "run.secret_env.x.key",
        '"/"',
        "1 to 253 letters, digits, '-', '_' and '.'",
    ),
]


@pytest.mark.parametrize(("body", "field", "value", "expected"), MEMBERS)
def test_of_a_map_the_member_that_is_wrong_is_named(
    body: dict[str, Any], field: str, value: str, expected: str
) -> None:
    found = validation.job_request(json.dumps(body).encode())
    assert isinstance(found, Refusal)
    assert (found.field, found.value) == (field, value)
    assert sorted(found.expected.split(", ")) == sorted(expected.split(", "))


def test_of_a_map_of_a_setting_too() -> None:
    amounts = {"cpu": {"guarantee": 1}, "memory": {"guarantee": -1}}
    queue = {"type": "control.queue.v1", "queue": "q", "resources": amounts}
    assert validation.queue_setting(json.dumps(queue).encode()) == Refusal(
        code="invalid", field="resources.memory.guarantee", value="-1", expected=AMOUNT
    )
    runtime: dict[str, Any] = {"type": "control.runtime.v1", "runtime": "r"}
    runtime["template"] = {"resources": {"a/b": 1, "c/d": 0}}
    assert runtime_setting(json.dumps(runtime).encode()) == Refusal(
        code="invalid", field='template.resources["c/d"]', value="0", expected=PIECES
    )
    runtime["template"], runtime["parameters"] = {}, {"a": {}, "b": {"type": "x"}}
    assert runtime_setting(json.dumps(runtime).encode()) == Refusal(
        code="invalid", field="parameters.b.type", value='"x"', expected=f"one of {KINDS}"
    )

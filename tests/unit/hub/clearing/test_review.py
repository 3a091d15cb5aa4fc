"""The rule of the webhook is the policy's, and what it says of reviews that it cannot read."""

import itertools
import json
from base64 import b64decode
from typing import Any, Final

import msgspec
import pytest

from berthmaster.hub.clearing.core.review import Reply, answer
from berthmaster.lab.controlplane.api import documents
from tests.support.chart import CHART

cel = pytest.importorskip("cel_expr_python.cel")
EVICTED: Final = {"type": "Evicted", "status": "True"}
KEPT: Final = {"type": "Evicted", "status": "False"}
STATUSES: Final[list[dict[str, Any] | None]] = [
    None,
    {},
    *(
        {
            **({"nominatedClusterNames": names} if names is not None else {}),
            **({"clusterName": name} if name is not None else {}),
            **({"conditions": conditions} if conditions is not None else {}),
        }
        for names, name, conditions in itertools.product(
            (None, [], ["east"]), (None, "", "east"), (None, [KEPT], [EVICTED])
        )
    ),
]


def workload(status: dict[str, Any] | None) -> dict[str, Any]:
    meta = {"name": "job-train", "namespace": "ml"}
    return {"metadata": meta, "spec": {}, **({} if status is None else {"status": status})}


def review(old: object, new: object, **changed: object) -> bytes:
    request = {"uid": "u-1", "operation": "UPDATE", "object": new, "oldObject": old, **changed}
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return json.dumps(body).encode()


def response(reply: Reply) -> dict[str, Any]:
    told = msgspec.json.decode(reply.body)
    assert (told["apiVersion"], told["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    found: dict[str, Any] = told["response"]
    assert found["uid"] == "u-1"
    return found


def conditions_of_the_policy() -> list[Any]:
    policy, _ = documents(CHART / "nominations.yaml")
    config = cel.NewEnvConfigFromYaml("name: berth\nextensions:\n- {name: optional}\n")
    variables = dict.fromkeys(("object", "oldObject"), cel.Type.DYN)
    environment = cel.NewEnv(config=config, variables=variables)
    return [environment.compile(each["expression"]) for each in policy["spec"]["matchConditions"]]


def test_webhook_clears_exactly_where_the_policy_does() -> None:
    conditions = conditions_of_the_policy()
    cleared = 0
    for old, new in itertools.product(STATUSES, STATUSES):
        given = {"object": workload(new), "oldObject": workload(old)}
        by_policy = all(each.eval(data=given).value() for each in conditions)
        reply = answer(review(given["oldObject"], given["object"]))
        assert reply.result == ("cleared" if by_policy else "unchanged"), (old, new)
        cleared += by_policy
    assert 0 < cleared < len(STATUSES) ** 2


def test_answer_clears_the_field_and_nothing_else() -> None:
    nominated = {"nominatedClusterNames": ["east", "west"]}
    found = response(
        answer(review(workload(nominated), workload({**nominated, "clusterName": "east"})))
    )
    assert (found["allowed"], found["patchType"]) == (True, "JSONPatch")
    [policy, _] = documents(CHART / "nominations.yaml")
    [mutation] = policy["spec"]["mutations"]
    patch = json.loads(b64decode(found["patch"]))
    assert patch == [{"op": "replace", "path": "/status/nominatedClusterNames", "value": []}]
    for text in ('op: "replace"', 'path: "/status/nominatedClusterNames"', "value: []"):
        assert text in mutation["jsonPatch"]["expression"]
    assert response(answer(review(workload(None), workload(nominated)))) == {
        "uid": "u-1",
        "allowed": True,
    }


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "the body is no AdmissionReview"),
        (b"[" * 100_000, "the body is no AdmissionReview"),
        (
            b"{}",
            "the body is no apiVersion, no kind; right is admission.k8s.io/v1, AdmissionReview",
        ),
        (
            b'{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview"}',
            "the body is admission.k8s.io/v1beta1, AdmissionReview; right is admission.k8s.io/v1",
        ),
        (
            b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}',
            "request.uid is missing",
        ),
        (review({}, {}, uid=""), "request.uid is missing"),
        (
            review({}, {}, uid=7),
            "the body is no AdmissionReview: Expected `str`, got `int` - at `$.",
        ),
    ],
)
def test_what_is_no_review_is_refused_with_what_would_be_right(body: bytes, why: str) -> None:
    reply = answer(body)
    assert (reply.status, reply.result) == (400, "malformed")
    assert msgspec.json.decode(reply.body)["error"].startswith(why)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ({}, {"status": {"nominatedClusterNames": "east"}}, "object is no Workload of v1beta2: "),
        ({"status": {"conditions": [7]}}, {}, "oldObject is no Workload of v1beta2: Expected "),
        (None, {}, "oldObject is no Workload of v1beta2: "),
    ],
)
def test_workload_that_cannot_be_read_is_refused_with_its_field(
    old: object, new: object, why: str
) -> None:
    reply = answer(review(old, new))
    found = response(reply)
    assert (reply.status, reply.result, found["allowed"]) == (200, "refused", False)
    assert found["status"]["code"] == 400
    assert found["status"]["message"].startswith(f"request.{why}")

"""Metadata, conditions and times as the API writes them."""

from urllib.parse import unquote

import msgspec
import pytest

from berthmaster.lib.kube.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
    refusal,
)
from berthmaster.lib.kube.objects import (
    Condition,
    Metadata,
    Object,
    OwnerReference,
    condition,
    holds,
    key_of,
    seconds,
    timestamp,
)
from berthmaster.lib.kube.resources import (
    ADMISSION_CHECKS,
    CLUSTER_PROFILES,
    KUEUE_WORKLOADS,
    NODES,
    PODS,
    counted_as,
)


def test_a_refusal_says_what_is_known_of_it() -> None:
    said = [
        str(ApiError(404, reason, text, "/x"))
        for reason, text in (("NotFound", "no y"), ("NotFound", ""), ("", ""))
    ]
    assert said == ["no y (404 NotFound, /x)", "NotFound (404 NotFound, /x)", "refused (404 , /x)"]


def test_metadata_keeps_what_is_needed_and_skips_the_rest() -> None:
    raw = b"""{"kind": "Pod", "spec": {"huge": [1, 2]}, "metadata": {
        "name": "a", "namespace": "b", "uid": "c", "resourceVersion": "12", "generation": 3,
        "labels": {"l": "1"}, "annotations": {"n": "2"}, "finalizers": ["f"],
        "creationTimestamp": "2026-11-21T20:00:00Z", "deletionTimestamp": null,
        "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}],
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u",
                             "controller": true, "blockOwnerDeletion": true}]}}"""
    found = msgspec.json.decode(raw, type=Object)
    assert found == Object(
        metadata=Metadata(
            name="a",
            namespace="b",
            uid="c",
            resource_version="12",
            generation=3,
            labels={"l": "1"},
            annotations={"n": "2"},
            finalizers=("f",),
            creation_timestamp="2026-11-21T20:00:00Z",
            owner_references=(
                OwnerReference(
                    api_version="batch/v1",
                    kind="Job",
                    name="j",
                    uid="u",
                    controller=True,
                    block_owner_deletion=True,
                ),
            ),
        )
    )
    assert key_of(found.metadata) == ("b", "a")


def test_an_object_is_written_with_the_fields_that_it_has_and_in_the_apis_names() -> None:
    made = Object(metadata=Metadata(name="a", resource_version="7", labels={"x": "y"}))
    assert msgspec.json.decode(msgspec.json.encode(made)) == {
        "metadata": {"name": "a", "resourceVersion": "7", "labels": {"x": "y"}}
    }


def test_a_condition_holds_only_if_it_is_there_and_true() -> None:
    raw = b"""[{"type": "Active", "status": "True", "reason": "Ready", "observedGeneration": 2},
               {"type": "Stale", "status": "Unknown"}, {"type": "Off", "status": "False"}]"""
    found = msgspec.json.decode(raw, type=tuple[Condition, ...])
    active = Condition(type="Active", status="True", reason="Ready", observed_generation=2)
    assert condition(found, "Active") == active
    assert condition(found, "Missing") is None
    assert [holds(found, name) for name in ("Active", "Stale", "Off", "Missing")] == [
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("text", "at_s"),
    [
        ("1970-01-01T00:00:10Z", 10.0),
        ("2026-11-21T20:47:22Z", 1795294042.0),
        ("2026-11-21T20:47:22.250000Z", 1795294042.25),
        ("2026-11-21T22:47:22+02:00", 1795294042.0),
        (None, 0.0),
        ("", 0.0),
    ],
)
def test_a_time_of_the_api_in_seconds(text: str | None, at_s: float) -> None:
    assert seconds(text) == at_s


@pytest.mark.parametrize("text", ["soon", "2026-11-21T20:47:22", "2026-13-01T00:00:00Z"])
def test_a_time_that_is_none_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=text):
        seconds(text)


def test_seconds_become_times_of_the_api_and_back() -> None:
    assert timestamp(1795294042.9) == "2026-11-21T20:47:22Z"
    assert seconds(timestamp(1795294042.9)) == 1795294042


@pytest.mark.parametrize(
    ("path", "counted"),
    [
        (NODES.path(), "nodes"),
        (NODES.path(name="n-1"), "nodes"),
        (PODS.path(), "pods"),
        (PODS.path(namespace="a"), "pods"),
        (PODS.path(namespace="a", name="b", subresource="status"), "pods/status"),
        (KUEUE_WORKLOADS.path(namespace="a", name="b", subresource="status"), "workloads/status"),
        ("/api/v1/namespaces/a", "namespaces"),
        ("/api/v1/namespaces", "namespaces"),
        ("/version", "/version"),
        ("/apis/batch/v1", "/apis/batch/v1"),
    ],
)
def test_a_call_is_counted_under_its_resource_as_rbac_names_it(path: str, counted: str) -> None:
    assert counted_as(path) == counted


def test_paths_are_those_of_the_api() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path(namespace="a", name="b") == "/api/v1/namespaces/a/pods/b"
    assert ADMISSION_CHECKS.path(name="b", subresource="status") == (
        "/apis/kueue.x-k8s.io/v1beta2/admissionchecks/b/status"
    )
    assert CLUSTER_PROFILES.group_version == "multicluster.x-k8s.io/v1alpha1"
    assert NODES.group_version == "v1"


@pytest.mark.parametrize("name", ["../../nodes", "a/b", "a?x=1", "a%2Fb", "a#b", "ä b:c"])
def test_a_name_from_outside_cannot_lead_elsewhere(name: str) -> None:
    path = PODS.path(namespace="a", name=name)
    assert path.startswith("/api/v1/namespaces/a/pods/")
    assert "/" not in path.removeprefix("/api/v1/namespaces/a/pods/")
    assert unquote(path.removeprefix("/api/v1/namespaces/a/pods/")) == name
    assert "?" not in path


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"namespace": "a", "name": ".."}, "'..' is no name"),
        ({"namespace": "."}, "'.' is no name"),
        ({"name": "b"}, "needs its namespace"),
        ({"namespace": "a", "subresource": "status"}, "needs a name"),
    ],
)
def test_a_path_that_makes_no_sense_is_refused(arguments: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        PODS.path(**arguments)


def test_a_resource_without_namespaces_takes_none() -> None:
    with pytest.raises(ValueError, match="nodes have no namespace, not even 'a'"):
        NODES.path(namespace="a", name="b")


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", ApiError),
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (405, "MethodNotAllowed", ApiError),
        (409, "AlreadyExists", AlreadyExists),
        (409, "Conflict", Conflict),
        (410, "Expired", Gone),
        (410, "Gone", Gone),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", ServerError),
        (503, "ServiceUnavailable", ServerError),
        (504, "Timeout", ServerError),
        (599, "", ServerError),
    ],
)
def test_every_refusal_has_the_class_that_says_what_to_do(
    code: int, reason: str, kind: type[ApiError]
) -> None:
    body = msgspec.json.encode({"kind": "Status", "reason": reason, "message": "m", "code": code})
    error = refusal(code, body, "/api/v1/pods")
    assert type(error) is kind
    assert (error.status, error.reason, error.message) == (code, reason, "m")
    assert error.path == "/api/v1/pods"


def test_a_refusal_that_is_no_status_is_shown_as_it_came_but_not_all_of_it() -> None:
    error = refusal(502, b"<html>\xff" + b"x" * 5000, "/p")
    assert type(error) is ServerError
    assert error.message.startswith("<html>")
    assert len(error.message) <= 1024


def test_when_to_come_back_is_taken_from_the_header_or_the_status() -> None:
    body = b'{"kind":"Status","code":429,"details":{"retryAfterSeconds":7}}'
    assert refusal(429, body, "/p").retry_after_s == 7
    assert refusal(429, body, "/p", 2.0).retry_after_s == 2
    assert refusal(429, b"{}", "/p").retry_after_s == 0

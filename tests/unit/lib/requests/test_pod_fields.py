"""What no API server or kubelet accepts in a pod is refused at submit, field by field."""

import json
from typing import Any

import msgspec
import pytest

from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.runtimes import PodTemplate, Runtime, RuntimeParameter, RuntimeSetting
from berthmaster.lib.messages.workload import JobRequest
from berthmaster.lib.requests import validation
from berthmaster.lib.requests.names import (
    IMAGE_WORDS,
    LABEL_VALUE_WORDS,
    QUALIFIED_NAME_WORDS,
    SECRET_KEY_WORDS,
    VARIABLE_WORDS,
)
from berthmaster.lib.requests.runtimes import filled_in
from berthmaster.lib.requests.templates import runtime_setting

NO_NUL = "text without a NUL byte: no process can get one"
HIDDEN = '"(a text with a NUL byte)"'


def submit(pods: dict[str, Any], run: dict[str, Any]) -> JobRequest | Refusal:
    body = {"id": "a", "pod_sets": [pods], "run": run}
    return validation.job_request(json.dumps(body).encode())


def tolerating(**toleration: str) -> dict[str, Any]:
    return {"tolerations": [{"key": "gpu", "operator": "Exists"}, toleration]}


KEY_WORDS = f"a taint's key: {QUALIFIED_NAME_WORDS}"
VALUE_WORDS = f"a taint's value: {LABEL_VALUE_WORDS}"
NO_KEY = '"Exists", as key is empty, or a key: an empty key with Exists is every taint'
NO_VALUE = "nothing, as operator is Exists, which takes any value"
NODE_LABEL = f"a label of nodes: {QUALIFIED_NAME_WORDS}"
NODE_VALUE = f"a label's value: {LABEL_VALUE_WORDS}"
AT = "pod_sets[0].tolerations[1]"
BAD_PODS: list[tuple[dict[str, Any], str, Any, str]] = [
    (tolerating(), f"{AT}.operator", "Equal", NO_KEY),
    (tolerating(value="x"), f"{AT}.operator", "Equal", NO_KEY),
    (tolerating(key="k", operator="Exists", value="x"), f"{AT}.value", "x", NO_VALUE),
    (tolerating(operator="Exists", value="x"), f"{AT}.value", "x", NO_VALUE),
    (tolerating(key="a b"), f"{AT}.key", "a b", KEY_WORDS),
    (tolerating(key="-a"), f"{AT}.key", "-a", KEY_WORDS),
    (tolerating(key="a/b/c"), f"{AT}.key", "a/b/c", KEY_WORDS),
    (tolerating(key="/b"), f"{AT}.key", "/b", KEY_WORDS),
    (tolerating(key="a/"), f"{AT}.key", "a/", KEY_WORDS),
    (tolerating(key="A.b/c"), f"{AT}.key", "A.b/c", KEY_WORDS),
    (tolerating(key="a..b/c"), f"{AT}.key", "a..b/c", KEY_WORDS),
    (tolerating(key="a\n"), f"{AT}.key", "a\n", KEY_WORDS),
    (tolerating(key="é"), f"{AT}.key", "é", KEY_WORDS),
    (tolerating(key="k" * 64), f"{AT}.key", "k" * 64, KEY_WORDS),
    (tolerating(key="k", value="a b"), f"{AT}.value", "a b", VALUE_WORDS),
    (tolerating(key="k", value="v" * 64), f"{AT}.value", "v" * 64, VALUE_WORDS),
    ({"node_labels": {"": "x"}}, 'pod_sets[0].node_labels[""]', "", NODE_LABEL),
    ({"node_labels": {"a b": "x"}}, 'pod_sets[0].node_labels["a b"]', "a b", NODE_LABEL),
    ({"node_labels": {"a": "x y"}}, "pod_sets[0].node_labels.a", "x y", NODE_VALUE),
    ({"node_labels": {"a": "-x"}}, "pod_sets[0].node_labels.a", "-x", NODE_VALUE),
    ({"node_labels": {"a": "v" * 64}}, "pod_sets[0].node_labels.a", "v" * 64, NODE_VALUE),
    (
        {"tpus": 4, "tpu_accelerators": ["v5 lite"]},
        "pod_sets[0].tpu_accelerators[0]",
        "v5 lite",
        f"a value of the label cloud.google.com/gke-tpu-accelerator: {LABEL_VALUE_WORDS}",
    ),
    (
        {"resources": {f"{'a' * 49}.{'b' * 63}.{'c' * 63}.{'d' * 63}.com/x": 1}},
        "(the last)",
        None,
        "an extended resource of nodes by its full name, such as rdma/hca or vpc.amazonaws.com/efa",
    ),
]


@pytest.mark.parametrize(("pods", "field", "value", "expected"), BAD_PODS)
def test_labels_and_tolerations_are_checked_as_the_api_server_checks_them(
    pods: dict[str, Any], field: str, value: Any, expected: str
) -> None:
    found = submit(pods, {})
    assert isinstance(found, Refusal)
    if value is None:
        assert (found.code, found.expected) == ("invalid", expected)
        return
    shown = msgspec.json.encode(value).decode()
    shown = shown if len(shown) <= 80 else shown[:79] + "…"
    assert found == Refusal(code="invalid", field=field, value=shown, expected=expected)


SECRET = {"name": "wandb", "key": "api-key"}
BAD_RUNS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"env": {"": "x"}}, 'run.env[""]', '""', VARIABLE_WORDS),
    ({"env": {"A=B": "x"}}, 'run.env["A=B"]', '"A=B"', VARIABLE_WORDS),
    ({"env": {"A\n": "x"}}, 'run.env["A\\n"]', '"A\\n"', VARIABLE_WORDS),
    ({"env": {"Ä": "x"}}, 'run.env["Ä"]', '"Ä"', VARIABLE_WORDS),
    ({"env": {"A\x7f": "x"}}, 'run.env["A\x7f"]', '"A\x7f"', VARIABLE_WORDS),
    ({"env": {"A": "x\0y"}}, "run.env.A", HIDDEN, NO_NUL),
    ({"secret_env": {"A=B": SECRET}}, 'run.secret_env["A=B"]', '"A=B"', VARIABLE_WORDS),
    (
        {"secret_env": {"A": SECRET | {"key": ".."}}},
        "run.secret_env.A.key",
        '".."',
        SECRET_KEY_WORDS,
    ),
    (
        {"secret_env": {"A": SECRET | {"key": "..x"}}},
        "run.secret_env.A.key",
        '"..x"',
        SECRET_KEY_WORDS,
    ),
    ({"command": ["a\0"]}, "run.command[0]", HIDDEN, NO_NUL),
    ({"command": [""]}, "run.command[0]", '""', "a program to start"),
    ({"command": [" ", "x"]}, "run.command[0]", '" "', "a program to start"),
    ({"args": ["x", "\0"]}, "run.args[1]", HIDDEN, NO_NUL),
]


@pytest.mark.parametrize(("run", "field", "value", "expected"), BAD_RUNS)
def test_what_no_process_can_be_started_with_is_refused(
    run: dict[str, Any], field: str, value: str, expected: str
) -> None:
    right = Refusal(code="invalid", field=field, value=value, expected=expected)
    assert submit({}, run) == right


@pytest.mark.parametrize(
    "image",
    [
        " ",
        "busy box",
        " busybox",
        "busybox ",
        "busybox\n",
        "Busybox",
        "team/Train:1",
        "busybox:",
        "busybox:a b",
        f"busybox:{'t' * 129}",
        "busybox@sha256:abc",
        "busybox@",
        "/busybox",
        "busybox/",
        "a//b",
        "http://example.com/a",
        "docker://busybox",
        "example.com:port/a",
        "a..b",
        "-a",
        "f" * 64,
        "a" * 256,
        "$(IMAGE)",
        "{{image}}",
        "",
    ],
)
def test_an_image_that_no_kubelet_can_read_is_refused(image: str) -> None:
    found = submit({}, {"image": image})
    if not image:  # emulated clusters need none
        assert isinstance(found, JobRequest)
        return
    assert isinstance(found, Refusal)
    assert (found.code, found.field, found.expected) == ("invalid", "run.image", IMAGE_WORDS)


@pytest.mark.parametrize(
    "image",
    [
        "i",
        "busybox",
        "busybox:1.36",
        "busybox:1.36_x-y.Z",
        "library/busybox",
        "localhost:5000/a",
        "localhost/a",
        "[2001:db8::1]:5000/a/b",
        "Registry.example.com/a",
        "registry.k8s.io/e2e-test-images/agnhost:2.39",
        "nvcr.io/nvidia/pytorch:24.10-py3",
        "gcr.io/a__b/c--d/e.f_g:1@sha256:" + "0" * 64,
        "123456789012.dkr.ecr.eu-central-1.amazonaws.com/team/train@sha256:" + "a" * 64,
        "e" * 255,
    ],
)
def test_an_image_that_registries_serve_is_taken(image: str) -> None:
    assert isinstance(submit({}, {"image": image}), JobRequest)


def test_what_the_api_server_takes_is_taken() -> None:
    pods = {
        "tolerations": [
            {"operator": "Exists"},
            {"operator": "Exists", "effect": "NoExecute"},
            {"key": "nvidia.com/gpu", "operator": "Exists"},
            {"key": "k" * 63, "value": "v" * 63},
            {"key": f"{'d' * 63}.com/{'k' * 63}"},
            {"key": "A_b.c-9", "value": ""},
        ],
        "node_labels": {"topology.kubernetes.io/zone": "a", "pool": "", "A_b.c": "X_y.z"},
    }
    run = {
        "env": {"A": "", "1a": "x y\n", "a.b-c": "é", "with space": "=", "!~": "1"},
        "secret_env": {"9": {"name": "wandb", "key": ".x"}, "B": {"name": "w", "key": "a..b"}},
        "command": ["sh", "-c", "", " "],
        "args": ["", " ", "\n"],
    }
    request = submit(pods, run)
    assert isinstance(request, JobRequest)
    assert (request.run.command, request.run.args) == (("sh", "-c", "", " "), ("", " ", "\n"))


BAD_TEMPLATES: list[tuple[dict[str, Any], str, str]] = [
    ({"image": "a b"}, "template.image", IMAGE_WORDS),
    ({"image": "{{v}} x", "env": {"A=": "1"}}, 'template.env["A="]', VARIABLE_WORDS),
    ({"env": {"A": "\0"}}, "template.env.A", NO_NUL),
    ({"command": [""]}, "template.command[0]", "a program to start"),
    (
        {"secret_env": {"A": {"name": "s", "key": ".."}}},
        "template.secret_env.A.key",
        SECRET_KEY_WORDS,
    ),
    (
        {"config_env": {"A": {"name": "s", "key": "."}}},
        "template.config_env.A.key",
        SECRET_KEY_WORDS,
    ),
    ({"node_labels": {"a b": "c"}}, 'template.node_labels["a b"]', NODE_LABEL),
    ({"node_labels": {"a": "b c"}}, "template.node_labels.a", NODE_VALUE),
    ({"tolerations": [{"value": "x"}]}, "template.tolerations[0].operator", NO_KEY),
    (
        {"volumes": [{"name": "d", "mount_path": "/a\u0000", "scratch_mib": 1}]},
        "template.volumes[0].mount_path",
        "",
    ),
    ({"sidecars": [{"name": "s", "image": "a b"}]}, "template.sidecars[0].image", IMAGE_WORDS),
    (
        {"sidecars": [{"name": "s", "image": "a", "args": ["\0"]}]},
        "template.sidecars[0].args[0]",
        NO_NUL,
    ),
    ({"run_as_user": 1 << 31}, "template.run_as_user", ""),
    ({"fs_group": 1 << 31}, "template.fs_group", ""),
]


@pytest.mark.parametrize(("template", "field", "expected"), BAD_TEMPLATES)
def test_a_template_that_no_cluster_accepts_is_refused(
    template: dict[str, Any], field: str, expected: str
) -> None:
    body = {
        "type": "control.runtime.v1",
        "runtime": "mine",
        "parameters": {"v": {"choices": ["a", "b"]}},
        "template": template,
    }
    found = runtime_setting(json.dumps(body).encode())
    assert isinstance(found, Refusal)
    assert (found.code, found.field) == ("invalid", field)
    assert expected in found.expected


@pytest.mark.parametrize(
    ("template", "field", "expected"),
    [
        (PodTemplate(image="team/train:{{v}}"), "image", IMAGE_WORDS),
        (PodTemplate(env={"A": "{{v}}"}), "env.A", NO_NUL),
        (PodTemplate(node_labels={"pool": "{{v}}"}), "node_labels.pool", NODE_VALUE),
    ],
)
@pytest.mark.parametrize("value", ["a b\0", "{{v}} \0"])
def test_a_parameter_makes_no_pod_that_no_cluster_accepts(
    template: PodTemplate, field: str, expected: str, value: str
) -> None:
    mine = RuntimeSetting(runtime="mine", parameters={"v": RuntimeParameter()}, template=template)
    runtime = Runtime(name="mine", parameters={"v": value})
    found = filled_in(JobRequest(id="a", runtime=runtime), "acme", {"mine": mine})
    assert isinstance(found, Refusal)
    assert (found.code, found.field) == ("invalid", "runtime.parameters")
    of = f"for {field} of the runtime 'mine', which parameters fill in"
    assert found.expected == f"{expected}; {of}"


def test_a_parameter_that_makes_a_text_too_long_is_refused() -> None:
    template = PodTemplate(env={"A": "{{v}}{{v}}"})
    mine = RuntimeSetting(runtime="mine", parameters={"v": RuntimeParameter()}, template=template)
    runtime = Runtime(name="mine", parameters={"v": "x" * 4000})
    found = filled_in(JobRequest(id="a", runtime=runtime), "acme", {"mine": mine})
    assert isinstance(found, Refusal)
    assert (found.code, found.field) == ("invalid", "runtime.parameters")

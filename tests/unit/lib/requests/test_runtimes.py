"""Runtimes: what a request becomes by one, and what of both is refused, by field and value."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from berthmaster.lib.lifecycle.workload import request_digest
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.runtimes import (
    ObjectKey,
    PodTemplate,
    Runtime,
    RuntimeParameter,
    RuntimeSetting,
    RuntimeSidecar,
    RuntimeVolume,
)
from berthmaster.lib.messages.workload import JobRequest, PodSet, RunSpec, Toleration
from berthmaster.lib.requests.builtin_runtimes import BUILT_IN
from berthmaster.lib.requests.runtimes import filled_in
from berthmaster.lib.requests.templates import runtime_fault, runtime_setting, with_version
from berthmaster.lib.requests.validation import job_request

TUNE = with_version(
    RuntimeSetting(
        runtime="tune",
        queues=("research",),
        clusters=("berlin", "oslo"),
        parameters={
            "data": RuntimeParameter(choices=("imagenet", "pile")),
            "steps": RuntimeParameter(type="integer", default=100, minimum=1, maximum=1000),
            "fast": RuntimeParameter(type="boolean", default=False),
        },
        template=PodTemplate(
            image="tune:1",
            command=("tune", "--steps={{steps}}", "--fast={{fast}}"),
            env={"WHO": "{{tenant}}"},
            volumes=(RuntimeVolume(name="data", mount_path="/data", claim="{{data}}"),),
            resources={"rdma/hca": 1},
            tolerations=(Toleration(key="gpu", operator="Exists"),),
            node_labels={"pool": "train"},
            sidecars=(RuntimeSidecar(name="logs", image="logs:1"),),
        ),
    )
)
RUNTIMES = {**BUILT_IN, "tune": TUNE}


def asks(name: str = "tune", queue: str = "research", **parameters: Any) -> JobRequest:
    runtime = Runtime(name=name, parameters=parameters)
    sets = (PodSet(gpus=1), PodSet(name="cpu"))
    return JobRequest(id="t", queue=queue, pod_sets=sets, runtime=runtime)


def refused(request: JobRequest) -> tuple[str, str, str]:
    answer = filled_in(request, "acme", RUNTIMES)
    assert isinstance(answer, Refusal)
    return answer.field, answer.value, answer.expected


def test_a_request_gets_what_its_runtime_brings_and_keeps_its_own_digest() -> None:
    request = asks(data="pile", steps=7)
    full = filled_in(request, "acme", RUNTIMES)
    assert isinstance(full, JobRequest)
    used = full.runtime_used
    assert used is not None
    assert used.version == TUNE.version
    assert used.template.command == ("tune", "--steps=7", "--fast=false")
    assert used.template.env == {"WHO": "acme"}
    assert used.template.volumes[0].claim == "pile"
    with_gpu, without = full.pod_sets
    assert (with_gpu.resources, without.resources) == ({"rdma/hca": 1}, {})  # RDMA is for GPUs
    assert (with_gpu.cpu_milli, with_gpu.memory_mib) == (1100, 1152)  # its sidecar's too
    assert with_gpu.node_labels == {"pool": "train"}
    assert with_gpu.tolerations == TUNE.template.tolerations
    assert (full.clusters, full.run.image) == (("berlin", "oslo"), "tune:1")
    assert request_digest(full) == request_digest(request)
    # As every reader of the log gets it.
    assert msgspec.json.decode(msgspec.json.encode(full), type=JobRequest) == full
    # What it asks for itself stays, and a request without a runtime is what it was.
    own = replace(request, clusters=("oslo", "rome"), run=RunSpec(image="mine:2"))
    mine = filled_in(own, "acme", RUNTIMES)
    assert isinstance(mine, JobRequest)
    assert (mine.clusters, mine.run.image) == (("oslo",), "mine:2")
    plain = JobRequest(id="p")
    assert filled_in(plain, "acme", RUNTIMES) is plain


@pytest.mark.parametrize(
    ("request_", "field", "value", "words"),
    [
        (asks("tun"), "runtime.name", '"tun"', "did you mean 'tune'"),
        (asks(queue="other"), "runtime.name", '"tune"', "allowed in the queue 'other'"),
        (asks(), "runtime.parameters.data", "(missing)", "a text"),
        (asks(data="all"), "runtime.parameters.data", '"all"', "one of imagenet, pile"),
        (asks(data="pile", steps="7"), "runtime.parameters.steps", '"7"', "a whole number"),
        (asks(data="pile", steps=True), "runtime.parameters.steps", "true", "a whole number"),
        (asks(data="pile", steps=1.5), "runtime.parameters.steps", "1.5", "a whole number"),
        (asks(data="pile", steps=0), "runtime.parameters.steps", "0", "at least 1"),
        (asks(data="pile", steps=1001), "runtime.parameters.steps", "1001", "at most 1000"),
        (asks(data="pile", fast=1), "runtime.parameters.fast", "1", "true or false"),
        (asks(data="pile", step=1), "runtime.parameters.step", '"step"', "data, steps, fast"),
        (replace(asks(data="pile"), clusters=("rome",)), "clusters", '["rome"]', "berlin, oslo"),
        (asks("torch"), "run.args", "[]", "what the runtime 'torch' is to start"),
        (asks("notebook", token_secret="A B"), "runtime.parameters", '"acme.A B"', "a name of"),
    ],
)
def test_what_does_not_go_with_its_runtime_is_refused_by_field_and_value(
    request_: JobRequest, field: str, value: str, words: str
) -> None:
    told = refused(request_)
    assert told[:2] == (field, value)
    assert words in told[2]


def test_nobody_but_the_gateway_fills_a_runtime_in() -> None:
    used = {"version": "x", "template": {"image": "evil"}, "digest": "y"}
    body = {"id": "t", "runtime": {"name": "plain"}, "runtime_used": used}
    answer = job_request(json.dumps(body).encode())
    assert isinstance(answer, Refusal)
    assert answer.field == "runtime_used"
    body = {"id": "t", "runtime": {"name": "plain", "template": {}}}
    answer = job_request(json.dumps(body).encode())
    assert isinstance(answer, Refusal)
    assert (answer.field, answer.value) == ("runtime.template", "{}")


def test_a_removed_runtime_refuses_new_requests() -> None:
    runtimes = {**RUNTIMES, "tune": replace(TUNE, deleted=True)}
    answer = filled_in(asks(data="pile"), "acme", runtimes)
    assert isinstance(answer, Refusal)
    assert (answer.code, answer.field) == ("not_found", "runtime.name")


def test_the_built_in_ones_are_as_good_as_any_that_an_operator_sets() -> None:
    assert set(BUILT_IN) == {"plain", "torch", "jax", "mpi", "ray", "notebook"}
    for setting in BUILT_IN.values():
        assert runtime_fault(setting) is None
        assert runtime_setting(msgspec.json.encode(setting)) == setting
        request = JobRequest(
            id="x", runtime=Runtime(name=setting.runtime), run=RunSpec(image="i", args=("a",))
        )
        full = filled_in(request, "acme", BUILT_IN)
        assert isinstance(full, JobRequest)
        assert "{{" not in msgspec.json.encode(full.runtime_used).decode()
        assert isinstance(job_request(msgspec.json.encode(request)), JobRequest)
    assert BUILT_IN["mpi"].version != BUILT_IN["torch"].version


def setting_of(**template: Any) -> bytes:
    parameters = {"p": {}, "chosen": {"choices": ["a", "b"]}}
    body = {"runtime": "r", "parameters": parameters, "template": template}
    return json.dumps(body).encode()


@pytest.mark.parametrize(
    ("template", "field", "words"),
    [
        ({"privileged": True}, "template.privileged", "no container is privileged"),
        ({"hostNetwork": True}, "template.hostNetwork", "a network of their own"),
        ({"host_path": "/"}, "template.host_path", "no file of a node"),
        (
            {"volumes": [{"name": "v", "mount_path": "/v", "hostPath": {"path": "/"}}]},
            "template.volumes[0].hostPath",
            "no file of a node",
        ),
        ({"serviceAccountName": "admin"}, "template.serviceAccountName", "the queue's to say"),
        (
            {"automountServiceAccountToken": True},
            "template.automountServiceAccountToken",
            "only where the queue names an account",
        ),
        ({"securityContext": {}}, "template.securityContext", "ours to set"),
        (
            {"sidecars": [{"name": "s", "image": "i", "securityContext": {"privileged": True}}]},
            "template.sidecars[0].securityContext",
            "ours to set",
        ),
        ({"env": {"NVIDIA_VISIBLE_DEVICES": "all"}}, "template.env.NVIDIA_VISIBLE_DEVICES", "GPUs"),
        (
            {"sidecars": [{"name": "s", "image": "i", "env": {"NVIDIA_VISIBLE_DEVICES": "all"}}]},
            "template.sidecars[0].env.NVIDIA_VISIBLE_DEVICES",
            "GPUs",
        ),
        ({"resources": {"amd.com/gpu": 1}}, 'template.resources["amd.com/gpu"]', "no accelerator"),
        ({"resources": {"google.com/tpu": 1}}, 'template.resources["google.com/tpu"]', "tpus"),
        ({"resources": {"cpu": 1}}, "template.resources.cpu", "an extended resource"),
        ({"env": {"PASSWORD": "hunter2"}}, "template.env.PASSWORD", "name a Secret"),
        ({"args": ["x"]}, "template.args", "no field of this name"),
        ({"command": ["{{q}}"]}, "template.command[0]", "a parameter of this runtime"),
        ({"run_as_user": 0}, "template.run_as_user", "from 1 to"),
        (
            {"volumes": [{"name": "v", "mount_path": "/v", "claim": "{{p}}"}]},
            "template.volumes[0].claim",
            "choices",
        ),
        (
            {"volumes": [{"name": "v", "mount_path": "/v", "claim": "a", "sub_path": "{{p}}"}]},
            "template.volumes[0].sub_path",
            "choices",
        ),
        (
            {"secret_env": {"K": {"name": "{{p}}", "key": "k"}}},
            "template.secret_env.K.name",
            "choices",
        ),
        ({"volumes": [{"name": "v", "mount_path": "/v"}]}, "template.volumes[0]", "just one of"),
        (
            {"volumes": [{"name": "v", "mount_path": "/v", "claim": "a", "secret": "b"}]},
            "template.volumes[0]",
            "just one of",
        ),
        (
            {"volumes": [{"name": "v", "mount_path": "/dev/x", "claim": "a"}]},
            "template.volumes[0].mount_path",
            "not in",
        ),
        (
            {"volumes": [{"name": "v", "mount_path": "/a/../proc", "claim": "a"}]},
            "template.volumes[0].mount_path",
            "an absolute path",
        ),
        ({"sidecars": [{"name": "main", "image": "i"}]}, "template.sidecars[0].name", "no other"),
        (
            {"sidecars": [{"name": "s", "image": "i", "volumes": ["v"]}]},
            "template.sidecars[0].volumes[0]",
            "a volume of this template",
        ),
        ({"shared_memory_mib": "{{p}}"}, "template.shared_memory_mib", "integer"),
        ({"command": ["x" * 16_000] * 5}, "template", "at most 65536 bytes"),
    ],
)
def test_a_template_that_sets_what_it_may_not_is_refused_by_name(
    template: dict[str, Any], field: str, words: str
) -> None:
    answer = runtime_setting(setting_of(**template))
    assert isinstance(answer, Refusal), answer
    assert answer.field == field
    assert words in answer.expected


def test_parameters_may_choose_among_choices_and_the_tenants_own() -> None:
    volumes = [
        {"name": "a", "mount_path": "/a", "claim": "{{chosen}}"},
        {"name": "b", "mount_path": "/b", "claim": "homes", "sub_path": "{{tenant}}/{{p}}"},
    ]
    env = {"K": {"name": "{{tenant}}.{{p}}", "key": "k"}}
    assert isinstance(runtime_setting(setting_of(volumes=volumes, secret_env=env)), RuntimeSetting)


def test_a_folder_of_ones_own_is_not_left_by_a_parameter() -> None:
    homes = RuntimeVolume(name="h", mount_path="/h", claim="homes", sub_path="{{tenant}}/{{p}}")
    template = PodTemplate(
        volumes=(homes,), secret_env={"K": ObjectKey(name="{{tenant}}.k", key="k")}
    )
    home = RuntimeSetting(runtime="home", parameters={"p": RuntimeParameter()}, template=template)
    asked = JobRequest(id="x", runtime=Runtime(name="home", parameters={"p": "../other"}))
    answer = filled_in(asked, "acme", {"home": home})
    assert isinstance(answer, Refusal)
    assert answer.value == '"acme/../other"'


def test_the_example_of_the_docs_is_one() -> None:
    text = (Path(__file__).parents[4] / "docs" / "operators" / "runtimes.md").read_text()
    example = text.partition("```json\n")[2].partition("```")[0]
    setting = runtime_setting(example.encode())
    assert isinstance(setting, RuntimeSetting), setting
    request = JobRequest(
        id="x",
        queue="research",
        pod_sets=(PodSet(gpus=1),),
        runtime=Runtime(name="tune", parameters={"data": "pile"}),
    )
    assert isinstance(filled_in(request, "acme", {"tune": setting}), JobRequest)

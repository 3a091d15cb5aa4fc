"""What a pod set asks of nodes and GPUs: the whole refusal where its fields do not agree."""

import json

import pytest

from berthmaster.messages.api import Refusal
from berthmaster.messages.families import JOB_REQUESTS
from berthmaster.requests import validation

LABEL = '"node", or a label of nodes such as topology.kubernetes.io/zone'


def body(**pods: object) -> bytes:
    return json.dumps({"id": "a", "pod_sets": [{"name": "x"}, {"gpus": 1} | pods]}).encode()


BAD: dict[str, tuple[dict[str, object], str, str, str]] = {
    "a preference without GPUs": (
        {"gpus": 0, "prefer_gpu_models": ["H100"]},
        "prefer_gpu_models[0]",
        '"H100"',
        "no model, as gpus is 0",
    ),
    "no model": (
        {"prefer_gpu_models": ["H100", ""]},
        "prefer_gpu_models[1]",
        '""',
        "the name of a GPU model, such as H100",
    ),
    "a model twice": (
        {"prefer_gpu_models": ["H100", "A100", "H100"]},
        "prefer_gpu_models[2]",
        '"H100"',
        "a model that is not named before it",
    ),
    "a model that will not do": (
        {"gpu_models": ["A100", "H100"], "prefer_gpu_models": ["T4"]},
        "prefer_gpu_models[0]",
        '"T4"',
        "one of gpu_models: A100, H100",
    ),
    "too many preferences": (
        {"prefer_gpu_models": [f"m{at}" for at in range(9)]},
        "prefer_gpu_models",
        '["m0","m1","m2","m3","m4","m5","m6","m7","m8"]',
        "a list of at most 8, each text of at most 316 characters",
    ),
    "no resource": (
        {"gpu_resource": "amd"},
        "gpu_resource",
        '"amd"',
        "an extended resource such as amd.com/gpu, or nothing",
    ),
    "a resource of no GPUs": (
        {"gpus": 0, "gpu_resource": "amd.com/gpu"},
        "gpu_resource",
        '"amd.com/gpu"',
        "nothing, as gpus is 0",
    ),
    "a resource of a part": (
        {"gpu_milli": 500, "gpu_resource": "amd.com/gpu"},
        "gpu_resource",
        '"amd.com/gpu"',
        "nothing: parts of a GPU are asked for as the node offers them",
    ),
    "no MIG profile": (
        {"mig_profile": "small"},
        "mig_profile",
        '"small"',
        "a MIG profile such as 1g.10gb, or nothing",
    ),
    "several MIG slices": (
        {"mig_profile": "1g.10gb", "gpus": 2},
        "gpus",
        "2",
        "1, as mig_profile is 1g.10gb: a pod can have one slice of a GPU",
    ),
    "a slice of another size": (
        {"mig_profile": "1g.10gb", "gpu_milli": 500},
        "gpu_milli",
        "500",
        "142, which is what a 1g.10gb comes to of a GPU",
    ),
    "a slice with more memory than it has": (
        {"mig_profile": "1g.10gb", "gpu_milli": 142, "gpu_memory_mib": 10241},
        "gpu_memory_mib",
        "10241",
        "at most 10240, which is what a 1g.10gb has",
    ),
    "a label that is none": (
        {"topology": {"same": "my rack"}},
        "topology.same",
        '"my rack"',
        LABEL,
    ),
    "a label with an empty name": ({"topology": {"same": "a/"}}, "topology.same", '"a/"', LABEL),
    "one node, but not all of it": (
        {"count": 4, "topology": {"same": "node", "max_pods_a_node": 2}},
        "topology.max_pods_a_node",
        "2",
        "0 or at least 4: all 4 pods are to be on one node",
    ),
    "a domain for one GPU": (
        {"topology": {"gpu_domain": "required"}},
        "topology.gpu_domain",
        '"required"',
        "nothing, as gpus is 1: it is for pods with several GPUs",
    ),
    "more pods a node than any job has": (
        {"topology": {"max_pods_a_node": 4097}},
        "topology.max_pods_a_node",
        "4097",
        "a whole number from 0 to 4096",
    ),
    "nodes in a way that is none": (
        {"topology": {"nodes": "few"}},
        "topology.nodes",
        '"few"',
        'one of "", "fewest"',
    ),
    "an unknown field": (
        {"topology": {"max_pods_per_node": 1}},
        "topology",
        '{"max_pods_per_node":1}',
        "an object with the fields same, max_pods_a_node, nodes, gpu_domain, or null",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_agree_is_refused_with_field_value_and_what_is_right(case: str) -> None:
    pods, field, value, expected = BAD[case]
    assert validation.job_request(body(**pods)) == Refusal(
        code="invalid", field=f"pod_sets[1].{field}", value=value, expected=expected
    )


@pytest.mark.parametrize(
    "pods",
    [
        {"prefer_gpu_models": ["H100", "A100"]},
        {"gpu_models": ["H100 80GB", "A100"], "prefer_gpu_models": ["h100"]},
        {"gpu_models": ["H100"], "prefer_gpu_models": ["NVIDIA-H100-PCIE"]},
        {"mig_profile": "3g.40gb", "gpu_milli": 428, "gpu_memory_mib": 20_000},
        {"mig_profile": "7g.80gb", "gpu_milli": 999},
        {"gpu_milli": 1, "gpu_memory_mib": 8192},
        {"count": 4, "topology": {}},
        {"count": 4, "topology": {"same": "node", "max_pods_a_node": 4, "nodes": "fewest"}},
        {"count": 4, "topology": {"same": "topology.kubernetes.io/zone"}},
        {"gpus": 2, "topology": {"gpu_domain": "required"}},
    ],
)
def test_what_agrees_is_taken_as_it_is(pods: dict[str, object]) -> None:
    assert validation.job_request(body(**pods)) == JOB_REQUESTS.decode(body(**pods))


def test_sixty_four_pod_sets_are_refused() -> None:
    sets = [{"name": f"s{at}"} for at in range(64)]
    refused = validation.job_request(json.dumps({"id": "a", "pod_sets": sets}).encode())
    assert isinstance(refused, Refusal)
    assert (refused.field, refused.code) == ("pod_sets", "invalid")
    assert "1 to 16" in refused.expected

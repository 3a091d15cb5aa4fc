"""What a pod set asks of nodes and GPUs: the whole refusal where its fields do not agree."""

import json

import pytest

from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.families import JOB_REQUESTS
from berthmaster.lib.requests import validation

RESOURCE = (
    "an extended resource of nodes by its full name, such as rdma/hca or vpc.amazonaws.com/efa"
)
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
        "a text with more than blanks, or no such member",
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
    "a MIG profile with a suffix that none has": (
        {"mig_profile": "1g.10gb+fast"},
        "mig_profile",
        '"1g.10gb+fast"',
        "a MIG profile such as 1g.10gb, or nothing",
    ),
    "a MIG profile with more compute than its GPU instance": (
        {"mig_profile": "3c.1g.10gb"},
        "mig_profile",
        '"3c.1g.10gb"',
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
    "a fraction of a TPU": ({"gpus": 0, "tpus": 0.5}, "tpus", "0.5", "a whole number from 0 to 64"),
    "TPUs beside GPUs": (
        {"tpus": 4},
        "tpus",
        "4",
        "0, as gpus is 1: a pod has GPUs or TPUs; others are another pod set",
    ),
    "a topology without TPUs": (
        {"tpu_topology": "2x4"},
        "tpu_topology",
        '"2x4"',
        "nothing, as tpus is 0",
    ),
    "kinds of TPU without TPUs": (
        {"tpu_accelerators": ["tpu-v6e-slice"]},
        "tpu_accelerators",
        '["tpu-v6e-slice"]',
        "nothing, as tpus is 0",
    ),
    "a kind of TPU twice": (
        {"gpus": 0, "tpus": 1, "tpu_accelerators": ["tpu-v6e-slice", "tpu-v6e-slice"]},
        "tpu_accelerators[1]",
        '"tpu-v6e-slice"',
        "a value of the label cloud.google.com/gke-tpu-accelerator, named once",
    ),
    "a topology that is none": (
        {"gpus": 0, "tpus": 4, "tpu_topology": "2x0"},
        "tpu_topology",
        '"2x0"',
        "a topology such as 2x4 or 2x2x4, of at most 131072 chips, or nothing",
    ),
    "a topology larger than any": (
        {"gpus": 0, "tpus": 4, "tpu_topology": "99999x99999x99999"},
        "tpu_topology",
        '"99999x99999x99999"',
        "a topology such as 2x4 or 2x2x4, of at most 131072 chips, or nothing",
    ),
    "a topology that does not divide": (
        {"gpus": 0, "tpus": 3, "tpu_topology": "2x4"},
        "tpu_topology",
        '"2x4"',
        (
            "a topology of which each pod has an equal part: 8 chips are no multiple of tpus, "
            "which is 3"
        ),
    ),
    "a topology smaller than a pod": (
        {"gpus": 0, "tpus": 8, "tpu_topology": "2x2"},
        "tpu_topology",
        '"2x2"',
        (
            "a topology of which each pod has an equal part: 4 chips are no multiple of tpus, "
            "which is 8"
        ),
    ),
    "a part of a slice": (
        {"gpus": 0, "tpus": 4, "tpu_topology": "4x4", "count": 3},
        "count",
        "3",
        "4, as a slice of 4x4 is 4 pods with 4 TPUs each; further slices are further pod sets",
    ),
    "a slice on one node that needs several": (
        {"gpus": 0, "tpus": 4, "tpu_topology": "2x4", "count": 2, "topology": {"same": "node"}},
        "topology.same",
        '"node"',
        "nothing: the nodes of a slice are those of one node pool, not one node",
    ),
    "a part of a GPU that is a TPU": (
        {"gpus": 0, "tpus": 1, "gpu_milli": 500},
        "gpu_milli",
        "500",
        "1000, as gpus is 0: only a pod with one GPU can ask for part of it",
    ),
    "GPUs as another resource": (
        {"resources": {"nvidia.com/gpu": 1}},
        'resources["nvidia.com/gpu"]',
        '"nvidia.com/gpu"',
        "no such name here: ask by the field gpus, and gpu_resource for those of one maker",
    ),
    "another maker's beside": (
        {"gpu_resource": "nvidia.com/gpu", "resources": {"amd.com/gpu": 1}},
        'resources["amd.com/gpu"]',
        '"amd.com/gpu"',
        "no such name here: ask by the field gpus, and gpu_resource for those of one maker",
    ),
    "TPUs as another resource": (
        {"resources": {"google.com/tpu": 4}},
        'resources["google.com/tpu"]',
        '"google.com/tpu"',
        "no such name here: ask by the field tpus",
    ),
    "a slice as another resource": (
        {"resources": {"nvidia.com/mig-1g.10gb": 1}},
        'resources["nvidia.com/mig-1g.10gb"]',
        '"nvidia.com/mig-1g.10gb"',
        "no such name here: ask by the field mig_profile",
    ),
    "a device of a class as another resource": (
        {"resources": {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": 1}},
        'resources["deviceclass.resource.kubernetes.io/gpu.nvidia.com"]',
        '"deviceclass.resource.kubernetes.io/gpu.nvidia.com"',
        "no such name here: ask by the field claims",
    ),
    "CPUs as another resource": (
        {"resources": {"cpu": 1}},
        "resources.cpu",
        '"cpu"',
        "no such name here: use the field cpu_milli",
    ),
    "a resource of Kubernetes' own": (
        {"resources": {"example.kubernetes.io/x": 1}},
        'resources["example.kubernetes.io/x"]',
        '"example.kubernetes.io/x"',
        RESOURCE,
    ),
    "a name that is no resource's": (
        {"resources": {"RDMA/hca": 1}},
        'resources["RDMA/hca"]',
        '"RDMA/hca"',
        RESOURCE,
    ),
    "a name without a domain": ({"resources": {"hca": 1}}, "resources.hca", '"hca"', RESOURCE),
    "none of a resource": (
        {"resources": {"rdma/hca": 0}},
        'resources["rdma/hca"]',
        "0",
        "a whole number from 1 to 1000000",
    ),
    "a part of a resource": (
        {"resources": {"rdma/hca": 0.5}},
        'resources["rdma/hca"]',
        "0.5",
        "a whole number from 1 to 1000000",
    ),
    "more of a resource than any node has": (
        {"resources": {"rdma/hca": 10**30}},
        'resources["rdma/hca"]',
        "1000000000000000000000000000000",
        "a whole number from 1 to 1000000",
    ),
    "a claim that is no name": (
        {"claims": ["gpu", "My/GPU"]},
        "claims[1]",
        '"My/GPU"',
        (
            "the name of a ResourceClaimTemplate, or of a ResourceClaim, in the namespace of the "
            "pods: lower-case letters, digits, '-' and '.'"
        ),
    ),
    "a claim twice": (
        {"claims": ["gpu", "gpu"]},
        "claims[1]",
        '"gpu"',
        "a name that is not there before it",
    ),
    "isolation without GPUs": (
        {"gpus": 0, "isolation": "memory"},
        "isolation",
        '"memory"',
        "nothing, as gpus is 0: it is for pods that share GPUs",
    ),
    "isolation of a kind that is none": (
        {"isolation": "soft"},
        "isolation",
        '"soft"',
        'one of "", "hardware", "memory", "none"',
    ),
    "more at least than are wished for": (
        {"count": 2, "min_count": 3},
        "min_count",
        "3",
        "at most count, which is 2",
    ),
    "fewer at most than are wished for": (
        {"count": 2, "max_count": 1},
        "max_count",
        "1",
        "at least count, which is 2",
    ),
    "none at least": ({"min_count": 0}, "min_count", "0", "a whole number from 1 to 4096, or null"),
    "a slice with fewer pods than it has": (
        {"gpus": 0, "tpus": 4, "tpu_topology": "2x2x4", "count": 4, "min_count": 2},
        "min_count",
        "2",
        "4 or nothing: a slice 2x2x4 has that many pods",
    ),
    "more pods on one node than may be": (
        {"count": 2, "max_count": 5, "topology": {"same": "node", "max_pods_a_node": 4}},
        "topology.max_pods_a_node",
        "4",
        "0 or at least 5: all 5 pods are to be on one node",
    ),
    "an unknown field": (
        {"topology": {"max_pods_per_node": 1}},
        "topology.max_pods_per_node",
        "1",
        "no field of this name; did you mean max_pods_a_node?",
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
        *(
            {"mig_profile": f"1g.24gb{suffix}", "gpu_milli": 142}
            for suffix in ("+me", ".me", "-me", "+me.all", ".me.all", "+gfx", ".gfx", "-gfx")
        ),
        {"gpu_milli": 1, "gpu_memory_mib": 8192},
        {"count": 4, "topology": {}},
        {"count": 4, "topology": {"same": "node", "max_pods_a_node": 4, "nodes": "fewest"}},
        {"count": 4, "topology": {"same": "topology.kubernetes.io/zone"}},
        {"gpus": 2, "topology": {"gpu_domain": "required"}},
        {"gpus": 0, "tpus": 8, "tpu_topology": "2x4", "count": 5},  # a slice for each pod
        {"gpus": 0, "tpus": 4, "tpu_topology": "2x2x4", "count": 4},
        {
            "gpus": 0,
            "tpus": 4,
            "tpu_topology": "2x4",
            "count": 2,
            "topology": {"same": "cloud.google.com/gke-nodepool", "max_pods_a_node": 1},
        },
        {"gpus": 0, "tpus": 1, "tpu_accelerators": ["tpu-v5-lite-device", "tpu-v6e-slice"]},
        {"resources": {"rdma/hca": 1, "vpc.amazonaws.com/efa": 4}, "claims": ["nic", "gpu.big"]},
        {"gpu_milli": 500, "isolation": "memory"},
        {"count": 4, "min_count": 1, "max_count": 64},
        {"gpus": 0, "tpus": 4, "tpu_topology": "2x2x4", "count": 4, "max_count": 4},
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

"""What cannot be asked for by way of the hub, and is said instead of being left out."""

from typing import Any

import pytest

from berthmaster.lifecycle.fold import Workload
from berthmaster.messages.workload import JobRequest, PodSet, RunSpec, SecretKey, Topology
from berthmaster.multikueue.deciding.job_manifest import manifest, unmakeable


@pytest.mark.parametrize(
    ("pods", "why"),
    [
        ({}, ""),
        ({"gpus": 4, "prefer_gpu_models": ("H100",)}, ""),  # a wish, which changes nothing there
        ({"tpus": 4, "resources": {"rdma/hca": 1}, "claims": ("nic",)}, ""),
        ({"gpus": 1, "isolation": "hardware"}, ""),  # which a whole GPU is
        ({"gpus": 1, "gpu_milli": 142, "mig_profile": "1g.10gb"}, "parts of a GPU"),
        ({"gpus": 1, "gpu_memory_mib": 8192}, "gpu_memory_mib"),
        ({"count": 4, "topology": Topology(max_pods_a_node=1)}, "topology"),
    ],
)
def test_what_a_hubs_job_cannot_say_is_refused(pods: dict[str, Any], why: str) -> None:
    request = JobRequest(id="train", pod_sets=(PodSet(**pods),), run=RunSpec(image="train:1"))
    said = unmakeable(Workload(tenant="acme", id="train", request=request))
    assert said.startswith(f"{why} cannot be asked for by way of the hub" if why else "")
    assert bool(said) == bool(why)


def test_a_hubs_job_names_the_secret_of_its_tenant() -> None:
    run = RunSpec(image="train:1", secret_env={"KEY": SecretKey(name="wandb", key="api-key")})
    request = JobRequest(id="train", run=run)
    _, job = manifest(Workload(tenant="acme", id="train", request=request), None, [])
    env = job["spec"]["template"]["spec"]["containers"][0]["env"]
    reference = {"name": "acme.wandb", "key": "api-key"}
    assert {"name": "KEY", "valueFrom": {"secretKeyRef": reference}} in env


def test_a_hubs_job_asks_for_a_slice_on_one_pool_other_resources_and_claims() -> None:
    pods = PodSet(
        count=4,
        tpus=4,
        tpu_accelerators=("tpu-v6e-slice",),
        tpu_topology="4x4",
        resources={"rdma/hca": 1},
        claims=("nic",),
    )
    request = JobRequest(id="train", pod_sets=(pods,), run=RunSpec(image="train:1"))
    _, job = manifest(Workload(tenant="acme", id="train", request=request), None, [])
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["resources"] == {
        "requests": {
            "cpu": "1000m",
            "memory": "1024Mi",
            "google.com/tpu": "4",
            "rdma/hca": "1",
        },
        "limits": {"memory": "1024Mi", "google.com/tpu": "4", "rdma/hca": "1"},
        "claims": [{"name": "claim-0"}],
    }
    assert spec["resourceClaims"] == [{"name": "claim-0", "resourceClaimTemplateName": "nic"}]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    chosen = [
        {"key": f"cloud.google.com/gke-tpu-{key}", "operator": "In", "values": [value]}
        for key, value in (("accelerator", "tpu-v6e-slice"), ("topology", "4x4"))
    ]
    of_job = {"matchLabels": {"batch.kubernetes.io/job-name": job["metadata"]["name"]}}
    assert spec["affinity"] == {
        "nodeAffinity": {required: {"nodeSelectorTerms": [{"matchExpressions": chosen}]}},
        "podAffinity": {
            required: [{"topologyKey": "cloud.google.com/gke-nodepool", "labelSelector": of_job}]
        },
    }

"""What cannot be asked for by way of the hub, and is said instead of being left out."""

from typing import Any

import pytest
from msgspec.structs import replace

from berthmaster.hub.multikueue.core.deciding.job_manifest import manifest, unmakeable
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.runtimes import (
    ObjectKey,
    PodTemplate,
    Runtime,
    RuntimeSetting,
    RuntimeSidecar,
    RuntimeVolume,
)
from berthmaster.lib.messages.workload import JobRequest, PodSet, RunSpec, SecretKey, Topology
from berthmaster.lib.requests.queues import refusal_of
from berthmaster.lib.requests.runtimes import filled_in


@pytest.mark.parametrize(
    ("pods", "why"),
    [
        ({}, ""),
        ({"gpus": 4, "prefer_gpu_models": ("H100",)}, ""),  # a wish, which changes nothing there
        ({"tpus": 4, "resources": {"rdma/hca": 1}, "claims": ("nic",)}, ""),
        ({"gpus": 1, "isolation": "hardware"}, ""),  # which a whole GPU is
        ({"gpus": 1, "gpu_milli": 142, "mig_profile": "1g.10gb"}, "pod_sets[0].gpu_milli"),
        ({"gpus": 1, "gpu_memory_mib": 8192}, "pod_sets[0].gpu_memory_mib"),
        ({"count": 4, "topology": Topology(max_pods_a_node=1)}, "pod_sets[0].topology"),
    ],
)
def test_what_a_hubs_job_cannot_say_is_refused(pods: dict[str, Any], why: str) -> None:
    request = JobRequest(id="train", pod_sets=(PodSet(**pods),), run=RunSpec(image="train:1"))
    refused(request, why)


def refused(request: JobRequest, field: str) -> None:
    """By whoever takes it, with the field and a way out; by the hub in the same words."""
    queues = {"default": QueueSetting(queue="default", via="hub")}
    refusal = refusal_of(queues, "acme", request, {})
    assert (refusal.field if refusal is not None else "") == field
    said = unmakeable(Workload(tenant="acme", id="train", request=request))
    told = f"{field}: {refusal.expected}" if refusal is not None else ""
    assert said == told
    assert said.endswith("a queue that is direct or via worker takes it" if field else "")


def test_several_pod_sets_and_deadlines_are_refused_by_their_fields() -> None:
    run = RunSpec(image="train:1")
    refused(JobRequest(id="train", pod_sets=(PodSet(), PodSet(name="b")), run=run), "pod_sets")
    refused(JobRequest(id="train", deadline_s=60.0, run=run), "deadline_s")


TUNE = RuntimeSetting(
    runtime="tune",
    template=PodTemplate(
        command=("tune",),
        secret_env={"KEY": ObjectKey(name="wandb", key="api-key")},
        volumes=(RuntimeVolume(name="data", mount_path="/data", claim="{{tenant}}.data"),),
        sidecars=(RuntimeSidecar(name="sync", image="sync:1", volumes=("data",)),),
        shared_memory_mib=64,
    ),
)


def test_a_hubs_job_is_what_its_runtime_says_and_one_pod_is_told_that_it_is_alone() -> None:
    request = JobRequest(
        id="train",
        run=RunSpec(image="train:1", args=("--lr", "1")),
        runtime=Runtime(name="tune"),
        pod_sets=(PodSet(gpus=2),),
    )
    full = filled_in(request, "acme", {"tune": TUNE})
    assert isinstance(full, JobRequest)
    refused(full, "")
    _, job = manifest(Workload(tenant="acme", id="train", request=full), None, [])
    spec = job["spec"]["template"]["spec"]
    (main,) = spec["containers"]
    assert (main["command"], main["args"]) == (["tune"], ["--lr", "1"])
    assert main["volumeMounts"] == [
        {"name": "data", "mountPath": "/data"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    assert spec["volumes"][0] == {
        "name": "data",
        "persistentVolumeClaim": {"claimName": "acme.data"},
    }
    assert [one["name"] for one in spec["initContainers"]] == ["sync"]
    env = {one["name"]: one for one in main["env"]}
    assert env["KEY"]["valueFrom"] == {"secretKeyRef": {"name": "wandb", "key": "api-key"}}
    told = {
        name: env[name]["value"] for name in ("MASTER_ADDR", "WORLD_SIZE", "PET_NPROC_PER_NODE")
    }
    assert told == {"MASTER_ADDR": "localhost", "WORLD_SIZE": "1", "PET_NPROC_PER_NODE": "2"}
    assert "subdomain" not in spec

    two = replace(full, pod_sets=(replace(full.pod_sets[0], count=2),))
    refused(two, "pod_sets[0].count")


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

"""What the pods of a gang are told of each other, and that real processes meet by it."""

import json
import subprocess
from typing import Any

from msgspec.structs import replace

from berthmaster.lib.jobs import rendezvous
from berthmaster.lib.jobs.pods import Document
from berthmaster.lib.messages.runtimes import (
    ObjectKey,
    PodTemplate,
    Runtime,
    RuntimeSidecar,
    RuntimeUse,
    RuntimeVolume,
)
from berthmaster.lib.messages.workload import JobRequest, Part, PodSet, RunSpec
from berthmaster.lib.requests.builtin_runtimes import BUILT_IN
from berthmaster.lib.requests.runtimes import filled_in
from tests.support.gangs import env_of, meet
from tests.unit.worker.executor.test_manifest import made, order


def with_runtime(one: Any, name: str, tenant: str = "acme", **parameters: Any) -> Any:
    asked = Runtime(name=name, parameters=parameters)
    request = filled_in(
        JobRequest(
            id=one.request.id, pod_sets=one.request.pod_sets, run=one.request.run, runtime=asked
        ),
        tenant,
        BUILT_IN,
    )
    assert isinstance(request, JobRequest), request
    return one._replace(request=request)


def containers(document: Document) -> list[Document]:
    spec = document["spec"]
    jobs = [j["template"]["spec"] for j in spec.get("replicatedJobs", ())] or [spec]
    return [job["template"]["spec"]["containers"][0] for job in jobs]


def test_pods_of_a_gang_are_numbered_and_named_by_a_service_that_goes_with_it() -> None:
    job = made(order(PodSet(count=3, gpus=2)))
    name = job["metadata"]["name"]
    assert job["metadata"]["annotations"][rendezvous.SERVICE] == f"g-{name}"
    assert job["spec"]["template"]["spec"]["subdomain"] == f"g-{name}"
    env = env_of(containers(job)[0], 2)
    first = f"{name}-0.g-{name}"
    assert {key: env[key] for key in sorted(env)} == {
        "BERTH_PEERS": f"{name}-:3",
        "BERTH_PODS": "3",
        "BERTH_POD_INDEX": "2",
        "BERTH_POD_SET": "main",
        "BERTH_PROCESSES": "2",
        "BERTH_RANK_OFFSET": "0",
        "BERTH_SERVICE": f"g-{name}",
        "JAX_COORDINATOR_ADDRESS": f"{first}:8476",
        "JAX_NUM_PROCESSES": "3",
        "JAX_PROCESS_ID": "2",
        "MASTER_ADDR": first,
        "MASTER_PORT": "29500",
        "NODE_RANK": "2",
        "PET_MASTER_ADDR": first,
        "PET_MASTER_PORT": "29500",
        "PET_NNODES": "3",
        "PET_NODE_RANK": "2",
        "PET_NPROC_PER_NODE": "2",
        "RANK": "2",
        "WORLD_SIZE": "3",
    }
    whose = {"berthmaster.io/workload": "train"}
    owner = {"kind": "Job", "uid": "u"}
    assert rendezvous.service(f"g-{name}", whose, owner) == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": f"g-{name}", "labels": whose, "ownerReferences": [owner]},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": whose},
    }
    alone = made(order(PodSet(gpus=1)))
    assert rendezvous.SERVICE not in alone["metadata"]["annotations"]
    assert "env" not in containers(alone)[0]
    own = made(order(PodSet(count=2), run=RunSpec(image="x", env={"MASTER_PORT": "1"})))
    assert [e["value"] for e in containers(own)[0]["env"] if e["name"] == "MASTER_PORT"] == ["1"]


def test_parts_of_a_divided_job_are_worlds_of_their_own_or_one_by_its_address() -> None:
    pods = PodSet(count=3, gpus=2)
    for address, told in (
        ("", {"WORLD_SIZE": "3", "RANK": "1", "BERTH_RANK_OFFSET": "0"}),
        ("first.example", {"WORLD_SIZE": "5", "RANK": None, "BERTH_RANK_OFFSET": "2"}),
    ):
        one = order(pods)
        part = Part(
            job="train", attempt=1, number=1, clusters=("c0", "c1"), pods=(2, 3), address=address
        )
        one = one._replace(request=replace(one.request, part=part))
        job = made(one)
        env = env_of(containers(job)[0], 1)
        assert {name: env.get(name) for name in told} == told
        host = address or f"{job['metadata']['name']}-0.g-{job['metadata']['name']}"
        assert env["MASTER_ADDR"] == host
        assert {
            name: env[name] for name in env if name.startswith(("BERTH_PART", "BERTH_JOB"))
        } == {
            "BERTH_JOB": "train",
            "BERTH_PART": "1",
            "BERTH_PARTS": "2",
            "BERTH_PART_CLUSTERS": "c0 c1",
            "BERTH_PART_PODS": "2 3",
            "BERTH_PART_OFFSET": "2",
        }


def test_several_pod_sets_are_numbered_one_after_the_other() -> None:
    run = RunSpec(image="x", command=("train",), args=("--fast",))
    sets = (PodSet(name="a", count=2, gpus=1), PodSet(name="b", count=3, gpus=1))
    plain = made(order(*sets, run=run))
    second = env_of(containers(plain)[1], 1)
    assert "RANK" not in second  # nobody can add the two without a shell
    assert (second["BERTH_RANK_OFFSET"], second["BERTH_POD_INDEX"]) == ("2", "1")
    assert containers(plain)[1]["command"] == ["train"]
    assert plain["spec"]["network"] == {"enableDNSHostnames": False}

    told = made(with_runtime(order(*sets, run=run), "plain"))
    assert containers(told)[1]["command"][3:] == ["train", "train"]
    show = 'echo "$RANK $NODE_RANK $PET_NODE_RANK $JAX_PROCESS_ID $0 $*"'
    shell = [*containers(told)[1]["command"][:3], "sh", "sh", "-c", show, "train"]
    env = env_of(containers(told)[1], 1) | {"JOB_COMPLETION_INDEX": "1"}
    out = subprocess.run([*shell, "--fast"], env=env, capture_output=True, text=True, check=True)
    assert out.stdout == "3 3 3 3 train --fast\n"


def test_real_processes_meet_by_what_the_made_manifest_tells_them() -> None:
    job = made(order(PodSet(count=3, gpus=1)))
    [container] = containers(job)
    [name] = [e["value"] for e in container["env"] if e["name"] == "MASTER_ADDR"]
    envs = [env_of(container, index) for index in range(3)]
    assert meet(envs, {name: "127.0.0.1"}) == ["[[1, 1], [2, 2]]", "", ""]


def test_torchrun_gets_one_process_a_gpu_and_the_script_as_its_argument() -> None:
    run = RunSpec(image="x", command=("train.py",), args=("--lr", "1"))
    sets = PodSet(count=2, gpus=4, memory_mib=4096)
    job = made(with_runtime(order(sets, run=run), "torch", max_restarts=2))
    [main] = containers(job)
    assert (main["command"], main["args"]) == (["torchrun"], ["train.py", "--lr", "1"])
    env = env_of(main, 1)
    assert (env["PET_NPROC_PER_NODE"], env["PET_MAX_RESTARTS"]) == ("4", "2")
    assert main["volumeMounts"] == [{"name": "shm", "mountPath": "/dev/shm"}]
    memory = {"medium": "Memory", "sizeLimit": "4096Mi"}  # no more than the pod has
    assert job["spec"]["template"]["spec"]["volumes"] == [{"name": "shm", "emptyDir": memory}]
    alone = made(with_runtime(order(PodSet(gpus=1), run=run), "torch", processes="2"))
    env = env_of(containers(alone)[0], 0)
    assert (env["MASTER_ADDR"], env["PET_NNODES"], env["PET_NPROC_PER_NODE"]) == (
        "localhost",
        "1",
        "2",
    )
    assert rendezvous.SERVICE not in alone["metadata"]["annotations"]


def test_slices_of_tpus_are_told_their_workers_and_each_other() -> None:
    one = PodSet(name="a", count=2, tpus=4, tpu_topology="2x4")
    other = PodSet(name="b", count=2, tpus=4, tpu_topology="2x4")
    job = made(order(one, other, run=RunSpec(image="x")))
    name = job["metadata"]["name"]
    env = env_of(containers(job)[1], 1)
    assert {key: value for key, value in env.items() if key.startswith(("TPU", "MEGA"))} == {
        "TPU_WORKER_ID": "1",
        "TPU_WORKER_HOSTNAMES": f"{name}-s1-0-0.g-{name},{name}-s1-0-1.g-{name}",
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_SLICE_ID": "1",
        "MEGASCALE_COORDINATOR_ADDRESS": f"{name}-s0-0-0.g-{name}:8080",
    }


def test_a_template_is_put_into_pods_and_its_containers_are_hardened_as_ours() -> None:
    template = PodTemplate(
        env={"A": "1", "B": "2"},
        config_env={"C": ObjectKey(name="settings", key="c")},
        env_from_secrets=("all",),
        volumes=(
            RuntimeVolume(name="data", mount_path="/data", claim="pile", read_only=True),
            RuntimeVolume(name="work", mount_path="/work", scratch_mib=100),
        ),
        image_pull_secrets=("registry",),
        runtime_class="kata",
        sidecars=(RuntimeSidecar(name="logs", image="logs:1", volumes=("work",)),),
        run_as_user=1000,
        fs_group=2000,
    )
    one = order(
        PodSet(gpus=1, cpu_milli=1100, memory_mib=1152), run=RunSpec(image="x", env={"A": "9"})
    )
    request = JobRequest(
        id="train",
        pod_sets=one.request.pod_sets,
        run=one.request.run,
        runtime=Runtime(name="r"),
        runtime_used=RuntimeUse(version="v", template=template, digest="d"),
    )
    spec = made(one._replace(request=request))["spec"]["template"]["spec"]
    [main], [sidecar] = spec["containers"], spec["initContainers"]
    env = {each["name"]: each for each in main["env"]}
    assert (env["A"]["value"], env["B"]["value"]) == ("9", "2")
    assert env["C"]["valueFrom"] == {"configMapKeyRef": {"name": "settings", "key": "c"}}
    assert main["envFrom"] == [{"secretRef": {"name": "all"}}]
    assert main["resources"]["requests"] == {
        "cpu": "1000m",
        "memory": "1024Mi",
        "nvidia.com/gpu": "1",
    }
    assert spec["volumes"] == [
        {"name": "data", "persistentVolumeClaim": {"claimName": "pile", "readOnly": True}},
        {"name": "work", "emptyDir": {"sizeLimit": "100Mi"}},
    ]
    assert sidecar["securityContext"] == main["securityContext"]
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["volumeMounts"] == [{"name": "work", "mountPath": "/work"}]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in sidecar["env"]
    assert "nvidia.com/gpu" not in json.dumps(sidecar)
    assert spec["securityContext"] == {
        "seccompProfile": {"type": "RuntimeDefault"},
        "runAsUser": 1000,
        "runAsNonRoot": True,
        "fsGroup": 2000,
    }
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["runtimeClassName"] == "kata"
    assert spec["automountServiceAccountToken"] is False

"""The executor in a real cluster: from placed to the ending, as its own status tells."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from berthmaster.lab.controlplane.api import Api
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.runtimes import (
    PodTemplate,
    Runtime,
    RuntimeParameter,
    RuntimeSetting,
    RuntimeVolume,
)
from berthmaster.lib.messages.workload import (
    Cancelled,
    Checkpoint,
    Evicted,
    Failed,
    JobRequest,
    Running,
    RunSpec,
    Succeeded,
)
from berthmaster.lib.requests.runtimes import filled_in
from tests.bus.tools import eventually, story
from tests.cluster.executing import job, site
from tests.support.gangs import meet, pod_env
from tests.support.patience import hang_s


@story
async def test_a_placement_becomes_a_job_that_runs_where_it_should_and_leaves_nothing_behind(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1"), gpu_node("n2")])
    async with site(worker, namespace, tmp_path) as berlin:
        mark = worker.audit.mark()
        await berlin.place(job(run_s="1"), "n2")
        running = await berlin.until("train", "Running")
        assert isinstance(running, Running)
        assert running.pods == (PodBinding(pod="main-0", node="n2"),)
        ending = await berlin.until("train", "Succeeded")
        assert isinstance(ending, Succeeded)
        assert await berlin.kinds("train") == ["Claimed", "Running", "Succeeded"]
        await berlin.clean()
        calls = worker.audit.calls(since=mark)
        mine = [(c.verb, c.resource) for c in calls if "berthmaster-executor" in c.user_agent]
        # It asks what it may do when it starts, which may be after the mark.
        asking = "selfsubjectaccessreviews.authorization.k8s.io"
        wrote = [c for c in mine if c[0] not in ("list", "watch", "get") and c[1] != asking]
        # The patch takes the finalizer off, once the ending is stored.
        assert sorted(wrote) == [(verb, "jobs.batch") for verb in ("create", "delete", "patch")]


@story
async def test_a_pod_that_fails_fails_its_job_with_exit_code_and_reason(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1")])
    async with site(worker, namespace, tmp_path) as berlin:
        await berlin.place(job(count=4, exit_code=3), "n1")
        ending = await berlin.until("train", "Failed")
        assert isinstance(ending, Failed)
        assert ending.exit_code == 3
        assert ending.reason.startswith("pod main-")
        assert ending.reason.endswith("exited with 3")
        await berlin.clean()


@story
async def test_a_gang_that_does_not_fit_is_given_back_whole(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1", gpus=8)])
    async with site(worker, namespace, tmp_path, "--start-limit-s", "4") as berlin:
        await berlin.place(job(count=3, gpus=4, run_s="forever"), "n1")
        evicted = await berlin.until("train", "Evicted")
        assert isinstance(evicted, Evicted)
        assert evicted.reason.startswith("not all pods ran within 4 s: pod main-")
        assert "nvidia.com/gpu" in evicted.reason
        await berlin.clean()


@story
async def test_processes_of_a_gang_meet_by_the_service_that_is_made_for_it_and_goes_with_it(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1")])
    core = f"/api/v1/namespaces/{namespace}"
    async with site(worker, namespace, tmp_path) as berlin:
        attempt = await berlin.place(job(count=2, run_s="forever"), "n1")
        await berlin.until("train", "Running")
        name = (await berlin.job_of(attempt))["metadata"]["name"]
        service = worker.api.get(f"{core}/services/g-{name}")
        assert service["spec"]["clusterIP"] == "None"

        # What a cluster's DNS answers by: pods that the Service selects, by host name.
        selected = [
            pod
            for pod in berlin.pods()
            if service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        ]
        names = {f"{p['spec']['hostname']}.{p['spec']['subdomain']}": "127.0.0.1" for p in selected}
        assert sorted(names) == [f"{name}-{index}.g-{name}" for index in range(2)]
        envs = [pod_env(pod) for pod in selected]
        outs = await asyncio.to_thread(meet, envs, names)
        assert sorted(outs) == ["", "[[1, 1]]"]

        await berlin.cancel("train")
        await berlin.until("train", "Cancelled")
        await berlin.clean()

        async def gone() -> bool:
            found = await asyncio.to_thread(worker.api.find, f"{core}/services/g-{name}")
            return found is None

        await eventually(gone)


TUNING = """
import os, pathlib, time
data, steps, every = pathlib.Path(os.environ["DATA"]), 60, int(os.environ["EVERY"])
saved = data / "checkpoint"
step = int(saved.read_text()) if saved.exists() else 0
while step < steps:
    step += 1
    with (data / "done").open("a") as done:
        done.write(f"{step}\\n")
    if step % every == 0:
        (data / "new").write_text(str(step))
        (data / "new").rename(saved)
    time.sleep(0.02)
"""
TUNE = RuntimeSetting(
    runtime="tune",
    parameters={"every": RuntimeParameter(type="integer", default=10)},
    template=PodTemplate(
        command=("python", "-c", TUNING),
        env={"DATA": "/data", "EVERY": "{{every}}"},
        volumes=(RuntimeVolume(name="data", mount_path="/data", claim="data"),),
    ),
)


def say(api: Api, pod: str, message: str) -> None:
    """A pod's container has ended and left a termination message."""
    [status] = api.get(pod)["status"]["containerStatuses"]
    over = {**status, "state": {"terminated": {"exitCode": 143, "message": message}}}
    api.merge(f"{pod}/status", {"status": {"containerStatuses": [over]}})


def evict(api: Api, path: str, pod: Mapping[str, Any]) -> None:
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction"}
    named = {name: pod["metadata"][name] for name in ("name", "namespace")}
    api.create(f"{path}/eviction", {**eviction, "metadata": named})


def make_claim(api: Api, namespace: str) -> None:
    """A claim that is bound, as the controller of volumes leaves it; there is none here."""
    size = {"storage": "1Gi"}
    shared = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    name = f"data-{namespace}"
    path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    bound = {"name": "data", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
    asked = {**shared, "resources": {"requests": size}, "volumeName": name}
    made = api.create(path, {"metadata": bound, "spec": asked})
    whose = {"namespace": namespace, "name": "data", "uid": made["metadata"]["uid"]}
    source = {"path": "/nowhere"}
    volume = {**shared, "capacity": size, "hostPath": source, "claimRef": whose}
    api.create("/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": volume})


@story
async def test_a_tuning_job_loses_one_interval_at_most_when_it_is_evicted(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1"), gpu_node("n2")])
    make_claim(worker.api, namespace)
    data = tmp_path / "data"  # what the claim stands for
    data.mkdir()
    done = data / "done"

    def start(pod: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        """The process of a pod, with its claim's folder where it mounts it."""
        [container], [volume] = pod["spec"]["containers"], pod["spec"]["volumes"]
        [mount] = container["volumeMounts"]
        assert volume["persistentVolumeClaim"]["claimName"] == "data"
        assert mount["mountPath"] == "/data"
        env = {**os.environ, **pod_env(pod), "DATA": str(data)}
        return subprocess.Popen([sys.executable, *container["command"][1:]], env=env)

    async def steps(least: int) -> None:
        async def made() -> bool:
            return done.exists() and len(done.read_text().split()) >= least

        await eventually(made)

    run = RunSpec(image="example.org/tune:1", env={"BERTH_TEST_RUN_S": "forever"})
    full = filled_in(replace(job(), runtime=Runtime(name="tune"), run=run), "acme", {"tune": TUNE})
    assert isinstance(full, JobRequest)
    async with site(worker, namespace, tmp_path) as berlin:
        await berlin.place(full, "n1")
        await berlin.until("train", "Running")
        [pod] = berlin.pods()
        first = start(pod)
        try:
            await steps(25)
            path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"
            # Its last word, as its kubelet would hand it on.
            say(worker.api, path, 'BERTH {"checkpoint": {"step": 20, "uri": "/data/checkpoint"}}')
            await berlin.until("train", "Checkpointed")
            evict(worker.api, path, pod)
        finally:
            first.kill()  # as its kubelet would
            first.wait(hang_s())
        evicted = await berlin.until("train", "Evicted")
        assert isinstance(evicted, Evicted)
        assert evicted.fault == "evicted", evicted
        work = await berlin.read("train")
        assert (work.evictions, work.failures, work.retry_at_s) == (1, 0, 0.0)
        assert work.checkpoint == Checkpoint(step=20, uri="/data/checkpoint")
        await berlin.place_again("train", "n2")
        await berlin.until("train", "Running", times=2)
        [pod] = [p for p in berlin.pods() if p["status"]["phase"] == "Running"]
        assert pod_env(pod)["BERTH_CHECKPOINT_STEP"] == "20"
        assert await asyncio.to_thread(start(pod).wait, 30) == 0
        await berlin.cancel("train")
        await berlin.clean()
    told = [int(step) for step in done.read_text().split()]
    assert told[-1] == 60
    assert 0 <= len(told) - 60 <= 10, told  # one interval at most was done twice


@story
async def test_a_wish_to_cancel_ends_the_pods_before_it_is_told(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1")])
    async with site(worker, namespace, tmp_path) as berlin:
        await berlin.place(job(count=2, run_s="forever"), "n1")
        await berlin.until("train", "Running")
        await berlin.cancel("train", "typo")
        ending = await berlin.until("train", "Cancelled")
        assert isinstance(ending, Cancelled)
        assert ending.reason == "typo"
        assert [p for p in berlin.pods() if p["status"]["phase"] == "Running"] == []
        await berlin.clean()


@story
async def test_the_cluster_ends_what_has_run_for_too_long(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1")])
    async with site(worker, namespace, tmp_path) as berlin:
        await berlin.place(job(run_s="forever", deadline_s=4), "n1")
        evicted = await berlin.until("train", "Evicted")
        assert isinstance(evicted, Evicted)
        assert evicted.reason == "deadline"
        await berlin.clean()


@story
async def test_what_somebody_deletes_is_given_back(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1")])
    async with site(worker, namespace, tmp_path) as berlin:
        attempt = await berlin.place(job("object", run_s="forever"), "n1")
        await berlin.place(job("pod", run_s="forever"), "n1")
        for name in ("object", "pod"):
            await berlin.until(name, "Running")
        made = await berlin.job_of(attempt)
        worker.api.delete(f"/apis/batch/v1/namespaces/{namespace}/jobs/{made['metadata']['name']}")
        [pod] = [p for p in berlin.pods() if p["metadata"]["name"].startswith("pod-1-")]
        worker.api.delete(f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}")
        for name, reason in (("object", "somebody deletes its job"), ("pod", "its pods were")):
            evicted = await berlin.until(name, "Evicted")
            assert isinstance(evicted, Evicted)
            assert reason in evicted.reason or "somebody deleted pod main-0" in evicted.reason
        await berlin.clean()


@story
async def test_sigterm_ends_it_within_its_limits_and_jobs_run_on(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1")])
    async with site(worker, namespace, tmp_path) as berlin:
        await berlin.place(job(run_s="4"), "n1")
        await berlin.until("train", "Running")
        assert berlin.stop() == 0
        assert len(berlin.objects()) == 1
        berlin.start()
        await berlin.until("train", "Succeeded")
        await berlin.clean()


@story
async def test_a_namespace_of_level_restricted_takes_pods_that_may_not_be_root(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1")])
    level = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    worker.api.merge(f"/api/v1/namespaces/{namespace}", level)
    async with site(worker, namespace, tmp_path, "--start-limit-s=5") as berlin:
        await berlin.place(job(run_s="1"), "n1")
        given_back = await berlin.until("train", "Evicted")
        assert isinstance(given_back, Evicted)
        await berlin.clean()
    async with site(worker, namespace, tmp_path / "b", "--run-as-non-root") as berlin:
        await berlin.place(job(run_s="1"), "n1")
        assert isinstance(await berlin.until("train", "Succeeded"), Succeeded)
        await berlin.clean()

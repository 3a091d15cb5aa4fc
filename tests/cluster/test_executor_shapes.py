"""What requests may look like at their limits, and what others do to their pods."""

import asyncio
from pathlib import Path
from typing import Any

from berthmaster.lab.controlplane.kueue.setup import Kueue
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes, shared_node
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.jobs.kinds.job import JOB
from berthmaster.lib.jobs.kinds.job_set import JOB_SET
from berthmaster.lib.messages.placement import PodBinding, Target
from berthmaster.lib.messages.workload import Evicted, Failed, PodSet, Running
from berthmaster.worker.executor.core.manifest import object_name
from tests.bus.tools import eventually, story
from tests.cluster.executing import Site, job, site
from tests.support.builders import node
from tests.support.patience import until

LONG = "a-name-as-long-as-an-id-may-be-which-is-fifty-two-ch"


@story
async def test_names_at_their_limits_and_tenants_in_one_namespace(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    long_node = "n" * 60 + "-01"
    make_nodes(worker, [gpu_node("n1"), gpu_node(long_node)])
    odd = "Ärger & Söhne, a tenant whose name is long and no label at all, whatever one does"
    async with site(worker, namespace, tmp_path) as berlin:
        one = await berlin.place(
            job(LONG, pod_sets=(PodSet(name="p" * 63, gpus=1, count=2),)), long_node
        )
        two = await berlin.place(job(LONG), "n1", tenant=odd)
        assert len(LONG) == 52
        assert len(object_name(one, JOB)) <= 63
        assert object_name(one, JOB) != object_name(two, JOB)
        await berlin.until(LONG, "Succeeded")
        await eventually(lambda: _ended(berlin, odd))
        await berlin.clean()


async def _ended(berlin: Site, tenant: str) -> bool:
    return (await berlin.kinds(LONG, tenant))[-1:] == ["Succeeded"]


@story
async def test_twelve_pod_sets_are_one_job_set(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1")])
    sets = tuple(PodSet(name=f"part-{n}", gpus=0, count=1 + n % 2) for n in range(12))
    async with site(worker, namespace, tmp_path) as berlin:
        attempt = await berlin.place(job(pod_sets=sets), "n1")
        made = await berlin.job_of(attempt, JOB_SET)
        jobs = made["spec"]["replicatedJobs"]
        assert [each["name"] for each in jobs] == [f"s{n}" for n in range(12)]
        assert [each["template"]["spec"]["completions"] for each in jobs] == [1, 2] * 6
        # Its controller (there is none here) makes the pods, which kwok runs, and says how it ends.
        for each in jobs:
            for index in range(each["template"]["spec"]["completions"]):
                await asyncio.to_thread(_make_pod, berlin, each, index)
        running = await berlin.until("train", "Running")
        assert isinstance(running, Running)
        assert len(running.pods) == 18
        ends = {"conditions": [_condition("Completed", "AllJobsCompleted")]}
        name = made["metadata"]["name"]
        path = JOB_SET.resource.path(namespace=namespace, name=name)
        worker.api.merge(f"{path}/status", {"status": ends})
        worker.api.delete(f"/api/v1/namespaces/{namespace}/pods", gracePeriodSeconds=0)
        await berlin.until("train", "Succeeded")
        await eventually(lambda: asyncio.to_thread(lambda: not berlin.objects(JOB_SET.resource)))


def _make_pod(berlin: Site, made: dict[str, Any], index: int) -> None:
    template = made["template"]["spec"]["template"]
    metadata = template["metadata"]
    known = metadata["labels"] | {"batch.kubernetes.io/job-completion-index": str(index)}
    berlin.plane.api.create(
        f"/api/v1/namespaces/{berlin.namespace}/pods",
        {
            "metadata": {
                "name": f"{made['name']}-{index}",
                "labels": known,
                "annotations": metadata.get("annotations", {}) | {"berth.test/run-s": "forever"},
            },
            "spec": template["spec"] | {"nodeName": "n1"},
        },
    )


def _condition(kind: str, reason: str) -> dict[str, str]:
    return {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": "",
        "lastTransitionTime": "2026-11-21T12:00:00Z",
    }


@story
async def test_what_the_api_server_refuses_is_told_in_its_words(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1")])
    quota = {
        "metadata": {"name": "few"},
        "spec": {"hard": {"count/jobs.batch": "0"}},
    }
    async with site(worker, namespace, tmp_path) as berlin:
        await berlin.place(job("bad", node_labels={"no label": "x y"}), "n1")
        refused = await berlin.until("bad", "Failed")  # for its own sake: no other cluster is asked
        assert isinstance(refused, Failed)
        assert refused.fault == "not_started"
        assert "nodeSelector" in refused.reason or "no label" in refused.reason
        quotas = f"/api/v1/namespaces/{namespace}/resourcequotas"
        worker.api.create(quotas, quota)
        await until(lambda: worker.api.get(f"{quotas}/few").get("status"), "the quota counts")
        await asyncio.sleep(1.0)  # for admission, which tells nobody what it knows
        await berlin.place(job("much", max_evictions=0), "n1")
        failed = await berlin.until("much", "Failed")
        assert isinstance(failed, Failed)
        assert "exceeded quota: few" in failed.reason
        await berlin.place(job("elsewhere"), "n1", target=Target(namespace="kube-system"))
        wrong = await berlin.until("elsewhere", "Evicted")
        assert isinstance(wrong, Evicted)
        assert "namespace kube-system is none of those" in wrong.reason
        assert berlin.objects() == []


@story
async def test_pods_that_are_drained_or_preempted_are_given_back_with_the_reason(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1", gpus=8)])
    async with site(worker, namespace, tmp_path) as berlin:
        await berlin.place(job("drained", count=2, gpus=2, run_s="forever"), "n1")
        await berlin.place(job("preempted", gpus=4, run_s="forever"), "n1")
        for name in ("drained", "preempted"):
            await berlin.until(name, "Running")
        pods = f"/api/v1/namespaces/{namespace}/pods"
        worker.api.create(
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            {"metadata": {"name": f"urgent-{namespace}"}, "value": 1000},
        )
        [drained, _] = [p["metadata"]["name"] for p in berlin.pods() if "drained" in _of(p)]
        worker.api.create(f"{pods}/{drained}/eviction", {"metadata": {"name": drained}})
        evicted = await berlin.until("drained", "Evicted")
        assert isinstance(evicted, Evicted)
        assert "EvictionByEvictionAPI" in evicted.reason
        limits = {"limits": {"nvidia.com/gpu": "8"}}
        container = {"name": "x", "image": "x", "resources": limits}
        urgent = {"priorityClassName": f"urgent-{namespace}", "containers": [container]}
        worker.api.create(pods, {"metadata": {"name": "urgent"}, "spec": urgent})
        evicted = await berlin.until("preempted", "Evicted")
        assert isinstance(evicted, Evicted)
        assert "PreemptionByScheduler" in evicted.reason
        worker.api.delete(f"{pods}/urgent", gracePeriodSeconds=0)
        await berlin.clean()


def _of(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["labels"].get("berthmaster.io/workload"))


@story
async def test_a_part_of_a_gpu_is_asked_for_as_its_node_offers_it(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    from msgspec.structs import replace

    from berthmaster.lib.messages.fleet import Share

    worker = planes.workers[0]
    make_nodes(worker, [shared_node("n1", gpus=1, replicas=4), gpu_node("n2", model="Tesla-T4")])
    labels = {"nvidia.com/gpu.product": "NVIDIA-A10-SHARED"}
    share = Share(resource="nvidia.com/gpu.shared", milli=250, count=4)
    report = node("berlin", "n1", gpus=1, model="NVIDIA-A10", labels=labels)
    async with site(worker, namespace, tmp_path, started=False) as berlin:
        await berlin.tell(replace(report, shares=(share,)))
        berlin.start()  # it reads all facts before it works
        attempt = await berlin.place(
            job(gpu_milli=200, gpu_models=("NVIDIA-A10",), run_s="2"), "n1"
        )
        made = await berlin.job_of(attempt)
        [container] = made["spec"]["template"]["spec"]["containers"]
        assert container["resources"]["limits"] == {"memory": "1Gi", "nvidia.com/gpu.shared": "1"}
        running = await berlin.until("train", "Running")
        assert isinstance(running, Running)
        assert running.pods == (PodBinding(pod="main-0", node="n1", isolation="none"),)
        await berlin.until("train", "Succeeded")
        await berlin.clean()


@story
async def test_a_workers_own_kueue_lets_it_in_and_what_is_not_let_in_is_given_back(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1", gpus=8)])
    quota = {"default": {"cpu": "100", "memory": "1Ti", "nvidia.com/gpu": "4"}}
    kueue = Kueue(planes, namespace, worker_quotas={worker.name: quota})
    await asyncio.to_thread(kueue.start)
    try:
        flags = ("--queue-limit-s", "6")
        async with site(worker, namespace, tmp_path, *flags) as berlin:
            queue = Target(via="worker", namespace=namespace, local_queue=kueue.queue)
            await berlin.place(job("in", gpus=4, run_s="20"), "n1", target=queue)
            await berlin.until("in", "Running")
            assert await berlin.kinds("in") == ["Claimed", "Admitted", "Running"]
            await berlin.place(job("out", gpus=4), "n1", target=queue)
            evicted = await berlin.until("out", "Evicted")
            assert isinstance(evicted, Evicted)
            assert evicted.reason == "its cluster's queue did not let it in within 6 s"
            await berlin.until("in", "Succeeded")
            await berlin.clean()
    finally:
        await asyncio.to_thread(kueue.stop)

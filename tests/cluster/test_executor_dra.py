"""Devices by dynamic allocation, claimed by the executor and allocated by the real scheduler."""

import asyncio
from pathlib import Path
from typing import Any

from berthmaster.lab.controlplane.nodes import cpu_node, make_nodes
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.kube.resources import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from berthmaster.lib.messages.workload import Evicted, PodSet, Running
from tests.bus.tools import eventually, story
from tests.cluster.claiming import API, DRIVER, gpu, mig, offered, reported
from tests.cluster.executing import Site, job, site
from tests.cluster.test_executor_rights import RBAC, with_its_role


def templates(berlin: Site) -> list[Any]:
    return berlin.objects(RESOURCE_CLAIM_TEMPLATES)


async def no_template(berlin: Site) -> None:
    await eventually(lambda: asyncio.to_thread(lambda: not templates(berlin)))


def results(berlin: Site) -> list[dict[str, Any]]:
    """What the scheduler has given to claims of the namespace."""
    found: list[dict[str, Any]] = []
    for claim in berlin.objects(RESOURCE_CLAIMS):
        allocation = claim.get("status", {}).get("allocation", {})
        found += allocation.get("devices", {}).get("results", ())
    return found


@story
async def test_whole_gpus_are_claimed_by_model_and_memory_and_the_template_goes_with_its_job(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [cpu_node("n1"), cpu_node("n2")])
    small = [gpu("t4", product="Tesla T4", memory="15Gi")]
    with offered(worker, {"n1": [gpu("0"), gpu("1"), *small], "n2": small}):
        async with site(worker, namespace, tmp_path, started=False) as berlin:
            await berlin.tell(reported(worker, "n1"), reported(worker, "n2"))
            berlin.start()  # it reads all facts before it works
            asked: dict[str, Any] = {
                "gpu_models": ("A100",),
                "gpu_memory_mib": 40_000,
                "run_s": "forever",
            }
            attempt = await berlin.place(job(gpus=2, **asked), "n1")
            running = await berlin.until("train", "Running")
            assert isinstance(running, Running)
            assert [pod.node for pod in running.pods] == ["n1"]
            assert sorted(result["device"] for result in results(berlin)) == ["0", "1"]

            made = await berlin.job_of(attempt)
            [template] = templates(berlin)
            [owner] = template["metadata"]["ownerReferences"]
            assert (owner["kind"], owner["uid"]) == ("Job", made["metadata"]["uid"])
            report = reported(worker, "n1")
            assert [(use.gpus, use.gpu_milli) for use in report.pods] == [((0, 1), 1000)]
            assert report.foreign.gpu_milli == 0

            await berlin.cancel("train")
            await berlin.until("train", "Cancelled")
            await berlin.clean()
            await no_template(berlin)
            assert results(berlin) == []


@story
async def test_parts_of_a_gpu_that_several_may_have_are_claimed_by_memory_and_charged_so(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [cpu_node("n1")])
    with offered(worker, {"n1": [gpu("0", shared=True)]}):
        async with site(
            worker, namespace, tmp_path, "--start-limit-s", "8", started=False
        ) as berlin:
            await berlin.tell(reported(worker, "n1"))
            berlin.start()  # it reads all facts before it works
            half: dict[str, Any] = {"gpu_milli": 500, "run_s": "forever", "gpu_models": ("A100",)}
            for name in ("one", "two"):
                await berlin.place(job(name, **half), "n1")
                await berlin.until(name, "Running")
            got = [(r["consumedCapacity"], bool(r["shareID"])) for r in results(berlin)]
            assert got == [({"memory": "40Gi"}, True)] * 2
            assert [use.gpu_milli for use in reported(worker, "n1").pods] == [500, 500]

            await berlin.place(job("three", **half), "n1")
            evicted = await berlin.until("three", "Evicted")
            assert isinstance(evicted, Evicted)
            assert "cannot allocate all claims" in evicted.reason

            for name in ("one", "two"):
                await berlin.cancel(name)
                await berlin.until(name, "Cancelled")
            # Whole is all of it, and then nothing is left.
            await berlin.clean()
            await berlin.place(job("whole", run_s="forever"), "n1")
            await berlin.until("whole", "Running")
            assert [r["consumedCapacity"] for r in results(berlin)] == [{"memory": "80Gi"}]
            await berlin.cancel("whole")
            await berlin.clean()
            await no_template(berlin)


@story
async def test_a_class_with_a_resource_serves_by_counting_and_mig_slices_by_their_profile(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [cpu_node("n1"), cpu_node("n2")])
    slices = [mig("a", "3g.40gb", "40Gi"), mig("b", "1g.10gb", "10Gi")]
    whole = offered(worker, {"n1": [gpu("0")]}, resource="nvidia.com/gpu")
    parts = offered(worker, {"n2": slices}, kind="mig", class_name="mig.nvidia.com")
    with whole, parts:
        async with site(worker, namespace, tmp_path, started=False) as berlin:
            await berlin.tell(reported(worker, "n1"), reported(worker, "n2"))
            berlin.start()  # it reads all facts before it works
            attempt = await berlin.place(job("whole"), "n1")
            made = await berlin.job_of(attempt)
            [container] = made["spec"]["template"]["spec"]["containers"]
            assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
            await berlin.until("whole", "Succeeded")

            sets = (PodSet(gpus=1, gpu_milli=142, mig_profile="1g.10gb", isolation="hardware"),)
            request = job("slice", pod_sets=sets, run_s="forever")
            await berlin.place(request, "n2")
            await berlin.until("slice", "Running")
            assert [result["device"] for result in results(berlin)] == ["b"]
            await berlin.cancel("slice")
            await berlin.until("slice", "Cancelled")
            await berlin.clean()
            await no_template(berlin)


@story
async def test_killed_between_a_job_and_its_template_its_next_life_makes_the_template(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [cpu_node("n1")])
    token = await asyncio.to_thread(with_its_role, worker, namespace)
    role = f"{RBAC}/clusterroles/berthmaster-executor"
    rules = worker.api.get(role)["rules"]
    without = [rule for rule in rules if rule["apiGroups"] != ["resource.k8s.io"]]
    worker.api.merge(role, {"rules": without})
    kubeconfig = worker.kubeconfig_with_token(token)
    with offered(worker, {"n1": [gpu("0")]}):
        async with site(
            worker, namespace, tmp_path, kubeconfig=kubeconfig, started=False
        ) as berlin:
            await berlin.tell(reported(worker, "n1"))
            berlin.start()  # it reads all facts before it works
            attempt = await berlin.place(job(run_s="2"), "n1")
            await berlin.job_of(attempt)
            await asyncio.sleep(0.5)
            berlin.kill()
            assert templates(berlin) == []
            worker.api.merge(role, {"rules": rules})
            berlin.start()
            await berlin.until("train", "Succeeded")
            assert await berlin.kinds("train") == ["Claimed", "Running", "Succeeded"]
            await berlin.clean()
            await no_template(berlin)


@story
async def test_claims_that_a_request_names_are_used_and_a_missing_one_is_told_at_once(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [cpu_node("n1")])
    request = {"name": "it", "exactly": {"deviceClassName": DRIVER}}
    asked = {"devices": {"requests": [request]}}
    with offered(worker, {"n1": [gpu("0"), gpu("1")]}):
        one = {"metadata": {"name": "own"}, "spec": {"spec": asked}}
        worker.api.create(f"{API}/namespaces/{namespace}/resourceclaimtemplates", one)
        shared = {"metadata": {"name": "ours"}, "spec": asked}
        worker.api.create(f"{API}/namespaces/{namespace}/resourceclaims", shared)
        async with site(worker, namespace, tmp_path) as berlin:
            sets = (PodSet(claims=("own", "ours")),)
            await berlin.place(job(pod_sets=sets, run_s="forever"), "n1")
            await berlin.until("train", "Running")
            assert sorted(result["device"] for result in results(berlin)) == ["0", "1"]

            sets = (PodSet(claims=("own", "nobodys")),)
            await berlin.place(job("lost", pod_sets=sets), "n1")
            evicted = await berlin.until("lost", "Evicted")
            assert isinstance(evicted, Evicted)
            assert evicted.reason == (
                "pod set main names the claim nobodys: there is no ResourceClaimTemplate and no "
                f"ResourceClaim of that name in {namespace}"
            )
            await berlin.cancel("train")
            await berlin.until("train", "Cancelled")
            # What was there before us stays.
            assert [one["metadata"]["name"] for one in templates(berlin)] == ["own"]


@story
async def test_a_class_that_goes_is_told_and_its_devices_are_offered_no_more(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    worker = planes.workers[0]
    make_nodes(worker, [cpu_node("n1")])
    with offered(worker, {"n1": [gpu("0")]}):
        async with site(
            worker, namespace, tmp_path, "--start-limit-s", "8", started=False
        ) as berlin:
            await berlin.tell(reported(worker, "n1"))
            berlin.start()  # it reads all facts before it works
            worker.api.delete(f"{API}/deviceclasses/{DRIVER}")
            assert [each.healthy for each in reported(worker, "n1").gpus] == [False]
            await berlin.place(job(), "n1")
            evicted = await berlin.until("train", "Evicted")
            assert isinstance(evicted, Evicted)
            assert f"device class {DRIVER} does not exist" in evicted.reason
            await berlin.clean()
            await no_template(berlin)

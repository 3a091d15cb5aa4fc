"""Jobs whose number of pods changes, in a worker whose own Kueue starts them: they grow by a second
Workload that replaces the first once it is let in, and shrink in place."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from berthmaster.executor.core import BACK_IN_QUEUE
from berthmaster.messages.placement import PodBinding, Target
from berthmaster.messages.workload import Admitted, Evicted, Resized, Running
from tests.bus.tools import eventually, story
from tests.cluster.executing import LIMIT_S, Site, job, site
from tests.controlplane.kueue import builders
from tests.controlplane.kueue.managers import Options, is_real
from tests.controlplane.kueue.setup import API, Kueue, kueue
from tests.controlplane.nodes import gpu_node, make_nodes
from tests.controlplane.planes import Planes

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not is_real(), reason="the stand-in knows no elastic jobs: set KUEUE_BIN"),
]
GPUS = 4  # what the worker's queue grants; its node has twice as many


@asynccontextmanager
async def queued(
    planes: Planes, namespace: str, folder: Path, *flags: str, **options: Any
) -> AsyncIterator[tuple[Site, Kueue]]:
    """An executor in a worker whose Kueue grants four GPUs."""
    worker = planes.workers[0]
    make_nodes(worker, [gpu_node("n1", gpus=2 * GPUS)])
    quota = {"default": {"cpu": "100", "memory": "1Ti", "nvidia.com/gpu": str(GPUS)}}
    made = Options(**options)
    async with kueue(
        planes, namespace, worker_quotas={worker.name: quota}, options=made
    ) as k:
        preempt = {"spec": {"preemption": {"withinClusterQueue": "LowerPriority"}}}
        worker.api.merge(f"{API}/clusterqueues/{k.cluster_queue}", preempt)
        async with site(worker, namespace, folder, *flags) as berlin:
            berlin.target = Target(via="worker", namespace=namespace, local_queue=k.queue)
            yield berlin, k


def pods(*numbers: int) -> tuple[PodBinding, ...]:
    return tuple(PodBinding(pod=f"main-{n}", node="n1") for n in numbers)


def used(berlin: Site, k: Kueue) -> int:
    """GPUs that the worker's Kueue counts as reserved."""
    queue = berlin.plane.api.get(f"{API}/clusterqueues/{k.cluster_queue}")
    [flavor] = queue["status"]["flavorsReservation"]
    return next(int(r["total"]) for r in flavor["resources"] if r["name"] == "nvidia.com/gpu")


def slices(berlin: Site) -> list[tuple[int, str]]:
    """Workloads that are not over: pods, and whether they have quota."""
    found = []
    for each in berlin.plane.api.items(f"{API}/namespaces/{berlin.namespace}/workloads"):
        told = {c["type"]: c["status"] for c in each.get("status", {}).get("conditions", ())}
        if told.get("Finished") != "True":
            found.append((each["spec"]["podSets"][0]["count"], told.get("QuotaReserved", "")))
    return sorted(found)


async def resized(berlin: Site, times: int) -> Resized:
    told = await berlin.until("train", "Resized", times=times)
    assert isinstance(told, Resized)
    return told


@story
async def test_it_grows_and_shrinks_and_no_pod_is_counted_twice(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    async with queued(planes, namespace, tmp_path, "--start-limit-s", "6") as (berlin, k):
        api = berlin.plane.api
        request = job(count=2, gpus=1, run_s="forever", min_count=1, max_count=8)
        await berlin.place(request, "n1", target=berlin.target)
        running = await berlin.until("train", "Running")
        assert isinstance(running, Running)
        admitted = await berlin.until("train", "Admitted")
        assert isinstance(admitted, Admitted) and admitted.resizable
        first = {pod["metadata"]["uid"] for pod in berlin.pods()}

        await berlin.resize("train", pods(0, 1, 2, 3))
        grown = await resized(berlin, 1)
        assert ([each.pod for each in grown.pods], grown.reason) == (
            ["main-0", "main-1", "main-2", "main-3"],
            "",
        )
        assert first <= {pod["metadata"]["uid"] for pod in berlin.pods()}
        print(slices(berlin), used(berlin, k))
        await berlin.resize("train", pods(0))
        shrunk = await resized(berlin, 2)
        print(slices(berlin), used(berlin, k))
        other = builders.job(
            namespace, "other", k.queue, requests={"cpu": "1", "nvidia.com/gpu": "3"}, on_hub=False
        )
        api.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", other)

        async def both() -> bool:
            found = await asyncio.to_thread(berlin.pods)
            return sum(p["status"].get("phase") == "Running" for p in found) == 2

        await eventually(both, LIMIT_S)
        print(slices(berlin), used(berlin, k))
        await berlin.resize("train", pods(0, 1, 2))
        await asyncio.sleep(2)
        print(slices(berlin), used(berlin, k))
        told = await resized(berlin, 3)
        print(told.pods, told.reason, slices(berlin), used(berlin, k))
        await asyncio.sleep(3)
        print(slices(berlin), used(berlin, k))
        await berlin.cancel("train")
        await berlin.until("train", "Cancelled")

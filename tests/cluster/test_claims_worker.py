"""Claimed devices in a worker whose Kueue has them mapped: what we say that its quota is asked for
is what it counts, and its queue is judged by that."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from berthmaster.lab.controlplane.kueue.objects import condition_of
from berthmaster.lab.controlplane.kueue.setup import API, Options, kueue
from berthmaster.lab.controlplane.nodes import cpu_node, make_nodes, wait_open
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.kube.mirror import Added, Listed
from berthmaster.lib.kueue.asks import asks_of, devices_of
from berthmaster.lib.kueue.queues import ClusterQueue
from berthmaster.lib.kueue.quota import Answer, Quotas
from berthmaster.lib.messages.fleet import ClusterProfile, QueueReport, Stamp
from berthmaster.lib.messages.placement import Target
from berthmaster.lib.messages.workload import JobRequest, PodSet
from berthmaster.worker.inventory.core.inventory import Inventory
from berthmaster.worker.inventory.core.kinds import WatchedKind
from berthmaster.worker.inventory.core.objects import DeviceClass
from tests.bus.tools import eventually, story
from tests.cluster.claiming import API as CLAIMS
from tests.cluster.claiming import gpu, mig, offered, reported
from tests.cluster.executing import job, site

STAMP = Stamp(epoch=1, counter=1)
GPUS, SLICES = "example.com/gpus", "example.com/slices"
CLASSES = {GPUS: ("gpu.nvidia.com",), SLICES: ("mig.nvidia.com",)}
QUOTA = {"default": {"cpu": "100", "memory": "1Ti", GPUS: "4", SLICES: "1"}}


def told_by(plane: Plane, queue: str) -> tuple[QueueReport, Mapping[str, str]]:
    """What an inventory tells of the queue, and of what is counted as what, that was told what the
    manager was."""
    mapped = {one: name for name, classes in CLASSES.items() for one in classes}
    inventory = Inventory("berlin", device_classes=mapped)
    inventory.absent(WatchedKind.CONFIGURATION)
    for one in plane.api.items(f"{CLAIMS}/deviceclasses"):
        inventory.take(WatchedKind.CLASSES, Added(msgspec.convert(one, DeviceClass)))
    inventory.take(WatchedKind.CLUSTER_QUEUES, Listed("1"))
    found = plane.api.get(f"{API}/clusterqueues/{queue}")
    inventory.take(WatchedKind.CLUSTER_QUEUES, Added(msgspec.convert(found, ClusterQueue)))
    told = [inventory.fact(each, STAMP, 0.0) for each in inventory.everything()]
    facts = {type(each[0]): each[0] for each in told if each is not None}
    profile, report = facts[ClusterProfile], facts[QueueReport]
    assert isinstance(profile, ClusterProfile)
    assert isinstance(report, QueueReport)
    return report, profile.counted_as


@pytest.mark.parametrize("resource", ["", "nvidia.com/gpu"])
@story
async def test_claims_are_asked_of_quota_as_what_kueue_counts_them(
    planes: Planes, namespace: str, tmp_path: Path, resource: str
) -> None:
    """Whole GPUs by claims, or by counting where their class has a resource; slices by claims."""
    worker = planes.workers[0]
    wait_open(worker, make_nodes(worker, [cpu_node("n1"), cpu_node("n2")]))
    gpus = {"n1": [gpu(str(number)) for number in range(8)]}
    slices = {"n2": [mig(name, "1g.10gb", "10Gi") for name in ("a", "b")]}
    whole = offered(worker, gpus, resource=resource)
    parts = offered(worker, slices, kind="mig", class_name="mig.nvidia.com")
    options = Options(device_classes=CLASSES)
    quotas = {worker.name: QUOTA}
    with whole, parts:
        async with (
            kueue(planes, namespace, options=options, worker_quotas=quotas) as k,
            site(worker, namespace, tmp_path) as berlin,
        ):
            target = berlin.target = Target(via="worker", namespace=namespace, local_queue=k.queue)
            nodes = [reported(worker, "n1"), reported(worker, "n2")]
            await berlin.tell(*nodes)
            pods = PodSet(gpus=1, gpu_milli=142, mig_profile="1g.10gb", isolation="hardware")
            slice_of: dict[str, Any] = {"pod_sets": (pods,)}
            used = dict.fromkeys((GPUS, SLICES), 0)

            async def answer(request: JobRequest) -> Answer:
                """As who chooses a cluster would have it, of the queue as it is now."""
                queue = k.cluster_queue
                report, counted_as = await asyncio.to_thread(told_by, worker, queue)
                asks = asks_of(request, devices_of(nodes))
                return Quotas([report], counted_as).answer(queue, asks)

            async def starts(request: JobRequest, node: str, as_what: str, number: int) -> None:
                assert (await answer(request)).now
                await berlin.place(request, node, target=target)
                await berlin.until(request.id, "Running")
                used[as_what] += number

                def as_told() -> bool:
                    [flavor] = told_by(worker, k.cluster_queue)[0].flavors
                    return {name: flavor.resources[name].used for name in used} == used

                await eventually(lambda: asyncio.to_thread(as_told))

            async def waits(request: JobRequest, node: str) -> str:
                said = await answer(request)
                assert not said.now
                await berlin.place(request, node, target=target)
                workloads = f"{API}/namespaces/{namespace}/workloads"

                def pending() -> bool:
                    held = [
                        each
                        for each in worker.api.items(workloads)
                        if request.id in each["metadata"]["name"]
                    ]
                    return (
                        bool(held)
                        and (condition_of(held[0], "QuotaReserved") or {}).get("status") == "False"
                    )

                await eventually(lambda: asyncio.to_thread(pending))
                return said.never or said.lacks

            await starts(job("two", gpus=2, run_s="forever"), "n1", GPUS, 2)
            await starts(job("slice", run_s="forever", **slice_of), "n2", SLICES, 1)
            left = "no quota left: needs {} " + GPUS + ", 2 left"
            assert await waits(job("three", gpus=3), "n1") == left.format(3)
            never = f"ClusterQueue {k.cluster_queue} grants 4 {GPUS} at most, 5 are asked for"
            assert await waits(job("five", gpus=5), "n1") == never
            left = f"no quota left: needs 1 {SLICES}, 0 left"
            assert await waits(job("another", **slice_of), "n2") == left

"""Jobs of ours under KAI's own scheduler, binder, podgrouper and admission: whole GPUs, parts and
gangs are placed by it, and what it takes of a GPU is what our engine and inventory charge."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes, wait_open
from berthmaster.lab.controlplane.plane import Plane
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.accelerators.written import kai_groups
from berthmaster.lib.engine.fitting.fit import bind_one
from berthmaster.lib.engine.fleet.fleet import Fleet, Holding
from berthmaster.lib.engine.fleet.needs import suitable_nodes
from berthmaster.lib.engine.scoring.pod_mix import PodType
from berthmaster.lib.engine.scoring.value import NOT_HERE, score_nodes, worth_of
from berthmaster.lib.kube.controller.problems import Problems
from berthmaster.lib.messages.fleet import NodeReport, Stamp
from berthmaster.lib.messages.workload import Evicted, PodSet, Running
from berthmaster.worker.inventory.core.node_index import NodeIndex
from berthmaster.worker.inventory.core.objects import Node, Pod
from tests.bus.tools import eventually, story
from tests.cluster.executing import CLUSTER, Site, job, site
from tests.cluster.real_kai import QUEUE, WHY_NOT, Kai, is_named, kai
from tests.cluster.test_executor_rights import with_its_role

pytestmark = [
    pytest.mark.skipif(not is_named(), reason=WHY_NOT),
]
H100_MIB = 81_559  # of which KAI hands out 81,500


@asynccontextmanager
async def under_kai(
    planes: Planes, namespace: str, folder: Path, *flags: str, nodes: tuple[int, ...] = (4,)
) -> AsyncIterator[tuple[Site, Kai]]:
    """An executor with its Role in a worker all of whose pods KAI schedules, with so many GPUs on
    each node, as its inventory would tell of them."""
    worker = planes.workers[0]
    made = [
        gpu_node(f"n{number}", gpus=gpus, memory_mib=H100_MIB)
        for number, gpus in enumerate(nodes, 1)
    ]
    wait_open(worker, make_nodes(worker, made))
    with kai(worker) as running:
        token = await asyncio.to_thread(with_its_role, worker, namespace)
        kubeconfig = worker.kubeconfig_with_token(token)
        flags = ("--scheduler", "kai-scheduler", *flags)
        async with site(worker, namespace, folder, *flags, kubeconfig=kubeconfig) as berlin:
            await berlin.tell(*await asyncio.to_thread(reports, worker))
            yield berlin, running


def reports(plane: Plane) -> list[NodeReport]:
    """What inventory makes of the nodes and all pods as they are now."""
    index = NodeIndex(CLUSTER, Problems())
    index.share_by_kai(True)
    for node in plane.api.items("/api/v1/nodes"):
        index.set_node(msgspec.convert(node, Node))
    for pod in plane.api.items("/api/v1/pods"):
        index.set_pod(msgspec.convert(pod, Pod))
    found = [index.report(name, Stamp(epoch=1, counter=1), 0.0) for name in index]
    return [one for one in found if one is not None]


async def placed(berlin: Site, name: str) -> list[str]:
    """The nodes of its pods, "" for one that has none."""
    found = await asyncio.to_thread(berlin.pods)
    mine = [
        one for one in found if one["metadata"]["labels"].get("berthmaster.io/workload") == name
    ]
    return sorted(one["spec"].get("nodeName", "") for one in mine)


async def one_of(berlin: Site, name: str) -> str:
    """A pod of its."""
    found = await asyncio.to_thread(berlin.pods)
    return next(
        str(one["metadata"]["name"])
        for one in found
        if one["metadata"]["labels"].get("berthmaster.io/workload") == name
    )


async def refused(berlin: Site, name: str) -> str:
    """Why KAI has no room for its pods, in its words."""
    said: list[str] = []

    async def there() -> bool:
        found = await asyncio.to_thread(berlin.pods)
        said[:] = [
            condition["message"]
            for one in found
            if one["metadata"]["labels"].get("berthmaster.io/workload") == name
            for condition in one["status"].get("conditions", ())
            if (condition["type"], condition["status"]) == ("PodScheduled", "False")
        ]
        return bool(said)

    await eventually(there)
    return said[0]


async def no_gpu_is_kept(berlin: Site, of: Kai) -> None:
    async def gone() -> bool:
        return not await asyncio.to_thread(of.keepers)

    await eventually(gone)


@story
async def test_whole_gpus_parts_and_gangs_run_and_end_and_no_gpu_stays_kept(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    async with under_kai(planes, namespace, tmp_path) as (berlin, of):
        half = PodSet(count=1, gpus=1, gpu_milli=500)
        requests = (
            job("whole", gpus=2),
            job("half", pod_sets=(half,)),
            job("memory", pod_sets=(replace(half, gpu_memory_mib=60_000),)),
            job("gang", count=4),
            job("parts", pod_sets=(replace(half, count=8),)),
            job("without", gpus=0, count=2),
        )
        for request in requests:
            await berlin.place(request, "n1")
        for request in requests:
            running = await berlin.until(request.id, "Running")
            assert isinstance(running, Running)
            assert [pod.node for pod in running.pods] == ["n1"] * request.pod_sets[0].count
            await berlin.until(request.id, "Succeeded")
            kinds = await berlin.kinds(request.id)
            assert [one for one in kinds if one != "Admitted"] == [
                "Claimed",
                "Running",
                "Succeeded",
            ]
        await no_gpu_is_kept(berlin, of)

        # The executor is killed while it runs: what KAI has written on the pods disturbs nobody.
        await berlin.place(job("long", pod_sets=(replace(half, count=3),), run_s="forever"), "n1")
        await berlin.until("long", "Running")
        berlin.restart()
        [report] = await asyncio.to_thread(reports, berlin.plane)
        assert sorted(Counter(use.gpus for use in report.pods).values()) == [1, 2]
        assert report.foreign.gpu_milli == 0
        await berlin.cancel("long")
        await berlin.until("long", "Cancelled")
        await no_gpu_is_kept(berlin, of)

        # Of two gangs that half fit one runs; of the other no pod has a node.
        await berlin.place(job("one", count=3, run_s="forever"), "n1")
        await berlin.until("one", "Running")
        await berlin.place(job("two", count=2, run_s="forever"), "n1")
        await refused(berlin, "two")
        assert await placed(berlin, "two") == ["", ""]
        await berlin.cancel("two")
        await berlin.until("two", "Cancelled")
        # One whose number varies starts with what it needs at least.
        await berlin.place(job("elastic", count=3, min_count=1, run_s="forever"), "n1")
        await eventually(lambda: _has(berlin, "elastic", ["", "", "n1"]))


def mixed() -> list[tuple[str, PodSet]]:
    """Parts of all sorts, until two GPUs are full and beyond, and whole ones between them."""

    def part(milli: int, memory_mib: int = 0) -> PodSet:
        return PodSet(count=1, gpus=1, gpu_milli=milli, gpu_memory_mib=memory_mib)

    sets = [
        part(300),
        part(10, 16_716),  # 0.2051 of what KAI hands out
        part(290),
        part(500, 40_779),  # half of the GPU and a little more than half of KAI's
        PodSet(count=1, gpus=1),
        part(10, 16_716),
        part(300),
        part(430),
        part(210, 12_000),
        part(290),
        PodSet(count=1, gpus=1),
        part(995),
        part(10, 81_530),  # more than KAI hands out: all of one
        part(10),
        part(70),
        part(80),
        part(10),
    ]
    return [(f"p{number}", pods) for number, pods in enumerate(sets)]


@story
async def test_kai_has_room_for_the_very_pods_that_the_engine_has_room_for_and_charges_as_much(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    async with under_kai(planes, namespace, tmp_path, nodes=(4,)) as (berlin, _):
        [report] = await asyncio.to_thread(reports, berlin.plane)
        fleet = Fleet()
        fleet.put_node(report)
        fleet.arrange()
        verdicts: list[tuple[str, bool, bool]] = []
        for name, pods in mixed():
            held = engine_places(fleet, pods)
            request = job(name, pod_sets=(pods,), run_s="forever")
            await berlin.place(request, "n1")
            has = await kai_places(berlin, name)
            verdicts.append((name, held is not None, has))
            assert verdicts[-1][1] == has, (verdicts, pods, await placed(berlin, name))
            if held is None:
                await berlin.cancel(name)
                await berlin.until(name, "Cancelled")
                continue
            fleet.lend((held,), +1)
            free = sorted(fleet.arrays.gpu[0].tolist())
            assert await asyncio.to_thread(left, berlin) == free, verdicts
            # The next look of the inventory, which knows nothing of what was decided.
            [report] = await asyncio.to_thread(reports, berlin.plane)
            taken = Counter[int]()
            for use in report.pods:
                taken.update(dict.fromkeys(use.gpus, use.gpu_milli))
            assert sorted(1000 - taken[gpu.index] for gpu in report.gpus) == free, verdicts
            assert report.foreign.gpu_milli == 0
        assert Counter(has for _, _, has in verdicts)[False] > 2  # it was full


def engine_places(fleet: Fleet, pods: PodSet) -> Holding | None:
    suitable = suitable_nodes(fleet, pods)
    # Of such a mix the engine would rather begin another GPU with a small part than KAI does.
    worth = worth_of(((PodType(1, 470, 0), 5), (PodType(1, 810, 0), 9), (PodType(1, 140, 0), 3)))
    if score_nodes(fleet, pods, suitable, worth, slice(0, 1))[0] == NOT_HERE:
        return None
    return bind_one(fleet, 0, pods, suitable, worth)[1]


async def kai_places(berlin: Site, name: str) -> bool:
    """Whether it runs; if not KAI has said that there is no room."""

    async def decided() -> bool:
        if "Running" in await berlin.kinds(name):
            return True
        found = await asyncio.to_thread(berlin.pods)
        return any(
            (condition["type"], condition["status"]) == ("PodScheduled", "False")
            for one in found
            if one["metadata"]["labels"].get("berthmaster.io/workload") == name
            for condition in one["status"].get("conditions", ())
        )

    await eventually(decided)
    if "Running" in await berlin.kinds(name):
        return True
    await asyncio.sleep(1)  # some of KAI's cycles
    return "Running" in await berlin.kinds(name)


def left(berlin: Site) -> list[int]:
    """What KAI has left of each of four GPUs, by what it wrote: each group's sharers have one, and
    whole ones are gone."""
    taken: Counter[str] = Counter()
    for pod in berlin.pods():
        told = pod["metadata"].get("annotations", {})
        if not pod["spec"].get("nodeName"):
            continue
        groups = kai_groups(pod["metadata"]["labels"])
        if "gpu-memory" in told:
            milli = -(-int(told["gpu-memory"]) * 1000 // (H100_MIB // 100 * 100))
        elif "gpu-fraction" in told:
            milli = round(float(told["gpu-fraction"]) * 1000)
        else:
            groups, milli = (pod["metadata"]["uid"],), 1000
        assert groups, pod["metadata"]
        taken.update(dict.fromkeys(groups, milli))
    assert len(taken) <= 4, taken
    return sorted([1000 - milli for milli in taken.values()] + [1000] * (4 - len(taken)))


@story
async def test_what_kai_takes_back_for_another_queue_is_evicted_and_never_who_may_not_be_ended(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    flags = ("--kai-queue", "ours")
    async with under_kai(planes, namespace, tmp_path, *flags) as (berlin, of):
        of.queue("team", parent="", gpus=4)
        for queue in ("ours", "theirs"):
            of.queue(queue, parent="team", gpus=2)
        kept = job("kept", count=2, run_s="forever")
        lent = job("lent", count=2, run_s="forever")
        for request in (replace(kept, preemptible=False), lent):
            await berlin.place(request, "n1")
            await berlin.until(request.id, "Running")

        claim = {"nvidia.com/gpu": "2"}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "claim", "labels": {"kai.scheduler/queue": "theirs"}},
            "spec": {
                "schedulerName": "kai-scheduler",
                "containers": [{"name": "x", "image": "x", "resources": {"limits": claim}}],
            },
        }
        berlin.plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod)
        taken = await berlin.until("lent", "Evicted")
        assert isinstance(taken, Evicted)
        # As installed it deletes pods and writes nothing on them.
        assert taken.reason.startswith("KAI took pods of it away: ")
        assert taken.fault == "evicted"
        assert (await berlin.kinds("kept"))[-1] == "Running"
        assert await placed(berlin, "kept") == ["n1", "n1"]
        # What a person deletes is none of KAI's doing.
        path = f"/api/v1/namespaces/{namespace}/pods/{await one_of(berlin, 'kept')}"
        berlin.plane.api.delete(path, gracePeriodSeconds=0)
        deleted = await berlin.until("kept", "Evicted")
        assert isinstance(deleted, Evicted)
        assert "KAI" not in deleted.reason


@story
async def test_what_its_queue_has_no_quota_for_is_given_back_in_kais_words(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    flags = ("--start-limit-s", "6")
    async with under_kai(planes, namespace, tmp_path, *flags) as (berlin, _):
        # The chart's queue has none: what may not be ended would need it.
        await berlin.place(replace(job("kept", run_s="forever"), preemptible=False), "n1")
        event = await berlin.until("kept", "Evicted")
        assert isinstance(event, Evicted)
        assert QUEUE in event.reason
        await berlin.place(job("big", gpus=5, run_s="forever"), "n1")
        event = await berlin.until("big", "Evicted")
        assert isinstance(event, Evicted)
        assert "requires GPU: 5" in event.reason
        assert event.fault == "late"


async def _has(berlin: Site, name: str, nodes: list[str]) -> bool:
    return await placed(berlin, name) == nodes

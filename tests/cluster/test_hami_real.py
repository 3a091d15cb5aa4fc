"""Parts of GPUs and whole ones under HAMi's own scheduler: what it writes that a pod has is what
the inventory, the engine and the log say of it, and it is full when the engine thinks so."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from berthmaster.control.resolver.core.known.knowledge import holdings_of
from berthmaster.lab.controlplane.nodes import gpu_node, make_nodes, remove_nodes, wait_open
from berthmaster.lab.controlplane.planes import Planes
from berthmaster.lib.accelerators.written import read_hami
from berthmaster.lib.engine.fitting.fit import bind_gang
from berthmaster.lib.engine.fleet.fleet import Fleet
from berthmaster.lib.engine.fleet.needs import suitable_nodes
from berthmaster.lib.engine.fleet.shares import part_of, share_for, takes_milli
from berthmaster.lib.lifecycle.workload import key
from berthmaster.lib.messages.fleet import NodeReport
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import JobRequest, PodSet, Running
from tests.bus.tools import eventually, story
from tests.cluster.claiming import reported
from tests.cluster.executing import CLUSTER, TENANT, Site, job, site
from tests.cluster.real_hami import (
    MEMORY_MIB,
    SCHEDULER,
    WHY_NOT,
    Hami,
    hami,
    hami_node,
    is_named,
    listed,
)

pytestmark = [
    pytest.mark.skipif(not is_named(), reason=WHY_NOT),
]
MIB: Final = MEMORY_MIB


@asynccontextmanager
async def under_hami(
    planes: Planes,
    namespace: str,
    folder: Path,
    *flags: str,
    nodes: Mapping[str, Sequence[Mapping[str, Any]]],
    plain: Sequence[str] = (),
    annotations: Mapping[str, str] = {},
) -> AsyncIterator[tuple[Site, Hami]]:
    """An executor in a worker whose nodes HAMi manages, ``plain`` ones aside."""
    worker = planes.workers[0]
    made = [hami_node(name, devices, annotations) for name, devices in nodes.items()]
    names = make_nodes(worker, [*made, *(gpu_node(name, gpus=2) for name in plain)])
    wait_open(worker, names)
    with hami(worker, list(nodes)) as running:
        try:
            async with site(worker, namespace, folder, *flags) as berlin:
                await berlin.tell(*(reported(worker, name) for name in names))
                yield berlin, running
        finally:
            remove_nodes(worker, names)


def gpus(node: str, count: int, **other: Any) -> list[dict[str, Any]]:
    return [listed(node, position, **other) for position in range(count)]


async def pods_of(berlin: Site, name: str) -> list[dict[str, Any]]:
    found = await asyncio.to_thread(berlin.pods)
    return [
        one for one in found if one["metadata"]["labels"].get("berthmaster.io/workload") == name
    ]


async def running_of(berlin: Site, name: str) -> tuple[PodBinding, ...]:
    event = await berlin.until(name, "Running")
    assert isinstance(event, Running)
    return event.pods


class Believer:
    """What the resolver believes of the nodes: reports of the inventory, and what the log says of
    where pods run."""

    def __init__(self, berlin: Site, nodes: Sequence[str]) -> None:
        self._berlin, self._nodes = berlin, nodes
        self.fleet = Fleet()
        self.reports: dict[str, NodeReport] = {}

    async def read(self) -> None:
        """As the inventory would tell it now."""
        for name in self._nodes:
            report = await asyncio.to_thread(reported, self._berlin.plane, name)
            self.reports[name] = report
            self.fleet.put_node(report)
        self.fleet.arrange()

    def place_of(self, pods: PodSet) -> PodBinding | None:
        """Where a pod would be put; None if there is no room."""
        suitable = suitable_nodes(self.fleet, pods)
        bound = bind_gang(self.fleet, 0, (pods,), (suitable,))
        return bound.bindings[0] if bound is not None else None

    def hold(self, request: JobRequest, pods: tuple[PodBinding, ...]) -> None:
        """As it is told that they run."""
        held = holdings_of(self.fleet, request, CLUSTER, pods)
        self.fleet.hold(key(TENANT, request.id), held)

    def free(self) -> dict[str, list[int]]:
        """Of each GPU, in thousandths."""
        slots = {name: self.fleet.slot(CLUSTER, name) for name in self._nodes}
        return {name: self.fleet.arrays.gpu[at].tolist() for name, at in slots.items()}


def milli_of(report: NodeReport, pods: PodSet) -> int:
    """What the engine charges of each GPU for one pod."""
    share = share_for(report.shares, pods)
    assert share is not None
    return takes_milli(share, part_of(pods), MIB) if pods.gpu_milli < 1000 else 1000


@story
async def test_what_hami_gives_is_what_is_charged_and_told(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    cases: dict[str, tuple[dict[str, Any], int, int]] = {  # memory in MiB, cores
        "third": ({"gpu_milli": 333}, MIB * 34 // 100, 34),
        "memory": ({"gpu_milli": 1, "gpu_memory_mib": 20_000}, 20_000, 25),
        "held": ({"gpu_milli": 400, "isolation": "memory"}, MIB * 40 // 100, 40),
        "small": ({"gpu_milli": 20}, MIB * 10 // 100, 10),
        "most": ({"gpu_milli": 995}, MIB, 100),
        "whole": ({}, MIB, 100),
        "two": ({"gpus": 2}, MIB, 100),
    }
    nodes = {"h1": gpus("h1", 8)}
    async with under_hami(planes, namespace, tmp_path, nodes=nodes) as (berlin, _):
        believer = Believer(berlin, ["h1"])
        for name, (fields, memory_mib, cores) in cases.items():
            pods = PodSet(**{"gpus": 1, **fields})
            request = job(name, pod_sets=(pods,), run_s="forever")
            await berlin.place(request, "h1")
            [binding] = await running_of(berlin, name)
            [pod] = await pods_of(berlin, name)
            assert pod["spec"]["schedulerName"] == SCHEDULER
            uses = read_hami(pod["metadata"]["annotations"]).uses
            assert {(use.memory_mib, use.cores_percent) for use in uses} == {(memory_mib, cores)}
            assert len(uses) == pods.gpus

            # Its node tells the same GPUs, and so does the log: the engine holds what is held.
            await believer.read()
            report = believer.reports["h1"]
            uuids = {gpu.uuid: gpu.index for gpu in report.gpus}
            had = tuple(sorted(uuids[use.uuid] for use in uses))
            [use] = [one for one in report.pods if one.workload == name]
            charged = milli_of(report, pods)
            assert (use.gpus, use.gpu_milli) == (had, charged)
            assert binding.gpus == had
            before = believer.free()["h1"]
            believer.hold(request, (binding,))
            after = believer.free()["h1"]
            assert [b - a for b, a in zip(before, after, strict=True)] == [
                charged if at in had else 0 for at in range(8)
            ]


@story
async def test_hami_is_full_when_the_engine_thinks_so_pod_by_pod(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    """Two nodes of two GPUs; sizes come round until none fits any more."""
    sizes: list[dict[str, Any]] = [
        {"gpu_milli": 500},
        {"gpu_milli": 30},
        {"gpu_milli": 340},
        {},
        {"gpu_milli": 1, "gpu_memory_mib": 30_000},
        {"gpu_milli": 125},
    ]
    nodes = {name: gpus(name, 2) for name in ("h1", "h2")}
    async with under_hami(planes, namespace, tmp_path, nodes=nodes) as (berlin, _):
        believer = Believer(berlin, list(nodes))
        await believer.read()
        left = list(range(len(sizes)))
        taken = refused = number = 0
        while left:
            for size in list(left):
                number += 1
                pods = PodSet(**{"gpus": 1, **sizes[size]})
                request = job(f"j{number}", pod_sets=(pods,), run_s="forever")
                place = believer.place_of(pods)
                await berlin.place(request, place.node if place is not None else "h1")
                if place is not None:
                    taken += 1
                    believer.hold(request, await running_of(berlin, request.id))
                else:
                    refused += 1
                    left.remove(size)
                    await until_refused(berlin, request.id)
                    await berlin.cancel(request.id)
                    await berlin.until(request.id, "Cancelled")
        assert refused == len(sizes)
        free = believer.free()
        await believer.read()  # what pods really hold comes to the same
        for name, report in believer.reports.items():
            held = [1000] * 2
            for use in report.pods:
                for at in use.gpus:
                    held[at] -= use.gpu_milli
            assert held == free[name]
        assert sum(map(sum, free.values())) < 400  # little is left: that was a real fit


async def until_refused(berlin: Site, name: str) -> None:
    """Until the scheduler says that no node has room for it."""

    async def said() -> bool:
        for pod in await pods_of(berlin, name):
            assert not pod["spec"].get("nodeName"), (name, pod["metadata"]["annotations"])
            for one in pod["status"].get("conditions", ()):
                if (one["type"], one.get("reason")) == ("PodScheduled", "Unschedulable"):
                    return True
        return False

    await eventually(said)


@story
async def test_nodes_beside_hamis_are_kube_schedulers_and_hamis_are_not(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    nodes = {"h1": gpus("h1", 2)}
    async with under_hami(planes, namespace, tmp_path, nodes=nodes, plain=("p1",)) as (berlin, _):
        # HAMi knows no other nodes than its own, and its admission takes every pod with GPUs.
        await berlin.place(job("plain", gpus=2, run_s="forever"), "p1")
        assert [pod.node for pod in await running_of(berlin, "plain")] == ["p1"]
        await berlin.place(job("hamis", gpus=1, run_s="forever"), "h1")
        assert [pod.node for pod in await running_of(berlin, "hamis")] == ["h1"]

        # To kube-scheduler a node of HAMi's has room for ten a GPU; nothing would start there.
        await berlin.place(job("waits", gpus=1, run_s="forever"), "p1")
        await until_refused(berlin, "waits")


@story
async def test_a_gpu_takes_no_more_pods_than_it_is_split_for_and_none_if_it_is_ill_or_cordoned(
    planes: Planes, namespace: str, tmp_path: Path
) -> None:
    """Three small parts fill a GPU of three; of the others one is ill and one cordoned."""
    nodes = {"h1": [listed("h1", at, count=3, health=at != 0) for at in range(3)]}
    cordoned = {"hami.io/device-cordon": "GPU-h1-2"}  # since HAMi 2.10
    async with under_hami(planes, namespace, tmp_path, nodes=nodes, annotations=cordoned) as (
        berlin,
        _,
    ):
        believer = Believer(berlin, ["h1"])
        await believer.read()
        for number in range(4):
            request = job(f"j{number}", gpu_milli=20, run_s="forever")
            [pods] = request.pod_sets
            place = believer.place_of(pods)
            await berlin.place(request, "h1")
            if number == 3:
                assert place is None
                await until_refused(berlin, request.id)
                break
            assert place is not None
            bindings = await running_of(berlin, request.id)
            assert place.gpus == bindings[0].gpus == (1,)
            believer.hold(request, bindings)

"""A worker cluster that is no more than its messages: facts and events written by hand.

It uses the emulator's user, as whoever runs a worker cluster would use one of its own.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from berthmaster.bus import subjects
from berthmaster.bus.door_client import DoorClient, Heard
from berthmaster.bus.door_facts import DoorFacts
from berthmaster.client import Client
from berthmaster.lifecycle.instructions import Stored
from berthmaster.messages.fleet import (
    Amounts,
    ClusterAlive,
    ClusterProfile,
    GpuDevice,
    NodeReport,
    PodUse,
)
from berthmaster.messages.workload import Claimed, Placed, Running, WorkloadEvent
from tests.support.patience import hang_s

MODEL = "H200"
ALIVE_S = 0.3


@dataclass
class Forged:
    """One such cluster."""

    name: str
    door: DoorClient
    writer: DoorFacts
    breath: "asyncio.Task[None] | None" = None

    async def node(self, node: str, gpus: int, pods: Sequence[PodUse] = ()) -> None:
        """Report one node."""
        report = NodeReport(
            cluster=self.name,
            node=node,
            stamp=self.writer.stamp(),
            observed_at_s=0.0,
            allocatable=Amounts(cpu_milli=64_000, memory_mib=262_144, gpu_milli=1000 * gpus),
            gpus=tuple(
                GpuDevice(index=index, uuid=f"{node}-{index}", model=MODEL, memory_mib=143_360)
                for index in range(gpus)
            ),
            pods=tuple(pods),
        )
        await self.writer.put(subjects.node(self.name, node), report)

    async def breathe(self) -> None:
        """Give a sign of life again and again."""
        while True:
            alive = ClusterAlive(
                cluster=self.name,
                stamp=self.writer.stamp(),
                observed_at_s=0.0,
                interval_s=ALIVE_S,
            )
            await self.writer.put(subjects.alive(self.name), alive)
            await asyncio.sleep(ALIVE_S)

    def fall_silent(self) -> None:
        """No sign of life from now on."""
        if self.breath is not None:
            self.breath.cancel()

    async def start(self, workload: str) -> Placed:
        """Do what an executor does with the placement that this cluster was given."""
        placed, sequence = await self.placement(workload)
        claimed = Claimed(**common(placed), executor="by-hand", after=sequence)
        running = Running(**common(placed), pods=placed.pods, after=await self.append(claimed))
        await self.append(running)
        return placed

    async def placement(self, workload: str) -> tuple[Placed, int]:
        """The placement of a job here, once it is there, and its sequence."""
        found: asyncio.Future[tuple[Placed, int]] = asyncio.get_running_loop().create_future()

        def heard(news: Heard) -> None:
            for event, sequence, _, _ in news.hints:
                if isinstance(event, Placed) and event.id == workload and not found.done():
                    found.set_result((event, sequence))

        following = asyncio.create_task(self.door.follow(heard))
        try:
            async with asyncio.timeout(hang_s()):
                return await found
        finally:
            following.cancel()
            await asyncio.wait({following})

    async def append(self, event: WorkloadEvent) -> int:
        """Store an event; its sequence."""
        outcome = await self.door.append(event)
        assert isinstance(outcome, Stored), outcome
        return outcome.sequence


def common(placed: Placed) -> dict[str, Any]:
    """What the executor's events of an attempt have in common."""
    return {
        "tenant": placed.tenant,
        "id": placed.id,
        "at_s": 0.0,
        "by": "by-hand",
        "cluster": placed.cluster,
        "attempt": placed.attempt,
    }


@asynccontextmanager
async def forged(user: Client, name: str, **nodes: int) -> AsyncIterator[Forged]:
    """A cluster that is alive within the block, with nodes of so many GPUs."""
    door = DoorClient(user.connection, name)
    writer = DoorFacts(door)
    await writer.begin()
    cluster = Forged(name, door, writer)
    profile = ClusterProfile(
        cluster=name, stamp=writer.stamp(), observed_at_s=0.0, gpus={MODEL: sum(nodes.values())}
    )
    await writer.put(subjects.profile(name), profile)
    for node, gpus in nodes.items():
        await cluster.node(node, gpus)
    cluster.breath = asyncio.create_task(cluster.breathe())
    try:
        yield cluster
    finally:
        cluster.breath.cancel()
        await asyncio.gather(cluster.breath, return_exceptions=True)

"""A worker cluster that is no more than its messages: facts and events written by hand.

It uses the emulator's user, as whoever runs a worker cluster would use one of its own.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from berthmaster.bus import subjects
from berthmaster.bus.facts import FactWriter
from berthmaster.bus.log import EventLog, decode_story
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

MODEL = "H200"
ALIVE_S = 0.3


@dataclass
class Forged:
    """One such cluster."""

    name: str
    user: Client
    writer: FactWriter
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
        placed = await self.placement(workload)
        claimed = Claimed(**common(placed), executor="by-hand", after=await self.last(workload))
        running = Running(**common(placed), pods=placed.pods, after=await self.append(claimed))
        await self.append(running)
        return placed

    async def placement(self, workload: str, limit_s: float = 10.0) -> Placed:
        """The placement of a job here, once it is there: the newest on this cluster's subject."""
        subject = subjects.workload_events_in(self.name, "placed")
        async with asyncio.timeout(limit_s):
            while True:
                for message in await EventLog(self.user.connection).story("default", workload):
                    if message.subject == subject.replace("*.*", f"default.{workload}"):
                        (recorded,) = decode_story([message])
                        assert isinstance(recorded.event, Placed)
                        return recorded.event
                await asyncio.sleep(0.05)

    async def last(self, workload: str) -> int:
        """The sequence of a job's last event."""
        return (await EventLog(self.user.connection).story("default", workload))[-1].sequence

    async def append(self, event: WorkloadEvent) -> int:
        """Store an event; its sequence."""
        outcome = await EventLog(self.user.connection).append(event)
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
    writer = FactWriter(user.connection)
    await writer.begin(subjects.fleet_of(name))
    cluster = Forged(name, user, writer)
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

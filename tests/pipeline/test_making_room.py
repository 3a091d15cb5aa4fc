"""A queue gets back what it is guaranteed, whoever is killed meanwhile."""

import asyncio
from contextlib import aclosing
from pathlib import Path

from berthmaster.audit.report import audit
from berthmaster.client import Client
from berthmaster.messages.control import QueueSetting
from berthmaster.messages.fleet import NodeReport
from berthmaster.messages.workload import EvictionRequested, JobRequest, PodSet
from tests.pipeline.chaos import Rig, repeats, rig

LIMIT_S = 40.0


async def until(berth: Client, state: str, *names: str) -> None:
    """All of these are in this state."""
    async with asyncio.timeout(LIMIT_S):
        while any([(await berth.get(name)).workload.state != state for name in names]):
            await asyncio.sleep(0.05)


async def ordered(berth: Client, since: int, number: int) -> list[str]:
    """Who is told to make room, the first of them."""
    found: list[str] = []
    async with asyncio.timeout(LIMIT_S), aclosing(berth.watch(since=since)) as events:
        async for seen in events:
            if isinstance(seen.event, EvictionRequested):
                found.append(seen.event.id)
            if len(found) == number:
                break
    return found


def asked(name: str, gpus: int, queue: str = "default") -> JobRequest:
    pods = PodSet(gpus=gpus, cpu_milli=100, memory_mib=64)
    return JobRequest(id=name, queue=queue, pod_sets=(pods,), expected_duration_s=1e7)


async def story(up: Rig) -> None:
    async with up.client() as berth:
        facts = [seen.fact for seen in await berth.fleet(nodes=True)]
        gpus = sum(len(fact.gpus) for fact in facts if isinstance(fact, NodeReport))
        lent = [f"lent-{n}" for n in range(gpus)]
        for name in lent:
            await berth.submit(asked(name, 1))
        await until(berth, "running", *lent)

        await berth.set_queue(QueueSetting(queue="prod", guarantee_gpu_milli=2000))
        since = await berth.last_sequence()
        await berth.submit(asked("mine", 2, "prod"))
        moved = await ordered(berth, since, 2)
        # Those who decide and those who end the pods die in the middle of it.
        await up.kill("resolver", "emulator", "door")
        await until(berth, "running", "mine")
        await until(berth, "queued", *moved)
        assert len(set(moved)) == 2, moved
        await until(berth, "running", *(name for name in lent if name not in moved))

        await berth.cancel("mine")
        await until(berth, "running", *lent)  # they start again
        report = await audit(berth.connection)
        assert (report.findings, report.accounted, report.evictions) == ((), True, 2), report
        await repeats(berth)


def test_a_guarantee_comes_back_from_those_who_borrowed_it_whoever_is_killed(
    tmp_path: Path,
) -> None:
    with rig(tmp_path / "up", "--clusters", "1", "--nodes", "2") as up:
        asyncio.run(story(up))

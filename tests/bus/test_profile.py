"""A job's profile on a real bus: from what an agent reports, by the door and the usage service, to
what `berth profile` shows."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from berthmaster.control.usage.service import main as usage_main
from berthmaster.control.usage.settings import UsageSettings
from berthmaster.lib.door_client.client import DoorClient
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.door import LogEndRequest, PodLogEnd
from berthmaster.lib.messages.families import encode
from berthmaster.lib.messages.profile import AttemptProfile, Profile, ProfileRequest
from berthmaster.lib.messages.telemetry import GpuUse, HostUse, JobFigures
from berthmaster.lib.messages.workload import Progress, Progressed
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.runtime.service import Context
from berthmaster.lib.supervisor.embedded import Server
from tests.bus.doors import door
from tests.bus.shells import ask, client, in_loop, running, store
from tests.support.patience import eventually
from tests.unit.control.usage.stories import Story

BUSY = GpuUse(
    gpus=2,
    measured=2,
    utilization_percent=96.0,
    utilization_max_percent=100.0,
    sm_active_percent=90.0,
    dram_active_percent=82.0,
    tensor_active_percent=10.0,
    memory_max_percent=99.0,
    memory_used_mib=80_000,
    power_w=600.0,
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "nats") as started:
        yield started


@asynccontextmanager
async def usage(url: str, folder: Path) -> AsyncIterator[Context[UsageSettings]]:
    settings = UsageSettings(nats_url=url, http_port=-1, store_dir=folder)
    async with running("usage", settings, usage_main) as ctx:
        yield ctx


class Job:
    """One job that is told of by its cluster's agent, and its story in the log."""

    def __init__(self, conn: Connection, name: str) -> None:
        self.conn, self.name = conn, name
        self.story = Story(name, tenant="acme")
        self._told = 0
        self._after = 0
        self._counter = 0

    async def tell(self) -> None:
        """What of the story is not in the log yet."""
        for recorded in self.story.events[self._told :]:
            event = msgspec.structs.replace(recorded.event, after=self._after)
            self._after = await store(self.conn, event)
        self._told = len(self.story.events)

    async def runs(self) -> None:
        self.story.submitted(0).placed(0).claimed(0).running(0)
        await self.tell()

    async def steps(self, *steps: int) -> None:
        for step in steps:
            fields = self.story._head() | self.story._at()
            progress = Progress(step=step, loss=1.0 / step)
            self.story._store(Progressed(**fields, progress=progress), 0.0)
        await self.tell()

    def figures(self, *, cluster: str = "c1", ended: bool = False, **host: float) -> bytes:
        self._counter += 1
        usual: dict[str, float] = {"cpu_cores": 3.0, "memory_mib": 8192.0} | host
        told = JobFigures(
            cluster=cluster,
            tenant="acme",
            id=self.name,
            attempt=1,
            epoch=1,
            counter=self._counter,
            observed_at_s=0.0,
            pods=1,
            use=BUSY,
            host=HostUse(pods=1, **usual),
            ended=ended,
        )
        return encode(told)


async def profile(conn: Connection, name: str, *, like: bool = False) -> Profile:
    reply: Any = await ask(conn, "profile", ProfileRequest(id=name, like=like), tenant="acme")
    assert isinstance(reply, Profile), reply
    return reply


async def measured_until(conn: Connection, name: str, seconds: float) -> AttemptProfile:
    found: list[AttemptProfile] = []

    async def there() -> bool:
        reply: Any = await ask(conn, "profile", ProfileRequest(id=name), tenant="acme")
        found[:] = reply.attempts if isinstance(reply, Profile) else ()
        return bool(found) and found[0].measured_s >= seconds

    await eventually(there, f"{seconds:g} s measured", moves=lambda: len(found))
    return found[0]


@in_loop
async def test_profile_goes_from_an_agent_to_what_a_user_reads(
    server: Server, tmp_path: Path
) -> None:
    async with (
        client(server.url) as conn,
        door(server.url) as of_door,
        usage(server.url, tmp_path),
    ):
        agent, stranger = DoorClient(conn, "c1"), DoorClient(conn, "c2")
        train = Job(conn, "train")
        await train.runs()
        await train.steps(100, 200)
        refused = of_door.metrics.registry.get_sample_value
        sent = 0

        async def reported() -> bool:  # the door may not have read of the attempt yet
            nonlocal sent
            sent += 1
            await stranger.figures(train.figures(cluster="c2", cpu_cores=900.0))
            await agent.figures(train.figures(cpu_cores=1e12))  # no node has that
            await agent.figures(train.figures())
            reply: Any = await ask(conn, "profile", ProfileRequest(id="train"), tenant="acme")
            return isinstance(reply, Profile) and any(one.measured_s for one in reply.attempts)

        await eventually(reported, "the first half minute", moves=lambda: sent)
        one = await measured_until(conn, "train", 60.0)
        assert (one.cluster, one.end, one.gpus, one.bound_by) == ("c1", "", 2, "memory")
        assert one.shares["memory"] == pytest.approx(0.82, abs=0.01)
        assert one.metrics["cpu_cores"].peak == 3.0  # neither the absurd value nor the stranger's
        assert (refused("berth_door_figures_values_refused_total") or 0) >= 1

        async def stepped() -> bool:
            results = (await profile(conn, "train")).attempts[0].results
            return results is not None and (results.first_step, results.last_step) == (100, 200)

        await eventually(stepped, "its steps", moves=lambda: 0)

        train.story.failed(0, fault="exit")
        end = PodLogEnd(
            tenant="acme", id="train", attempt=1, data=b"x RuntimeError: CUDA out of memory.\n"
        )
        await agent.ask("log_end", LogEndRequest(ends=(end,)))
        await train.tell()

        async def told_apart() -> bool:
            (attempt,) = (await profile(conn, "train")).attempts
            return attempt.fault == "gpu_out_of_memory"

        await eventually(told_apart, "the cause of the failure", moves=lambda: 0)
        (attempt,) = (await profile(conn, "train")).attempts
        assert (attempt.end, attempt.evidence) == ("failed", ("log", "memory"))

        # Another one like it waits still; a third is nobody's.
        again = Job(conn, "again")
        again.story.submitted(0)
        await again.tell()

        async def has_likes() -> bool:
            like = (await profile(conn, "again", like=True)).like
            return like is not None and like.faults == {"gpu_out_of_memory": 1}

        await eventually(has_likes, "what jobs like it did", moves=lambda: 0)
        refusal = await ask(conn, "profile", ProfileRequest(id="nobody"), tenant="acme")
        assert isinstance(refusal, Refusal)
        assert (refusal.code, refusal.field) == ("not_found", "id")

        shown = await berth(server.url, "profile", "train")
        assert "Bound by memory" in shown
        assert "gpu out of memory" in shown
        likes = json.loads(await berth(server.url, "profile", "--like", "again", "--json"))
        assert likes["like"]["jobs"] == 1


@in_loop
async def test_profile_survives_a_restart_of_the_usage_service(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("berthmaster.control.usage.core.profiles.WRITE_EVERY_S", 0.1)
    async with client(server.url) as conn, door(server.url):
        agent, job = DoorClient(conn, "c1"), Job(conn, "train")
        await job.runs()
        async with usage(server.url, tmp_path) as ctx:
            sent = 0

            async def reported() -> bool:
                nonlocal sent
                sent += 1
                await agent.figures(job.figures())
                reply: Any = await ask(conn, "profile", ProfileRequest(id="train"), tenant="acme")
                return isinstance(reply, Profile) and any(one.measured_s for one in reply.attempts)

            await eventually(reported, "the first half minute", moves=lambda: sent)
            value = ctx.metrics.registry.get_sample_value
            before = value("berth_usage_store_writes_total") or 0
            await eventually(
                lambda: _true((value("berth_usage_store_writes_total") or 0) > before + 2),
                "the store is written",
                moves=lambda: value("berth_usage_store_writes_total") or 0,
            )
            kept_s = (await profile(conn, "train")).attempts[0].measured_s
        async with usage(server.url, tmp_path):
            assert (await measured_until(conn, "train", kept_s)).measured_s == kept_s


async def _true(value: bool) -> bool:
    return value


async def berth(url: str, *words: str) -> str:
    """What the command writes."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "berthmaster.cli.main",
        *words,
        "--server",
        url,
        "--tenant",
        "acme",
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output
    return output.decode()

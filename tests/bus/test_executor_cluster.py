"""Executors of emulated clusters on a real server: from ``placed`` to the ending, whatever dies."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from berthmaster.lab.emulator.cluster import EmulatedCluster
from berthmaster.lab.emulator.disturbance import Nature
from berthmaster.lab.emulator.fleets import ClusterSpec, NodeSpec
from berthmaster.lab.emulator.host import Host
from berthmaster.lab.emulator.journal import Journal, read_journal
from berthmaster.lab.emulator.reporter import Reporter
from berthmaster.lib.door_client.client import DoorClient
from berthmaster.lib.event_log.workload_log import EventLog, decode_story
from berthmaster.lib.lifecycle.fold import offer
from berthmaster.lib.lifecycle.instructions import Stored
from berthmaster.lib.lifecycle.workload import Workload, request_digest
from berthmaster.lib.messages.fleet import ClusterAlive, ClusterProfile, NodeGone, NodeReport
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import (
    JobRequest,
    Placed,
    PodSet,
    Submitted,
    Succeeded,
    WorkloadEvent,
)
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.fact_stamps import Seen
from berthmaster.lib.nats.facts import FactMirror
from berthmaster.lib.nats.streams import WORKLOADS, stream_info
from berthmaster.lib.supervisor.embedded import Server
from berthmaster.worker.executor.core.executor import Executor
from berthmaster.worker.executor.shell import Shell
from tests.bus.doors import with_door
from tests.bus.tools import eventually, story, task
from tests.support.patience import hang_s, until

BERLIN = "berlin west.1"  # a name that is no token of a subject
SPEC = ClusterSpec(
    BERLIN, "eu-central", tuple(NodeSpec(f"n{i}", 64_000, 262_144, 8, "T4") for i in range(4))
)
GPU_0 = PodBinding(pod="main-0", node="n0", gpus=(0,))


class Site:
    """The log as the rest of the system would write it, and how it reads."""

    def __init__(self, conn: Connection) -> None:
        self.log = EventLog(conn)

    async def append(self, event: WorkloadEvent) -> int:
        outcome = await self.log.append(event)
        assert isinstance(outcome, Stored), outcome
        return outcome.sequence

    async def place(
        self,
        name: str,
        *,
        lasts_s: float = 0.3,
        pod: PodBinding = GPU_0,
        told: bool = True,
        max_evictions: int = 10,
    ) -> int:
        """Submitted and placed; ``told``: the placement says when it was submitted."""
        request = JobRequest(
            id=name,
            pod_sets=(PodSet(gpus=1),),
            expected_duration_s=lasts_s,
            max_evictions=max_evictions,
        )
        submitted = await self.append(
            Submitted(
                tenant="acme",
                id=name,
                after=0,
                at_s=1.0,
                by="gw",
                request=request,
                digest=request_digest(request),
            )
        )
        return await self.append(
            Placed(
                tenant="acme",
                id=name,
                after=submitted,
                at_s=2.0,
                by="resolver",
                cluster=BERLIN,
                attempt=1,
                pods=(pod,),
                request=request,
                decision=1,
                submitted_at_s=1.5 if told else 0.0,
            )
        )

    async def events(self, name: str) -> list[WorkloadEvent]:
        return [one.event for one in decode_story(await self.log.story("acme", name))]

    async def kinds(self, name: str) -> list[str]:
        return [type(event).__name__ for event in await self.events(name)]

    async def read(self, name: str) -> Workload:
        workload = Workload(tenant="acme", id=name)
        for one in decode_story(await self.log.story("acme", name)):
            offer(workload, one.event, one.sequence, one.stored_at_s)
        return workload

    async def ends(self, name: str, *kinds: str) -> None:
        """Wait until its story is just this, after submitted and placed."""
        wanted = ["Submitted", "Placed", *kinds]

        async def there() -> bool:
            return len(await self.kinds(name)) >= len(wanted)

        await eventually(there)
        assert await self.kinds(name) == wanted


@asynccontextmanager
async def executing(
    conn: Connection, journal: Path | None = None, nature: Nature | None = None
) -> AsyncIterator[Host]:
    """An executor and its cluster; leaving ends both at once, as a kill would."""
    file = Journal(journal) if journal is not None else None
    records = read_journal(journal) if journal is not None else []
    cluster = EmulatedCluster(SPEC, nature or Nature(), conn.now(), records)
    cluster.take_journal()
    if file is not None:
        file.begin(cluster.world.snapshot())
    host = Host(cluster, file, conn.now)
    shell = Shell(DoorClient(conn, BERLIN), Executor(BERLIN), host, service="executor")
    async with task(shell.run(asyncio.Event())):
        try:
            yield host
        finally:
            host.stop()
            if file is not None:
                file.close()


def idle(host: Host) -> bool:
    world = host.cluster.world
    return not world.groups and all(not node.pods for node in world.nodes.values())


@story
async def test_placement_runs_to_ending_with_tombstone_fields(server: Server) -> None:
    async with with_door(server.url) as conn, executing(conn) as host:
        site = Site(conn)
        await site.place("train")
        await site.ends("train", "Claimed", "Running", "Succeeded")
        ending = (await site.events("train"))[-1]
        assert isinstance(ending, Succeeded)
        workload = await site.read("train")
        assert (ending.digest, ending.submitted_at_s) == (workload.digest, 1.5)
        assert workload.pods == (GPU_0,)
        await until(lambda: idle(host))


@story
async def test_pods_outlive_executor_and_endings_follow(server: Server, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    async with with_door(server.url) as conn:
        site = Site(conn)
        async with executing(conn, journal):
            await site.place("short", lasts_s=0.5)
            await site.place("long", lasts_s=2.0, pod=PodBinding(pod="main-0", node="n1"))
            await site.ends("short", "Claimed", "Running")
            await site.ends("long", "Claimed", "Running")
        await asyncio.sleep(0.6)
        assert (await site.kinds("short"))[-1] == "Running"
        async with executing(conn, journal) as host:
            await site.ends("short", "Claimed", "Running", "Succeeded")
            assert [attempt.id for attempt in host.cluster.world.groups] == ["long"]
            await site.ends("long", "Claimed", "Running", "Succeeded")
            await until(lambda: idle(host))


@story
async def test_executor_without_bus_reports_endings_later(server: Server) -> None:
    async with with_door(server.url) as conn, executing(conn) as host:
        site = Site(conn)
        await site.place("short", lasts_s=0.5)
        await site.place("long", lasts_s=4.0, pod=PodBinding(pod="main-0", node="n1"))
        await site.ends("short", "Claimed", "Running")
        await site.ends("long", "Claimed", "Running")
        server.kill()
        await asyncio.sleep(1.0)  # the short one ends meanwhile
        assert {attempt.id for attempt in host.cluster.world.groups} == {"short", "long"}
        server.start()
        await site.ends("short", "Claimed", "Running", "Succeeded")
        assert await site.kinds("long") == ["Submitted", "Placed", "Claimed", "Running"]
        await site.ends("long", "Claimed", "Running", "Succeeded")
        await until(lambda: idle(host))


@story
async def test_reporter_publishes_profile_nodes_and_removals(server: Server) -> None:
    async with with_door(server.url) as conn:
        seen: dict[str, list[object]] = {}

        def take(one: Seen) -> None:
            seen.setdefault(one.subject, []).append(one.fact)

        mirror = FactMirror(conn, "test", [subjects.fleet_of(BERLIN)], on_fact=take)
        async with task(mirror.run()), executing(conn) as host:
            async with (
                reporting(conn, host) as reporter,
                task(reporter.keep_alive(asyncio.Event())),
            ):
                await until(lambda: len(seen) == 6)  # profile, alive, four nodes
                assert isinstance(seen[subjects.profile(BERLIN)][-1], ClusterProfile)
                assert isinstance(seen[subjects.alive(BERLIN)][-1], ClusterAlive)
                await Site(conn).place("train", lasts_s=0.5)
                node = subjects.node(BERLIN, "n0")
                await until(lambda: [u.workload for u in report(seen[node]).pods] == ["train"])
                await until(lambda: report(seen[node]).pods == ())
                assert report(seen[subjects.node(BERLIN, "n3")]).stamp.epoch > 0

            # The next life has a node less.
            smaller = EmulatedCluster(SPEC._replace(nodes=SPEC.nodes[:3]), Nature(), conn.now())
            async with reporting(conn, Host(smaller, None, conn.now)):
                gone = subjects.node(BERLIN, "n3")
                await until(lambda: isinstance(seen[gone][-1], NodeGone))


@asynccontextmanager
async def reporting(conn: Connection, host: Host) -> AsyncIterator[Reporter]:
    reporter = Reporter(
        DoorClient(conn, BERLIN), host, report_interval_s=0.05, report_rate_per_s=1000, seed=1
    )
    async with task(reporter.run(asyncio.Event())):
        yield reporter


def report(facts: list[object]) -> NodeReport:
    assert isinstance(facts[-1], NodeReport)
    return facts[-1]


def emulator(server: Server, folder: Path) -> "subprocess.Popen[bytes]":
    """The service as a process of its own."""
    flags = ["--nats-url", server.url, "--nodes", "40", "--http-port", "-1"]
    flags += ["--data-dir", str(folder), "--speed", "10", "--foreign-share", "0"]
    flags += ["--failure-share", "0", "--disturbance", "0"]
    command = [sys.executable, "-m", "berthmaster.cli.main", "serve", "emulator", *flags]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


@story
async def test_emulator_killed_ends_each_job_once(server: Server, tmp_path: Path) -> None:
    async with with_door(server.url) as conn:
        site = Site(conn)
        names = [f"job-{i}" for i in range(60)]
        running = emulator(server, tmp_path)
        try:
            for number, name in enumerate(names):
                await place_on(site, name, number)
                if number in (15, 30, 45):
                    running.kill()
                    running.wait()
                    running = emulator(server, tmp_path)
            running.send_signal(signal.SIGSTOP)
            await asyncio.sleep(0.3)
            running.send_signal(signal.SIGCONT)

            async def all_ended() -> bool:
                return all([(await site.read(name)).ended for name in names])

            await eventually(all_ended)
            for name in names:
                kinds = [k for k in await site.kinds(name) if k != "Running"]
                assert kinds == ["Submitted", "Placed", "Claimed", "Succeeded"], name
        finally:
            running.terminate()
            assert running.wait(timeout=hang_s()) == os.EX_OK
        assert (await stream_info(conn, WORKLOADS)).state.messages <= 5 * len(names)


async def place_on(site: Site, name: str, number: int) -> None:
    """A small job of half a second on a GPU that it shares with nobody else's placement."""
    request = JobRequest(
        id=name,
        pod_sets=(PodSet(gpus=1, gpu_milli=100, cpu_milli=100, memory_mib=10),),
        expected_duration_s=5.0,
    )
    submitted = await site.append(
        Submitted(
            tenant="acme",
            id=name,
            after=0,
            at_s=1.0,
            by="gw",
            request=request,
            digest=request_digest(request),
        )
    )
    await site.append(
        Placed(
            tenant="acme",
            id=name,
            after=submitted,
            at_s=2.0,
            by="resolver",
            cluster="g3",
            attempt=1,
            pods=(PodBinding(pod="main-0", node="g3-0001", gpus=(number % 8,)),),
            request=request,
            decision=1,
            submitted_at_s=1.5,
        )
    )

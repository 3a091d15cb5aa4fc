"""Each outage alone under a stream of jobs: how long nobody was answered, and until work went on.

In each scenario a `berth up` of its own suffers one thing, nobody helps it, and at the end every
acknowledged job is accounted for: the auditor finds nothing, no job is missing, none ended
otherwise than well, nothing that ran was touched, every decision can be repeated (what
tests/pipeline/chaos.py asserts). One alone is run by its name: `scripts/bench chaos:panic`. Damage
of the log needs a person, and is in tests/bus/test_log_damage.py.
"""

import asyncio
import math
import os
import re
import resource
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from berthmaster.audit.report import audit
from berthmaster.bus.streams import WORKLOADS
from berthmaster.cli.load import Load
from berthmaster.client import Client
from berthmaster.messages.workload import JobRequest, PodSet, Succeeded
from tests.bus.tools import patiently
from tests.pipeline.chaos import IMPATIENT, Rig, Stream, rig, stream

RATE = 40.0
PATIENT = IMPATIENT | {"BERTH_ARCHIVIST_STORY_AFTER_S": "300"}  # whoever watches may be late
FULL_S = 10.0
SHORT_S = 10.0
TRIES = 3
AWAY_S = 12.0  # longer than an election
SLOW_S = 15.0
SLOW_WRITES_S = 60  # a second that such a disk does; a sync costs some of them
DISK_MIB = 400
BACKLOG = 50_000
BLKIO = Path("/sys/fs/cgroup/blkio")
SERVER = "nats-server"
FOLLOWERS = ("gateway", "resolver", "door")

NOTES: list[str] = []
FAILURES: list[str] = []
BUDGETS = {
    "chaos_takeover_killed_s": ("<=", 2.0),
    "chaos_takeover_stopped_s": ("<=", 2.0),
    "chaos_three_planned_unanswered_s": ("<=", 1.5),
    "chaos_three_follower_unanswered_s": ("<=", 1.5),
}
Figures = dict[str, float]


class Skipped(Exception):
    """What it needs is not here."""


@dataclass
class Answers:
    """When submits were acknowledged."""

    times: list[float]

    def unanswered_s(self, since_s: float) -> float:
        """The longest time without an answer."""
        times = [each for each in self.times if each >= since_s]
        return max(
            b - a for a, b in zip([since_s, *times], [*times, time.monotonic()], strict=True)
        )


@asynccontextmanager
async def answers(jobs: Stream) -> AsyncIterator[Answers]:
    """Looks often at how many were acknowledged."""
    kept = Answers([])

    async def look() -> None:
        before = -1
        while True:
            accepted = jobs.accepted
            if accepted > before:
                kept.times.append(time.monotonic())
            before = accepted
            await asyncio.sleep(0.01)

    looking = asyncio.create_task(look())
    try:
        yield kept
    finally:
        looking.cancel()


async def suffer(
    up: Rig, harm: Callable[[Rig, Stream, Figures], Awaitable[float]], name: str
) -> Figures:
    """One outage in a stream of jobs. ``harm`` returns when it was over (monotonic)."""
    figures: Figures = {}
    await up.start_lasting()
    async with stream(up, RATE, most_open=math.inf) as jobs:
        began_s = time.monotonic()
        async with answers(jobs) as answered:
            over_s = await harm(up, jobs, figures)
            await jobs.goes_on(40)
            figures["recovered_s"] = time.monotonic() - over_s
            figures.setdefault("unanswered_s", answered.unanswered_s(began_s))
        acknowledged = jobs.offered
    # `stream` has asserted that the auditor found each of them, ended once and well.
    figures["jobs_acknowledged_count"] = float(max(acknowledged, jobs.offered))
    return {f"chaos_{name}_{figure}": value for figure, value in figures.items()}


def simple(
    name: str, harm: Callable[[Rig, Stream, Figures], Awaitable[float]], *flags: str
) -> Callable[[Path], Figures]:
    """A scenario of one rig and one harm."""

    def run(folder: Path) -> Figures:
        with rig(folder, *flags, env=PATIENT) as up:
            return asyncio.run(suffer(up, harm, name))

    return run


async def panic(up: Rig, jobs: Stream, figures: Figures) -> float:
    """Go ends itself with 2, as after a panic: no code of ours says that its settings are wrong."""
    pid = up.processes()[SERVER]["pid"]
    began_s = time.monotonic()
    up.signal(SERVER, signal.SIGABRT)
    await up.back({SERVER: pid})
    return began_s


def data_bytes(pid: int) -> int:
    """What RLIMIT_DATA is about."""
    text = Path(f"/proc/{pid}/status").read_text()
    has = re.search(r"VmData:\s+(\d+) kB", text)
    assert has is not None, text
    return int(has[1]) * 1024


def highest_open(pid: int) -> int:
    """The highest of a process's descriptors."""
    return max(int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir())


async def memory(up: Rig, jobs: Stream, figures: Figures) -> float:
    """The server gets no more memory than it has, and is asked for more."""
    pid = up.processes()[SERVER]["pid"]
    most = data_bytes(pid)
    resource.prlimit(pid, resource.RLIMIT_DATA, (most, most))
    began_s = time.monotonic()
    host, _, port = up.view["url"].removeprefix("nats://").rpartition(":")
    crowd: list[socket.socket] = []
    try:
        while up.processes()[SERVER]["pid"] == pid and time.monotonic() - began_s < 40:
            with suppress(OSError):
                crowd.append(socket.create_connection((host, int(port)), timeout=0.5))
            await asyncio.sleep(0.001)
    finally:
        for each in crowd:
            each.close()
    await up.back({SERVER: pid})
    return began_s


async def descriptors(up: Rig, jobs: Stream, figures: Figures) -> float:
    """The server may open nothing more for a while; whoever is connected is served."""
    pid = up.processes()[SERVER]["pid"]
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest_open(pid) + 1, hard))
    accepted = jobs.accepted
    await asyncio.sleep(SHORT_S)
    assert jobs.accepted > accepted, "whoever is connected is served no more"
    dead = {"gateway": up.processes()["gateway"]["pid"]}
    up.signal("gateway", signal.SIGKILL)  # one that must connect anew, and may take its own place
    await asyncio.sleep(1.0)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    freed_s = time.monotonic()
    await up.back(dead)
    async with up.client() as other:
        await other.last_sequence()
    return freed_s


async def takeover(up: Rig, jobs: Stream, figures: Figures) -> float:
    """One resolver of two dies, then one stands still: how long nobody decided. The best of a few
    tries, as others use this machine, too: in each the takeover itself is asserted."""
    took_s: dict[str, list[float]] = {"killed": [], "stopped": []}
    for _ in range(TRIES):
        decider = jobs.decisions[-1].decision.decider
        await up.kill(up.decider(decider))
        took_s["killed"].append(await jobs.taken_over_s(decider))
        await jobs.goes_on(50)
        decider = jobs.decisions[-1].decision.decider
        async with up.stopped(up.decider(decider)):
            took_s["stopped"].append(await jobs.taken_over_s(decider))
            await jobs.goes_on(50)
    figures |= {f"{how}_s": min(each) for how, each in took_s.items()}
    return time.monotonic()


async def three_planned(up: Rig, jobs: Stream, figures: Figures) -> float:
    """The server that leads the log is told to end; it hands over first."""
    lead = (await roles(up, jobs.berth))["stream"]
    pid = up.processes()[lead]["pid"]
    began_s = time.monotonic()
    up.signal(lead, signal.SIGTERM)
    await up.back({lead: pid})
    return began_s


async def three_follower(up: Rig, jobs: Stream, figures: Figures) -> float:
    """A server that leads no stream stands still, with the gateway connected to it."""
    name = up.names(SERVER)[-1]
    for _ in range(5):  # it hands over what it leads, and has it back only by an election
        pid = up.processes()[name]["pid"]
        up.signal(name, signal.SIGTERM)
        await up.back({name: pid})
        await asyncio.sleep(3.0)
        if name not in leaders(await roles(up, jobs.berth)):
            break
    for _ in range(30):
        if (await roles(up, jobs.berth)).get("gateway") == name:
            break
        await up.kill("gateway")
        await asyncio.sleep(1.0)
    found = await roles(up, jobs.berth)
    assert found["gateway"] == name, found
    assert name not in leaders(found), found
    async with answers(jobs) as answered:
        began_s = time.monotonic()
        async with up.stopped(name):
            await asyncio.sleep(AWAY_S)
        figures["unanswered_s"] = answered.unanswered_s(began_s)
    return time.monotonic()


async def three_leader(up: Rig, jobs: Stream, figures: Figures) -> float:
    """The server that leads the log is killed and stays away: an election of nats-server's own."""
    lead = (await roles(up, jobs.berth))["stream"]
    began_s = time.monotonic()
    async with up.away(lead):
        await asyncio.sleep(AWAY_S)
    return began_s


async def roles(up: Rig, berth: Client) -> dict[str, str]:
    """Which server leads what, and which has the gateway."""
    found: dict[str, str] = {}
    for stream_ in (WORKLOADS, "FLEET", "LEASES", "CONTROL"):
        info = await patiently(lambda of=stream_: _info(berth, of))  # type: ignore[misc]
        found[stream_] = f"{SERVER}-{info['cluster']['leader'].rpartition('-')[2]}"
    found["stream"] = found[WORKLOADS]
    for name in up.names(SERVER):
        for each in await asyncio.to_thread(connections, up, name):
            found.setdefault(each, name)
    return found


def connections(up: Rig, name: str) -> list[str]:
    """The names of a server's connections."""
    config = up.folder / f"server-{name.rpartition('-')[2]}" / "nats-server.conf"
    port = re.search(r'http: "127.0.0.1:(\d+)"', config.read_text())
    assert port is not None, config
    url = f"http://127.0.0.1:{port[1]}/connz?limit=1000"
    with urllib.request.urlopen(url, timeout=5) as reply:
        return [each.get("name", "") for each in msgspec.json.decode(reply.read())["connections"]]


async def _info(berth: Client, stream_: str) -> dict[str, Any]:
    while True:
        raw = await berth.connection.api(f"STREAM.INFO.{stream_}", timeout_s=1.0)
        info: dict[str, Any] = msgspec.json.decode(raw)
        if info["cluster"].get("leader"):
            return info
        await asyncio.sleep(0.1)


def leaders(found: dict[str, str]) -> set[str]:
    """Who leads anything."""
    return {found[stream_] for stream_ in (WORKLOADS, "FLEET", "LEASES", "CONTROL")}


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of its own, which can be filled."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, timeout=10, check=False)
    except OSError as error:
        raise Skipped(f"no disk of its own to fill: {error}") from error
    if done.returncode:
        raise Skipped(f"no disk of its own to fill: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=10)


def disk(folder: Path) -> Figures:
    """The disk of the streams is full for a while, then there is room again."""

    async def harm(up: Rig, jobs: Stream, figures: Figures) -> float:
        ballast = folder / "jetstream" / "ballast"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        await asyncio.sleep(FULL_S)
        ballast.unlink()
        return time.monotonic()

    with small_disk(folder / "jetstream"), rig(folder, env=PATIENT) as up:
        return asyncio.run(suffer(up, harm, "disk"))


@contextmanager
def slow_writes(pid: int, folder: Path) -> Iterator[None]:
    """A process whose writes to this folder's disk are few a second."""
    group = BLKIO / f"berth-{os.getpid()}"
    device = folder.stat().st_dev
    try:
        group.mkdir()
    except OSError as error:
        raise Skipped(f"no I/O limits to set in {BLKIO}: {error}") from error
    try:
        limit = f"{os.major(device)}:{os.minor(device)} {SLOW_WRITES_S}"
        try:
            (group / "blkio.throttle.write_iops_device").write_text(limit)
            (group / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            raise Skipped(f"no I/O limit for the disk of {folder}: {error}") from error
        yield
    finally:
        with suppress(OSError):
            (BLKIO / "cgroup.procs").write_text(str(pid))
        group.rmdir()


def slow(folder: Path) -> Figures:
    """The server's disk takes few writes a second for a while; each write is synced."""

    async def harm(up: Rig, jobs: Stream, figures: Figures) -> float:
        began_s, accepted = time.monotonic(), jobs.accepted
        with slow_writes(up.processes()[SERVER]["pid"], folder):
            await asyncio.sleep(SLOW_S)
        figures["answered_meanwhile_per_s"] = (jobs.accepted - accepted) / (
            time.monotonic() - began_s
        )
        return time.monotonic()

    with rig(folder, "--sync", "always", env=PATIENT) as up:
        return asyncio.run(suffer(up, harm, "slow_disk"))


OPEN = PATIENT | {
    "BERTH_GATEWAY_TENANT_OPEN_WORKLOADS": str(2 * BACKLOG),
    "BERTH_GATEWAY_TENANT_REQUESTS_PER_S": "100000",
}


async def fill(up: Rig) -> int:
    """50,000 jobs that wait, as nobody has what they ask for."""
    impossible = (PodSet(cpu_milli=100, memory_mib=64, gpus=1, gpu_models=("none-such",)),)
    asked = ((0.0, JobRequest(id=f"wait-{n}", pod_sets=impossible)) for n in range(BACKLOG))
    async with up.client() as berth:
        load = Load(berth, max_in_flight=64)
        await load.run(asked, 0.0)
        result = load.result
        assert (result.accepted, result.refused, result.unknown) == (BACKLOG, 0, 0), result
    return result.accepted


async def one_more(up: Rig) -> float:
    """When a job that can run has ended (monotonic); the others are all there, and wait."""
    one = (PodSet(cpu_milli=100, memory_mib=64, gpus=1, gpu_milli=100),)
    async with up.client() as berth:
        since = await berth.last_sequence()
        await berth.submit(JobRequest(id="first", pod_sets=one, expected_duration_s=1.0))
        async with asyncio.timeout(120), aclosing(berth.watch(since=since)) as events:
            async for seen in events:
                if isinstance(seen.event, Succeeded) and seen.event.id == "first":
                    break
        ended_s = time.monotonic()
        report = await audit(berth.connection)
    counts = (report.submitted, report.waiting, report.succeeded)
    assert (report.findings, report.accounted) == ((), True), report
    assert counts == (BACKLOG + 1, BACKLOG, 1), report
    return ended_s


def backlog(folder: Path) -> Figures:
    """All is stopped behind 50,000 jobs that wait, and started again."""
    with rig(folder, env=OPEN) as up:
        acknowledged = asyncio.run(fill(up))
    began_s = time.monotonic()
    with rig(folder, env=OPEN) as up:
        figures = {"ready_s": time.monotonic() - began_s}
        figures["first_job_ended_s"] = asyncio.run(one_more(up)) - began_s
    figures["jobs_acknowledged_count"] = float(acknowledged)
    return {f"chaos_backlog_{figure}": value for figure, value in figures.items()}


def follower(folder: Path) -> Figures:
    """Each that follows the log is killed alone, and its new life has 50,000 events to read: none
    has a snapshot. Beside it, what a start costs where nothing is to be read."""

    async def ready_s(up: Rig, name: str) -> float:
        began_s = time.monotonic()
        await up.kill(name)
        return time.monotonic() - began_s

    async def harm(up: Rig) -> Figures:
        figures: Figures = {}
        for name in FOLLOWERS:
            figures[f"{name}_empty_ready_s"] = await ready_s(up, name)
        figures["jobs_acknowledged_count"] = float(await fill(up))
        for name in FOLLOWERS:
            figures[f"{name}_ready_s"] = await ready_s(up, name)
        began_s = time.monotonic()
        figures["first_job_ended_s"] = await one_more(up) - began_s
        return figures

    with rig(folder, env=OPEN | {"BERTH_RESOLVER_SNAPSHOT_S": "3600"}) as up:
        figures = asyncio.run(harm(up))
    return {f"chaos_follower_{figure}": value for figure, value in figures.items()}


SCENARIOS: dict[str, Callable[[Path], Figures]] = {
    "panic": simple("panic", panic),
    "memory": simple("memory", memory),
    "descriptors": simple("descriptors", descriptors),
    "disk": disk,
    "slow": slow,
    "takeover": simple("takeover", takeover, "--resolvers", "2"),
    "three-planned": simple("three_planned", three_planned, "--servers", "3"),
    "three-follower": simple("three_follower", three_follower, "--servers", "3"),
    "three-leader": simple("three_leader", three_leader, "--servers", "3"),
    "backlog": backlog,
    "follower": follower,
}
PARTS = tuple(SCENARIOS)


def measure(part: str = "") -> Figures:
    """All scenarios, or one. One that fails is told, and the others go on."""
    figures: Figures = {}
    for name in [part] if part else PARTS:
        with tempfile.TemporaryDirectory(prefix="berth-outage-") as folder:
            try:
                figures |= SCENARIOS[name](Path(folder) / "up")
            except Skipped as error:
                NOTES.append(f"{name}: skipped: {error}")
            except (AssertionError, TimeoutError) as error:
                FAILURES.append(f"{name}: {str(error)[:2000] or type(error).__name__}")
    return figures

"""The whole pipeline as processes: a submit's answer, submit to running, whole lives a second.

Everything of `berth up` on this machine, its server syncing every write, an emulated fleet on which
jobs end at once. Times between events are the server's own time stamps. Beside them stands what the
same server does with bare synced appends, measured first: no pipeline on it can be quicker. A
commit of a decision is an atomic batch, for which a server without replicas makes and removes a
folder of files; what of all this is the disk's is told by the same once more on files in memory.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from berthmaster.cli.audit.report import audit
from berthmaster.client.client import Client
from berthmaster.lib.event_log.group_commit import GroupCommit
from berthmaster.lib.event_log.workload_log import EventLog
from berthmaster.lib.lifecycle.instructions import Stored
from berthmaster.lib.lifecycle.workload import request_digest
from berthmaster.lib.messages.workload import JobRequest, PodSet, Submitted
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.follower import Follower
from berthmaster.lib.nats.stream_messages import Recorded
from berthmaster.lib.nats.streams import WORKLOADS, ensure_streams
from berthmaster.lib.runtime.log import Log
from berthmaster.lib.runtime.settings import CommonSettings
from berthmaster.lib.supervisor.embedded import Server, ServerConfig, Sync
from berthmaster.lib.supervisor.plan import UpOptions
from berthmaster.lib.supervisor.stack import Stack

PACED_JOBS = 1000
PACED_PER_S = 100.0
WARM_JOBS = 100
FLOOD_JOBS = 20_000
FLOOD_IN_FLIGHT = 256
BARE_APPENDS = 3000
SHORT_FLOOD_JOBS = 5000
SETTLE_LIMIT_S = 120.0
MEMORY = Path("/dev/shm")  # files in memory, where a system has them
PARTS = ("three", "unsynced")
COMPARED = (
    "submit_reply_p50_ms",
    "submit_reply_p99_ms",
    "submit_to_running_p50_ms",
    "submit_to_running_p99_ms",
    "lifecycles_per_s",
)

BUDGETS = {
    "submit_reply_p50_ms": ("<=", 2.0),
    "submit_reply_p99_ms": ("<=", 10.0),
    "submit_to_running_p50_ms": ("<=", 20.0),
    "submit_to_running_p99_ms": ("<=", 60.0),
    "lifecycles_per_s": (">=", 1000.0),
    "lost_count": ("<=", 0.0),
    "audit_findings_count": ("<=", 0.0),
}
NOTES = [
    "Peers' documented intervals, for scale: OCM resyncs scores every 60 s, Armada's scheduling",
    "cycle is 10 s, Karmada collects status every 10 s. They are settings, not measurements.",
]


def percentile(values: list[float], percent: float) -> float:
    """The smallest value that so many percent do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def request(name: str) -> JobRequest:
    """A small job that is over as soon as it runs."""
    pods = PodSet(cpu_milli=500, memory_mib=256, gpus=1, gpu_milli=250)
    return JobRequest(id=name, pod_sets=(pods,), expected_duration_s=1.0)


class Watch:
    """When each event of each job was stored, by the server's clock."""

    def __init__(self) -> None:
        self.at_s: dict[str, dict[str, float]] = {}
        self.endings = 0
        self.ended_at_s: list[float] = []

    def take(self, recorded: Recorded) -> None:
        _, _, _, name, kind, _ = recorded.subject.split(".")
        self.at_s.setdefault(name, {}).setdefault(kind, recorded.stored_at_s)
        if kind in ("succeeded", "failed", "cancelled"):
            self.endings += 1
            self.ended_at_s.append(recorded.stored_at_s)

    def between_ms(self, prefix: str, first: str, then: str) -> list[float]:
        return [
            1000 * (at[then] - at[first])
            for name, at in self.at_s.items()
            if name.startswith(prefix) and first in at and then in at
        ]


async def until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Whether it came true in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    while not condition() and loop.time() < deadline:  # noqa: ASYNC110 # a benchmark may poll
        await asyncio.sleep(0.02)
    return condition()


async def paced(client: Client, requests: Iterable[JobRequest], per_s: float) -> list[float]:
    """Submit at a rate; how long each answer took, in milliseconds."""
    loop = asyncio.get_running_loop()
    took_ms: list[float] = []

    async def one(asked: JobRequest) -> None:
        began_s = time.perf_counter()
        await client.submit(asked)
        took_ms.append(1000 * (time.perf_counter() - began_s))

    began_s = loop.time()
    tasks = []
    for number, asked in enumerate(requests):
        await asyncio.sleep(max(0.0, began_s + number / per_s - loop.time()))
        tasks.append(asyncio.create_task(one(asked)))
    await asyncio.gather(*tasks)
    return took_ms


async def flood(client: Client, prefix: str, count: int, in_flight: int) -> None:
    """Submit as fast as answers come."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await client.submit(request(f"{prefix}{number}"))

    await asyncio.gather(*(worker() for _ in range(in_flight)))


def usage(pid: int) -> tuple[float, float]:
    """(processor seconds, resident MiB) of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return cpu_s, pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def bare(sync: Sync) -> dict[str, float]:
    """The baseline: guarded appends alone, one after the other and grouped."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(Path(folder), ServerConfig(sync=sync)) as server,
    ):
        settings = CommonSettings(nats_url=server.url)
        log = Log("bench", level="error")
        async with await Connection.open(settings, "bench", log, timeout_s=5) as conn:
            await ensure_streams(conn)
            return await bare_appends(EventLog(conn))


async def bare_appends(log: EventLog) -> dict[str, float]:
    """One after the other; then many at once, as the services write under load."""

    def event(name: str) -> Submitted:
        job = request(name)
        return Submitted(
            tenant="bench",
            id=name,
            after=0,
            at_s=0.0,
            by="bench",
            request=job,
            digest=request_digest(job),
        )

    took_ms = []
    for number in range(300):
        began_s = time.perf_counter()
        outcome = await log.append(event(f"single-{number}"))
        assert isinstance(outcome, Stored), outcome
        took_ms.append(1000 * (time.perf_counter() - began_s))
    group = GroupCommit(log)
    began_s = time.perf_counter()
    work: list[Awaitable[object]] = [group.append(event(f"g-{n}")) for n in range(BARE_APPENDS)]
    await asyncio.gather(*work)
    return {
        "baseline_append_p50_ms": percentile(took_ms, 50),
        "baseline_grouped_appends_per_s": BARE_APPENDS / (time.perf_counter() - began_s),
    }


async def run(
    sync: Sync, flood_jobs: int, where: Path | None = None, servers: int = 1
) -> dict[str, float]:
    """Everything up, its files in some folder, and measured."""
    with tempfile.TemporaryDirectory(dir=where) as folder:
        options = UpOptions(
            folder=Path(folder) / "up",
            nodes=400,
            speed=1e6,
            sync=sync,
            servers=servers,
            log_level="warning",
        )
        async with Stack(options, announce=False) as stack:
            found = stack.connection
            client = Client.connect(
                found.url,
                tenant=found.tenant,
                creds_file=found.creds_file,
                inbox_prefix=found.inbox_prefix,
                timeout_s=10.0,
            )
            async with client:
                return await measured(stack, client, flood_jobs)


async def measured(stack: Stack, client: Client, flood_jobs: int) -> dict[str, float]:
    """With everything up."""
    watch = Watch()
    follower = Follower(client.connection, WORKLOADS, [subjects.workloads_of("default")])
    following = asyncio.create_task(follower.run(watch.take))
    await paced(client, (request(f"warm-{n}") for n in range(WARM_JOBS)), PACED_PER_S)
    took_ms = await paced(client, (request(f"paced-{n}") for n in range(PACED_JOBS)), PACED_PER_S)
    total = WARM_JOBS + PACED_JOBS
    await until(lambda: watch.endings >= total, SETTLE_LIMIT_S)
    running_ms = watch.between_ms("paced-", "submitted", "running")
    placed_ms = watch.between_ms("paced-", "submitted", "placed")
    pids = {view.name: view.pid for view in stack.view().processes}
    before = {name: usage(pid) for name, pid in pids.items()}
    await flood(client, "flood-", flood_jobs, FLOOD_IN_FLIGHT)
    total += flood_jobs
    await until(lambda: watch.endings >= total, SETTLE_LIMIT_S)
    after = {name: usage(pid) for name, pid in pids.items()}
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    report = await audit(client.connection)
    ended = sorted(watch.ended_at_s)[-flood_jobs:]
    tenth = len(ended) // 10
    sustained = (len(ended) - 2 * tenth) / (ended[-tenth] - ended[tenth])
    submitted = min(at["submitted"] for n, at in watch.at_s.items() if n.startswith("flood-"))
    figures = {
        "submit_reply_p50_ms": percentile(took_ms, 50),
        "submit_reply_p99_ms": percentile(took_ms, 99),
        "submit_to_placed_p50_ms": percentile(placed_ms, 50),
        "submit_to_running_p50_ms": percentile(running_ms, 50),
        "submit_to_running_p99_ms": percentile(running_ms, 99),
        "lifecycles_per_s": sustained,
        "lifecycles_first_to_last_per_s": flood_jobs / (ended[-1] - submitted),
        "lost_count": float(total - watch.endings),
        "audit_findings_count": float(len(report.findings)),
        "evictions_count": float(report.evictions),
    }
    for name in pids:
        used_s = after[name][0] - before[name][0]
        figures[f"{name}_cpu_a_lifecycle_us"] = 1e6 * used_s / flood_jobs
    for name in pids:
        figures[f"{name}_memory_mib"] = after[name][1]
    return figures


def measure(part: str = "") -> dict[str, float]:
    """Everything, on a server that syncs each write. Parts: one that does not; one against three
    that hold each stream together, on one machine."""
    if part == "three":
        one = asyncio.run(run("always", SHORT_FLOOD_JOBS))
        three = asyncio.run(run("always", SHORT_FLOOD_JOBS, servers=3))
        figures = {f"one_{name}": one[name] for name in COMPARED}
        return figures | {f"three_{name}": three[name] for name in COMPARED}
    sync: Sync = "default" if part == "unsynced" else "always"
    figures = {"synced_writes_flag": float(sync == "always")}
    figures |= asyncio.run(bare(sync))
    figures |= asyncio.run(run(sync, FLOOD_JOBS))
    if os.access(MEMORY, os.W_OK):
        memory = asyncio.run(run(sync, SHORT_FLOOD_JOBS, MEMORY))
        figures |= {f"in_memory_{name}": memory[name] for name in COMPARED}
    return figures

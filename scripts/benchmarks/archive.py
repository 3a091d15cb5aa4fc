"""How fast ended stories leave the log, and what the server keeps of them.

One server with the followers that a pipeline has, and a log of stories that ended long ago, as one
archivist finds it at its start. Baseline: how fast the same stories were written. Where the disk is
slow, processor time for each story says more.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from berthmaster.bus import subjects
from berthmaster.bus.connection import Connection
from berthmaster.bus.embedded import Server
from berthmaster.bus.event_subjects import event_subject
from berthmaster.bus.follow import Follower
from berthmaster.bus.streams import ARCHIVE, WORKLOADS, ensure_streams, stream_info
from berthmaster.lifecycle.digest import request_digest
from berthmaster.messages.families import encode
from berthmaster.messages.placement import PodBinding
from berthmaster.messages.workload import (
    Claimed,
    JobRequest,
    Placed,
    Running,
    Submitted,
    Succeeded,
    WorkloadEvent,
)
from berthmaster.runtime.log import Log
from berthmaster.runtime.settings import CommonSettings
from scripts.benchmarks.scoring import cpu_s

STORIES = 10_000
FOLLOWERS = 12
LIMIT_S = 400.0
AT_ONCE = 2_000

BUDGETS = {"stories_per_s": (">=", 1000.0)}


def life(name: str) -> list[WorkloadEvent]:
    """Without guards: who writes them is alone."""
    request = JobRequest(id=name)
    who = {"tenant": "team", "id": name, "at_s": 1.0, "by": "bench"}
    where = {"cluster": "c1", "attempt": 1}
    pods = (PodBinding(pod="main-0", node="n1"),)
    digest = request_digest(request)
    made: list[WorkloadEvent] = [
        Submitted(after=0, request=request, digest=digest, **who),  # type: ignore[arg-type]
        Placed(after=1, pods=pods, request=request, decision=1, **who, **where),  # type: ignore[arg-type]
        Claimed(after=2, executor="x", **who, **where),  # type: ignore[arg-type]
        Running(after=3, pods=pods, **who, **where),  # type: ignore[arg-type]
        Succeeded(after=4, digest=digest, submitted_at_s=1.0, **who, **where),  # type: ignore[arg-type]
    ]
    return made


class Writer:
    """Many lives at once, each event after the one before it."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._afters: list[int] = []

    async def write(self, names: list[str]) -> None:
        """All of them."""
        for step in range(5):
            events = [life(name)[step] for name in names]
            afters = self._afters if step else [0] * len(names)
            self._afters = await asyncio.gather(*map(self._one, events, afters))

    async def _one(self, event: WorkloadEvent, after: int) -> int:
        told = msgspec.structs.replace(event, after=after)
        return await self._conn.store(event_subject(told), encode(told), timeout_s=60.0)


def resident_mib(pid: int) -> float:
    """Of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@asynccontextmanager
async def archivist(url: str, **settings: float) -> AsyncIterator[int]:
    """One, as a process, by its number."""
    argv = [sys.executable, "-m", "berthmaster.cli.main", "serve", "archivist"]
    argv += ["--nats-url", url, "--http-port", "-1", "--log-level", "warning"]
    for name, value in settings.items():
        argv += [f"--{name.replace('_', '-')}", str(value)]
    process = await asyncio.create_subprocess_exec(*argv)
    try:
        yield process.pid
    finally:
        process.terminate()
        await process.wait()


async def messages(conn: Connection) -> int:
    """In the log."""
    return (await stream_info(conn, WORKLOADS)).state.messages


async def run() -> dict[str, float]:
    """Both halves."""
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder)) as server:
        settings = CommonSettings(nats_url=server.url)
        log = Log("bench", level="error")
        async with AsyncExitStack() as owned:
            conn = await owned.enter_async_context(
                await Connection.open(settings, "bench", log, timeout_s=5)
            )
            await ensure_streams(conn)
            readers = [
                asyncio.create_task(
                    Follower(conn, WORKLOADS, [subjects.ALL_WORKLOADS]).run(lambda _: None)
                )
                for _ in range(FOLLOWERS)
            ]
            writer = Writer(conn)
            began_s = time.perf_counter()
            for first in range(0, STORIES, AT_ONCE):
                await writer.write([f"old-{n}" for n in range(first, first + AT_ONCE)])
            written_s = time.perf_counter() - began_s
            began_s = time.perf_counter()
            full_mib = resident_mib(server.pid)
            server_began_s = cpu_s(server.pid)
            async with archivist(server.url, story_after_s=0.0) as pid:
                while await messages(conn) > STORIES:
                    await asyncio.sleep(0.1)
                    assert time.perf_counter() - began_s < LIMIT_S
                used_ms = 1000 * cpu_s(pid)
            server_ms = 1000 * (cpu_s(server.pid) - server_began_s)
            took_s = time.perf_counter() - began_s
            for reader in readers:
                reader.cancel()
            kept = (await stream_info(conn, ARCHIVE)).state
            left = (await stream_info(conn, WORKLOADS)).state
            after_mib = resident_mib(server.pid)
    return {
        "stories_per_s": STORIES / took_s,
        "written_per_s": STORIES / written_s,
        "ratio": written_s / took_s,
        "archivist_cpu_ms": used_ms / STORIES,
        "server_cpu_ms": server_ms / STORIES,
        "server_full_mib": full_mib,
        "server_after_mib": after_mib,
        "archived_count": float(kept.messages),
        "archive_subjects_count": float(kept.num_subjects),
        "log_subjects_count": float(left.num_subjects),
    }


def measure() -> dict[str, float]:
    """Of one archivist."""
    return asyncio.run(run())


if __name__ == "__main__":
    print(measure())

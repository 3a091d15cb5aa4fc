"""What 20,000 waiting jobs cost whoever submits next, against the same pipeline with none.

Everything of `berth up`. Jobs that ask for GPUs wait behind a fleet that is full for the rest of
the run; those that are measured ask for no GPU: they can run at once, however many wait.
"""

import asyncio
import tempfile
from pathlib import Path

from berthmaster.bus import subjects
from berthmaster.bus.follow import Follower
from berthmaster.bus.streams import WORKLOADS
from berthmaster.client.client import Client
from berthmaster.messages.workload import JobRequest, PodSet
from berthmaster.supervisor.plan import UpOptions
from berthmaster.supervisor.stack import Stack
from scripts.benchmarks.pipeline import PACED_PER_S, Watch, paced, percentile, until

WAITING_JOBS = 20_000
FILLING_JOBS = 400  # more than the fleet has room for
PROBES = 1_000
IN_FLIGHT = 256
LIMIT_S = 120.0

BUDGETS = {"submit_reply_p50_ratio": ("<=", 1.5)}


def waiting(name: str) -> JobRequest:
    """A whole node for longer than the benchmark takes."""
    pods = PodSet(cpu_milli=500, memory_mib=256, gpus=8)
    return JobRequest(id=name, pod_sets=(pods,), expected_duration_s=3e7)


def probe(name: str) -> JobRequest:
    """Over as soon as it runs, and without a GPU."""
    pods = PodSet(cpu_milli=100, memory_mib=64)
    return JobRequest(id=name, pod_sets=(pods,), expected_duration_s=1.0)


async def crowd(client: Client, prefix: str, count: int) -> None:
    """Submit those that wait, as fast as answers come."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await client.submit(waiting(f"{prefix}{number}"))

    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))


async def probed(client: Client, watch: Watch, prefix: str) -> dict[str, float]:
    """Probes at a steady rate: their answers, and when they ran."""
    took_ms = await paced(client, (probe(f"{prefix}{n}") for n in range(PROBES)), PACED_PER_S)

    def running_ms() -> list[float]:
        return watch.between_ms(prefix, "submitted", "running")

    assert await until(lambda: len(running_ms()) == PROBES, LIMIT_S), "not all probes ran"
    return {
        "submit_reply_p50_ms": percentile(took_ms, 50),
        "submit_reply_p99_ms": percentile(took_ms, 99),
        "submit_to_running_p50_ms": percentile(running_ms(), 50),
        "submit_to_running_p99_ms": percentile(running_ms(), 99),
    }


async def run() -> dict[str, float]:
    """With an empty queue, then with a long one."""
    with tempfile.TemporaryDirectory() as folder:
        options = UpOptions(folder=Path(folder) / "up", nodes=100, speed=1e4, log_level="warning")
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
                watch = Watch()
                follower = Follower(
                    client.connection, WORKLOADS, [subjects.workloads_of("default")]
                )
                following = asyncio.create_task(follower.run(watch.take))
                try:
                    await crowd(client, "fill-", FILLING_JOBS)
                    await probed(client, watch, "warm-")
                    calm = await probed(client, watch, "calm-")
                    await crowd(client, "wait-", WAITING_JOBS)
                    crowded = await probed(client, watch, "late-")
                finally:
                    following.cancel()
                    await asyncio.gather(following, return_exceptions=True)
                placed = sum(
                    n.startswith("wait-") and "placed" in at for n, at in watch.at_s.items()
                )
    return (
        {f"calm_{name}": value for name, value in calm.items()}
        | {f"crowded_{name}": value for name, value in crowded.items()}
        | {
            f"{name.removesuffix('_ms')}_ratio": crowded[name] / calm[name]
            for name in ("submit_reply_p50_ms", "submit_to_running_p50_ms")
        }
        | {"waiting_count": float(WAITING_JOBS - placed)}
    )


def measure() -> dict[str, float]:
    """Both halves."""
    return asyncio.run(run())

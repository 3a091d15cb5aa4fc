"""From a change in a node to its cluster's score on the bus, under the design's load.

A real nats-server that syncs every write, the scorer as its own process, and a second process that
speaks for 1,213 nodes in 12 clusters: 5,000 messages a second, of which 200 are node facts and the
rest telemetry. Beside them this process changes one node at a time and waits for the score that
shows the change, following the stream as a resolver does: so each score, and each fact before it,
has been synced to disk. How long the same disk takes for a small write of its own, measured beside
it, says how much of a figure is the disk's.
"""

import argparse
import asyncio
import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from berthmaster.lib.messages.families import FLEET_FACTS, encode
from berthmaster.lib.messages.fleet import (
    Amounts,
    ClusterAlive,
    ClusterScore,
    GpuDevice,
    NodeReport,
    PodUse,
    Stamp,
)
from berthmaster.lib.messages.telemetry import GpuReading, NodeTelemetry
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.facts import FactWriter
from berthmaster.lib.nats.follower import Follower
from berthmaster.lib.nats.stream_messages import Recorded
from berthmaster.lib.nats.streams import FLEET, ensure_streams
from berthmaster.lib.runtime.log import Log
from berthmaster.lib.runtime.settings import CommonSettings
from berthmaster.lib.supervisor.embedded import Server

NODES = 1213
CLUSTERS = 12
GPUS_A_NODE = 5  # 6,212 GPUs on 1,213 nodes in the public openb list
TELEMETRY_PER_S = 4800
FACTS_PER_S = 200
LOAD_S = 10.0
PROBE_EVERY_S = 0.025
LIMIT_S = 5.0
STEP_S = 0.002  # the load comes in small lots, since asyncio sleeps no shorter
BY_TELEMETRY, BY_FACT = "probe-telemetry", "probe-fact"


def place(at: int) -> tuple[str, str]:
    """The cluster and name of one node."""
    return f"cluster-{at % CLUSTERS}", f"node-{at}"


def fact(cluster: str, node: str, stamp: Stamp, gpus: int, used: int = 0) -> NodeReport:
    """A node with so many GPUs of which so many are in use."""
    return NodeReport(
        cluster=cluster,
        node=node,
        stamp=stamp,
        observed_at_s=time.time(),
        allocatable=Amounts(cpu_milli=96_000, memory_mib=512 * 1024, gpu_milli=1000 * gpus),
        gpus=tuple(
            GpuDevice(index=i, uuid=f"GPU-{node}-{i}", model="A100", memory_mib=81_920)
            for i in range(gpus)
        ),
        pods=tuple(
            PodUse(
                tenant="bench",
                workload=f"job-{i}",
                attempt=1,
                pod="main-0",
                cpu_milli=8000,
                memory_mib=32_768,
                gpu_milli=1000,
                gpus=(i,),
            )
            for i in range(used)
        ),
    )


def telemetry(cluster: str, node: str, counter: int, percents: list[float]) -> NodeTelemetry:
    """A whole reading, as an agent sends it."""
    return NodeTelemetry(
        cluster=cluster,
        node=node,
        epoch=1,
        counter=counter,
        observed_at_s=time.time(),
        interval_s=1.0,
        source="emulated",
        gpus=tuple(
            GpuReading(
                index=i,
                uuid=f"GPU-{node}-{i}",
                model="A100",
                memory_total_mib=81_920,
                memory_used_mib=40_000,
                utilization_percent=percent,
                power_w=310.5,
                power_limit_w=400.0,
                temperature_c=61.0,
                sm_clock_mhz=1410,
            )
            for i, percent in enumerate(percents)
        ),
    )


def connect(url: str, name: str) -> "asyncio.Future[Connection]":
    """A connection with the services' own limits."""
    settings = CommonSettings(nats_url=url)
    return asyncio.ensure_future(
        Connection.open(settings, name, Log(name, level="error"), timeout_s=LIMIT_S)
    )


# The load, a process of its own


async def load(url: str, for_s: float) -> None:
    """Telemetry of all nodes in turn, and facts of nodes at random, at the rates above."""
    chance = random.Random(7)
    percents = [[float(chance.randrange(101)) for _ in range(GPUS_A_NODE)] for _ in range(NODES)]
    async with await connect(url, "load") as conn:
        writer = FactWriter(conn)
        await writer.begin(subjects.ALL_FLEET)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        measured = told = 0
        while (passed_s := loop.time() - began_s) < for_s:
            while measured < passed_s * TELEMETRY_PER_S:
                at = measured % NODES
                measured += 1
                mine = percents[at]
                mine[measured % GPUS_A_NODE] = float(chance.randrange(101))
                body = encode(telemetry(*place(at), measured, mine))
                await conn.publish(subjects.telemetry(*place(at)), body)
            while told < passed_s * FACTS_PER_S:
                told += 1
                at = chance.randrange(NODES)
                used = chance.randrange(GPUS_A_NODE + 1)
                report = fact(*place(at), writer.stamp(), GPUS_A_NODE, used)
                await conn.publish(subjects.node(*place(at)), encode(report))
            await asyncio.sleep(STEP_S)
        print(measured + told)


# The measurement


@dataclass
class Probe:
    """Changes one node of a cluster of its own and waits for the score that shows it."""

    conn: Connection
    writer: FactWriter
    waits: dict[tuple[str, float], "asyncio.Future[float]"] = field(default_factory=dict)
    scores: int = 0
    counter: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def on_score(self, recorded: Recorded) -> None:
        """Every score in the stream."""
        heard_s = time.perf_counter()
        self.scores += 1
        score = FLEET_FACTS.decode(recorded.data)
        if not isinstance(score, ClusterScore):
            raise TypeError(f"{recorded.subject} carries {type(score).__name__}")
        for shown in (score.idle_gpu_percent, score.free_gpus):
            if shown is not None:
                wait = self.waits.pop((score.cluster, shown), None)
                if wait is not None and not wait.done():
                    wait.set_result(heard_s)

    async def change(self, cluster: str, value: int) -> float:
        """Milliseconds until the score shows the value."""
        shown = (cluster, 100.0 - value if cluster == BY_TELEMETRY else 8.0 - value)
        wait = self.waits[shown] = asyncio.get_running_loop().create_future()
        if cluster == BY_TELEMETRY:
            told = telemetry(cluster, "node", next(self.counter), [float(value)] * 8)
            subject, body = subjects.telemetry(cluster, "node"), encode(told)
        else:
            report = fact(cluster, "node", self.writer.stamp(), 8, value)
            subject, body = subjects.node(cluster, "node"), encode(report)
        sent_s = time.perf_counter()
        await self.conn.publish(subject, body)
        async with asyncio.timeout(LIMIT_S):
            heard_s: float = await wait
        return 1000 * (heard_s - sent_s)


@contextmanager
def process(*argv: str) -> Iterator["subprocess.Popen[str]"]:
    """A child that ends with the block."""
    child = subprocess.Popen([sys.executable, *argv], stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.terminate()
        child.communicate(timeout=10)


def cpu_s(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))


def rss_mib(pid: int) -> float:
    """Memory that a process holds."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def percentile(values: list[float], percent: float) -> float:
    """The smallest value that so many percent do not exceed."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * percent / 100))]


async def measure_on(url: str, load_s: float, folder: Path) -> dict[str, float]:
    """Fill the fleet, start the scorer, load it, and measure."""
    async with await connect(url, "bench") as conn:
        await ensure_streams(conn)
        writer = FactWriter(conn)
        await writer.begin(subjects.ALL_FLEET)
        for at in range(NODES):
            report = fact(*place(at), writer.stamp(), GPUS_A_NODE)
            await conn.publish(subjects.node(*place(at)), encode(report))
        probe = Probe(conn, writer)
        scores = Follower(conn, FLEET, [subjects.fleet_facts("score")], start="last-per-subject")
        following = asyncio.create_task(scores.run(probe.on_score))
        argv = ["-m", "berthmaster.cli.main", "serve", "scorer", "--nats-url", url]
        with process(*argv, "--http-port", "-1", "--log-level", "error") as scorer:
            alive = asyncio.create_task(keep_alive(conn, writer))
            await probe.change(BY_FACT, 8)
            await writer.put(
                subjects.node(BY_TELEMETRY, "node"), fact(BY_TELEMETRY, "node", writer.stamp(), 8)
            )
            await asyncio.sleep(1.0)
            try:
                return await measure_load(url, load_s, probe, scorer.pid, folder)
            finally:
                alive.cancel()
                following.cancel()


async def keep_alive(conn: Connection, writer: FactWriter) -> None:
    """Every cluster gives signs of life."""
    names = [place(at)[0] for at in range(CLUSTERS)]
    while True:
        for name in (*names, BY_TELEMETRY, BY_FACT):
            sign = ClusterAlive(
                cluster=name, stamp=writer.stamp(), observed_at_s=time.time(), interval_s=2.0
            )
            await conn.publish(subjects.alive(name), encode(sign))
        await asyncio.sleep(2.0)


def sync_times(folder: Path, for_s: float) -> list[float]:
    """Milliseconds that the disk takes for a small synced write, again and again."""
    times: list[float] = []
    end_s = time.monotonic() + for_s
    with (folder / "sync").open("wb", buffering=0) as file:
        while time.monotonic() < end_s:
            began_s = time.perf_counter()
            file.write(b"x" * 512)
            os.fdatasync(file.fileno())
            times.append(1000 * (time.perf_counter() - began_s))
            time.sleep(PROBE_EVERY_S)
    return times


async def measure_load(
    url: str, load_s: float, probe: Probe, pid: int, folder: Path
) -> dict[str, float]:
    """The figures, while the load lasts."""
    by_telemetry: list[float] = []
    by_fact: list[float] = []
    with process(str(Path(__file__)), "--load", url, "--for-s", str(load_s)) as loading:
        await asyncio.sleep(2.0)  # until the load has come to its rate
        loop = asyncio.get_running_loop()
        syncing = asyncio.create_task(asyncio.to_thread(sync_times, folder, load_s - 3.0))
        began_s, used_s, scores = loop.time(), cpu_s(pid), probe.scores
        while loop.time() < began_s + load_s - 3.0:
            step = len(by_fact)
            by_telemetry.append(await probe.change(BY_TELEMETRY, 100 * (step % 2)))
            await asyncio.sleep(PROBE_EVERY_S)
            by_fact.append(await probe.change(BY_FACT, step % 8))
            await asyncio.sleep(PROBE_EVERY_S)
        passed_s = loop.time() - began_s
        used_s = cpu_s(pid) - used_s
        told = probe.scores - scores
        syncs = await syncing
        sent = (await asyncio.to_thread(loading.communicate, timeout=load_s))[0]
    return {
        "messages_per_s": float(sent) / load_s,
        "telemetry_to_score_p50_ms": percentile(by_telemetry, 50),
        "telemetry_to_score_p99_ms": percentile(by_telemetry, 99),
        "fact_to_score_p50_ms": percentile(by_fact, 50),
        "fact_to_score_p99_ms": percentile(by_fact, 99),
        "disk_sync_p50_ms": percentile(syncs, 50),
        "disk_sync_p99_ms": percentile(syncs, 99),
        "probes_count": float(len(by_telemetry) + len(by_fact)),
        "scores_per_s": told / passed_s,
        "scorer_cpu_percent_of_a_core": 100 * used_s / passed_s,
        "scorer_memory_mib": rss_mib(pid),
    }


def measure(load_s: float = LOAD_S) -> dict[str, float]:
    """Scores under 5,000 node messages a second over 1,213 nodes in 12 clusters."""
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder)) as server:
        return asyncio.run(measure_on(server.url, load_s, Path(folder)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--load", metavar="URL", help="be the load on this server")
    parser.add_argument("--for-s", type=float, default=LOAD_S)
    args = parser.parse_args()
    if args.load:
        asyncio.run(load(args.load, args.for_s))
    else:
        for name, figure in measure(args.for_s).items():
            print(f"{name:40} {figure:10.2f}")

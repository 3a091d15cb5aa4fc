"""What `berth audit` and `berth replay-decisions` take for 50,000 jobs, on a real server.

The log is made by the resolver's core in virtual time, on openb's shape of fleet: each job is
submitted, placed, claimed, runs and ends. It is then stored with the sequences that it was made
with, and read back as the two commands do. Decisions are repeated on what was made, as a server
gives messages its own times: reading and repeating together are what the command takes.
"""

import asyncio
import tempfile
import time
from collections import deque
from pathlib import Path

from berthmaster.cli.audit.report import audit
from berthmaster.client import Client
from berthmaster.control.resolver.policy import Policy
from berthmaster.control.resolver.replay import read_inputs, replay
from berthmaster.lab.emulator.workloads import generated
from berthmaster.lib.event_log.workload_log import Part, send_batch
from berthmaster.lib.lifecycle.workload import Key, key
from berthmaster.lib.messages.families import encode, event_cluster, event_kind
from berthmaster.lib.messages.fleet import ClusterAlive, NodeReport, Stamp
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.messages.workload import WorkloadEvent
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.streams import ensure_streams
from berthmaster.lib.supervisor.embedded import Server
from scripts.benchmarks.engine import CLUSTERS, NODES, reports
from tests.support.deciding import TENANT, World

JOBS = 50_000
LIVE_JOBS = 3000  # then each placement is followed by a departure
A_COMMIT = 4  # jobs that a decision places
JOBS_PER_S = 100.0
A_BATCH = 500  # messages that are stored at once
LIMIT_S = 30.0
BUDGETS = {"audit_s": ("<=", 30.0), "replay_decisions_s": ("<=", 30.0)}


class Lived(World):
    """A world that is not judged at each step: that would take longer than all of it."""

    def check(self) -> None:
        pass


def lived(jobs: int) -> Lived:
    """So many lives, from submission to success."""
    world = Lived(Policy())
    world.fact(*reports(NODES, CLUSTERS))
    clusters = sorted({cluster for cluster, _ in world.nodes})
    running: deque[Key] = deque()
    told = 0
    requests = [arrival.request for arrival in generated(seed=1, rate_per_s=1.0, count=jobs)]
    for first in range(0, jobs, A_COMMIT):
        world.now_s += A_COMMIT / JOBS_PER_S
        if world.now_s >= 1000.0 + told:
            told += 1
            stamp = Stamp(epoch=1, counter=told)
            for name in clusters:
                world.fact(
                    ClusterAlive(
                        cluster=name, stamp=stamp, observed_at_s=world.now_s, interval_s=1.0
                    )
                )
        for request in requests[first : first + A_COMMIT]:
            world.submit(request)
        for plan in world.settle():
            for choice in plan.decision.placements:
                name = key(TENANT, choice.id)
                world.claim(name)
                world.run(name)
                running.append(name)
        while len(running) > LIVE_JOBS:
            world.succeed(running.popleft())
    return world


async def stored(conn: Connection, world: World) -> None:
    """All that the world holds, in its order."""
    log: dict[int, WorkloadEvent | Decision] = dict(world.decisions)
    log |= {sequence: event for sequence, _, event in world.events}
    parts: list[Part] = []
    for sequence in sorted(log):
        message = log[sequence]
        if isinstance(message, Decision):
            subject = subjects.decision(message.cell)
        else:
            where = event_cluster(message)
            subject = subjects.workload_event(
                message.tenant, message.id, event_kind(message), where
            )
        parts.append((subject, encode(message), {}))
        if len(parts) == A_BATCH or sequence == len(log):
            last = await send_batch(conn, parts, timeout_s=LIMIT_S)
            assert last == sequence
            parts.clear()
    for _, _, _, fact in world.facts:
        if isinstance(fact, NodeReport):
            subject = subjects.node(fact.cluster, fact.node)
        else:
            subject = subjects.alive(fact.cluster)
        await conn.request(subject, encode(fact), timeout_s=LIMIT_S)


async def measured(world: World) -> dict[str, float]:
    """Both commands, as a shell would start them, their processes' start aside."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder)) as server:
        async with Client.connect(server.url) as berth:
            conn = berth.connection
            await ensure_streams(conn)
            await stored(conn, world)
            began_s = time.perf_counter()
            report = await audit(conn)
            figures["audit_s"] = time.perf_counter() - began_s
            assert report.clean, report.findings[:3]
            assert report.submitted == sum(1 for _, _, e in world.events if not e.after)
            began_s = time.perf_counter()
            inputs = await read_inputs(conn)
            figures["read_s"] = time.perf_counter() - began_s
            assert len(inputs.decisions) == len(world.decisions)
    return figures


def measure(jobs: int = JOBS) -> dict[str, float]:
    """All figures."""
    world = lived(jobs)
    figures = asyncio.run(measured(world))
    began_s = time.perf_counter()
    report = replay(world.inputs(), "all")
    figures["repeat_s"] = time.perf_counter() - began_s
    assert report.equal == report.decisions == len(world.decisions), report.first_difference
    figures["replay_decisions_s"] = figures["read_s"] + figures["repeat_s"]
    return figures | {
        "decisions_count": float(len(world.decisions)),
        "messages_count": float(len(world.events) + len(world.decisions)),
        "facts_count": float(len(world.facts)),
    }

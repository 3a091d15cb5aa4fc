"""The lease of a cell's resolvers is lost and gained again and again while jobs are submitted.

The lease keeps the peace; that no job is placed twice is the guards' work, and that is looked at:
two processes, each of which has commits under way when it is not the one any more.
"""

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from berthmaster.cli.audit.report import audit
from berthmaster.control.resolver.replay import read_inputs, replay
from berthmaster.lib.event_log.workload_log import EventLog, decode_story
from berthmaster.lib.messages.api import SubmitReply
from berthmaster.lib.messages.families import LEASES as LEASE_RECORDS
from berthmaster.lib.messages.families import encode
from berthmaster.lib.messages.records import Lease as LeaseRecord
from berthmaster.lib.messages.workload import Placed
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.stream_reads import last_message
from berthmaster.lib.nats.streams import LEASES
from berthmaster.lib.runtime.ports import free_ports
from berthmaster.lib.supervisor.embedded import Server
from tests.bus.proxy import Passing, Proxy, proxied
from tests.bus.shells import ask, gateway
from tests.bus.test_resolver import Fleet, fleet
from tests.bus.tools import eventually, story, task
from tests.support.builders import job
from tests.support.patience import ANSWER_S, hang_s

SUBJECT = subjects.lease("resolver.all")
TURNS = 6


class Replica:
    """One resolver, a process of its own, and the way between it and the bus."""

    def __init__(self, proxy: Proxy, folder: Path) -> None:
        [self.port] = free_ports(1)
        self.proxy = proxy
        self.seen: list[tuple[int, dict[str, Any]]] = []  # what /readyz said
        flags = ["--nats-url", proxy.url, "--http-port", str(self.port), "--log-level", "error"]
        flags += ["--claim-timeout-s", "600", "--stale-after-s", "600"]
        command = [sys.executable, "-m", "berthmaster.cli.main", "serve", "resolver", *flags]
        with (folder / f"resolver-{self.port}.log").open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log)

    @contextmanager
    def deaf(self) -> Iterator[None]:
        """It hears nothing of the lease, and cannot renew it; all else passes."""

        def of_the_lease(passing: Passing) -> bool:
            return SUBJECT.encode() in passing.line or SUBJECT.encode() in passing.payload

        self.proxy.to_server = of_the_lease
        try:
            yield
        finally:
            self.proxy.to_server = lambda _: False

    async def ready(self) -> bool:
        try:
            code, body = await asyncio.to_thread(self._ask)
        except (OSError, TimeoutError):
            return False
        self.seen.append((code, body))
        return code == 200

    def _ask(self) -> tuple[int, dict[str, Any]]:
        url = f"http://127.0.0.1:{self.port}/readyz"
        try:
            with urllib.request.urlopen(url, timeout=hang_s()) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    async def look(self) -> None:
        while True:
            await self.ready()
            await asyncio.sleep(0.05)


async def holder(conn: Connection, replicas: list[Replica]) -> Replica | None:
    found = await last_message(conn, LEASES, SUBJECT)
    if found is None:
        return None
    record = LEASE_RECORDS.decode(found.data)
    pid = record.holder.partition("#")[0].rpartition("/")[2]
    held = [one for one in replicas if str(one.process.pid) == pid and not record.released]
    return held[0] if held else None


async def take_away(conn: Connection, turn: int) -> None:
    """Somebody gives the lease back for its holder, or the record is gone."""
    if turn % 2:
        await conn.api(f"STREAM.PURGE.{LEASES}", {"filter": SUBJECT})
    else:
        thief = LeaseRecord(
            name="resolver.all", holder="thief", ttl_s=1.5, renewals=turn, released=True
        )
        await conn.store(SUBJECT, encode(thief), timeout_s=ANSWER_S)


async def submit_until(over: asyncio.Event, conn: Connection, names: list[str]) -> None:
    """``names``: those that were acknowledged."""
    while not over.is_set():
        name = f"flap-{len(names)}"
        reply = await ask(
            conn, "submit", job(name, gpus=0, cpu_milli=10, memory_mib=16), tenant="team"
        )
        assert isinstance(reply, SubmitReply), reply
        names.append(name)
        await asyncio.sleep(0.01)


async def goes_on(world: Fleet, names: list[str]) -> None:
    """What is acknowledged from now on is placed."""
    count = len(names)

    async def more() -> bool:
        return len(names) > count

    await eventually(more)
    assert await world.placed(names[-1]) is not None


async def placements(log: EventLog, name: str) -> list[int]:
    recorded = decode_story(await log.story("team", name))
    return [each.event.attempt for each in recorded if isinstance(each.event, Placed)]


@story
async def test_flapping_lease_places_each_job_once(server: Server, tmp_path: Path) -> None:
    names: list[str] = []
    async with (
        fleet(server.url) as world,
        gateway(server.url),
        proxied(server.url) as left,
        proxied(server.url) as right,
    ):
        await world.report(gpus=8)
        replicas = [Replica(proxy, tmp_path) for proxy in (left, right)]
        one, two = replicas
        try:

            async def both_ready() -> bool:
                return all([await each.ready() for each in replicas])

            async def somebody() -> bool:
                return await holder(world.conn, replicas) is not None

            await eventually(both_ready)
            await eventually(somebody)
            over = asyncio.Event()
            async with task(submit_until(over, world.conn, names)) as submitting:
                for each in replicas:
                    each.seen.clear()
                async with task(one.look()), task(two.look()):
                    for turn in range(TURNS):
                        await take_away(world.conn, turn)
                        await eventually(somebody)
                        await goes_on(world, names)
                # Whoever sees the store is ready, with the lease or without; a busy machine may be
                # late with other things.
                looks = [look for each in replicas for look in each.seen]
                assert 200 in {code for code, _ in looks}
                assert [
                    told for code, told in looks if code != 200 and "lease" in told["why"]
                ] == []

                for _ in replicas:
                    deaf = await holder(world.conn, replicas)
                    assert deaf is not None
                    other = two if deaf is one else one

                    async def taken(by: Replica = other) -> bool:
                        return await holder(world.conn, replicas) is by

                    async def told(of: Replica = deaf) -> bool:
                        return not await of.ready()

                    with deaf.deaf():
                        await eventually(taken)
                        await goes_on(world, names)
                        await eventually(told)
                        assert deaf.seen[-1][1]["why"] == "not ready: lease"
                        assert await other.ready()
                    await eventually(both_ready)
                    assert await holder(world.conn, replicas) is other
                over.set()
                await submitting

            async def all_placed() -> bool:
                return (await audit(world.conn)).placements >= len(names)

            await eventually(all_placed)
        finally:
            for each in replicas:
                each.process.kill()
            for each in replicas:
                each.process.wait(hang_s())
        log = EventLog(world.conn)
        for name in names:
            assert await placements(log, name) == [1], name
        report = await audit(world.conn)
        counts = (report.submitted, report.waiting, report.placements, report.withdrawals)
        assert (report.findings, report.accounted) == ((), True), report
        assert counts == (len(names), len(names), len(names), 0), report
        repeated = replay(await read_inputs(world.conn), "all")
        assert repeated.equal == repeated.decisions > TURNS, repeated.first_difference

"""A workload that was frozen is looked at again when its reader starts again."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from berthmaster.cli.audit.report import audit
from berthmaster.control.resolver.replay import read_inputs, replay
from berthmaster.lib.event_log.snapshots import load
from berthmaster.lib.event_log.workload_log import EventLog
from berthmaster.lib.lifecycle.fold import LOST
from berthmaster.lib.lifecycle.instructions import Stored
from berthmaster.lib.lifecycle.workload import request_digest
from berthmaster.lib.messages.api import WhyReply
from berthmaster.lib.messages.workload import Claimed, Running, Succeeded
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.streams import WORKLOADS
from berthmaster.lib.supervisor.embedded import Server
from tests.bus.test_resolver import fleet, resolver
from tests.bus.tools import eventually, story
from tests.support.builders import job
from tests.support.patience import ANSWER_S


def test_an_event_that_nobody_can_read_freezes_until_a_restart_finds_it_cured(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        with Server(tmp_path) as server:
            async with fleet(server.url) as world:
                # No cluster has reported, so it waits; then comes what this version cannot read.
                await world.submit(job("a", gpus=1))
                subject = subjects.workload_event("team", "a", "reprioritized", None)
                strange = b'{"type": "workload.reprioritized.v9", "tenant": "team", "id": "a"}'
                acked = await world.conn.request(subject, strange, timeout_s=ANSWER_S)
                sequence = msgspec.json.decode(acked.data)["seq"]
                async with resolver(server.url, snapshot_s=1.0):
                    why = await world.ask("why", b'{"id": "a"}')
                    assert isinstance(why, WhyReply)
                    assert why.summary.startswith("frozen: ")
                    await world.report()
                    await world.submit(job("b", gpus=1))
                    assert await world.placed("b") is not None
                    why = await world.ask("why", b'{"id": "a"}')  # with room for it, too
                    assert isinstance(why, WhyReply)
                    assert why.summary.startswith("frozen: ")
                    for _ in range(500):
                        if await load(world.conn, "resolver-all") is not None:
                            break
                        await asyncio.sleep(0.02)

                # A person has looked, and took it out; a newer reader would have read it.
                await world.conn.api(f"STREAM.MSG.DELETE.{WORKLOADS}", {"seq": sequence})
                async with resolver(server.url):
                    assert await world.placed("a") is not None

    asyncio.run(story())


@story
async def test_what_nobody_can_read_freezes_its_job_or_stops_its_cell(server: Server) -> None:
    garbage = b"\x00 garbage"
    async with fleet(server.url) as world:
        await world.report(gpus=8)
        async with resolver(server.url):
            await world.submit(job("before", gpus=1))
            assert await world.placed("before") is not None
        await world.submit(job("a", gpus=1))
        where = subjects.workload_event("team", "a", "reprioritized", None)
        await world.conn.store(where, garbage, timeout_s=ANSWER_S)
        in_chain = await world.conn.store(subjects.decision("all"), garbage, timeout_s=ANSWER_S)
        async with resolver(server.url) as context:
            await world.submit(job("b", gpus=1))
            why = await world.why("b")
            assert isinstance(why, WhyReply)
            assert why.summary.startswith(f"waits: nothing is decided: decision {in_chain} of the")
            assert await world.placed("b", within_s=0.5) is None
            is_ready, reported = context.health.readiness()
            assert not is_ready
            assert "a newer version reads it" in str(reported)
            report = await audit(world.conn)
            assert report.frozen == 1
            assert {f.rule for f in report.findings} == {
                "every message can be read",
                "no workload is frozen",
            }
            assert not replay(await read_inputs(world.conn), "all").different


@story
async def test_a_job_of_which_events_are_missing_is_frozen_until_its_ending(
    server: Server,
) -> None:
    async with fleet(server.url) as world:
        log = EventLog(world.conn)
        await world.report(gpus=1)
        async with resolver(server.url):
            await world.submit(job("a", gpus=1))
            placed = await world.placed("a")
            assert placed is not None
        head: dict[str, Any] = {"tenant": "team", "id": "a", "by": "x", "at_s": 0.0}
        head |= {"attempt": 1, "cluster": "c1"}
        at = (await log.story("team", "a"))[-1].sequence
        claimed = await log.append(Claimed(**head, after=at, executor="x"))
        assert isinstance(claimed, Stored)
        running = await log.append(Running(**head, after=claimed.sequence, pods=placed.pods))
        assert isinstance(running, Stored)
        await world.conn.api(f"STREAM.MSG.DELETE.{WORKLOADS}", {"seq": claimed.sequence})
        async with resolver(server.url):

            async def is_frozen() -> bool:
                why = await world.why("a")
                return isinstance(why, WhyReply) and LOST in why.summary

            await eventually(is_frozen)
            report = await audit(world.conn)
            assert report.frozen == 1
            assert {f.rule for f in report.findings} == {"none is lost", "the logs are whole"}
            await world.submit(job("b", gpus=1))  # its GPU is not given away
            assert await world.placed("b", within_s=0.5) is None
            ending = Succeeded(
                **head,
                after=running.sequence,
                digest=request_digest(placed.request),
                submitted_at_s=placed.submitted_at_s,
            )
            assert isinstance(await log.append(ending), Stored)
            assert await world.placed("b") is not None
        repeated = replay(await read_inputs(world.conn), "all")
        assert (repeated.repeated, repeated.different) == (repeated.decisions, 0)

"""A workload that was frozen is looked at again when its reader starts again."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from berthmaster.audit.report import audit
from berthmaster.bus import subjects
from berthmaster.bus.embedded import Server
from berthmaster.bus.log import EventLog
from berthmaster.bus.snapshots import load
from berthmaster.bus.streams import WORKLOADS
from berthmaster.lifecycle.instructions import Stored
from berthmaster.logcheck import guard
from berthmaster.messages.api import OperatorReply, Refusal, WhyReply
from berthmaster.messages.workload import Claimed, Running
from berthmaster.resolver.replay import read_inputs, replay
from tests.bus.shells import client, gateway, order
from tests.bus.test_resolver import fleet, resolver
from tests.bus.tools import accept_log, declare_void, eventually, patiently, story
from tests.support.builders import job
from tests.support.patience import ANSWER_S, hang_s


def test_an_event_that_nobody_can_read_freezes_until_a_restart_finds_it_cured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "RECOVERY_S", 0.3)  # no executor is waited for here

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
                await accept_log(world.conn)
                async with resolver(server.url):
                    assert await world.placed("a") is not None

    asyncio.run(story())


@story
async def test_what_nobody_can_read_stops_until_a_person_declares_it_void(server: Server) -> None:
    garbage = b"\x00 garbage"
    async with fleet(server.url) as world:
        await world.report(gpus=8)
        async with resolver(server.url):
            await world.submit(job("before", gpus=1))
            assert await world.placed("before") is not None
        # A replica has begun; then comes garbage in a story and in the chain of decisions.
        await world.submit(job("a", gpus=1))
        where = subjects.workload_event("team", "a", "reprioritized", None)
        in_story = await world.conn.store(where, garbage, timeout_s=ANSWER_S)
        in_chain = await world.conn.store(subjects.decision("all"), garbage, timeout_s=ANSWER_S)
        async with resolver(server.url) as context:
            await world.submit(job("b", gpus=1))
            why = await world.why("b")
            assert isinstance(why, WhyReply)
            assert why.summary.startswith(f"waits: nothing is decided: decision {in_chain} of the")
            assert await world.placed("b", within_s=0.5) is None
            is_ready, told_ready = context.health.readiness()
            assert not is_ready
            assert "berth repair void" in str(told_ready)
            told = await audit(world.conn)
            assert told.frozen == 1
            assert {f.rule for f in told.findings} == {
                "every message can be read",
                "no workload is frozen",
            }
            assert not replay(await read_inputs(world.conn), "all").different
            # Whoever hears of it folds the log anew, which a service does by starting again.
            await declare_void(world.conn, in_story, in_chain)
            async with asyncio.timeout(hang_s()):
                while context.died is None:
                    await asyncio.sleep(0.02)
            context.died = None
        async with resolver(server.url):
            for name in ("a", "b"):
                placed = await world.placed(name)
                assert placed is not None
            # Of an older age of the log nobody need know any more that it was void.
        async with resolver(server.url):
            await world.submit(job("c"))
            assert await world.placed("c") is not None
        told = await audit(world.conn)
        assert (told.findings, told.frozen, told.declared_void) == ((), 0, 2)
        repeated = replay(await read_inputs(world.conn), "all")
        assert (repeated.repeated, repeated.different) == (repeated.decisions, 0)
        assert repeated.decisions >= 3


@story
async def test_what_lost_a_block_and_is_held_by_nobody_is_given_up_by_an_operator(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "RECOVERY_S", 0.3)
    async with fleet(server.url) as world, client(server.url) as conn:
        log = EventLog(world.conn)
        await world.report(gpus=1)
        async with resolver(server.url):
            await world.submit(job("a", gpus=1))
            placed = await world.placed("a")
            assert placed is not None
        told = {"tenant": "team", "id": "a", "by": "x", "at_s": 0.0, "attempt": 1, "cluster": "c1"}
        at = (await log.story("team", "a"))[-1].sequence
        claimed = await log.append(Claimed(**told, after=at, executor="x"))  # type: ignore[arg-type]
        assert isinstance(claimed, Stored)
        running = Running(**told, after=claimed.sequence, pods=placed.pods)  # type: ignore[arg-type]
        stored = await log.append(running)
        assert isinstance(stored, Stored)
        await world.conn.api(f"STREAM.MSG.DELETE.{WORKLOADS}", {"seq": claimed.sequence})
        await accept_log(world.conn)
        asked = {
            "tenant": "team",
            "id": "a",
            "sequence": stored.sequence,
            "reason": "nobody has it",
        }
        async with resolver(server.url), gateway(server.url):

            async def is_told() -> bool:
                why = await world.why("a")
                remedy = "`berth repair give-up team/a` ends it"
                return isinstance(why, WhyReply) and remedy in why.summary

            await eventually(is_told)
            report = await audit(world.conn)
            assert (report.frozen, report.given_up) == (1, 0)
            # Nothing else ends that way, and only what was looked at.
            await world.submit(job("b", gpus=1))
            sound = asked | {"id": "b", "sequence": (await log.story("team", "b"))[-1].sequence}
            for wrong, code in ((sound, "conflict"), (asked | {"sequence": 1}, "conflict")):
                refused = await patiently(lambda body=wrong: order(conn, "give_up", body))  # type: ignore[misc]
                assert isinstance(refused, Refusal)
                assert refused.code == code
            unknown = await order(conn, "give_up", asked | {"id": "nobody"})
            assert isinstance(unknown, Refusal)
            assert unknown.code == "not_found"
            done = await order(conn, "give_up", asked)
            assert isinstance(done, OperatorReply)
            again = await order(conn, "give_up", asked)
            assert isinstance(again, OperatorReply)
            assert again.sequence == done.sequence
            # Its GPU is the next one's.
            assert await world.placed("b") is not None
        report = await audit(world.conn)
        assert (report.frozen, report.given_up, report.cancelled) == (0, 1, 1)
        repeated = replay(await read_inputs(world.conn), "all")
        assert (repeated.repeated, repeated.different) == (repeated.decisions, 0)

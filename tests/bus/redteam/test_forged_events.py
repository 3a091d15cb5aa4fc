"""Lies in the log, written by somebody with every right to write: no job ends, waits or freezes by
them, and the audit says what it found.

A door and accounts keep such a writer out. These are the readers behind them, on a real server: the
gateway, the resolver and the door, which all fold the same log.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from berthmaster.cli.audit.report import audit
from berthmaster.lib.door_client.client import DoorClient
from berthmaster.lib.lifecycle.instructions import Refused, Stored
from berthmaster.lib.lifecycle.workload import request_digest
from berthmaster.lib.messages.api import GetReply, WhyReply
from berthmaster.lib.messages.families import encode
from berthmaster.lib.messages.workload import (
    Cancelled,
    CancelRequested,
    Claimed,
    Evicted,
    Failed,
    Placed,
    Running,
    Succeeded,
    WorkloadEvent,
)
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import ApiError
from berthmaster.lib.nats.message_subjects import event_subject
from berthmaster.lib.nats.streams import WORKLOADS, stream_info
from berthmaster.lib.supervisor.embedded import Server
from tests.bus.doors import door
from tests.bus.shells import ask, gateway
from tests.bus.test_resolver import Fleet, fleet, resolver
from tests.support.builders import job
from tests.support.patience import ANSWER_S, hang_s

TENANT, VICTIM, HOME, EVIL = "team", "victim", "c1", "c2"
ENDED: dict[str, Any] = {"attempt": 1, "digest": "d", "submitted_at_s": 1.0}


class Bus(Fleet):
    """A fleet, a job that runs in it, and somebody who writes what he likes."""

    def __init__(self, conn: Connection) -> None:
        super().__init__(conn)
        self.door = DoorClient(conn, HOME)

    async def last(self) -> int:
        return (await stream_info(self.conn, WORKLOADS)).state.last_seq

    async def put(self, subject: str, data: bytes) -> int:
        return await self.conn.store(subject, data, timeout_s=ANSWER_S)

    async def run(self, name: str) -> Placed:
        """Submitted, placed, claimed by its cluster's executor, and running."""
        await self.submit(job(name, gpus=1))
        placed = await self.placed(name)
        assert placed is not None
        after = await self.tell(Claimed, name, await self.tail(name), executor="honest")
        await self.tell(Running, name, after, pods=placed.pods)
        return placed

    async def tail(self, name: str) -> int:
        return (await self.log.story(TENANT, name))[-1].sequence

    async def tell(self, kind: Callable[..., Any], name: str, after: int, **more: Any) -> int:
        """As the executor does: by way of the door, which knows what may come next."""
        head: dict[str, Any] = {
            "tenant": TENANT,
            "id": name,
            "at_s": 0.0,
            "by": "honest",
            "cluster": HOME,
        }
        event = kind(**head, attempt=1, after=after, **more)
        for _ in range(200):
            outcome = await self.door.append(event)
            if isinstance(outcome, Stored):
                return outcome.sequence
            if isinstance(outcome, Refused):  # somebody wrote first: look again
                event = msgspec.structs.replace(event, after=await self.tail(name))
            await asyncio.sleep(0.02)
        raise AssertionError(f"{kind} is never stored")

    async def state(self, name: str = VICTIM) -> str:
        reply = await ask(self.conn, "get", b'{"id": "%s"}' % name.encode(), tenant=TENANT)
        assert isinstance(reply, GetReply), reply
        return reply.workload.state

    async def why_is(self, name: str) -> str:
        answer = await self.why(name)
        assert isinstance(answer, WhyReply), answer
        return answer.summary

    async def goes_on(self) -> None:
        """A job of somebody else still finds its place."""
        name = f"next-{await self.last()}"
        assert await self.goes(job(name, cpu_milli=100)) == HOME


def lies(after: int) -> list[WorkloadEvent]:
    """What would end, move or freeze a job that runs elsewhere, if anybody believed it."""
    head: dict[str, Any] = {"tenant": TENANT, "id": VICTIM, "at_s": 0.0, "by": "evil"}
    head["after"] = after
    there: dict[str, Any] = {**head, "cluster": EVIL, "attempt": 1}
    return [
        Succeeded(**{**there, **ENDED}),
        Failed(**{**there, **ENDED}, reason="no"),
        Cancelled(**{**there, **ENDED}),
        Running(**there, pods=()),
        Evicted(**there, reason="moved"),
        Claimed(**there, executor="evil"),
        CancelRequested(**head, cluster=EVIL),
    ]


def test_no_lie_ends_moves_or_freezes_a_job_that_runs_elsewhere(tmp_path: Path) -> None:
    async def story() -> None:
        with Server(tmp_path) as server:
            async with (
                fleet(server.url) as world,
                gateway(server.url),
                resolver(server.url),
                door(server.url),
            ):
                bus = Bus(world.conn)
                await bus.report(gpus=8)
                await bus.run(VICTIM)
                tail = await bus.tail(VICTIM)
                for after in (10**9, 0, 1, tail, "own-1"):
                    for lie in lies(0):
                        named = await bus.last() if after == "own-1" else int(after)
                        told = msgspec.structs.replace(lie, after=named)
                        await bus.put(event_subject(told), encode(told))
                # Subjects that no service of ours would make.
                for cluster in ("cancel", "lost", "-", "submitted"):
                    subject = f"berth.workload.{TENANT}.{VICTIM}.succeeded.{cluster}"
                    await bus.put(subject, encode(lies(await bus.last())[0]))
                await bus.goes_on()
                assert await bus.state() == "running"
                assert "frozen" not in await bus.why_is(VICTIM)
                # Its executor was refused once, and ends it all the same.
                digest = request_digest(job(VICTIM, gpus=1))
                await bus.tell(Succeeded, VICTIM, tail, digest=digest, submitted_at_s=1.0)
                async with asyncio.timeout(hang_s()):
                    while await bus.state() != "succeeded":
                        await asyncio.sleep(0.02)
                await bus.goes_on()
                report = await audit(bus.conn)
                rules = {finding.rule for finding in report.findings}
                assert "no forged event" in rules
                assert not rules & {"none is lost", "one ending", "no double booking"}

    asyncio.run(story())


def test_a_lie_on_an_unused_id_does_not_keep_its_job_from_running(tmp_path: Path) -> None:
    async def story() -> None:
        with Server(tmp_path) as server:
            async with (
                fleet(server.url) as world,
                gateway(server.url),
                resolver(server.url),
                door(server.url),
            ):
                bus = Bus(world.conn)
                await bus.report(gpus=8)
                head: dict[str, Any] = {"tenant": TENANT, "id": "later", "at_s": 0.0, "by": "evil"}
                lie = Running(**head, after=3, cluster=EVIL, attempt=1, pods=())
                await bus.put(event_subject(lie), encode(lie))
                reply = await ask(bus.conn, "submit", job("later", gpus=1), tenant=TENANT)
                assert type(reply).__name__ == "SubmitReply", reply
                assert await bus.placed("later") is not None

    asyncio.run(story())


def test_bytes_that_nobody_can_read_freeze_one_job_and_hold_up_no_other(tmp_path: Path) -> None:
    async def story() -> None:
        with Server(tmp_path) as server:
            async with (
                fleet(server.url) as world,
                gateway(server.url),
                resolver(server.url),
                door(server.url),
            ):
                bus = Bus(world.conn)
                await bus.report(gpus=8)
                await bus.submit(job("hit", gpu_models=("H100",)))  # it waits: nobody has one
                subject = subjects.workload_event(TENANT, "hit", "reprioritized", None)
                await bus.put(subject, b"\xff\x00 no event at all")
                await bus.report(gpus=8)
                await bus.goes_on()
                assert "frozen" in await bus.why_is("hit")

    asyncio.run(story())


def test_the_server_takes_no_lie_with_a_guard_that_is_wrong(tmp_path: Path) -> None:
    async def story() -> None:
        with Server(tmp_path) as server:
            async with fleet(server.url) as world:
                bus = Bus(world.conn)
                await bus.submit(job(VICTIM))
                guard = {
                    "Nats-Expected-Last-Subject-Sequence": "0",
                    "Nats-Expected-Last-Subject-Sequence-Subject": subjects.aggregate(
                        TENANT, VICTIM
                    ),
                }
                [lie, *_] = lies(0)
                with pytest.raises(ApiError):
                    await bus.conn.store(event_subject(lie), encode(lie), headers=guard)

    asyncio.run(story())

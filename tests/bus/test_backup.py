"""A backup that is taken while everything runs; one server, and three."""

import asyncio
from collections.abc import Awaitable, Callable, Set
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from berthmaster.cli.backup.take import NotTheSame, take
from berthmaster.cli.recover.build import Recovery
from berthmaster.cli.recover.copies import read_backup
from berthmaster.cli.recover.holdings import Answers
from berthmaster.lib.event_log.marks import all_damage
from berthmaster.lib.messages.api import Refusal, SubmitReply
from berthmaster.lib.messages.families import API_REPLIES, EVENTS, encode
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.nats.stream_messages import Recorded
from berthmaster.lib.nats.stream_reads import read_all
from berthmaster.lib.nats.streams import WORKLOADS, stream_info
from berthmaster.lib.supervisor.embedded import Server, ServerCluster, ServerConfig
from tests.bus.log_damage import cut, services
from tests.bus.shells import client, in_loop
from tests.bus.test_resolver import Fleet
from tests.bus.tools import connected
from tests.support.builders import job
from tests.support.patience import ANSWER_S, hang_s, until

T = TypeVar("T")
EVERYTHING = [subjects.ALL_WORKLOADS, subjects.ALL_DECISIONS]
Message = tuple[str, int, float, bytes]


async def messages(conn: Connection) -> list[Message]:
    found: list[Message] = []

    def each(one: Recorded) -> None:
        found.append((one.subject, one.sequence, one.stored_at_s, one.data))

    await read_all(conn, WORKLOADS, EVERYTHING, each)
    return found


JOBS = 40


async def submit(conn: Connection, name: str) -> SubmitReply | Refusal:
    reply = await conn.request(
        subjects.api("team", "submit"), encode(job(name)), timeout_s=ANSWER_S
    )
    answer = API_REPLIES.decode(reply.data)
    assert isinstance(answer, SubmitReply | Refusal)
    return answer


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*.seg")}


@in_loop
async def test_a_backup_taken_while_jobs_come_adds_only_what_is_new(
    server: Server, tmp_path: Path
) -> None:
    folder = tmp_path / "backup"
    async with client(server.url) as conn, services(server.url) as side:
        await Fleet(conn).report(gpus=2 * JOBS)
        await until(lambda: side.ready)
        for number in range(JOBS):
            assert isinstance(await submit(conn, f"early-{number}"), SubmitReply)
        jobs = asyncio.gather(*(submit(conn, f"late-{number}") for number in range(JOBS)))
        first = {one.stream: one for one in await take(conn, folder)}[WORKLOADS]
        await jobs
        kept = contents(folder)
        second = {one.stream: one for one in await take(conn, folder)}[WORKLOADS]
        assert first.added == first.last >= JOBS
        assert second.added == second.last - first.last > 0
        assert kept.items() <= contents(folder).items()
    async with client(server.url) as conn:
        await take(conn, folder)
        assert {one.added for one in await take(conn, folder)} == {0}
        kept_events = [e.event for e in read_backup(folder).log.events]
        assert kept_events == [
            EVENTS.decode(data)
            for subject, _, _, data in await messages(conn)
            if not subjects.is_decision(subject)
        ]


@in_loop
async def test_backup_of_another_history_is_refused(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    async with client(server.url) as conn:
        for number in range(30):
            await Fleet(conn).submit(job(f"job-{number}"))
        await take(conn, folder)
    kept = contents(folder)
    cut(server)
    server.start()
    async with client(server.url) as conn:
        with pytest.raises(NotTheSame, match="ends at"):
            await take(conn, folder)
        last = (await stream_info(conn, WORKLOADS)).state.last_seq
        for number in range(40 - last):  # longer than it was, with other jobs
            await Fleet(conn).submit(job(f"other-{number}"))
        with pytest.raises(NotTheSame, match="another message"):
            await take(conn, folder)
    assert contents(folder) == kept


@in_loop
async def test_one_bad_replica_of_three_heals_by_itself_and_nothing_stops(
    tmp_path: Path,
) -> None:
    with ServerCluster(tmp_path / "three", config=ServerConfig(sync="default")) as three:
        async with connected(three.url, replicas=3) as conn, services(three.url) as side:
            await Fleet(conn).report(gpus=2 * JOBS)
            await until(lambda: side.ready)
            for number in range(JOBS):
                assert isinstance(await submit(conn, f"job-{number}"), SubmitReply)
            assert await Fleet(conn).placed(f"job-{JOBS - 1}") is not None
            before = await messages(conn)
            harmed = three.servers[0]
            cut(harmed)
            harmed.start()
            harmed.wait_healthy(20)
            await led_by(conn, harmed.config.name)  # what it could not read it has fetched
            after = await patiently(lambda: messages(conn))
            assert after[: len(before)] == before
            assert await patiently(lambda: all_damage(conn)) == []
            assert b"log damaged" not in side.said.getvalue()
            async with asyncio.timeout(hang_s()):
                while not isinstance(await submit(conn, "after"), SubmitReply):
                    await asyncio.sleep(0.2)
            await Fleet(conn).report(gpus=2 * JOBS)
            assert await Fleet(conn).placed("after") is not None


@in_loop
async def test_a_log_of_one_server_is_recovered_on_three(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    async with client(server.url) as conn:
        for number in range(60):
            await Fleet(conn).submit(job(f"job-{number}"))
        await take(conn, folder)
        before = await messages(conn)
    with ServerCluster(tmp_path / "three", config=ServerConfig(sync="default")) as three:
        async with connected(three.url, replicas=3) as conn:

            async def nobody(_: Set[str]) -> Answers:
                return Answers((), frozenset())

            recovery = Recovery(conn, nobody, backup=folder, without=frozenset("*"))
            report = await recovery.build("a test")
            assert (report.carried, report.silent) == (60, ())
            found = await messages(conn)
            assert [one[1] for one in found] == list(range(report.first, report.first + 60))
            assert report.first > max(one[1] for one in before)
            info = msgspec.json.decode(await conn.api(f"STREAM.INFO.{WORKLOADS}"))
            assert info["config"]["num_replicas"] == 3
            for leading in three.servers:
                await led_by(conn, leading.config.name)
                assert await patiently(lambda: messages(conn)) == found
            assert await patiently(lambda: all_damage(conn)) == []


async def led_by(conn: Connection, name: str) -> None:
    """Until this server leads the log, so that it is what is read."""
    where = {"placement": {"preferred": name}}
    async with asyncio.timeout(hang_s()):
        while True:
            with suppress(BusError):  # elections go on
                raw = await conn.api(f"STREAM.INFO.{WORKLOADS}", timeout_s=1.0)
                if msgspec.json.decode(raw)["cluster"].get("leader") == name:
                    return
                await conn.api(f"STREAM.LEADER.STEPDOWN.{WORKLOADS}", where, timeout_s=1.0)
            await asyncio.sleep(1.0)


async def patiently(work: Callable[[], Awaitable[T]]) -> T:
    """What it says once the servers have found each other again."""
    async with asyncio.timeout(hang_s()):
        while True:
            with suppress(BusError):
                return await work()
            await asyncio.sleep(0.2)

"""A backup that is taken while everything runs, and a bus that is made from it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from berthmaster.audit.report import audit
from berthmaster.backup.restore import NotEmpty, restore
from berthmaster.backup.take import NotTheSame, take
from berthmaster.bus import subjects
from berthmaster.bus.connection import Connection
from berthmaster.bus.embedded import Server, ServerCluster, ServerConfig
from berthmaster.bus.errors import BusError
from berthmaster.bus.follow import Recorded
from berthmaster.bus.read import read_all
from berthmaster.bus.streams import WORKLOADS, ensure_streams, stream_info
from berthmaster.logcheck import guard
from berthmaster.logcheck.examine import examine
from berthmaster.messages.api import CancelRequest, ChangeReply, SubmitReply
from berthmaster.messages.families import API_REPLIES, encode
from berthmaster.messages.records import ArchivedStory
from tests.bus.shells import client, in_loop
from tests.bus.test_log_damage import JOBS, cut, side, stored_story, submit
from tests.bus.test_resolver import Fleet
from tests.bus.tools import accept_log, connected
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


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*.seg")}


@in_loop
async def test_a_bus_that_is_made_from_a_backup_goes_on_where_that_was_taken(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "RECOVERY_S", 0.3)  # no executor is waited for here
    folder = tmp_path / "backup"
    async with client(server.url) as conn, side(server.url) as both:
        await Fleet(conn).report(gpus=2 * JOBS)
        await until(lambda: both.ready)
        for number in range(JOBS):
            assert isinstance(await submit(conn, f"early-{number}"), SubmitReply)
        # Taken while jobs come in, and again when there are more: only what is new is added.
        jobs = asyncio.gather(*(submit(conn, f"late-{number}") for number in range(JOBS)))
        first = {one.stream: one for one in await take(conn, folder)}[WORKLOADS]
        await jobs
        assert isinstance(await submit(conn, "last"), SubmitReply)
        kept = contents(folder)
        second = {one.stream: one for one in await take(conn, folder)}[WORKLOADS]
        assert first.added == first.last >= JOBS
        assert second.added == second.last - first.last > 0
        assert kept.items() <= contents(folder).items()
        assert await Fleet(conn).placed("early-0") is not None
    async with client(server.url) as conn:
        await take(conn, folder)
        assert {one.added for one in await take(conn, folder)} == {0}
        before = await messages(conn)

    with Server(tmp_path / "new", ServerConfig(sync="default")) as new:
        async with client(new.url) as conn:
            restored = {one.stream: one for one in await restore(conn, folder)}[WORKLOADS]
            assert restored.messages == len(before)
            assert await messages(conn) == before  # numbers, times, subjects, payloads
            assert await examine(conn) == []
            with pytest.raises(NotEmpty, match=f"{len(before)} messages up to"):
                await restore(conn, folder)
            async with side(new.url) as both:
                await Fleet(conn).report(gpus=4 * JOBS)
                await until(lambda: both.ready)
                again = await submit(conn, "early-0")
                assert isinstance(again, SubmitReply)  # the same request: known, and not stored
                ask = encode(CancelRequest(id="early-1"))
                reply = await conn.request(subjects.api("team", "cancel"), ask, timeout_s=ANSWER_S)
                assert isinstance(API_REPLIES.decode(reply.data), ChangeReply)
                assert isinstance(await submit(conn, "anew"), SubmitReply)
                placed = await Fleet(conn).placed("anew")
                assert placed is not None
                assert (await messages(conn))[: len(before)] == before
            findings = (await audit(conn)).findings
            assert [each for each in findings if each.rule == "the logs are whole"] == []


@in_loop
async def test_restore_brings_back_lost_stories_only(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    async with client(server.url) as conn:
        story = await stored_story(conn)
        for number in range(3):
            await Fleet(conn).submit(job(f"job-{number}"))
        await take(conn, folder)
        archived = ArchivedStory(tenant="team", id="old", events=tuple(story))
        await conn.request(subjects.archive("team", "old"), encode(archived), timeout_s=ANSWER_S)
        for sequence in (1, 4):  # the one that the archive has, and one that nobody has
            await conn.api(f"STREAM.MSG.DELETE.{WORKLOADS}", {"seq": sequence})
        await take(conn, folder)
    with Server(tmp_path / "new", ServerConfig(sync="default")) as new:
        async with client(new.url) as conn:
            await restore(conn, folder)
            assert [sequence for _, sequence, _, _ in await messages(conn)] == [2, 3, 4, 5]
    async with client(server.url) as conn:  # what comes now is decided without number 4
        await accept_log(conn)
        await take(conn, folder)
    with Server(tmp_path / "newest", ServerConfig(sync="default")) as newest:
        async with client(newest.url) as conn:
            await restore(conn, folder)
            assert [sequence for _, sequence, _, _ in await messages(conn)] == [2, 3, 5]
            assert await examine(conn) == []


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
        await accept_log(conn)
        last = (await stream_info(conn, WORKLOADS)).state.last_seq
        for number in range(40 - last):  # longer than it was, with other jobs
            await Fleet(conn).submit(job(f"other-{number}"))
        with pytest.raises(NotTheSame, match="another message"):
            await take(conn, folder)
    assert contents(folder) == kept


@in_loop
async def test_backup_of_one_server_restores_three(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    async with client(server.url) as conn:
        for number in range(60):
            await Fleet(conn).submit(job(f"job-{number}"))
        await take(conn, folder)
        before = await messages(conn)
    with ServerCluster(tmp_path / "three", config=ServerConfig(sync="default")) as three:
        async with connected(three.url, replicas=3) as conn:
            await restore(conn, folder)
            assert await messages(conn) == before
            await ensure_streams(conn, replicas=3)

            # One server's copy is damaged: it fetches from the others what it cannot read.
            harmed = three.servers[0]
            cut(harmed)
            harmed.start()
            harmed.wait_healthy(20)
            await led_by(conn, harmed.config.name)
            assert await patiently(lambda: messages(conn)) == before
            assert await patiently(lambda: examine(conn)) == []


@in_loop
async def test_another_leader_of_restored_streams_does_not_halt_what_is_decided(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "RECOVERY_S", 0.3)  # no executor is waited for here
    monkeypatch.setattr(guard, "SETTLE_S", 0.3)
    monkeypatch.setattr(guard, "LOOK_S", 0.2)
    folder = tmp_path / "backup"
    async with client(server.url) as conn:
        for number in range(3):
            await Fleet(conn).submit(job(f"job-{number}"))
        await take(conn, folder)
    with ServerCluster(tmp_path / "three", config=ServerConfig(sync="default")) as three:
        async with connected(three.url, replicas=3) as conn:
            await restore(conn, folder)
            makings = {(await stream_info(conn, WORKLOADS)).making}
            async with side(three.url) as both:
                await Fleet(conn).report(gpus=16)
                await until(lambda: both.ready)
                for number, leading in enumerate(three.servers[:2]):
                    await led_by(conn, leading.config.name)
                    info = await patiently(lambda: stream_info(conn, WORKLOADS))
                    makings.add(info.making)
                    await asyncio.sleep(1.0)  # each looks several times
                    assert b"a log is damaged" not in both.said.getvalue()
                    async with asyncio.timeout(hang_s()):
                        while not isinstance(await submit(conn, f"after-{number}"), SubmitReply):
                            await asyncio.sleep(0.2)
                    await Fleet(conn).report(gpus=16)
                    assert await Fleet(conn).placed(f"after-{number}") is not None
            assert len(makings) == 1
            assert await patiently(lambda: examine(conn)) == []


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

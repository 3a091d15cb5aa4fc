"""The archivist on a real server: stories move, tombstones stay, whoever is killed and when."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from berthmaster.control.archivist.archive_writer import ArchiveWriter
from berthmaster.control.archivist.core.events import Removed
from berthmaster.control.archivist.core.instructions import RemoveDecision
from berthmaster.control.archivist.effects import Effects
from berthmaster.control.archivist.service import main as archivist_main
from berthmaster.control.archivist.settings import ArchivistSettings
from berthmaster.lib.event_log.workload_log import EventLog, decode_story
from berthmaster.lib.lifecycle.workload import request_digest
from berthmaster.lib.messages.api import GetReply, GetRequest, RecordedEvent, SubmitReply
from berthmaster.lib.messages.families import ARCHIVED_STORIES
from berthmaster.lib.messages.workload import Cancelled, JobRequest, Submitted
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.stream_messages import Message
from berthmaster.lib.nats.stream_reads import next_message
from berthmaster.lib.nats.streams import (
    ARCHIVE,
    WORKLOADS,
    ensure_streams,
    stream_configs,
    stream_info,
)
from berthmaster.lib.runtime.service import Context
from berthmaster.lib.supervisor.embedded import Server
from tests.bus.shells import ask, client, gateway, in_loop, running, store
from tests.support.patience import ANSWER_S, eventually, hang_s

NOW: dict[str, Any] = {"story_after_s": 0.0, "tombstone_days": 30.0, "decision_after_s": 0.0}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "nats") as started:
        yield started


@asynccontextmanager
async def archivist(url: str, **settings: Any) -> AsyncIterator[Context[ArchivistSettings]]:
    chosen = ArchivistSettings(nats_url=url, http_port=-1, **(NOW | settings))
    async with running("archivist", chosen, archivist_main) as ctx:
        yield ctx


async def end(
    conn: Connection, name: str, request: JobRequest | None = None
) -> list[RecordedEvent]:
    """A short life: submitted and cancelled. Its story as the log has it."""
    request = request or JobRequest(id=name)
    digest = request_digest(request)
    common: dict[str, Any] = {"tenant": "ann", "id": name, "at_s": 1.0, "by": "test"}
    first = await store(conn, Submitted(**common, after=0, request=request, digest=digest))
    await store(conn, Cancelled(**common, after=first, digest=digest, submitted_at_s=1.0))
    return decode_story(await EventLog(conn).story("ann", name))


async def in_log(conn: Connection, name: str) -> list[int]:
    return [m.sequence for m in await EventLog(conn).story("ann", name)]


async def archived(conn: Connection, name: str) -> list[list[RecordedEvent]]:
    bucket = await under(conn, ARCHIVE, subjects.archive("ann", name))
    stories = [ARCHIVED_STORIES.decode(m.data) for m in bucket]
    return [list(story.events) for story in stories if story.id == name]


async def under(conn: Connection, stream: str, subject: str) -> list[Message]:
    messages: list[Message] = []
    while found := await next_message(
        conn, stream, subject, messages[-1].sequence + 1 if messages else 1
    ):
        messages.append(found)
    return messages


@in_loop
async def test_archivist_moves_ended_story_and_keeps_tombstone(server: Server) -> None:
    async with client(server.url) as conn, gateway(server.url):
        await ask(conn, "submit", JobRequest(id="open"))
        story = await end(conn, "train")
        async with archivist(server.url):
            await eventually(lambda: is_tombstone(conn, story))
        assert await archived(conn, "train") == [story]
        assert len(await in_log(conn, "open")) == 1
        # The gateway tells the whole story all the same, and the id stays used.
        reply = await ask(conn, "get", GetRequest(id="train", story=True))
        assert isinstance(reply, GetReply)
        assert (reply.story, reply.request) == (tuple(story), JobRequest(id="train"))
        again = await ask(conn, "submit", JobRequest(id="train"))
        assert again == SubmitReply(
            tenant="ann", id="train", sequence=story[-1].sequence, existing=True, state="cancelled"
        )


async def is_tombstone(conn: Connection, story: list[RecordedEvent]) -> bool:
    return await in_log(conn, story[-1].event.id) == [story[-1].sequence]


@in_loop
async def test_a_tombstone_goes_when_its_days_are_over_and_the_id_is_free(server: Server) -> None:
    async with client(server.url) as conn, gateway(server.url):
        story = await end(conn, "train")
        async with archivist(server.url, tombstone_days=0.0):
            await eventually(lambda: is_gone(conn, "train"))
        assert await archived(conn, "train") == [story]
        reply = await ask(conn, "get", GetRequest(id="train", story=True))
        assert isinstance(reply, GetReply)
        assert (reply.workload.state, reply.story) == ("cancelled", tuple(story))

        second = await end(conn, "train", JobRequest(id="train", priority=7))
        assert second[0].sequence > story[-1].sequence
        async with archivist(server.url):
            await eventually(lambda: is_tombstone(conn, second))
        assert await archived(conn, "train") == [story, second]
        reply = await ask(conn, "get", GetRequest(id="train", story=True))
        assert isinstance(reply, GetReply)
        assert reply.story == tuple(second)


async def is_gone(conn: Connection, name: str) -> bool:
    return await in_log(conn, name) == []


@in_loop
async def test_archivist_killed_before_purge_loses_nothing(server: Server) -> None:
    async with client(server.url) as conn:
        stories: dict[str, list[RecordedEvent]] = {}
        copied = asyncio.Event()
        await conn.subscribe(subjects.ALL_ARCHIVE, lambda *_: copied.set())
        caught = rounds = 0
        for round_ in range(40):
            names = [f"j-{round_}-{n}" for n in range(20)]
            ended = await asyncio.gather(*(end(conn, name) for name in names))
            stories |= dict(zip(names, ended, strict=True))
            copied.clear()
            rounds += 1
            process = start_archivist(server.url)
            try:
                await asyncio.wait_for(copied.wait(), hang_s())
                await asyncio.sleep(0.0005 * (round_ % 4))
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait(hang_s())
            await conn.request(
                "$JS.API.INFO", b"", timeout_s=ANSWER_S
            )  # all that it had sent has arrived by now
            for name in names:
                if await archived(conn, name) and len(await in_log(conn, name)) == 2:
                    caught += 1
            if caught:
                break
        assert caught, "never killed between copy and purge: the test shows nothing"
        async with archivist(server.url), archivist(server.url):
            for name, story in stories.items():
                await eventually(partial(is_tombstone, conn, story))
                copies = await archived(conn, name)
                assert copies[0] == story
                again = {e.sequence for copy in copies[1:] for e in copy}
                assert again <= {e.sequence for e in story}
        info = await stream_info(conn, ARCHIVE)
        assert len(stories) <= info.state.messages <= len(stories) + 20 * rounds


def start_archivist(url: str) -> "subprocess.Popen[bytes]":
    argv = [sys.executable, "-m", "berthmaster.cli.main", "serve", "archivist"]
    flags = ["--http-port=-1", "--story-after-s=0", "--log-level=error"]
    return subprocess.Popen([*argv, *flags], env=os.environ | {"BERTH_NATS_URL": url})


@in_loop
async def test_to_remove_a_decision_twice_is_no_failure(server: Server) -> None:
    async with client(server.url) as conn:
        for _ in range(2):
            await conn.request(subjects.decision("all"), b"{}", timeout_s=ANSWER_S)
        library = Effects(conn)
        step = RemoveDecision(ref="r", sequence=1)
        assert await library.perform(step, b"") == Removed(ref="r")
        assert await library.perform(step, b"") == Removed(ref="r")
        messages = await under(conn, WORKLOADS, subjects.decision("all"))
        assert [m.sequence for m in messages] == [2]


@in_loop
async def test_many_writes_to_the_archive_are_one_batch(server: Server) -> None:
    async with client(server.url) as conn:
        writer = ArchiveWriter(conn)
        written = await asyncio.gather(*(writer.write("berth.archive.x", b"a") for _ in range(60)))
        assert written == [""] * 60
        assert writer.batches == 1  # the loop began it when all of them were waiting
        assert len(await under(conn, ARCHIVE, "berth.archive.x")) == 60

        await asyncio.gather(*(writer.write("berth.archive.x", b"b") for _ in range(250)))
        assert writer.batches == 1 + 3  # a hundred in each at most

        # A large one goes by itself.
        assert await writer.write("berth.archive.y", b"d" * 200_000) == ""
        assert writer.batches == 4
    gone = await asyncio.gather(*(writer.write("berth.archive.x", b"e") for _ in range(3)))
    assert all(gone)


@in_loop
async def test_an_archive_that_was_made_without_batches_learns_them(server: Server) -> None:
    async with client(server.url, streams=False) as conn:
        (config,) = (c for c in stream_configs() if c["name"] == ARCHIVE)
        old = {key: value for key, value in config.items() if key != "allow_atomic"}
        await conn.api(f"STREAM.CREATE.{ARCHIVE}", old)
        writer = ArchiveWriter(conn)
        await asyncio.gather(*(writer.write("berth.archive.x", b"a") for _ in range(3)))
        assert (writer.batches, (await stream_info(conn, ARCHIVE)).state.messages) == (0, 3)
        await ensure_streams(conn)
        await asyncio.gather(*(writer.write("berth.archive.x", b"b") for _ in range(3)))
        assert (writer.batches, (await stream_info(conn, ARCHIVE)).state.messages) == (1, 6)


@in_loop
async def test_an_archive_keeps_a_bounded_number_of_subjects(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subjects, "ARCHIVE_BUCKETS", 4)
    async with client(server.url) as conn, gateway(server.url):
        stories = {name: await end(conn, name) for name in (f"job-{n}" for n in range(40))}
        async with archivist(server.url):
            for story in stories.values():
                await eventually(partial(is_tombstone, conn, story))
        state = (await stream_info(conn, ARCHIVE)).state
        assert (state.messages, state.num_subjects) == (40, 4)
        for name, story in stories.items():
            reply = await ask(conn, "get", GetRequest(id=name, story=True))
            assert isinstance(reply, GetReply)
            assert reply.story == tuple(story)

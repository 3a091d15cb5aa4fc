"""Many stories at once, each as whole as if it were read alone: on a real server."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from berthmaster.lib.event_log import story_reader
from berthmaster.lib.event_log.story_reader import StoryReader
from berthmaster.lib.event_log.workload_log import EventLog, Part, send_batch
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.streams import WORKLOADS
from berthmaster.lib.supervisor.embedded import Server
from tests.bus.shells import client, in_loop
from tests.support.patience import ANSWER_S


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "nats") as started:
        yield started


async def write(conn: Connection, name: str, *kinds: str) -> None:
    parts: list[Part] = [
        (subjects.workload_event("ann", name, kind, None), f"{name} {number}".encode(), {})
        for number, kind in enumerate(kinds)
    ]
    await send_batch(conn, parts, timeout_s=ANSWER_S)


@in_loop
async def test_many_stories_come_by_one_request_and_are_what_each_is_alone(server: Server) -> None:
    async with client(server.url) as conn:
        log = EventLog(conn)
        names = [f"job.{number}" for number in range(40)]
        for name in names:
            await write(conn, name, "submitted", "placed", "claimed", "succeeded")
        reader = StoryReader(conn, log)
        read = await asyncio.gather(*(reader.read("ann", name) for name in (*names, "nobody")))
        assert read == [await log.story("ann", name) for name in names] + [[]]
        assert (reader.batches, reader.alone) == (1, 0)

        # One that happened twice: the batch tells the last of each subject only.
        await write(conn, "twice", "submitted", "placed", "withdrawn", "placed", "cancelled")
        twice, other = await asyncio.gather(
            reader.read("ann", "twice"), reader.read("ann", names[0])
        )
        assert [message.data for message in twice] == [f"twice {n}".encode() for n in range(5)]
        assert other == read[0]
        assert (reader.batches, reader.alone) == (2, 1)

        # What leaves the log between both looks is no part of the story.
        taken = asyncio.create_task(reader.read("ann", names[1]))
        while reader.batches == 2:
            await asyncio.sleep(0)
        await conn.api(f"STREAM.MSG.DELETE.{WORKLOADS}", {"seq": read[1][0].sequence})
        assert len(await taken) in (3, 4)  # as the leader had it when it was asked
        assert await reader.read("ann", names[1]) == read[1][1:]


@in_loop
async def test_more_than_the_server_brings_at_once_is_read_story_by_story(server: Server) -> None:
    async with client(server.url) as conn:
        names = [f"job-{number}" for number in range(8)]
        for name in names:
            await write(conn, name, *(f"kind-{number}" for number in range(130)))
        reader = StoryReader(conn, EventLog(conn))
        read = await asyncio.gather(*(reader.read("ann", name) for name in names))
        assert [len(story) for story in read] == [130] * 8
        assert (reader.batches, reader.alone) == (1, 8)


@in_loop
async def test_who_may_not_ask_for_many_reads_each_by_itself(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(story_reader, "GET_TIMEOUT_S", 0.05)
    monkeypatch.setattr(story_reader, "ASK", "berth.nobody.answers")
    async with client(server.url) as conn, client(server.url) as silent:
        await silent.subscribe("berth.nobody.answers", lambda *_: None)
        await silent.flush()
        for name in ("one", "two"):
            await write(conn, name, "submitted", "cancelled")
        reader = StoryReader(conn, EventLog(conn))
        read = [await reader.read("ann", name) for name in ("one", "two")]
        assert [[m.data for m in story] for story in read] == [
            [b"one 0", b"one 1"],
            [b"two 0", b"two 1"],
        ]
        assert (reader.batches, reader.alone) == (0, 2)

"""A large log and a server that is behind: what it is asked is cheap, bounded, and not repeated."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from berthmaster.control.archivist.core.events import Removed
from berthmaster.control.archivist.core.instructions import RemoveEvents
from berthmaster.control.archivist.effects import Effects
from berthmaster.lib.event_log import workload_log
from berthmaster.lib.event_log.workload_log import EventLog, send_batch
from berthmaster.lib.lifecycle.instructions import Stored
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import NoAnswer
from berthmaster.lib.nats.stream_reads import last_message
from berthmaster.lib.nats.streams import CONTROL, WORKLOADS, stream_info
from berthmaster.lib.nats.window import FIRST
from berthmaster.lib.supervisor.embedded import Server
from tests.bus.proxy import Passing, Proxy, proxied
from tests.bus.tools import connected, patiently, story, submitted
from tests.support.patience import ANSWER_S, hang_s, until

WORKLOADS_COUNT = 1500
STAGES = ("submitted", "placed", "claimed", "admitted", "running", "succeeded")
CLUSTERS = tuple(f"c{number}" for number in range(12))
OPEN = 300  # workloads whose events mix


def name(number: int) -> str:
    return f"job-{number:04d}"


async def fill(conn: Connection) -> None:
    """Whole lives of many workloads, mixed as they are when many run, and decisions among them."""
    chance = random.Random(7)
    waiting = list(range(WORKLOADS_COUNT))
    alive: list[tuple[str, str, list[str]]] = []
    parts: list[tuple[str, bytes, dict[str, str]]] = []
    while waiting or alive:
        while waiting and len(alive) < OPEN:
            alive.append((name(waiting.pop()), chance.choice(CLUSTERS), list(STAGES)))
        one = chance.choice(alive)
        workload, cluster, left = one
        kind = left.pop(0)
        place = None if kind == "submitted" else cluster
        parts.append((subjects.workload_event("acme", workload, kind, place), b"x" * 400, {}))
        if kind == "placed" and chance.random() < 0.3:
            parts.append((subjects.decision("all"), b"y" * 400, {}))
        if not left:
            alive.remove(one)
        if len(parts) >= 900 or not (waiting or alive):
            await send_batch(conn, parts, timeout_s=ANSWER_S)
            parts = []


@asynccontextmanager
async def large(server: Server) -> AsyncIterator[Connection]:
    """A connection to a server with such a log, which was killed and started anew: all is cold."""
    async with connected(server.url, replicas=1) as conn:
        await fill(conn)
        server.kill()
        server.start()
        await patiently(lambda: stream_info(conn, WORKLOADS))
        yield conn


@story
async def test_all_stories_of_a_large_cold_log_are_read_at_the_first_try(server: Server) -> None:
    async with large(server) as conn:
        log = EventLog(conn)
        numbers = iter(range(WORKLOADS_COUNT))
        read: Counter[int] = Counter()

        async def reader() -> None:
            for number in numbers:
                messages = await log.story("acme", name(number))
                kinds = [subjects.parse_workload_event(m.subject).kind for m in messages]
                assert kinds == list(STAGES)
                assert sorted(messages, key=lambda m: m.sequence) == messages
                read[number] += 1

        await asyncio.gather(*(reader() for _ in range(200)))
        assert len(read) == WORKLOADS_COUNT
        assert set(read.values()) == {1}


@story
async def test_events_that_are_gone_already_are_removed_all_the_same(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        log, library = EventLog(conn), Effects(conn)
        for number in range(3):
            await log.append(submitted(name(number)))
        first = await library.perform(RemoveEvents(ref="r", sequences=(3, 1)), b"")
        again = await library.perform(RemoveEvents(ref="r", sequences=(3, 2, 1)), b"")
        assert (first, again) == (Removed(ref="r"), Removed(ref="r"))
        assert (await stream_info(conn, WORKLOADS)).state.messages == 0


class Asked:
    """What passed a proxy on its way to the server: requests to JetStream's API and writes."""

    def __init__(self, proxy: Proxy) -> None:
        self.requests: Counter[tuple[bytes, bytes]] = Counter()
        self.writes: Counter[bytes] = Counter()
        proxy.to_server = self._passes

    def reads(self) -> dict[bytes, int]:
        found = self.requests.items()
        return {body: count for (subject, body), count in found if b".MSG.GET." in subject}

    def _passes(self, passing: Passing) -> bool:
        words = passing.line.split()
        if words[0] in (b"PUB", b"HPUB"):
            if words[1].startswith(b"$JS.API."):
                self.requests[words[1], passing.payload] += 1
            elif words[1].startswith(b"berth.workload."):
                self.writes[words[1]] += 1
        return False


@story
async def test_archiving_removes_each_event_and_purges_nothing(server: Server) -> None:
    """For a purge the server counts what each consumer has still to come, message by message."""
    async with proxied(server.url) as proxy, connected(proxy.url, replicas=1) as conn:
        for number in range(3):
            await EventLog(conn).append(submitted(name(number)))
        asked = Asked(proxy)
        gone = RemoveEvents(ref="r", sequences=(3, 1))
        assert await Effects(conn).perform(gone, b"") == Removed(ref="r")
        subjects_asked = Counter(subject for subject, _ in asked.requests.elements())
        assert subjects_asked == {b"$JS.API.STREAM.MSG.DELETE.WORKLOADS": 2}


async def repeatedly(ask: Callable[[], Awaitable[Any]]) -> None:
    """As our services do: at once again when there was no answer."""
    while True:
        try:
            await ask()
            return
        except NoAnswer:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("count", [10, 100])  # less than the window, and more
@story
async def test_requests_to_stopped_server_are_sent_once(server: Server, count: int) -> None:
    async with proxied(server.url) as proxy, connected(proxy.url, replicas=1) as conn:
        log = EventLog(conn)
        for number in range(count):
            await log.append(submitted(name(number)))
        asked = Asked(proxy)
        server.pause()
        guards = [subjects.aggregate("acme", name(number)) for number in range(count)]
        reading = [
            asyncio.create_task(repeatedly(lambda g=guard: last_message(conn, WORKLOADS, g)))  # type: ignore[misc]
            for guard in guards
        ]
        await asyncio.sleep(3.2)  # past the time limit of each, before its predecessor is given up
        assert set(asked.reads().values()) == {1}
        assert min(count, FIRST - 2) <= len(asked.reads()) <= FIRST  # others ask something too
        server.resume()
        await asyncio.gather(*reading)
        # Those that were late were asked once more: an old answer decides nothing.
        assert len(asked.reads()) == count
        assert max(asked.reads().values()) == 2


@story
async def test_requests_after_outage_arrive_gradually(server: Server) -> None:
    async with proxied(server.url) as proxy, connected(proxy.url, replicas=1) as conn:
        server.kill()
        await until(lambda: not conn.connected)
        asked = Asked(proxy)
        ended = 0

        async def impatient() -> None:
            nonlocal ended
            while True:
                try:
                    await conn.api(f"STREAM.INFO.{CONTROL}", timeout_s=0.1)
                    return
                except NoAnswer as error:
                    ended += str(error).endswith("within 0.1 s; the server is away")

        asking = [asyncio.create_task(impatient()) for _ in range(5)]
        await until(lambda: ended >= 50)
        assert not asked.requests
        server.start()
        await asyncio.wait(asking, timeout=hang_s())
        assert all(one.done() for one in asking)
        assert asked.requests.total() <= 2 * len(asking)


@story
async def test_a_write_of_unknown_fate_is_not_written_again_before_the_log_has_told(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload_log, "TRY_TIMEOUT_S", 0.2)
    async with proxied(server.url) as proxy, connected(proxy.url, replicas=1) as conn:
        asked = Asked(proxy)
        server.pause()
        writing = asyncio.create_task(EventLog(conn).append(submitted("job-1")))
        await asyncio.sleep(2.8)  # past the time limits of the write and of the look behind it
        assert asked.writes.total() == 1
        server.resume()
        assert await writing == Stored(1)
        assert asked.writes.total() == 1
        assert (await stream_info(conn, WORKLOADS)).state.messages == 1

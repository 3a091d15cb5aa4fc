import asyncio
import contextlib
import threading
from collections.abc import Callable

import msgspec
import pytest

from berthmaster.lib.event_log.workload_log import EventLog
from berthmaster.lib.lifecycle.instructions import Stored
from berthmaster.lib.nats import follower as follower_module
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import StreamReplaced
from berthmaster.lib.nats.follower import Follower
from berthmaster.lib.nats.stream_messages import Recorded
from berthmaster.lib.nats.streams import CONTROL, FLEET, WORKLOADS, ensure_streams, stream_info
from berthmaster.lib.nats.worker import parse_ack_subject
from berthmaster.lib.supervisor.embedded import Server, ServerCluster
from tests.bus.proxy import proxied, the_next
from tests.bus.tools import (
    Lines,
    connected,
    decision,
    eventually,
    leader,
    patiently,
    story,
    submitted,
    task,
)
from tests.support.patience import ANSWER_S, hang_s, until

CONTROLS = "berth.control.>"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested is what follows missed heartbeats, not how long they are waited for."""
    monkeypatch.setattr(follower_module, "CHECK_S", 0.2)


async def put(conn: Connection, number: int, kind: str = "queue.q") -> int:
    """Store one numbered message in CONTROL; its sequence."""
    reply = await patiently(
        lambda: conn.request(f"berth.control.{kind}", b"%d" % number, timeout_s=ANSWER_S)
    )
    sequence: int = msgspec.json.decode(reply.data)["seq"]
    return sequence


class Seen:
    def __init__(self) -> None:
        self.records: list[Recorded] = []
        self.caught_up_at: list[int] = []

    def take(self, recorded: Recorded) -> None:
        self.records.append(recorded)

    def caught_up(self) -> None:
        self.caught_up_at.append(len(self.records))

    @property
    def numbers(self) -> list[int]:
        return [int(one.data) for one in self.records]

    @property
    def sequences(self) -> list[int]:
        return [one.sequence for one in self.records]


@story
async def test_follower_handles_in_order_then_reports_caught_up(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        for number in range(1, 31):
            await put(conn, number)
        seen = Seen()
        follower = Follower(conn, CONTROL, [CONTROLS])
        async with task(follower.run(seen.take, caught_up=seen.caught_up)):
            await until(lambda: seen.caught_up_at)
            assert (seen.caught_up_at, follower.caught_up, follower.sequence) == ([30], True, 30)
            await put(conn, 31)
            await until(lambda: len(seen.records) == 31)
        assert (seen.numbers, seen.sequences) == (list(range(1, 32)), list(range(1, 32)))
        assert {one.subject for one in seen.records} == {"berth.control.queue.q"}
        assert abs(seen.records[0].stored_at_s - conn.now()) < 10
        assert [one.pending for one in seen.records[:30]] == list(range(29, -1, -1))


@story
async def test_an_empty_stream_is_caught_up_at_once(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        seen = Seen()
        async with task(
            Follower(conn, CONTROL, [CONTROLS]).run(seen.take, caught_up=seen.caught_up)
        ):
            await until(lambda: seen.caught_up_at == [0])


@story
async def test_it_starts_at_the_sequence_that_it_was_given(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        for number in range(1, 11):
            await put(conn, number)
        for start, expected in ((4, list(range(4, 11))), (11, []), (1, list(range(1, 11)))):
            seen = Seen()
            follower = Follower(conn, CONTROL, [CONTROLS], start=start)
            async with task(follower.run(seen.take, caught_up=seen.caught_up)):
                await until(lambda seen=seen: seen.caught_up_at)  # type: ignore[misc]
            assert (seen.numbers, follower.sequence) == (expected, 10)


@story
async def test_two_filters_are_followed_as_one(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        log = EventLog(conn)
        await log.append(submitted("job-1"))
        await log.append(submitted("job-1", tenant="other"))
        assert await log.commit(decision(1, 0), []) == Stored(3)
        await log.append(submitted("job-2"))
        seen = Seen()
        filters = ["berth.workload.acme.>", "berth.decision.all"]
        follower = Follower(conn, WORKLOADS, filters)
        async with task(follower.run(seen.take, caught_up=seen.caught_up)):
            await until(lambda: seen.caught_up_at)
        assert [(one.sequence, one.subject) for one in seen.records] == [
            (1, "berth.workload.acme.job-1.submitted.-"),
            (3, "berth.decision.all"),
            (4, "berth.workload.acme.job-2.submitted.-"),
        ]


@story
async def test_follower_without_an_answer_asks_again_soon(server: Server) -> None:
    async with connected(server.url, replicas=1) as writer:
        await put(writer, 1)
        async with proxied(server.url) as proxy, connected(proxy.url) as conn:
            # As when the server that was asked has just gone.
            proxy.to_server = lambda it: b"DIRECT.GET" in it.line and not proxy.lost
            seen = Seen()
            follower = Follower(conn, CONTROL, [CONTROLS])
            async with task(follower.run(seen.take, caught_up=seen.caught_up)):
                await until(lambda: seen.caught_up_at)
            assert (seen.numbers, len(proxy.lost)) == ([1], 1)


async def write_on(conn: Connection, wrote: list[int], stop: asyncio.Event) -> None:
    """Numbers one after the other, whatever happens to the server. A put whose answer was lost is
    repeated, so a number may be stored twice; sequences tell what the stream has."""
    while not stop.is_set():
        wrote.append(await put(conn, len(wrote) + 1))
        await asyncio.sleep(0)


async def check_gap_free(conn: Connection, seen: Seen) -> None:
    """Exactly what the stream has, each once, in order."""

    async def all_there() -> bool:
        state = (await stream_info(conn, CONTROL)).state
        return len(seen.records) >= state.messages

    await eventually(all_there)
    last = (await stream_info(conn, CONTROL)).state.last_seq
    assert seen.sequences == list(range(1, last + 1))


@story
async def test_follower_over_server_kill_misses_nothing(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn, connected(server.url, "w") as writer:
        seen, wrote, stop = Seen(), list[int](), asyncio.Event()
        follower = Follower(conn, CONTROL, [CONTROLS])
        async with task(follower.run(seen.take)), task(write_on(writer, wrote, stop)) as writing:
            for part in (100, 200, 300):
                await until(lambda part=part: len(wrote) >= part)  # type: ignore[misc]
                server.kill()
                server.start()
            await until(lambda: len(wrote) >= 400)
            stop.set()
            await writing
            await check_gap_free(conn, seen)
        assert conn.reconnects >= 3


@story
async def test_follower_over_reconnections_misses_nothing(server: Server) -> None:
    async with (
        proxied(server.url) as proxy,
        connected(proxy.url, replicas=1) as conn,
        connected(server.url, "w") as writer,
    ):
        seen, wrote, stop = Seen(), list[int](), asyncio.Event()
        follower = Follower(conn, CONTROL, [CONTROLS])
        drops = 0

        def drop_some(count: int) -> None:
            nonlocal drops
            proxy.to_client = the_next(lambda one: b" berth.stored.control." in one.line, count)
            drops += count

        async with task(follower.run(seen.take)), task(write_on(writer, wrote, stop)) as writing:
            for part in range(100, 900, 100):
                await until(lambda part=part: len(wrote) >= part)  # type: ignore[misc]
                if part % 200:
                    before = conn.reconnects
                    proxy.cut()
                    await until(lambda before=before: conn.reconnects > before)  # type: ignore[misc]
                else:
                    drop_some(part // 100)
                    await until(lambda: len(proxy.lost) == drops)
            await until(lambda: len(wrote) >= 900)
            stop.set()
            await writing
            await check_gap_free(conn, seen)
        assert (len(proxy.lost), conn.reconnects) == (drops, 4)


@story
async def test_the_last_message_is_not_missed_though_nothing_follows_it(server: Server) -> None:
    """Only the heartbeat tells that something was lost."""
    async with (
        proxied(server.url) as proxy,
        connected(proxy.url, replicas=1) as conn,
        connected(server.url, "w") as writer,
    ):
        seen = Seen()
        async with task(
            Follower(conn, CONTROL, [CONTROLS]).run(seen.take, caught_up=seen.caught_up)
        ):
            await until(lambda: seen.caught_up_at)
            proxy.to_client = the_next(lambda one: b" berth.stored.control." in one.line)
            await put(writer, 1)
            await until(lambda: seen.numbers == [1])
        assert len(proxy.lost) == 1


@story
async def test_follower_makes_no_consumer(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        seen = Seen()
        async with task(Follower(conn, CONTROL, [CONTROLS]).run(seen.take)):
            await put(conn, 1)
            await until(lambda: seen.numbers == [1])
            names = msgspec.json.decode(await conn.api("CONSUMER.NAMES.CONTROL"))["consumers"]
            assert not names


@story
async def test_follower_of_some_subjects_gets_what_was_lost(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "VERIFY_S", 0.5)
    async with (
        proxied(server.url) as proxy,
        connected(proxy.url, replicas=1) as conn,
        connected(server.url, "w") as writer,
    ):
        seen = Seen()
        follower = Follower(conn, CONTROL, ["berth.control.queue.a", "berth.control.queue.b"])
        async with task(follower.run(seen.take, caught_up=seen.caught_up)):
            await until(lambda: seen.caught_up_at)
            await put(writer, 1, "queue.a")
            await until(lambda: seen.numbers == [1])
            proxy.to_client = the_next(lambda one: b" berth.stored.control." in one.line)
            await put(writer, 2, "queue.a")
            await put(writer, 3, "queue.c")
            await put(writer, 4, "queue.b")
            await until(lambda: sorted(seen.numbers) == [1, 2, 4])
        assert len(proxy.lost) == 1


@story
async def test_a_handler_that_raises_ends_it_and_what_it_raised_is_seen(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        for number in (1, 2, 3):
            await put(conn, number)
        # OSError too: it must not be taken for trouble with the bus and tried again.
        for error in (ValueError("cannot fold 2"), OSError("disk"), StreamReplaced("mine")):
            took: list[int] = []

            def handle(
                recorded: Recorded, took: list[int] = took, error: Exception = error
            ) -> None:
                if recorded.data == b"2":
                    raise error
                took.append(int(recorded.data))

            follower = Follower(conn, CONTROL, [CONTROLS])
            with pytest.raises(type(error), match=str(error)):
                await asyncio.wait_for(follower.run(handle), hang_s())
            assert (took, follower.sequence) == ([1], 1)


@story
async def test_what_caught_up_raises_is_seen_too(server: Server) -> None:
    def caught_up() -> None:
        raise RuntimeError("not ready")

    async with connected(server.url, replicas=1) as conn:
        follower = Follower(conn, CONTROL, [CONTROLS])
        with pytest.raises(RuntimeError, match="not ready"):
            await asyncio.wait_for(follower.run(lambda _: None, caught_up=caught_up), hang_s())


@story
async def test_follower_of_replaced_stream_fails(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        for number in range(5):
            await put(conn, number)
        seen = Seen()
        running = asyncio.create_task(Follower(conn, CONTROL, [CONTROLS]).run(seen.take))
        await until(lambda: len(seen.records) == 5)
        await conn.api("STREAM.DELETE.CONTROL")
        await ensure_streams(conn)
        for number in range(10, 20):
            await put(conn, number)
        with pytest.raises(StreamReplaced, match="CONTROL is not the one that was followed"):
            await asyncio.wait_for(running, hang_s())
        assert seen.numbers == [0, 1, 2, 3, 4]


@story
async def test_follower_over_purge_reports_caught_up(server: Server) -> None:
    async def purge() -> None:
        async with connected(server.url, "purger") as conn:
            await conn.api("STREAM.PURGE.FLEET")

    async with connected(server.url, replicas=1) as conn:
        total = 50_000  # the server sends them for longer than a purge takes
        for number in range(total):
            await conn.publish(f"berth.fleet.c1.node.n{number % 50}", b"%d" % number)
        await conn.flush()
        seen = Seen()

        def take(recorded: Recorded) -> None:
            if not seen.records:  # the follower reads no further before the purge is done
                purging = threading.Thread(target=asyncio.run, args=(purge(),))
                purging.start()
                purging.join()
            seen.take(recorded)

        follower = Follower(conn, FLEET, ["berth.fleet.>"])
        async with task(follower.run(take, caught_up=seen.caught_up)):
            await until(lambda: seen.caught_up_at)
        assert len(seen.records) < total, "all was read before the purge"


@story
async def test_caught_up_is_not_told_before_all_that_was_stored_has_come(server: Server) -> None:
    """The server may have sent some before it answers how many are to come."""
    async with connected(server.url, replicas=1) as conn:
        total = 3000
        for number in range(total):
            await conn.publish("berth.control.queue.q", b"%d" % number)
        await eventually(lambda: _has(conn, total))
        for _ in range(10):
            seen = Seen()
            follower = Follower(conn, CONTROL, [CONTROLS])
            async with task(follower.run(seen.take, caught_up=seen.caught_up)):
                await until(lambda seen=seen: seen.caught_up_at)  # type: ignore[misc]
            assert seen.caught_up_at == [total]


async def _has(conn: Connection, total: int) -> bool:
    return (await stream_info(conn, CONTROL)).state.messages == total


@story
async def test_a_slow_handler_loses_nothing_of_a_flood(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn, connected(server.url, "w") as writer:
        total, took = 20_000, 0

        def slow(_: Recorded) -> None:
            nonlocal took
            took += 1
            if took % 100 == 0:
                sum(range(20_000))

        follower = Follower(conn, CONTROL, [CONTROLS])
        async with task(follower.run(slow)):
            for start in range(0, total, 1000):
                for number in range(start, start + 1000):
                    subject = f"berth.control.queue.q{number % 10}"  # of each, 4,096 are kept
                    await writer.publish(subject, b"%d" % number + b"x" * 500)
                await writer.flush()
            await until(lambda: took == total)
        assert (conn.dropped, follower.sequence) == (0, total)


@story
async def test_follower_over_leader_kill_continues(cluster: ServerCluster) -> None:
    log = Lines()
    async with (
        connected(cluster.url, "f", log=log, replicas=3) as conn,
        connected(cluster.url, "w") as writer,
    ):
        first = await put(writer, 0, "queue.replicas")
        seen, wrote, stop = Seen(), list[int](), asyncio.Event()

        async def write() -> None:
            while not stop.is_set():
                wrote.append(await put(writer, len(wrote), "queue.replicas"))

        follower = Follower(conn, CONTROL, ["berth.control.queue.replicas"], start=first + 1)
        async with task(follower.run(seen.take)), task(write()) as writing:
            victim = await patiently(lambda: leader(conn, cluster, CONTROL))
            await until(lambda: len(wrote) > 50)
            victim.kill()
            await until(lambda: len(wrote) > 100)
            victim.start()
            await until(lambda: len(wrote) > 150)
            stop.set()
            await writing
            await until(lambda: seen.sequences and seen.sequences[-1] >= wrote[-1])
        assert seen.sequences == sorted(set(seen.sequences))
        assert set(wrote) <= set(seen.sequences)


def test_the_place_of_a_message_is_read_from_every_form_of_its_reply_subject() -> None:
    short = "$JS.ACK.CONTROL.c-1.2.30.4.1700000000000000000.5"
    long = "$JS.ACK.hub.ACC.CONTROL.c-1.2.30.4.1700000000000000000.5.x9"
    assert parse_ack_subject(short) == (30, 4, 1_700_000_000.0, 5, 2)
    assert parse_ack_subject(long) == (30, 4, 1_700_000_000.0, 5, 2)


@story
async def test_it_ends_when_it_is_cancelled_whatever_the_server_does(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        ended: list[Callable[[], bool]] = []
        for moment in ("running", "away"):
            running = asyncio.create_task(Follower(conn, CONTROL, [CONTROLS]).run(lambda _: None))
            await asyncio.sleep(0.05)
            if moment == "away":
                server.kill()
                await until(lambda: not conn.connected)
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait_for(running, hang_s())
            ended.append(running.cancelled)
        assert [one() for one in ended] == [True, True]

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from berthmaster.lib.messages.families import DEAD_LETTERS
from berthmaster.lib.messages.records import DeadLetter
from berthmaster.lib.nats import subjects, worker
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.durables import Durable
from berthmaster.lib.nats.errors import NoAnswer, TooLarge
from berthmaster.lib.nats.stream_messages import Recorded
from berthmaster.lib.nats.stream_reads import last_message
from berthmaster.lib.nats.streams import CONTROL, DEAD, ensure_durable, stream_info
from berthmaster.lib.nats.worker import Handle, Later, Never, Worker
from berthmaster.lib.supervisor.embedded import Server
from tests.bus.tools import Lines, connected, eventually, patiently, story, task
from tests.support.patience import ANSWER_S, hang_s, until

FILTER = "berth.control.queue.*"


class Made(Worker):
    """A worker whose consumer is made when it runs."""

    def __init__(self, conn: Connection, durable: Durable, handle: Handle, **more: int) -> None:
        super().__init__(conn, "tester", durable, handle, **more)
        self._make = partial(ensure_durable, conn, durable)

    async def run(self, stopping: asyncio.Event | None = None) -> None:
        await patiently(self._make)
        await super().run(stopping)


def work(conn: Connection, handle: Handle, ack_wait_s: float = 10.0, **more: Any) -> Worker:
    return Made(conn, Durable(CONTROL, "tester", FILTER, ack_wait_s), handle, **more)


async def put(conn: Connection, *names: str) -> None:
    for name in names:
        await patiently(
            partial(conn.request, subjects.queue_setting(name), name.encode(), timeout_s=ANSWER_S)
        )


async def pending(conn: Connection) -> tuple[int, int]:
    """(delivered and not acknowledged, not delivered yet)."""
    info = msgspec.json.decode(await conn.api("CONSUMER.INFO.CONTROL.tester"))
    return info["num_ack_pending"], info["num_pending"]


async def all_done(conn: Connection) -> bool:
    return await pending(conn) == (0, 0)


async def letters(conn: Connection) -> list[DeadLetter]:
    found = []
    for sequence in range(1, (await stream_info(conn, DEAD)).state.last_seq + 1):
        raw = await conn.api("STREAM.MSG.GET.DEAD", {"seq": sequence})
        message = msgspec.json.decode(raw)["message"]
        found.append(
            DEAD_LETTERS.decode(
                msgspec.json.decode(b'"' + message["data"].encode() + b'"', type=bytes)
            )
        )
    return found


@story
async def test_each_message_is_handled_and_then_acknowledged(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        await put(conn, "a", "b")
        took: list[tuple[str, bytes, int, bool]] = []

        async def handle(recorded: Recorded) -> None:
            unacknowledged, _ = await pending(conn)
            took.append((recorded.subject, recorded.data, recorded.sequence, unacknowledged > 0))

        one = work(conn, handle)
        async with task(one.run()):
            await put(conn, "c")
            await until(lambda: one.handled == 3)
            await eventually(lambda: all_done(conn))
        assert sorted(took) == [
            ("berth.control.queue.a", b"a", 1, True),
            ("berth.control.queue.b", b"b", 2, True),
            ("berth.control.queue.c", b"c", 3, True),
        ]


@story
async def test_never_more_than_the_bound_are_handled_at_once(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        await asyncio.gather(*(put(conn, f"q{number}") for number in range(300)))
        now = most = 0

        async def handle(_: Recorded) -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.001)
            now -= 1

        one = work(conn, handle, concurrency=7)
        async with task(one.run()):
            await until(lambda: one.handled == 300)
        assert most == 7


@story
async def test_what_fails_comes_again_later_and_later_and_is_then_a_dead_letter(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "FIRST_PAUSE_S", 0.02)
    log = Lines()
    async with connected(server.url, replicas=1, log=log) as conn:
        await put(conn, "good", "bad")
        tries: list[float] = []

        async def handle(recorded: Recorded) -> None:
            if recorded.data == b"bad":
                tries.append(time.monotonic())
                raise ValueError("cannot digest")

        one = work(conn, handle, max_deliveries=4)
        async with task(one.run()):
            await until(lambda: one.dead_letters == 1)
            await eventually(lambda: all_done(conn))
        pauses = [later - earlier for earlier, later in pairwise(tries)]
        assert len(pauses) == 3
        assert all(pause >= 0.02 * 2 ** (1 + n) * 0.7 for n, pause in enumerate(pauses)), pauses
        (letter,) = await letters(conn)
        assert (letter.service, letter.subject, letter.reason, letter.body) == (
            "tester",
            "berth.control.queue.bad",
            "after 4 tries: ValueError('cannot digest')",
            b"bad",
        )
        assert (letter.stream, letter.sequence) == (CONTROL, 2)
        assert (one.handled, log.count("message handler failed")) == (1, 4)


@story
async def test_what_can_never_be_handled_is_a_dead_letter_at_once(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        await put(conn, "odd")
        tries = 0

        async def handle(_: Recorded) -> None:
            nonlocal tries
            tries += 1
            raise Never("of a newer version")

        one = work(conn, handle)
        async with task(one.run()):
            await until(lambda: one.dead_letters)
            await eventually(lambda: all_done(conn))
        assert (tries, [letter.reason for letter in await letters(conn)]) == (
            1,
            ["of a newer version"],
        )


@story
async def test_waiting_is_no_failure_and_neither_is_a_bus_that_is_away(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        await put(conn, "patient")
        tries = 0

        async def handle(_: Recorded) -> None:
            nonlocal tries
            tries += 1
            if tries <= 5:
                raise Later("its turn has not come", pause_s=0.001, counted=False)
            if tries <= 7:
                raise NoAnswer("the bus is away")
            if tries == 8:
                raise Later("failed once", pause_s=0.001)

        one = work(conn, handle, max_deliveries=3)
        async with task(one.run()):
            await until(lambda: one.handled == 1)
        assert (tries, one.dead_letters, await letters(conn)) == (9, 0, [])


@story
async def test_later_is_counted_when_it_says_so(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        await put(conn, "a")

        async def handle(_: Recorded) -> None:
            raise Later("not yet", pause_s=0.001)

        one = work(conn, handle, max_deliveries=3)
        async with task(one.run()):
            await until(lambda: one.dead_letters)
        assert [letter.reason for letter in await letters(conn)] == ["after 3 tries: not yet"]


@story
async def test_what_is_too_large_to_write_is_the_messages_fault(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        await put(conn, "a")

        async def handle(_: Recorded) -> None:
            raise TooLarge("2 MB")

        one = work(conn, handle, max_deliveries=1)
        async with task(one.run()):
            await until(lambda: one.dead_letters)
        assert [letter.reason for letter in await letters(conn)] == [
            "after 1 tries: TooLarge('2 MB')"
        ]


@story
async def test_slow_handler_runs_once_endless_one_ends(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn, connected(server.url, "b") as other:
        await put(conn, "slow", "stuck")
        runs: Counter[bytes] = Counter()

        async def handle(recorded: Recorded) -> None:
            runs[recorded.data] += 1
            await asyncio.sleep(1.0 if recorded.data == b"slow" else 600)

        limits = {"ack_wait_s": 0.3, "handler_limit_s": 1.5, "max_deliveries": 1}
        one, two = work(conn, handle, **limits), work(other, handle, **limits)
        async with task(one.run()), task(two.run()):
            await until(
                lambda: one.handled + two.handled == 1 and one.dead_letters + two.dead_letters == 1
            )
            await eventually(lambda: all_done(conn))
        assert runs == {b"slow": 1, b"stuck": 1}
        assert [letter.reason for letter in await letters(conn)] == [
            "after 1 tries: not handled within 1.5 s"
        ]


@story
async def test_a_letter_that_could_not_be_kept_is_not_lost_for_that(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "LONGEST_PAUSE_S", 0.05)
    log = Lines()
    async with connected(server.url, replicas=1, log=log) as conn:
        config = msgspec.json.decode(await conn.api("STREAM.INFO.DEAD"))["config"]
        await conn.api("STREAM.DELETE.DEAD")
        await put(conn, "odd")

        async def handle(_: Recorded) -> None:
            raise Never("odd")

        one = work(conn, handle)
        async with task(one.run()):
            await until(lambda: log.count("dead letter not stored") >= 2)
            await conn.api("STREAM.CREATE.DEAD", config)
            await until(lambda: one.dead_letters)
        assert [letter.reason for letter in await letters(conn)] == ["odd"]


@story
async def test_worker_over_server_kill_handles_all(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn, connected(server.url, "w") as writer:
        names = [f"q{number}" for number in range(300)]
        took: Counter[str] = Counter()

        async def handle(recorded: Recorded) -> None:
            await asyncio.sleep(0.002)
            took[recorded.data.decode()] += 1

        one = work(conn, handle, concurrency=8, ack_wait_s=1.0)
        async with task(one.run()), task(put(writer, *names)) as writing:
            for part in (60, 120):
                await until(lambda part=part: len(took) >= part)  # type: ignore[misc]
                server.kill()
                server.start()
            await writing
            await until(lambda: len(took) == len(names))
            await eventually(lambda: all_done(writer))
        assert one.dead_letters == 0


@story
async def test_worker_goes_on_when_its_consumer_is_made_again(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        took: Counter[bytes] = Counter()

        async def handle(recorded: Recorded) -> None:
            took[recorded.data] += 1

        one = work(conn, handle)
        async with task(one.run()):
            await put(conn, "a")
            await until(lambda: took[b"a"])
            await conn.api("CONSUMER.DELETE.CONTROL.tester")
            await until(lambda: one.missing)
            await ensure_durable(conn, Durable(CONTROL, "tester", FILTER))
            await put(conn, "b")
            # What was acknowledged went with the consumer: handlers repeat.
            await until(lambda: took == {b"a": 2, b"b": 1})


@story
async def test_what_is_in_hand_is_finished_when_it_stops_and_the_rest_goes_back_at_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "DRAIN_S", 0.3)
    async with connected(server.url, replicas=1) as conn, connected(server.url, "b") as other:
        await put(conn, "quick", "slow")
        begun: set[bytes] = set()

        async def handle(recorded: Recorded) -> None:
            begun.add(recorded.data)
            await asyncio.sleep(0.1 if recorded.data == b"quick" else 600)

        stopping = asyncio.Event()
        first = work(conn, handle)
        async with task(first.run(stopping)) as running:
            await until(lambda: len(begun) == 2)
            stopping.set()
            await running
        assert first.handled == 1
        took: list[bytes] = []

        async def quick(recorded: Recorded) -> None:
            took.append(recorded.data)

        async with task(work(other, quick).run()):
            await until(lambda: took)
        assert took == [b"slow"]


WORKER = """
import asyncio, sys
from berthmaster.lib.nats.durables import Durable
from berthmaster.lib.nats.streams import ensure_durable
from berthmaster.lib.nats.worker import Worker
from tests.bus.tools import connected
async def handle(recorded):
    print(recorded.data.decode(), flush=True)
    await asyncio.sleep(600)
async def main():
    async with connected(sys.argv[1], "doomed") as conn:
        durable = Durable("CONTROL", "tester", sys.argv[2], ack_wait_s=1)
        await ensure_durable(conn, durable)
        await Worker(conn, "tester", durable, handle).run()
asyncio.run(main())
"""


@story
async def test_what_a_killed_process_had_in_hand_goes_to_another(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        await put(conn, "a", "b", "c")
        doomed = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            WORKER,
            server.url,
            FILTER,
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parent.parent.parent,
        )
        assert doomed.stdout is not None
        began = {
            (await asyncio.wait_for(doomed.stdout.readline(), hang_s())).strip() for _ in range(3)
        }
        assert began == {b"a", b"b", b"c"}
        os.kill(doomed.pid, signal.SIGKILL)
        await doomed.wait()
        took: set[bytes] = set()

        async def handle(recorded: Recorded) -> None:
            took.add(recorded.data)

        async with task(work(conn, handle, ack_wait_s=1).run()):
            await until(lambda: took == {b"a", b"b", b"c"})
            await eventually(lambda: all_done(conn))


@story
async def test_two_share_the_work_and_neither_repeats_it(server: Server) -> None:
    async with connected(server.url, replicas=1) as a, connected(server.url, "b") as b:
        took: Counter[bytes] = Counter()
        by: Counter[str] = Counter()

        def handler(who: str) -> Callable[[Recorded], Awaitable[None]]:
            async def handle(recorded: Recorded) -> None:
                await asyncio.sleep(0.001)
                took[recorded.data] += 1
                by[who] += 1

            return handle

        one, two = work(a, handler("a"), concurrency=4), work(b, handler("b"), concurrency=4)
        async with task(one.run()), task(two.run()):
            await asyncio.gather(*(put(a, f"q{number}") for number in range(400)))
            await until(lambda: len(took) == 400)
        assert set(took.values()) == {1}
        assert min(by["a"], by["b"]) > 50


@story
async def test_worker_says_that_its_consumer_is_missing(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:

        async def handle(_: Recorded) -> None:
            """Never called."""

        one = Worker(conn, "t", Durable(CONTROL, "absent", FILTER), handle)
        async with task(one.run()):
            await until(lambda: one.missing == "consumer absent of CONTROL: consumer not found")


@story
async def test_ten_thousand_messages_are_all_handled(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn, connected(server.url, "w") as writer:
        total = 10_000
        for start in range(0, total, 1000):
            for number in range(start, start + 1000):
                await writer.publish(subjects.queue_setting(f"q{number}"), b"x" * 500)
            await writer.flush()

        async def handle(_: Recorded) -> None:
            pass

        one = work(conn, handle)
        async with task(one.run()):
            await until(
                lambda: one.handled == total, "all are handled", moves=lambda: one.handled // 1000
            )
            await eventually(lambda: all_done(conn))
        last = await last_message(conn, CONTROL, ">")
        assert last is not None
        assert last.sequence == total

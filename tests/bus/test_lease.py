import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from berthmaster.lib.messages.families import LEASES
from berthmaster.lib.messages.records import Lease as LeaseRecord
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.stream_lease import TTL_S, StreamLease
from berthmaster.lib.supervisor.embedded import Server
from tests.bus.proxy import acknowledgement, proxied, the_next
from tests.bus.tools import connected, story
from tests.support.patience import hang_s, until

LONG_S = 20.0  # does not run out while a busy machine does something else


class Candidate:
    """One that wants the lease, and when it had it."""

    def __init__(
        self, conn: Connection, who: str, name: str = "tester.all", ttl_s: float = TTL_S
    ) -> None:
        self.who = who
        self.epochs: list[int] = []
        self.lost = 0
        self.lease = StreamLease(
            conn, name, who, on_gained=self.epochs.append, on_lost=self.count_loss, ttl_s=ttl_s
        )

    def count_loss(self) -> None:
        self.lost += 1

    @property
    def held(self) -> bool:
        return self.lease.held


@asynccontextmanager
async def running(*candidates: Candidate) -> AsyncIterator[list["asyncio.Task[None]"]]:
    tasks = [asyncio.create_task(one.lease.run()) for one in candidates]
    try:
        yield tasks
    finally:
        for one in tasks:
            one.cancel()
        done, _ = await asyncio.wait(tasks, timeout=hang_s())
        assert len(done) == len(tasks)
        for one in done:
            with contextlib.suppress(asyncio.CancelledError):
                one.result()


@story
async def test_of_many_one_holds_it_and_the_others_know_who(server: Server) -> None:
    async with connected(server.url, "a", replicas=1) as a, connected(server.url, "b") as b:
        many = [
            Candidate(conn, f"{conn.name}-{n}", ttl_s=LONG_S) for conn in (a, b) for n in range(4)
        ]
        async with running(*many):
            await until(lambda: any(one.held for one in many))
            for _ in range(100):
                assert sum(one.held for one in many) == 1
                await asyncio.sleep(0.01)
            (holder,) = [one for one in many if one.held]
            await until(lambda: {one.lease.seen_holder for one in many} == {holder.who})
        assert [len(one.epochs) for one in many if one.epochs] == [1]


@story
async def test_who_waits_has_it_soon_after_the_holder_released_it(server: Server) -> None:
    async with connected(server.url, "a", replicas=1) as conn:
        first, second = (Candidate(conn, who, ttl_s=LONG_S) for who in ("first", "second"))
        told: list[LeaseRecord] = []
        await conn.subscribe(
            subjects.lease("tester.all"), lambda _, data: told.append(LEASES.decode(data))
        )
        async with running(second):
            pass  # it has been and gone: a record that was released
        async with running(first):
            await until(lambda: first.held)
            waiting = asyncio.create_task(second.lease.run())
            await until(lambda: second.lease.seen_holder == "first")
        await until(lambda: second.held)
        assert second.epochs[-1] > first.epochs[0]
        await until(lambda: told[-1].holder.startswith("second") and not told[-1].released)
        taken = max(n for n, record in enumerate(told) if record.holder.startswith("first"))
        assert told[taken].released, "the second waited until it ran out"
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting


HOLDER = """
import asyncio, sys
from berthmaster.lib.nats.stream_lease import StreamLease
from tests.bus.tools import connected
async def main():
    async with connected(sys.argv[1], "doomed") as conn:
        gained, lost = lambda epoch: print(epoch, flush=True), lambda: print("lost", flush=True)
        await StreamLease(conn, "tester.all", "doomed", on_gained=gained, on_lost=lost).run()
asyncio.run(main())
"""


async def other_process(url: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        HOLDER,
        url,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parent.parent.parent,
    )


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), hang_s())).decode().strip()


@story
async def test_it_is_taken_over_after_the_holder_was_killed(server: Server) -> None:
    async with connected(server.url, "a", replicas=1) as conn:
        doomed = await other_process(server.url)
        epoch = int(await line(doomed))
        heir = Candidate(conn, "heir")
        async with running(heir):
            await until(lambda: heir.lease.seen_holder == "doomed")
            await asyncio.sleep(TTL_S)  # it is renewed: waiting alone wins nothing
            assert not heir.held
            os.kill(doomed.pid, signal.SIGKILL)
            await until(lambda: heir.held)
            assert heir.epochs[0] > epoch
        await doomed.wait()


@story
async def test_a_paused_holder_knows_that_it_lost_when_it_wakes(server: Server) -> None:
    async with connected(server.url, "a", replicas=1) as conn:
        sleeper = await other_process(server.url)
        await line(sleeper)
        heir = Candidate(conn, "heir")
        async with running(heir):
            await until(lambda: heir.lease.seen_holder == "doomed")
            os.kill(sleeper.pid, signal.SIGSTOP)
            await until(lambda: heir.held)
            os.kill(sleeper.pid, signal.SIGCONT)
            assert await line(sleeper) == "lost"
            await asyncio.sleep(TTL_S)
            assert (heir.held, heir.lost) == (True, 0)
        # And it stands by again: it has it when the heir has gone.
        assert int(await line(sleeper)) > heir.epochs[0]
        sleeper.kill()
        await sleeper.wait()


@story
async def test_held_is_false_the_moment_it_runs_out_though_the_bus_is_away(server: Server) -> None:
    async with proxied(server.url) as proxy, connected(proxy.url, replicas=1) as conn:
        one = Candidate(conn, "one")
        async with running(one):
            await until(lambda: one.held)
            proxy.hold()
            began_s = time.monotonic()
            held_s = began_s
            while not one.lost:
                looked_s = time.monotonic()
                if one.held:
                    held_s = looked_s
                assert looked_s < began_s + 20
                await asyncio.sleep(0.005)
            assert not one.held
            assert held_s - began_s <= TTL_S
            proxy.go_on()
            await until(lambda: one.held)
        assert (len(one.epochs), one.lost) == (2, 2)


@story
async def test_lease_on_lossy_bus_has_one_holder(server: Server) -> None:
    async with (
        proxied(server.url) as left,
        proxied(server.url) as right,
        connected(left.url, "a", replicas=1) as a,
        connected(right.url, "b") as b,
    ):
        one, two = Candidate(a, "one"), Candidate(b, "two")
        async with running(one, two):
            for turn in range(3):
                await until(lambda: one.held or two.held)
                proxy = left if one.held else right
                proxy.to_client = the_next(acknowledgement, count=1 + 3 * (turn % 2))
                end_s = time.monotonic() + 0.9
                while time.monotonic() < end_s:
                    assert not (one.held and two.held)
                    await asyncio.sleep(0.005)
        assert one.epochs or two.epochs


@story
async def test_a_lost_acknowledgement_of_a_renewal_loses_nothing(server: Server) -> None:
    async with proxied(server.url) as proxy, connected(proxy.url, replicas=1) as conn:
        one = Candidate(conn, "one")
        async with running(one):
            await until(lambda: one.held)
            proxy.to_client = the_next(acknowledgement)
            await until(lambda: proxy.lost)
            await asyncio.sleep(TTL_S)
            assert (one.held, one.lost, len(one.epochs)) == (True, 0, 1)


@story
async def test_after_a_restart_of_the_server_one_holds_it(server: Server) -> None:
    async with connected(server.url, "a", replicas=1) as a, connected(server.url, "b") as b:
        one, two = Candidate(a, "one"), Candidate(b, "two")
        async with running(one, two):
            await until(lambda: one.held or two.held)
            server.kill()
            server.start()
            await until(lambda: a.reconnects and b.reconnects)
            await until(lambda: one.held or two.held)
            end_s = time.monotonic() + 1
            while time.monotonic() < end_s:
                assert not (one.held and two.held)
                await asyncio.sleep(0.01)
            assert one.held or two.held


@story
async def test_a_namesake_is_somebody_else(server: Server) -> None:
    """Two replicas that were given one name by mistake must not take each other for themselves."""
    async with connected(server.url, "a", replicas=1) as a, connected(server.url, "b") as b:
        one, two = Candidate(a, "same"), Candidate(b, "same")
        async with running(one, two):
            await until(lambda: one.held or two.held)
            end_s = time.monotonic() + TTL_S
            while time.monotonic() < end_s:
                assert not (one.held and two.held)
                await asyncio.sleep(0.01)
        assert len(one.epochs) + len(two.epochs) == 1

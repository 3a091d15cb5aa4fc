"""The usage service on a real bus: what has ended is in its store once, whatever happens to both.

The same stories are told to SQLite and to a real PostgreSQL.
"""

import asyncio
import hashlib
import hmac
import itertools
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from berthmaster.control.usage import filling, notifying
from berthmaster.control.usage.service import main as usage_main
from berthmaster.control.usage.settings import UsageSettings
from berthmaster.lib.messages.api import RecordedEvent, Refusal
from berthmaster.lib.messages.families import encode
from berthmaster.lib.messages.quality import QualityReport
from berthmaster.lib.messages.records import ArchivedStory, DeadLetter, LogMark, StreamMark
from berthmaster.lib.messages.telemetry import GpuUse, JobFigures
from berthmaster.lib.messages.usage import (
    JobUsage,
    Trends,
    TrendsRequest,
    UsageReport,
    UsageReportRequest,
)
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.nats.stream_reads import last_message
from berthmaster.lib.nats.streams import ARCHIVE, DEAD, WORKLOADS, ensure_streams, stream_info
from berthmaster.lib.runtime.service import Context
from berthmaster.lib.supervisor.embedded import Server
from tests.bus.disks import own_disk
from tests.bus.log_damage import replace_log
from tests.bus.postgres import PostgresServer, postgres_server
from tests.bus.shells import ask, client, in_loop, order, running, store
from tests.support.patience import ANSWER_S, eventually, hang_s, until
from tests.unit.control.usage.stories import Story


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "nats") as started:
        yield started


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as found:
        yield found


@pytest.fixture(params=["sqlite", "postgres"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Where the store is: new to each test."""
    if request.param == "sqlite":
        return {"store_dir": tmp_path / "usage"}
    found: PostgresServer = request.getfixturevalue("postgres")
    return {"postgres_url": new_database(found, tmp_path.name)}


def new_database(server: PostgresServer, name: str) -> str:
    psycopg = pytest.importorskip("psycopg")
    plain = "".join(char if char.isalnum() else "_" for char in name)
    with psycopg.connect(server.url, autocommit=True) as conn:
        conn.execute(f'DROP DATABASE IF EXISTS "{plain}"')
        conn.execute(f'CREATE DATABASE "{plain}"')
    return server.url.replace("/postgres", f"/{plain}")


@asynccontextmanager
async def usage(url: str, **settings: Any) -> AsyncIterator[Context[UsageSettings]]:
    chosen = UsageSettings(nats_url=url, http_port=-1, **settings)
    with mock.patch("berthmaster.control.usage.filling.FLUSH_S", 0.05):
        async with running("usage", chosen, usage_main) as ctx:
            yield ctx


async def tell(conn: Connection, story: Story) -> None:
    """As it happens: each event appended to the log."""
    after = 0
    for recorded in story.events:
        after = await store(conn, msgspec.structs.replace(recorded.event, after=after))


async def archive(conn: Connection, story: Story, *parts: int) -> None:
    """As the archivist leaves it, cut into parts after so many events."""
    cuts = [0, *parts, len(story.events)]
    for since, until_ in itertools.pairwise(cuts):
        events: tuple[RecordedEvent, ...] = tuple(story.events[since:until_])
        told = ArchivedStory(tenant=story.tenant, id=story.id, events=events)
        await conn.store(subjects.archive(story.tenant, story.id), encode(told), timeout_s=ANSWER_S)


async def report(conn: Connection, **asked: Any) -> UsageReport:
    asked = {"since_s": 0.0, "until_s": 5_000_000_000.0} | asked
    reply = await order(conn, "report", UsageReportRequest(**asked))
    assert isinstance(reply, UsageReport), reply
    return reply


async def jobs_until(conn: Connection, count: int) -> dict[str, JobUsage]:
    """The jobs, once the store has so many."""
    found: dict[str, JobUsage] = {}

    async def all_there() -> bool:
        nonlocal found
        found = {one.id: one for one in (await report(conn, kind="job")).jobs}
        return len(found) == count

    await eventually(all_there, f"{count} jobs", moves=lambda: len(found))
    return found


def part(ctx: Context[Any], name: str) -> str:
    parts = ctx.health.readiness()[1]["parts"]
    assert isinstance(parts, dict)
    return "" if parts[name]["ok"] else parts[name]["why"]


@in_loop
async def test_usage_over_restarts_books_once(server: Server, kept: dict[str, Any]) -> None:
    async with client(server.url) as conn:
        now_s = conn.now()
        # In the archive from before: one in two parts, one that came through a hub.
        old = Story("old", labels={"owner": "ann"}).submitted(now_s - 9000).placed(now_s - 8000)
        old.claimed(now_s - 8000).running(now_s - 7990).evicted(now_s - 7900)
        old.placed(now_s - 7200, "c2").claimed(now_s - 7200)
        old.running(now_s - 7200).succeeded(now_s - 3600)
        hub = Story("hub-job", hub="h1", owner="Job/train", tenant="team")
        hub.submitted(now_s - 900).placed(now_s - 890, pods=False).claimed(now_s - 890)
        hub.admitted(now_s - 600).running(now_s - 590).succeeded(now_s - 300)
        await archive(conn, old, 4)
        await archive(conn, hub)
        open_ = Story("open", queue="q2")
        open_.submitted(0).placed(0).claimed(0).running(0)
        await tell(conn, open_)

        async with usage(server.url, **kept):
            found = await jobs_until(conn, 2)
            assert (found["old"].owner, found["old"].evictions, found["old"].attempts) == (
                "ann",
                1,
                2,
            )
            # Two GPUs for 100 s and for an hour; of the hub's from Kueue's admission on.
            assert found["old"].held_gpu_h == pytest.approx(2 * 3700 / 3600, abs=1e-5)
            assert found["old"].wait_s == pytest.approx(1000, abs=0.01)
            assert found["hub-job"].held_gpu_h == pytest.approx(2 * 300 / 3600, abs=1e-5)
            assert (found["hub-job"].hub, found["hub-job"].owner) == ("h1", "Job/train")

            await tell(conn, Story("quick").ran(0, 0))
            await jobs_until(conn, 3)

        # While it is away: one begins and ends, one is archived, one that was open ends.
        await tell(conn, Story("meanwhile").ran(0, 0))
        await archive(conn, Story("late").ran(now_s - 50, now_s - 40))
        last = open_.succeeded(0).events[-1].event
        await store(conn, msgspec.structs.replace(last, after=await last_of(conn)))
        async with usage(server.url, **kept):
            found = await jobs_until(conn, 6)
            assert found["open"].queue == "q2"
            await archive(conn, old)  # told again, by an archivist that was killed
            await archive(conn, Story("after").ran(now_s - 30, now_s - 20))
            await jobs_until(conn, 7)
            total = (await report(conn)).total
            assert (total.jobs, total.succeeded, total.evictions) == (7, 7, 1)


async def last_of(conn: Connection) -> int:
    """Of the story "open": four events at the beginning of the log."""
    assert (await stream_info(conn, WORKLOADS)).state.last_seq > 4
    return 4


@in_loop
async def test_streams_that_were_made_anew_are_read_again_and_fill_nothing_twice(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client(server.url) as conn:
        now_s = conn.now()
        story = Story("a").ran(now_s - 7200, now_s - 3600)
        async with usage(server.url, store_dir=tmp_path):
            for number in range(3):
                await archive(conn, Story(f"x{number}").ran(now_s - 7200, now_s - 3600))
            await archive(conn, story)
            await jobs_until(conn, 4)
            # Another log and another archive, with other numbers, and one job is there again.
            await replace_log(conn)
            await conn.api(f"STREAM.DELETE.{ARCHIVE}")
            await ensure_streams(conn)
            await archive(conn, story)
            await archive(conn, Story("b").ran(now_s - 7200, now_s - 3600))
            await jobs_until(conn, 5)
            assert (await report(conn)).total.held_gpu_h == 5 * 2.0


@in_loop
async def test_usage_shows_tenant_its_own_jobs(server: Server, tmp_path: Path) -> None:
    prices = tmp_path / "prices.json"
    prices.write_text('{"currency": "EUR", "gpu_hour": {"H100": 2.5}}')
    async with client(server.url) as conn:
        now_s = conn.now()
        await archive(conn, Story("mine", tenant="ann").ran(now_s - 7200, now_s - 3600))
        await archive(conn, Story("theirs", tenant="bob").ran(now_s - 7200, now_s - 3600))
        async with usage(server.url, store_dir=tmp_path, prices_file=prices):
            await jobs_until(conn, 2)
            reply = await ask(conn, "report", UsageReportRequest(kind="job"), tenant="ann")
            assert isinstance(reply, UsageReport)
            assert [one.id for one in reply.jobs] == ["mine"]
            assert (reply.total.cost, reply.currency) == (5.0, "EUR")
            assert [row.tenant for row in (await report(conn)).rows] == ["ann", "bob"]
            for body, field in (
                (b'{"tenant": "bob"}', "tenant"),
                (b'{"group": ["cow"]}', "group[0]"),
                (b'{"group": ["day", "month"]}', "group"),
                (b'{"since_s": 20, "until_s": 10}', "since_s"),
                (b'{"until_s": 1e300}', "until_s"),
                (b'{"since_s": NaN}', "since_s"),
                (b'{"kind": "cost"}', "kind"),
                (b'{"limit": 0}', "limit"),
                (b'{"kind": "job", "page": "?"}', "page"),
                (b'{"id": "a"}', "id"),
                (b'{"perid": 1}', "perid"),
                (b"[", ""),
            ):
                refusal = await ask(conn, "report", body, tenant="ann")
                assert isinstance(refusal, Refusal), body
                assert (refusal.field, bool(refusal.expected)) == (field, True), body
            refusal = await ask(conn, "trends", b'{"span": "year"}', tenant="ann")
            assert isinstance(refusal, Refusal)
            assert refusal.field == "span"


@in_loop
async def test_measured_use_and_minutes_survive_a_restart(
    server: Server, kept: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filling, "USES_EVERY_S", 0.1)
    figures = JobFigures(
        cluster="c1",
        tenant="acme",
        id="train",
        attempt=1,
        epoch=1,
        counter=1,
        observed_at_s=0.0,
        window_s=30.0,
        use=GpuUse(gpus=2, measured=2, utilization_percent=50.0),
    )
    subject = subjects.job_figures("acme", "c1", "train")
    async with client(server.url) as conn:
        now_s = conn.now()
        async with usage(server.url, **kept) as ctx:
            for _ in range(4):
                await conn.publish(subject, encode(figures))
            quality = QualityReport(
                cell="all", decider="r", observed_at_s=0.0, allocation_percent=40.0
            )
            await conn.publish(subjects.quality("all"), encode(quality))
            await conn.flush(timeout_s=ANSWER_S)
            written = ctx.metrics.registry.get_sample_value
            before = written("berth_usage_store_writes_total") or 0
            await until(lambda: (written("berth_usage_store_writes_total") or 0) > before + 8)
        await archive(conn, Story("train").ran(now_s - 240, now_s))
        async with usage(server.url, **kept):
            job = (await jobs_until(conn, 1))["train"]
            # For two of the four minutes two GPUs were measured, and were half busy.
            assert job.held_gpu_h == pytest.approx(2 * 240 / 3600, abs=1e-4)
            assert job.measured_gpu_h == pytest.approx(2 * 120 / 3600, abs=1e-4)
            assert job.used_gpu_h == pytest.approx(120 / 3600, abs=1e-4)


@in_loop
async def test_placements_and_waits_become_trends_of_the_minute_they_happened_in(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Minutes end at once here: what is told is not when, but what of it is kept, and for whom.
    monkeypatch.setattr("berthmaster.control.usage.core.trends.MINUTE_S", 1)
    async with client(server.url) as conn, usage(server.url, store_dir=tmp_path):
        await tell(conn, Story("a", tenant="ann").ran(0, 0))
        await tell(conn, Story("b", tenant="bob").ran(0, 0))
        await jobs_until(conn, 2)
        names: set[str] = set()
        points: list[int] = []
        async with asyncio.timeout(hang_s()):
            while "endings_per_s" not in names:
                reply = await order(conn, "trends", TrendsRequest(span="hour"))
                assert isinstance(reply, Trends)
                names = {trend.name for trend in reply.trends}
                points = [len(trend.means) for trend in reply.trends]
                await asyncio.sleep(0.1)
        assert set(points) == {60}
        assert {"placements_per_s", "wait_p50_s", "start_p95_s"} <= names
        own = await ask(conn, "trends", TrendsRequest(span="hour"), tenant="ann")
        assert isinstance(own, Trends)
        assert {trend.cell for trend in own.trends} == {""}


@in_loop
async def test_a_full_disk_is_told_and_what_ended_meanwhile_is_there_once_there_is_room(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filling, "LONGEST_PAUSE_S", 0.5)
    with own_disk(tmp_path / "disk", 4 * 1024 * 1024) as disk:
        async with client(server.url) as conn, usage(server.url, store_dir=disk.folder) as ctx:
            now_s = conn.now()
            value = ctx.metrics.registry.get_sample_value
            disk.fill()
            for number in range(400):
                story = Story(f"job-{number}").ran(now_s - 7200, now_s - 3600)
                await archive(conn, story)
            await until(lambda: "full" in part(ctx, "store"))
            assert not ctx.health.readiness()[0]
            assert value("berth_usage_store_failing") == 1
            tries = value("berth_usage_store_failures_total") or 0
            await until(lambda: (value("berth_usage_store_failures_total") or 0) > tries)

            disk.free()
            await until(lambda: ctx.health.readiness()[0])
            async with asyncio.timeout(hang_s()):
                while (await report(conn)).total.jobs != 400:
                    await asyncio.sleep(0.1)
            assert value("berth_usage_stored_jobs_total") == 400
            assert value("berth_usage_store_failing") == 0


@in_loop
async def test_a_postgres_that_goes_away_is_told_and_caught_up_with(
    server: Server, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filling, "LONGEST_PAUSE_S", 0.5)
    url = new_database(postgres, "away")
    async with client(server.url) as conn, usage(server.url, postgres_url=url) as ctx:
        now_s = conn.now()
        await archive(conn, Story("before").ran(now_s - 7200, now_s - 3600))
        await jobs_until(conn, 1)

        await asyncio.to_thread(postgres.kill)
        try:
            await archive(conn, Story("meanwhile").ran(now_s - 7200, now_s - 3600))
            await until(lambda: bool(part(ctx, "store")))
            why = part(ctx, "store")
            assert "PostgreSQL at 127.0.0.1" in why
            refusal = await order(conn, "report", UsageReportRequest())
            assert isinstance(refusal, Refusal)
            assert (refusal.code, refusal.retry) == ("unavailable", True)
            refusal = await ask(conn, "report", UsageReportRequest())
            assert isinstance(refusal, Refusal)
            assert refusal.expected == "the store cannot be read now"
        finally:
            await asyncio.to_thread(postgres.start)
        await until(lambda: ctx.health.readiness()[0])
        await archive(conn, Story("after").ran(now_s - 7200, now_s - 3600))
        await jobs_until(conn, 3)
        assert (await report(conn)).total.held_gpu_h == 3 * 2.0


async def jobs_of(conn: Connection) -> int:
    """How many the store has; 0 while nobody answers."""
    with suppress(BusError):
        reply = await order(conn, "report", UsageReportRequest(since_s=0.0))
        return reply.total.jobs if isinstance(reply, UsageReport) else 0
    return 0


@in_loop
async def test_usage_killed_often_books_once(server: Server, kept: dict[str, Any]) -> None:
    async with client(server.url) as conn:
        now_s = conn.now()
        for number in range(600):
            await archive(conn, Story(f"job-{number}").ran(now_s - 7200, now_s - 3600))
        argv = [sys.executable, "-m", "berthmaster.cli.main", "serve", "usage"]
        argv += [
            "--nats-url",
            server.url,
            "--http-port",
            "-1",
            "--log-level",
            "error",
        ]
        for name, value in kept.items():
            argv += [f"--{name.replace('_', '-')}", str(value)]
        for number in range(600, 603):  # killed in the middle of its writes, wherever it is
            with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as process:
                try:
                    story = Story(f"job-{number}").ran(now_s - 7200, now_s - 3600)
                    await archive(conn, story)
                    async with asyncio.timeout(hang_s()):
                        while not await jobs_of(conn):
                            await asyncio.sleep(0.02)
                finally:
                    process.kill()
        async with usage(server.url, **kept):
            async with asyncio.timeout(hang_s()):
                while (total := (await report(conn)).total).jobs != 603:
                    await asyncio.sleep(0.1)
            assert total.held_gpu_h == 603 * 2.0


class Receiver:
    """A webhook: answers what it is told to answer, and keeps what it got."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[bytes] = []
        self.port = 0
        self.hangs_for = ""  # the tenant of whose notices nothing is answered
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Owns the connection, so that none is left behind."""
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving[task] = writer

    async def close(self) -> None:
        for writer in self._serving.values():
            writer.transport.abort()
        if self._serving:
            await asyncio.wait(self._serving, timeout=hang_s())
        for task, writer in self._serving.items():
            task.cancelled() or task.exception()  # a connection that broke is no matter
            with suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()[1:]
        headers = dict(line.split(": ", 1) for line in head if line)
        self.got.append((headers, await reader.readexactly(int(headers["Content-Length"]))))
        if msgspec.json.decode(self.got[-1][1])["tenant"] == self.hangs_for:
            await reader.read()  # until the other side gives it up
            return
        answer = self.answers.pop(0) if self.answers else b"204 No Content"
        writer.write(b"HTTP/1.1 " + answer + b"\r\n\r\n")
        await writer.drain()
        writer.close()

    async def until(self, count: int) -> list[str]:
        """Which events it was told of, once there are so many."""
        async with asyncio.timeout(hang_s()):
            while len(self.got) < count:
                await asyncio.sleep(0.02)
        return [msgspec.json.decode(body)["id"] for _, body in self.got]


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    server = await asyncio.start_server(receiver.accept, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    async with server:
        try:
            yield receiver
        finally:
            await receiver.close()


@in_loop
async def test_a_webhook_is_told_of_each_end_signed_again_until_it_takes_it_and_nobody_else(
    server: Server, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"very secret\n")
    file = tmp_path / "webhooks.json"
    async with client(server.url) as conn, receiving() as hook:
        url = f"http://127.0.0.1:{hook.port}/token-1"
        one = {"name": "ours", "url": url, "key_file": str(key), "queues": ["night"]}
        elsewhere = one | {"name": "elsewhere", "queues": ["other"]}
        written: dict[str, Any] = {"webhooks": [one, elsewhere], "private_hosts": ["127.0.0.1"]}
        file.write_bytes(msgspec.json.encode(written))
        settings = {"store_dir": tmp_path / "usage", "webhooks_file": file}
        async with usage(server.url, **settings):
            await notifying_from_now(conn)
            hook.answers = [b"503 Busy", b"302 Found\r\nLocation: http://127.0.0.1:1/"]
            await tell(conn, Story("day", queue="day").ran(0, 0))
            await tell(conn, Story("night", queue="night").ran(0, 0))
            assert await hook.until(2) == ["night", "night"]  # the second answer is no "later"
            (first, body), (again, same) = hook.got
            assert (first["Berth-Notice"], body) == (again["Berth-Notice"], same)
            signed = hmac.new(b"very secret", body, hashlib.sha256).hexdigest()
            assert first["Berth-Signature"] == f"sha256={signed}"
            letter = await dead_letter(conn)
            assert letter.reason == "webhook ours: it answers 302"
            assert b"very secret" not in letter.body
            assert b"token-1" not in letter.body
        await tell(conn, Story("away", queue="night").ran(0, 0))
        written["private_hosts"] = []
        written["webhooks"] = [one | {"url": f"https://127.0.0.1:{hook.port}/"}]
        async with usage(server.url, **settings):
            assert await hook.until(3) == ["night", "night", "away"]
            file.write_bytes(msgspec.json.encode(written))
        async with usage(server.url, **settings):
            await tell(conn, Story("private", queue="night").ran(0, 0))
            reason = "its address is a private one, and the file does not allow that for this host"
            async with asyncio.timeout(hang_s()):
                while (await dead_letter(conn)).reason != f"webhook ours: {reason}":
                    await asyncio.sleep(0.05)
            assert len(hook.got) == 3


@in_loop
async def test_a_webhook_that_hangs_keeps_no_other_tenants_notices_waiting(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "key").write_bytes(b"k")
    async with client(server.url) as conn, receiving() as hook:
        url = f"http://127.0.0.1:{hook.port}/"
        one = {"name": "all", "url": url, "key_file": str(tmp_path / "key")}
        file = tmp_path / "webhooks.json"
        file.write_bytes(msgspec.json.encode({"webhooks": [one], "private_hosts": ["127.0.0.1"]}))
        hook.hangs_for = "loud"
        async with usage(server.url, store_dir=tmp_path / "usage", webhooks_file=file):
            await notifying_from_now(conn)
            for number in range(40):  # more than are handled at once
                await tell(conn, Story(f"loud-{number}", tenant="loud").ran(0, 0))
            assert len(await hook.until(4)) == 4
            await tell(conn, Story("calm", tenant="calm").ran(0, 0))
            async with asyncio.timeout(hang_s()):
                while "calm" not in await hook.until(5):
                    await asyncio.sleep(0.05)


@in_loop
async def test_while_the_log_is_damaged_no_webhook_is_told_and_then_all_that_waited(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifying, "DAMAGED_PAUSE_S", 0.2)
    (tmp_path / "key").write_bytes(b"k")
    async with client(server.url) as conn, receiving() as hook:
        one = {"name": "all", "url": f"http://127.0.0.1:{hook.port}/"}
        one["key_file"] = str(tmp_path / "key")
        file = tmp_path / "webhooks.json"
        file.write_bytes(msgspec.json.encode({"webhooks": [one], "private_hosts": ["127.0.0.1"]}))
        async with usage(server.url, store_dir=tmp_path / "usage", webhooks_file=file) as context:
            await notifying_from_now(conn)
            await tell(conn, Story("before").ran(0, 0))
            assert await hook.until(1) == ["before"]
            log = await stream_info(conn, WORKLOADS)
            subject = subjects.log_mark("resolver")
            for ahead in (1_000_000, 0):  # somebody knows more of the log than there is, or not
                mark = StreamMark(
                    stream=WORKLOADS, incarnation=log.making, sequence=log.state.last_seq + ahead
                )
                known = LogMark(service="resolver", at_s=conn.now(), streams=(mark,))
                await conn.store(subject, encode(known), timeout_s=ANSWER_S)
                if ahead:
                    server.kill()  # marks of others are compared at each connection
                    server.start()
                    await until(lambda: not context.health.readiness()[0])
                    await tell(conn, Story("meanwhile").ran(0, 0))
                    await asyncio.sleep(0.5)
                    assert len(hook.got) == 1
            assert await hook.until(2) == ["before", "meanwhile"]


async def notifying_from_now(conn: Connection) -> None:
    """Until the consumers are there: new ones begin with what comes after them."""
    async with asyncio.timeout(hang_s()):
        made: list[str] = []
        while len([name for name in made if name.startswith("webhooks-")]) < 4:
            answer = msgspec.json.decode(await conn.api(f"CONSUMER.NAMES.{WORKLOADS}"))
            made = answer["consumers"] or []
            await asyncio.sleep(0.02)


async def dead_letter(conn: Connection) -> DeadLetter:
    """The newest of the service, once there is one."""
    async with asyncio.timeout(hang_s()):
        while (found := await last_message(conn, DEAD, subjects.dead("usage"))) is None:
            await asyncio.sleep(0.02)
    return msgspec.json.decode(found.data, type=DeadLetter)

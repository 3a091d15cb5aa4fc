"""A damaged log is noticed on a real server's disk, nothing is decided with it, and `berth recover`
builds another one that has every job that a cluster runs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from berthmaster.cli.audit.report import audit
from berthmaster.cli.backup.take import take
from berthmaster.cli.recover import build
from berthmaster.cli.recover.build import Recovery, Refused
from berthmaster.cli.recover.holdings import ask
from berthmaster.lab.emulator.host import Host
from berthmaster.lab.emulator.reporter import Reporter
from berthmaster.lib.door_client.client import DoorClient
from berthmaster.lib.event_log.workload_log import EventLog, decode_story
from berthmaster.lib.lifecycle.fold import fold_history
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Workload
from berthmaster.lib.messages.api import ChangeReply, OperatorReply, Refusal, SubmitReply
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.families import API_REPLIES, LOG_MARKS, encode
from berthmaster.lib.messages.workload import JobRequest, PodSet
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.stream_reads import last_message
from berthmaster.lib.nats.streams import FLEET, LEASES, WORKLOADS, stream_info
from berthmaster.lib.supervisor.embedded import Server
from tests.bus import log_damage
from tests.bus.log_damage import Damage, services
from tests.bus.shells import client, in_loop
from tests.bus.test_executor_cluster import BERLIN, executing
from tests.bus.tools import eventually, task
from tests.support.patience import ANSWER_S, until

JOBS = [f"job-{number}" for number in range(12)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """All services of these tests have seen the mark by then."""
    monkeypatch.setattr(build, "STOPPED_S", 1.5)


@asynccontextmanager
async def worker(conn: Connection) -> AsyncIterator[Host]:
    """A cluster with its executor and inventory, which speak to whatever door there is."""
    async with executing(conn) as host:
        reporter = Reporter(
            DoorClient(conn, BERLIN), host, report_interval_s=1.0, report_rate_per_s=1000.0, seed=1
        )
        ends = asyncio.Event()
        async with task(reporter.run(ends)), task(reporter.keep_alive(ends)):
            yield host


async def asked(conn: Connection, verb: str, body: msgspec.Struct | bytes) -> object:
    data = body if isinstance(body, bytes) else encode(body)
    reply = await conn.request(subjects.api("team", verb), data, timeout_s=ANSWER_S)
    return API_REPLIES.decode(reply.data)


def job(name: str, gpus: int = 1) -> JobRequest:
    return JobRequest(id=name, pod_sets=(PodSet(gpus=gpus),), expected_duration_s=3600.0)


async def standing(conn: Connection, name: str) -> Workload:
    history = decode_story(await EventLog(conn).story("team", name))
    return fold_history("team", name, history)[0]


async def all_are(conn: Connection, names: list[str], state: State) -> None:
    async def there() -> bool:
        return all([(await standing(conn, name)).state is state for name in names])

    await eventually(there)


async def all_remember(conn: Connection) -> None:
    """Gateway, resolver and door have seen the log go as far as it does."""
    last = (await stream_info(conn, WORKLOADS)).state.last_seq

    async def there() -> bool:
        for service in ("gateway", "resolver.all", "door"):
            message = await last_message(conn, LEASES, subjects.log_mark(service))
            marks = LOG_MARKS.decode(message.data).streams if message is not None else ()
            if not any(one.stream == WORKLOADS and one.sequence >= last for one in marks):
                return False
        return True

    await eventually(there)


def pods(host: Host) -> dict[str, float]:
    """When the pods of each job began to run; those that were never ended began only once."""
    return {group.attempt.id: group.made.starts_s for group in host.cluster.world.groups.values()}


def recovery(
    conn: Connection,
    *,
    backup: Path | None = None,
    without: frozenset[str] = frozenset(),
    limit_s: float = ANSWER_S,
    progress: Callable[[str], None] = lambda _: None,
) -> Recovery:
    return Recovery(
        conn,
        lambda clusters: ask(conn, clusters, limit_s=limit_s),
        backup=backup,
        without=without,
        progress=progress,
    )


async def reported(conn: Connection) -> None:
    """Until the cluster has reported to a bus that may have lost its facts."""
    subject = subjects.alive(BERLIN)
    await eventually(lambda: last_message(conn, FLEET, subject))


async def run_jobs(conn: Connection, names: list[str]) -> None:
    for name in names:
        assert isinstance(await asked(conn, "submit", job(name)), SubmitReply)
        await all_are(conn, [name], State.RUNNING)  # one by one, so that some are lost whole


@pytest.mark.parametrize("harm", log_damage.ALL.values(), ids=log_damage.ALL)
@in_loop
async def test_what_runs_runs_on_and_is_in_the_new_log(
    server: Server, tmp_path: Path, harm: Damage
) -> None:
    memory = tmp_path / "memory"
    async with client(server.url) as first, worker(first) as host:
        async with services(server.url, memory) as side:
            await until(lambda: side.ready)
            await run_jobs(first, JOBS)
            await all_remember(first)
            last = (await stream_info(first, WORKLOADS)).state.last_seq
        running = pods(host)
        assert sorted(running) == sorted(JOBS)
        harm(server)
        server.start()
        async with client(server.url) as conn, services(server.url, memory) as side:
            if harm is log_damage.flip_after_stop:  # the server trusts its index, and tells nobody
                await until(lambda: side.ready)
                assert "the logs are whole" in {one.rule for one in (await audit(conn)).findings}
            else:
                await until(lambda: side.damaged)
                refused = await asked(conn, "submit", job("after"))
                assert isinstance(refused, Refusal)
                assert refused.retry
            assert pods(host) == running  # no executor is told that a job is over
            await reported(conn)
            report = await recovery(conn).build("a test")
            assert report.built, report
            assert report.carried == len(JOBS), report.lines
            assert report.first > last + 100_000
        # A decider ends when its log is another one, and is started again.
        async with client(server.url) as conn, services(server.url, memory) as side:
            await until(lambda: side.ready)
            await all_are(conn, JOBS, State.RUNNING)
            assert pods(host) == running
            if harm is not log_damage.lose_everything:  # its nodes report within the hour
                await goes_on_as_if_nothing_had_been(conn, host)


async def goes_on_as_if_nothing_had_been(conn: Connection, host: Host) -> None:
    """Jobs that were carried over are jobs like any other."""
    name = JOBS[0]
    assert isinstance(await asked(conn, "submit", job(name)), SubmitReply)  # the same one
    assert isinstance(await asked(conn, "submit", job(name, gpus=2)), Refusal)
    assert isinstance(await asked(conn, "cancel", b'{"id":"%s"}' % name.encode()), ChangeReply)

    async def is_over() -> bool:
        return (await standing(conn, name)).state is State.CANCELLED and name not in pods(host)

    await eventually(is_over)
    # Their GPUs are theirs: 21 of 32 are free, and the twenty-second job waits.
    more = [f"more-{number}" for number in range(22)]
    for each in more:
        assert isinstance(await asked(conn, "submit", job(each)), SubmitReply)

    async def are_placed() -> bool:
        works = [await standing(conn, each) for each in more]
        return sum(work.state is State.RUNNING for work in works) == 21

    await eventually(are_placed)
    found = await audit(conn)
    assert [(f.rule, f.where, f.what) for f in found.findings] == []
    assert (found.carried, found.running) == (len(JOBS), len(JOBS) - 1 + 21)


@in_loop
async def test_a_backup_brings_back_what_waits_and_what_was_set(
    server: Server, tmp_path: Path
) -> None:
    """No cluster holds a job that waits, or an operator's setting."""
    folder, memory = tmp_path / "backup", tmp_path / "memory"
    async with client(server.url) as first, worker(first) as host:
        async with services(server.url, memory) as side:
            await until(lambda: side.ready)
            setting = QueueSetting(queue="night", weight=3.0)
            reply = await first.request(
                subjects.operator("queue"), encode(setting), timeout_s=ANSWER_S
            )
            assert isinstance(API_REPLIES.decode(reply.data), OperatorReply)
            await run_jobs(first, JOBS[:3])
            for name in ("large-1", "large-2"):
                assert isinstance(await asked(first, "submit", job(name, gpus=8)), SubmitReply)
            assert isinstance(await asked(first, "submit", job("waits", gpus=64)), SubmitReply)
            await take(first, folder)
            await run_jobs(first, JOBS[3:5])  # which the backup does not have
            await all_remember(first)
        running = pods(host)
        log_damage.lose_everything(server)
        server.start()
        async with client(server.url) as conn, services(server.url, memory) as side:
            await until(lambda: side.damaged)
            await reported(conn)
            shown = await recovery(conn, backup=folder).show()
            assert not shown.built
            assert side.damaged
            report = await recovery(conn, backup=folder).build("a test")
            assert report.settings >= 1
        async with client(server.url) as conn, services(server.url, memory) as side:
            await until(lambda: side.ready)
            assert pods(host) == running
            await all_are(conn, JOBS[:5], State.RUNNING)
            assert (await standing(conn, "waits")).state is State.QUEUED
            assert await last_message(conn, "CONTROL", subjects.queue_setting("night")) is not None


@in_loop
async def test_recover_refuses_while_a_cluster_is_silent_unless_it_is_named(
    server: Server, tmp_path: Path
) -> None:
    memory = tmp_path / "memory"
    async with client(server.url) as first:
        async with services(server.url, memory) as side, worker(first):
            await until(lambda: side.ready)
            await run_jobs(first, JOBS[:2])
            await all_remember(first)
        server.kill()  # the newest event is lost
        data = log_damage.block(server).read_bytes()
        log_damage.block(server).write_bytes(data[:-10])
        server.start()
        async with client(server.url) as conn, services(server.url, memory) as side:
            await until(lambda: side.damaged)
            with pytest.raises(Refused, match=r"berlin west\.1 does not answer"):
                await recovery(conn, limit_s=1.0).build("a test")
            await until(lambda: side.damaged)  # as it was
            gone = frozenset({BERLIN})
            report = await recovery(conn, without=gone, limit_s=1.0).build("a test")
            assert {one.outcome for one in report.lines} == {"queued"}
        # The cluster's last heartbeat still counts: a placement there is taken back soon.
        soon = services(server.url, memory, claim_timeout_s=1.0)
        async with client(server.url) as conn, soon as side:
            await until(lambda: side.ready)
            await all_are(conn, JOBS[:2], State.QUEUED)


class Killed(Exception):
    """In the middle of a recovery."""


@contextmanager
def dying_at(conn: Connection, change: int) -> Iterator[None]:
    """A process dies before so many of its requests to JetStream, and messages, change something.

    Raises Killed."""
    api, store, changes = Connection.api, Connection.store, 0

    def one_more(what: str) -> None:
        nonlocal changes
        changes += 1
        if changes > change:
            raise Killed(what)

    async def request(self: Connection, verb: str, *args: Any, **more: Any) -> bytes:
        if self is conn and verb.split(".")[1] in ("CREATE", "UPDATE", "DELETE"):
            one_more(verb)
        return await api(self, verb, *args, **more)

    async def stored(self: Connection, subject: str, *args: Any, **more: Any) -> int:
        if self is conn:
            one_more(subject)
        return await store(self, subject, *args, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "api", request)
        patch.setattr(Connection, "store", stored)
        yield


@in_loop
async def test_a_recovery_that_is_killed_at_any_step_is_run_again(
    server: Server, tmp_path: Path
) -> None:
    memory = tmp_path / "memory"
    async with client(server.url) as first, worker(first) as host:
        async with services(server.url, memory) as side:
            await until(lambda: side.ready)
            await run_jobs(first, JOBS[:4])
            await all_remember(first)
        running = pods(host)
        log_damage.cut(server)
        server.start()
        async with client(server.url) as conn, services(server.url, memory) as side:
            await until(lambda: side.damaged)
            changes = 0
            while True:
                try:
                    with dying_at(conn, changes):
                        assert (await recovery(conn).build("a test")).built
                    break
                except Killed:
                    assert side.damaged  # nobody takes an unfinished log for the log
                    changes += 1
            assert changes >= 10  # five streams' changes, a chain and four jobs
        async with client(server.url) as conn, services(server.url, memory) as side:
            await until(lambda: side.ready)
            await all_are(conn, JOBS[:4], State.RUNNING)
            assert pods(host) == running
            assert (await audit(conn)).findings == ()

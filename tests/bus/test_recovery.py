"""A log that lost jobs which run: their executors keep them, and once a person has accepted the
damage their reports bring them back, on a real server's disk."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from berthmaster.audit.report import audit
from berthmaster.bus import subjects
from berthmaster.bus.connection import Connection
from berthmaster.bus.door_client import DoorClient
from berthmaster.bus.embedded import Server
from berthmaster.bus.log import EventLog, decode_story, last_message
from berthmaster.bus.streams import CONTROL, LEASES, WORKLOADS, stream_info
from berthmaster.door.service import SERVICE as DOOR
from berthmaster.door.settings import DoorSettings
from berthmaster.emulator.host import Host
from berthmaster.emulator.reporter import Reporter
from berthmaster.gateway.service import SERVICE as GATEWAY
from berthmaster.gateway.settings import GatewaySettings
from berthmaster.lifecycle.fold import judged_story
from berthmaster.lifecycle.states import State
from berthmaster.lifecycle.workload import Workload
from berthmaster.logcheck import core, guard
from berthmaster.logcheck.examine import look, read_through
from berthmaster.logcheck.marks import flaws_of
from berthmaster.messages.api import (
    AcceptLogRequest,
    ChangeReply,
    OperatorReply,
    Refusal,
    SubmitReply,
)
from berthmaster.messages.families import API_REPLIES, LOG_MARKS, encode
from berthmaster.messages.workload import JobRequest, PodSet
from berthmaster.resolver.service import SERVICE as RESOLVER
from berthmaster.resolver.service import ResolverSettings
from tests.bus.shells import client, in_loop
from tests.bus.test_executor_cluster import BERLIN, executing
from tests.bus.test_log_damage import (
    Side,
    block,
    cut,
    cut_in_a_batch,
    lose_folder,
    started,
    zero_tail,
)
from tests.bus.tools import eventually, task
from tests.support.patience import ANSWER_S, hang_s, patient, until

JOBS = [f"job-{number}" for number in range(12)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One server has nothing to settle, and one cluster has soon spoken."""
    monkeypatch.setattr(guard, "SETTLE_S", 0.3)
    monkeypatch.setattr(guard, "LOOK_S", 0.2)
    monkeypatch.setattr(guard, "RECOVERY_S", 3.0)


@asynccontextmanager
async def services(url: str, memory: Path) -> AsyncIterator[Side]:
    """Gateway, resolver and door until the block ends, ready or not."""
    side, tasks = Side(), list["asyncio.Future[None]"]()
    folder = str(memory)
    gateway = patient(GatewaySettings, "gateway", nats_url=url, http_port=-1, memory_dir=folder)
    resolver = patient(ResolverSettings, "resolver", nats_url=url, http_port=-1, memory_dir=folder)
    started(GATEWAY, gateway, side, tasks)
    started(RESOLVER, resolver, side, tasks)
    started(
        DOOR,
        patient(DoorSettings, "door", nats_url=url, http_port=-1, memory_dir=folder),
        side,
        tasks,
    )
    try:
        yield side
    finally:
        for ctx in side.contexts.values():
            ctx.stopping.set()
        await asyncio.wait(tasks, timeout=hang_s())
        for ctx in side.contexts.values():
            for left in ctx.tasks:
                left.cancel()
            await asyncio.gather(*ctx.tasks, return_exceptions=True)


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


def job(name: str, gpus: int = 1, lasts_s: float = 3600.0) -> JobRequest:
    return JobRequest(id=name, pod_sets=(PodSet(gpus=gpus),), expected_duration_s=lasts_s)


async def standing(conn: Connection, name: str) -> Workload:
    flaws = await flaws_of(conn, WORKLOADS)
    story = decode_story(await EventLog(conn).story("team", name), flaws)
    return judged_story("team", name, story, flaws.is_lost)[0]


async def kinds(conn: Connection, name: str) -> list[str]:
    flaws = await flaws_of(conn, WORKLOADS)
    story = decode_story(await EventLog(conn).story("team", name), flaws)
    return [type(one.event).__name__ for one in story]


async def all_run(conn: Connection, names: list[str]) -> None:
    async def there() -> bool:
        works = [await standing(conn, name) for name in names]
        return all(work.state is State.RUNNING and work.cluster == BERLIN for work in works)

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


async def accept(conn: Connection, side: Side) -> None:
    """As `berth repair accept-log` does, for every stream of which a service says that it has lost
    something. Whoever asks sooner than they have told what they remember finds nothing."""
    accepted: set[str] = set()

    async def all_accepted() -> bool:
        accepted.update(await accept_what_is_known(conn))
        told = str(side.unready)
        return all(stream in accepted for stream in (WORKLOADS, CONTROL) if f"{stream} " in told)

    await until(lambda: "nothing is decided" in str(side.unready))
    await eventually(all_accepted)


async def accept_what_is_known(conn: Connection) -> list[str]:
    accepted = []
    for stream, looked in (await look(conn)).items():
        damage = [*looked.damage, *await read_through(conn, looked)]
        if not damage or looked.seen is None:
            continue
        last = looked.seen.last
        request = AcceptLogRequest(
            stream=stream,  # type: ignore[arg-type]  # one of those
            created=looked.seen.making,
            sequence=last,
            missing=core.accepting(core.together(g for each in damage for g in each.missing), last),
            reason="a test",
        )
        reply = await conn.request(
            subjects.operator("accept_log"), encode(request), timeout_s=ANSWER_S
        )
        assert isinstance(API_REPLIES.decode(reply.data), OperatorReply)
        accepted.append(stream)
    return accepted


def lose_everything(server: Server) -> None:
    server.stop()
    shutil.rmtree(server.config.store_dir)


def flip(kind: str, server: Server) -> None:
    """16 bytes of one event of a job that runs."""
    data = bytearray(block(server).read_bytes())
    at = data.index(b'"workload.%s.v1"' % kind.encode(), data.index(b'"id":"job-5"'))
    data[at : at + 16] = bytes(255 - byte for byte in data[at : at + 16])
    block(server).write_bytes(data)


def flip_after_kill(server: Server) -> None:
    """All that stands behind it in its block goes with it."""
    server.kill()
    flip("claimed", server)


def pods(host: Host) -> dict[str, float]:
    """When the pods of each job began to run; those that were never ended began only once."""
    return {group.attempt.id: group.made.starts_s for group in host.cluster.world.groups.values()}


@pytest.mark.parametrize(
    "harm",
    [flip_after_kill, cut, cut_in_a_batch, zero_tail, lose_folder, lose_everything],
    ids=["flipped", "cut", "cut in a batch", "zeroed", "lost", "all lost"],
)
@in_loop
async def test_what_runs_and_was_lost_runs_on_and_is_in_the_log_again(
    server: Server, tmp_path: Path, harm: Callable[[Server], None]
) -> None:
    memory = tmp_path / "memory"
    async with client(server.url) as first, worker(first) as host:
        async with services(server.url, memory) as side:
            await until(lambda: side.ready)
            for name in JOBS:
                assert isinstance(await asked(first, "submit", job(name)), SubmitReply)
                await all_run(first, [name])  # so that some of them are lost whole
            await all_remember(first)
        running = pods(host)
        assert sorted(running) == sorted(JOBS)
        harm(server)
        server.start()
        async with client(server.url) as conn:
            async with services(server.url, memory) as side:
                # The executor asks for its jobs, and is not told that they are over.
                await until(lambda: side.told)
                assert pods(host) == running
                await accept(conn, side)
            async with services(server.url, memory) as side:
                try:
                    await until(lambda: side.ready)
                except TimeoutError:
                    raise AssertionError(side.unready) from None
                await all_run(conn, JOBS)
                assert pods(host) == running
                lost = [name for name in JOBS if "Recovered" in await kinds(conn, name)]
                assert lost
                if (
                    harm is not lose_everything
                ):  # its inventory tells all of its nodes within the hour
                    await goes_on_as_if_nothing_had_been(conn, host, lost)


async def goes_on_as_if_nothing_had_been(conn: Connection, host: Host, lost: list[str]) -> None:
    """Jobs that were brought back are jobs like any other."""
    # Their ids are used: the same request is the same job, another one is refused.
    name = lost[0]
    again = await asked(conn, "submit", job(name))
    assert isinstance(again, SubmitReply), again
    assert isinstance(await asked(conn, "submit", job(name, gpus=2)), Refusal)
    # They can be cancelled, and then it is over.
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
    assert (found.recovered, found.running) == (len(lost), len(JOBS) - 1 + 21)

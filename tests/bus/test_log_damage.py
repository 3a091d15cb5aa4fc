"""Damage of the log on a real server's disk: services and the auditor tell of it, nothing is
decided, and what a person accepts counts from then on."""

import asyncio
import contextlib
import io
import itertools
import re
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from berthmaster.archivist.service import SERVICE as ARCHIVIST
from berthmaster.archivist.settings import ArchivistSettings
from berthmaster.audit.report import audit
from berthmaster.bus import subjects
from berthmaster.bus.connection import Connection
from berthmaster.bus.embedded import Server, ServerConfig
from berthmaster.bus.errors import NoAnswer
from berthmaster.bus.log import EventLog, decode_story, last_message
from berthmaster.bus.read import read_all
from berthmaster.bus.snapshots import load
from berthmaster.bus.streams import ARCHIVE, CONTROL, LEASES, WORKLOADS, stream_info
from berthmaster.gateway.service import SERVICE as GATEWAY
from berthmaster.gateway.settings import GatewaySettings
from berthmaster.lifecycle.instructions import Stored
from berthmaster.logcheck import core, guard
from berthmaster.logcheck import examine as logcheck_examine
from berthmaster.logcheck.examine import examine, look, newest_digests, read_through
from berthmaster.logcheck.marks import declared_void, seen_of
from berthmaster.messages.api import (
    AcceptLogRequest,
    ChangeReply,
    OperatorReply,
    RecordedEvent,
    Refusal,
    SubmitReply,
    VoidRequest,
    WhyReply,
)
from berthmaster.messages.families import API_REPLIES, DECISIONS, LOG_MARKS, encode
from berthmaster.messages.placement import Choice
from berthmaster.messages.records import ArchivedStory
from berthmaster.messages.workload import Cancelled, Submitted
from berthmaster.resolver.replay import read_inputs, replay
from berthmaster.resolver.service import SERVICE as RESOLVER
from berthmaster.resolver.service import ResolverSettings
from berthmaster.runtime.health import Health
from berthmaster.runtime.log import Log
from berthmaster.runtime.metrics import Metrics
from berthmaster.runtime.service import Context, Service
from berthmaster.runtime.settings import CommonSettings
from berthmaster.usage.service import SERVICE as USAGE
from berthmaster.usage.settings import UsageSettings
from tests.bus.shells import client, in_loop
from tests.bus.test_resolver import Fleet
from tests.bus.test_usage import jobs_until
from tests.bus.tools import accept_log, submitted
from tests.support.builders import job
from tests.support.patience import ANSWER_S, hang_s, patient, until

S = TypeVar("S", bound=CommonSettings)
JOBS = 40


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "SETTLE_S", 0.3)
    monkeypatch.setattr(logcheck_examine, "WHOLE_WITHIN_S", 0.3)
    monkeypatch.setattr(guard, "LOOK_S", 0.2)
    monkeypatch.setattr(guard, "RECOVERY_S", 0.5)  # nothing runs


class Side:
    """A gateway and a resolver on one bus, ready or not."""

    def __init__(self) -> None:
        self.contexts: dict[str, Context[Any]] = {}
        self.said = io.BytesIO()
        self.log = Log("both", level="warning", stream=self.said)

    def part(self, service: str, name: str = "logs") -> tuple[bool, str]:
        """Whether a part of a service is in order, and why not."""
        _, told = self.contexts[service].health.readiness()
        part = told["parts"].get(name)  # type: ignore[attr-defined]
        return (False, "") if part is None else (part["ok"], part["why"])

    @property
    def ready(self) -> bool:
        return all(ctx.health.readiness()[0] for ctx in self.contexts.values())

    @property
    def unready(self) -> dict[str, object]:
        return {name: ctx.health.readiness()[1] for name, ctx in self.contexts.items()}

    @property
    def told(self) -> bool:
        """Whether both say that a log is damaged."""
        return all(
            "nothing is decided" in self.part(name)[1] and not self.part(name)[0]
            for name in self.contexts
        )


def started(
    service: Service[S], settings: S, both: Side, tasks: list["asyncio.Future[None]"]
) -> None:
    ctx = Context(
        service.name, settings, log=both.log, metrics=Metrics(service.name), health=Health()
    )
    both.contexts[service.name] = ctx
    tasks.append(asyncio.ensure_future(service.main(ctx)))


@asynccontextmanager
async def side(
    url: str,
    snapshot_s: float = 60.0,
    memory: Path | None = None,
    *,
    resolves: bool = True,
    also: Sequence[tuple[Service[Any], CommonSettings]] = (),
) -> AsyncIterator[Side]:
    """Both services, or the gateway alone, and ``also`` others, until the block ends."""
    both = Side()
    tasks: list[asyncio.Future[None]] = []
    folder = str(memory) if memory is not None else ""
    gateway = patient(GatewaySettings, "gateway", nats_url=url, http_port=-1, memory_dir=folder)
    resolver = patient(
        ResolverSettings,
        "resolver",
        nats_url=url,
        http_port=-1,
        memory_dir=folder,
        snapshot_s=snapshot_s,
    )
    started(GATEWAY, gateway, both, tasks)
    if resolves:
        started(RESOLVER, resolver, both, tasks)
    for service, settings in also:
        started(service, settings, both, tasks)
    try:
        yield both
    finally:
        for ctx in both.contexts.values():
            ctx.stopping.set()
        await asyncio.wait(tasks, timeout=hang_s())
        for ctx in both.contexts.values():
            for left in ctx.tasks:
                left.cancel()
            await asyncio.gather(*ctx.tasks, return_exceptions=True)
        await asyncio.gather(*tasks)


async def submit(conn: Connection, name: str) -> SubmitReply | Refusal:
    reply = await conn.request(
        subjects.api("team", "submit"), encode(job(name)), timeout_s=ANSWER_S
    )
    answer = API_REPLIES.decode(reply.data)
    assert isinstance(answer, SubmitReply | Refusal)
    return answer


async def remembered(conn: Connection, service: str) -> int:
    """How far a service has seen WORKLOADS go."""
    message = await last_message(conn, LEASES, subjects.log_mark(service))
    if message is None:
        return 0
    return {one.stream: one.sequence for one in LOG_MARKS.decode(message.data).streams}[WORKLOADS]


async def at_work(url: str, snapshot_s: float = 60.0) -> int:
    """Jobs are taken and placed, and both services remember it: the log's end then."""
    async with client(url) as conn:
        async with side(url, snapshot_s) as both:
            await Fleet(conn).report(gpus=2 * JOBS)
            await until(lambda: both.ready)
            for number in range(JOBS):
                assert isinstance(await submit(conn, f"job-{number}"), SubmitReply)
            assert await Fleet(conn).placed("job-0") is not None
            last = (await stream_info(conn, WORKLOADS)).state.last_seq
            async with asyncio.timeout(hang_s()):
                for service in ("gateway", "resolver.all"):
                    while await remembered(conn, service) < last:
                        await asyncio.sleep(0.05)
                last_job = f"job-{JOBS - 1}".encode()
                while snapshot_s == 1.0 and last_job not in (
                    await load(conn, "resolver-all") or b""
                ):
                    await asyncio.sleep(0.05)
        return (await stream_info(conn, WORKLOADS)).state.last_seq


async def stored_story(conn: Connection) -> list[RecordedEvent]:
    log = EventLog(conn)
    await Fleet(conn).submit(job("old"))
    (submitted,) = decode_story(await log.story("team", "old"))
    assert isinstance(submitted.event, Submitted)
    ending = Cancelled(
        tenant="team",
        id="old",
        after=submitted.sequence,
        at_s=0.0,
        by="test",
        attempt=0,
        digest=submitted.event.digest,
        submitted_at_s=submitted.stored_at_s,
    )
    assert isinstance(await log.append(ending), Stored)
    return decode_story(await log.story("team", "old"))


async def accept(conn: Connection) -> OperatorReply:
    looked = (await look(conn))[WORKLOADS]
    damage = [*looked.damage, *await read_through(conn, looked)]
    assert looked.seen is not None
    last = looked.seen.last
    gaps = core.together(gap for each in damage for gap in each.missing)
    missing = core.accepting(gaps, last)
    request = AcceptLogRequest(
        stream=WORKLOADS,
        created=looked.seen.making,
        sequence=last,
        missing=missing,
        digests=await newest_digests(conn, looked, core.heard(missing)),
        reason="a test",
    )
    reply = await conn.request(subjects.operator("accept_log"), encode(request), timeout_s=ANSWER_S)
    answer = API_REPLIES.decode(reply.data)
    assert isinstance(answer, OperatorReply), answer
    return answer


async def decided_at_s(conn: Connection) -> list[float]:
    times: list[float] = []
    await read_all(
        conn, WORKLOADS, [subjects.ALL_DECISIONS], lambda seen: times.append(seen.stored_at_s)
    )
    return times


def block(server: Server) -> Path:
    found = server.folder.rglob(f"{WORKLOADS}/msgs/*.blk")
    return max(found, key=lambda file: file.stat().st_size)


def flip(server: Server) -> None:
    server.kill()
    data = bytearray(block(server).read_bytes())
    middle = data.index(b'"id":"job-20"')  # of its submit, which stands before its placement
    data[middle : middle + 16] = bytes(255 - byte for byte in data[middle : middle + 16])
    block(server).write_bytes(data)


def flip_after_stop(server: Server) -> None:
    """After a clean end the server may trust its index, and count what it can no longer read."""
    server.stop()
    data = bytearray(block(server).read_bytes())
    middle = data.index(b'"id":"job-20"')  # of its submit, which stands before its placement
    data[middle : middle + 16] = bytes(255 - byte for byte in data[middle : middle + 16])
    block(server).write_bytes(data)


def cut(server: Server) -> None:
    server.kill()
    data = block(server).read_bytes()
    block(server).write_bytes(data[: len(data) * 2 // 3])


def cut_in_a_batch(server: Server) -> None:
    """A decision is there, and not all of its placements."""
    server.kill()
    data = block(server).read_bytes()
    decision = data.rindex(b"berth.decision.all", 0, len(data) * 2 // 3)
    first = data.index(b".placed.", decision)
    block(server).write_bytes(data[: data.index(b".placed.", first + 1)])


async def loses_its_end_and_grows(server: Server, last: int) -> None:
    """As long again, and more, before anybody who knew it is there again."""
    cut(server)
    config = ServerConfig(sync="default", store_dir=server.config.store_dir)
    with Server(server.folder.with_name("elsewhere"), config) as elsewhere:
        async with client(elsewhere.url) as conn:
            numbers = itertools.count()
            while (await stream_info(conn, WORKLOADS)).state.last_seq <= last:
                new = submitted(f"new-{next(numbers)}")
                assert isinstance(await EventLog(conn).append(new), Stored)
    server.start()


def zero_tail(server: Server) -> None:
    server.stop()
    data = block(server).read_bytes()
    kept = len(data) * 2 // 3
    block(server).write_bytes(data[:kept] + bytes(len(data) - kept))


def lose_folder(server: Server) -> None:
    server.stop()
    shutil.rmtree(block(server).parent.parent)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (flip, "messages are missing"),
        (flip_after_stop, "missing|nobody removed"),
        (cut, "messages are missing"),
        (cut_in_a_batch, "messages are missing"),
        (zero_tail, "messages that nobody removed"),
        (lose_folder, "was made anew"),
    ],
    ids=["flipped", "flipped after a clean end", "cut", "cut in a batch", "zeroed", "lost"],
)
@in_loop
async def test_damage_is_told_and_nothing_is_decided_until_a_person_accepts_it(
    server: Server, harm: Callable[[Server], None], words: str
) -> None:
    last = await at_work(server.url)
    harm(server)
    server.start()
    async with client(server.url) as conn:
        before = await decided_at_s(conn)
        await Fleet(conn).report(gpus=2 * JOBS)
        # Whoever looks finds it, with the numbers that are missing.
        damage = await examine(conn)
        assert any(re.search(words, each.what) for each in damage), damage
        missing = core.together(gap for each in damage for gap in each.missing)
        assert missing
        assert missing[-1][1] <= last
        report = await audit(conn)
        assert not report.clean
        assert {"the logs are whole"} & {finding.rule for finding in report.findings}

        async with side(server.url) as both:
            # Both services say so, and neither takes nor decides anything.
            await until(lambda: both.told)
            assert both.said.getvalue().count(b"a log is damaged") >= 2
            refused = await submit(conn, "after")
            assert isinstance(refused, Refusal)
            assert refused.retry
            assert "nothing is decided" in refused.expected
            assert await decided_at_s(conn) == before

            accepted = await accept(conn)
            stored = await last_message(conn, CONTROL, subjects.log_accepted(WORKLOADS))
            assert stored is not None
            assert stored.sequence == accepted.sequence
        async with side(server.url) as both:
            # From then on the log is what it holds, and the rest was decided after that.
            try:
                await until(lambda: both.ready)
            except TimeoutError:
                raise AssertionError(both.unready) from None
            assert isinstance(await submit(conn, "after"), SubmitReply)
            await Fleet(conn).report(gpus=2 * JOBS)
            assert await Fleet(conn).placed("after") is not None
            assert min(set(await decided_at_s(conn)) - set(before)) > stored.stored_at_s
        assert await examine(conn) == []


@in_loop
async def test_shortened_log_grown_again_stays_damaged(server: Server) -> None:
    last = await at_work(server.url)
    cut(server)
    server.start()
    # The gateway reads no log at its start: it knows what was remembered, and its length.
    async with client(server.url) as conn, side(server.url, resolves=False) as alone:
        await until(lambda: alone.told)
        log = EventLog(conn)
        numbers = itertools.count()
        while (await stream_info(conn, WORKLOADS)).state.last_seq <= last:
            assert isinstance(await log.append(submitted(f"new-{next(numbers)}")), Stored)
        await until(lambda: "has another digest" in alone.part("gateway")[1])
        assert alone.told
        assert isinstance(await submit(conn, "after"), Refusal)
        await accept(conn)
        await until(lambda: alone.ready)
        assert isinstance(await submit(conn, "after"), SubmitReply)


@in_loop
async def test_a_gateway_that_starts_takes_nothing_while_the_log_is_in_doubt(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would stand under the numbers of what is lost, and hide that."""
    await at_work(server.url)
    cut(server)
    server.start()
    monkeypatch.setattr(guard, "SETTLE_S", 1.0)
    async with client(server.url) as conn, side(server.url, resolves=False) as alone:
        left = (await stream_info(conn, WORKLOADS)).state.last_seq
        answers: list[SubmitReply | Refusal] = []
        async with asyncio.timeout(hang_s()):
            while not alone.told:
                with contextlib.suppress(NoAnswer):
                    answers.append(await submit(conn, f"early-{len(answers)}"))
                await asyncio.sleep(0.02)
        assert answers
        assert {type(each) for each in answers} == {Refusal}
        assert (await stream_info(conn, WORKLOADS)).state.last_seq == left


@in_loop
async def test_a_log_that_is_as_long_again_before_anybody_looks_is_noticed_by_who_follows_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = await at_work(server.url)
    monkeypatch.setattr(guard, "LOOK_S", 4.0)
    async with side(server.url) as both:
        await until(lambda: both.ready)
        cut(server)
        server.start()
        async with client(server.url) as conn:
            log = EventLog(conn)
            numbers = itertools.count()
            while (await stream_info(conn, WORKLOADS)).state.last_seq <= last:
                assert isinstance(await log.append(submitted(f"new-{next(numbers)}")), Stored)
            await until(lambda: both.told)
            assert isinstance(await submit(conn, "after"), Refusal)


@in_loop
async def test_after_a_new_connection_nothing_is_decided_before_the_log_was_looked_at(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await at_work(server.url)
    monkeypatch.setattr(guard, "LOOK_S", 60.0)  # it waits for no turn
    ctx = Context(
        "alone", CommonSettings(), log=Side().log, metrics=Metrics("alone"), health=Health()
    )
    async with client(server.url) as conn:
        alone = guard.LogGuard(ctx, conn, "alone", waits_for_executors=False)
        assert await alone.begin()
        watching = asyncio.ensure_future(alone.run())
        await asyncio.sleep(0)
        assert alone.sound
        sound: list[bool] = []
        conn.when_reconnected(lambda: sound.append(alone.sound))
        server.kill()
        server.start()
        await until(lambda: sound == [False] and alone.sound)
        ctx.stopping.set()
        await asyncio.wait_for(watching, hang_s())


@in_loop
async def test_gateway_notices_regrown_log(server: Server) -> None:
    last = await at_work(server.url)
    async with side(server.url, resolves=False) as alone:
        await until(lambda: alone.ready)
        await loses_its_end_and_grows(server, last)
        async with client(server.url) as conn:
            await until(lambda: alone.told)
            assert "it holds something else than was read there" in alone.part("gateway")[1]
            assert isinstance(await submit(conn, "after"), Refusal)


@in_loop
async def test_writer_misses_its_lost_events(server: Server) -> None:
    said = io.BytesIO()
    log = Log("writer", level="warning", stream=said)
    ctx = Context("writer", CommonSettings(), log=log, metrics=Metrics("writer"), health=Health())
    async with client(server.url) as conn:
        mine = guard.LogGuard(ctx, conn, "writer")  # follows nothing
        assert await mine.begin()
        looking = asyncio.ensure_future(mine.run())
        for number in range(JOBS):
            assert isinstance(await EventLog(conn).append(submitted(f"old-{number}")), Stored)
        last = (await stream_info(conn, WORKLOADS)).state.last_seq
        await loses_its_end_and_grows(server, last)
        async with asyncio.timeout(hang_s()):
            while b"a log is damaged" not in said.getvalue():
                await asyncio.sleep(0.05)
        assert f"under {last} it holds something else".encode() in said.getvalue()
        assert not mine.sound
        ctx.stopping.set()
        await looking


async def place_first(conn: Connection, both: Side) -> None:
    """The only GPU is given away by the first decision."""
    await Fleet(conn).report(gpus=1)
    await until(lambda: both.ready)
    assert isinstance(await submit(conn, "first"), SubmitReply)
    assert await Fleet(conn).placed("first") is not None


async def half_a_commit(conn: Connection, name: str) -> int:
    """A decision that places a job, and not the event that was stored with it: what a server leaves
    that lost the last message of its log. The decision's number in the log."""
    last = await last_message(conn, WORKLOADS, subjects.decision("all"))
    assert last is not None
    before = DECISIONS.decode(last.data)
    choice = Choice(tenant="team", id=name, attempt=1, cluster="c1", pods=(), ranking=())
    made = msgspec.structs.replace(
        before, number=before.number + 1, after=last.sequence, events=1, placements=(choice,)
    )
    return await conn.store(subjects.decision("all"), encode(made))


@in_loop
async def test_log_ending_within_commit_is_reported(server: Server) -> None:
    async with client(server.url) as conn:
        async with side(server.url) as both:
            await place_first(conn, both)
            assert isinstance(await submit(conn, "second"), SubmitReply)  # which has no room
            end = await half_a_commit(conn, "second")

            # The resolver has read it; the gateway, which reads events alone, hears of it by its
            # mark.
            await until(lambda: both.told)
            words = f"ends in the middle of a commit: decision 2 of cell all, message {end}"
            assert all(words in both.part(name)[1] for name in both.contexts)
            assert isinstance(await submit(conn, "after"), Refusal)
            [damage] = await examine(conn)
            assert (damage.missing, damage.jobs) == (((end + 1, end + 1),), ("team/second",))
            assert any(words in found.what for found in (await audit(conn)).findings)
        async with side(server.url) as both:
            await until(lambda: both.told)
            await accept(conn)
            # Nothing of it is missing any more: its place is decided anew.
            await until(lambda: both.ready)
            assert await examine(conn) == []
            await Fleet(conn).report(gpus=2)
            placed = await Fleet(conn).placed("second")
            assert placed is not None
            assert (placed.attempt, placed.decision) == (1, 3)
            assert not replay(await read_inputs(conn), "all", last=1).different


@in_loop
async def test_torn_commit_in_grown_log_is_reported(server: Server) -> None:
    async with client(server.url) as conn:
        async with side(server.url) as both:
            await place_first(conn, both)
        await EventLog(conn).append(submitted("second"))
        end = await half_a_commit(conn, "second")
        await EventLog(conn).append(submitted("third"))
        async with side(server.url) as both:
            await until(lambda: both.told)
            words = f"message {end}, was stored with 1 event, and under {end + 1} stands another's"
            assert all(words in both.part(name)[1] for name in both.contexts)
        async with side(server.url) as both:
            await until(lambda: both.told)
            await accept(conn)
            assert await examine(conn) == []


@in_loop
async def test_an_acceptance_that_is_repeated_late_counts_once(server: Server) -> None:
    async with client(server.url) as conn, side(server.url, resolves=False) as alone:
        await until(lambda: alone.ready)
        assert isinstance(await submit(conn, "first"), SubmitReply)
        looked = (await look(conn))[WORKLOADS]
        assert looked.seen is not None
        request = AcceptLogRequest(
            stream=WORKLOADS,
            created=looked.seen.making,
            sequence=looked.seen.last,
            reason="a test",
            after=looked.accepted_sequence,
        )

        async def ask(request: AcceptLogRequest) -> object:
            reply = await conn.request(
                subjects.operator("accept_log"), encode(request), timeout_s=ANSWER_S
            )
            return API_REPLIES.decode(reply.data)

        accepted = await ask(request)
        assert isinstance(accepted, OperatorReply)
    async with client(server.url) as conn, side(server.url, resolves=False) as alone:
        await until(lambda: alone.ready)
        assert isinstance(await submit(conn, "later"), SubmitReply)
        async with asyncio.timeout(hang_s()):
            while await remembered(conn, "gateway") < 2:
                await asyncio.sleep(0.05)
        assert await ask(request) == accepted
        # What is remembered since then counts as before, and the gateway goes on.
        known = {by.service: one.sequence for one, by in (await look(conn))[WORKLOADS].marks}
        assert known["gateway"] == 2
        # Something else, by what stood there before it, is not accepted unseen.
        other = msgspec.structs.replace(request, sequence=2)
        refused = await ask(other)
        assert isinstance(refused, Refusal)
        assert (refused.code, refused.field) == ("conflict", "after")
        assert str(accepted.sequence) in refused.expected
        digests = dict.fromkeys(await newest_digests(conn, looked, ()), "of what was lost since")
        assert list(digests) == [1]
        after = msgspec.structs.replace(other, after=accepted.sequence, digests=digests)
        assert isinstance(await ask(after), OperatorReply)
    # What was looked at before that acceptance is not what the log holds.
    async with side(server.url) as both:
        await until(lambda: both.told)
        assert "up to 1 has another digest" in both.part("resolver")[1]


@in_loop
async def test_frozen_job_with_void_event_is_cancellable(server: Server) -> None:
    async with client(server.url) as conn, side(server.url) as both:
        await Fleet(conn).report(gpus=1)
        await until(lambda: both.ready)
        for name in ("keeps", "torn"):
            assert isinstance(await submit(conn, name), SubmitReply)
        where = subjects.workload_event("team", "torn", "reprioritized", None)
        torn = await conn.store(where, b"garbage", timeout_s=ANSWER_S)

        async def cancel() -> object:
            reply = await conn.request(
                subjects.api("team", "cancel"), b'{"id":"torn"}', timeout_s=ANSWER_S
            )
            return API_REPLIES.decode(reply.data)

        refused = await cancel()
        assert isinstance(refused, Refusal)
        seen = await seen_of(conn, WORKLOADS)
        assert seen is not None
        request = VoidRequest(created=seen.making, sequences=(torn,), reason="a test", after=0)

        async def declare(request: VoidRequest) -> object:
            reply = await conn.request(
                subjects.operator("void"), encode(request), timeout_s=ANSWER_S
            )
            return API_REPLIES.decode(reply.data)

        declared = await declare(request)
        assert isinstance(declared, OperatorReply), declared
        kept, number = await declared_void(conn, WORKLOADS)
        assert kept is not None
        assert (kept.sequences, kept.reason, number) == ((torn,), "a test", declared.sequence)
        # Repeated late it is what it was; whoever saw less than there is takes nothing back.
        assert await declare(request) == declared
        stale = await declare(msgspec.structs.replace(request, sequences=(torn + 1,)))
        assert isinstance(stale, Refusal)
        assert (stale.code, stale.field) == ("conflict", "after")
        assert (await declared_void(conn, WORKLOADS))[1] == number
    # Services start anew, as each does by itself when it hears of it.
    async with client(server.url) as conn, side(server.url) as both:
        await until(lambda: both.ready)
        assert isinstance(await cancel(), ChangeReply)
        assert (await audit(conn)).findings == ()


@in_loop
async def test_job_known_only_to_index_blocks_none(server: Server) -> None:
    """After a clean end the server trusts its index: it refuses each commit with that job."""
    names = [f"job-{number}" for number in range(JOBS)]
    async with client(server.url) as conn, side(server.url) as both:
        await until(lambda: both.ready)
        for name in ("torn", *names):
            assert isinstance(await submit(conn, name), SubmitReply)
        change = b'{"id":"torn","priority":424242}'
        changed = await conn.request(
            subjects.api("team", "reprioritize"), change, timeout_s=ANSWER_S
        )
        assert isinstance(API_REPLIES.decode(changed.data), ChangeReply)
    server.stop()
    data = bytearray(block(server).read_bytes())
    middle = data.index(b'"priority":424242')
    data[middle : middle + 16] = bytes(255 - byte for byte in data[middle : middle + 16])
    block(server).write_bytes(data)
    server.start()
    async with client(server.url) as conn:
        await accept_log(conn)
        async with side(server.url) as both:
            await until(lambda: both.ready)
            await Fleet(conn).report(gpus=2 * JOBS)
            for name in names:
                assert await Fleet(conn).placed(name) is not None
            suspended = "suspended: the log refuses what is decided about it"
            async with asyncio.timeout(
                hang_s()
            ):  # it is tried with the others first, then by itself
                while True:
                    why = await Fleet(conn).why("torn")
                    assert isinstance(why, WhyReply)
                    if why.summary.startswith(suspended):
                        break
                    await asyncio.sleep(0.02)


@in_loop
async def test_the_open_jobs_that_damage_touches_are_named(server: Server) -> None:
    await at_work(server.url, snapshot_s=1.0)
    cut(server)
    server.start()
    async with client(server.url) as conn:
        # one where the log ends, and another where that is in the middle of a commit
        lost = [each for each in await examine(conn) if each.missing]
        jobs = {name for each in lost for name in each.jobs}
        assert jobs
        assert all(each.startswith("team/job-") for each in jobs)
        told = [f.what for f in (await audit(conn)).findings if f.rule == "the logs are whole"]
        assert all(any(each.jobs[0] in what for what in told) for each in lost)


@in_loop
async def test_lost_disk_is_reported_from_memory(server: Server, tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    async with client(server.url) as conn, side(server.url, memory=memory) as both:
        await until(lambda: both.ready)
        assert isinstance(await submit(conn, "first"), SubmitReply)
        file = memory / "log-gateway.json"
        await until(lambda: file.exists() and b'"sequence":1' in file.read_bytes())
    server.stop()
    shutil.rmtree(server.config.store_dir)
    server.start()
    async with client(server.url) as conn, side(server.url, memory=memory) as both:
        await until(lambda: both.told)
        refused = await submit(conn, "first")
        assert isinstance(refused, Refusal)
        assert "WORKLOADS was made anew; the one before went up to 1" in refused.expected


@in_loop
async def test_what_the_archive_has_is_not_missed(server: Server) -> None:
    async with client(server.url) as conn:
        story = await stored_story(conn)
        await conn.api(f"STREAM.MSG.DELETE.{WORKLOADS}", {"seq": story[0].sequence})
        assert [each.missing for each in await examine(conn)] == [((1, 1),)]
        archived = ArchivedStory(tenant="team", id="old", events=tuple(story))
        await conn.request(subjects.archive("team", "old"), encode(archived), timeout_s=ANSWER_S)
        assert await examine(conn) == []


@in_loop
async def test_damaged_log_stops_archive_and_usage(server: Server, tmp_path: Path) -> None:
    async with client(server.url) as conn:
        await stored_story(conn)  # it has ended, and its story could move
    await at_work(server.url)
    flip(server)
    server.start()
    common: dict[str, Any] = {"nats_url": server.url, "http_port": -1}
    also: list[tuple[Service[Any], CommonSettings]] = [
        (ARCHIVIST, ArchivistSettings(**common, story_after_s=0.0, decision_after_s=0.0)),
        (USAGE, UsageSettings(**common, store_dir=tmp_path / "usage")),
    ]
    async with client(server.url) as conn:
        last = (await stream_info(conn, WORKLOADS)).state.last_seq
        async with side(server.url, resolves=False, also=also) as both:
            # The archivist has read all of it by then, and the others were told.
            await until(lambda: both.told)
            assert (await stream_info(conn, ARCHIVE)).state.last_seq == 0
            assert (await stream_info(conn, WORKLOADS)).state.last_seq == last

            # From the acceptance on both go on, from the log as it is.
            await accept(conn)
            await until(lambda: both.ready)
            assert list(await jobs_until(conn, 1)) == ["old"]
            async with asyncio.timeout(hang_s()):
                while (await stream_info(conn, ARCHIVE)).state.last_seq == 0:
                    await asyncio.sleep(0.05)

        # What was booked is not booked again when the log and its archive are read anew.
        async with side(server.url, resolves=False, also=also) as both:
            await until(lambda: both.ready)
            assert list(await jobs_until(conn, 1)) == ["old"]

"""The resolver as a service on a real server: decides, answers, restarts from its snapshot."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from berthmaster.control.archivist.service import main as archivist_main
from berthmaster.control.archivist.settings import ArchivistSettings
from berthmaster.control.resolver.replay import read_inputs, replay
from berthmaster.control.resolver.service import ResolverSettings, Shell
from berthmaster.lib.event_log.snapshots import load
from berthmaster.lib.event_log.workload_log import EventLog, decode_story
from berthmaster.lib.lifecycle.instructions import Stored
from berthmaster.lib.lifecycle.workload import request_digest
from berthmaster.lib.messages.api import DryRunReply, Refusal, WhatifReply, WhyReply
from berthmaster.lib.messages.families import API_REPLIES, DECISIONS, encode
from berthmaster.lib.messages.workload import Cancelled, JobRequest, Placed, Submitted
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import NoAnswer
from berthmaster.lib.nats.facts import FactWriter
from berthmaster.lib.nats.stream_connection import RequestConnections
from berthmaster.lib.nats.stream_reads import next_message
from berthmaster.lib.nats.streams import WORKLOADS, ensure_streams
from berthmaster.lib.runtime.health import Health
from berthmaster.lib.runtime.log import Log
from berthmaster.lib.runtime.metrics import Metrics
from berthmaster.lib.runtime.service import Context
from berthmaster.lib.runtime.settings import CommonSettings
from berthmaster.lib.supervisor.embedded import Server
from tests.bus.log_damage import replace_log
from tests.bus.shells import running
from tests.support.builders import alive, job, node, profile
from tests.support.patience import ANSWER_S, hang_s, patient

LIMIT_S = 10.0
LOG = Log("test", level="info", format="text")


@asynccontextmanager
async def resolver(url: str, **fields: float | str) -> AsyncIterator[Context[ResolverSettings]]:
    """A replica, running in this loop until the block ends."""
    settings = patient(ResolverSettings, "resolver", nats_url=url, http_port=-1, **fields)
    context = Context("resolver", settings, log=LOG, metrics=Metrics("resolver"), health=Health())
    async with await Connection.open(settings, "resolver", LOG, timeout_s=ANSWER_S) as conn:
        running = asyncio.create_task(
            Shell(context, conn, RequestConnections(conn, conn, ())).run()
        )
        try:
            yield context
        finally:
            context.stopping.set()
            await asyncio.wait_for(running, hang_s())
            assert context.died is None
            for task in context.tasks:
                task.cancel()


class Fleet:
    """One cluster of one node, and somebody who submits."""

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self.log = EventLog(conn)
        self._writer = FactWriter(conn)

    async def report(self, gpus: int = 2, cluster: str = "c1") -> None:
        await self._writer.begin(subjects.fleet_of(cluster))
        for subject, fact in (
            (subjects.profile(cluster), profile(cluster)),
            (subjects.node(cluster, "n1"), node(cluster, "n1", gpus=gpus)),
            (subjects.alive(cluster), alive(cluster)),
        ):
            await self.conn.request(subject, encode(fact), timeout_s=ANSWER_S)

    async def submit(self, request: JobRequest) -> None:
        event = Submitted(
            tenant="team",
            id=request.id,
            after=0,
            at_s=0.0,
            by="test",
            request=request,
            digest=request_digest(request),
        )
        assert isinstance(await self.log.append(event), Stored)

    async def placed(self, name: str, *, within_s: float = LIMIT_S) -> Placed | None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while loop.time() < deadline:
            for recorded in decode_story(await self.log.story("team", name)):
                if isinstance(recorded.event, Placed):
                    return recorded.event
            await asyncio.sleep(0.01)
        return None

    async def cancel(self, placed: Placed) -> None:
        """End what was placed and not claimed, as the gateway does."""
        story = decode_story(await self.log.story(placed.tenant, placed.id))
        event = Cancelled(
            tenant=placed.tenant,
            id=placed.id,
            after=story[-1].sequence,
            at_s=0.0,
            by="test",
            attempt=placed.attempt,
            digest=request_digest(placed.request),
            submitted_at_s=placed.submitted_at_s,
        )
        assert isinstance(await self.log.append(event), Stored)

    async def goes(self, request: JobRequest) -> str:
        await self.submit(request)
        placed = await self.placed(request.id, within_s=3 * LIMIT_S)
        assert placed is not None
        return placed.cluster

    async def ask(self, verb: str, body: bytes) -> object:
        """The answer, once the service has caught up."""
        for _ in range(500):
            try:
                reply = await self.conn.request(
                    subjects.api("team", verb), body, timeout_s=ANSWER_S
                )
                answer = API_REPLIES.decode(reply.data)
                if not (isinstance(answer, Refusal) and answer.retry):
                    return answer
            except NoAnswer:
                pass  # it is not up yet
            await asyncio.sleep(0.02)
        raise AssertionError("never ready")

    async def why(self, name: str) -> object:
        """The answer, once the resolver has heard of the job."""
        for _ in range(500):
            answer = await self.ask("why", b'{"id": "%s"}' % name.encode())
            if not (isinstance(answer, Refusal) and answer.code == "not_found"):
                return answer
            await asyncio.sleep(0.02)
        raise AssertionError(f"{name} never came")


@asynccontextmanager
async def fleet(url: str) -> AsyncIterator[Fleet]:
    settings = CommonSettings(nats_url=url)
    async with await Connection.open(settings, "test", LOG, timeout_s=ANSWER_S) as conn:
        await ensure_streams(conn)
        yield Fleet(conn)


def test_it_places_what_is_submitted_and_says_why(tmp_path: Path) -> None:
    async def story() -> None:
        with Server(tmp_path) as server:
            async with fleet(server.url) as world, resolver(server.url):
                await world.report()
                await world.submit(job("a", gpus=2))
                placed = await world.placed("a")
                assert placed is not None
                assert placed.cluster == "c1"
                there = await world.why("a")
                assert isinstance(there, WhyReply)
                assert there.choice is not None
                assert there.choice.ranking[0].cluster == "c1"
                await world.submit(job("b", gpus=2))
                waits = await world.why("b")
                assert isinstance(waits, WhyReply)
                assert waits.summary == "waits: of 1 clusters: 1 busy"
                tried = await world.ask("dry_run", encode(job("c", gpu_models=("H100",))))
                assert isinstance(tried, DryRunReply)
                assert tried.filtered == {"c1": "no such GPU model"}
                added = b'{"add_cluster": {"name": "c9", "like": "c1"}}'
                supposed = await world.ask("whatif", added)
                assert isinstance(supposed, WhatifReply)
                assert [(m.id, m.would) for m in supposed.placed] == [("b", "c9")]
                operator = await world.conn.request(
                    subjects.operator("whatif"),
                    b'{"cordon": {"cluster": "c1"}}',
                    timeout_s=ANSWER_S,
                )
                told = API_REPLIES.decode(operator.data)
                assert isinstance(told, WhatifReply)
                assert [m.id for m in (*told.elsewhere, *told.stranded)] == ["a", "b"]
                odd = await world.ask("whatif", b'{"cordn": {"cluster": "c1"}}')
                assert odd == Refusal(
                    code="invalid",
                    field="cordn",
                    value='{"cluster":"c1"}',
                    expected="no field of this name; did you mean cordon?",
                )
                wrong = await world.ask("why", b'{"id": 7}')
                assert isinstance(wrong, Refusal)
                assert (wrong.field, wrong.value) == ("id", "7")
                assert wrong.expected.startswith("1 to 52 lower-case letters, digits or '-'")
                deep = await world.ask(
                    "whatif", b'{"submit": {"id": "x", "pod_sets": [{"gpus": 99}]}}'
                )
                assert isinstance(deep, Refusal)
                assert (deep.field, deep.value) == ("submit.pod_sets[0].gpus", "99")
                assert deep.expected == "a whole number from 0 to 64"
                torn = await world.ask("dry_run", b'{"id": ')
                assert isinstance(torn, Refusal)
                assert (torn.code, torn.expected) == (
                    "malformed",
                    "one JSON object (RFC 8259, UTF-8); it ends too early",
                )

    asyncio.run(story())


def test_decisions_that_have_moved_to_the_archive_are_repeated_as_well(tmp_path: Path) -> None:
    async def story() -> None:
        with Server(tmp_path) as server:
            at_once = ArchivistSettings(nats_url=server.url, http_port=-1, decision_after_s=0.0)
            async with fleet(server.url) as world:
                async with resolver(server.url, stale_after_s=600.0, claim_timeout_s=600.0):
                    await world.report(gpus=8)
                    for number in range(4):
                        await world.submit(job(f"j{number}", gpus=1))
                        assert await world.placed(f"j{number}") is not None
                async with running("archivist", at_once, archivist_main):
                    while await first_decision(world.conn) != 4:
                        await asyncio.sleep(0.02)
                inputs = await read_inputs(world.conn)
                report = replay(inputs, "all")
                assert (report.decisions, report.archived) == (4, 3)
                assert (report.repeated, report.equal) == (4, 4), report.first_difference
                # Asked for the last one alone, what came before is still known.
                newest = replay(inputs, "all", last=1)
                assert (newest.decisions, newest.repeated, newest.equal) == (4, 1, 1)

    asyncio.run(asyncio.wait_for(story(), hang_s()))


async def first_decision(conn: Connection) -> int:
    """The number of the oldest decision that the log still has."""
    found = await next_message(conn, WORKLOADS, subjects.decision("all"), 1)
    return DECISIONS.decode(found.data).number if found is not None else 0


def test_a_new_life_starts_from_the_snapshot_and_knows_what_was_promised(tmp_path: Path) -> None:
    async def story() -> None:
        with Server(tmp_path) as server:
            async with fleet(server.url) as world:
                await world.report()
                async with resolver(server.url, snapshot_s=1.0):
                    await world.submit(job("a", gpus=2))
                    assert await world.placed("a") is not None
                    for _ in range(500):
                        if await load(world.conn, "resolver-all") is not None:
                            break
                        await asyncio.sleep(0.02)
                async with resolver(server.url, claim_timeout_s=3600.0) as second:
                    await world.submit(job("b", gpus=1))
                    there = await world.why("a")
                    assert isinstance(there, WhyReply)
                    assert there.choice is not None  # its decision was read from the log
                    assert await world.placed("b", within_s=0.5) is None  # both GPUs are a's
                    assert second.died is None

    asyncio.run(story())


def test_a_snapshot_of_another_stream_is_not_used(tmp_path: Path) -> None:
    async def story() -> None:
        with Server(tmp_path) as server:
            async with fleet(server.url) as world:
                await world.report()
                async with resolver(server.url, snapshot_s=1.0):
                    await world.submit(job("a", gpus=2))
                    assert await world.placed("a") is not None
                    for _ in range(500):
                        if await load(world.conn, "resolver-all") is not None:
                            break
                        await asyncio.sleep(0.02)
                await replace_log(world.conn)
                async with resolver(server.url):
                    await world.submit(job("b", gpus=2))
                    assert await world.placed("b") is not None  # a's promise is not of this stream

    asyncio.run(story())


def test_two_replicas_one_decides_and_the_other_takes_over(tmp_path: Path) -> None:
    async def story() -> None:
        with Server(tmp_path) as server:
            async with fleet(server.url) as world:
                await world.report(gpus=8)
                async with resolver(server.url):
                    async with resolver(server.url):
                        await world.submit(job("a"))
                        assert await world.placed("a") is not None
                    await world.submit(job("b"))
                    assert await world.placed("b", within_s=3.0) is not None

    asyncio.run(story())

"""The client against a real server: what it repeats, what it tells, whom it lets see what."""

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from berthmaster.client import (
    Client,
    NotAllowedError,
    RefusedError,
    SyncClient,
    TooLargeError,
    UnavailableError,
    UnexpectedReplyError,
    following,
)
from berthmaster.lib.access.keys import creds_file
from berthmaster.lib.access.permissions import inbox_prefix
from berthmaster.lib.event_log.workload_log import EventLog
from berthmaster.lib.lifecycle.instructions import Refused, Stored
from berthmaster.lib.messages.api import GetReply, RecordedEvent, Refusal, SubmitReply, WorkloadView
from berthmaster.lib.messages.families import JOB_REQUESTS, encode
from berthmaster.lib.messages.fleet import ClusterAlive, Stamp
from berthmaster.lib.messages.workload import (
    Cancelled,
    CancelRequested,
    JobRequest,
    Submitted,
    WorkloadEvent,
)
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.endpoints import Endpoint, Endpoints, serve
from berthmaster.lib.nats.message_subjects import event_subject
from berthmaster.lib.nats.streams import ensure_streams
from berthmaster.lib.nats.subjects import LANES
from berthmaster.lib.runtime.ports import free_ports
from berthmaster.lib.supervisor.embedded import Server, ServerConfig
from tests.bus.proxy import proxied
from tests.bus.shells import gateway
from tests.bus.tools import Lines, Settings, accounts_of, connected, story
from tests.support.patience import ANSWER_S, until

JOB = JobRequest(id="train-7")
LATER = Refusal(code="unavailable", field="", value="", expected="try again", retry=True)
WRONG = Refusal(code="invalid", field="queue", value="qeue", expected="a queue that exists")


async def answering(
    conn: Connection, tenant: str, verb: str, answer: Callable[[str, bytes], Awaitable[bytes]]
) -> Endpoints:
    return await serve(
        conn,
        "stand-in",
        {verb: Endpoint(subjects.api(tenant, verb), answer)},
        version="0.0.1",
        description="answers as the test says",
        overloaded=lambda _: encode(LATER),
        failed=lambda _, __: b"",
        lanes=[conn] * LANES,
    )


def submitted(id: str, after: int = 0) -> Submitted:
    return Submitted(
        tenant="lab", id=id, after=after, at_s=0, by="test", request=JobRequest(id=id), digest="d"
    )


@story
async def test_a_submit_is_repeated_until_it_is_answered(server: Server) -> None:
    seen: list[bytes] = []

    async def answer(subject: str, data: bytes) -> bytes:
        seen.append(data)
        if len(seen) < 3:
            return encode(LATER)
        request = JOB_REQUESTS.decode(data)
        return encode(SubmitReply(tenant="lab", id=request.id, sequence=7))

    async with (
        connected(server.url, replicas=1) as conn,
        Client.connect(server.url, tenant="lab", timeout_s=ANSWER_S) as berth,
    ):
        await answering(conn, "lab", "submit", answer)
        assert await berth.submit(JOB) == SubmitReply(tenant="lab", id="train-7", sequence=7)
    assert seen == [encode(JOB)] * 3


@story
async def test_client_retries_when_told_or_fails_early(server: Server) -> None:
    refusal = msgspec.structs.replace(LATER, code="overloaded", retry_after_s=0.4)
    asked_s: list[float] = []

    async def answer(subject: str, data: bytes) -> bytes:
        asked_s.append(time.monotonic())
        first = SubmitReply(tenant="lab", id="train-7", sequence=7)
        return encode(first if len(asked_s) == 2 else refusal)

    async with connected(server.url, replicas=1) as conn:
        await answering(conn, "lab", "submit", answer)
        async with Client.connect(server.url, tenant="lab", timeout_s=ANSWER_S) as berth:
            await berth.submit(JOB)
        async with Client.connect(server.url, tenant="lab", timeout_s=0.3) as berth:
            with pytest.raises(RefusedError) as told:
                await berth.submit(JOB)
    assert asked_s[1] - asked_s[0] >= 0.4
    assert told.value.refusal == refusal
    assert len(asked_s) == 3  # there is no time to come again


@story
async def test_a_service_that_starts_late_is_waited_for(server: Server) -> None:
    async def answer(subject: str, data: bytes) -> bytes:
        return encode(SubmitReply(tenant="lab", id="train-7", sequence=1))

    async with (
        connected(server.url, replicas=1) as conn,
        Client.connect(server.url, tenant="lab", timeout_s=ANSWER_S) as berth,
    ):
        asking = asyncio.create_task(berth.submit(JOB))
        await asyncio.sleep(0.3)
        await answering(conn, "lab", "submit", answer)
        assert (await asking).sequence == 1


@story
async def test_refusals_are_errors_with_their_refusal(server: Server) -> None:
    async def answer(subject: str, data: bytes) -> bytes:
        return encode(WRONG)

    async with (
        connected(server.url, replicas=1) as conn,
        Client.connect(server.url, tenant="lab") as berth,
    ):
        await answering(conn, "lab", "submit", answer)
        with pytest.raises(RefusedError) as told:
            await berth.submit(JOB)
    assert told.value.refusal == WRONG
    assert str(told.value) == "queue: 'qeue' refused (invalid): a queue that exists"


@story
async def test_an_answer_of_another_version_is_told(server: Server) -> None:
    replies = iter([b'{"type": "api.submitted.v9"}', encode(GetReply(workload=VIEW))])

    async def answer(subject: str, data: bytes) -> bytes:
        return next(replies)

    async with (
        connected(server.url, replicas=1) as conn,
        Client.connect(server.url, tenant="lab") as berth,
    ):
        await answering(conn, "lab", "submit", answer)
        with pytest.raises(UnexpectedReplyError, match="cannot read the reply"):
            await berth.submit(JOB)
        with pytest.raises(UnexpectedReplyError, match="was answered GetReply"):
            await berth.submit(JOB)


VIEW = WorkloadView(tenant="lab", id="train-7", state="queued")


@story
async def test_a_request_of_2_mb_is_not_sent(server: Server) -> None:
    async with Client.connect(server.url, tenant="lab") as berth:
        with pytest.raises(TooLargeError) as told:
            await berth.submit_raw(b"x" * 2_000_000)
    assert (told.value.size_bytes, told.value.limit_bytes) == (2_000_000, 1_048_064)


@story
async def test_nobody_there_is_told_within_the_time_limit(server: Server) -> None:
    async with Client.connect(server.url, tenant="lab", timeout_s=0.5) as berth:
        with pytest.raises(UnavailableError, match=r"nobody listens on berth\.api\.lab\.submit"):
            await berth.submit(JOB)
    (port,) = free_ports(1)
    with pytest.raises(UnavailableError, match="no NATS server"):
        async with Client.connect(f"nats://127.0.0.1:{port}", connect_timeout_s=0.2):
            pass


@story
async def test_facts_are_listed_once_or_followed(server: Server) -> None:
    def alive(cluster: str, counter: int) -> ClusterAlive:
        return ClusterAlive(
            cluster=cluster, stamp=Stamp(epoch=1, counter=counter), observed_at_s=0, interval_s=1
        )

    async with connected(server.url, replicas=1) as conn, Client.connect(server.url) as berth:
        assert await berth.fleet() == []
        for cluster in ("berlin", "paris"):
            await conn.request(
                subjects.alive(cluster), encode(alive(cluster, 1)), timeout_s=ANSWER_S
            )
        listed = await berth.fleet()
        assert [seen.fact for seen in listed] == [alive("berlin", 1), alive("paris", 1)]
        assert all(abs(seen.stored_at_s - berth.now()) < 10 for seen in listed)

        async with aclosing(berth.facts(cluster="paris")) as facts:
            assert (await anext(facts)).fact == alive("paris", 1)
            await conn.request(
                subjects.alive("berlin"), encode(alive("berlin", 2)), timeout_s=ANSWER_S
            )
            await conn.request(
                subjects.alive("paris"), encode(alive("paris", 2)), timeout_s=ANSWER_S
            )
            assert (await anext(facts)).fact == alive("paris", 2)


@story
async def test_watching_begins_now_or_where_it_is_told(server: Server) -> None:
    async with (
        connected(server.url, replicas=1) as conn,
        Client.connect(server.url, tenant="lab") as berth,
    ):
        await conn.request(
            event_subject(submitted("a")), encode(submitted("a")), timeout_s=ANSWER_S
        )
        since = await berth.last_sequence()
        await conn.request(
            event_subject(submitted("b")), encode(submitted("b")), timeout_s=ANSWER_S
        )
        async with aclosing(berth.watch(since=0)) as events:
            assert [(await anext(events)).event.id for _ in range(2)] == ["a", "b"]
        async with aclosing(berth.watch(since=since)) as events:
            assert (await anext(events)).event.id == "b"
        async with aclosing(berth.watch(workload="a", since=0)) as events:
            assert (await anext(events)).event == submitted("a")


@story
async def test_client_of_tenant_sees_only_its_events(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    extra = accounts_of(keys, ["gateway", "setup", "operator", "tenant.lab"])
    config = ServerConfig(sync="default", extra=extra)

    def user(server: Server, name: str) -> Settings:
        return Settings(server.url, creds_file(keys, name), inbox_prefix(name))

    first, last = (
        submitted("a"),
        Cancelled(tenant="lab", id="a", after=1, at_s=0, by="t", digest="d", submitted_at_s=0),
    )
    with Server(tmp_path / "nats", config) as server:
        log = Lines()
        async with await Connection.open(user(server, "setup"), "setup", log) as setup:
            await ensure_streams(setup)
        me = Client.connect(
            server.url,
            tenant="lab",
            creds_file=creds_file(keys, "tenant.lab"),
            inbox_prefix=inbox_prefix("tenant.lab"),
            timeout_s=ANSWER_S,
        )
        async with await Connection.open(user(server, "gateway"), "gateway", log) as gateway, me:
            await gateway.request(event_subject(first), encode(first), timeout_s=ANSWER_S)

            asked: list[bytes] = []

            async def answer(subject: str, data: bytes) -> bytes:
                known = [RecordedEvent(sequence=1, stored_at_s=5.0, event=first)]
                if asked:
                    known.append(RecordedEvent(sequence=2, stored_at_s=6.0, event=last))
                else:  # the ending is stored while the story is on its way: it must come, and once
                    await gateway.request(event_subject(last), encode(last), timeout_s=ANSWER_S)
                asked.append(data)
                return encode(GetReply(workload=VIEW, story=tuple(known)))

            await answering(gateway, "lab", "get", answer)
            async with aclosing(me.watch(workload="a", since=0)) as events:
                seen = [await anext(events) for _ in range(2)]
            assert [(each.sequence, each.event) for each in seen] == [(1, first), (2, last)]
            # Since an event: its story after that, and then what comes.
            async with aclosing(me.watch(workload="a", since=1)) as events:
                assert (await anext(events)).event == last

            with pytest.raises(NotAllowedError):
                await me.fleet()
            with pytest.raises(NotAllowedError):
                await me.cordon("berlin")


@story
async def test_watch_delivers_stored_events_only(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    config = ServerConfig(
        sync="default", extra=accounts_of(keys, ["gateway", "setup", "tenant.lab"])
    )

    def user(server: Server, name: str) -> Settings:
        return Settings(server.url, creds_file(keys, name), inbox_prefix(name))

    stale = Cancelled(tenant="lab", id="a", after=0, at_s=0, by="t", digest="d", submitted_at_s=0)
    with Server(tmp_path / "nats", config) as server:
        log = Lines()
        async with await Connection.open(user(server, "setup"), "setup", log) as setup:
            await ensure_streams(setup)
        me = Client.connect(
            server.url,
            tenant="lab",
            creds_file=creds_file(keys, "tenant.lab"),
            inbox_prefix=inbox_prefix("tenant.lab"),
            timeout_s=ANSWER_S,
        )
        async with await Connection.open(user(server, "gateway"), "gateway", log) as gateway, me:
            events = EventLog(gateway)
            async with aclosing(me.watch()) as seen:
                before = len(me.connection.nc._subs)
                heard = asyncio.ensure_future(anext(seen))
                await until(lambda: len(me.connection.nc._subs) > before, "it listens")
                await me.connection.flush()
                assert await events.append(submitted("a")) == Stored(1)
                assert isinstance(await events.append(stale), Refused)
                assert await events.append(submitted("b")) == Stored(2)
                first, second = await heard, await anext(seen)
            assert [(one.sequence, one.event) for one in (first, second)] == [
                (1, submitted("a")),
                (2, submitted("b")),
            ]
            assert abs(first.stored_at_s - gateway.now()) < 10


@story
async def test_what_a_lost_connection_kept_from_a_tenant_is_asked_for_again(tmp_path: Path) -> None:
    """Also of a workload of which it had heard nothing; then the same for a program that blocks."""
    keys = tmp_path / "keys"
    users = ["gateway", "setup", "tenant.lab"]
    config = ServerConfig(sync="default", extra=accounts_of(keys, users))
    mine = {"creds_file": creds_file(keys, "tenant.lab"), "inbox_prefix": "_INBOX.tenant.lab"}
    theirs = {"nats_creds_file": creds_file(keys, "gateway"), "inbox_prefix": "_INBOX.gateway"}
    with Server(tmp_path / "nats", config) as server:
        told = Settings(server.url, creds_file(keys, "setup"), inbox_prefix("setup"))
        async with await Connection.open(told, "setup", Lines()) as setup:
            await ensure_streams(setup)
        async with proxied(server.url) as proxy, gateway(server.url, **theirs):
            me = Client.connect(proxy.url, tenant="lab", timeout_s=ANSWER_S, **mine)  # type: ignore[arg-type]
            async with me, aclosing(me.watch()) as seen:
                before = len(me.connection.nc._subs)
                heard = asyncio.ensure_future(anext(seen))
                await until(lambda: len(me.connection.nc._subs) > before, "it listens")
                await me.connection.flush()
                await me.submit(JobRequest(id="a"))
                assert (await heard).event.id == "a"
                proxy.to_client = lambda passing: b" berth.event." in passing.line
                await me.submit(JobRequest(id="b"))
                await until(lambda: bool(proxy.lost), "the event of b is lost")
                proxy.to_client = lambda _: False
                proxy.cut()
                assert (await anext(seen)).event.id == "b"
                await me.submit(JobRequest(id="c"))
                assert (await anext(seen)).event.id == "c"
            await asyncio.to_thread(blocking_story, server.url, mine)


def blocking_story(url: str, mine: dict[str, Any]) -> None:
    with SyncClient.connect(url, tenant="lab", timeout_s=ANSWER_S, **mine) as berth:
        assert berth.submit(JobRequest(id="d")) == SubmitReply(tenant="lab", id="d", sequence=4)
        assert [view.id for view in berth.list().workloads] == ["d", "c", "b", "a"]
        happening = berth.watch(since=2)
        assert [next(happening).event.id for _ in range(2)] == ["c", "d"]
        happening.close()
        with pytest.raises(TimeoutError):
            berth.wait("d", limit_s=0.01)
        assert berth.cancel("d", "enough").state == "cancelled"
        assert berth.wait("d", until="running", limit_s=60).reason == "enough"
        with pytest.raises(RefusedError):
            berth.get("nobody")
        answers = list(berth.submit_many([JobRequest(id="e"), b"{}", JobRequest(id="a")]))
        assert [isinstance(answer, SubmitReply) for _, answer in answers] == [True, False, True]
        assert berth.call(lambda client: client.get("e")).workload.state == "queued"
        left = berth.watch()  # nothing comes any more; the end of the client ends it
        threading.Timer(0.05, berth.__exit__, (None, None, None)).start()
        with pytest.raises(UnavailableError):
            next(left)
    with pytest.raises(RuntimeError, match="use the client as"):
        berth.get("a")


def test_every_method_of_the_blocking_client_takes_what_the_other_takes() -> None:
    with pytest.raises(RuntimeError, match="use the client as"):
        SyncClient.connect().hello()
    for name in ("submit", "submit_many", "watch", "logs", "wait", "list", "events", "gpus"):
        ours = inspect.signature(getattr(SyncClient.connect(), name))
        assert list(ours.parameters) == list(inspect.signature(getattr(Client, name)).parameters)


def test_what_was_not_heard_is_noticed_at_the_next_event_that_names_it() -> None:
    first = submitted("a")
    wish = CancelRequested(tenant="lab", id="a", after=1, at_s=0, by="t", cluster="berlin")
    last = Cancelled(tenant="lab", id="a", after=2, at_s=0, by="t", digest="d", submitted_at_s=0)
    chains = following.Chains()

    def at(sequence: int, event: WorkloadEvent) -> following.SeenEvent:
        return following.SeenEvent(sequence=sequence, stored_at_s=0.0, event=event)

    assert chains.missing(at(1, first)) == []
    assert chains.take(at(1, first))
    assert not chains.take(at(1, first))
    assert chains.missing(at(3, last)) == ["a"]  # the wish was not heard
    assert [chains.take(at(number, one)) for number, one in ((1, first), (2, wish))] == [
        False,
        True,
    ]
    assert chains.missing(at(3, last)) == []
    assert chains.open() == ["a"]
    assert chains.take(at(3, last))
    assert chains.open() == []  # of what has ended nothing more comes

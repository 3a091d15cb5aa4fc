"""The gateway on a real server: stored before it is answered, once, whatever is killed."""

import asyncio
import itertools
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from berthmaster.control.gateway import service
from berthmaster.lib.event_log.workload_log import EventLog, decode_story
from berthmaster.lib.lifecycle.workload import request_digest
from berthmaster.lib.messages.api import (
    CancelRequest,
    ChangeReply,
    CordonRequest,
    EventsReply,
    EventsRequest,
    GetReply,
    GetRequest,
    ListReply,
    ListRequest,
    LostRequest,
    OperatorReply,
    Refusal,
    ReprioritizeRequest,
    SubmitReply,
    WorkloadView,
)
from berthmaster.lib.messages.control import Cordon, QueueSetting
from berthmaster.lib.messages.families import CONTROL_FACTS, encode
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import (
    Claimed,
    JobRequest,
    Placed,
    PodSet,
    Running,
    Submitted,
    Succeeded,
)
from berthmaster.lib.nats import endpoints, subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.nats.fair_queue import NUMBER_AGAIN_S, RATE_AGAIN_S
from berthmaster.lib.nats.message_subjects import event_subject
from berthmaster.lib.nats.stream_reads import last_message
from berthmaster.lib.nats.streams import CONTROL, WORKLOADS, StreamInfo, stream_configs, stream_info
from berthmaster.lib.supervisor.embedded import Server
from tests.bus.shells import ask, client, gateway, in_loop, order, store
from tests.bus.tools import remove
from tests.support.patience import ANSWER_S, NEVER_S, hang_s, until

AGAIN = "an answer is not certain now; repeating the request is safe"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "nats") as running:
        yield running


def job(name: str, **rest: object) -> JobRequest:
    return JobRequest(id=name, **rest)  # type: ignore[arg-type] # the struct checks nothing here


async def kinds(conn: Connection, name: str) -> list[str]:
    messages = await EventLog(conn).story("ann", name)
    return [type(r.event).__name__ for r in decode_story(messages)]


async def live_on(conn: Connection, request: JobRequest, until_state: str) -> None:
    """Take a submitted workload further, as resolver and executor would."""
    common = {"tenant": "ann", "id": request.id, "at_s": 1.0, "by": "test"}
    where = {"cluster": "c1", "attempt": 1}
    pods = (PodBinding(pod="main-0", node="n1"),)
    messages = await EventLog(conn).story("ann", request.id)
    after = messages[-1].sequence
    ending = {"digest": request_digest(request), "submitted_at_s": 1.0}
    steps = {
        "placed": (Placed, where | {"pods": pods, "request": request, "decision": 1}),
        "claimed": (Claimed, where | {"executor": "e1"}),
        "running": (Running, where | {"pods": pods}),
        "succeeded": (Succeeded, where | ending),
    }
    for state, (kind, fields) in steps.items():
        event = msgspec.convert(common | fields | {"after": after}, kind)
        after = await store(conn, event)
        if state == until_state:
            return


async def purge_to_tombstone(conn: Connection, name: str) -> int:
    messages = await EventLog(conn).story("ann", name)
    await remove(conn, *(message.sequence for message in messages[:-1]))
    return messages[-1].sequence


@in_loop
async def test_a_submit_that_was_answered_is_there_after_kill_9(server: Server) -> None:
    async with client(server.url) as conn, gateway(server.url):
        reply = await ask(conn, "submit", job("train"))
        assert reply == SubmitReply(tenant="ann", id="train", sequence=1)
        server.kill()
        server.start()
        again = await ask_patiently(conn, "submit", job("train"))
        assert again == SubmitReply(tenant="ann", id="train", sequence=1, existing=True)
        assert await kinds(conn, "train") == ["Submitted"]


async def ask_patiently(conn: Connection, verb: str, body: object) -> object:
    """Ask until somebody answers for certain, as a client does."""
    timeout_s = 1.0
    async with asyncio.timeout(hang_s()):
        while True:
            try:
                reply = await ask(conn, verb, body, timeout_s=timeout_s)
            except BusError:
                timeout_s *= 2  # a busy machine gets nowhere with what all ask for again and again
                await asyncio.sleep(0.05)
                continue
            if not isinstance(reply, Refusal) or not reply.retry:
                return reply
            await asyncio.sleep(0.05)


@in_loop
async def test_an_id_answers_for_its_content_even_after_its_story_is_purged(server: Server) -> None:
    async with client(server.url) as conn, gateway(server.url):
        first = await ask(conn, "submit", job("train"))
        assert first == SubmitReply(tenant="ann", id="train", sequence=1)
        await live_on(conn, job("train"), "succeeded")
        existing = SubmitReply(
            tenant="ann", id="train", sequence=1, existing=True, state="succeeded"
        )
        assert await ask(conn, "submit", job("train")) == existing

        tombstone = await purge_to_tombstone(conn, "train")
        buried = msgspec.structs.replace(existing, sequence=tombstone)
        other = Refusal(
            code="conflict",
            field="id",
            value='"train"',
            expected="an id that was not used before; "
            "this one belongs to a workload of other content, which is succeeded",
        )
        assert await ask(conn, "submit", job("train")) == buried
        assert await ask(conn, "submit", job("train", priority=1)) == other
    async with client(server.url) as conn, gateway(server.url):  # one that never saw it live
        assert await ask(conn, "submit", job("train")) == buried
        assert await ask(conn, "submit", job("train", priority=1)) == other
        # Without its tombstone the id is free, also for a gateway that remembers it.
        await remove(conn, tombstone)
        new = await ask(conn, "submit", job("train", priority=1))
        assert isinstance(new, SubmitReply)
        assert (new.existing, new.sequence > tombstone) == (False, True)
        seen = await shown(conn, "train")
        assert (seen.state, seen.priority) == ("queued", 1)


async def race(conn: Connection, rounds: int) -> None:
    for round_ in range(rounds):
        requests = [job(f"train-{round_}", priority=n % 3) for n in range(9)]
        replies = await asyncio.gather(*(ask(conn, "submit", r) for r in requests))
        stored = [r for r in replies if isinstance(r, SubmitReply)]
        refused = [r for r in replies if isinstance(r, Refusal)]
        assert [r.existing for r in stored].count(False) == 1
        assert len({r.sequence for r in stored}) == 1
        assert len(stored) == 3  # those of the winner's content
        assert {r.code for r in refused} == {"conflict"}
        assert await kinds(conn, f"train-{round_}") == ["Submitted"]


@in_loop
async def test_of_many_submits_with_one_id_through_two_gateways_one_wins(server: Server) -> None:
    async with client(server.url) as conn, gateway(server.url), gateway(server.url):
        await race(conn, 20)


@in_loop
async def test_a_reader_sees_what_it_wrote(server: Server) -> None:
    async with client(server.url) as conn, gateway(server.url):
        for n in range(50):
            await ask(conn, "submit", job(f"j-{n}"))
            await ask(conn, "reprioritize", ReprioritizeRequest(id=f"j-{n}", priority=n))
            seen = await shown(conn, f"j-{n}")
            assert seen.priority == n
            await ask(conn, "cancel", CancelRequest(id=f"j-{n}"))
            seen = await shown(conn, f"j-{n}")
            assert seen.state == "cancelled"


@in_loop
async def test_submits_over_server_kill_are_stored_once(server: Server) -> None:
    async with (
        client(server.url) as conn,
        gateway(server.url, settle_limit_s=1.0),
        gateway(server.url, settle_limit_s=1.0),
    ):
        submits = [
            asyncio.ensure_future(ask_patiently(conn, "submit", job(f"j-{n}"))) for n in range(300)
        ]
        for _ in range(2):
            await asyncio.sleep(0.03)
            server.kill()
            await asyncio.sleep(0.3)
            server.start()
        replies = await asyncio.gather(*submits)
        assert {type(r) for r in replies} == {SubmitReply}
        sequences = {r.id: r.sequence for r in replies if isinstance(r, SubmitReply)}
        info = await stream_info(conn, WORKLOADS)
        assert (info.state.messages, len(sequences)) == (300, 300)
        for n in (0, 123, 299):
            (message,) = await EventLog(conn).story("ann", f"j-{n}")
            assert message.sequence == sequences[f"j-{n}"]


@in_loop
async def test_gateway_without_log_refuses_then_starts_anew(server: Server) -> None:
    async with client(server.url) as conn, gateway(server.url, settle_limit_s=0.3) as ctx:
        await ask(conn, "submit", job("before"))
        await conn.api(f"STREAM.DELETE.{WORKLOADS}")
        reply = await ask(conn, "submit", job("train"))
        assert isinstance(reply, Refusal)
        assert (reply.code, reply.retry) == ("unavailable", True)
        assert reply.expected.startswith(f"{AGAIN} (")
        config = next(c for c in stream_configs() if c["name"] == WORKLOADS)
        await conn.api(f"STREAM.CREATE.{WORKLOADS}", config)
        anew = await ask_patiently(conn, "submit", job("train"))
        assert anew == SubmitReply(tenant="ann", id="train", sequence=1)
        async with asyncio.timeout(hang_s()):
            while (await ask(conn, "list", b"")) != ListReply(
                workloads=(await shown(conn, "train"),), counts={"queued": 1}
            ):
                await asyncio.sleep(0.05)
        assert ctx.died is None


async def shown(conn: Connection, name: str) -> WorkloadView:
    reply = await ask(conn, "get", GetRequest(id=name))
    assert isinstance(reply, GetReply)
    return reply.workload


@in_loop
async def test_list_pages_through_everything_once_newest_first(server: Server) -> None:
    async with client(server.url) as conn, gateway(server.url):
        names = [f"j-{n:03}" for n in range(120)]
        for name in names:
            await ask(conn, "submit", job(name, pod_sets=(PodSet(gpus=2, count=3),)))
        for name in names[::3]:
            await ask(conn, "cancel", CancelRequest(id=name))
        await ask(conn, "submit", job("not-hers"), tenant="bob")
        assert await listed(conn, ListRequest(limit=50)) == names[::-1]
        queued = [name for at, name in enumerate(names) if at % 3]
        assert await listed(conn, ListRequest(limit=7, states=("queued",))) == queued[::-1]
        assert await listed(conn, ListRequest(limit=7, states=("cancelled",))) == names[::3][::-1]
        assert await listed(conn, ListRequest(queue="other")) == []
        first = await ask(conn, "list", ListRequest(limit=1))
        assert isinstance(first, ListReply)
        assert first.counts == {"queued": 80, "cancelled": 40}
        assert (first.workloads[0].gpus, first.workloads[0].pods) == (6.0, 3)
        # Operators see everybody's, in one order.
        page = await order(conn, "list", ListRequest(limit=2))
        assert isinstance(page, ListReply)
        assert [(w.tenant, w.id) for w in page.workloads] == [("bob", "not-hers"), ("ann", "j-119")]
        assert page.counts == {"queued": 81, "cancelled": 40}
        page = await order(conn, "list", ListRequest(limit=1, before=page.next_before))
        assert isinstance(page, ListReply)
        assert [w.id for w in page.workloads] == ["j-118"]
        await pages_of_events(conn)


async def pages_of_events(conn: Connection) -> None:
    """160 events of ann's and one of bob's: each tenant reads its own, page by page."""
    end = await ask(conn, "events", EventsRequest())
    assert end == EventsReply(next_after=161)
    seen: list[tuple[int, str]] = []
    after, sizes = 0, []
    while True:
        page = await ask(conn, "events", EventsRequest(after=after, limit=70))
        assert isinstance(page, EventsReply)
        seen += [(one.sequence, one.event.tenant) for one in page.events]
        sizes.append(len(page.events))
        after = page.next_after
        if not page.more:
            break
    assert (sizes[0], after) == (70, 161)
    assert seen == [(n, "ann") for n in range(1, 162) if n != 161]
    assert await ask(conn, "events", EventsRequest(after=after)) == EventsReply(next_after=161)
    his = await ask(conn, "events", EventsRequest(after=0), tenant="bob")
    assert isinstance(his, EventsReply)
    assert [one.event.id for one in his.events] == ["not-hers"]
    wrong = await ask(conn, "events", b'{"after": -1}')
    assert isinstance(wrong, Refusal)
    assert (wrong.code, wrong.field) == ("invalid", "after")


async def listed(conn: Connection, request: ListRequest) -> list[str]:
    names: list[str] = []
    while True:
        page = await ask(conn, "list", request)
        assert isinstance(page, ListReply)
        names += [w.id for w in page.workloads]
        if not page.next_before:
            return names
        request = msgspec.structs.replace(request, before=page.next_before)


@in_loop
async def test_operators_orders_are_kept_and_a_queue_counts_from_then_on(server: Server) -> None:
    async with client(server.url) as conn, gateway(server.url):
        done = await order(conn, "cordon", CordonRequest(cluster="eu west.1", reason="fan"))
        assert isinstance(done, OperatorReply)
        kept = await last_message(conn, CONTROL, subjects.cordon("eu west.1", None))
        assert kept is not None
        fact = CONTROL_FACTS.decode(kept.data)
        assert isinstance(fact, Cordon)
        assert (fact.cluster, fact.cordoned, fact.reason) == ("eu west.1", True, "fan")

        wish = job("train", queue="research")
        refused = await ask(conn, "submit", wish)
        assert isinstance(refused, Refusal)
        assert (refused.code, refused.field) == ("not_found", "queue")
        await order(conn, "queue", QueueSetting(queue="research", tenants=("ann",)))
        assert isinstance(await ask(conn, "submit", wish), SubmitReply)
        refused = await ask(conn, "submit", wish, tenant="bob")
        assert isinstance(refused, Refusal)
        # A parent takes no requests; what it took before is known.
        await order(conn, "queue", QueueSetting(queue="vision", parent="research"))
        refused = await ask(conn, "submit", job("late", queue="research"))
        assert isinstance(refused, Refusal)
        assert (refused.code, refused.field) == ("invalid", "queue")
        known = await ask(conn, "submit", wish)
        assert isinstance(known, SubmitReply)
        assert known.existing
        lost = await order(conn, "lost", LostRequest(cluster="c9", reason="flood"))
        assert lost == OperatorReply(sequence=4, note="what was claimed there is placed anew")
        assert isinstance(await order(conn, "lost", b'{"cluster":"c9"}'), Refusal)


@in_loop
async def test_near_its_size_limit_the_log_takes_no_new_workloads_but_all_events(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[StreamInfo] = []

    async def looked(conn: Connection, stream: str) -> StreamInfo:
        looks.append(await stream_info(conn, stream))
        return looks[-1]

    monkeypatch.setattr(service, "stream_info", looked)
    monkeypatch.setattr(service, "SIZE_INTERVAL_S", 0.1)
    async with client(server.url) as conn, gateway(server.url):
        await ask(conn, "submit", job("train"))
        # With its metadata: without them the stream counts as made anew, a second later.
        config = msgspec.json.decode(await conn.api(f"STREAM.INFO.{WORKLOADS}"))["config"]
        await conn.api(f"STREAM.UPDATE.{WORKLOADS}", config | {"max_bytes": 200_000})
        names = (f"j-{n}" for n in itertools.count())
        replies: Counter[str] = Counter()
        async with asyncio.timeout(hang_s()):
            while not replies["overloaded"]:
                reply = await ask(
                    conn, "submit", job(next(names), labels={"x": "y" * 316, "z": "z" * 316})
                )
                replies[reply.code if isinstance(reply, Refusal) else "ok"] += 1
                if replies["ok"] > 150:  # of some 170: from here on it has looked before each
                    looks.clear()
                    await until(lambda: len(looks) >= 2)
        assert replies["overloaded"] == 1
        assert isinstance(await ask(conn, "cancel", CancelRequest(id="train")), ChangeReply)
        again = await ask(conn, "submit", job("train"))  # an old acquaintance
        assert isinstance(again, SubmitReply)
        assert again.existing


@in_loop
async def test_a_story_longer_than_a_reply_may_be_is_refused_and_not_cut(server: Server) -> None:
    async with client(server.url) as conn, gateway(server.url):
        request = job("train", run={"env": {"X": "x" * 200_000}})
        data = msgspec.json.encode(request)
        assert isinstance(await ask(conn, "submit", data), SubmitReply)
        request = msgspec.json.decode(data, type=JobRequest)
        void = Submitted(
            tenant="ann", id="train", after=0, at_s=1.0, by="t", request=request, digest="d"
        )
        for _ in range(5):  # without effect, and all the same part of the story
            await conn.request(event_subject(void), encode(void), timeout_s=ANSWER_S)
        await shown(conn, "train")
        story = await ask(conn, "get", GetRequest(id="train", story=True))
        assert isinstance(story, Refusal)
        assert (story.code, story.field) == ("too_large", "story")


@in_loop
async def test_gateway_waits_for_streams_and_ends_on_sigterm(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "berthmaster.cli.main",
            "serve",
            "gateway",
            "--http-port=-1",
            env=os.environ | {"BERTH_NATS_URL": server.url},
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        async with asyncio.timeout(hang_s()):
            while b"waiting for the streams" not in await process.stderr.readline():
                pass
            async with client(server.url) as conn:
                reply = await ask_patiently(conn, "submit", job("train"))
                assert reply == SubmitReply(tenant="ann", id="train", sequence=1)
                process.send_signal(signal.SIGTERM)
                assert await process.wait() == 0
            await process.stderr.read()


@in_loop
async def test_nine_thousand_messages_of_one_tenant_keep_no_submit_of_another_from_its_answer(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "LATE_S", NEVER_S)  # late answers are sent all the same
    async with (
        client(server.url) as conn,
        client(server.url) as loud,
        client(server.url) as quiet,
        gateway(server.url),
    ):
        for number in range(200):  # so that its lists are long
            assert isinstance(
                await ask(conn, "submit", job(f"old-{number}"), tenant="evil"), SubmitReply
            )
        inbox = loud.nc.new_inbox()
        answers: list[bytes] = []

        async def count(message: Any) -> None:
            answers.append(message.data)

        await loud.nc.subscribe(inbox, cb=count)
        bodies = (b'{"limit": 1000}', b"\xff no request at all", encode(job("flood")))
        for number in range(9_000):
            verb = ("list", "submit", "submit")[number % 3]
            await loud.publish(subjects.api("evil", verb), bodies[number % 3], reply=inbox)
        for number in range(12):
            reply = await ask(quiet, "submit", job(f"calm-{number}"))
            assert isinstance(reply, SubmitReply), reply
        # Whoever floods is answered, too.
        await until(
            lambda: len(answers) == 9_000, "9,000 answers", moves=lambda: len(answers) // 100
        )
        told = [msgspec.json.decode(data) for data in answers]
        refused = [each for each in told if each.get("code") == "overloaded"]
        assert refused
        assert {each["retry_after_s"] for each in refused} <= {NUMBER_AGAIN_S, RATE_AGAIN_S}


@in_loop
async def test_a_tenant_has_so_many_open_workloads_and_no_more(server: Server) -> None:
    async with client(server.url) as conn, gateway(server.url, tenant_open_workloads=2):
        for name in ("a", "b"):
            assert isinstance(await ask(conn, "submit", job(name)), SubmitReply)
            await shown(conn, name)  # it counts what it has read of the log
        refused = await ask(conn, "submit", job("c"))
        assert isinstance(refused, Refusal)
        assert (refused.code, refused.retry) == ("overloaded", True)
        assert refused.expected == "2 workloads of a tenant may be open, and they are"
        assert isinstance(await ask(conn, "submit", job("a")), SubmitReply)  # it is there already
        assert isinstance(await ask(conn, "submit", job("c"), tenant="bob"), SubmitReply)
        assert isinstance(await ask(conn, "cancel", CancelRequest(id="a")), ChangeReply)
        assert isinstance(await ask_patiently(conn, "submit", job("c")), SubmitReply)

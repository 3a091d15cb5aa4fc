"""The door on a real server: what it stores, for whom, and what dies beside it."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from berthmaster.control.door import service
from berthmaster.lib.door_client import client as door_client
from berthmaster.lib.door_client.client import DoorClient, DoorLease, DoorRefused, Heard
from berthmaster.lib.door_client.door_facts import DoorFacts, DoorMirror
from berthmaster.lib.event_log.workload_log import EventLog, decode_story
from berthmaster.lib.lifecycle.instructions import Refused, Stored
from berthmaster.lib.messages.door import (
    DoorReply,
    ReportReply,
    StoryRequest,
    TakeReply,
    TakeRequest,
    TellReply,
    TellRequest,
)
from berthmaster.lib.messages.families import DEAD_LETTERS, DOOR_REPLIES, encode
from berthmaster.lib.messages.fleet import Amounts, ClusterScore, FleetFact, NodeReport, Stamp
from berthmaster.lib.messages.workload import Claimed, Placed, Running, Succeeded
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.dead_letters import store_dead_letter
from berthmaster.lib.nats.errors import BusError, NotPermitted, TooLarge
from berthmaster.lib.nats.fact_stamps import Seen
from berthmaster.lib.nats.streams import WORKLOADS, stream_info
from berthmaster.lib.supervisor.embedded import Server
from tests.bus.doors import door, with_door
from tests.bus.log_damage import replace_log
from tests.bus.proxy import proxied, the_next
from tests.bus.tools import (
    Lines,
    connected,
    eventually,
    patiently,
    placed,
    story,
    submitted,
    task,
)
from tests.support.patience import ANSWER_S, hang_s, until

RED, BLUE = "red", "blue.1"


class Log:
    """Writes as the rest of the system does."""

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self.log = EventLog(conn)

    async def place(self, name: str, cluster: str = RED) -> int:
        first = await self.log.append(submitted(name))
        assert isinstance(first, Stored)
        second = await self.log.append(placed(name, first.sequence, cluster=cluster))
        assert isinstance(second, Stored)
        return second.sequence

    async def last(self) -> int:
        return (await stream_info(self.conn, WORKLOADS)).state.last_seq

    async def kinds(self, name: str) -> list[str]:
        recorded = decode_story(await self.log.story("acme", name))
        return [type(one.event).__name__ for one in recorded]


def claimed(name: str, after: int, cluster: str = RED) -> Claimed:
    by = f"executor/{cluster}"
    return Claimed(
        tenant="acme",
        id=name,
        after=after,
        at_s=1.0,
        by=by,
        cluster=cluster,
        attempt=1,
        executor=by,
    )


def succeeded(name: str, after: int, cluster: str, attempt: int = 1) -> Succeeded:
    return Succeeded(
        tenant="acme",
        id=name,
        after=after,
        at_s=1.0,
        by=f"executor/{cluster}",
        cluster=cluster,
        attempt=attempt,
        digest="d1",
        submitted_at_s=1.0,
    )


async def ask(conn: Connection, cluster: str, verb: str, body: object) -> DoorReply:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    reply = await conn.request(subjects.agent(cluster, verb), data, timeout_s=ANSWER_S)
    answer: DoorReply = DOOR_REPLIES.decode(reply.data)
    return answer


async def tell(conn: Connection, cluster: str, *events: Any, again: bool = False) -> list[str]:
    answer = await ask(conn, cluster, "tell", TellRequest(events=events, again=again))
    assert isinstance(answer, TellReply)
    return [one.result for one in answer.outcomes]


@story
async def test_nobody_ends_another_clusters_job_and_nothing_is_stored(server: Server) -> None:
    async with with_door(server.url) as conn:
        log = Log(conn)
        red = DoorClient(conn, RED)
        first = await red.append(claimed("job", await log.place("job")))
        assert isinstance(first, Stored)
        before = await log.last()
        for cluster in (BLUE, "cancel", "lost", "-"):
            for again in (False, True):
                for after in (first.sequence, 0, first.sequence - 1, 10**9):
                    for attempt in (1, 2):
                        forged = succeeded("job", after, cluster, attempt)
                        assert (await tell(conn, cluster, forged, again=again))[0] in (
                            "refused",
                            "behind",
                        )
                reds = succeeded("job", first.sequence, RED)
                assert await tell(conn, cluster, reds, again=again) == ["refused"]
            story_ = await ask(conn, cluster, "story", StoryRequest(tenant="acme", id="job"))
            assert encode(story_) == b'{"type":"door.story.v1"}'
            taken = await ask(conn, cluster, "take", TakeRequest())
            assert isinstance(taken, TakeReply)
            assert taken.hints == ()
        for kind in ("submitted", "placed", "withdrawn", "cancel_requested", "reprioritized"):
            body = {"events": [{"type": f"workload.{kind}.v1", "tenant": "acme", "id": "job"}]}
            refusal = await ask(conn, RED, "tell", body)
            assert (refusal.code, refusal.field) == ("invalid", "events[0].type")  # type: ignore[union-attr]
        assert await log.last() == before
        assert await tell(conn, RED, succeeded("job", first.sequence, RED)) == ["stored"]


@story
async def test_headers_of_a_request_mean_nothing(server: Server) -> None:
    """What would be a guard, a part of a batch or a message of its own on a stream's subject."""
    async with with_door(server.url) as conn:
        log = Log(conn)
        before = await log.place("job")
        reply = await conn.request(
            subjects.agent(BLUE, "tell"),
            encode(TellRequest(events=(succeeded("job", before, BLUE),))),
            headers={
                "Nats-Expected-Last-Sequence": "0",
                "Nats-Batch-Id": "b",
                "Nats-Batch-Sequence": "1",
                "Nats-Rollup": "all",
                "Nats-TTL": "1s",
            },
            timeout_s=ANSWER_S,
        )
        answer = DOOR_REPLIES.decode(reply.data)
        assert isinstance(answer, TellReply)
        assert [one.result for one in answer.outcomes] == ["refused"]
        assert await log.last() == before


@story
async def test_what_was_told_is_stored_once_whoever_is_asked_again(server: Server) -> None:
    async with with_door(server.url) as conn, door(server.url):  # two replicas
        log = Log(conn)
        event = claimed("job", await log.place("job"))
        answers = [
            await ask(conn, RED, "tell", TellRequest(events=(event,), again=again))
            for again in (False, True, True, True, True)
        ]
        outcomes = {a.outcomes[0].sequence for a in answers if isinstance(a, TellReply)}
        assert outcomes == {event.after + 1}
        assert await tell(conn, RED, event) == ["refused"]  # not known to have been told before
        runs = Running(**head(event), pods=())
        other = Running(**head(event), pods=(), cause="another life")
        both = await asyncio.gather(*(tell(conn, RED, each, again=True) for each in (runs, other)))
        assert sorted(result for (result,) in both) != ["stored", "stored"]
        assert await log.kinds("job") == ["Submitted", "Placed", "Claimed", "Running"]


def head(event: Claimed) -> dict[str, Any]:
    return {
        "tenant": event.tenant,
        "id": event.id,
        "after": event.after + 1,
        "at_s": 2.0,
        "by": event.by,
        "cluster": event.cluster,
        "attempt": event.attempt,
    }


@story
async def test_two_events_of_one_workload_in_one_request_do_not_both_go(server: Server) -> None:
    async with with_door(server.url) as conn:
        log = Log(conn)
        event = claimed("job", await log.place("job"))
        results = await tell(conn, RED, event, event)
        assert results == ["stored", "behind"]
        assert await log.kinds("job") == ["Submitted", "Placed", "Claimed"]


@mock.patch.object(service, "BEHIND_LIMIT_S", 2.0)
@story
async def test_a_flood_of_one_cluster_is_refused_at_once_and_others_are_served(
    server: Server,
) -> None:
    async with connected(server.url, replicas=1) as conn, door(server.url):
        log = Log(conn)
        event = claimed("job", await log.place("job"))
        # Beyond what was stored, so each of them waits for its limit.
        ahead = TellRequest(events=(claimed("job", 10**9, BLUE),) * 5)
        flood = [asyncio.ensure_future(ask(conn, BLUE, "tell", ahead)) for _ in range(300)]
        await until(lambda: sum(each.done() for each in flood) >= 300 - 64)
        assert {getattr(each.result(), "code", "") for each in flood if each.done()} == {
            "overloaded"
        }
        refused = next(each.result() for each in flood if each.done())
        assert getattr(refused, "retry_after_s", 0.0) >= 0.25
        assert await tell(conn, RED, event) == ["stored"]
        # A client that was told to wait does, before it asks for the same again.
        client, loop = DoorClient(conn, BLUE), asyncio.get_running_loop()
        with pytest.raises(DoorRefused):
            await client.ask("tell", ahead)
        began_s = loop.time()
        await asyncio.wait({asyncio.ensure_future(client.ask("tell", ahead))})
        assert loop.time() - began_s >= 0.2
        for answer in await asyncio.gather(*flood[:1]):
            assert isinstance(answer, TellReply)
        await asyncio.gather(*flood)


@story
async def test_one_poll_too_many_ends_the_oldest(server: Server) -> None:
    async with with_door(server.url) as conn:
        listed = await ask(conn, RED, "take", TakeRequest())
        assert isinstance(listed, TakeReply)
        poll = TakeRequest(after=listed.cursor, log=listed.log, wait_s=15.0)
        polls = []
        for _ in range(3):
            polls.append(asyncio.ensure_future(ask(conn, RED, "take", poll)))
            await conn.flush()
        ended, open_ = await asyncio.wait(polls, timeout=hang_s(), return_when="FIRST_COMPLETED")
        assert ended == {polls[0]}
        assert len(open_) == 2
        sequence = await Log(conn).place("job")
        async with asyncio.timeout(hang_s()):
            for answer in await asyncio.gather(*open_):
                assert isinstance(answer, TakeReply)
                assert [hint.sequence for hint in answer.hints] == [sequence]


@story
async def test_poll_of_dead_door_is_resumed(server: Server, tmp_path: Path) -> None:
    async with connected(server.url, replicas=1) as conn:
        log = Log(conn)
        heard: list[Heard] = []
        first = process(server, tmp_path)
        async with task(DoorClient(conn, RED).follow(heard.append)):
            await until(lambda: heard)
            first.kill()
            first.wait()
            sequence = await log.place("job")
            async with door(server.url):
                loop = asyncio.get_running_loop()
                began_s = loop.time()
                await until(lambda: any(one.hints for one in heard))
                assert loop.time() - began_s < 5  # the poll would have lasted for 15 s
        assert [hint.sequence for one in heard for hint in one.hints] == [sequence]


@story
async def test_placement_reaches_an_agent_whose_poll_was_answered_in_vain(server: Server) -> None:
    lines, heard = Lines(), list[Heard]()
    async with with_door(server.url) as conn, proxied(server.url) as proxy:
        proxy.to_client = the_next(lambda passing: b'"hints":[{' in passing.payload)
        async with (
            connected(proxy.url, "agent", log=lines) as agent,
            task(DoorClient(agent, RED).follow(heard.append)),
        ):
            await until(lambda: heard)
            sequence = await Log(conn).place("job")
            await until(lambda: any(one.hints for one in heard))
    assert len(proxy.lost) == 1
    assert [hint.sequence for one in heard for hint in one.hints] == [sequence]
    assert lines.count("door does not answer") == 0  # as a poll that ends without an answer is


@story
async def test_a_log_that_was_replaced_begins_anew(server: Server) -> None:
    async with with_door(server.url) as conn:
        log = Log(conn)
        await log.place("old")
        await log.place("older")
        heard: list[Heard] = []
        client = DoorClient(conn, RED)
        async with task(client.follow(heard.append)):
            await until(lambda: heard and len(heard[-1].hints) == 2)
            await replace_log(conn)
            await log.place("new")

            def known() -> bool:
                return any(hint.event.id == "new" for one in heard for hint in one.hints)

            await until(known)


# Facts, leases, telemetry, dead letters


def report(node: str, stamp: Stamp, cluster: str = RED, fill: str = "") -> NodeReport:
    return NodeReport(
        cluster=cluster,
        node=node,
        stamp=stamp,
        observed_at_s=0.0,
        labels={"fill": fill},
        allocatable=Amounts(cpu_milli=1000),
    )


@story
async def test_facts_are_told_in_batches_under_rising_epochs_and_mirrored(server: Server) -> None:
    async with with_door(server.url) as conn:
        client = DoorClient(conn, RED)
        seen: dict[str, Seen] = {}
        mirror = DoorMirror(client, ["node"], on_fact=lambda one: seen.update({one.subject: one}))
        async with task(mirror.run()):
            first = DoorFacts(client)
            assert await patiently(first.begin) == []
            names = [f"n{number}" for number in range(450)]
            facts = [report(name, first.stamp()) for name in names]
            await asyncio.gather(*(put(first, one) for one in facts))
            await until(lambda: len(seen) == 450)
            second = DoorFacts(client)

            async def all_are_there() -> bool:
                return len(await second.begin()) == 450

            await eventually(all_are_there)
            assert second.epoch > first.epoch
            # A fact of the life before comes late: it is stored, and nobody takes it for news.
            newer = report("n0", second.stamp())
            await put(second, newer)
            await until(lambda: seen[subjects.node(RED, "n0")].fact == newer)
            await put(first, report("n0", first.stamp()))
            last = report("n1", second.stamp())
            await put(second, last)
            await until(lambda: seen[subjects.node(RED, "n1")].fact == last)
            assert seen[subjects.node(RED, "n0")].fact == newer


async def put(facts: DoorFacts, fact: NodeReport) -> int:
    """As whoever reports does: again, if a busy bus did not answer."""
    return await patiently(lambda: facts.put(subjects.node(RED, fact.node), fact))


@story
async def test_a_cluster_tells_no_score_and_nothing_of_another(server: Server) -> None:
    async with with_door(server.url) as conn:
        facts = DoorFacts(DoorClient(conn, RED))
        await facts.begin()
        score: FleetFact = ClusterScore(
            cluster=RED, stamp=facts.stamp(), freshness="fresh", input_age_s=0.0
        )
        with pytest.raises(NotPermitted):
            await facts.put(subjects.score(RED), score)
        raw = {"facts": [{"fact": msgspec.to_builtins(score)}]}
        answer = await ask(conn, RED, "report", raw)
        assert isinstance(answer, ReportReply)
        [refused] = answer.outcomes
        assert (refused.result, refused.why[:12]) == ("forbidden", "fact.type is")
        with pytest.raises(NotPermitted, match="another cluster's"):
            await facts.put("", report("n1", facts.stamp(), BLUE))
        with pytest.raises(TooLarge):
            await facts.put("", report("n1", facts.stamp(), fill="x" * 256 * 1024))
        assert (await stream_info(conn, "FLEET")).state.last_seq == 0


@story
async def test_a_lease_is_held_by_one_and_taken_over(server: Server) -> None:
    async with with_door(server.url) as conn:
        client = DoorClient(conn, BLUE)
        epochs: list[int] = []
        one = DoorLease(client, "inventory", "one", ttl_s=0.9, on_gained=epochs.append)
        two = DoorLease(client, "inventory", "two", ttl_s=0.9, on_gained=epochs.append)
        async with task(two.run()):
            async with task(one.run()):
                await until(lambda: one.held or two.held)
                await until(lambda: one.seen_holder and one.seen_holder == two.seen_holder)
                assert one.held != two.held
            await until(lambda: two.held)
        assert epochs == sorted(epochs)
        message = await conn.api(
            "STREAM.MSG.GET.LEASES", {"last_by_subj": "berth.lease.inventory.blue=2E1"}
        )
        assert message


@story
async def test_dead_letters_are_kept_cut_and_rated(server: Server) -> None:
    async with with_door(server.url) as conn:
        client = DoorClient(conn, RED)
        assert await client.store_dead_letter(
            "executor", subject="s", reason="r" * 9000, body=b"token: ghp_" + b"a" * 36
        )
        kept = [
            await client.store_dead_letter("executor", subject="s", reason="again")
            for _ in range(40)
        ]
        assert 15 <= kept.count(True) < 40
        raw = msgspec.json.decode(
            await conn.api("STREAM.MSG.GET.DEAD", {"seq": 1}), type=dict[str, Any]
        )
        letter = DEAD_LETTERS.decode(msgspec.convert(raw["message"]["data"], bytes, strict=False))
        assert letter.reason.startswith("red: rrr")
        assert len(letter.reason) < 2100
        assert b"ghp_" not in letter.body
        assert await store_dead_letter(
            conn, service="door", subject="s", reason="r", body=b""
        )  # still works


# What dies


def process(server: Server, folder: Path, *argv: str) -> "subprocess.Popen[bytes]":
    """A door as a process of its own, or another service."""
    told = argv or ("door",)
    flags = ["--nats-url", server.url, "--http-port", "-1", "--log-level", "error"]
    command = [sys.executable, "-m", "berthmaster.cli.main", "serve", *told, *flags]
    with (folder / f"{told[0]}.log").open("ab") as log:
        return subprocess.Popen(command, stderr=log)


@story
async def test_killed_doors_and_agents_claim_once(server: Server, tmp_path: Path) -> None:
    """Two doors and an agent of two clusters, killed in turn at every tenth placement; the bus
    itself too."""
    count = 120
    emulator = (
        *("emulator", "--nodes", "40", "--clusters", "2", "--data-dir", str(tmp_path / "pods")),
        *("--foreign-share", "0", "--failure-share", "0", "--disturbance", "0"),
        *("--telemetry-interval-s", "0", "--speed", "100"),
    )
    async with connected(server.url, replicas=1, log=Lines()) as conn:
        log = Log(conn)
        running = {
            "door-1": process(server, tmp_path),
            "door-2": process(server, tmp_path),
            "agent": process(server, tmp_path, *emulator),
        }
        try:
            facts = await clusters_of(conn)
            for number in range(count):
                cluster, node = facts[number % len(facts)]
                await place_on(log, f"job-{number}", cluster, node)
                if number % 10 == 5:
                    name = list(running)[number // 10 % 3]
                    running[name].send_signal(signal.SIGKILL)
                    running[name].wait()
                    argv = emulator if name == "agent" else ()
                    running[name] = process(server, tmp_path, *argv)
                if number == count // 2:
                    server.kill()
                    server.start()

            async def all_ended() -> bool:
                for number in range(count):
                    if (await log.kinds(f"job-{number}"))[-1] != "Succeeded":
                        return False
                return True

            await eventually(all_ended)
            for number in range(count):
                kinds = await log.kinds(f"job-{number}")
                assert kinds.count("Claimed") == 1, kinds
                assert kinds.count("Succeeded") == 1, kinds
        finally:
            for one in running.values():
                one.kill()
                one.wait()


async def clusters_of(conn: Connection) -> list[tuple[str, str]]:
    """(cluster, node without GPUs in use) of what has reported."""
    found: dict[str, str] = {}

    async def two() -> bool:
        raw = await conn.api("STREAM.INFO.FLEET", {"subjects_filter": "berth.fleet.*.node.*"})
        for subject in msgspec.json.decode(raw)["state"].get("subjects") or {}:
            name = subjects.parse_node(subject)
            if name is not None:
                found.setdefault(*name)
        return len(found) == 2

    await eventually(two)
    return list(found.items())


async def place_on(log: Log, name: str, cluster: str, node: str) -> None:
    first = submitted(name)
    asked = msgspec.structs.replace(
        first.request,
        expected_duration_s=1.0,
        pod_sets=(msgspec.structs.replace(first.request.pod_sets[0], cpu_milli=1, memory_mib=1),),
    )
    stored = await log.log.append(msgspec.structs.replace(first, request=asked))
    while not isinstance(stored, Stored):
        stored = await log.log.append(msgspec.structs.replace(first, request=asked), in_doubt=True)
    there: Placed = placed(name, stored.sequence, cluster=cluster)
    there = msgspec.structs.replace(
        there,
        request=asked,
        pods=(msgspec.structs.replace(there.pods[0], node=node, gpus=()),),
        submitted_at_s=1.0,
    )
    stored = await log.log.append(there)
    while not isinstance(stored, Stored):
        assert not isinstance(stored, Refused)
        stored = await log.log.append(there, in_doubt=True)


@story
async def test_a_door_that_is_silent_for_long_is_told_and_heard_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_client, "SILENT_S", 0.5)
    async with connected(server.url, replicas=1) as conn:
        client = DoorClient(conn, RED)
        assert client.silent == ""
        await until(lambda: client.silent)
        assert client.silent.startswith("the door has not answered for ")
        async with door(server.url), task(client.follow(lambda _: None)):
            await until(lambda: not client.silent)


@story
async def test_without_a_door_nothing_is_done_and_with_one_all_is(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        log = Log(conn)
        client = DoorClient(conn, RED)
        with pytest.raises(BusError):
            await client.hello()
        event = claimed("job", await log.place("job"))
        telling = asyncio.ensure_future(client.append(event))
        async with door(server.url):
            assert await telling == Stored(event.after + 1)
            with pytest.raises(DoorRefused, match="tenant"):
                await client.ask("story", b'{"tenant":7,"id":"x"}')

"""Whatever strangers and broken parts send: a clear answer, nothing dies, all else goes on."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import nats
import nats.errors
import pytest

from berthmaster.audit.report import Unreadable, audit
from berthmaster.bus import subjects
from berthmaster.bus.door_client import DoorClient
from berthmaster.bus.streams import FLEET
from berthmaster.client import Client, RefusedError, TooLargeError
from berthmaster.messages.api import Refusal, SubmitReply, WhyReply
from berthmaster.messages.families import API_REPLIES, encode
from berthmaster.messages.fleet import ClusterScore, PodUse
from berthmaster.messages.telemetry import GpuReading, NodeTelemetry
from berthmaster.messages.workload import JobRequest, PodSet
from berthmaster.usage.webhooks import NO_FILE
from tests.bus.tools import story
from tests.pipeline.chaos import IMPATIENT, Rig, repeats, rig
from tests.pipeline.forge import MODEL, forged
from tests.support.patience import ANSWER_S, hang_s

WITHDRAW_AFTER_S = 6.0
SETTINGS = IMPATIENT | {
    "BERTH_SCORER_WITHDRAW_AFTER_S": f"{WITHDRAW_AFTER_S:g}",
    "BERTH_RESOLVER_CLAIM_TIMEOUT_S": "10",
}


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Everything up, jobs running; after the whole module nothing has restarted or died."""
    flags = ("--clusters", "2", "--nodes", "16")
    with rig(tmp_path_factory.mktemp("bad"), *flags, env=SETTINGS) as running:
        asyncio.run(running.start_lasting(4))
        yield running
        assert set(running.restarts().values()) == {0}
        assert {each["condition"] for each in running.processes().values()} == {"ready"}
        asyncio.run(clean_apart_from_the_forged(running))


async def clean_apart_from_the_forged(bad: Rig) -> None:
    """What the auditor says at the very end: nothing but the messages that nobody can read."""
    async with bad.client() as berth:
        unreadable: list[Unreadable] = []
        report = await audit(berth.connection, unreadable=unreadable.append)
        assert report.findings == ()
        assert report.accounted
        assert (report.failed, report.cancelled, report.evictions) == (0, 0, 0)
        await repeats(berth)  # a decider that could not read them can be followed all the same
        strange = {(each.stream, each.subject) for each in unreadable}
        assert strange <= {  # fewer when only some of these tests were asked for
            ("FLEET_LOG", subjects.score("torn")),
            ("WORKLOADS", subjects.workload_event("default", "from-2030", "placed", "torn")),
        }


@asynccontextmanager
async def users(bad: Rig, *names: str) -> AsyncIterator[list[Client]]:
    """Connections as several users of the bus, with time limits that suit refusals."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(bad.client(n, timeout_s=ANSWER_S)) for n in names]


async def ask(berth: Client, verb: str, body: bytes) -> Any:
    """One request as raw bytes, one reply."""
    reply = await berth.connection.request(subjects.api("default", verb), body, timeout_s=ANSWER_S)
    return API_REPLIES.decode(reply.data)


async def until(what: Any) -> Any:
    """Wait for something that services do in their own time; what it says when it is true."""
    async with asyncio.timeout(hang_s()):
        while not (found := await what()):
            await asyncio.sleep(0.1)
        return found


async def still_works(berth: Client, name: str) -> None:
    """A job comes through from end to end."""
    await berth.submit(JobRequest(id=name, expected_duration_s=1.0))
    await until(lambda: ended(berth, name))


async def ended(berth: Client, name: str) -> bool:
    return (await berth.get(name)).workload.state == "succeeded"


def no(field: str, value: str, expected: str, code: Any = "invalid") -> Refusal:
    """A refusal that is for good."""
    return Refusal(code=code, field=field, value=value, expected=expected)


OBJECT = "one JSON object (RFC 8259, UTF-8)"
FIELDS = (
    "an object with the fields id, queue, priority, pod_sets, clusters, cluster_labels, run, "
    "expected_duration_s, deadline_s, max_evictions, retries, backoff_s, no_retry_exit_codes, "
    "runtime, runtime_used, preemptible, checkpoint_every_s, grace_s, max_run_s, labels, "
    "profile, weights, data, set, set_at_most, array_index, depends_on, divide, part"
)
ID = (
    "1 to 52 lower-case letters, digits or '-', the first and the last a letter or digit (required)"
)
NO_NUMBER = "a finite number (JSON has no NaN and no Infinity)"
ONE_GPU = "1000, as gpus is 2: only a pod with one GPU can ask for part of it"
NO_QUEUE = (
    "a queue that takes requests of tenant 'default'; this one does not exist or is not open to "
    "it. There are: default"
)
GPUS = "pod_sets[0].gpus"
REFUSED = {
    b"{id: train}": no("", "{id: train}", f"{OBJECT}; at byte 1", "malformed"),
    b'{"id": "\xff"}': no("", '{"id": "\\xff"}', "UTF-8 (at byte 8)", "malformed"),
    b"": no("", "", f"{OBJECT}; it ends too early", "malformed"),
    b"[]": no("", "[]", FIELDS),
    b"[" * 100_000: no("", "[" * 80, f"{OBJECT} without such deep nesting", "malformed"),
    b'{"id": "x", "pod_sets": [{"gpu": 1}]}': no(
        "pod_sets[0].gpu", "1", "no field of this name; did you mean gpus?"
    ),
    b'{"id": "x", "pod_sets": [{"gpus": "two"}]}': no(GPUS, '"two"', "a whole number from 0 to 64"),
    b'{"id": "x", "pod_sets": [{"gpus": -1}]}': no(GPUS, "-1", "a whole number from 0 to 64"),
    b'{"id": "x", "pod_sets": [{"count": 2, "min_count": 3}]}': no(
        "pod_sets[0].min_count", "3", "at most count, which is 2"
    ),
    b'{"id": "x", "pod_sets": [{"count": 2, "max_count": 1}]}': no(
        "pod_sets[0].max_count", "1", "at least count, which is 2"
    ),
    b'{"id": "x", "pod_sets": [{"min_count": 0}]}': no(
        "pod_sets[0].min_count", "0", "a whole number from 1 to 4096, or null"
    ),
    b'{"id": "x", "pod_sets": [{"count": 1000000}]}': no(
        "pod_sets[0].count", "1000000", "a whole number from 1 to 4096"
    ),
    b'{"id": "x", "pod_sets": [{"memory_mib": 1e999}]}': no(
        "pod_sets[0].memory_mib", "Infinity", NO_NUMBER, "malformed"
    ),
    b'{"id": "x", "pod_sets": [{"gpus": 2, "gpu_milli": 500}]}': no(
        "pod_sets[0].gpu_milli", "500", ONE_GPU
    ),
    b'{"id": "x", "queue": "nobodys"}': no("queue", '"nobodys"', NO_QUEUE, "not_found"),
    b'{"queue": "default"}': no("id", "(missing)", ID),
}


@story
async def test_a_request_that_is_wrong_is_told_where_and_what_would_be_right(bad: Rig) -> None:
    async with users(bad, "operator") as (berth,):
        assert {body: await ask(berth, "submit", body) for body in REFUSED} == REFUSED
        await still_works(berth, "after-refusals")


NAME = "1 to 63 lower-case letters, digits or '-', the first and the last a letter or digit"
ENDS = 'one of "cancelled", "evicted", "failed", "succeeded"'
NO_HOOKS = {
    b"{set: chat}": no("", "{set: chat}", f"{OBJECT}; at byte 1", "malformed"),
    b"[]": no("", "[]", "an object with the fields set, remove"),
    b'{"sets": {}}': no("sets", "{}", "no field of this name; did you mean set?"),
    b'{"set": {"name": "a b", "url": "https://x/"}}': no("set.name", '"a b"', NAME),
    b'{"set": {"name": "chat"}}': no(
        "set.url", "(missing)", "text of at most 2048 characters (required)"
    ),
    b'{"set": {"name": "chat", "url": "https://x/", "on": ["end"]}}': no(
        "set.on[0]", '"end"', ENDS
    ),
    b'{"set": {"name": "chat", "url": "https://x/", "on": []}}': no(
        "set.on", "[]", f"a list of 1 to 4, each {ENDS}"
    ),
    b'{"set": {"name": "chat", "url": "https://x/"}}': no(
        "set", "chat", f"nothing: {NO_FILE}", "forbidden"
    ),
    b'{"remove": "chat"}': no("remove", "chat", "nothing: you have none", "not_found"),
}


@story
async def test_a_webhook_that_is_wrong_is_told_where_and_what_would_be_right(bad: Rig) -> None:
    async with users(bad, "operator") as (berth,):
        assert {body: await ask(berth, "webhooks", body) for body in NO_HOOKS} == NO_HOOKS
        assert (await ask(berth, "webhooks", b"")).webhooks == ()
        # Operators look at all of them; theirs are in the file.
        reply = await berth.connection.request(
            subjects.operator("webhooks"), b'{"remove": "chat"}', timeout_s=ANSWER_S
        )
        assert API_REPLIES.decode(reply.data).field == "set"


@story
async def test_a_model_that_no_cluster_has_waits_and_says_so(bad: Rig) -> None:
    pods = (PodSet(gpus=1, gpu_models=("TPU-v9",)),)
    async with users(bad, "operator") as (berth,):
        reply = await berth.submit(JobRequest(id="exotic", pod_sets=pods))
        assert reply == SubmitReply(tenant="default", id="exotic", sequence=reply.sequence)
        await still_works(berth, "after-exotic")
        why = await berth.why("exotic")
        clusters = {fact.fact.cluster for fact in await berth.fleet()}
        assert why == WhyReply(
            tenant="default",
            id="exotic",
            state="queued",
            summary=f"waits: of {len(clusters)} clusters: {len(clusters)} have no TPU-v9",
            position=1,
            waiting=1,
            queue_position=1,
            account=why.account,
            filtered=dict.fromkeys(clusters, "no such GPU model"),
            reasons={"no such GPU model": len(clusters)},
            hints=why.hints,
        )
        assert why.account is not None  # what others of its queue take comes and goes
        assert (why.account.queue, why.account.waiting) == ("default", 1)
        assert why.hints[0].startswith("another GPU model: ")
        assert why.hints[-1] == "no cluster has TPU-v9"


@story
async def test_an_id_is_used_once(bad: Rig) -> None:
    async with users(bad, "operator") as (berth,):
        first = await ask(berth, "submit", b'{"id": "twice", "priority": 5}')
        assert first == SubmitReply(tenant="default", id="twice", sequence=first.sequence)
        await until(lambda: ended(berth, "twice"))
        # The same content, spelled otherwise: the same answer.
        again = await ask(berth, "submit", b'{"queue": "default", "priority": 5, "id": "twice"}')
        assert again == msgspec.structs.replace(first, existing=True, state="succeeded")
        # Another content: refused.
        other = await ask(berth, "submit", b'{"id": "twice", "priority": 6}')
        assert other == no(
            "id",
            '"twice"',
            "an id that was not used before; this one belongs to a workload of other content, "
            "which is succeeded",
            "conflict",
        )


@story
async def test_two_megabytes_are_refused_by_the_client_and_by_the_server(bad: Rig) -> None:
    body = b'{"id": "large", "labels": {"a": "%s"}}' % (b"x" * 2_000_000)
    async with users(bad, "operator") as (berth,):
        with pytest.raises(TooLargeError) as told:
            await berth.submit_raw(body)
        assert str(told.value) == (
            "the request has 2,000,036 bytes, and the server takes at most 1,048,064"
        )
        # What the server takes may still be more than the gateway does.
        nearly = body[:900_000] + body[-3:]
        with pytest.raises(RefusedError) as refused:
            await berth.submit_raw(nearly)
        limit = no("", "900003 bytes", "at most 262144 bytes", "too_large")
        assert refused.value.refusal == limit
        # Raw NATS: the server ends the connection of whoever sends it anyway.
        closed = asyncio.Event()

        async def on_closed() -> None:
            closed.set()

        raw = await nats.connect(
            bad.view["url"],
            user_credentials=bad.folder / "keys" / "operator.creds",
            inbox_prefix=b"_INBOX.operator",
            allow_reconnect=False,
            closed_cb=on_closed,
        )
        raw._max_payload = len(body)  # this client would not send it either
        with pytest.raises((nats.errors.Error, OSError)):
            await raw.request(subjects.api("default", "submit"), body, timeout=5)
        await asyncio.wait_for(closed.wait(), hang_s())
        await still_works(berth, "after-large")


@story
async def test_a_cluster_may_be_called_anything(bad: Rig) -> None:
    name = "eu.west 1"
    async with (
        users(bad, "operator", "emulator") as (berth, emulator),
        forged(emulator, name, **{"node.a b": 4}) as cluster,
    ):
        await until(lambda: scored(berth, name))
        shown = json.loads(bad.berth("top", "--once", "--json").stdout)
        assert [each["cluster"] for each in shown if each["cluster"] == name] == [name]

        pods = (PodSet(gpus=4, gpu_models=(MODEL,)),)
        await berth.submit(JobRequest(id="dotted", pod_sets=pods, clusters=(name,)))
        placed = await cluster.start("dotted")
        assert placed.pods[0].node == "node.a b"
        assert placed.pods[0].gpus == (0, 1, 2, 3)
        view = await until(lambda: in_state(berth, "dotted", "running"))
        assert (view.cluster, view.attempt) == (name, 1)
        await berth.cordon(name, "node.a b", reason="odd name")
        await berth.uncordon(name, "node.a b")


async def scored(berth: Client, name: str) -> ClusterScore | None:
    """The score of a cluster, once it has a fresh one."""
    for seen in await berth.fleet(cluster=name):
        if isinstance(seen.fact, ClusterScore) and seen.fact.freshness == "fresh":
            return seen.fact
    return None


async def in_state(berth: Client, name: str, state: str) -> Any:
    """A workload's view, once it is in this state."""
    view = (await berth.get(name)).workload
    return view if view.state == state else None


@story
async def test_telemetry_from_the_future_is_ignored(bad: Rig) -> None:
    async with (
        users(bad, "operator", "emulator") as (berth, emulator),
        forged(emulator, "ahead", n1=1) as _,
    ):
        assert (await until(lambda: scored(berth, "ahead"))).idle_gpu_percent is None

        async def tell(counter: int, observed_at_s: float, percent: float) -> None:
            gpu = GpuReading(index=0, uuid="n1-0", model=MODEL, utilization_percent=percent)
            told = NodeTelemetry(
                cluster="ahead",
                node="n1",
                epoch=1,
                counter=counter,
                observed_at_s=observed_at_s,
                interval_s=5.0,
                source="dcgm",
                gpus=(gpu,),
            )
            await DoorClient(emulator.connection, "ahead").observe(encode(told))

        # A day ahead, and newer than what will come: it neither counts nor stands in the way.
        await tell(1000, berth.now() + 86_400, 0.0)
        await asyncio.sleep(2.5)  # two refreshes
        assert (await until(lambda: scored(berth, "ahead"))).idle_gpu_percent is None
        await tell(1, berth.now(), 75.0)

        async def measured() -> bool:
            score = await scored(berth, "ahead")
            return score is not None and score.idle_gpu_percent == 25.0

        await until(measured)


@story
async def test_a_node_with_fewer_gpus_than_run_there_keeps_its_job_and_gets_no_other(
    bad: Rig,
) -> None:
    async with (
        users(bad, "operator", "emulator") as (berth, emulator),
        forged(emulator, "shrinks", n1=4) as cluster,
    ):
        await until(lambda: scored(berth, "shrinks"))
        four = JobRequest(id="four", pod_sets=(PodSet(gpus=4),), clusters=("shrinks",))
        await berth.submit(four)
        placed = await cluster.start("four")
        use = PodUse(
            tenant="default",
            workload="four",
            attempt=1,
            pod="main-0",
            cpu_milli=1000,
            memory_mib=1024,
            gpu_milli=1000,
            gpus=placed.pods[0].gpus,
        )
        await cluster.node("n1", 2, [use])
        one = JobRequest(id="one-more", pod_sets=(PodSet(gpus=1),), clusters=("shrinks",))
        await berth.submit(one)
        await still_works(berth, "after-shrinking")
        assert (await berth.get("four")).workload.state == "running"
        why = await berth.why("one-more")
        assert (why.state, why.filtered["shrinks"]) == ("queued", "busy: no room now")
        score = await until(lambda: scored(berth, "shrinks"))
        assert (score.free_gpus, score.largest_gang) == (0.0, {MODEL: 0})


@story
async def test_a_silent_cluster_gets_nothing_new_and_keeps_what_it_has(bad: Rig) -> None:
    async with (
        users(bad, "operator", "emulator") as (berth, emulator),
        forged(emulator, "quiet", n1=4) as cluster,
    ):
        await until(lambda: scored(berth, "quiet"))
        job = JobRequest(id="kept", pod_sets=(PodSet(gpus=1),), clusters=("quiet",))
        await berth.submit(job)
        await cluster.start("kept")
        seen: list[str] = []

        async def withdrawn() -> bool:
            for each in await berth.fleet(cluster="quiet"):
                if isinstance(each.fact, ClusterScore) and each.fact.freshness not in seen:
                    seen.append(each.fact.freshness)
            return seen[-1] == "withdrawn"

        cluster.fall_silent()
        await until(withdrawn)
        assert seen == ["fresh", "stale", "withdrawn"]
        await berth.submit(msgspec.structs.replace(job, id="not-there"))
        await still_works(berth, "elsewhere")
        why = await berth.why("not-there")
        assert (why.state, why.filtered["quiet"]) == ("queued", "silent")
        view = (await berth.get("kept")).workload
        assert (view.state, view.attempt, view.cluster) == ("running", 1, "quiet")


@story
async def test_a_score_that_is_no_number_is_a_dead_letter(bad: Rig) -> None:
    async with (
        users(bad, "operator", "emulator", "scorer") as (berth, emulator, scorer),
        forged(emulator, "torn", n1=4),
    ):
        score = await until(lambda: scored(berth, "torn"))
        before = len(await berth.dead())
        subject = subjects.score("torn")
        newer = {"epoch": score.stamp.epoch, "counter": score.stamp.counter}
        good = json.loads(encode(score)) | {"stamp": newer}
        for number in ("NaN", '"NaN"', "1e999", "-1e999", "Infinity"):
            body = json.dumps(good | {"free_gpus": "HERE"}).replace('"HERE"', number).encode()
            assert (
                json.loads(
                    (await scorer.connection.request(subject, body, timeout_s=ANSWER_S)).data
                )["stream"]
                == FLEET
            )
        nothing = json.dumps(good | {"free_gpus": None}).encode()
        await scorer.connection.request(subject, nothing, timeout_s=ANSWER_S)

        async def buried() -> bool:
            letters = (await berth.dead())[before:]
            found = {letter.letter.service for letter in letters}
            return found == {"dashboard", "resolver", "scorer"}

        await until(buried)
        letters = (await berth.dead())[before:]
        assert {letter.letter.subject for letter in letters} == {subject}
        # The cluster stays what it was, and gets its next score.
        fresh = await until(lambda: scored(berth, "torn"))
        assert math.isfinite(fresh.free_gpus)
        await still_works(berth, "after-nan")


@story
async def test_an_event_of_a_newer_version_freezes_its_workload_and_no_other(bad: Rig) -> None:
    async with users(bad, "operator", "resolver") as (berth, resolver):
        name = "from-2030"
        # It waits for a cluster that is not there, so that nobody but us writes its next event.
        asked = JobRequest(id=name, clusters=("nowhere",))
        first = await berth.submit(asked)
        before = len(await berth.dead())
        subject = subjects.workload_event("default", name, "placed", "torn")
        body: dict[str, Any] = {
            "type": "workload.placed.v2",
            "tenant": "default",
            "id": name,
            "berth": "7b",
        }
        body["after"] = first.sequence
        reply = await resolver.connection.request(
            subject, json.dumps(body).encode(), timeout_s=ANSWER_S
        )
        sequence = json.loads(reply.data)["seq"]

        async def buried() -> bool:
            services = {each.letter.service for each in (await berth.dead())[before:]}
            return {"gateway", "resolver"} <= services

        await until(buried)
        letters = [each.letter for each in (await berth.dead())[before:]]
        assert {(x.subject, x.sequence, x.workload) for x in letters} == {
            (subject, sequence, f"default/{name}")
        }
        view = (await berth.get(name)).workload
        why_not = "(Invalid value 'workload.placed.v2' - at `$.type`)"
        cannot = f"this version cannot read its event {sequence} {why_not}"
        assert (view.state, view.reason) == ("queued", f"frozen: {cannot}")
        why = await berth.why(name)
        assert why == WhyReply(
            tenant="default",
            id=name,
            summary=f"frozen: an event of it cannot be understood {why_not}; "
            f"`berth repair inspect default/{name}` shows it",
        )
        with pytest.raises(RefusedError) as told:
            await berth.cancel(name)
        frozen = f"a workload that is not frozen; {cannot}"
        assert told.value.refusal == no("id", f'"{name}"', frozen, "unavailable")
        await still_works(berth, "after-the-future")

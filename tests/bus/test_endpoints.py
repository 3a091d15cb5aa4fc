import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from berthmaster.lib.nats import fair_queue
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.endpoints import Endpoint, Endpoints, Fairness, Stopping, serve
from berthmaster.lib.nats.errors import BusError, NoAnswer, NotConnected, TooLarge
from berthmaster.lib.nats.fair_queue import Share
from berthmaster.lib.supervisor.embedded import Server
from tests.bus.proxy import Passing, proxied
from tests.bus.tools import Lines, connected, patiently, story, task
from tests.support.patience import ANSWER_S, until

Answer = Callable[[str, bytes], Awaitable[bytes | None]]


def failed(subject: str, error: Exception) -> bytes:
    return f"{subject} failed: {type(error).__name__}".encode()


async def served(
    conn: Connection, answer: Answer, *, subject: str = "berth.api.*.echo", **more: object
) -> Endpoints:
    return await serve(
        conn,
        "berth-tester",
        {"echo": Endpoint(subject, answer)},
        version="1.2.3",
        description="answers",
        overloaded=lambda beyond: f"{beyond.why} overloaded".encode(),
        failed=failed,
        **more,  # type: ignore[arg-type]
    )


async def echo(subject: str, data: bytes) -> bytes:
    return subject.encode() + b" " + data


@story
async def test_request_without_inbox_reply_is_ignored(server: Server) -> None:
    lines = Lines()
    worked: list[bytes] = []

    async def answer(subject: str, data: bytes) -> bytes:
        worked.append(data)
        return await echo(subject, data)

    async with (
        connected(server.url, log=lines) as conn,
        connected(server.url, "asker", replicas=1) as asker,
    ):
        heard: list[str] = []
        await asker.subscribe("berth.>", lambda subject, _: heard.append(subject))
        await asker.flush()
        running = await served(conn, answer)
        astray = ["berth.decision.all", "berth.workload.other.id.cancel_requested.-", "_INBOXES"]
        for reply in astray:
            await asker.publish("berth.api.acme.echo", b"attack", reply=reply)
        assert (
            await asker.request("berth.api.acme.echo", b"x", timeout_s=ANSWER_S)
        ).data == b"berth.api.acme.echo x"
        assert worked == [b"x"]
        assert set(heard) == {"berth.api.acme.echo"}
        [told] = lines.fields("requests with a reply subject that is no inbox were ignored")
        assert told["so_far"] == 1  # one line a second
        await running.stop()


@story
async def test_request_heard_by_two_services_is_answered_once(server: Server) -> None:
    def only(mine: bytes) -> Answer:
        async def answer(subject: str, data: bytes) -> bytes | None:
            return await echo(subject, data) if data == mine else None

        return answer

    async with (
        connected(server.url) as one,
        connected(server.url) as two,
        connected(server.url, "asker") as asker,
    ):
        running = [
            await serve(
                conn,
                name,
                {"why": Endpoint("berth.api.*.why", only(mine))},
                version="1.0.0",
                description="answers for its own",
                overloaded=lambda _: b"overloaded",
                failed=failed,
            )
            for conn, name, mine in ((one, "berth-one", b"one"), (two, "berth-two", b"two"))
        ]
        for mine in (b"one", b"two", b"one"):
            reply = await asker.request("berth.api.acme.why", mine, timeout_s=ANSWER_S)
            assert reply.data == b"berth.api.acme.why " + mine
        with pytest.raises(NoAnswer):
            await asker.request("berth.api.acme.why", b"nobody's", timeout_s=0.3)
        for endpoints in running:
            await endpoints.stop()


@story
async def test_endpoint_with_wildcard_answers_every_subject(server: Server) -> None:
    async with connected(server.url) as conn, connected(server.url, "asker") as asker:
        endpoints = await served(conn, echo)
        for tenant in ("acme", "other"):
            reply = await asker.request(f"berth.api.{tenant}.echo", b"hello", timeout_s=ANSWER_S)
            assert reply.data == f"berth.api.{tenant}.echo hello".encode()
        found = msgspec.json.decode(
            (await asker.request("$SRV.INFO.berth-tester", b"", timeout_s=ANSWER_S)).data
        )
        assert (found["name"], found["version"], found["description"]) == (
            "berth-tester",
            "1.2.3",
            "answers",
        )
        assert [(one["name"], one["subject"]) for one in found["endpoints"]] == [
            ("echo", "berth.api.*.echo")
        ]
        await endpoints.stop()
        with pytest.raises(NoAnswer, match="nobody listens"):
            await asker.request("berth.api.acme.echo", b"hello")


@story
async def test_what_stands_in_another_lane_is_not_waited_for(server: Server) -> None:
    """A flood is on its way that the service does not even read; the other lane does not care."""
    done: list[bytes] = []

    async def answer(_: str, data: bytes) -> bytes:
        done.append(data)
        return data

    async with (
        proxied(server.url) as slow,
        connected(server.url) as general,
        connected(slow.url) as first,
        connected(server.url) as second,
        connected(server.url, "asker") as asker,
    ):
        running = await served(general, answer, lanes=[first, second])
        slow.hold()
        for _ in range(1000):
            await asker.publish("berth.lane.0.api.evil.echo", b"flood", reply="_INBOX.nobody")
        reply = await asker.request("berth.lane.1.api.acme.echo", b"in time", timeout_s=ANSWER_S)
        assert reply.data == b"in time"
        assert done == [b"in time"]
        slow.go_on()
        reply = await asker.request("berth.lane.0.api.evil.echo", b"the rest", timeout_s=ANSWER_S)
        assert reply.data == b"the rest"
        assert done == [b"in time", *[b"flood"] * 1000, b"the rest"]
        await running.stop()
        for lane in (0, 1):
            with pytest.raises(NoAnswer, match="nobody listens"):
                await asker.request(f"berth.lane.{lane}.api.acme.echo", b"late")


@story
async def test_handler_receives_subject_without_lane(server: Server) -> None:
    async with connected(server.url) as conn, connected(server.url, "asker") as asker:
        running = await served(conn, echo, lanes=[conn])
        reply = await asker.request("berth.lane.0.api.acme.echo", b"hello", timeout_s=ANSWER_S)
        assert reply.data == b"berth.api.acme.echo hello"
        assert (
            await asker.request("berth.api.acme.echo", b"x", timeout_s=ANSWER_S)
        ).data == b"berth.api.acme.echo x"
        await running.stop()


@story
async def test_what_comes_by_a_lane_never_reaches_a_verb_of_operators(server: Server) -> None:
    """Though it is called as a tenant's; of a verb that tenants do not have nobody answers well."""

    async def theirs(_: str, data: bytes) -> bytes:
        return b"of one tenant"

    async def of_all(_: str, data: bytes) -> bytes:
        return b"of all tenants"

    async with connected(server.url) as conn, connected(server.url, "asker") as asker:
        running = await serve(
            conn,
            "lists",
            {
                "list": Endpoint("berth.api.*.list", theirs),
                "list_for_operators": Endpoint("berth.operator.list", of_all),
                "cordon": Endpoint("berth.operator.cordon", of_all),
            },
            version="1.0.0",
            description="",
            overloaded=lambda _: b"overloaded",
            failed=lambda _, __: b"failed",
            lanes=[conn],
        )
        for asked, answer in (
            ("berth.lane.0.api.acme.list", b"of one tenant"),
            ("berth.api.acme.list", b"of one tenant"),
            ("berth.operator.list", b"of all tenants"),
        ):
            assert (await asker.request(asked, b"", timeout_s=ANSWER_S)).data == answer
        with pytest.raises(NoAnswer):
            await asker.request("berth.lane.0.api.acme.cordon", b"", timeout_s=0.5)
        await running.stop()


@story
async def test_several_replicas_share_the_requests(server: Server) -> None:
    async with (
        connected(server.url, "a") as a,
        connected(server.url, "b") as b,
        connected(server.url, "asker") as asker,
    ):
        by: Counter[str] = Counter()

        def answer(who: str) -> Answer:
            async def count(_: str, data: bytes) -> bytes:
                by[who] += 1
                return data

            return count

        await served(a, answer("a"))
        await served(b, answer("b"))
        replies = await asyncio.gather(
            *(
                asker.request("berth.api.acme.echo", b"%d" % n, timeout_s=ANSWER_S)
                for n in range(200)
            )
        )
        assert [reply.data for reply in replies] == [b"%d" % n for n in range(200)]
        assert by.total() == 200  # each was answered by one of them
        assert min(by["a"], by["b"]) > 30


@story
async def test_beyond_the_bound_the_answer_is_overloaded_and_comes_at_once(server: Server) -> None:
    async with connected(server.url) as conn, connected(server.url, "asker") as asker:
        go_on = asyncio.Event()
        waiting = 0

        async def slow(_: str, data: bytes) -> bytes:
            nonlocal waiting
            waiting += 1
            await go_on.wait()
            return data

        await served(conn, slow, max_concurrent=3)
        first = [
            asyncio.create_task(asker.request("berth.api.acme.echo", b"%d" % n, timeout_s=ANSWER_S))
            for n in range(3)
        ]
        await until(lambda: waiting == 3)
        reply = await asker.request("berth.api.acme.echo", b"one too many", timeout_s=ANSWER_S)
        assert reply.data == b"at most 3 requests at once overloaded"
        go_on.set()
        assert [(await one).data for one in first] == [b"0", b"1", b"2"]
        assert (
            await asker.request("berth.api.acme.echo", b"again", timeout_s=ANSWER_S)
        ).data == b"again"


@story
async def test_failing_handler_still_sends_an_answer(server: Server) -> None:
    log = Lines()

    async def answer(_: str, data: bytes) -> bytes:
        if data == b"raise":
            raise ValueError("no")
        if data == b"hang":
            await asyncio.sleep(600)
        return b"x" * 2_000_000 if data == b"much" else data

    async with connected(server.url, log=log) as conn, connected(server.url, "asker") as asker:
        await served(conn, answer, answer_limit_s=0.2)
        got = [
            (await asker.request("berth.api.acme.echo", body, timeout_s=ANSWER_S)).data
            for body in (b"raise", b"hang", b"much", b"fine")
        ]
        assert got == [
            b"berth.api.acme.echo failed: ValueError",
            b"berth.api.acme.echo failed: TimeoutError",
            b"berth.api.acme.echo failed: TooLarge",
            b"fine",
        ]
        assert conn.reconnects == 0
    late = "requests took longer than their time limit"
    told = ("request handler failed", "reply too large", late)
    assert [log.count(event) for event in told] == [1, 1, 1]
    assert TooLarge.__name__ == "TooLarge"


@story
async def test_message_without_a_reply_subject_is_ignored(server: Server) -> None:
    took: list[bytes] = []

    async def answer(_: str, data: bytes) -> bytes:
        took.append(data)
        return data

    log = Lines()
    async with connected(server.url, log=log) as conn, connected(server.url, "asker") as asker:
        await served(conn, answer)
        await asker.publish("berth.api.acme.echo", b"told")
        assert (
            await asker.request("berth.api.acme.echo", b"asked", timeout_s=ANSWER_S)
        ).data == b"asked"
    assert took == [b"asked"]
    assert log.count("requests with a reply subject that is no inbox were ignored") == 1


@story
async def test_stopping_finishes_what_is_in_hand_and_cuts_short_what_takes_too_long(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("berthmaster.lib.nats.endpoints.DRAIN_S", 0.4)
    begun: set[bytes] = set()

    async def answer(_: str, data: bytes) -> bytes:
        begun.add(data)
        await asyncio.sleep(0.1 if data == b"quick" else 600)
        return data

    async with connected(server.url) as conn, connected(server.url, "asker") as asker:
        endpoints = await served(conn, answer)
        asked = [
            asyncio.create_task(asker.request("berth.api.acme.echo", body, timeout_s=ANSWER_S))
            for body in (b"quick", b"endless")
        ]
        await until(lambda: len(begun) == 2)
        await endpoints.stop()
        assert [(await one).data for one in asked] == [
            b"quick",
            f"berth.api.acme.echo failed: {Stopping.__name__}".encode(),
        ]


@story
async def test_stopping_ends_in_time_though_the_server_is_away(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("berthmaster.lib.nats.endpoints.DRAIN_S", 0.3)
    async with connected(server.url) as conn:
        endpoints = await served(conn, echo)
        server.pause()
        await endpoints.stop()
        server.resume()


@story
async def test_an_answer_that_can_no_longer_arrive_is_not_sent(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server permits it on the connection that brought the request, and for a while only."""
    go_on = asyncio.Event()
    begun: list[bytes] = []

    async def slow(_: str, data: bytes) -> bytes:
        begun.append(data)
        await go_on.wait()
        return data

    sent: list[bytes] = []

    def keeps(passing: Passing) -> bool:
        words = passing.line.split()
        if words[0] == b"PUB" and words[1].startswith(b"_INBOX"):
            sent.append(passing.payload)
        return False

    log = Lines()
    async with (
        proxied(server.url) as proxy,
        connected(proxy.url, log=log) as conn,
        connected(server.url, "asker") as asker,
    ):
        await served(conn, slow, max_concurrent=2)
        proxy.to_server = keeps
        for body in (b"one", b"two"):
            await asker.publish("berth.api.acme.echo", body, reply="_INBOX.nobody")
        await until(lambda: len(begun) == 2)
        proxy.cut()
        await until(lambda: conn.reconnects == 1)
        go_on.set()
        got = await patiently(
            lambda: asker.request("berth.api.acme.echo", b"three", timeout_s=ANSWER_S)
        )
        assert (got.data, sent) == (b"three", [b"three"])
        assert log.fields("answers came too late to be sent") == [{"so_far": 1}]

        monkeypatch.setattr("berthmaster.lib.nats.endpoints.LATE_S", -60.0)
        with pytest.raises(NoAnswer):
            await asker.request("berth.api.acme.echo", b"four", timeout_s=0.3)
        assert (begun[-1], sent) == (b"four", [b"three"])


@story
async def test_it_answers_on_after_a_restart_of_the_server(server: Server) -> None:
    async with connected(server.url) as conn, connected(server.url, "asker") as asker:
        await served(conn, echo)
        stop = asyncio.Event()
        answered = 0

        async def asking() -> None:
            nonlocal answered
            while not stop.is_set():
                await patiently(lambda: asker.request("berth.api.acme.echo", b"x", timeout_s=0.3))
                answered += 1

        async with task(asking()) as running:
            for _ in range(2):
                before = answered
                await until(lambda before=before: answered > before + 20)  # type: ignore[misc]
                server.kill()
                server.start()
            before = answered
            await until(lambda: answered > before + 20)
            stop.set()
            await running


@story
async def test_serving_on_a_closed_connection_is_an_error(server: Server) -> None:
    async with connected(server.url) as conn:
        pass
    with pytest.raises(NotConnected, match="cannot serve berth-tester"):
        await served(conn, echo)
    assert issubclass(NotConnected, BusError)


@story
async def test_one_who_asks_without_end_is_refused_and_the_others_have_their_turn(
    server: Server,
) -> None:
    async with connected(server.url) as conn, connected(server.url, "asker") as asker:
        order: list[bytes] = []

        async def note(subject: str, data: bytes) -> bytes:
            order.append(data)
            return data

        share = Share(in_hand=40, bytes_in_hand=10_000, per_s=10_000.0)
        by_tenant = Fairness(lambda subject: subject.split(".")[2], share)
        await served(conn, note, subject="berth.api.*.echo", fairness=by_tenant)
        flood = [
            asker.request("berth.api.evil.echo", b"evil", timeout_s=ANSWER_S) for _ in range(400)
        ]
        asked = [
            asker.request("berth.api.acme.echo", b"acme", timeout_s=ANSWER_S) for _ in range(5)
        ]
        replies = [reply.data for reply in await asyncio.gather(*flood, *asked)]
        assert replies[-5:] == [b"acme"] * 5
        refused = [data for data in replies if data.endswith(b"overloaded")]
        assert refused
        assert set(refused) == {b"at most 40 requests of one tenant at once overloaded"}
        assert order.count(b"evil") + len(refused) == 400
        large = [
            asker.request("berth.api.evil.echo", b"x" * 6_000, timeout_s=ANSWER_S) for _ in range(2)
        ]
        both = sorted(len(reply.data) for reply in await asyncio.gather(*large))
        assert both[1] == 6_000
        assert (
            await asker.request("berth.api.evil.echo", b"x" * 20_000, timeout_s=ANSWER_S)
        ).data == b"x" * 20_000


@story
async def test_who_waits_for_his_turn_for_as_long_as_an_answer_may_take_is_told_to_come_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_queue, "OTHERS_S", 600.0)
    lines = Lines()
    async with connected(server.url, log=lines) as conn, connected(server.url, "asker") as asker:

        async def answer(subject: str, data: bytes) -> bytes:
            if data == b"evil":
                await asyncio.sleep(600)
            return data

        share = Share(in_hand=200, bytes_in_hand=10_000, per_s=10_000.0)
        by_tenant = Fairness(lambda subject: subject.split(".")[2], share)
        await served(
            conn, answer, subject="berth.api.*.echo", fairness=by_tenant, answer_limit_s=0.3
        )
        assert (
            await asker.request("berth.api.acme.echo", b"acme", timeout_s=ANSWER_S)
        ).data == b"acme"
        flood = [
            asker.request("berth.api.evil.echo", b"evil", timeout_s=ANSWER_S) for _ in range(100)
        ]
        told = {reply.data for reply in await asyncio.gather(*flood)}
        assert told == {
            b"berth.api.evil.echo failed: TimeoutError",
            b"a turn within 0.3 s, which did not come overloaded",
        }
        # Of those that began: a line or two, whatever their number.
        assert lines.count("request handler failed") == 0
        assert 0 < lines.count("requests took longer than their time limit") < 50
        assert (
            await asker.request("berth.api.evil.echo", b"again", timeout_s=ANSWER_S)
        ).data == b"again"

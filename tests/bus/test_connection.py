import asyncio
import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from berthmaster.lib.access import claims
from berthmaster.lib.access.keys import make_keys, server_config
from berthmaster.lib.event_log.workload_log import EventLog
from berthmaster.lib.lifecycle.instructions import Unknown
from berthmaster.lib.nats import connect_options, jwts
from berthmaster.lib.nats.clock import ServerClock
from berthmaster.lib.nats.connect_options import PENDING_BYTES
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError, NoAnswer, NotConnected, NotPermitted, TooLarge
from berthmaster.lib.nats.requests import parse_violation
from berthmaster.lib.runtime.ports import free_ports
from berthmaster.lib.supervisor.embedded import Server, ServerConfig
from tests.bus.proxy import proxied
from tests.bus.tools import Lines, Settings, connected, eventually, story, submitted, task
from tests.support.patience import ANSWER_S, NEVER_S, hang_s, until


@story
async def test_it_waits_for_a_server_that_comes_later_and_says_so_once(tmp_path: Path) -> None:
    server = Server(tmp_path, ServerConfig(port=free_ports(1)[0]))
    log = Lines()
    opening = asyncio.create_task(
        Connection.open(Settings(server.url), "early", log, timeout_s=ANSWER_S)
    )
    await until(lambda: log.count("waiting for NATS"), "it says that it waits")
    with server:
        conn = await opening
        assert conn.connected
        await conn.close()
    assert log.count("waiting for NATS") == 1


@story
async def test_it_gives_up_by_its_time_limit_and_says_where_it_looked() -> None:
    url = f"nats://127.0.0.1:{free_ports(1)[0]}"
    began_s = time.monotonic()
    with pytest.raises(NotConnected, match=f"no NATS server at {url}: .*111"):
        await Connection.open(Settings(url), "early", Lines(), timeout_s=0.3)
    assert time.monotonic() - began_s >= 0.3


@story
async def test_a_server_that_accepts_and_stays_silent_is_given_up_in_time() -> None:
    accepted: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, end: accepted.append(end), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    with pytest.raises(NotConnected, match="no NATS server"):
        await Connection.open(Settings(f"nats://127.0.0.1:{port}"), "x", Lines(), timeout_s=0.3)
    silent.close()
    for end in accepted:
        end.transport.abort()


@story
async def test_an_address_that_is_none_is_an_error_at_once() -> None:
    with pytest.raises(BusError, match=r"cannot connect to nats://127\.0\.0\.1:nowhere"):
        await Connection.open(Settings("nats://127.0.0.1:nowhere"), "x", Lines())


def new_user(
    keys: Path, name: str, *, publish: Sequence[str] = (">",), subscribe: Sequence[str] = (">",)
) -> Path:
    """Credentials for a user of CORE with such rights, in a file."""
    make_keys(keys, ["setup"])
    core = (keys / "accounts" / "CORE.seed").read_text().strip()
    seed = jwts.new_seed("user", os.urandom(32))
    body = claims.user(jwts.public_key(seed), name, publish=publish, subscribe=subscribe)
    path = keys / f"{name}.test"
    jwt = jwts.signed(body, core, now_s=time.time())
    path.write_text(jwts.creds_text(jwts.Creds(jwt, seed)))
    return path


def with_users(keys: Path) -> Server:
    extra = server_config(keys, keys.parent / "accounts")
    return Server(keys.parent / "nats", ServerConfig(sync="default", extra=extra))


@story
async def test_wrong_credentials_are_one_clear_error_without_the_secret(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", ["setup"])
    stranger = new_user(tmp_path / "others", "stranger")
    log = Lines()
    with with_users(tmp_path / "keys") as server:
        with pytest.raises(BusError, match=r"refuses this user: .*Authorization Violation"):
            await Connection.open(Settings(server.url, stranger), "x", log)
        with pytest.raises(BusError, match=r"refuses this user: .*; no credentials were given"):
            await Connection.open(Settings(server.url), "x", log)
    assert jwts.parse_creds(stranger.read_text()).seed not in repr(log.seen)


@story
async def test_a_file_that_holds_no_credentials_is_named_and_not_shown(tmp_path: Path) -> None:
    wrong = tmp_path / "me.creds"
    right = new_user(tmp_path / "keys", "me").read_text()
    seed, other = (jwts.new_seed("user", os.urandom(32)) for _ in range(2))
    mixed = right.replace(jwts.parse_creds(right).seed, other)
    for content, why in (
        (seed, "holds no credentials: right are a user's JWT and its nkey seed"),
        (right.replace("eyJ", "?"), "holds no JWT"),
        (right.replace("\nSU", "\nSUX"), "holds no nkey seed"),
        (mixed, "holds the seed is not that of the JWT"),
    ):
        wrong.write_text(content)
        with pytest.raises(BusError, match=rf"me\.creds {why}") as caught:
            await Connection.open(Settings("nats://127.0.0.1:1", wrong), "x", Lines())
        assert not any(line in str(caught.value) for line in content.splitlines() if line)
    with pytest.raises(BusError, match="cannot read the credentials"):
        await Connection.open(Settings("nats://127.0.0.1:1", tmp_path / "none"), "x", Lines())


@story
async def test_a_denied_request_fails_at_once_and_says_so(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    creds = new_user(keys, "x", publish=["allowed.>"], subscribe=["_INBOX.>", "allowed.>"])
    log = Lines()
    told: list[str] = []
    with with_users(keys) as server:
        conn = await Connection.open(Settings(server.url, creds), "x", log, timeout_s=ANSWER_S)
        async with conn:
            conn.on_violation = told.append
            with pytest.raises(NotPermitted, match=r"publish to .forbidden\.thing"):
                await conn.request("forbidden.thing", b"", timeout_s=NEVER_S)
            outcome = await EventLog(conn, settle_limit_s=NEVER_S).append(submitted("job-1"))
            assert isinstance(outcome, Unknown)
            assert "permissions violation" in outcome.why
            # Another request, allowed and unanswered at that moment, is not concerned.
            with pytest.raises(NoAnswer, match=r"nobody listens on allowed\.thing"):
                await conn.request("allowed.thing", b"")
            await conn.subscribe("forbidden.news", lambda _, __: None)
            await until(lambda: any("subscription" in text for text in told))
    assert [parse_violation(text) for text in told[-3:]] == [
        ("publish", "forbidden.thing"),
        ("publish", "berth.workload.acme.job-1.submitted.-"),
        ("subscription", "forbidden.news"),
    ]
    assert log.count("permission violation") == len(conn.violations) == len(told) + 1  # the clock


@story
async def test_request_with_forbidden_inbox_names_inbox(tmp_path: Path) -> None:
    creds = new_user(tmp_path / "keys", "x", subscribe=["_INBOX.me.>"])
    with with_users(tmp_path / "keys") as server:
        settings = Settings(server.url, creds, "_INBOX.you")
        async with await Connection.open(settings, "x", Lines(), timeout_s=ANSWER_S) as conn:
            with pytest.raises(NotPermitted, match="may not listen to its own inbox"):
                await conn.request("some.thing", b"", timeout_s=NEVER_S)


@story
async def test_a_request_that_nobody_answers_ends_in_time(server: Server) -> None:
    async with connected(server.url) as conn:
        with pytest.raises(NoAnswer, match=r"nobody listens on some\.thing"):
            await conn.request("some.thing", b"")
        await conn.subscribe("some.thing", lambda _, __: None)
        with pytest.raises(NoAnswer, match=r"no answer on some.thing within 0.1 s"):
            await conn.request("some.thing", b"", timeout_s=0.1)
        server.kill()
        await until(lambda: not conn.connected)
        with pytest.raises(NoAnswer, match="the server is away"):
            await conn.request("some.thing", b"", timeout_s=0.1)


@story
async def test_what_is_too_large_by_its_headers_alone_is_refused_here(server: Server) -> None:
    async with connected(server.url) as conn:
        data = b"x" * (conn.nc.max_payload - 100)
        await conn.publish("some.thing", data)
        headers = {"Some-Header": "y" * 100}
        with pytest.raises(TooLarge, match="with headers; the server takes at most 1048576"):
            await conn.publish("some.thing", data, headers=headers)
        with pytest.raises(TooLarge):
            await conn.request("some.thing", data, headers=headers)
        await conn.flush()
        assert (conn.connected, conn.reconnects) == (True, 0)


@story
async def test_connection_after_server_error_reconnects(server: Server) -> None:
    async with connected(server.url) as conn:
        # Past our own check, as a client with a fault of its own would.
        await conn.nc.publish("some.thing", b"x" * 1048576, headers={"A": "b"})
        await until(lambda: conn.reconnects == 1)
        assert not conn.closed.is_set()
        assert await conn.api("INFO")


@story
async def test_connection_without_server_buffers_bounded_amount(server: Server) -> None:
    came: list[bytes] = []
    async with connected(server.url) as conn, connected(server.url) as other:
        await other.subscribe("some.thing", lambda _, data: came.append(data[:8]))
        await other.flush()
        server.kill()
        await until(lambda: not conn.connected and not other.connected)
        block = b"y" * 500_000
        sent = 0
        with pytest.raises(NotConnected, match="cannot publish"):  # noqa: PT012 # which one, is open
            while sent < 100:
                await conn.publish("later", b"%08d" % sent + block)
                sent += 1
        assert PENDING_BYTES - 2 * len(block) < sent * len(block) <= PENDING_BYTES
        await conn.subscribe("later", lambda _, data: came.append(data[:8]))
        server.start()
        await until(lambda: len(came) == sent)
        assert came == [b"%08d" % number for number in range(sent)]
        assert await conn.api("INFO")


@story
async def test_closing_stays_within_its_limits_whatever_the_server_does(server: Server) -> None:
    conn = await Connection.open(Settings(server.url), "paused", Lines(), timeout_s=ANSWER_S)
    gone = await Connection.open(Settings(server.url), "gone", Lines(), timeout_s=ANSWER_S)
    server.pause()
    await conn.publish("some.thing", b"x")
    await conn.close()
    server.kill()
    await until(lambda: not gone.connected)
    await gone.close()
    with pytest.raises(NotConnected):
        await gone.request("some.thing", b"", timeout_s=NEVER_S)


@story
async def test_closing_sends_what_was_published_before(server: Server) -> None:
    came: list[bytes] = []
    async with connected(server.url) as other:
        await other.subscribe("last.words", lambda _, data: came.append(data))
        await other.flush()
        async with connected(server.url) as conn:
            await conn.publish("last.words", b"farewell")
        await until(lambda: came)
    assert came == [b"farewell"]


@story
async def test_who_waits_for_an_answer_hears_that_the_connection_was_closed(server: Server) -> None:
    async with connected(server.url) as conn:
        await conn.subscribe("some.thing", lambda _, __: None)
        asking = asyncio.create_task(conn.request("some.thing", b"", timeout_s=ANSWER_S))
        await asyncio.sleep(0)
        await conn.close()
        with pytest.raises(NotConnected, match="closed"):
            await asking


@story
async def test_who_waits_for_an_answer_hears_that_the_connection_broke(server: Server) -> None:
    async with connected(server.url) as conn:
        await conn.subscribe("some.thing", lambda _, __: None)
        asking = asyncio.create_task(conn.request("some.thing", b"", timeout_s=ANSWER_S))
        await asyncio.sleep(0)
        server.kill()
        with pytest.raises(NoAnswer, match="the connection broke"):
            await asking


@story
async def test_a_server_that_hangs_is_left_and_found_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect_options, "PING_INTERVAL_S", 0.2)
    log = Lines()
    async with proxied(server.url) as proxy, connected(proxy.url, log=log) as conn:
        proxy.hold()
        await until(lambda: log.count("disconnected from NATS"))
        proxy.cut()
        proxy.go_on()
        await until(lambda: conn.reconnects == 1)
        assert await conn.api("INFO")


@story
async def test_of_several_servers_one_that_hangs_is_left_within_two_seconds(server: Server) -> None:
    log = Lines()
    async with (
        proxied(server.url) as one,
        proxied(server.url) as other,
        connected(f"{one.url},{other.url}", log=log) as conn,
    ):
        url = conn.nc.connected_url
        assert url is not None
        (one if one.url.endswith(f":{url.port}") else other).hold()
        await until(lambda: conn.reconnects == 1)
        assert await conn.api("INFO")


@story
async def test_a_message_handler_that_raises_does_not_end_the_others(server: Server) -> None:
    log = Lines()
    came: list[bytes] = []

    def handle(_: str, data: bytes) -> None:
        if data == b"bad":
            raise ValueError("bad data")
        came.append(data)

    async with connected(server.url, log=log) as conn:
        await conn.subscribe("some.thing", handle)
        for data in (b"1", b"bad", b"2"):
            await conn.publish("some.thing", data)
        await until(lambda: len(came) == 2)
    assert (came, log.count("message handler failed")) == ([b"1", b"2"], 1)


@story
async def test_dropped_messages_are_counted_and_told_once_a_second(server: Server) -> None:
    log = Lines()
    async with connected(server.url, log=log) as conn, connected(server.url) as other:
        await conn.subscribe("some.thing", lambda _, __: time.sleep(0.001), pending_messages=10)
        await conn.flush()
        for _ in range(2000):
            await other.publish("some.thing", b"x")
        await other.flush()
        await until(lambda: conn.dropped > 100)
    assert 1 <= log.count("slow consumer: messages were dropped") <= 3


@story
async def test_now_is_the_servers_time_though_the_local_clock_is_wrong(server: Server) -> None:
    for wrong_s in (-300.0, 300.0):
        clock = ServerClock(wall=lambda wrong_s=wrong_s: time.time() + wrong_s)  # type: ignore[misc]
        settings = Settings(server.url)
        async with connected(server.url, replicas=1):
            conn = await Connection.open(
                settings, "wrong", Lines(), timeout_s=ANSWER_S, clock=clock
            )
        async with conn:
            assert abs(conn.now() - time.time()) < 0.2  # the server's clock is this machine's


@story
async def test_now_without_server_is_local_then_corrected(server: Server) -> None:
    clock = ServerClock(wall=lambda: time.time() - 300.0)
    settings = Settings(server.url)
    async with await Connection.open(
        settings, "x", Lines(), timeout_s=ANSWER_S, clock=clock
    ) as conn:
        assert abs(conn.now() - time.time() + 300) < 1
        async with connected(server.url, replicas=1):
            await until(lambda: clock.known)
        assert abs(conn.now() - time.time()) < 0.2


@story
async def test_requests_go_on_through_many_restarts(server: Server) -> None:
    async with connected(server.url) as conn:
        stop = asyncio.Event()
        answers = 0

        async def asking() -> None:
            nonlocal answers
            while not stop.is_set():
                await eventually(lambda: conn.api("INFO", timeout_s=0.5))
                answers += 1

        async with task(asking()):
            for round_ in range(3):
                before = answers
                server.kill()
                await until(lambda round_=round_: conn.reconnects >= round_)  # type: ignore[misc]
                server.start()
                await until(lambda before=before: answers > before + 5)  # type: ignore[misc]
            stop.set()
        assert conn.reconnects == 3
        info = msgspec.json.decode(await conn.api("INFO"))
        assert info["type"] == "io.nats.jetstream.api.v1.account_info_response"


@story
async def test_who_closes_while_the_server_is_away_is_not_connected_for_ever(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn = await Connection.open(Settings(server.url), "closing", Lines(), timeout_s=ANSWER_S)
    trying, tries = asyncio.Event(), 0

    async def refused(*_: object, **_more: object) -> None:
        nonlocal tries
        tries += 1
        trying.set()
        with contextlib.suppress(asyncio.CancelledError):  # as `asyncio.wait_for` may
            await asyncio.sleep(600)
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(type(conn.nc._transport), "connect", refused)
    server.kill()
    await asyncio.wait_for(trying.wait(), hang_s())
    reconnecting = conn.nc._reconnection_task
    assert reconnecting is not None
    await conn.close()
    await asyncio.wait({reconnecting}, timeout=hang_s())
    assert reconnecting.done()
    assert tries == 1

"""What becomes of a client's calls when the server, the network or the credentials misbehave."""

import asyncio
import gzip
from pathlib import Path

import pytest
from aiohttp import web

from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.config import Access
from berthmaster.lib.kube.errors import (
    BadAnswer,
    KubernetesError,
    ServerError,
    TimedOut,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from berthmaster.lib.kube.kubeconfig import User
from tests.support.patience import until
from tests.unit.lib.kube.stage import WIDGETS, Lines, Stage, Widget, refuse

A = WIDGETS.path(namespace="toys", name="a")
TOYS = WIDGETS.path(namespace="toys")


def widget(name: str, size: int = 0) -> dict[str, object]:
    return {"apiVersion": "toys.example/v1", "metadata": {"name": name}, "spec": {"size": size}}


def test_an_answer_that_does_not_come_is_given_up_in_time() -> None:
    async def story() -> None:
        async with Stage() as stage, await stage.client(timeout_s=0.2) as client:

            async def never(request: web.Request) -> web.StreamResponse:
                await asyncio.sleep(1.0)
                return web.Response()

            async def half(request: web.Request) -> web.StreamResponse:
                response = web.StreamResponse()
                await response.prepare(request)
                await response.write(b'{"metadata"')
                await asyncio.sleep(1.0)
                return response

            for slow in (never, half):
                stage.before.append(slow)
                with pytest.raises(TimedOut) as caught:
                    await client.get(A, Widget)
                assert str(caught.value) == f"no answer within 0.2 s ({A})"
            stage.before.append(never)
            with pytest.raises(TimedOut):
                await anext(client.watch(WIDGETS, Widget, resource_version="1"))
            stage.before.append(never)
            await stage.put("a")
            with pytest.raises(TimedOut, match=r"within 0\.05 s"):
                await client.get(A, Widget, timeout_s=0.05)
            assert (await client.get(A, Widget, timeout_s=10)).metadata.name == "a"

    asyncio.run(story())


def test_waiting_for_a_turn_counts_towards_the_limit() -> None:
    async def story() -> None:
        async with Stage() as stage, await stage.client(max_in_flight=1) as client:
            enough = asyncio.Event()

            async def slow(request: web.Request) -> web.StreamResponse:
                await enough.wait()
                return web.json_response({})

            stage.before.append(slow)
            first = asyncio.create_task(client.get(A, Widget))
            await until(lambda: stage.requests)
            with pytest.raises(TimedOut):
                await client.get(A, Widget, timeout_s=0.2)
            enough.set()
            assert await first == Widget()
            assert len(stage.requests) == 1  # the second never had its turn

    asyncio.run(story())


def test_a_connection_cut_in_the_middle_is_no_answer() -> None:
    async def story() -> None:
        async with Stage() as stage, await stage.client() as client:

            async def cut(request: web.Request) -> web.StreamResponse:
                response = web.StreamResponse(headers={"Content-Length": "1000"})
                await response.prepare(request)
                await response.write(b'{"metadata":{}}')
                assert request.transport is not None
                request.transport.abort()
                return response

            stage.before.append(cut)
            with pytest.raises(Unreachable) as caught:
                await client.get(A, Widget)
            assert stage.url in str(caught.value)

    asyncio.run(story())


def test_a_server_that_is_not_there_is_named_with_the_reason() -> None:
    async def story() -> None:
        async with Stage() as stage:
            client = await stage.client()
        async with client:
            with pytest.raises(Unreachable) as caught:
                await client.get(f"{A}?token=secret", Widget)
            assert f"{stage.url}: no connection: Connect call failed" in str(
                caught.value
            ) or "Connection refused" in str(caught.value)
        with pytest.raises(Unreachable, match="the client is closed"):
            await client.get(A, Widget)

    asyncio.run(story())


def test_client_ignores_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login ann password s3cret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)

    async def story() -> None:
        async with Stage() as stage, await stage.client() as client:

            async def sticky(request: web.Request) -> web.StreamResponse:
                return web.json_response({}, headers={"Set-Cookie": "to=me"})

            stage.before.append(sticky)
            await client.version()
            await client.version()
            assert [
                header
                for headers in stage.headers
                for header in headers
                if header in ("Authorization", "Cookie", "Proxy-Authorization")
            ] == []

    asyncio.run(story())


def test_a_name_that_does_not_resolve_is_unreachable() -> None:
    async def story() -> None:
        access = Access(server="http://no-such-host.invalid:6443")
        async with await Client.open(access, user_agent="t", log=Lines()) as client:
            with pytest.raises(Unreachable, match="no connection"):
                await client.version()

    asyncio.run(story())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>login here</html>",
        b"[]",
        b'{"spec":{"size":"big"}}',
        b'{"metadata":{"name":"\xff"}}',
    ],
)
def test_an_answer_that_is_not_the_object_is_no_answer(body: bytes) -> None:
    async def story() -> None:
        async with Stage() as stage, await stage.client() as client:

            async def answer(request: web.Request) -> web.StreamResponse:
                return web.Response(body=body, content_type="application/json")

            stage.before += [answer, answer]
            with pytest.raises(BadAnswer, match=A):
                await client.get(A, Widget)
            if not body.startswith(b'{"'):
                with pytest.raises(BadAnswer, match="no list"):
                    await anext(client.list_pages(WIDGETS, Widget))

    asyncio.run(story())


def test_a_redirect_is_not_followed_with_our_credentials() -> None:
    async def story() -> None:
        async with Stage() as stage, await stage.client() as client:

            async def elsewhere(request: web.Request) -> web.StreamResponse:
                return web.Response(status=302, headers={"Location": "http://evil.invalid/"})

            stage.before.append(elsewhere)
            with pytest.raises(KubernetesError, match="302"):
                await client.get(A, Widget)

    asyncio.run(story())


def test_an_answer_far_too_large_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("berthmaster.lib.kube.transport.MAX_ANSWER_BYTES", 100_000)

    async def story() -> None:
        async with Stage() as stage, await stage.client() as client:
            bomb = gzip.compress(b'{"spec":' + b" " * 10_000_000 + b"{}}")
            assert len(bomb) < 20_000  # small on the wire

            async def answer(request: web.Request) -> web.StreamResponse:
                return web.Response(body=bomb, headers={"Content-Encoding": "gzip"})

            stage.before.append(answer)
            with pytest.raises(BadAnswer, match="longer than 100000 bytes"):
                await client.get(A, Widget)

    asyncio.run(story())


def test_a_refusal_far_too_large_is_told_in_brief() -> None:
    async def story() -> None:
        async with Stage() as stage, await stage.client() as client:
            stage.before.append(refuse(500, "InternalError", "long " * 100_000))
            with pytest.raises(ServerError) as caught:
                await client.get(A, Widget)
            assert len(str(caught.value)) < 1200

    asyncio.run(story())


# ---------------------------------------------------------------- busy servers, credentials


def test_a_busy_server_is_asked_again_when_it_said_and_within_the_limit() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        async with Stage() as stage, await stage.client(timeout_s=50) as client:
            busy = refuse(429, "TooManyRequests", headers={"Retry-After": "1"})
            stage.before.append(busy)
            before_s = loop.time()
            await client.create(TOYS, widget("a"), Widget)
            assert loop.time() - before_s >= 1.0
            assert [method for method, _, _ in stage.requests] == ["POST", "POST"]

            # A time beyond the limit is not waited for, and no time at all is the caller's affair.
            later = refuse(429, "TooManyRequests", headers={"Retry-After": "60"})
            for told, answer in ((60.0, later), (0.0, refuse(429, "TooManyRequests"))):
                stage.before.append(answer)
                with pytest.raises(TooManyRequests) as caught:
                    await client.get(A, Widget)
                assert caught.value.retry_after_s == told

            # A failure may have done something: that is not repeated here.
            stage.before.append(refuse(503, "ServiceUnavailable", headers={"Retry-After": "1"}))
            with pytest.raises(ServerError) as failed:
                await client.create(TOYS, widget("b"), Widget)
            assert failed.value.retry_after_s == 1
            assert len(stage.requests) == 5

    asyncio.run(story())


def test_a_refused_token_is_renewed_once_and_the_call_made_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with Stage() as stage:
            await stage.put("a")
            token = tmp_path / "token"
            token.write_text("old\n")
            access = Access(server=stage.url, user=User(token_file=str(token)))
            async with await stage.client(access=access) as client:
                assert (await client.get(A, Widget)).metadata.name == "a"
                token.write_text("new")
                assert (await client.get(A, Widget)).metadata.name == "a"  # not yet read anew
                stage.before.append(refuse(401, "Unauthorized"))
                assert (await client.get(A, Widget)).metadata.name == "a"
                shown = [headers["Authorization"] for headers in stage.headers]
                assert shown == ["Bearer old", "Bearer old", "Bearer old", "Bearer new"]

                # No other token to be had: told at once, and the token is nowhere in it.
                stage.before.append(refuse(401, "Unauthorized"))
                with pytest.raises(Unauthorized) as caught:
                    await client.get(A, Widget)
                assert "new" not in str(caught.value)
                assert len(stage.requests) == 5

    asyncio.run(story())


def test_headers_say_who_we_are_and_in_whose_name_we_act() -> None:
    async def story() -> None:
        async with Stage() as stage:
            access = Access(
                server=stage.url,
                user=User(token="t"),
                headers={"Impersonate-User": ("ann",), "Impersonate-Group": ("a", "b")},
            )
            seen: list[list[str]] = []

            async def look(request: web.Request) -> web.StreamResponse:
                seen.append(request.headers.getall("Impersonate-Group"))
                return web.json_response({"gitVersion": "v1.36.3"})

            stage.before.append(look)
            async with await stage.client(access=access) as client:
                assert await client.version() == "v1.36.3"
            assert seen == [["a", "b"]]
            headers = stage.headers[0]
            assert headers["User-Agent"] == "berth-tests"
            assert headers["Authorization"] == "Bearer t"
            assert headers["Impersonate-User"] == "ann"
            assert headers["Accept"] == "application/json"
            assert "Cookie" not in headers

    asyncio.run(story())

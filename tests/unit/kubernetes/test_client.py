"""The verbs of a client, and what becomes of each misfortune."""

import asyncio
import gzip
import json
from collections import Counter
from contextlib import aclosing
from functools import partial

import pytest
from aiohttp import web

from berthmaster.kubernetes.access import Access, Credential, Fixed, bearer
from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.errors import (
    AlreadyExists,
    BadAnswer,
    Conflict,
    Gone,
    KubernetesError,
    NotFound,
    ServerError,
    TimedOut,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from berthmaster.kubernetes.objects import Object
from berthmaster.kubernetes.resources import NODES
from berthmaster.kubernetes.wire import LineSplitter
from tests.unit.kubernetes.stage import WIDGETS, Lines, Spec, Stage, Widget, refuse

A = WIDGETS.path(namespace="toys", name="a")
TOYS = WIDGETS.path(namespace="toys")


def widget(name: str, size: int = 0) -> dict[str, object]:
    return {"apiVersion": "toys.example/v1", "metadata": {"name": name}, "spec": {"size": size}}


def test_an_object_is_made_read_changed_and_deleted() -> None:
    async def story() -> None:
        async with Stage() as stage, await stage.client() as client:
            made = await client.create(TOYS, widget("a", 1), Widget)
            assert (made.metadata.name, made.spec) == ("a", Spec(size=1))
            with pytest.raises(AlreadyExists):
                await client.create(TOYS, widget("a"), Widget)
            assert await client.get(A, Widget) == made

            version = made.metadata.resource_version
            changed = await client.merge_patch(
                A, {"spec": {"size": 2}}, Widget, resource_version=version
            )
            assert changed.spec.size == 2
            assert stage.bodies[-1] == {
                "spec": {"size": 2},
                "metadata": {"resourceVersion": version},
            }
            assert stage.headers[-1]["Content-Type"] == "application/merge-patch+json"
            with pytest.raises(Conflict) as caught:  # decided on what is no longer there
                await client.merge_patch(A, {"spec": {}}, Widget, resource_version=version)
            assert caught.value.path == A

            with pytest.raises(Conflict):
                await client.delete(A, uid="somebody-else's")
            await client.delete(A, uid=made.metadata.uid, propagation="Foreground")
            assert stage.bodies[-1] == {
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "propagationPolicy": "Foreground",
                "preconditions": {"uid": made.metadata.uid},
            }
            await client.delete(A)  # gone already, which is what was wanted
            with pytest.raises(NotFound):
                await client.get(A, Widget)
            assert client.calls == Counter(
                {
                    ("create", "widgets"): 2,
                    ("get", "widgets"): 2,
                    ("patch", "widgets"): 2,
                    ("delete", "widgets"): 3,
                }
            )

    asyncio.run(story())


def test_a_struct_is_sent_as_the_fields_that_it_has() -> None:
    async def story() -> None:
        async with Stage() as stage, await stage.client() as client:
            await stage.put("a")
            body = Widget(spec=Spec(size=4))
            await client.merge_patch(A, body, Widget, resource_version="101")
            assert stage.bodies[-1] == {
                "spec": {"size": 4},
                "metadata": {"resourceVersion": "101"},
            }
            with pytest.raises(TypeError, match="a merge patch is an object, not list"):
                await client.merge_patch(A, [1], Widget, resource_version="101")

    asyncio.run(story())


def test_apply_and_json_patch_are_sent_in_their_own_forms() -> None:
    async def story() -> None:
        async with Stage() as stage, await stage.client() as client:
            await stage.put("a")
            await client.apply(A, {"spec": {"size": 1}}, Widget, field_manager="berth", force=True)
            assert stage.requests[-1][2] == {"fieldManager": "berth", "force": "true"}
            assert stage.headers[-1]["Content-Type"] == "application/apply-patch+yaml"
            operations = [{"op": "replace", "path": "/spec/size", "value": 3}]
            await client.json_patch(A, operations, Widget)
            assert stage.bodies[-1] == operations
            assert stage.headers[-1]["Content-Type"] == "application/json-patch+json"

    asyncio.run(story())


def test_a_list_comes_in_pages_that_say_where_they_stand() -> None:
    async def story() -> None:
        async with Stage() as stage, await stage.client() as client:
            for name in "abc":
                await stage.put(name)
            await stage.put("odd", spec={"size": "huge"})
            pages = [
                page
                async for page in client.list_pages(
                    WIDGETS, Widget, namespace="toys", label_selector="a in (b,c)", limit=3
                )
            ]
            assert [[found.metadata.name for found in page.items] for page in pages] == [
                ["a", "b", "c"],
                [],
            ]
            assert [(page.first, page.last, page.remaining) for page in pages] == [
                (True, False, 1),
                (False, True, 0),
            ]
            (bad,) = pages[1].undecodable
            assert (bad.namespace, bad.name, bad.resource_version) == ("toys", "odd", "104")
            assert bad.why == "Expected `int`, got `str` - at `$.spec.size`"
            assert [query.get("labelSelector") for query in stage.seen("GET")] == ["a in (b,c)"] * 2
            assert stage.requests[0][1] == TOYS

    asyncio.run(story())


def test_a_list_that_expires_again_and_again_is_at_last_asked_for_at_once() -> None:
    async def story() -> None:
        async with Stage() as stage, await stage.client() as client:
            for name in "abcd":
                await stage.put(name)

            async def page(request: web.Request) -> web.StreamResponse:
                return web.json_response(stage.list_now("", dict(request.query)))

            for _ in range(3):
                stage.before += [page, refuse(410, "Expired")]
            pages = [page async for page in client.list_pages(WIDGETS, Widget, limit=2)]
            assert [(len(page.items), page.first, page.last) for page in pages] == [
                (2, True, False),
                (2, True, False),
                (2, True, False),
                (4, True, True),
            ]
            assert "limit" not in stage.requests[-1][2]

    asyncio.run(story())


def test_a_watch_tells_changes_and_ends_as_the_server_ends_it() -> None:
    async def story() -> None:
        async with Stage() as stage, await stage.client() as client:
            await stage.put("a")
            opened: list[str] = []
            events = client.watch(
                WIDGETS,
                Widget,
                resource_version="100",
                timeout_s=30,
                on_open=lambda: opened.append("yes"),
            )

            async def ending() -> None:
                await stage.until_watched()
                await stage.put("a", spec={"size": 2})
                await stage.bookmark()
                await stage.remove("a")
                await stage.end()

            task = asyncio.create_task(ending())
            async with aclosing(events):
                told = [event async for event in events]
            await task
            assert [(event.type, event.resource_version) for event in told] == [
                ("ADDED", "101"),
                ("MODIFIED", "102"),
                ("BOOKMARK", "103"),
                ("DELETED", "104"),
            ]
            assert isinstance(told[0].object, Widget)
            assert opened == ["yes"]
            assert stage.requests[0][2] == {
                "watch": "1",
                "allowWatchBookmarks": "true",
                "resourceVersion": "100",
                "timeoutSeconds": "30",
            }

    asyncio.run(story())


def test_a_watch_from_history_that_is_gone_says_so() -> None:
    async def story() -> None:
        async with Stage() as stage, await stage.client() as client:
            await stage.put("a")
            stage.compact()
            with pytest.raises(Gone, match="too old resource version"):
                async for _ in client.watch(WIDGETS, Widget, resource_version="100"):
                    pass

    asyncio.run(story())


def test_an_error_in_a_watch_is_raised_by_its_own_name() -> None:
    async def story() -> None:
        async with Stage() as stage, await stage.client() as client:
            events = client.watch(WIDGETS, Widget, resource_version="100")
            first = asyncio.create_task(anext(events))
            await stage.until_watched()
            # Not the order in which the API server writes it, but a Status all the same.
            await stage.say(b'{"object": {"code": 500, "reason": "oops"}, "type": "ERROR"}\n')
            with pytest.raises(ServerError, match="oops"):
                await first

    asyncio.run(story())


def test_a_line_without_end_is_given_up_before_it_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = partial(LineSplitter, 1000)
    monkeypatch.setattr("berthmaster.kubernetes.client.LineSplitter", short)

    async def story() -> None:
        async with Stage() as stage, await stage.client() as client:
            events = client.watch(WIDGETS, Widget, resource_version="100")
            first = asyncio.create_task(anext(events))
            await stage.until_watched()
            await stage.say(b'{"type":"ADDED","object":{"metadata":{"name":"' + b"x" * 2000)
            with pytest.raises(BadAnswer, match="longer than 1000 bytes"):
                await first

    asyncio.run(story())


def test_a_watch_given_up_by_its_reader_closes_its_connection() -> None:
    async def story() -> None:
        async with Stage() as stage, await stage.client() as client:
            await stage.put("a")
            events = client.watch(WIDGETS, Widget, resource_version="100")
            async with aclosing(events):
                async for event in events:
                    assert event.type == "ADDED"
                    break
            async with asyncio.timeout(5):
                while stage.watching:  # found out by writing
                    await stage.bookmark()
                    await asyncio.sleep(0.01)

    asyncio.run(story())


# ---------------------------------------------------------------- misfortunes


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
            assert (await client.get(A, Widget)).metadata.name == "a"

    asyncio.run(story())


def test_waiting_for_a_turn_counts_towards_the_limit() -> None:
    async def story() -> None:
        async with Stage() as stage, await stage.client(timeout_s=0.3, max_in_flight=1) as client:

            async def slow(request: web.Request) -> web.StreamResponse:
                await asyncio.sleep(0.25)
                return web.json_response({})

            stage.before += [slow, slow]
            answers = await asyncio.gather(
                *(client.get(A, Widget) for _ in range(2)), return_exceptions=True
            )
            assert [type(answer) for answer in answers] == [Widget, TimedOut]

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
    monkeypatch.setattr("berthmaster.kubernetes.transport.MAX_ANSWER_BYTES", 100_000)

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
        async with Stage() as stage, await stage.client(timeout_s=3) as client:
            busy = refuse(429, "TooManyRequests", headers={"Retry-After": "1"})
            stage.before.append(busy)
            before_s = loop.time()
            await client.create(TOYS, widget("a"), Widget)
            assert 1.0 <= loop.time() - before_s < 3
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


class Changing:
    """Hands out the next token only when the last was refused."""

    def __init__(self, *tokens: str) -> None:
        self._tokens = list(tokens)

    async def credential(self, *, renew: bool = False) -> Credential:
        if renew and len(self._tokens) > 1:
            self._tokens.pop(0)
        return bearer(self._tokens[0])


def test_a_refused_token_is_renewed_once_and_the_call_made_again() -> None:
    async def story() -> None:
        async with Stage() as stage:
            await stage.put("a")
            source = Changing("old", "new")
            access = Access(server=stage.url, source=source)
            async with await stage.client(access=access) as client:
                stage.before.append(refuse(401, "Unauthorized"))
                assert (await client.get(A, Widget)).metadata.name == "a"
                shown = [headers["Authorization"] for headers in stage.headers]
                assert shown == ["Bearer old", "Bearer new"]

                # No other token to be had: told at once, and the token is nowhere in it.
                stage.before.append(refuse(401, "Unauthorized"))
                with pytest.raises(Unauthorized) as caught:
                    await client.get(A, Widget)
                assert "new" not in str(caught.value)
                assert len(stage.requests) == 3

    asyncio.run(story())


def test_headers_say_who_we_are_and_in_whose_name_we_act() -> None:
    async def story() -> None:
        async with Stage() as stage:
            access = Access(
                server=stage.url,
                source=Fixed(bearer("t")),
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


# ---------------------------------------------------------------- asking about the server


def test_a_client_asks_what_it_may_do_and_what_is_served() -> None:
    async def story() -> None:
        async with Stage() as stage, await stage.client() as client:
            assert await client.version() == "v1.36.3"
            assert await client.served("toys.example/v1") == {"widgets"}
            assert await client.served("kueue.x-k8s.io/v1beta2") == frozenset()
            stage.before.append(refuse(503, "ServiceUnavailable"))
            with pytest.raises(ServerError):  # not known is not "not served"
                await client.served("toys.example/v1")

            async def review(request: web.Request) -> web.StreamResponse:
                asked = (await request.json())["spec"]["resourceAttributes"]
                allowed = asked["verb"] == "get"
                return web.json_response({"status": {"allowed": allowed}}, status=201)

            stage.before += [review, review]
            assert await client.can("get", WIDGETS, "toys", subresource="status")
            assert json.loads(json.dumps(stage.bodies[-1])) == {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {
                    "resourceAttributes": {
                        "verb": "get",
                        "group": "toys.example",
                        "version": "v1",
                        "resource": "widgets",
                        "subresource": "status",
                        "namespace": "toys",
                    }
                },
            }
            assert not await client.can("delete", NODES)

    asyncio.run(story())


def test_metadata_alone_can_be_asked_for() -> None:
    async def story() -> None:
        async with Stage() as stage, await stage.client() as client:
            await stage.put("a", spec={"size": "nobody cares"})
            found = await client.get(A, Object)
            assert found.metadata.name == "a"

    asyncio.run(story())

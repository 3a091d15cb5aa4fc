"""The verbs of a client, and what becomes of each misfortune."""

import asyncio
import json
from collections import Counter
from contextlib import aclosing
from functools import partial

import pytest
from aiohttp import web

from berthmaster.lib.kube.errors import (
    AlreadyExists,
    BadAnswer,
    Conflict,
    Gone,
    NotFound,
    ServerError,
)
from berthmaster.lib.kube.objects import Object
from berthmaster.lib.kube.resources import NODES
from berthmaster.lib.kube.wire import LineSplitter
from tests.support.patience import hang_s
from tests.unit.lib.kube.stage import WIDGETS, Spec, Stage, Widget, refuse

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
            assert stage.bodies[-1] == {"spec": {"size": 4}, "metadata": {"resourceVersion": "101"}}
            with pytest.raises(TypeError, match="a merge patch is an object, not list"):
                await client.merge_patch(A, [1], Widget, resource_version="101")

    asyncio.run(story())


def test_apply_is_sent_in_its_own_form() -> None:
    async def story() -> None:
        async with Stage() as stage, await stage.client() as client:
            await stage.put("a")
            await client.apply(A, {"spec": {"size": 1}}, Widget, field_manager="berth", force=True)
            assert stage.requests[-1][2] == {"fieldManager": "berth", "force": "true"}
            assert stage.headers[-1]["Content-Type"] == "application/apply-patch+yaml"

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


def test_endless_line_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    short = partial(LineSplitter, 1000)
    monkeypatch.setattr("berthmaster.lib.kube.client.LineSplitter", short)

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
            async with asyncio.timeout(hang_s()):
                while stage.watching:  # found out by writing
                    await stage.bookmark()
                    await asyncio.sleep(0.01)

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

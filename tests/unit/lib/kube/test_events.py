"""Events on objects: counted, bounded, and never in anybody's way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from berthmaster.lib.kube import events
from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.events import Recorder, Subject, cut
from berthmaster.lib.kube.objects import Metadata
from tests.support.patience import hang_s, until
from tests.unit.lib.kube.stage import WIDGETS, Lines, Stage, refuse

A = Subject(WIDGETS, Metadata(name="a", namespace="toys", uid="u-a", resource_version="7"))
B = Subject(WIDGETS, Metadata(name="b", namespace="toys", uid="u-b"))
START_S = 1795294042.0


@pytest.mark.parametrize("note", ["", "short", "x" * 1024, "x" * 1025, "é" * 600, "🦙" * 300])
def test_words_are_cut_to_one_kib_between_characters(note: str) -> None:
    shortened = cut(note)
    assert len(shortened.encode()) <= 1024
    assert shortened == note or (shortened.endswith("…") and note.startswith(shortened[:-1]))
    assert len(note.encode()) > 1024 or shortened == note


class Clock:
    def __init__(self) -> None:
        self.now_s = START_S

    def __call__(self) -> float:
        return self.now_s


class Registry:
    """What an API server would hold of events; answers the stage's requests."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.made: dict[str, dict[str, Any]] = {}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.stage.before.append(self.answer)
        body = self.stage.bodies[-1]
        if request.method == "POST":
            if f"{request.path}/{body['metadata']['name']}" in self.made:
                return await refuse(409, "AlreadyExists")(request)
            self.made[f"{request.path}/{body['metadata']['name']}"] = body
            return web.json_response(body, status=201)
        if request.path not in self.made:
            return await refuse(404, "NotFound")(request)
        self.made[request.path] |= body
        return web.json_response(self.made[request.path])


@asynccontextmanager
async def recording(
    stage: Stage, client: Client
) -> AsyncIterator[tuple[Recorder, Lines, asyncio.Event, Clock]]:
    log, stopping, clock = Lines(), asyncio.Event(), Clock()
    recorder = Recorder(client, controller="berthmaster/test", instance="pod-1", log=log, now=clock)
    task = asyncio.create_task(recorder.run(stopping))
    try:
        yield recorder, log, stopping, clock
    finally:
        stopping.set()
        async with asyncio.timeout(hang_s()):
            await task


def test_an_event_is_written_whole_and_its_count_raised_in_place() -> None:
    async def story() -> None:
        async with Stage() as stage, await stage.client() as client:
            registry = Registry(stage)
            stage.before.append(registry.answer)
            async with recording(stage, client) as (recorder, log, _, clock):
                recorder.tell(A, "Normal", "Nominated", "worker-1: 8 GPUs free")
                await until(lambda: recorder.written == 1)
                ((path, event),) = registry.made.items()
                name = event["metadata"]["name"]
                assert path == f"/api/v1/namespaces/toys/events/{name}"
                assert name.startswith("a.")
                assert event == {
                    "apiVersion": "v1",
                    "kind": "Event",
                    "metadata": {"name": name, "namespace": "toys"},
                    "involvedObject": {
                        "apiVersion": "toys.example/v1",
                        "kind": "Widget",
                        "name": "a",
                        "namespace": "toys",
                        "uid": "u-a",
                        "resourceVersion": "7",
                    },
                    "type": "Normal",
                    "reason": "Nominated",
                    "message": "worker-1: 8 GPUs free",
                    "count": 1,
                    "firstTimestamp": "2026-11-21T20:47:22Z",
                    "lastTimestamp": "2026-11-21T20:47:22Z",
                    "source": {"component": "berthmaster/test"},
                    "reportingComponent": "berthmaster/test",
                    "reportingInstance": "pod-1",
                }
                clock.now_s += 60
                recorder.tell(A, "Normal", "Nominated", "worker-2: 9 GPUs free")
                await until(lambda: recorder.written == 2)
                ((again, raised),) = registry.made.items()
                assert again == path
                assert raised == {
                    **event,
                    "message": "worker-2: 9 GPUs free",
                    "count": 2,
                    "lastTimestamp": "2026-11-21T20:48:22Z",
                }
                # The server forgets events after an hour; then it is made anew.
                registry.made.clear()
                clock.now_s += 60
                recorder.tell(A, "Normal", "Nominated", "worker-3")
                await until(lambda: recorder.written == 3)
                ((other, anew),) = registry.made.items()
                assert other == path
                assert (anew["count"], anew["firstTimestamp"]) == (1, "2026-11-21T20:49:22Z")

            # Another process finds the event by its name.
            async with recording(stage, client) as (recorder, _, _, _):
                recorder.tell(A, "Normal", "Nominated", "worker-4")
                await until(lambda: recorder.written == 1)
                ((_, found),) = registry.made.items()
                assert (found["count"], found["message"]) == (2, "worker-4")
            assert log.lines == []

    asyncio.run(story())


def test_recorder_told_the_same_while_it_waits_writes_one_event_with_the_count() -> None:
    async def story() -> None:
        async with Stage() as stage, await stage.client() as client:
            registry = Registry(stage)
            stage.before.append(registry.answer)
            async with recording(stage, client) as (recorder, _, _, _):
                for number in range(50):
                    recorder.tell(A, "Normal", "Nominated", f"worker-{number}")
                recorder.tell(A, "Warning", "Nominated", "another event as a warning")
                recorder.tell(B, "Normal", "Nominated", "worker-1")
                await until(lambda: recorder.written == 3)
            found = [
                (one["involvedObject"]["name"], one["type"], one["message"], one["count"])
                for one in registry.made.values()
            ]
            assert found == [
                ("a", "Normal", "worker-49", 50),
                ("a", "Warning", "another event as a warning", 1),
                ("b", "Normal", "worker-1", 1),
            ]

    asyncio.run(story())


def test_recorder_with_too_many_events_waiting_drops_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "MAX_WAITING", 2)

    async def story() -> None:
        async with Stage() as stage, await stage.client() as client:
            registry = Registry(stage)
            stage.before.append(registry.answer)
            async with recording(stage, client) as (recorder, _, _, _):
                for number in range(5):
                    recorder.tell(A, "Normal", f"Reason{number}", "x")
                recorder.tell(A, "Normal", "Reason1", "of one that waits there may be more")
                await until(lambda: recorder.written == 2)
                assert recorder.dropped == 3
            assert [one["count"] for one in registry.made.values()] == [1, 2]

    asyncio.run(story())


def test_an_event_about_something_without_namespace_stands_in_default() -> None:
    async def story() -> None:
        async with Stage() as stage, await stage.client() as client:
            registry = Registry(stage)
            stage.before.append(registry.answer)
            async with recording(stage, client) as (recorder, _, _, _):
                long = Subject(WIDGETS, Metadata(name="n" * 253, uid="u"))
                recorder.tell(long, "Warning", "Odd", "x")
                await until(lambda: recorder.written)
                ((path, event),) = registry.made.items()
                assert path.startswith("/api/v1/namespaces/default/events/nnn")
                assert len(event["metadata"]["name"]) <= 253

    asyncio.run(story())


def test_who_tells_never_waits_and_a_server_that_is_away_costs_only_the_events() -> None:
    async def story() -> None:
        stage = Stage()
        await stage.start()
        client = await stage.client()
        await stage.stop()
        async with client, recording(stage, client) as (recorder, log, _, _):
            for number in range(200):
                recorder.tell(A, "Normal", f"Reason{number}", "x")
            await until(lambda: recorder.dropped)
            assert recorder.written == 0
            assert log.events().count("kubernetes events not written") == 1
        assert recorder.dropped == 200

    asyncio.run(story())


def test_what_is_not_allowed_is_told_once_and_dropped() -> None:
    async def story() -> None:
        async with Stage() as stage, await stage.client() as client:
            stage.before += [refuse(403, "Forbidden", "cannot create events") for _ in range(3)]
            async with recording(stage, client) as (recorder, log, _, _):
                for number in range(3):
                    recorder.tell(A, "Normal", f"Reason{number}", "x")
                await until(lambda: recorder.dropped == 3)
                (line,) = log.lines
                assert "cannot create events" in str(line[2]["why"])
                assert len(stage.requests) == 3  # repeating is pointless

    asyncio.run(story())


def test_stopping_writes_waiting_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "FLUSH_S", 60.0)  # not what it waits for

    async def story() -> None:
        async with Stage() as stage, await stage.client() as client:
            registry = Registry(stage)
            stage.before.append(registry.answer)
            async with recording(stage, client) as (recorder, _, stopping, _):
                for number in range(10):
                    recorder.tell(A, "Normal", f"Reason{number}", "x")
                await asyncio.sleep(0.001)  # the first is being written
                stopping.set()
            assert sorted(event["reason"] for event in registry.made.values()) == [
                f"Reason{number}" for number in range(10)
            ]
            assert (recorder.written, recorder.dropped) == (10, 0)

    asyncio.run(story())

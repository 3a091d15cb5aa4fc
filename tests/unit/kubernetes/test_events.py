"""Events on objects: counted, bounded, and never in anybody's way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from berthmaster.kubernetes import events
from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.events import Entry, EventQueue, Recorder, Subject, cut
from berthmaster.kubernetes.objects import Metadata
from tests.support.patience import hang_s, until
from tests.unit.kubernetes.stage import WIDGETS, Lines, Stage, refuse

A = Subject(WIDGETS, Metadata(name="a", namespace="toys", uid="u-a", resource_version="7"))
B = Subject(WIDGETS, Metadata(name="b", namespace="toys", uid="u-b"))
START_S = 1795294042.0


def taken(queue: EventQueue, now_s: float) -> list[tuple[str, str, str, int]]:
    """All that is due: (object, reason, words, count)."""
    found = []
    while (entry := queue.take(now_s)) is not None:
        found.append((entry.subject.metadata.name, entry.reason, entry.note, entry.count))
    return found


# ---------------------------------------------------------------- what is to be written, and when


def test_what_happens_again_is_one_event_with_a_count_and_the_newest_words() -> None:
    queue = EventQueue()
    queue.tell(A, "Normal", "Nominated", "worker-1", 0.0)
    queue.tell(A, "Normal", "Nominated", "worker-2", 0.1)
    queue.tell(A, "Warning", "Nominated", "as a warning it is another event", 0.2)
    queue.tell(B, "Normal", "Nominated", "worker-1", 0.3)
    assert taken(queue, 1.0) == [
        ("a", "Nominated", "worker-2", 2),
        ("a", "Nominated", "as a warning it is another event", 1),
        ("b", "Nominated", "worker-1", 1),
    ]
    assert queue.next_due_s() is None

    # Told again it is the same event, written no more often than every few seconds.
    for tenth in range(50):
        queue.tell(A, "Normal", "Nominated", f"worker-{tenth}", 2.0 + tenth / 10)
    assert taken(queue, 9.0) == []
    assert queue.next_due_s() == 11.0
    assert taken(queue, 11.0) == [("a", "Nominated", "worker-49", 52)]


def test_after_some_minutes_of_silence_it_is_an_event_of_its_own() -> None:
    queue = EventQueue()
    queue.tell(A, "Normal", "Nominated", "once", 0.0)
    assert taken(queue, 0.0) == [("a", "Nominated", "once", 1)]
    queue.tell(A, "Normal", "Nominated", "again", 601.0)
    assert taken(queue, 601.0) == [("a", "Nominated", "again", 1)]


def test_more_than_can_wait_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_WAITING", 2)
    queue = EventQueue()
    for number in range(5):
        queue.tell(A, "Normal", f"Reason{number}", "x", 0.0)
    queue.tell(A, "Normal", "Reason1", "of one that waits there may be more", 0.1)
    assert queue.dropped == 3
    assert taken(queue, 1.0) == [
        ("a", "Reason0", "x", 1),
        ("a", "Reason1", "of one that waits there may be more", 2),
    ]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_REMEMBERED", 3)
    queue = EventQueue()
    for number in range(4):
        queue.tell(A, "Normal", f"Reason{number}", "x", float(number))
        taken(queue, float(number))
    queue.tell(A, "Normal", "Reason0", "forgotten, so it counts anew", 20.0)
    queue.tell(A, "Normal", "Reason3", "remembered", 20.0)
    assert taken(queue, 20.0) == [
        ("a", "Reason0", "forgotten, so it counts anew", 1),
        ("a", "Reason3", "remembered", 2),
    ]


def test_what_cannot_be_written_is_tried_a_few_times_and_then_dropped() -> None:
    queue = EventQueue()
    queue.tell(A, "Normal", "Nominated", "x", 0.0)
    for now_s in (0.0, 5.0):
        entry = queue.take(now_s)
        assert isinstance(entry, Entry)
        queue.failed(entry, now_s, 5.0)
        assert queue.next_due_s() == now_s + 5.0
    last = queue.take(10.0)
    assert last is not None
    queue.failed(last, 10.0, 5.0)
    assert (queue.next_due_s(), queue.dropped) == (None, 1)


@pytest.mark.parametrize("note", ["", "short", "x" * 1024, "x" * 1025, "é" * 600, "🦙" * 300])
def test_words_are_cut_to_one_kib_between_characters(note: str) -> None:
    shortened = cut(note)
    assert len(shortened.encode()) <= 1024
    assert shortened == note or (shortened.endswith("…") and note.startswith(shortened[:-1]))
    assert len(note.encode()) > 1024 or shortened == note


# ---------------------------------------------------------------- writing them


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
                assert other != path
                assert (anew["count"], anew["firstTimestamp"]) == (1, "2026-11-21T20:49:22Z")
                assert log.lines == []

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
        async with client, recording(stage, client) as (recorder, log, _, clock):
            for number in range(200):
                recorder.tell(A, "Normal", f"Reason{number}", "x")
            for _ in range(4):
                clock.now_s += 60
                await asyncio.sleep(0.3)
            assert recorder.written == 0
            assert log.events().count("cannot write events on objects") == 1
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

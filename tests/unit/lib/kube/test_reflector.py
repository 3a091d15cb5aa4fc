"""The reflector against a server that pages, drops, forgets, refuses and talks nonsense."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.reflector import (
    Added,
    Change,
    Deleted,
    Listed,
    Reflector,
    Unreadable,
    Updated,
)
from tests.support.patience import hang_s, until
from tests.unit.lib.kube.stage import WIDGETS, Lines, Stage, Widget, refuse


class Watcher:
    """A reflector at work, and everything it told."""

    def __init__(self, client: Client, **options: Any) -> None:
        self.told: list[Change[Widget]] = []
        self.log = Lines()
        self.stopping = asyncio.Event()
        options.setdefault("absent_s", 0.05)
        options.setdefault("chance", lambda: 0.5)
        self.on_change: Callable[[], None] = lambda: None
        self.mirror = Reflector(
            client, WIDGETS, Widget, on_change=self.hear, log=self.log, **options
        )
        self.task = asyncio.create_task(self.mirror.run(self.stopping))

    def hear(self, change: Change[Widget]) -> None:
        self.told.append(change)
        self.on_change()

    def words(self) -> list[str]:
        return [word(change) for change in self.told]

    def sizes(self) -> dict[str, int]:
        return {name: found.spec.size for (_, name), found in self.mirror.objects.items()}

    async def stop(self) -> None:
        self.stopping.set()
        async with asyncio.timeout(hang_s()):
            await self.task


def word(change: Change[Widget]) -> str:
    match change:
        case Added(found):
            return f"+{found.metadata.name}={found.spec.size}"
        case Updated(found, previous):
            return f"~{found.metadata.name}={previous.spec.size}>{found.spec.size}"
        case Deleted(found, _):
            return f"-{found.metadata.name}"
        case Unreadable(bad, previous):
            return f"?{bad.name}{'' if previous is None else '!'}"
        case Listed(_):
            return "listed"


@asynccontextmanager
async def watching(stage: Stage, **options: Any) -> AsyncIterator[Watcher]:
    async with await stage.client() as client:
        watcher = Watcher(client, **options)
        try:
            await until(lambda: watcher.mirror.caught_up or watcher.mirror.faults.reason)
            yield watcher
        finally:
            await watcher.stop()


def test_what_is_there_is_listed_in_pages_and_what_changes_is_told_as_it_happens() -> None:
    async def story() -> None:
        async with Stage() as stage:
            for number in range(5):
                await stage.put(f"w{number}", spec={"size": number})
            async with watching(stage, page=2) as watcher:
                listed = ["+w0=0", "+w1=1", "+w2=2", "+w3=3", "+w4=4", "listed"]
                assert watcher.words() == listed
                assert [query["limit"] for query in stage.seen("GET", watch=False)] == ["2"] * 3

                await stage.until_watched()
                await stage.put("w1", spec={"size": 7})
                await stage.put("new", spec={"size": 8})
                await stage.remove("w0")
                await until(lambda: len(watcher.told) == 9)
                assert watcher.words()[6:] == ["~w1=1>7", "+new=8", "-w0"]
                assert watcher.sizes() == {"w1": 7, "w2": 2, "w3": 3, "w4": 4, "new": 8}
                assert watcher.mirror.resource_version == stage.version
                assert watcher.mirror.lists == watcher.mirror.watches == 1

    asyncio.run(story())


def test_a_broken_connection_is_resumed_from_where_it_broke_without_a_list() -> None:
    async def story() -> None:
        async with Stage() as stage:
            await stage.put("a", spec={"size": 1})
            async with watching(stage) as watcher:
                await stage.until_watched()
                stage.drop()
                await stage.put("a", spec={"size": 2})  # while nobody watches
                await stage.put("b", spec={"size": 3})
                await until(lambda: len(watcher.told) == 4)
                assert watcher.words() == ["+a=1", "listed", "~a=1>2", "+b=3"]
                assert watcher.mirror.lists == 1
                assert stage.seen("GET", watch=True)[1]["resourceVersion"] == "101"
                assert watcher.log.lines == []  # one drop is nothing to wake anybody for

    asyncio.run(story())


def test_a_watch_that_the_server_ends_is_opened_again_at_once() -> None:
    async def story() -> None:
        async with Stage() as stage:
            await stage.put("a")
            async with watching(stage) as watcher:
                for size in range(1, 4):
                    await stage.until_watched()
                    await stage.put("a", spec={"size": size})
                    await until(lambda size=size: watcher.sizes() == {"a": size})  # type: ignore[misc]
                    await stage.end()
                await stage.until_watched()
                assert (watcher.mirror.lists, watcher.mirror.watches) == (1, 4)
                assert watcher.mirror.faults.reason == ""

    asyncio.run(story())


def test_when_the_history_expired_everything_is_listed_and_what_vanished_is_told_first() -> None:
    async def story() -> None:
        async with Stage() as stage:
            await stage.put("stays", spec={"size": 1})
            await stage.put("goes", spec={"size": 1})
            await stage.put("changes", spec={"size": 1})
            async with watching(stage) as watcher:
                await stage.until_watched()
                await stage.stop()
                await stage.remove("goes")
                await stage.put("changes", spec={"size": 2})
                await stage.put("comes", spec={"size": 3})
                stage.compact()
                await stage.start()
                await until(lambda: watcher.words().count("listed") == 2)
                # "stays" is not told again, and a deletion is told before the list is complete.
                assert watcher.words()[4:] == ["~changes=1>2", "+comes=3", "-goes", "listed"] or (
                    watcher.words()[4:] == ["+comes=3", "~changes=1>2", "-goes", "listed"]
                )
                assert watcher.sizes() == {"stays": 1, "changes": 2, "comes": 3}

    asyncio.run(story())


def test_what_was_deleted_and_made_again_unseen_is_told_as_two_lives() -> None:
    async def story() -> None:
        async with Stage() as stage:
            await stage.put("a", spec={"size": 1})
            async with watching(stage) as watcher:
                await stage.until_watched()
                await stage.stop()
                await stage.remove("a")
                await stage.put("a", spec={"size": 2})
                stage.compact()
                await stage.start()
                await until(lambda: watcher.words().count("listed") == 2)
                assert watcher.words() == ["+a=1", "listed", "-a", "+a=2", "listed"]

    asyncio.run(story())


def test_a_list_whose_continue_token_expires_begins_again_and_ends_complete() -> None:
    async def story() -> None:
        async with Stage() as stage:
            for number in range(4):
                await stage.put(f"w{number}", spec={"size": number})

            async def first_page_then_compacted(request: web.Request) -> web.StreamResponse:
                answer = web.json_response(stage.list_now("", dict(request.query)))
                await stage.remove("w0")
                stage.compact()
                return answer

            stage.before.append(first_page_then_compacted)
            async with watching(stage, page=2) as watcher:
                # w0 was on the first page of the list that was given up, and is gone in the next.
                assert watcher.words() == ["+w0=0", "+w1=1", "+w2=2", "+w3=3", "-w0", "listed"]
                assert watcher.sizes() == {"w1": 1, "w2": 2, "w3": 3}

    asyncio.run(story())


def test_bookmarks_move_the_mirror_on_and_prove_that_the_watch_lives() -> None:
    async def story() -> None:
        async with Stage() as stage:
            await stage.put("a")
            async with watching(stage) as watcher:
                await stage.until_watched()
                heard_at_s = watcher.mirror.last_seen_s
                await asyncio.sleep(0.02)
                await stage.bookmark()
                await until(lambda: watcher.mirror.resource_version == stage.version)
                assert watcher.mirror.last_seen_s > heard_at_s
                assert watcher.mirror.age_s(watcher.mirror.last_seen_s + 3) == 3
                assert watcher.words() == ["+a=0", "listed"]  # nobody is told of a bookmark
                stage.drop()
                await stage.until_watched()
                assert stage.seen("GET", watch=True)[1]["resourceVersion"] == stage.version

    asyncio.run(story())


def test_a_server_that_is_away_leaves_the_mirror_as_it_was_and_says_so_once() -> None:
    async def story() -> None:
        async with Stage() as stage:
            await stage.put("a", spec={"size": 1})
            async with watching(stage) as watcher:
                await stage.until_watched()
                await stage.stop()
                await until(lambda: "mirroring failed" in watcher.log.events())
                await asyncio.sleep(0.5)
                assert watcher.sizes() == {"a": 1}
                assert "no connection" in watcher.mirror.faults.reason
                assert watcher.log.events() == ["mirroring failed"]
                await stage.put("b", spec={"size": 2})
                await stage.start()
                await until(lambda: watcher.sizes() == {"a": 1, "b": 2})
                assert watcher.mirror.faults.reason == ""
                assert watcher.log.events() == ["mirroring failed", "mirroring resumed"]
                assert watcher.mirror.lists == 1

    asyncio.run(story())


def test_a_kind_that_is_not_served_is_told_once_and_mirrored_when_it_comes() -> None:
    async def story() -> None:
        async with Stage() as stage:
            stage.served = False
            async with watching(stage) as watcher:
                await until(lambda: watcher.log.lines)
                await asyncio.sleep(0.3)
                why = "widgets of toys.example/v1 are not served here"
                assert watcher.mirror.faults.reason == why
                assert watcher.log.lines == [
                    ("warning", "mirroring failed", {"resource": "widgets", "why": why})
                ]
                assert not watcher.mirror.caught_up
                assert watcher.mirror.age_s(99.0) == float("inf")
                stage.served = True
                await stage.put("a", spec={"size": 1})
                await until(lambda: watcher.sizes() == {"a": 1})
                assert (watcher.mirror.faults.reason, watcher.mirror.caught_up) == ("", True)

    asyncio.run(story())


def test_a_kind_that_was_taken_away_is_listed_anew_when_it_comes_back() -> None:
    async def story() -> None:
        async with Stage() as stage:
            await stage.put("old", spec={"size": 1})
            async with watching(stage) as watcher:
                await stage.until_watched()
                stage.served = False
                stage.drop()
                await until(lambda: watcher.mirror.faults.is_absent)
                assert not watcher.mirror.caught_up
                assert watcher.sizes() == {"old": 1}  # not known to be gone
                stage.objects.clear()  # no event tells of it: the kind itself was away
                await stage.put("new", spec={"size": 2})
                stage.served = True
                await until(lambda: watcher.mirror.caught_up)
                assert watcher.words() == ["+old=1", "listed", "+new=2", "-old", "listed"]

    asyncio.run(story())


def test_what_is_not_allowed_is_told_in_the_servers_words() -> None:
    async def story() -> None:
        async with Stage() as stage:
            words = 'widgets is forbidden: User "eve" cannot list resource "widgets"'
            stage.before += [refuse(403, "Forbidden", words) for _ in range(3)]
            async with watching(stage) as watcher:
                await until(lambda: watcher.log.lines)
                assert watcher.log.lines[0][2]["why"] == f"not allowed: {words} (widgets)"
                await until(lambda: watcher.mirror.caught_up)
                assert watcher.log.events() == ["mirroring failed", "mirroring resumed"]

    asyncio.run(story())


def test_how_long_a_kind_has_been_absent_is_counted_until_it_is_served() -> None:
    async def story() -> None:
        now = asyncio.get_running_loop().time
        async with Stage() as stage:
            began_s = now()
            stage.served = False
            async with watching(stage) as watcher:
                mirror = watcher.mirror
                at_s = now()
                assert 0 < mirror.faults.absent_for_s(at_s) < at_s - began_s
                assert mirror.faults.absent_for_s(at_s + 5) == mirror.faults.absent_for_s(at_s) + 5
                assert mirror.faults.denied_for_s(at_s) == 0

                # Said again, it is as old as before; refusals and silence take nothing back.
                since_s = at_s - mirror.faults.absent_for_s(at_s)
                lists = mirror.lists
                await until(lambda: mirror.lists > lists + 1)
                stage.allowed = False
                await until(lambda: mirror.faults.denied_for_s(now()))
                await stage.stop()
                await until(lambda: mirror.faults.is_unanswered)
                assert mirror.faults.is_absent
                assert at_s + 5 - mirror.faults.absent_for_s(at_s + 5) == pytest.approx(since_s)

                stage.served = stage.allowed = True
                await stage.start()
                await until(lambda: mirror.caught_up)
                assert mirror.faults.absent_for_s(now()) == mirror.faults.denied_for_s(now()) == 0

                # Taken away again, it is counted anew.
                again_s = now()
                await stage.until_watched()
                stage.served = False
                stage.drop()
                await until(lambda: mirror.faults.is_absent)
                assert mirror.faults.absent_for_s(now()) <= now() - again_s

    asyncio.run(story())


def test_how_long_a_kind_has_been_denied_is_counted_until_the_server_says_anything_else() -> None:
    async def story() -> None:
        now = asyncio.get_running_loop().time
        async with Stage() as stage:
            stage.allowed = False
            async with watching(stage) as watcher:
                mirror = watcher.mirror
                at_s = now()
                since_s = at_s - mirror.faults.denied_for_s(at_s)
                lists = mirror.lists
                await until(lambda: mirror.lists > lists + 1)
                assert at_s - mirror.faults.denied_for_s(at_s) == pytest.approx(since_s)
                assert mirror.faults.absent_for_s(now()) == 0

                # That the kind is not there is an answer that only those get who may look.
                stage.allowed, stage.served = True, False
                await until(lambda: mirror.faults.is_absent)
                assert mirror.faults.denied_for_s(now()) == 0

                stage.allowed = False
                await until(lambda: mirror.faults.denied_for_s(now()))
                stage.allowed = stage.served = True
                await until(lambda: mirror.caught_up)
                assert mirror.faults.denied_for_s(now()) == mirror.faults.absent_for_s(now()) == 0

    asyncio.run(story())


def test_an_object_that_cannot_be_read_costs_nobody_else_anything() -> None:
    async def story() -> None:
        async with Stage() as stage:
            await stage.put("good", spec={"size": 1})
            await stage.put("odd", spec={"size": "huge"})
            async with watching(stage) as watcher:
                assert watcher.words() == ["+good=1", "?odd", "listed"]
                await stage.until_watched()
                await stage.put("good", spec={"size": "also huge"})
                await stage.put("fine", spec={"size": 2})
                await stage.put("odd", spec={"size": 3})
                await until(lambda: len(watcher.told) == 6)
                # The last good form of "good" stays; "odd" was put right and is known from now on.
                assert watcher.words()[3:] == ["?good!", "+fine=2", "+odd=3"]
                assert watcher.sizes() == {"good": 1, "fine": 2, "odd": 3}
                bad = watcher.mirror.unreadable["toys", "good"]
                assert bad.why == "Expected `int`, got `str` - at `$.object.spec.size`"
                await stage.remove("good")
                await until(lambda: len(watcher.told) == 7)
                assert watcher.words()[6:] == ["-good"]
                assert dict(watcher.mirror.unreadable) == {}

    asyncio.run(story())


def test_garbage_on_the_line_ends_the_watch_and_nothing_is_lost() -> None:
    async def story() -> None:
        async with Stage() as stage:
            await stage.put("a", spec={"size": 1})
            async with watching(stage) as watcher:
                for garbage in (
                    b"<html>gateway timeout</html>\n",
                    b'{"type":"NEWS","object":{}}\n',
                ):
                    await stage.until_watched()
                    seen = len(stage.seen("GET", watch=True))
                    await stage.say(garbage)
                    await until(lambda seen=seen: len(stage.seen("GET", watch=True)) > seen)  # type: ignore[misc]
                    stage.drop()
                await stage.put("a", spec={"size": 2})
                await until(lambda: watcher.sizes() == {"a": 2})
                assert watcher.mirror.lists == 1

    asyncio.run(story())


def test_a_server_restored_from_a_backup_is_listed_after_a_few_refusals() -> None:
    async def story() -> None:
        async with Stage() as stage:
            await stage.put("a", spec={"size": 1})
            async with watching(stage) as watcher:
                await stage.until_watched()
                too_large = "Too large resource version: 101, current: 7"
                stage.before += [refuse(504, "Timeout", too_large) for _ in range(3)]
                stage.drop()
                await until(lambda: watcher.mirror.lists == 2)
                await stage.until_watched()
                assert watcher.words() == ["+a=1", "listed", "listed"]

    asyncio.run(story())


def test_a_busy_server_is_left_alone_for_as_long_as_it_asks() -> None:
    async def story() -> None:
        async with Stage() as stage:
            await stage.put("a")
            async with watching(stage) as watcher:
                await stage.until_watched()
                stage.before.append(refuse(429, "TooManyRequests", headers={"Retry-After": "1"}))
                before_s = asyncio.get_running_loop().time()
                stage.drop()
                await stage.until_watched()
                assert asyncio.get_running_loop().time() - before_s >= 1.0
                assert watcher.mirror.lists == 1

    asyncio.run(story())


def test_a_watch_that_falls_silent_is_not_believed() -> None:
    async def story() -> None:
        async with Stage() as stage:
            await stage.put("a", spec={"size": 1})
            async with watching(stage, silent_s=0.3) as watcher:
                await stage.until_watched()
                await stage.until_watched(2)  # the server still thinks that the first one lives
                assert watcher.mirror.faults.reason == "a watch silent for 0.3 s"
                assert watcher.mirror.lists == 1

    asyncio.run(story())


def test_a_server_that_accepts_and_ends_every_watch_is_not_asked_in_a_circle() -> None:
    async def story() -> None:
        async with Stage() as stage:
            await stage.put("a")

            async def at_once(request: web.Request) -> web.StreamResponse:
                return web.Response(body=b"")

            async with watching(stage) as watcher:
                await stage.until_watched()
                stage.before += [at_once] * 5
                before_s = asyncio.get_running_loop().time()
                stage.drop()
                await until(lambda: not stage.before)
                # Pauses of 0.1 s, doubled each time, less a quarter by this test's chance.
                assert asyncio.get_running_loop().time() - before_s >= 0.75 * 1.5
                await stage.until_watched()
                assert watcher.log.events() == ["mirroring failed"]  # though it accepted each
                assert watcher.mirror.faults.reason == "a watch that ended as soon as it began"
                await until(lambda: not watcher.mirror.faults.reason)
                assert watcher.log.events() == ["mirroring failed", "mirroring resumed"]
                assert watcher.mirror.lists == 1

    asyncio.run(story())


def test_a_server_that_never_answers_is_told_too() -> None:
    async def story() -> None:
        async with Stage() as stage, await stage.client(timeout_s=1.1) as client:
            await stage.put("a")
            watcher = Watcher(client)
            await stage.until_watched()

            async def never(request: web.Request) -> web.StreamResponse:
                await asyncio.sleep(5)
                return web.Response()

            stage.before += [never] * 2
            stage.drop()
            await until(lambda: watcher.log.lines)
            assert "no answer within 1.1 s" in str(watcher.log.lines[0][2]["why"])
            await watcher.stop()

    asyncio.run(story())


def test_now_and_then_everything_is_compared_and_a_missed_change_found() -> None:
    async def story() -> None:
        async with Stage() as stage:
            await stage.put("a", spec={"size": 1})
            async with watching(stage, relist_s=0.2, watch_s=1.0) as watcher:
                await stage.until_watched()
                # A server that forgot to tell its watches: nothing but a list can find it.
                stage.objects["toys", "a"]["spec"] = {"size": 9}
                stage.objects["toys", "a"]["metadata"]["resourceVersion"] = "150"
                await asyncio.sleep(0.25)
                await stage.end()
                await until(lambda: watcher.sizes() == {"a": 9})
                assert watcher.words() == ["+a=1", "listed", "~a=1>9", "listed"]

    asyncio.run(story())


def test_a_flood_of_changes_does_not_keep_the_loop_from_its_other_work() -> None:
    async def story() -> None:
        async with Stage() as stage:
            await stage.put("a")
            async with watching(stage) as watcher:
                await stage.until_watched()
                watcher.on_change = lambda: burn(0.0003)  # a service that does something with it
                line = (
                    b'{"type":"MODIFIED","object":{"metadata":{"name":"a","namespace":"toys",'
                    b'"uid":"u","resourceVersion":"%d"},"spec":{"size":%d}}}\n'
                )
                flood = b"".join(line % (200 + n, n) for n in range(2_000))
                saying = asyncio.create_task(stage.say(flood))
                most, heard = 0, len(watcher.told)
                while watcher.mirror.resource_version != str(200 + 1_999):
                    await asyncio.sleep(0)
                    most, heard = max(most, len(watcher.told) - heard), len(watcher.told)
                await saying
                assert watcher.sizes() == {"a": 1_999}
                # A piece of 64 KiB holds 500 of them; in the 5 ms that one turn may take, 16 fit.
                assert 0 < most < 50

    asyncio.run(story())


def burn(cpu_s: float) -> None:
    ends_s = time.thread_time() + cpu_s
    while time.thread_time() < ends_s:
        pass


def test_what_a_listener_raises_ends_the_reflector_and_is_not_hidden() -> None:
    async def story() -> None:
        async with Stage() as stage, await stage.client() as client:
            await stage.put("a")

            def fail(change: Change[Widget]) -> None:
                raise ArithmeticError("a bug")

            mirror = Reflector(client, WIDGETS, Widget, on_change=fail, log=Lines())
            try:
                async with asyncio.timeout(hang_s()):
                    await mirror.run(asyncio.Event())
            except ArithmeticError:
                return
            raise AssertionError("the bug was hidden")

    asyncio.run(story())

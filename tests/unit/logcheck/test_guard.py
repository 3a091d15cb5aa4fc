"""What a service is told of the log while its connection comes and goes."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from berthmaster.bus.connection import Connection
from berthmaster.bus.streams import WORKLOADS
from berthmaster.logcheck import core, guard
from berthmaster.logcheck.core import Damage, Seen
from berthmaster.logcheck.examine import WATCHED, Looked
from berthmaster.messages.records import LogMark, StreamMark
from berthmaster.runtime.health import Health
from berthmaster.runtime.metrics import Metrics
from berthmaster.runtime.service import Context
from berthmaster.runtime.settings import CommonSettings
from tests.bus.tools import story
from tests.support.patience import hang_s
from tests.unit.kubernetes.stage import Lines


class Line:
    """A connection that is lost and made anew as its test says."""

    def __init__(self) -> None:
        self.reconnects = 0
        self.log = Lines()
        self._calls: list[Callable[[], None]] = []

    def when_stored(self, _: Callable[[str, bytes, int], None]) -> None:
        pass

    def when_reconnected(self, call: Callable[[], None]) -> Callable[[], None]:
        self._calls.append(call)
        return lambda: self._calls.remove(call)

    def again(self) -> None:
        self.reconnects += 1
        for call in self._calls:
            call()

    def now(self) -> float:
        return 1000.0


class Log:
    """What looks show: a log that is too short as long as that is so, and then as long again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.line = Line()
        self.is_short = True
        self.kept: list[LogMark] = []
        mark = StreamMark(stream=WORKLOADS, created="c1", sequence=6)
        self._marks = [(mark, LogMark(service="other", at_s=900.0, streams=(mark,)))]
        monkeypatch.setattr(guard, "look", self._look)
        monkeypatch.setattr("berthmaster.logcheck.marks.keep", self._keep)
        monkeypatch.setattr(guard, "FIRST_LOOKS_S", 0.001)
        monkeypatch.setattr(guard, "LOOK_S", 0.001)

    def is_remembered_by(self, service: str) -> None:
        self._marks = [
            (one, LogMark(service=service, at_s=900.0, streams=(one,))) for one, _ in self._marks
        ]

    async def _look(self, *_: Any) -> dict[str, Looked]:
        end = 5 if self.is_short else 6
        fine = {s: Looked(s, Seen("c1", 1, end, end), None, 0.0, 0, [], []) for s in WATCHED}
        damage = [Damage(stream=WORKLOADS, what="ends at 5")] if self.is_short else []
        log = fine[WORKLOADS]._replace(marks=self._marks, damage=damage)
        return {**fine, WORKLOADS: log}

    async def _keep(self, _: Any, mark: LogMark, __: Any) -> None:
        self.kept.append(mark)

    def guard(self, told: list[str]) -> guard.LogGuard:
        log = cast("Any", self.line.log)
        ctx = Context("t", CommonSettings(), log=log, metrics=Metrics("t"), health=Health())
        return guard.LogGuard(ctx, cast("Connection", self.line), "t", told=told.append)


async def until(what: Callable[[], object]) -> None:
    async with asyncio.timeout(hang_s()):
        while not what():
            await asyncio.sleep(0.001)


@story
async def test_doubt_is_reported_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that starts knows nothing of the log but what others remember: what it stores while
    it looks again takes the numbers of what is lost."""
    log, told = Log(monkeypatch), list[str]()
    mine = log.guard(told)
    beginning = asyncio.ensure_future(mine.begin())
    await until(lambda: told)
    assert told == [guard.IN_DOUBT]
    log.is_short = False
    assert await beginning
    running = asyncio.ensure_future(mine.run())
    log.is_short = True
    await until(lambda: not mine.in_order)
    assert mine.sound
    monkeypatch.setattr(guard, "SETTLE_S", 0.0)
    await until(lambda: not mine.sound)
    assert told[-1] == "nothing is decided: WORKLOADS ends at 5"
    assert set(told[1:-1]) <= {""}
    running.cancel()


@story
async def test_early_finding_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was cut off meanwhile reads the log as if it had always been so, and replaces what
    was remembered of it."""
    monkeypatch.setattr(guard, "SETTLE_S", 0.0)
    log, told = Log(monkeypatch), list[str]()
    mine = log.guard(told)
    beginning = asyncio.ensure_future(mine.begin())
    await until(lambda: told and told[-1].endswith("ends at 5"))
    assert log.kept == []  # what was remembered tells more
    log.is_short = False
    await until(lambda: log.kept)
    await asyncio.sleep(0.01)
    [mark] = log.kept
    found = {one.stream: one.damage for one in mark.streams}
    assert "nothing tells whether it holds what it held" in found[WORKLOADS]
    assert not beginning.done()
    beginning.cancel()


@story
async def test_short_log_keeps_known_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends in the middle of a commit as well. Whoever begins anew with it, or comes back to it,
    has seen no more of it."""
    torn = Damage(stream=WORKLOADS, what="ends in the middle of a commit", missing=((6, 6),))
    monkeypatch.setattr(core.LastCommit, "look", lambda *_: torn)
    log = Log(monkeypatch)
    log.is_remembered_by("t")
    beginning = asyncio.ensure_future(log.guard([]).begin())
    await until(lambda: log.kept)
    [mark] = [one for one in log.kept[0].streams if one.stream == WORKLOADS]
    assert (mark.damage, mark.sequence) == (torn.what, 6)
    beginning.cancel()


@story
async def test_look_over_lost_connection_frees_none(monkeypatch: pytest.MonkeyPatch) -> None:
    line, told, looks, goes_on = Line(), list[str](), 0, asyncio.Event()
    in_order = {s: Looked(s, Seen("c1", 1, 5, 5), None, 0.0, 0, [], []) for s in WATCHED}

    async def look(*_: Any) -> dict[str, Looked]:
        nonlocal looks
        looks += 1
        if looks == 2:
            line.again()  # the second connection is lost while its look is under way
        if looks == 3:
            await goes_on.wait()
        return in_order

    async def kept(*_: Any) -> None:
        pass

    monkeypatch.setattr(guard, "look", look)
    monkeypatch.setattr("berthmaster.logcheck.marks.keep", kept)
    ctx = Context(
        "t", CommonSettings(), log=cast("Any", line.log), metrics=Metrics("t"), health=Health()
    )
    mine = guard.LogGuard(ctx, cast("Connection", line), "t", told=told.append)
    assert await mine.begin()
    running = asyncio.ensure_future(mine.run())
    await asyncio.sleep(0)
    assert mine.sound
    line.again()
    async with asyncio.timeout(hang_s()):
        while looks < 3:
            await asyncio.sleep(0.001)
        assert told[-1] == guard.NOT_LOOKED
        goes_on.set()
        while told[-1]:
            await asyncio.sleep(0.001)
    assert mine.sound
    ctx.stopping.set()
    await asyncio.wait_for(running, hang_s())

"""What a service is told of the log while its connection comes and goes."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from berthmaster.lib.event_log import guard
from berthmaster.lib.event_log.damage import StreamState, damage, digest_of, is_another, to_compare
from berthmaster.lib.messages.records import LogMark, StreamMark
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import NotConnected, StreamReplaced
from berthmaster.lib.nats.stream_messages import Message, Recorded
from berthmaster.lib.nats.streams import CONTROL, WORKLOADS
from berthmaster.lib.nats.subjects import workload_event
from berthmaster.lib.runtime.health import Health
from berthmaster.lib.runtime.metrics import Metrics
from berthmaster.lib.runtime.service import Context
from berthmaster.lib.runtime.settings import CommonSettings
from tests.bus.tools import story
from tests.support.patience import hang_s
from tests.unit.lib.kube.stage import Lines

SUBJECT = workload_event("acme", "train", "submitted", "")
OTHER = LogMark(
    service="other",
    at_s=900.0,
    streams=(StreamMark(stream=WORKLOADS, incarnation="a3", sequence=6),),
)


class Line:
    """A connection that is lost and made anew as its test says."""

    def __init__(self) -> None:
        self.reconnects = 0
        self.log = Lines()
        self.stored: Callable[[str, bytes, int], None] = lambda *_: None
        self._calls: list[Callable[[], None]] = []

    def when_stored(self, call: Callable[[str, bytes, int], None]) -> None:
        self.stored = call

    def when_reconnected(self, call: Callable[[], None]) -> Callable[[], None]:
        self._calls.append(call)
        return lambda: self._calls.remove(call)

    def again(self) -> None:
        self.reconnects += 1
        for call in self._calls:
            call()

    def now(self) -> float:
        return 1000.0


class Bus:
    """Two streams and what is remembered of them, and one service with a guard."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.line = Line()
        self.seen = {WORKLOADS: StreamState("a3", 6), CONTROL: StreamState("c1", 2)}
        self.messages = {
            at: (SUBJECT if at > 2 else "berth.control.x", str(at).encode()) for at in range(1, 9)
        }
        self.remembered = [OTHER]
        self.kept: list[LogMark] = []
        self.told: list[str] = []
        self.checks = 0
        self.goes_on: asyncio.Event | None = None
        self.fails: Exception | None = None
        monkeypatch.setattr(guard, "check", self._check)
        monkeypatch.setattr(guard, "read_marks", self._remembered)
        monkeypatch.setattr(guard, "store_mark", self._keep)
        monkeypatch.setattr(guard, "last_message", self._last_message)
        monkeypatch.setattr(guard, "CHECK_S", 0.001)
        monkeypatch.setattr(guard, "FIRST_CHECKS_S", 0.001)
        self.ctx = Context(
            "t",
            CommonSettings(),
            log=cast("Any", self.line.log),
            metrics=Metrics("t"),
            health=Health(),
        )
        self.guard = guard.LogGuard(
            self.ctx, cast("Connection", self.line), "t", on_change=self.told.append
        )

    async def _check(
        self, _: Connection, stream: str, marks: list[tuple[StreamMark, str]]
    ) -> tuple[StreamState | None, str]:
        self.checks += 1
        seen, messages = self.seen.get(stream), dict(self.messages)
        if self.goes_on is not None:
            await self.goes_on.wait()
        if self.fails is not None:
            raise self.fails
        if (why := damage(stream, seen, marks)) or seen is None:
            return seen, why
        for mark in to_compare(stream, seen, marks):
            if is_another(mark, *messages[mark.sequence]):
                return seen, f"{stream} has another message under {mark.sequence} than it had"
        return seen, ""

    async def _remembered(self, _: Connection, __: Path | None) -> list[LogMark]:
        return self.remembered

    async def _keep(self, _: Connection, mark: LogMark, __: Path | None) -> None:
        self.kept.append(mark)

    async def _last_message(self, _: Connection, stream: str, __: str) -> Message | None:
        last = self.seen[stream].last
        subject, data = self.messages[last]
        return Message(subject, last, 1.0, data)

    def reads(self, sequence: int) -> None:
        subject, data = self.messages[sequence]
        self.guard.saw(Recorded(subject, sequence, 1.0, data, 0))

    def is_ready(self) -> bool:
        return self.ctx.health.readiness()[0]

    async def compared(self, times: int = 2) -> None:
        """Wait until both streams have been compared so often from now on."""
        until_ = self.checks + 2 * times
        await until(lambda: self.checks >= until_)


async def until(what: Callable[[], object]) -> None:
    async with asyncio.timeout(hang_s()):
        while not what():
            await asyncio.sleep(0.001)


@story
async def test_service_begins_when_the_log_is_what_others_remember(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bus = Bus(monkeypatch)
    bus.seen[WORKLOADS] = StreamState("a3", 5)
    beginning = asyncio.ensure_future(bus.guard.begin())
    await bus.compared()
    assert not beginning.done()
    bus.seen[WORKLOADS] = StreamState("a3", 6)  # a new leader has seen all of it
    assert await beginning
    assert bus.guard.sound
    assert bus.is_ready()
    assert "damaged" not in "".join(bus.told)


@story
async def test_damage_that_lasts_is_reported_and_nothing_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bus = Bus(monkeypatch)
    assert await bus.guard.begin()
    running = asyncio.ensure_future(bus.guard.run())
    await until(lambda: bus.kept)
    bus.kept.clear()
    bus.seen[WORKLOADS] = StreamState("a3", 5)
    await until(lambda: not bus.guard.sound)
    assert guard.UNCHECKED in bus.guard.why  # it may pass within a second
    monkeypatch.setattr(guard, "SETTLE_S", 0.0)
    await until(lambda: "ends at 5" in bus.guard.why)
    assert bus.told[-1] == "nothing is decided: WORKLOADS ends at 5; it went up to 6 (t)"
    assert not bus.is_ready()
    assert not bus.kept  # what was remembered tells more
    bus.seen[WORKLOADS] = StreamState("a3", 6)
    await until(lambda: bus.guard.sound)
    assert bus.told[-1] == ""
    assert bus.is_ready()
    running.cancel()


@story
async def test_another_message_than_was_read_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end was lost while nobody looked, and the log has grown again."""
    monkeypatch.setattr(guard, "SETTLE_S", 0.0)
    bus = Bus(monkeypatch)
    assert await bus.guard.begin()
    bus.reads(6)
    running = asyncio.ensure_future(bus.guard.run())
    await bus.compared()
    assert bus.guard.sound
    bus.messages[6] = (SUBJECT, b"another")
    bus.seen[WORKLOADS] = StreamState("a3", 8)
    await until(lambda: not bus.guard.sound)
    assert bus.guard.why == "WORKLOADS has another message under 6 than it had"
    running.cancel()


@story
async def test_nothing_is_sound_before_a_comparison_through_the_present_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bus = Bus(monkeypatch)
    assert await bus.guard.begin()
    running = asyncio.ensure_future(bus.guard.run())
    await bus.compared()
    bus.goes_on = asyncio.Event()
    await bus.compared(0)
    bus.line.again()
    assert not bus.guard.sound
    assert bus.told[-1] == f"nothing is decided: {guard.UNCHECKED}"
    checks = bus.checks
    await until(lambda: bus.checks > checks)
    bus.line.again()  # lost once more while the comparison is under way
    bus.goes_on.set()
    bus.goes_on = None
    await until(lambda: bus.guard.sound)
    assert bus.checks > checks + 2  # the comparison over the lost connection did not count
    assert bus.told[-1] == ""
    running.cancel()


@story
async def test_comparison_that_fails_leaves_the_service_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bus = Bus(monkeypatch)
    bus.fails = NotConnected("away")
    beginning = asyncio.ensure_future(bus.guard.begin())
    await bus.compared(1)
    assert not beginning.done()
    bus.ctx.stopping.set()
    assert not await asyncio.wait_for(beginning, hang_s())
    assert not bus.guard.sound


@story
async def test_replaced_stream_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = Bus(monkeypatch)
    assert await bus.guard.begin()
    bus.reads(6)
    running = asyncio.ensure_future(bus.guard.run())
    await bus.compared()
    bus.seen[WORKLOADS] = StreamState("b4", 8, frozenset({"a3"}))
    with pytest.raises(StreamReplaced, match="berth recover"):
        await asyncio.wait_for(running, hang_s())
    assert not bus.guard.sound
    assert await bus.guard.begin()  # its own marks of the old one count no more
    assert bus.is_ready()


@story
async def test_reader_that_meets_a_new_stream_first_does_not_take_it_for_sound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guard, "SETTLE_S", 0.0)
    bus = Bus(monkeypatch)
    assert await bus.guard.begin()
    bus.seen[WORKLOADS] = StreamState("b4", 8)  # made anew, and not by `berth recover`
    # The follower of the log raises StreamReplaced before the guard has compared again.
    beginning = asyncio.ensure_future(bus.guard.begin())
    await until(lambda: "made anew" in bus.guard.why)
    assert not beginning.done()
    assert not bus.is_ready()
    beginning.cancel()


@story
async def test_mark_follows_what_was_read_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = Bus(monkeypatch)
    assert await bus.guard.begin()
    running = asyncio.ensure_future(bus.guard.run())
    await until(lambda: bus.kept)
    assert _kept(bus) == {WORKLOADS: 6, CONTROL: 2}
    bus.seen[WORKLOADS] = StreamState("a3", 8)
    bus.reads(7)
    await until(lambda: _kept(bus)[WORKLOADS] == 7)
    subject, data = bus.messages[8]
    bus.line.stored(subject, data, 8)
    bus.line.stored("berth.control.x", b"", 99)  # of another stream
    await until(lambda: _kept(bus)[WORKLOADS] == 8)
    mark = next(one for one in bus.kept[-1].streams if one.stream == WORKLOADS)
    assert (mark.incarnation, mark.digest) == ("a3", digest_of(8, subject, data))
    assert bus.kept[-1].service == "t"
    kept = len(bus.kept)
    await bus.compared(5)
    assert len(bus.kept) == kept  # a mark that says nothing new is not stored again
    running.cancel()


def _kept(bus: Bus) -> dict[str, int]:
    return {one.stream: one.sequence for one in bus.kept[-1].streams}

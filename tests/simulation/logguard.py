"""Compares the log with what is remembered of it, for one service: as lib/event_log/guard.py does,
by the same comparison, in virtual time.

Nothing happens to a log without a restart of its server (bus.py), or another log in its place. So
the log is compared with the marks of all services at each connection, while something is wrong, and
when its incarnation is another one. The product compares each second.
"""

from collections.abc import Callable

from berthmaster.lib.event_log.damage import (
    by_service,
    damage,
    digest_of,
    is_another,
    is_replaced,
    to_compare,
)
from berthmaster.lib.event_log.guard import FIRST_CHECKS_S, SETTLE_S, UNCHECKED
from berthmaster.lib.messages.records import LogMark, StreamMark
from berthmaster.lib.nats.streams import WORKLOADS
from tests.simulation.bus import Bus, Message, raw
from tests.simulation.clockwork import Process, Work


class LogGuard:
    def __init__(
        self,
        bus: Bus,
        process: Process,
        name: str,
        *,
        replaced: Work,
        on_change: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``replaced``: what the process does when recover has put another log in place."""
        self._bus = bus
        self._process = process
        self._name = name
        self._replaced = replaced
        self._on_change = on_change
        self._go_on: Work | None = None  # what waits for a log that is sound
        self._through = (0, 0)  # the connection that was compared through
        self._own: StreamMark | None = None
        self._last: Message | None = None  # newest that was read or written
        self._wrong_since_s: float | None = None
        self._reason = ""
        self._reported: str | None = None
        self._checks = 0
        process.on_heal = self.connected

    @property
    def sound(self) -> bool:
        """Whether anything may be decided on the log."""
        return self._go_on is None and not self._why

    @property
    def _why(self) -> str:
        if self._reason:
            return self._reason
        return UNCHECKED if self._through != self._connection else ""

    @property
    def _connection(self) -> tuple[int, int]:
        return self._bus.connections, self._process.heals

    def begin(self, go_on: Work) -> None:
        """Do this once the log is what it was."""
        self._go_on = go_on
        self._own = self._last = None
        self._check()

    def saw(self, message: Message) -> None:
        """A message of the log, read or written by this process."""
        if self._last is None or message.sequence > self._last.sequence:
            self._last = message

    def connected(self) -> None:
        """There is a connection again."""
        self._report()
        self._process.later(self._bus.delay_s(), self._check)

    def _again(self, delay_s: float) -> None:
        self._checks += 1
        number = self._checks

        def again() -> None:
            if number == self._checks:
                self._process.when_healed(lambda: self._process.feed(self._check))

        self._process.later(delay_s, again)

    def _check(self) -> None:
        if self._process.cut:
            self._again(FIRST_CHECKS_S)
            return
        is_new = self._go_on is not None or (
            self._own is not None and self._own.incarnation != self._bus.incarnation
        )
        if is_new or self._wrong_since_s is not None or self._through != self._connection:
            life = self._process.life
            self._compare()
            if self._process.life != life:
                return  # it began anew, with a guard of its own
        elif self._bus.seen() is not None:
            self.keep()
        pause_s = self._bus.pace.log_check_s
        if self._wrong_since_s is not None and not self._reason:
            pause_s = FIRST_CHECKS_S
        self._again(pause_s)

    def _compare(self) -> None:
        bus, seen = self._bus, self._bus.seen()
        through = self._connection
        own = [mark for mark in (self._own, self._newest()) if mark is not None]
        if self._go_on is None and seen is not None and is_replaced({WORKLOADS: seen}, own):
            self._wrong_since_s, self._reason = None, ""
            self._replaced()
            return
        marks = [*((mark, self._name) for mark in own), *by_service(bus.marks.values())]
        why = damage(WORKLOADS, seen, marks)
        if not why and seen is not None:
            for mark in to_compare(WORKLOADS, seen, marks):
                there = bus.at(mark.sequence)  # no archivist removes any here
                if there is None or is_another(mark, *raw(there)):
                    why = f"message {mark.sequence} is gone, or another"
        now_s = bus.clock.now_s
        if why:
            self._wrong_since_s = self._wrong_since_s or now_s
            if now_s - self._wrong_since_s >= SETTLE_S:
                self._reason = why
                bus.on_damage_told(why)
            else:
                self._through = (0, 0)  # until it is known whether it lasts
        else:
            self._wrong_since_s, self._reason = None, ""
            self._through = through
            self.keep()
        self._report()
        if not why and self._go_on is not None:
            go_on, self._go_on = self._go_on, None
            go_on()

    def _newest(self) -> StreamMark | None:
        last, known = self._last, self._own
        if known is None or last is None or last.sequence <= known.sequence:
            return None
        return StreamMark(
            stream=WORKLOADS,
            incarnation=known.incarnation,
            sequence=last.sequence,
            digest=digest_of(last.sequence, *raw(last)),
        )

    def keep(self) -> None:
        """Remember how far the log was read, beside it."""
        if self._wrong_since_s is not None or self._through != self._connection:
            return
        if self._own is None:
            log, last = self._bus.log, self._bus.at(self._bus.log.end)
            digest = digest_of(last.sequence, *raw(last)) if last is not None else ""
            self._own = StreamMark(
                stream=WORKLOADS,
                incarnation=self._bus.incarnation,
                sequence=log.end,
                digest=digest,
            )
        self._own = self._newest() or self._own
        now_s = self._bus.clock.now_s
        self._bus.marks[self._name] = LogMark(service=self._name, at_s=now_s, streams=(self._own,))

    def _report(self) -> None:
        if self._why != self._reported:
            self._reported = self._why
            self._on_change(f"nothing is decided: {self._why}" if self._why else "")

"""Holds the log against what is remembered of it, for one service: what logcheck/guard.py does,
with the same core, in virtual time.

A service begins when the log is what it was, or what it is was accepted. It reads all of it once,
remembers how far it went, looks again and again, and begins anew when a person has accepted what
was found. Where nothing can be damaged there is nothing to look for, and it is done at once.
"""

from collections.abc import Callable, Iterable
from typing import Final

from berthmaster.bus.follow import REPLACED_AFTER_S
from berthmaster.bus.streams import WORKLOADS
from berthmaster.bus.subjects import decision as decision_subject
from berthmaster.lifecycle.flaws import Gap
from berthmaster.logcheck import core
from berthmaster.logcheck.core import Damage, Doubt, Reading, Remembered, Seen, Single
from berthmaster.logcheck.guard import (
    BEGIN_AFTER,
    IN_DOUBT,
    LOOK_S,
    READ_AGAIN_S,
    RECOVERY_S,
    SETTLE_S,
)
from berthmaster.messages.families import encode
from berthmaster.messages.placement import Decision
from berthmaster.messages.records import LogMark, StreamMark
from tests.simulation.bus import Bus, Message
from tests.simulation.clockwork import Process, Work

FIRST_LOOKS_S: Final = 0.25
Marks = list[tuple[StreamMark, LogMark]]


class LogWatch:
    def __init__(
        self,
        bus: Bus,
        process: Process,
        name: str,
        *,
        waits_for_executors: bool = True,
        told: Callable[[str], None] = lambda _: None,
        accepted: Work | None = None,
        before: "LogWatch | None" = None,
    ) -> None:
        """``told``: hears what is wrong, "" = nothing; ``accepted``: what to do when a person has
        accepted damage, else the process begins anew; ``before``: of the same process, which lives
        on with another log."""
        self._bus = bus
        self._process = process
        self._name = name
        self._waits_for_executors = waits_for_executors
        self._told = told
        self._accepted = accepted or self._begin_anew
        self._known: list[StreamMark] = []
        self._seen: list[Damage] = []  # by looking
        self._found: list[Damage] = []  # by reading
        self._last = core.LastKnown()  # of the log, which the process has read or written
        self._has_changed = False  # that is another one now
        self._doubted_s: float | None = None
        self._doubt: Doubt | None = None  # the log was too short, and has not been read since
        self._last_in_doubt = core.NOTHING  # as the guard has it
        self._accepted_at_s = 0.0  # as of the last look
        self._looked_at_making = 0
        self._looked_through = (0, 0)
        self._begun_at = (0, 0, 0.0)  # as of which it was looked at last, before it began
        self._folded_as = ""
        self._folded_at_s = 0.0
        self._begun = False
        self._last_commit = core.LastCommit(SETTLE_S)
        self._words = self._why = ""
        self._reading: Reading | None = None
        self._reads_all = False
        self._remembered: Marks = []  # when it began to read
        self._read_at_s = 0.0
        self._read_making = 0
        self.read = False  # whether all of the log has been read and judged
        if before is not None:
            self._known = [one for kept in before.own() for one in kept.mark.streams]
            self._found, self._doubt = before._found, before._doubt
            self._accepted_at_s = before._accepted_at_s
        process.on_heal = self.looks_at_once

    @property
    def sound(self) -> bool:
        """Whether anything may be decided on the log."""
        if not self._bus.watched:
            return True
        has_looked = self._looked_through == self._connection
        return self._begun and has_looked and not (self._seen or self._found or self._has_changed)

    @property
    def in_order(self) -> bool:
        """Whether the last look found nothing either: else no snapshot takes that one's place."""
        if not self._bus.watched:
            return True
        return self.sound and self._doubted_s is None

    @property
    def _connection(self) -> tuple[int, int]:
        """Which connection there is, as ``Connection.reconnects`` has it."""
        return self._bus.makings, self._process.heals

    @property
    def certain(self) -> bool:
        """Whether what the log lacks never was, or a person has accepted that it is lost."""
        return not self._bus.watched or (self.in_order and self.read)

    @property
    def is_current(self) -> bool:
        """Whether what it began with is what people say of the log now."""
        return not self._bus.watched or self._folded_as == self._bus.snapshot_of

    def begin(self, go_on: Work) -> None:
        """Look until the log is what it was, or accepted; then ``go_on``."""
        if not self._bus.watched:
            go_on()
            return
        if not self._process.cut:
            is_first = not self._looked_at_making and not self._found
            if self._known and is_first:  # others are to know it at once
                self._bus.marks[self._name] = self.own()[0]
            at = self._bus.makings, self._bus.log.end, self._bus.accepted_at_s
            if self._seen and at == self._begun_at:
                self._tell()  # nothing is new, however long nobody accepts it
            else:
                self._begun_at = at
                self._look()
                if self._found:
                    self._keep_mark()
            # By the server's clock, which a connection asks for as it begins (bus/clock.py).
            since_s = self._bus.clock.now_s - self._bus.accepted_at_s
            spoken = not self._waits_for_executors or since_s >= BEGIN_AFTER * RECOVERY_S
            if self._doubted_s is None and not self._found and spoken:
                self._begun = True
                self.folds_anew()
                self._process.later(self._bus.pace.log_look_s, self._again)
                self.looks_often()
                go_on()
                return
        pause_s, life = LOOK_S if self._seen else FIRST_LOOKS_S, self._process.life

        def again() -> None:
            self._process.arrive(life, lambda: self.begin(go_on))

        self._bus.clock.after(pause_s, lambda: self._process.when_healed(again))

    def folds_anew(self) -> None:
        self._folded_as = self._bus.snapshot_of
        self._folded_at_s = self._bus.accepted_at_s

    def follows(self, start: int) -> None:
        """The log is followed from here on, and each message handed to ``saw``."""
        if self._bus.watched:
            self._reads_all = start == 1
            self._last = core.LastKnown()
            self._remembered = counted(self._bus)
            self._reading = new_reading(self._bus, start)

    def saw(self, message: Message) -> None:
        if self._reading is None:
            return
        self.knows(message)
        flaws = self._reading.flaws
        _show(self._reading, message)
        if self.read and self._reading.flaws > flaws:
            self._process.later(LOOK_S, self._read_gap)

    def knows(self, message: Message) -> None:
        """It was followed, or told to be stored to whoever wrote it."""
        self._last.knows(self._bus.makings, Single(message.sequence, *_raw(message)))

    def _read_gap(self) -> None:
        """Numbers were skipped, or a commit is not whole: as the guard does at its next look."""
        if self._process.cut:
            self._process.later(LOOK_S, self._read_gap)
        else:
            self._read_all(None)

    def caught_up(self, start: int = 1) -> None:
        """All of the log has been followed, from ``start`` on: it is judged."""
        if not self._bus.watched:
            return
        self._read_all(self._reading if start == 1 else None)

    @property
    def seen_to(self) -> int:
        return self._reading.last if self._reading is not None else 0

    def own(self) -> list[Remembered]:
        """What the process remembers itself, as the guard does."""
        now_s = self._bus.clock.now_s
        last = self._last.newest.number
        return core.own_memory(self._name, self._known, self._reading, last, WORKLOADS, now_s)

    def _look(self) -> None:
        bus = self._bus
        own = self.own()
        damage = held_against_marks(bus, own)
        self._settle(damage, own)
        if self._is_other():
            self._changed(own)
        self._look_at_end()
        if self._found:  # its own, and what others tell of it
            damage = []
        self._looked_at_making = bus.makings
        if self._looked_through != self._connection:
            self._looked_through, self._words = self._connection, "?"  # who waited for it is told
        now_s = bus.clock.now_s
        self._doubted_s = (self._doubted_s or now_s) if damage else None
        if self._doubted_s is None or now_s - self._doubted_s >= SETTLE_S:
            self._seen = damage
        self._tell()
        # Who has read another log than was accepted begins anew, and remembers nothing of this one.
        if self._doubted_s is None and (self.is_current or not self._begun):
            mark = StreamMark(
                stream=WORKLOADS,
                created=bus.created,
                sequence=bus.log.end,
                accepted_at_s=bus.accepted_at_s,
            )
            self._known = [mark]

    def _look_at_end(self) -> None:
        """Whether the log ends in the middle of a commit."""
        reading = self._reading if self._begun else None
        now_s = self._bus.clock.now_s
        found = self._last_commit.look(WORKLOADS, reading, _seen(self._bus), now_s)
        if found is not None and found not in self._found:
            self._found.append(found)

    def _is_other(self) -> bool:
        """Whether the last that was followed is another one now, as the guard asks."""
        is_other = False
        for last in self._last.unproved(self._bus.makings):
            if last.number <= self._bus.log.end:
                is_other |= self._stands_otherwise(last)
                self._last.proved(last)
        return is_other

    def _stands_otherwise(self, last: Single) -> bool:
        there = (m for m in reversed(self._bus.log.messages) if m.sequence == last.number)
        return any(last.is_other(*_raw(message)) for message in there)

    def _changed(self, own: list[Remembered]) -> None:
        self._has_changed = True
        self._process.later(self._bus.delay_s(), lambda: self._read_again(own))

    def _read_again(self, own: list[Remembered]) -> None:
        if not self._has_changed:
            return
        if self._process.cut:
            self._process.later(LOOK_S, lambda: self._read_again(own))
            return
        number = self._reading.last if self._reading is not None else 0
        self._remembered = [*self._remembered, *counted(self._bus, own)]
        found = damage_of(self._bus, new_reading(self._bus, remembered=self._remembered))
        self._found += [
            each
            for each in found or [core.changed_at(WORKLOADS, number)]
            if each not in self._found
        ]
        self._has_changed = False
        self._tell()

    def _settle(self, damage: list[Damage], own: list[Remembered]) -> None:
        """As the guard does: as long again is not the same again."""
        bus = self._bus
        seen, marks = _seen(bus), counted(bus, own)
        if bus.accepted_at_s > self._accepted_at_s:
            self._accepted_at_s, self._doubt, self._found = bus.accepted_at_s, None, []
            self._last, self._has_changed = core.LastKnown(), False
        if core.is_short(seen, marks):
            if self._doubt is None:
                self._last_in_doubt = self._last.newest
            self._doubt = (self._doubt or core.first_doubt(seen, marks)).also(seen, marks)
        elif self._doubt is not None and not damage:
            if self._doubt.can_be_settled:
                start, known = self._doubt.start, self._doubt.digests
                reading = Reading(start, known, bus.accepted_missing, bus.accepted_to)
                self._found += damage_of(bus, reading)
            elif self._last_in_doubt.number > self._doubt.end:
                if self._stands_otherwise(self._last_in_doubt):
                    self._changed(own)
            elif self._seen:
                self._found.append(core.unsettled(WORKLOADS, self._doubt))
            self._doubt = None

    def _tell(self) -> None:
        words = "; ".join(str(each) for each in (*self._seen, *self._found))
        doubt = IN_DOUBT if self._doubted_s is not None and not self._begun else ""
        why = f"nothing is decided: {words}" if words else doubt
        if (words, why) != (self._words, self._why):
            self._words, self._why = words, why
            self._told(why)
        if words:
            self._bus.on_damage_told(words)

    def _again(self) -> None:
        self._process.later(self._bus.pace.log_look_s, self._again)
        self._look_now()

    def looks_at_once(self) -> None:
        if self._bus.watched:
            if self._begun:
                self._told("nothing is decided: the log was not looked at since then")
            self._process.later(self._bus.delay_s(), self._look_now)
            self.looks_often()

    def looks_often(self) -> None:
        """The server began anew, or the process, or somebody tells of damage or has accepted it:
        however seldom it looks else, it does so each second now, as the guard always does."""
        if self._bus.pace.log_look_s > LOOK_S:
            for times in range(1, 1 + int(REPLACED_AFTER_S)):
                self._process.later(times * LOOK_S, self._look_now)

    def _look_now(self) -> None:
        if not self._begun or self._process.cut:
            return
        if not self.is_current and self._bus.is_accepted:
            self._accepted()
            return
        self._look()
        self._keep_mark()
        late_s = self._bus.clock.now_s - self._read_at_s
        if self.read and self._read_making != self._bus.makings and late_s >= READ_AGAIN_S:
            self._read_all(None)

    def _begin_anew(self) -> None:
        self._process.kill()
        self._process.start()

    def _keep_mark(self) -> None:
        bus, reading = self._bus, self._reading
        is_doubted = bool(self._seen) or self._doubted_s is not None
        if not self._found and (reading is None or (self._reads_all and not self.read)):
            return  # what it remembered before is what it reads the log against
        if is_doubted and self._last.newest.number <= bus.log.end:
            return  # who has seen more than there is tells what it was
        mark = StreamMark(
            stream=WORKLOADS,
            created=bus.created,
            sequence=max(bus.log.end, self._last.newest.number),
            digests=reading.digests() if reading is not None else {},
            damage=self._found[0].what if self._found else "",
            missing=core.told(self._found[0].missing) if self._found else (),
            accepted_at_s=self._folded_at_s if self._begun else bus.accepted_at_s,
        )
        now_s = bus.clock.now_s
        mark = core.with_what_was(mark, self._name, counted(bus))
        told = LogMark(service=self._name, at_s=now_s, streams=(mark,))
        bus.marks[self._name] = Remembered(told, now_s)

    def _read_all(self, followed: Reading | None) -> None:
        """As read_through and judged do; there is no archive here."""
        bus = self._bus
        found = damage_of(bus, followed or new_reading(bus), whole=followed is not None)
        if found and followed is not None:  # more was stored meanwhile: a second pass sees it
            found = damage_of(bus, new_reading(bus, remembered=self._remembered))
        self._found = [
            *found,
            *(each for each in self._found if not each.missing and each not in found),
        ]
        self.read = True
        self._read_at_s = bus.clock.now_s
        self._read_making = bus.makings
        self._words = "?"  # whoever waited for this is told, whatever was found
        self._tell()


def counted(bus: Bus, own: Iterable[Remembered] = ()) -> Marks:
    """What is remembered and not outdated by what a person has accepted since."""
    accepted = bus.accepted[0] if bus.accepted is not None else None
    return core.counted(WORKLOADS, [*bus.marks.values(), *own], accepted, bus.accepted_at_s)


def new_reading(bus: Bus, start: int = 1, *, remembered: Marks | None = None) -> Reading:
    """To be shown the log from there on. ``remembered``: before what is remembered now."""
    marks = [*(remembered or []), *counted(bus)]
    known = core.known_digests(bus.created, marks)
    return Reading(start, known, bus.accepted_missing, bus.accepted_to)


def _seen(bus: Bus) -> Seen:
    log = bus.log
    first = log.messages[0].sequence if log.messages else 0
    return Seen(bus.created, first, log.end, len(log.messages))


def held_against_marks(bus: Bus, own: Iterable[Remembered] = ()) -> list[Damage]:
    """What is remembered against what the server says. ``own``: by whoever looks."""
    accepted = bus.accepted[0] if bus.accepted is not None else None
    return core.held_against(WORKLOADS, _seen(bus), counted(bus, own), accepted)


def damage_of(bus: Bus, reading: Reading, *, whole: bool = False) -> list[Damage]:
    """What a pass over all of the log says. ``whole``: it was shown all that there is."""
    if not whole:
        for message in bus.log.messages:
            _show(reading, message)
    reading.ends(bus.log.end)
    gaps = core.apart(reading.gaps, bus.accepted_missing)
    return core.read_through(WORKLOADS, reading, gaps)


def digests_of(bus: Bus, missing: tuple[Gap, ...]) -> dict[int, str]:
    """What an operator reads of the log as it is, before he accepts what it has lost."""
    reading = Reading(1, {}, missing)
    for message in bus.log.messages:
        _show(reading, message)
    reading.ends(bus.log.end)
    return reading.digests()


def _show(reading: Reading, message: Message) -> None:
    reading.saw(message.sequence, *_raw(message))


def _raw(message: Message) -> tuple[str, bytes]:
    is_decision = isinstance(message.body, Decision)
    subject = (
        decision_subject(message.body.cell) if is_decision else f"berth.workload.{message.subject}"
    )
    return subject, encode(message.body)

"""The bus as services know it: one log of workloads with guards and atomic commits, last values of
the fleet, operators' settings, a lease, snapshots, telemetry that may be lost.

Guards hold as on the server: one number per aggregate, one for the chain of decisions. What can
happen to a write is drawn: its answer is late or lost, it is stored late or never, it is repeated.
With the fault ``void`` a write that the guard refused is stored all the same, as overlapping guard
strings on replicas would do; who wrote it is told that it was refused, or nothing.

The log may lose something: its server begins anew then, and so does every connection. Recover puts
another log in its place.
"""

import random
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from berthmaster.control.resolver.core.known.stored import Snapshot
from berthmaster.lib.event_log.damage import StreamState
from berthmaster.lib.lifecycle.instructions import Outcome, Refused, Stored, Unknown
from berthmaster.lib.lifecycle.workload import Key, key
from berthmaster.lib.messages.api import RecordedEvent
from berthmaster.lib.messages.control import ControlFact
from berthmaster.lib.messages.families import encode
from berthmaster.lib.messages.fleet import FleetFact, Stamp
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.messages.records import LogMark
from berthmaster.lib.messages.telemetry import NodeTelemetry
from berthmaster.lib.messages.workload import Submitted, WorkloadEvent
from berthmaster.lib.nats.message_subjects import event_subject
from berthmaster.lib.nats.subjects import decision as decision_subject
from tests.simulation.clockwork import Clockwork, Process, Work
from tests.simulation.faults import Faults
from tests.simulation.pace import Pace

SETTLE_LIMIT_S: Final = 10.0  # after it nobody knows, as in lib/event_log/workload_log.py
_SNAPSHOTS: Final = msgspec.msgpack.Decoder(Snapshot)


class Message(NamedTuple):
    sequence: int
    stored_at_s: float
    subject: str
    body: Any


def recorded(story: Iterable[Message]) -> list[RecordedEvent]:
    """Events of a story as services read them."""
    return [
        RecordedEvent(sequence=m.sequence, stored_at_s=m.stored_at_s, event=m.body) for m in story
    ]


def raw(message: Message) -> tuple[str, bytes]:
    """The subject and the content of a message of the log, as the server has them."""
    body = message.body
    is_decision = isinstance(body, Decision)
    return decision_subject(body.cell) if is_decision else event_subject(body), encode(body)


class Stream:
    """Messages in order, and who is to be told of new ones."""

    def __init__(self, end: int = 0) -> None:
        self.messages: list[Message] = []  # in order; damage leaves gaps
        self.last: dict[str, Message] = {}  # by subject
        self.followers: list[Follower] = []
        self.end = end  # the last sequence

    def store(self, subject: str, body: object, now_s: float) -> Message:
        self.end += 1
        message = Message(self.end, now_s, subject, body)
        self.messages.append(message)
        self.last[subject] = message
        return message

    def behind(self, sequence: int) -> Message | None:
        at = bisect_right(self.messages, sequence, key=lambda message: message.sequence)
        return self.messages[at] if at < len(self.messages) else None

    def lose(self, first: int, last: int) -> None:
        """These are gone. If they were the newest, their numbers will be given anew."""
        self.messages = [m for m in self.messages if not first <= m.sequence <= last]
        if last >= self.end:
            self.end = self.messages[-1].sequence if self.messages else 0

    def tell(self) -> None:
        """Followers look; those of dead processes are forgotten."""
        self.followers = [f for f in self.followers if f.life == f.process.life]
        for follower in self.followers:
            follower.look()


class Follower:
    """Hands a stream to one life of a process: in order, without gaps, some time later."""

    def __init__(
        self,
        bus: "Bus",
        stream: Stream,
        process: Process,
        take: Callable[[Message], None],
        caught_up: Work,
        *,
        start: int = 1,
        last_values: bool = False,
    ) -> None:
        self.process = process
        self.life = process.life
        self._bus = bus
        self._stream = stream
        self._take = take
        self._caught_up: Work | None = caught_up
        listed = sorted(stream.last.values()) if last_values else []
        self._listed: deque[Message] = deque(listed)
        self._next = stream.end if last_values else start - 1
        self._target = stream.end
        self._looking = False
        stream.followers.append(self)
        self.look()

    def close(self) -> None:
        """Nothing is handed out any more."""
        self.life = -1

    def look(self) -> None:
        if self._looking:
            return
        if not self._listed and self._next >= self._stream.end and self._caught_up is None:
            return
        self._looking = True
        self._bus.clock.after(self._bus.delay_s(), self._arrive)

    def _arrive(self) -> None:
        if self.process.life == self.life:
            self.process.when_healed(self._deliver)

    def _deliver(self) -> None:
        self._looking = False
        process, take = self.process, self._take
        for _ in range(self._bus.chance.choice((1, 1, 3, 10, 100))):
            if self._listed:
                message = self._listed.popleft()
            elif (found := self._stream.behind(self._next)) is not None:
                message = found
                self._next = found.sequence
            else:
                self._next = max(self._next, self._stream.end)
                break
            process.arrive(self.life, lambda m=message: self.life > 0 and take(m))  # type: ignore[misc]
        if not self._listed and self._next >= self._target and self._caught_up is not None:
            process.arrive(self.life, self._caught_up)
            self._caught_up = None
        self.look()


class Bus:
    """One server, or three that act as one."""

    def __init__(self, clock: Clockwork, seed: int, faults: Faults, pace: Pace) -> None:
        self.clock = clock
        self.faults = faults
        self.pace = pace
        self.chance = random.Random(f"{seed}/bus")
        self.log = Stream()
        self.fleet = Stream()
        self.control = Stream()
        self.stories: dict[Key, list[Message]] = {}
        self.chain = 0  # sequence of the last decision
        self.listeners: list[tuple[Process, Callable[[NodeTelemetry], None]]] = []
        self.snapshot: tuple[str, bytes] | None = None  # of which log, and what
        self.incarnation = "log-1"  # of the log; "" = there is none
        self.connections = 1  # of everybody: how often the server began anew, and one
        self.lost_bytes = 0  # of the log, as its server says
        self.gone: list[str] = []  # incarnations before this one
        self.replaces: frozenset[str] = frozenset()  # those that recover has replaced by this one
        self.marks: dict[str, LogMark] = {}  # by service, kept beside the log
        self.archive: dict[Key, list[Message]] = {}
        self.before: list[Message] = []  # of logs that were replaced
        self.lease: tuple[str, int, float] = ("", 0, 0.0)  # holder, life, until
        self.on_stored: Callable[[Message], None] = lambda _: None
        self.on_damage_told: Callable[[str], None] = lambda _: None
        self.on_acknowledged: Callable[[Process, Message], None] = lambda _, __: None
        self._facts_arrive_s: dict[str, float] = {}  # one connection keeps its order

    def delay_s(self) -> float:
        if self.faults.happens("delay", 0.1):
            return self.faults.dice("delay").choice((0.1, 1.0, 5.0)) * self.chance.random()
        return 0.001 + 0.004 * self.chance.random()

    # Damage

    def seen(self) -> StreamState | None:
        """What the server says of the log."""
        if not self.incarnation:
            return None
        return StreamState(
            self.incarnation, self.log.end, self.replaces, lost_bytes=self.lost_bytes
        )

    def at(self, sequence: int) -> Message | None:
        """The message of the log under this number."""
        found = self.log.behind(sequence - 1)
        return found if found is not None and found.sequence == sequence else None

    def damage(self, first: int, last: int, *, named: bool, incarnation: str) -> None:
        """The log loses these, and its server begins anew. ``named``: it says so itself;
        ``incarnation``: as which log, "" = there is none any more."""
        self.log.lose(first, last)
        self.lost_bytes = int(named)
        if incarnation != self.incarnation:
            self.gone.append(self.incarnation)
            self.incarnation, self.replaces = incarnation, frozenset()
        self.connections += 1
        self._index()

    def replace(self, first: int, bodies: Iterable[Decision | WorkloadEvent]) -> None:
        """Put another log in the place of this one, which begins with these."""
        self.before += self.log.messages
        self.log = Stream(first - 1)
        self.gone.append(self.incarnation)
        self.replaces = frozenset(self.gone)
        self.incarnation = f"log-{len(self.gone) + 1}"
        self.lost_bytes = 0
        for body in bodies:
            subject = "decision" if isinstance(body, Decision) else key(body.tenant, body.id)
            self.log.store(subject, body, self.clock.now_s)
        self._index()

    def _index(self) -> None:
        self.stories, self.chain = {}, 0
        for message in self.log.messages:
            if isinstance(message.body, Decision):
                self.chain = message.sequence
            else:
                name = key(message.body.tenant, message.body.id)
                self.stories.setdefault(name, []).append(message)

    # The log

    def append(
        self,
        process: Process,
        event: WorkloadEvent,
        done: Callable[[Outcome], None],
        *,
        settle_s: float = SETTLE_LIMIT_S,
        check: Callable[[], Outcome | None] = lambda: None,
    ) -> None:
        """One guarded event. ``check``: what becomes of it instead, None = it is stored."""

        def store() -> Outcome:
            return check() or self._store(event)

        self._write(process, store, done, settle_s)
        if self.faults.happens("repeat", 0.05):
            self.clock.after(self.delay_s(), store)

    def commit(
        self,
        process: Process,
        decision: Decision,
        events: Sequence[WorkloadEvent],
        done: Callable[[Outcome], None],
    ) -> None:
        def store() -> Outcome:
            return self._store_batch(decision, events)

        self._write(process, store, done)

    def forge(self, event: WorkloadEvent) -> Message:
        """Stored without a guard, by somebody who may."""
        message = self._keep(event)
        self._tell()
        return message

    def _last(self, event: WorkloadEvent) -> int:
        story = self.stories.get(key(event.tenant, event.id))
        return story[-1].sequence if story else 0

    def _store(self, event: WorkloadEvent) -> Outcome:
        if not self.incarnation:
            return Unknown("there is no such stream")
        last = self._last(event)
        if event.after != last:
            # A guard of 0 is left out: after an ending, readers take a second ``submitted`` for a
            # new life under an id whose tombstone is gone. One spelling of guards forbids it. Of
            # what the log does not know no two writers can be under way.
            if isinstance(event, Submitted) or not last or not self.faults.happens("void", 0.5):
                return Refused(last)
            self._keep(event)
            self._tell()
            return self.faults.dice("void").choice((Refused(last), Unknown("no answer")))
        message = self._keep(event)
        self._tell()
        return Stored(message.sequence)

    def _store_batch(self, decision: Decision, events: Sequence[WorkloadEvent]) -> Outcome:
        if not self.incarnation:
            return Unknown("there is no such stream")
        twice = len({key(e.tenant, e.id) for e in events}) < len(events)  # no server takes that
        if twice or decision.after != self.chain or any(self._last(e) != e.after for e in events):
            return Refused(self.chance.choice((None, self.chain)))
        message = self.log.store("decision", decision, self.clock.now_s)
        self.chain = message.sequence
        self.on_stored(message)
        for event in events:
            message = self._keep(event)
        self._tell()
        return Stored(message.sequence)

    def _keep(self, event: WorkloadEvent) -> Message:
        name = key(event.tenant, event.id)
        message = self.log.store(name, event, self.clock.now_s)
        self.stories.setdefault(name, []).append(message)
        self.on_stored(message)
        return message

    def _tell(self) -> None:
        self.log.tell()

    def _write(
        self,
        process: Process,
        store: Callable[[], Outcome],
        done: Callable[[Outcome], None],
        settle_s: float = SETTLE_LIMIT_S,
    ) -> None:
        """To the server and back; what may become of it on the way is drawn here."""
        life = process.life
        open_ = [True]

        def answer(outcome: Outcome, through: int) -> None:
            if open_[0] and not process.cut:
                open_[0] = False
                if through != self.connections:
                    outcome = Unknown("the connection was lost")
                elif isinstance(outcome, Stored) and (there := self.at(outcome.sequence)):
                    self.on_acknowledged(process, there)
                process.arrive(life, lambda: done(outcome))

        def give_up() -> None:
            if open_[0]:
                open_[0] = False
                process.arrive(life, lambda: done(Unknown("no answer in time")))

        def arrive() -> None:
            if process.cut and self.chance.random() < 0.7:
                return  # it did not get out
            outcome, through = store(), self.connections
            if not isinstance(outcome, Unknown) and not self.faults.happens("unknown", 0.1):
                self.clock.after(self.delay_s(), lambda: answer(outcome, through))
            elif self.chance.random() < 0.5:  # settled by reading back, some time later
                self.clock.after(settle_s * self.chance.random(), lambda: answer(outcome, through))

        self.clock.after(settle_s, give_up)
        wait_s = self.delay_s()
        if self.faults.happens("unknown", 0.05):
            fate = self.faults.dice("unknown").choice(("never", "late", "late"))
            if fate == "never":
                return
            wait_s = 4 * SETTLE_LIMIT_S * self.faults.dice("unknown").random()
        self.clock.after(wait_s, arrive)

    def read(
        self, process: Process, name: Key, done: Callable[[list[Message] | None], None]
    ) -> None:
        """One workload's story from the leader; None: it could not be read."""
        life = process.life

        def arrive() -> None:
            story = list(self.stories.get(name, ()))
            lost = process.cut or self.faults.happens("unknown", 0.1)
            wait_s = 2.0 if lost else self.delay_s()
            self.clock.after(
                wait_s, lambda: process.arrive(life, lambda: done(None if lost else story))
            )

        self.clock.after(self.delay_s(), arrive)

    # Last values

    def put_fact(
        self, process: Process, subject: str, fact: FleetFact, done: Callable[[bool], None]
    ) -> None:
        """Store a fact. A process's facts arrive in the order in which they were sent."""
        life = process.life

        def arrive() -> None:
            lost = process.cut or self.faults.happens("unknown", 0.05)
            if not (lost and self.chance.random() < 0.5):
                self.fleet.store(subject, fact, self.clock.now_s)
                self.fleet.tell()
            wait_s = 2.0 if lost else self.delay_s()
            self.clock.after(wait_s, lambda: process.arrive(life, lambda: done(not lost)))

        at_s = max(self._facts_arrive_s.get(process.name, 0.0), self.clock.now_s + self.delay_s())
        self._facts_arrive_s[process.name] = at_s
        self.clock.at(at_s, arrive)

    def epoch(self, prefix: str, now_s: float) -> int:
        stamps: list[Stamp] = [
            m.body.stamp for s, m in self.fleet.last.items() if s.startswith(prefix)
        ]
        return max([s.epoch for s in stamps] + [int(now_s * 1000)]) + 1

    def put_control(
        self,
        process: Process,
        subject: str,
        fact: ControlFact,
        done: Callable[[Outcome], None],
    ) -> None:
        """Store an operator's setting."""

        def store() -> Outcome:
            message = self.control.store(subject, fact, self.clock.now_s)
            self.on_stored(message)
            self.control.tell()
            return Stored(message.sequence)

        self._write(process, store, done)

    # The rest

    def publish(self, process: Process, telemetry: NodeTelemetry) -> None:
        """Core NATS: whoever listens now may hear it."""
        for listener, take in self.listeners:
            if process.cut or listener.cut or self.faults.happens("telemetry", 0.4):
                continue
            life = listener.life
            self.clock.after(
                self.delay_s(),
                lambda p=listener, n=life, t=take: p.arrive(n, lambda: t(telemetry)),  # type: ignore[misc]
            )

    def try_lease(self, process: Process) -> bool:
        """Take or renew the lease; whether it is ours."""
        if process.cut:
            return False
        holder, life, until_s = self.lease
        mine = (holder, life) == (process.name, process.life)
        if mine or self.clock.now_s >= until_s:
            self.lease = (process.name, process.life, self.clock.now_s + self.pace.lease_ttl_s)
            return True
        return False

    def holds_lease(self, process: Process) -> bool:
        holder, life, until_s = self.lease
        return (holder, life) == (process.name, process.life) and self.clock.now_s < until_s

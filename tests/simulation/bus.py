"""The bus as services know it: one log of workloads with guards and atomic commits, last values of
the fleet, operators' settings, a lease, snapshots, telemetry that may be lost, durable hints.

Guards hold as on the server: one number per aggregate, one for the chain of decisions. What can
happen to a write is drawn: its answer is late or lost, it is stored late or never, it is repeated.
With the fault ``void`` a write that the guard refused is stored all the same, as overlapping guard
strings on replicas would do; who wrote it is told that it was refused, or nothing.
"""

import random
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from berthmaster.bus.streams import WORKLOADS
from berthmaster.bus.subjects import log_accepted
from berthmaster.gateway.effects import is_same
from berthmaster.lifecycle.flaws import Gap
from berthmaster.lifecycle.instructions import Outcome, Refused, Stored, Unknown
from berthmaster.lifecycle.workload import Key, Workload, key
from berthmaster.logcheck.core import Remembered, heard, within
from berthmaster.messages.api import RecordedEvent
from berthmaster.messages.control import ControlFact, LogAccepted
from berthmaster.messages.families import event_kind
from berthmaster.messages.fleet import FleetFact, Stamp
from berthmaster.messages.placement import Decision
from berthmaster.messages.telemetry import NodeTelemetry
from berthmaster.messages.workload import Submitted, WorkloadEvent
from berthmaster.resolver.known.stored import Snapshot
from tests.simulation.clockwork import Clockwork, Process, Work
from tests.simulation.faults import Faults
from tests.simulation.pace import Pace

SETTLE_LIMIT_S: Final = 10.0  # after it nobody knows, as in bus/log.py
ACK_WAIT_S: Final = 10.0
_SNAPSHOTS: Final = msgspec.msgpack.Decoder(Snapshot)
HINTS: Final = (
    "placed",
    "cancel_requested",
    "eviction_requested",
    "resize_requested",
    "committed",
    "evicted",
    "failed",
)


class Message(NamedTuple):
    sequence: int
    stored_at_s: float
    subject: str
    body: Any


def _number(message: Message) -> int:
    return message.sequence


def recorded(story: Iterable[Message]) -> list[RecordedEvent]:
    """Events of a story as services read them."""
    return [
        RecordedEvent(sequence=m.sequence, stored_at_s=m.stored_at_s, event=m.body) for m in story
    ]


class Stream:
    """Messages in order, and who is to be told of new ones."""

    def __init__(self) -> None:
        self.messages: list[Message] = []  # in order; damage leaves gaps
        self.last: dict[str, Message] = {}  # by subject
        self.followers: list[Follower] = []
        self.end = 0  # the last sequence

    def store(self, subject: str, body: object, now_s: float) -> Message:
        self.end += 1
        message = Message(self.end, now_s, subject, body)
        self.messages.append(message)
        self.last[subject] = message
        return message

    def behind(self, sequence: int) -> Message | None:
        at = (
            sequence
            if self.end == len(self.messages)
            else bisect_right(self.messages, sequence, key=_number)
        )
        return self.messages[at] if at < len(self.messages) else None

    def lose(self, first: int, last: int) -> list[Message]:
        """Damage: these are gone. If they were the newest, their numbers will be given anew."""
        lost = [m for m in self.messages if first <= m.sequence <= last]
        self.messages = [m for m in self.messages if not first <= m.sequence <= last]
        if last >= self.end:
            self.end = self.messages[-1].sequence if self.messages else 0
        return lost

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

    @property
    def is_beyond(self) -> bool:
        """Whether it has read what the stream has no more."""
        return self._next > self._stream.end

    def close(self) -> None:
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


class Consumer:
    """The durable consumer of one cluster's executor: each hint until it is acknowledged."""

    def __init__(self, bus: "Bus", process: Process, cluster: str) -> None:
        self._bus = bus
        self._process = process
        self._cluster = cluster
        self.take: Callable[[Message], None] = lambda _: None
        self.pending: dict[int, Message] = {}
        self._waits_s: dict[int, float] = {}  # by number, until it is handed out again

    def offer(self, message: Message) -> None:
        event = message.body
        if getattr(event, "cluster", None) == self._cluster and _kind(event) in HINTS:
            self.pending[message.sequence] = message
            self._send(message)
            if self._bus.faults.happens("repeat", 0.2):
                self._send(message)

    def resume(self) -> None:
        self._waits_s = {}
        for message in self.pending.values():
            self._send(message)

    def ack(self, sequence: int) -> None:
        if self._process.cut or self._bus.faults.happens("repeat", 0.1):
            return
        making = self._bus.makings
        self._bus.clock.after(self._bus.delay_s(), lambda: self._acked(making, sequence))

    def _acked(self, making: int, sequence: int) -> None:
        if making == self._bus.makings:  # else the number may be another message's
            self.pending.pop(sequence, None)

    def forget(self, lost: Iterable[Message]) -> None:
        for message in lost:
            if self.pending.get(message.sequence) is message:
                del self.pending[message.sequence]

    def _send(self, message: Message) -> None:
        self._bus.clock.after(self._bus.delay_s(), lambda: self._arrive(message))

    def _arrive(self, message: Message) -> None:
        process = self._process
        if self.pending.get(message.sequence) is not message or not process.up:
            return  # whoever starts asks for all that is pending
        life = process.life
        process.when_healed(lambda: process.arrive(life, lambda: self.take(message)))
        wait_s = self._waits_s.get(message.sequence, ACK_WAIT_S)
        # Not as often to who stands still for days, or is not heard by a door that is in doubt.
        longest_s = ACK_WAIT_S * self._bus.pace.longer
        self._waits_s[message.sequence] = min(2.0 * wait_s, longest_s)
        self._bus.clock.after(wait_s, lambda: self._again(life, message))

    def _again(self, life: int, message: Message) -> None:
        if life == self._process.life:
            self._process.when_healed(lambda: self._send(message))


def _kind(event: object) -> str:
    return event_kind(event) if isinstance(event, WorkloadEvent) else ""


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
        self.watched = faults.has("damage")  # whether its length is looked at at all
        self.on_damage_told: Callable[[str], None] = lambda _: None
        self.on_accepted: Work = lambda: None
        self.makings = 1  # how often the log was damaged, and one
        self.created = "log-1"  # which making of the stream; a copy that is put back is another
        self.marks: dict[str, Remembered] = {}  # by service, kept where the log is not
        self.accepted: tuple[LogAccepted, float] | None = None  # the newest, and when it was stored
        self.consumers: list[Consumer] = []
        self.listeners: list[tuple[Process, Callable[[NodeTelemetry], None]]] = []
        self.snapshot: tuple[str, bytes] | None = None  # of which log, and what
        self.lease: tuple[str, int, float] = ("", 0, 0.0)  # holder, life, until
        self.on_stored: Callable[[Message], None] = lambda _: None
        self.on_acknowledged: Callable[[Process, Message], None] = lambda _, __: None
        self._facts_arrive_s: dict[str, float] = {}  # one connection keeps its order

    def delay_s(self) -> float:
        if self.faults.happens("delay", 0.1):
            return self.faults.dice("delay").choice((0.1, 1.0, 5.0)) * self.chance.random()
        return 0.001 + 0.004 * self.chance.random()

    # Damage

    def damage(self, first: int, last: int, *, remade: bool) -> list[Message]:
        """The log loses these, and its server begins anew. ``remade``: as another stream."""
        lost = self.log.lose(first, last)
        self.makings += 1
        if remade:
            self.created = f"log-{self.makings}"
        self.stories = {}
        self.chain = 0
        for message in self.log.messages:
            if isinstance(message.body, Decision):
                self.chain = message.sequence
            else:
                self.stories.setdefault(message.subject, []).append(message)  # type: ignore[arg-type]
        for consumer in self.consumers:
            consumer.forget(lost)
        return lost

    def accept(self, fact: LogAccepted) -> None:
        """A person goes on with what the log holds."""
        self.accepted = fact, self.clock.now_s
        self.on_accepted()

    @property
    def accepted_at_s(self) -> float:
        """When a person has accepted damage last; 0 = never."""
        return self.accepted[1] if self.accepted is not None else 0.0

    @property
    def accepted_sequence(self) -> int:
        """Under which number of the operators' settings that stands; 0 = never."""
        last = self.control.last.get(log_accepted(WORKLOADS))
        return last.sequence if last is not None else 0

    @property
    def is_accepted(self) -> bool:
        """Whether a person has accepted something of this making of the log."""
        return self.accepted is not None and self.accepted[0].created == self.created

    @property
    def accepted_to(self) -> int:
        """Where the log ended when a person said to go on with it; 0 = never."""
        return self.accepted[0].sequence if self.accepted is not None and self.is_accepted else 0

    @property
    def accepted_missing(self) -> tuple[Gap, ...]:
        return heard(self.accepted[0].missing) if self.accepted is not None else ()

    def is_lost(self, sequence: int) -> bool:
        """Whether a person has accepted that this one is."""
        return within(sequence, self.accepted_missing)

    def snapshot_open(self) -> list[Workload]:
        """What was open when a resolver kept its knowledge last."""
        return _SNAPSHOTS.decode(self.snapshot[1]).open if self.snapshot is not None else []

    @property
    def snapshot_of(self) -> str:
        """Which log a snapshot is of: what a person accepts makes it another one."""
        return f"{self.created} {self.accepted_at_s}"

    # The log

    def append(
        self,
        process: Process,
        event: WorkloadEvent,
        done: Callable[[Outcome], None],
        *,
        settle_s: float = SETTLE_LIMIT_S,
        check: Callable[[], bool] = lambda: True,
    ) -> None:
        """One guarded event. ``check``: whether whoever stores it lets it through."""

        def store() -> Outcome:
            return self._store(event) if check() else Refused(None)

        self._write(process, *self._acknowledging(process, store, done), settle_s)
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

        self._write(process, *self._acknowledging(process, store, done))

    def _acknowledging(
        self, process: Process, store: Callable[[], Outcome], done: Callable[[Outcome], None]
    ) -> tuple[Callable[[], Outcome], Callable[[Outcome], None]]:
        """Both, and its writer remembers the last that it was told to be stored. Damage takes the
        connection with it: what was not told before is not told any more."""
        stored: list[tuple[int, Message]] = []

        def storing() -> Outcome:
            outcome = store()
            if isinstance(outcome, Stored):
                stored.append((self.makings, self.log.messages[-1]))
            return outcome

        def told(outcome: Outcome) -> None:
            if isinstance(outcome, Stored) and stored:
                making, message = stored[0]
                if making == self.makings:
                    self.on_acknowledged(process, message)
                else:
                    outcome = Unknown("the connection was lost")
            done(outcome)

        return storing, told

    def forge(self, event: WorkloadEvent) -> Message:
        """Stored without a guard, by somebody who may."""
        message = self._keep(event)
        self._tell()
        return message

    def _last(self, event: WorkloadEvent) -> int:
        story = self.stories.get(key(event.tenant, event.id))
        return story[-1].sequence if story else 0

    def _store(self, event: WorkloadEvent) -> Outcome:
        last = self._last(event)
        if event.after != last:
            # A guard of 0 is left out: after an ending, readers take a second ``submitted`` (or
            # ``recovered``) for a new life under an id whose tombstone is gone. One spelling of
            # guards forbids it.
            begins = isinstance(event, Submitted) or event.after == 0
            if begins or not self.faults.happens("void", 0.5):
                return Refused(last)
            self._keep(event)
            self._tell()
            return self.faults.dice("void").choice((Refused(last), Unknown("no answer")))
        message = self._keep(event)
        self._tell()
        return Stored(message.sequence)

    def _store_batch(self, decision: Decision, events: Sequence[WorkloadEvent]) -> Outcome:
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
        for consumer in self.consumers:
            consumer.offer(message)
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

        def answer(outcome: Outcome) -> None:
            if open_[0] and not process.cut:
                open_[0] = False
                process.arrive(life, lambda: done(outcome))

        def give_up() -> None:
            if open_[0]:
                open_[0] = False
                process.arrive(life, lambda: done(Unknown("no answer in time")))

        def arrive() -> None:
            if process.cut and self.chance.random() < 0.7:
                return  # it did not get out
            outcome = store()
            if not isinstance(outcome, Unknown) and not self.faults.happens("unknown", 0.1):
                self.clock.after(self.delay_s(), lambda: answer(outcome))
            elif self.chance.random() < 0.5:  # settled by reading back, some time later
                self.clock.after(settle_s * self.chance.random(), lambda: answer(outcome))

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
        after: int | None = None,
    ) -> None:
        """Store an operator's setting. ``after``: as gateway/effects.py does with it."""

        def store() -> Outcome:
            before = self.control.last.get(subject)
            if after is not None and after != (before.sequence if before is not None else 0):
                assert before is not None
                is_there = is_same(before.body, fact)
                return Stored(before.sequence) if is_there else Refused(before.sequence)
            message = self.control.store(subject, fact, self.clock.now_s)
            if isinstance(fact, LogAccepted):
                self.accept(fact)
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

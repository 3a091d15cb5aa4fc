"""The bus as services know it: one log of workloads with guards and atomic commits, last values of
the fleet, operators' settings, a lease, snapshots, telemetry that may be lost, durable hints.

Guards hold as on the server: one number per aggregate, one for the chain of decisions. What can
happen to a write is drawn: its answer is late or lost, it is stored late or never, it is repeated.
With the fault ``void`` a write that the guard refused is stored all the same, as overlapping guard
strings on replicas would do; who wrote it is told that it was refused, or nothing.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from berthmaster.lifecycle.instructions import Outcome, Refused, Stored, Unknown
from berthmaster.lifecycle.workload import Key, key
from berthmaster.messages.api import RecordedEvent
from berthmaster.messages.control import ControlFact
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


def recorded(story: Iterable[Message]) -> list[RecordedEvent]:
    """Events of a story as services read them."""
    return [
        RecordedEvent(sequence=m.sequence, stored_at_s=m.stored_at_s, event=m.body) for m in story
    ]


class Stream:
    """Messages in order, and who is to be told of new ones."""

    def __init__(self) -> None:
        self.messages: list[Message] = []  # in order, without gaps
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
        return self.messages[sequence] if sequence < self.end else None

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
            process.arrive(self.life, lambda m=message: take(m))  # type: ignore[misc]
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
        self._bus.clock.after(self._bus.delay_s(), lambda: self.pending.pop(sequence, None))

    def _send(self, message: Message) -> None:
        self._bus.clock.after(self._bus.delay_s(), lambda: self._arrive(message))

    def _arrive(self, message: Message) -> None:
        process = self._process
        if self.pending.get(message.sequence) is not message or not process.up:
            return  # whoever starts asks for all that is pending
        life = process.life
        process.when_healed(lambda: process.arrive(life, lambda: self.take(message)))
        wait_s = self._waits_s.get(message.sequence, ACK_WAIT_S)
        # Not as often to who stands still for days.
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
        self.consumers: list[Consumer] = []
        self.listeners: list[tuple[Process, Callable[[NodeTelemetry], None]]] = []
        self.snapshot: bytes | None = None
        self.lease: tuple[str, int, float] = ("", 0, 0.0)  # holder, life, until
        self.on_stored: Callable[[Message], None] = lambda _: None
        self._facts_arrive_s: dict[str, float] = {}  # one connection keeps its order

    def delay_s(self) -> float:
        if self.faults.happens("delay", 0.1):
            return self.faults.dice("delay").choice((0.1, 1.0, 5.0)) * self.chance.random()
        return 0.001 + 0.004 * self.chance.random()

    # The log

    def append(
        self,
        process: Process,
        event: WorkloadEvent,
        done: Callable[[Outcome], None],
        *,
        settle_s: float = SETTLE_LIMIT_S,
    ) -> None:
        """One guarded event."""

        def store() -> Outcome:
            return self._store(event)

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
        last = self._last(event)
        if event.after != last:
            # A guard of 0 is left out: after an ending, readers take a second ``submitted`` for a
            # new life under an id whose tombstone is gone. One spelling of guards forbids it.
            if isinstance(event, Submitted) or not self.faults.happens("void", 0.5):
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

"""Drives the gateway's core as its shell does, and the people who ask it."""

import random
from collections.abc import Callable
from typing import Final, assert_never

import msgspec

from berthmaster.control.gateway.core.events import (
    Abandoned,
    Breathed,
    CaughtUp,
    CordonSet,
    Event,
    LogDamaged,
    Logged,
    LogReplaced,
    QueueSet,
    QueuesKnown,
    QueuesListed,
    Requested,
    RuntimeSet,
    StoryRead,
    Tick,
)
from berthmaster.control.gateway.core.gateway import Gateway
from berthmaster.control.gateway.core.instructions import Breathe, Instruction, ReadStory
from berthmaster.lib.lifecycle.fold import fold_history
from berthmaster.lib.lifecycle.instructions import (
    Answered,
    Append,
    Outcome,
    PutControl,
    Reload,
    Reloaded,
    Reply,
    Unknown,
)
from berthmaster.lib.lifecycle.workload import key
from berthmaster.lib.messages.api import ApiReply, Refusal
from berthmaster.lib.messages.control import Cordon, QueueSetting
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.messages.runtimes import RuntimeSetting
from berthmaster.lib.nats.message_subjects import control_subject
from tests.simulation.bus import Bus, Follower, Message, recorded
from tests.simulation.clockwork import Process
from tests.simulation.judge import Judge
from tests.simulation.logguard import LogGuard

REQUEST_LIMIT_S: Final = 8.0
SETTLE_LIMIT_S: Final = 4.0  # shorter than others have: a person waits
UNKNOWN_PAUSE_S: Final = 0.25
CLIENT_LIMIT_S: Final = 5.0
MOST_PATIENCE_S: Final = 60.0  # between two times that a person asks the same
TENANT: Final = "acme"


class Front(Process):
    core_type: type[Gateway] = Gateway

    def __init__(self, bus: Bus, judge: Judge) -> None:
        super().__init__(bus.clock, "gateway")
        self.bus = bus
        self.judge = judge
        self.core = Gateway(by="gateway")

    @property
    def behind(self) -> bool:
        """Whether there is something in the log that it has not folded."""
        return self.read_to < self.bus.log.end

    def boot(self) -> None:
        """Read the log and the queues; requests are taken from the first moment."""
        self.core = self.core_type(by=f"gateway/{self.life}")
        self._replies: dict[str, Callable[[ApiReply], None]] = {}
        self._number = 0
        self.read_to = 0
        self.guard = LogGuard(
            self.bus,
            self,
            "gateway",
            on_change=lambda why: self._tell(LogDamaged(why=why)),
            replaced=self._replaced,
        )
        self.log: Follower | None = None
        self.guard.begin(self._follow)
        self._tell(QueuesListed())
        Follower(
            self.bus,
            self.bus.control,
            self,
            self._on_control,
            lambda: self._tell(QueuesKnown()),
            last_values=True,
        )
        self.later(self.bus.pace.gateway_tick_s, self._tick)

    def _follow(self) -> None:
        self.log = Follower(
            self.bus, self.bus.log, self, self._on_log, lambda: self._tell(CaughtUp())
        )

    def _replaced(self) -> None:
        if self.log is not None:
            self.log.close()
        self.read_to = 0
        self._tell(LogReplaced())
        self.guard.begin(self._follow)

    def request(
        self, tenant: str | None, verb: str, data: bytes, answer: Callable[[ApiReply], None]
    ) -> None:
        self._number += 1
        ref = f"{self.core_life}/{self._number}"
        self._replies[ref] = answer
        self.later(REQUEST_LIMIT_S, lambda: self._tell(Abandoned(ref=ref)))
        self._tell(Requested(ref=ref, tenant=tenant, verb=verb, data=data))

    @property
    def core_life(self) -> str:
        return f"gateway-{self.life}"

    def _on_log(self, message: Message) -> None:
        body = message.body
        self.guard.saw(message)
        self.read_to = message.sequence
        if not isinstance(body, Decision):
            sequence, stored_at_s = message.sequence, message.stored_at_s
            self._tell(Logged(event=body, sequence=sequence, stored_at_s=stored_at_s))

    def _on_control(self, message: Message) -> None:
        if isinstance(message.body, Cordon):
            self._tell(CordonSet(cordon=message.body))
        if isinstance(message.body, RuntimeSetting):
            self._tell(RuntimeSet(setting=message.body, sequence=message.sequence))
        if isinstance(message.body, QueueSetting):
            self._tell(QueueSet(setting=message.body, sequence=message.sequence))

    def _tick(self) -> None:
        self.later(self.bus.pace.gateway_tick_s, self._tick)
        self._tell(Tick())

    def _tell(self, event: Event) -> None:
        for step in self.core.handle(event, self.now()):
            self.feed(lambda s=step: self._perform(s))  # type: ignore[misc]

    def _perform(self, step: Instruction) -> None:
        self.judge.note(self.name, step)
        match step:
            case Reply():
                answer = self._replies.pop(step.ref, None)
                if answer is not None and not self.cut:
                    answer(step.reply)
            case Append():
                self.bus.append(
                    self, step.event, lambda o: self._answered(step.ref, o), settle_s=SETTLE_LIMIT_S
                )
            case Breathe():
                self.later(0.0, lambda: self._tell(Breathed(ref=step.ref)))
            case PutControl():
                subject = control_subject(step.fact)
                self.bus.put_control(
                    self, subject, step.fact, lambda o: self._answered(step.ref, o)
                )
            case Reload():
                self.bus.read(
                    self, key(step.tenant, step.id), lambda story: self._reloaded(step, story)
                )
            case ReadStory():
                self.bus.read(
                    self, key(step.tenant, step.id), lambda story: self._read(step, story)
                )
            case _:
                assert_never(step)

    def _answered(self, ref: str, outcome: Outcome) -> None:
        pause_s = UNKNOWN_PAUSE_S if isinstance(outcome, Unknown) else 0.0
        self.later(pause_s, lambda: self._tell(Answered(ref=ref, outcome=outcome)))

    def _reloaded(self, step: Reload, story: list[Message] | None) -> None:
        work, _ = fold_history(step.tenant, step.id, recorded(story or ()))
        failed = "no answer" if story is None else ""
        self._tell(Reloaded(ref=step.ref, workload=work if story else None, failed=failed))

    def _read(self, step: ReadStory, story: list[Message] | None) -> None:
        failed = "no answer" if story is None else ""
        self._tell(StoryRead(ref=step.ref, events=tuple(recorded(story or ())), failed=failed))


class Person:
    """Asks until there is an answer, with the same words each time."""

    def __init__(self, bus: Bus, front: Front, judge: Judge, seed: int) -> None:
        self.bus = bus
        self.front = front
        self.judge = judge
        self.chance = random.Random(f"{seed}/person")
        self.unanswered: set[int] = set()
        self._number = 0

    def ask(
        self,
        verb: str,
        body: dict[str, object],
        *,
        operator: bool = False,
        then: Callable[[ApiReply], None] = lambda _: None,
    ) -> None:
        """Send a request, and again until it is answered for good."""
        self._number += 1
        number = self._number
        self.unanswered.add(number)
        data = msgspec.json.encode(body)
        tenant = None if operator else TENANT
        self._send(number, tenant, verb, data, then)

    def _send(
        self,
        number: int,
        tenant: str | None,
        verb: str,
        data: bytes,
        then: Callable[[ApiReply], None],
        patience_s: float = CLIENT_LIMIT_S,
    ) -> None:
        clock, bus, front = self.bus.clock, self.bus, self.front

        def heard(reply: ApiReply) -> None:
            if number not in self.unanswered:
                return
            self.judge.note("person", (verb, data, reply))
            if isinstance(reply, Refusal) and reply.retry:
                return  # asked again when the time is over
            self.unanswered.discard(number)
            then(reply)

        def answer(reply: ApiReply) -> None:
            if not bus.faults.happens("unknown", 0.2):
                clock.after(bus.delay_s(), lambda: heard(reply))

        def arrive() -> None:
            if front.up and not front.cut:
                life = front.life
                front.arrive(life, lambda: front.request(tenant, verb, data, answer))

        def again() -> None:
            if number in self.unanswered:
                most_s = MOST_PATIENCE_S * bus.pace.longer
                self._send(number, tenant, verb, data, then, min(most_s, 1.5 * patience_s))

        clock.after(bus.delay_s(), arrive)
        if bus.faults.happens("repeat", 0.1):
            clock.after(bus.delay_s(), arrive)
        clock.after(patience_s, again)

"""What a decider hears: the log, facts of the fleet, and what operators set, decoded once.

Every decider, the resolver and the MultiKueue reconciler, folds the same three streams. What it
cannot read goes to the dead letters: an event freezes its workload, a decision of its own cell
keeps it from deciding at all, since a newer decider is at work.

An event that names one before it that was not heard counts for nothing by itself: the story of its
workload is read again from the log, and what that says of each event is told to the core.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from berthmaster.bus import subjects
from berthmaster.bus.connection import Connection
from berthmaster.bus.dead import bury
from berthmaster.bus.errors import BusError
from berthmaster.bus.facts import Seen
from berthmaster.bus.follow import Recorded
from berthmaster.bus.log import EventLog, decode_story
from berthmaster.lifecycle.fold import Verdict, judged_story
from berthmaster.messages.api import RecordedEvent
from berthmaster.messages.control import ControlFact
from berthmaster.messages.families import CONTROL_FACTS, DECISIONS, EVENTS, UNREADABLE
from berthmaster.messages.fleet import FleetFact
from berthmaster.messages.placement import Decision
from berthmaster.messages.workload import WorkloadEvent
from berthmaster.runtime.service import Context

MAX_BURIALS: Final = 256  # dead letters on their way; more are in the log and counted
LAST_BURIALS_S: Final = 1.0
REREADS: Final = 64  # stories that are read again at once
READ_PAUSE_S: Final = 0.25
LOST: Final = "events of it are missing from the log"


class Decider(Protocol):
    """A core that decides for one cell."""

    @property
    def cell(self) -> str:
        """Whose chain of decisions is its own."""

    @property
    def stirred(self) -> bool:
        """Whether it has something to look at."""

    def on_event(
        self,
        event: WorkloadEvent,
        sequence: int,
        stored_at_s: float,
        judged: Verdict | None = None,
    ) -> Verdict | None:
        """An event of the log, in its order; ``judged``: what its whole story says of it."""

    def on_unreadable(self, tenant: str, workload_id: str, sequence: int, why: str) -> None:
        """An event that this reader does not understand."""

    def on_unreadable_decision(self, why: str) -> None:
        """A decision of its cell that this reader does not understand."""

    def on_decision(self, decision: Decision, sequence: int) -> None:
        """A decision of its cell."""

    def on_fact(self, fact: FleetFact, sequence: int, stored_at_s: float) -> None:
        """A fact of the fleet."""

    def on_control(self, fact: ControlFact, sequence: int) -> None:
        """What an operator set."""


class DeciderInput:
    """Feeds one core. ``wake`` is called when it may have something to do."""

    def __init__(self, ctx: Context[Any], core: Decider, wake: Callable[[], None]) -> None:
        self.conn: Connection | None = None  # without one, dead letters are only logged
        self._ctx = ctx
        self._core = core
        self._wake = wake
        self.is_lost: Callable[[int], bool] = lambda _: False  # see LogGuard
        self._burials: set[asyncio.Task[bool]] = set()
        self._doubted: dict[tuple[str, str], int] = {}  # workload: the last of it that was missed
        self._turns = asyncio.Semaphore(REREADS)
        self._void = ctx.metrics.counter("void_events", "Events without effect", ["verdict"])
        self._unreadable = ctx.metrics.counter("unreadable", "Messages that could not be decoded")

    def on_recorded(self, recorded: Recorded) -> None:
        """A message of the log."""
        if subjects.is_decision(recorded.subject):
            self._on_decision(recorded)
            return
        core = self._core
        try:
            event = EVENTS.decode(recorded.data)
        except UNREADABLE as error:
            where = subjects.parse_workload_event(recorded.subject)
            core.on_unreadable(where.tenant, where.id, recorded.sequence, str(error))
            self._bury(recorded, str(error), workload=f"{where.tenant}/{where.id}")
            return
        verdict = core.on_event(event, recorded.sequence, recorded.stored_at_s)
        if verdict in (Verdict.VOID, Verdict.IMPOSSIBLE, Verdict.MISSED):
            self._void.labels(verdict.value).inc()
        if verdict is Verdict.IMPOSSIBLE:
            self._bury(recorded, "no state of its workload allows this event")
        elif verdict is Verdict.MISSED:
            self._doubt(event.tenant, event.id, recorded.sequence)
        if core.stirred:
            self._wake()

    def _doubt(self, tenant: str, workload_id: str, sequence: int) -> None:
        """Read its story again, once, up to the last event of it that was missed."""
        name = (tenant, workload_id)
        is_new = name not in self._doubted
        self._doubted[name] = sequence
        if is_new and self.conn is not None:
            task = self._ctx.spawn(self._reread(name), name=f"read {tenant}/{workload_id} again")
            task.add_done_callback(lambda _: self._doubted.pop(name, None))

    async def _reread(self, name: tuple[str, str]) -> None:
        """Until it is read: nothing of it counts before."""
        assert self.conn is not None
        log, read_to = EventLog(self.conn), 0
        while read_to < self._doubted[name]:
            try:
                async with self._turns:
                    messages = await log.story(*name)
                story = decode_story(messages)
            except BusError as error:
                self._ctx.log.warning(
                    "cannot read a story", workload="/".join(name), why=str(error)
                )
                await asyncio.sleep(READ_PAUSE_S)
                continue
            except UNREADABLE as error:
                self._core.on_unreadable(*name, self._doubted[name], str(error))
                return
            self._settle(name, story)
            # Nothing there: it ended, its tombstone was removed, and nothing of it is to come.
            read_to = story[-1].sequence if story else self._doubted[name]

    def _settle(self, name: tuple[str, str], story: list[RecordedEvent]) -> None:
        """Tell the core what became of each event; what it knew is repeated and changes nothing."""
        _, verdicts = judged_story(*name, story, self.is_lost)
        for one, verdict in zip(story, verdicts, strict=True):
            if verdict is Verdict.MISSED:
                self._core.on_unreadable(*name, one.sequence, LOST)
                return
            told = self._core.on_event(one.event, one.sequence, one.stored_at_s, verdict)
            if told is Verdict.VOID:
                self._ctx.log.warning(
                    "an event builds on what never was: void",
                    workload="/".join(name),
                    kind=type(one.event).__name__,
                    sequence=one.sequence,
                )
        self._wake()

    def _on_decision(self, recorded: Recorded) -> None:
        if recorded.subject != subjects.decision(self._core.cell):
            return
        try:
            decision = DECISIONS.decode(recorded.data)
        except UNREADABLE as error:
            self._core.on_unreadable_decision(str(error))
            self._ctx.health.ready("chain", False, f"a decision cannot be read: {error}")
            self._bury(recorded, str(error))
            return
        self._core.on_decision(decision, recorded.sequence)

    def on_fact(self, seen: Seen) -> None:
        """A fact of the fleet."""
        self._core.on_fact(seen.fact, seen.sequence, seen.stored_at_s)
        if self._core.stirred:
            self._wake()

    def on_control(self, recorded: Recorded) -> None:
        """What an operator set."""
        try:
            fact = CONTROL_FACTS.decode(recorded.data)
        except UNREADABLE as error:
            self._bury(recorded, str(error))
            return
        self._core.on_control(fact, recorded.sequence)
        self._wake()

    def _bury(self, recorded: Recorded, reason: str, workload: str = "") -> None:
        self._unreadable.inc()
        if self.conn is None or len(self._burials) >= MAX_BURIALS:
            self._ctx.log.error(
                "a dead letter too many at once",
                subject=recorded.subject,
                sequence=recorded.sequence,
                reason=reason,
            )
            return
        burying = bury(
            self.conn,
            service=self._ctx.name,
            subject=recorded.subject,
            reason=reason,
            body=recorded.data,
            sequence=recorded.sequence,
            workload=workload,
        )
        task = asyncio.create_task(burying)
        self._burials.add(task)
        task.add_done_callback(self._burials.discard)

    async def close(self) -> None:
        """Let the dead letters that are on their way arrive, within a time limit."""
        if self._burials:
            await asyncio.wait(self._burials, timeout=LAST_BURIALS_S)

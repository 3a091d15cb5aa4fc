"""Input of a decider: the log, facts of the fleet, and operators' settings, decoded once.

Every decider (the resolver, the MultiKueue reconciler) folds the same three streams. Unreadable
messages become dead letters. An unreadable event freezes the workload. An unreadable decision of
the decider's own cell stops all its decisions, since a newer decider is running.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from berthmaster.lib.lifecycle.fold import LOST, Verdict
from berthmaster.lib.messages.control import ControlFact
from berthmaster.lib.messages.families import DECISIONS, UNREADABLE
from berthmaster.lib.messages.fleet import FleetFact
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.messages.workload import WorkloadEvent
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.dead_letters import store_dead_letter
from berthmaster.lib.nats.fact_stamps import Seen
from berthmaster.lib.nats.message_subjects import ControlReader, decode_event
from berthmaster.lib.nats.stream_messages import Recorded
from berthmaster.lib.runtime.service import Context

MAX_DEAD_LETTERS: Final = 256  # dead letters in flight; others are only logged and counted
CLOSE_LIMIT_S: Final = 1.0
REMEDY: Final = "a newer version reads it"


class Decider(Protocol):
    @property
    def cell(self) -> str:
        """Return the cell whose decision chain the decider writes."""

    @property
    def stirred(self) -> bool:
        """Return whether the decider has work."""

    def on_event(
        self,
        event: WorkloadEvent,
        sequence: int,
        stored_at_s: float,
        *,
        void: bool = False,
    ) -> Verdict | None:
        """Handle an event of the log, in order. ``void``: the content names another workload."""

    def on_unreadable(self, tenant: str, workload_id: str, sequence: int, why: str) -> None:
        """Handle an undecodable event."""

    def on_unreadable_decision(self, sequence: int, why: str) -> None:
        """Handle an undecodable decision of the own cell."""

    def on_decision(self, decision: Decision, sequence: int) -> None: ...

    def on_fact(self, fact: FleetFact, sequence: int, stored_at_s: float) -> None: ...

    def on_control(self, fact: ControlFact, sequence: int) -> None: ...


class DeciderInput:
    """Feeds one decider core. ``wake`` is called when the core may have work."""

    def __init__(self, ctx: Context[Any], core: Decider, wake: Callable[[], None]) -> None:
        self._settings = ControlReader()
        self.conn: Connection | None = None  # if None, dead letters are only logged
        self._ctx = ctx
        self._core = core
        self._wake = wake
        self._dead_letters: set[asyncio.Task[bool]] = set()
        self._void = ctx.metrics.counter("void_events", "Ignored void events", ["verdict"])
        self._unreadable = ctx.metrics.counter("unreadable", "Unreadable messages")

    def on_recorded(self, recorded: Recorded) -> None:
        if subjects.is_decision(recorded.subject):
            self._on_decision(recorded)
            return
        core = self._core
        try:
            event, is_astray = decode_event(recorded.subject, recorded.data)
        except subjects.SubjectError as error:
            self._store_dead_letter(recorded, str(error))
            return
        except UNREADABLE as error:
            where = subjects.parse_workload_event(recorded.subject)
            core.on_unreadable(where.tenant, where.id, recorded.sequence, str(error))
            self._store_dead_letter(recorded, str(error), workload=f"{where.tenant}/{where.id}")
            return
        verdict = core.on_event(event, recorded.sequence, recorded.stored_at_s, void=is_astray)
        if verdict in (Verdict.VOID, Verdict.IMPOSSIBLE, Verdict.AHEAD):
            self._void.labels(verdict.value).inc()
        if verdict is Verdict.IMPOSSIBLE:
            self._store_dead_letter(recorded, "no state of its workload allows this event")
        elif verdict is Verdict.AHEAD:
            self._store_dead_letter(recorded, LOST, workload=f"{event.tenant}/{event.id}")
        if core.stirred:
            self._wake()

    def _on_decision(self, recorded: Recorded) -> None:
        if recorded.subject != subjects.decision(self._core.cell):
            return
        try:
            decision = DECISIONS.decode(recorded.data)
        except UNREADABLE as error:
            why = f"decision {recorded.sequence} of the log cannot be read ({error}); {REMEDY}"
            self._core.on_unreadable_decision(recorded.sequence, why)
            self._ctx.health.ready("chain", False, f"nothing is decided: {why}")
            self._store_dead_letter(recorded, str(error))
            return
        self._core.on_decision(decision, recorded.sequence)

    def on_fact(self, seen: Seen) -> None:
        self._core.on_fact(seen.fact, seen.sequence, seen.stored_at_s)
        if self._core.stirred:
            self._wake()

    def on_control(self, recorded: Recorded) -> None:
        try:
            fact = self._settings.read(recorded)
        except UNREADABLE as error:
            self._store_dead_letter(recorded, str(error))
            return
        self._core.on_control(fact, recorded.sequence)
        self._wake()

    def _store_dead_letter(self, recorded: Recorded, reason: str, workload: str = "") -> None:
        self._unreadable.inc()
        if self.conn is None or len(self._dead_letters) >= MAX_DEAD_LETTERS:
            self._ctx.log.error(
                "too many dead letters",
                subject=recorded.subject,
                sequence=recorded.sequence,
                reason=reason,
            )
            return
        letter = store_dead_letter(
            self.conn,
            service=self._ctx.name,
            subject=recorded.subject,
            reason=reason,
            body=recorded.data,
            sequence=recorded.sequence,
            workload=workload,
        )
        task = asyncio.create_task(letter)
        self._dead_letters.add(task)
        task.add_done_callback(self._dead_letters.discard)

    async def close(self) -> None:
        """Wait for dead letters in flight, within a time limit."""
        if self._dead_letters:
            await asyncio.wait(self._dead_letters, timeout=CLOSE_LIMIT_S)

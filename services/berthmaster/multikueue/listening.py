"""What the bus says, decoded once and handed to the core; what cannot be read is buried."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from berthmaster.bus import subjects
from berthmaster.bus.connection import Connection
from berthmaster.bus.dead import bury
from berthmaster.bus.facts import Seen
from berthmaster.bus.follow import Recorded
from berthmaster.lifecycle.fold import Verdict
from berthmaster.messages.families import CONTROL_FACTS, DECISIONS, EVENTS, UNREADABLE
from berthmaster.messages.placement import HUB_CELL
from berthmaster.multikueue.core import Reconciler
from berthmaster.multikueue.figures import Figures
from berthmaster.runtime.service import Context

MAX_BURIALS: Final = 256  # dead letters on their way; more are in the log and counted


class Listener:
    """Feeds one core."""

    def __init__(
        self, ctx: Context[Any], core: Reconciler, stir: Callable[[], None], figures: Figures
    ) -> None:
        self._ctx = ctx
        self._core = core
        self._stir = stir
        self._figures = figures
        self._burials: set[asyncio.Task[bool]] = set()
        self.conn: Connection | None = None

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
            self._figures.void.labels(verdict.value).inc()
            if verdict is not Verdict.VOID:
                whose = f"{event.tenant}/{event.id}"
                self._bury(recorded, f"{verdict.value}: not folded", workload=whose)
        if core.stirred:
            self._stir()

    def _on_decision(self, recorded: Recorded) -> None:
        if recorded.subject != subjects.decision(HUB_CELL):
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
        self._stir()

    def on_gone(self, subject: str) -> None:
        """A fact that a relisting did not find: nodes take room, and copies mean that it runs."""
        node = subjects.parse_node(subject)
        copy = subjects.parse_copy(subject)
        if node is not None:
            self._core.on_node_gone(*node)
        elif copy is not None:
            self._core.on_copy_gone(*copy)

    def on_control(self, recorded: Recorded) -> None:
        """What an operator set."""
        try:
            fact = CONTROL_FACTS.decode(recorded.data)
        except UNREADABLE as error:
            self._bury(recorded, str(error))
            return
        self._core.on_control(fact, recorded.sequence)
        self._stir()

    def _bury(self, recorded: Recorded, reason: str, workload: str = "") -> None:
        self._figures.unreadable.inc()
        if self.conn is None or len(self._burials) >= MAX_BURIALS:
            self._ctx.log.error("a dead letter too many", subject=recorded.subject, reason=reason)
            return
        burying = bury(
            self.conn,
            service="multikueue",
            subject=recorded.subject,
            reason=reason,
            body=recorded.data,
            sequence=recorded.sequence,
            workload=workload,
        )
        task = asyncio.create_task(burying)
        self._burials.add(task)
        task.add_done_callback(self._burials.discard)

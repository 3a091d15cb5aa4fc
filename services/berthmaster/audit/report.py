"""Reads what the bus holds and lets the auditor judge it."""

from collections.abc import Callable

import msgspec

from berthmaster.audit.core import Auditor, AuditReport
from berthmaster.bus import subjects
from berthmaster.bus.connection import Connection
from berthmaster.bus.event_subjects import decode_event
from berthmaster.bus.follow import Recorded
from berthmaster.bus.read import read_all, read_fleet_history
from berthmaster.bus.streams import ARCHIVE, FLEET_LOG, WORKLOADS
from berthmaster.lifecycle.flaws import Flaws
from berthmaster.logcheck.examine import examine
from berthmaster.logcheck.marks import flaws_of
from berthmaster.messages.families import (
    ARCHIVED_STORIES,
    DECISIONS,
    FLEET_FACTS,
    UNREADABLE,
)
from berthmaster.messages.fleet import CopyReport, NodeGone, NodeReport
from berthmaster.messages.placement import Decision
from berthmaster.messages.workload import WorkloadEvent


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """A message that this auditor does not understand."""

    stream: str
    subject: str
    sequence: int
    reason: str


async def audit(
    conn: Connection, *, unreadable: Callable[[Unreadable], None] | None = None
) -> AuditReport:
    """Judge all that the log, its archive and the fleet's history hold. ``unreadable`` takes what
    cannot be read; without it each is a finding. Raises BusError, TimeoutError."""
    read_at_s = conn.now()
    damage = await examine(conn)
    reading = _Reading(await flaws_of(conn, WORKLOADS), unreadable)
    await reading.read(conn)
    auditor = Auditor(holds=lambda sequence: sequence in reading.log)
    reading.tell_log(auditor)

    def on_fact(recorded: Recorded) -> None:
        fact = FLEET_FACTS.decode(recorded.data)
        auditor.on_fact(fact.cluster, recorded.stored_at_s)
        if isinstance(fact, NodeReport | NodeGone):
            auditor.on_node(fact, recorded.sequence, recorded.stored_at_s)
        elif isinstance(fact, CopyReport):
            auditor.on_copy(fact, recorded.stored_at_s)

    await read_fleet_history(conn, reading.readable(FLEET_LOG, on_fact))
    for each in damage:
        auditor.on_damage(each)
    reading.tell_unreadable(auditor)  # last: there may be more than findings that are shown
    return auditor.report(final_s=read_at_s)


class _Reading:
    """The log with what the archive has of it, in order."""

    def __init__(self, flaws: Flaws, unreadable: Callable[[Unreadable], None] | None) -> None:
        self.log: dict[int, tuple[float, WorkloadEvent | Decision | str]] = {}
        """Sequence -> stored at, and what: of a message that cannot be read its subject."""
        self._flaws = flaws
        self._dark: list[Unreadable] = []
        self._take_unreadable = unreadable or self._dark.append
        self._astray: set[int] = set()  # whose content is another's than their subject says
        self._last = 0  # in the log, when it was read

    async def read(self, conn: Connection) -> None:
        """The log before the archive: a story that moves in between is read twice, never missed."""
        everything = [subjects.ALL_WORKLOADS, subjects.ALL_DECISIONS]
        await read_all(conn, WORKLOADS, everything, self.readable(WORKLOADS, self._on_logged))
        self._last = max(self.log, default=0)
        await read_all(
            conn, ARCHIVE, [subjects.ALL_ARCHIVE], self.readable(ARCHIVE, self._on_archived)
        )

    def readable(self, stream: str, take: Callable[[Recorded], None]) -> Callable[[Recorded], None]:
        """The same for messages that may not be readable."""

        def each(recorded: Recorded) -> None:
            try:
                take(recorded)
            except UNREADABLE as error:
                if stream == WORKLOADS:
                    self.log[recorded.sequence] = (recorded.stored_at_s, recorded.subject)
                    if self._flaws.is_void(recorded.sequence):
                        return
                self._take_unreadable(
                    Unreadable(
                        stream=stream,
                        subject=recorded.subject,
                        sequence=recorded.sequence,
                        reason=str(error),
                    )
                )

        return each

    def _on_archived(self, recorded: Recorded) -> None:
        if subjects.is_archived_story(recorded.subject):
            for event in ARCHIVED_STORIES.decode(recorded.data).events:
                if event.sequence <= self._last:  # younger ones would be judged without company
                    self.log[event.sequence] = (event.stored_at_s, event.event)

    def _on_logged(self, recorded: Recorded) -> None:
        message: WorkloadEvent | Decision
        if subjects.is_decision(recorded.subject):
            message = DECISIONS.decode(recorded.data)
        else:
            message, is_astray = decode_event(recorded.subject, recorded.data)
            if is_astray:
                self._astray.add(recorded.sequence)
        self.log[recorded.sequence] = (recorded.stored_at_s, message)

    def tell_log(self, auditor: Auditor) -> None:
        """In its order; what was told is let go of."""
        for sequence in sorted(self.log):
            stored_at_s, message = self.log[sequence]
            if isinstance(message, str):
                _pass_over(auditor, message, sequence, self._flaws)
            elif isinstance(message, Decision):
                auditor.on_decision(message, sequence)
            else:
                astray = sequence in self._astray
                auditor.on_event(message, sequence, stored_at_s, is_astray=astray)
        self.log.clear()

    def tell_unreadable(self, auditor: Auditor) -> None:
        """What nobody else was told of."""
        for letter in self._dark:
            place = _workload_of(letter)
            if place is not None:
                auditor.on_frozen(place.tenant, place.id, letter.sequence, letter.reason)
                continue
            what = f"a message of {letter.stream} cannot be read: {letter.reason}"
            auditor.on_unreadable(letter.subject, what, letter.sequence)


def _pass_over(auditor: Auditor, subject: str, sequence: int, flaws: Flaws) -> None:
    """A message of the log that cannot be read still has its place in chain or story."""
    is_void = flaws.is_void(sequence)
    if subjects.is_decision(subject):
        cell = subjects.cell_of(subject)
        auditor.on_passed_decision(cell, sequence, declared_void=is_void)
    elif is_void:
        place = subjects.parse_workload_event(subject)
        auditor.on_void(place.tenant, place.id, sequence)


def _workload_of(letter: Unreadable) -> subjects.WorkloadSubject | None:
    if letter.stream != WORKLOADS or subjects.is_decision(letter.subject):
        return None
    try:
        return subjects.parse_workload_event(letter.subject)
    except subjects.SubjectError:
        return None

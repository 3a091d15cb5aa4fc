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
from berthmaster.logcheck.examine import examine
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
    dark: list[Unreadable] = []
    take_unreadable = unreadable or dark.append
    log: dict[int, tuple[float, WorkloadEvent | Decision]] = {}
    astray: set[int] = set()  # events whose content is another's than their subject says
    auditor = Auditor(holds=lambda sequence: sequence in log)
    last = 0  # in the log, when it was read
    read_at_s = conn.now()
    damage = await examine(conn)

    def readable(stream: str, take: Callable[[Recorded], None]) -> Callable[[Recorded], None]:
        def each(recorded: Recorded) -> None:
            try:
                take(recorded)
            except UNREADABLE as error:
                take_unreadable(
                    Unreadable(
                        stream=stream,
                        subject=recorded.subject,
                        sequence=recorded.sequence,
                        reason=str(error),
                    )
                )

        return each

    def on_archived(recorded: Recorded) -> None:
        if subjects.is_archived_story(recorded.subject):
            for event in ARCHIVED_STORIES.decode(recorded.data).events:
                if event.sequence <= last:  # younger ones would be judged without their company
                    log[event.sequence] = (event.stored_at_s, event.event)

    def on_logged(recorded: Recorded) -> None:
        message: WorkloadEvent | Decision
        if subjects.is_decision(recorded.subject):
            message = DECISIONS.decode(recorded.data)
        else:
            message, is_astray = decode_event(recorded.subject, recorded.data)
            if is_astray:
                astray.add(recorded.sequence)
        log[recorded.sequence] = (recorded.stored_at_s, message)

    def on_fact(recorded: Recorded) -> None:
        fact = FLEET_FACTS.decode(recorded.data)
        auditor.on_fact(fact.cluster, recorded.stored_at_s)
        if isinstance(fact, NodeReport | NodeGone):
            auditor.on_node(fact, recorded.sequence, recorded.stored_at_s)
        elif isinstance(fact, CopyReport):
            auditor.on_copy(fact, recorded.stored_at_s)

    # The log before the archive: a story that moves in between is then read twice, never missed.
    everything = [subjects.ALL_WORKLOADS, subjects.ALL_DECISIONS]
    await read_all(conn, WORKLOADS, everything, readable(WORKLOADS, on_logged))
    last = max(log, default=0)
    await read_all(conn, ARCHIVE, [subjects.ALL_ARCHIVE], readable(ARCHIVE, on_archived))
    for sequence in sorted(log):
        stored_at_s, message = log[sequence]
        if isinstance(message, Decision):
            auditor.on_decision(message, sequence)
        else:
            auditor.on_event(message, sequence, stored_at_s, is_astray=sequence in astray)
    log.clear()
    await read_fleet_history(conn, readable(FLEET_LOG, on_fact))
    for each in damage:
        auditor.on_damage(each)
    for letter in dark:  # last: there may be more of them than findings that are shown
        what = f"a message of {letter.stream} cannot be read: {letter.reason}"
        auditor.on_unreadable(letter.subject, what, letter.sequence)
    return auditor.report(final_s=read_at_s)

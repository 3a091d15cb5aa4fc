"""Reads the bus and runs the auditor."""

from collections.abc import Callable
from typing import Final

import msgspec

from berthmaster.cli.audit.core import Auditor, AuditReport
from berthmaster.cli.audit.holes import Link, Sequences, hole_words
from berthmaster.lib.event_log.marks import all_damage
from berthmaster.lib.messages.families import ARCHIVED_STORIES, DECISIONS, FLEET_FACTS, UNREADABLE
from berthmaster.lib.messages.fleet import CopyReport, NodeGone, NodeReport
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.messages.workload import WorkloadEvent
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.message_subjects import decode_event
from berthmaster.lib.nats.stream_messages import Recorded
from berthmaster.lib.nats.stream_reads import read_all, read_fleet_history
from berthmaster.lib.nats.streams import ARCHIVE, FIRST, FLEET_LOG, FOLLOWED, WORKLOADS, stream_info

_LINKS: Final = msgspec.json.Decoder(Link)


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """A message that this auditor cannot read."""

    stream: str
    subject: str
    sequence: int
    reason: str


async def audit(
    conn: Connection, *, unreadable: Callable[[Unreadable], None] | None = None
) -> AuditReport:
    """Audit the log, its archive and the fleet's history.

    ``unreadable`` gets the unreadable messages. Without it each is a finding. Raises BusError,
    TimeoutError.
    """
    read_at_s = conn.now()
    damage = await all_damage(conn)
    reading = _Reading(unreadable)
    await reading.read(conn)
    if lost := hole_words(reading.sequences.holes(reading.last)):
        damage.append(lost)
    auditor = Auditor()
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
    reading.tell_unreadable(auditor)  # last, because these may exceed the number of shown findings
    return auditor.report(final_s=read_at_s)


class _Reading:
    """The log with the archive's events, in order."""

    def __init__(self, unreadable: Callable[[Unreadable], None] | None) -> None:
        self.log: dict[int, tuple[float, WorkloadEvent | Decision | str]] = {}
        """Sequence -> stored at, and what: of a message that cannot be read its subject."""
        self._dark: list[Unreadable] = []
        self._take_unreadable = unreadable or self._dark.append
        # sequences whose content and subject name different workloads
        self._astray: set[int] = set()
        self.last = 0  # last sequence at the read
        self.sequences = Sequences()
        self._has_forgotten = False  # True if the archive has dropped old messages

    async def read(self, conn: Connection) -> None:
        """Read the log before the archive: a history that moves meanwhile is read twice, never
        missed."""
        info = await stream_info(conn, WORKLOADS)
        self.sequences.first = int(info.metadata.get(FIRST, "1"))
        self._has_forgotten = (await stream_info(conn, ARCHIVE)).state.first_seq > 1
        take = self.readable(WORKLOADS, self._on_logged)
        await read_all(conn, WORKLOADS, FOLLOWED[WORKLOADS], take)
        self.last = max(self.log, default=0)
        self.sequences.add(self.log)
        await read_all(
            conn, ARCHIVE, [subjects.ALL_ARCHIVE], self.readable(ARCHIVE, self._on_archived)
        )

    def readable(self, stream: str, take: Callable[[Recorded], None]) -> Callable[[Recorded], None]:
        """Return a handler that separates unreadable messages."""

        def each(recorded: Recorded) -> None:
            try:
                take(recorded)
            except UNREADABLE as error:
                if stream == WORKLOADS:
                    self.log[recorded.sequence] = (recorded.stored_at_s, recorded.subject)
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
            events = ARCHIVED_STORIES.decode(recorded.data).events
            if self._has_forgotten and events:  # histories come in the order of their ends
                self.sequences.first = max(self.sequences.first, events[-1].sequence)
                self._has_forgotten = False
            self.sequences.add(event.sequence for event in events)
            for event in events:
                # a newer event would be audited without its context
                if event.sequence <= self.last:
                    self.log[event.sequence] = (event.stored_at_s, event.event)
        else:
            self.sequences.decision(_LINKS.decode(recorded.data), archived=True)

    def _on_logged(self, recorded: Recorded) -> None:
        message: WorkloadEvent | Decision
        if subjects.is_decision(recorded.subject):
            message = DECISIONS.decode(recorded.data)
            self.sequences.decision(_LINKS.decode(recorded.data), archived=False)
        else:
            message, is_astray = decode_event(recorded.subject, recorded.data)
            if is_astray:
                self._astray.add(recorded.sequence)
        self.log[recorded.sequence] = (recorded.stored_at_s, message)

    def tell_log(self, auditor: Auditor) -> None:
        """Pass the log in order to the auditor, and free each message."""
        for sequence in sorted(self.log):
            stored_at_s, message = self.log[sequence]
            if isinstance(message, str):
                _pass_over(auditor, message, sequence)
            elif isinstance(message, Decision):
                auditor.on_decision(message, sequence)
            else:
                astray = sequence in self._astray
                auditor.on_event(message, sequence, stored_at_s, is_astray=astray)
        self.log.clear()

    def tell_unreadable(self, auditor: Auditor) -> None:
        """Pass the unreadable messages that no handler took."""
        for letter in self._dark:
            place = _workload_of(letter)
            if place is not None:
                auditor.on_frozen(place.tenant, place.id, letter.sequence, letter.reason)
                continue
            what = f"a message of {letter.stream} cannot be read: {letter.reason}"
            auditor.on_unreadable(letter.subject, what, letter.sequence)


def _pass_over(auditor: Auditor, subject: str, sequence: int) -> None:
    """Count an unreadable decision, because it has a position in the chain."""
    if subjects.is_decision(subject):
        auditor.on_unreadable_decision(subjects.cell_of(subject), sequence)


def _workload_of(letter: Unreadable) -> subjects.WorkloadSubject | None:
    if letter.stream != WORKLOADS or subjects.is_decision(letter.subject):
        return None
    try:
        return subjects.parse_workload_event(letter.subject)
    except subjects.SubjectError:
        return None

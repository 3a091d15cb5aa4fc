"""One workload's story as the log has it, message by message, for the person who must judge it."""

from collections.abc import Sequence

import msgspec

from berthmaster.bus.connection import Connection
from berthmaster.bus.event_subjects import decode_event
from berthmaster.bus.log import EventLog, Message, message_at, recorded
from berthmaster.bus.streams import WORKLOADS
from berthmaster.bus.subjects import is_decision
from berthmaster.lifecycle.flaws import DECLARED_BY, Flaws
from berthmaster.lifecycle.fold import Verdict, judged_story
from berthmaster.logcheck.marks import flaws_of
from berthmaster.messages.api import RecordedEvent
from berthmaster.messages.families import DECISIONS, UNREADABLE, event_kind

UNREAD = "unreadable"
BEHIND = "not judged"  # behind a message that cannot be read
GOOD = frozenset({Verdict.COUNTED.value, Verdict.VOID.value})


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One message, and what readers make of it."""

    sequence: int
    stored_at_s: float
    subject: str
    verdict: str
    kind: str = ""
    after: int | None = None
    by: str = ""
    why: str = ""


async def inspect(conn: Connection, tenant: str, workload_id: str) -> list[Line]:
    """What stands in a workload's story, from the stream's leader. Raises BusError."""
    messages = await EventLog(conn).story(tenant, workload_id)
    flaws = await flaws_of(conn, WORKLOADS)
    events, unread = _readable(messages, flaws)
    before = min(unread, default=None)
    judged = [e for e in events if before is None or e.sequence < before]
    _, verdicts = judged_story(tenant, workload_id, judged, flaws.is_lost)
    told = {e.sequence: v.value for e, v in zip(judged, verdicts, strict=True)}
    by_sequence = {e.sequence: e for e in events}
    return [_line(message, by_sequence, told, unread) for message in messages]


async def unread(conn: Connection, sequence: int) -> Line | None:
    """A message of the log as one that cannot be read; None: it is not there, or this version reads
    it. Raises BusError."""
    message = await message_at(conn, WORKLOADS, sequence)
    if message is None:
        return None
    try:
        if is_decision(message.subject):
            DECISIONS.decode(message.data)
        else:
            decode_event(message.subject, message.data)
    except UNREADABLE as error:
        why = f"{len(message.data):,} bytes: {error}"
        return Line(
            sequence=sequence,
            stored_at_s=message.stored_at_s,
            subject=message.subject,
            verdict=UNREAD,
            why=why,
        )
    return None


def _readable(
    messages: Sequence[Message], flaws: Flaws
) -> tuple[list[RecordedEvent], dict[int, str]]:
    events: list[RecordedEvent] = []
    unread: dict[int, str] = {}
    for message in messages:
        try:
            events.append(recorded(message, flaws))
        except UNREADABLE as error:
            unread[message.sequence] = str(error)
    return events, unread


def _line(
    message: Message,
    events: dict[int, RecordedEvent],
    told: dict[int, str],
    unread: dict[int, str],
) -> Line:
    recorded = events.get(message.sequence)
    common = {
        "sequence": message.sequence,
        "stored_at_s": message.stored_at_s,
        "subject": message.subject,
    }
    if recorded is None:
        return Line(**common, verdict=UNREAD, why=unread[message.sequence])  # type: ignore[arg-type]
    event = recorded.event
    return Line(
        **common,  # type: ignore[arg-type]
        verdict=told.get(message.sequence, BEHIND),
        kind="" if event.by == DECLARED_BY else event_kind(event),
        after=None if event.by == DECLARED_BY else event.after,
        by=event.by,
        why=_why_void(recorded),
    )


def _why_void(recorded: RecordedEvent) -> str:
    if not recorded.void:
        return ""
    if recorded.event.by == DECLARED_BY:
        return "it cannot be read, and was declared void"
    return "its content is another's"

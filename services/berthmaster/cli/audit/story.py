"""One workload's events in the log, with the verdict of readers: `berth job --raw`."""

from collections.abc import Sequence

import msgspec

from berthmaster.lib.event_log.workload_log import EventLog, recorded
from berthmaster.lib.lifecycle.fold import Verdict, fold_history
from berthmaster.lib.messages.api import RecordedEvent
from berthmaster.lib.messages.families import UNREADABLE, event_kind
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.stream_messages import Message

UNREAD = "unreadable"
BEHIND = "not judged"  # after an unreadable message
GOOD = frozenset({Verdict.COUNTED.value, Verdict.VOID.value})


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One message with its verdict."""

    sequence: int
    stored_at_s: float
    subject: str
    verdict: str
    kind: str = ""
    after: int | None = None
    by: str = ""
    why: str = ""


async def inspect(conn: Connection, tenant: str, workload_id: str) -> list[Line]:
    """Return a workload's messages from the stream's leader. Raises BusError."""
    messages = await EventLog(conn).story(tenant, workload_id)
    events, unread = _readable(messages)
    before = min(unread, default=None)
    judged = [e for e in events if before is None or e.sequence < before]
    _, verdicts = fold_history(tenant, workload_id, judged)
    told = {e.sequence: v.value for e, v in zip(judged, verdicts, strict=True)}
    by_sequence = {e.sequence: e for e in events}
    return [_line(message, by_sequence, told, unread) for message in messages]


def _readable(messages: Sequence[Message]) -> tuple[list[RecordedEvent], dict[int, str]]:
    events: list[RecordedEvent] = []
    unread: dict[int, str] = {}
    for message in messages:
        try:
            events.append(recorded(message))
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
        kind=event_kind(event),
        after=event.after,
        by=event.by,
        why="its content is another's" if recorded.void else "",
    )

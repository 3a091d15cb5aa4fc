"""Detects damage of a log by the services' high-water marks. Pure.

A mark records the log's incarnation, last sequence, and a digest of the last message. Example: a
mark says that WORKLOADS of incarnation a3 reached 930, digest 5f. The log is damaged if

- the stream is missing, or of an incarnation that did not replace a3,
- the last sequence is below 930: the end is lost,
- 930 holds another message: the end was lost, and the log has grown again since,
- 930 holds no message, and the archivist cannot have removed one,
- the server reports that some files were unreadable.

Marks do not detect a message missing from the middle, since the archivist removes messages. `berth
audit` does, by reading the whole log and the archive.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from berthmaster.lib.messages.records import LogMark, StreamMark
from berthmaster.lib.nats.durables import ENDINGS
from berthmaster.lib.nats.subjects import SubjectError, is_decision, parse_workload_event

REMEDY: Final = (
    "`berth recover` shows what a new log would have; "
    "docs/operators/recover.md says what to do first"
)


class StreamState(NamedTuple):
    """The state of a stream as reported by the server."""

    incarnation: str
    last: int
    # incarnations replaced by `berth recover`
    replaces: frozenset[str] = frozenset()
    recovering: bool = False  # `berth recover` is reading the stream
    lost_bytes: int = 0  # bytes that the server could not read from the stream's files


def digest_of(sequence: int, subject: str, data: bytes) -> str:
    """Return the digest of one message, 16 hexadecimal digits."""
    digest = hashlib.blake2b(f"{sequence} {subject}\n".encode(), digest_size=8)
    digest.update(data)
    return digest.hexdigest()


def damage(stream: str, seen: StreamState | None, marks: Iterable[tuple[StreamMark, str]]) -> str:
    """Return why the stream does not match the services' marks; "" = no damage.

    Only the server's stream state is compared. For messages see ``to_compare``.
    """
    marks = [(mark, by) for mark, by in marks if mark.stream == stream]
    if seen is None:
        return f"{stream} is not there" if marks else ""
    if seen.recovering:
        return f"{stream} is being recovered: `berth recover` has not ended"
    if seen.lost_bytes:
        return f"the server could not read {seen.lost_bytes:,} bytes of {stream}"
    for mark, by in marks:
        if mark.incarnation in seen.replaces:
            continue
        if mark.incarnation != seen.incarnation:
            return f"{stream} was made anew; the one before went up to {mark.sequence} ({by})"
        if mark.sequence > seen.last:
            return f"{stream} ends at {seen.last}; it went up to {mark.sequence} ({by})"
    return ""


def to_compare(
    stream: str, seen: StreamState, marks: Iterable[tuple[StreamMark, str]]
) -> list[StreamMark]:
    """Return the marks with messages to compare, without duplicates of a sequence and digest."""
    found = {
        (mark.sequence, mark.digest): mark
        for mark, _ in marks
        if mark.stream == stream and mark.incarnation == seen.incarnation and mark.digest
    }
    return [found[name] for name in sorted(found)]


def is_another(mark: StreamMark, subject: str, data: bytes) -> bool:
    """Return whether the message under the mark's sequence differs from the marked one."""
    return digest_of(mark.sequence, subject, data) != mark.digest


def may_be_removed(mark: StreamMark, other: str) -> bool:
    """Return whether the archivist may have removed the marked message.

    ``other``: the subject of a remaining message; "" = all are gone. For a decision, the newest one
    of the chain. For an event, any event of the workload. The archivist removes a decision when
    another follows, and the events of a workload after the ending.
    """
    if is_decision(mark.subject):
        return bool(other)
    try:
        return bool(other) and parse_workload_event(other).kind in ENDINGS
    except SubjectError:
        return False


def is_replaced(seen: Mapping[str, StreamState], own: Sequence[StreamMark]) -> bool:
    """Return whether `berth recover` has replaced any of the marked streams."""
    return any(
        (now := seen.get(mark.stream)) is not None and mark.incarnation in now.replaces
        for mark in own
    )


def by_service(marks: Iterable[LogMark]) -> list[tuple[StreamMark, str]]:
    """Return the marks of all services, with the service's name."""
    return [(one, mark.service) for mark in marks for one in mark.streams]

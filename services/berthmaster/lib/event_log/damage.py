"""What is wrong with a log, by what services remember of it. Pure.

A service remembers a mark of each log: its incarnation, its last sequence, and a digest of that
message. For example, a mark says that WORKLOADS of incarnation a3 went up to 930, digest 5f. The
log is damaged if it

- is not there, or is of an incarnation that did not replace a3;
- ends below 930: its end is lost;
- has another message under 930: its end was lost, and it has grown again since;
- has none under 930, and the archivist cannot have removed it;
- says itself that it could not read some of its files.

A message that is gone from the middle no mark tells of, since the archivist removes messages: that
`berth audit` finds, which reads the whole log and the archive.
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
    """What the server says of a stream."""

    incarnation: str
    last: int
    replaces: frozenset[str] = frozenset()  # incarnations that `berth recover` has replaced by it
    recovering: bool = False  # `berth recover` reads it
    lost_bytes: int = 0  # of its files that the server could not read


def digest_of(sequence: int, subject: str, data: bytes) -> str:
    """The digest of one message, 16 hexadecimal digits."""
    digest = hashlib.blake2b(f"{sequence} {subject}\n".encode(), digest_size=8)
    digest.update(data)
    return digest.hexdigest()


def damage(stream: str, seen: StreamState | None, marks: Iterable[tuple[StreamMark, str]]) -> str:
    """Why the stream is not the one of these marks, each with who remembers it; "" = it is, as far
    as the server's words go: messages are compared beside that (``to_compare``)."""
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
    """Marks whose message is to be looked at, one a sequence and digest."""
    found = {
        (mark.sequence, mark.digest): mark
        for mark, _ in marks
        if mark.stream == stream and mark.incarnation == seen.incarnation and mark.digest
    }
    return [found[name] for name in sorted(found)]


def is_another(mark: StreamMark, subject: str, data: bytes) -> bool:
    """Whether the message that stands under the mark's sequence is not the marked one."""
    return digest_of(mark.sequence, subject, data) != mark.digest


def may_be_removed(mark: StreamMark, other: str) -> bool:
    """Whether the archivist may have removed the marked message, by the subject of another one that
    is left: of the newest decision of its chain, or of any event of its workload ("" = none). The
    archivist removes a decision once another stands behind it, and events of a workload once its
    ending does."""
    if is_decision(mark.subject):
        return bool(other)
    try:
        return bool(other) and parse_workload_event(other).kind in ENDINGS
    except SubjectError:
        return False


def is_replaced(seen: Mapping[str, StreamState], own: Sequence[StreamMark]) -> bool:
    """Whether `berth recover` has put another stream in the place of one of these."""
    return any(
        (now := seen.get(mark.stream)) is not None and mark.incarnation in now.replaces
        for mark in own
    )


def by_service(marks: Iterable[LogMark]) -> list[tuple[StreamMark, str]]:
    """The marks of all services, each with whose it is."""
    return [(one, mark.service) for mark in marks for one in mark.streams]

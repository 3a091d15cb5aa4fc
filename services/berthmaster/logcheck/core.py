"""What a log is held against: its own numbers, what was removed on purpose, what is remembered.

A stream gives its numbers without a gap, so whatever is missing below its last one has been taken
out: by the archivist, which keeps the story in the archive first, or by damage. What is missing
above its last one only shows beside a mark: how far somebody saw it go. And a log that is long
enough may be another one: of each block of 1,024 numbers a digest runs over number, subject and
payload, and marks hold the newest, each up to a number at which it can be compared.

For example, marks say that the log went up to 920 and it ends at 460: 461 to 920 are missing. It
ends at 930 and the block from 1 on has, up to 920, another digest than it had: it is another log.

A digest says nothing about a block of which something was removed. The newest blocks are whole,
since stories stay in the log for a while after their endings.

What nobody has read before it was lost no mark tells of. Where it belonged to a commit, the commit
does: see commits.py.
"""

import hashlib
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from berthmaster.bus.subjects import SubjectError, is_decision, parse_workload_event
from berthmaster.lifecycle.flaws import Gap
from berthmaster.logcheck.commits import Commits, Torn
from berthmaster.messages.api import StrictLogGap
from berthmaster.messages.control import LogAccepted, LogGap
from berthmaster.messages.records import LogMark, StreamMark

BLOCK: Final = 1024
KEPT_DIGESTS: Final = 16  # so many blocks of a log are remembered, the newest
MOST_GAPS: Final = 4_000  # of one acceptance; nearer ones are told as one
TOLD_JOBS: Final = 50
MOST_UNPROVED: Final = 8  # messages; beyond it the newest has taken the place of the one before
REMEDY: Final = "`berth audit` tells more, `berth repair accept-log` goes on with what is left"


class Loss(NamedTuple):
    """What a person accepted once."""

    making: str  # of the log
    at_s: float  # when, by the server's clock
    last: int  # the log's last number then: what had been beyond is lost, and its numbers come anew
    missing: tuple[Gap, ...] = ()  # below it


def told(gaps: Iterable[Gap]) -> tuple[LogGap, ...]:
    return tuple(LogGap(first=first, last=last) for first, last in gaps)


def heard(gaps: Iterable[LogGap]) -> tuple[Gap, ...]:
    return tuple((gap.first, gap.last) for gap in gaps)


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """One way in which a stream is not what it was."""

    stream: str
    what: str
    missing: tuple[Gap, ...] = ()
    jobs: tuple[str, ...] = ()  # that are touched, <tenant>/<id>, as far as anything tells

    def __str__(self) -> str:
        return f"{self.stream} {self.what}{self.told_jobs}"

    @property
    def told_jobs(self) -> str:
        """The jobs for people, shortened."""
        more = f" and {len(self.jobs) - TOLD_JOBS} more" if len(self.jobs) > TOLD_JOBS else ""
        jobs = ", ".join(self.jobs[:TOLD_JOBS])
        return f"; of the open jobs that touches {jobs}{more}" if self.jobs else ""


class Seen(NamedTuple):
    """What the server says of a stream."""

    making: str
    first: int
    last: int
    messages: int
    lost_bytes: int = 0  # that it could not read of its files when it started


class Remembered(NamedTuple):
    """A mark, and when it was kept, by the server's clock."""

    mark: LogMark
    at_s: float


class Link(msgspec.Struct, frozen=True):
    """What a decision says of the one before it in its chain: where that was."""

    cell: str
    number: int
    after: int


LINK: Final = msgspec.json.Decoder(Link)


class Single(NamedTuple):
    """One message that was read."""

    number: int
    subject: str
    data: bytes

    def is_other(self, subject: str, data: bytes) -> bool:
        """Whether what stands under its number now is not what was read there."""
        return (self.subject, self.data) != (subject, data)


NOTHING: Final = Single(0, "", b"")


class LastKnown:
    """The last message of a log that somebody has read or, as its writer, been told is stored. What
    was known through one connection must be there through the next: a server that has lost the
    end of its log may give the same numbers again before anybody looks.

    For example, 100 was read, the connection was lost, and through the next one 98 and 99 are told
    to be stored: 100 is to be asked for, and 98 says nothing.
    """

    def __init__(self) -> None:
        self.newest = NOTHING
        self._through = 0  # number of the connection
        self._unproved: list[Single] = []

    def knows(self, through: int, one: Single) -> None:
        """It stands there, as a connection has told."""
        self.unproved(through)
        if one.number > self.newest.number:
            self.newest = one

    def unproved(self, through: int) -> tuple[Single, ...]:
        """What was known through connections before this one, each the last of its connection, and
        has not been asked for since."""
        if through != self._through:
            self._through = through
            if self.newest.number and self.newest not in self._unproved:
                self._unproved = [*self._unproved[: MOST_UNPROVED - 1], self.newest]
        return tuple(self._unproved)

    def proved(self, one: Single) -> None:
        """It has been asked for; another one may have taken its place meanwhile."""
        self._unproved = [each for each in self._unproved if each != one]


ACCEPTING: Final = "whoever accepted it"


class Reading:
    """One pass over a stream, in its order: gaps, digests, and whether those are as remembered."""

    def __init__(
        self,
        start: int = 1,
        known: Mapping[int, set[str]] | None = None,
        accepted: Sequence[Gap] = (),
        accepted_to: int = 0,
    ) -> None:
        """``known``: digests of marks by the number up to which they go; ``accepted``: gaps that
        every reader knows, so that blocks with them have a digest all the same; ``accepted_to``:
        where the log ended when it was accepted."""
        self.last = start - 1
        self.gaps: list[Gap] = []
        self.other: list[int] = []  # numbers up to which the digest is not the remembered one
        self.links: list[Link] = []  # of the decisions that were seen
        self._commits = Commits(accepted_to)
        self._known = known or {}
        self._accepted = accepted
        self._whole: deque[tuple[int, str]] = deque(maxlen=KEPT_DIGESTS)
        self._running = hashlib.blake2b(digest_size=8)
        self._complete = start % BLOCK == 1

    def saw(self, sequence: int, subject: str, data: bytes) -> None:
        """The next message that is there."""
        if sequence <= self.last:
            return
        if sequence > self.last + 1:
            self._missed(self.last + 1, sequence - 1)
        if sequence % BLOCK == 1:
            self._complete = True
            self._running = hashlib.blake2b(digest_size=8)
        self.last = sequence
        if (orders := self._commits.saw(sequence, subject, data)) is not None:
            self.links.append(Link(orders.cell, orders.number, orders.after))
        if not self._complete:
            return
        self._running.update(b"%d %s %d " % (sequence, subject.encode(), len(data)))
        self._running.update(data)
        known = self._known.get(sequence)  # of two that differ one has seen what is lost
        if known is not None and known != {self._running.hexdigest()}:
            self.other.append(sequence)
        if sequence % BLOCK == 0:
            self._whole.append((sequence, self._running.hexdigest()))

    def ends(self, last: int) -> None:
        """The stream's last number is this one, and all that is there has been seen."""
        if last > self.last:
            self._missed(self.last + 1, last)
            self.last = last

    @property
    def torn(self) -> list[Torn]:
        """The commits in which something else stands than was stored with them."""
        return self._commits.torn

    @property
    def unfinished(self) -> Torn | None:
        """The commit in whose middle this pass is."""
        return self._commits.unfinished(self.last)

    @property
    def flaws(self) -> int:
        """How many gaps and torn commits it has met."""
        return len(self.gaps) + len(self.torn)

    def digests(self) -> dict[int, str]:
        """Of the newest blocks, the running one included."""
        newest = dict(self._whole)
        if self._complete and self.last:
            newest[self.last] = self._running.hexdigest()
        return newest

    def _missed(self, first: int, last: int) -> None:
        self.gaps.append((first, last))
        if apart([(first, last)], self._accepted):
            self._complete = False


class Numbers:
    """A set of numbers that is dense: what the archive has of a log. One bit each."""

    def __init__(self, raw: bytes = b"") -> None:
        self._bits = bytearray(raw)

    def add(self, number: int) -> None:
        at, bit = divmod(number, 8)
        if at >= len(self._bits):
            self._bits.extend(bytes(max(at + 1 - len(self._bits), 4096)))
        self._bits[at] |= 1 << bit

    def has(self, number: int) -> bool:
        at, bit = divmod(number, 8)
        return at < len(self._bits) and bool(self._bits[at] >> bit & 1)

    def without(self, gaps: Iterable[Gap]) -> list[Gap]:
        """What of these gaps is not in it."""
        left: list[Gap] = []
        bits = self._bits
        for first, last in gaps:
            number = first
            while number <= last:
                at, bit = divmod(number, 8)
                byte = bits[at] if at < len(bits) else 0
                if byte == 0xFF:
                    number += 8 - bit
                    continue
                if not byte >> bit & 1:
                    if left and left[-1][1] == number - 1:
                        left[-1] = (left[-1][0], number)
                    else:
                        left.append((number, number))
                    if at >= len(bits):  # nothing beyond it is known
                        left[-1] = (left[-1][0], last)
                        break
                number += 1
        return left

    def __bytes__(self) -> bytes:
        return bytes(self._bits)


class Archived:
    """Which numbers of a log the archive has. A decision's own is told by the one behind it, so
    that it counts once both are known: the decision as archived, and the link to it."""

    def __init__(
        self,
        numbers: bytes = b"",
        decisions: Mapping[str, bytes] | None = None,
        links: Iterable[Link] = (),
    ) -> None:
        self.numbers = Numbers(numbers)
        self.decisions = {cell: Numbers(raw) for cell, raw in (decisions or {}).items()}
        self.links = list(links)  # to decisions that are not in the archive

    def story(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            self.numbers.add(sequence)

    def decision(self, link: Link) -> None:
        self.decisions.setdefault(link.cell, Numbers()).add(link.number)
        self.links.append(link)

    def settle(self, links: Iterable[Link] = ()) -> None:
        """All has been told; ``links``: of the log's own decisions."""
        left = []
        for link in (*self.links, *links):
            if self._has(link.cell, link.number - 1):
                self.numbers.add(link.after)
            else:
                left.append(link)
        self.links = left

    def _has(self, cell: str, number: int) -> bool:
        archived = self.decisions.get(cell)
        return archived is not None and archived.has(number)


def apart(gaps: Iterable[Gap], known: Sequence[Gap]) -> list[Gap]:
    """What of the gaps is in none of the known ones."""
    left: list[Gap] = []
    for gap in gaps:
        pieces = [gap]
        for first, last in known:
            pieces = (
                [
                    piece
                    for a, b in pieces
                    for piece in ((a, min(b, first - 1)), (max(a, last + 1), b))
                    if piece[0] <= piece[1]
                ]
                if any(a <= last and first <= b for a, b in pieces)
                else pieces
            )
        left += pieces
    return left


def together(gaps: Iterable[Gap], most: int = MOST_GAPS) -> tuple[Gap, ...]:
    """The same numbers in order, as few gaps; beyond ``most`` the nearest become one."""
    joined: list[Gap] = []
    for first, last in sorted(gaps):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    if len(joined) <= most:
        return tuple(joined)
    between = sorted(range(1, len(joined)), key=lambda at: joined[at][0] - joined[at - 1][1])
    merged = set(between[: len(joined) - most])
    fewer = [joined[0]]
    for at in range(1, len(joined)):
        if at in merged:
            fewer[-1] = (fewer[-1][0], joined[at][1])
        else:
            fewer.append(joined[at])
    return tuple(fewer)


def count(gaps: Iterable[Gap]) -> int:
    """How many numbers that is."""
    return sum(last - first + 1 for first, last in gaps)


def up_to(gaps: Iterable[Gap], last: int) -> tuple[Gap, ...]:
    """What of these can be accepted: what is behind the stream's end will be given anew."""
    return tuple((a, min(b, last)) for a, b in gaps if a <= last)


def accepting(gaps: Iterable[Gap], last: int) -> tuple[StrictLogGap, ...]:
    """What a person accepts of these."""
    return tuple(StrictLogGap(first=a, last=b) for a, b in up_to(gaps, last))


def newest_start(last: int) -> int:
    """Where the newest blocks begin that are remembered of a log that goes up to this number."""
    return max(0, last // BLOCK - KEPT_DIGESTS + 1) * BLOCK + 1


def within(number: int, gaps: Sequence[Gap]) -> bool:
    """Whether it is in one of the gaps, which are in order."""
    at = bisect_right(gaps, number, key=lambda gap: gap[0])
    return at > 0 and number <= gaps[at - 1][1]


def touches(sequences: Iterable[int], gaps: Sequence[Gap]) -> bool:
    """Whether one of a job's events is in the gaps: its last one, or its submission, without which
    nobody knows what the rest is about."""
    return any(within(sequence, gaps) for sequence in sequences if sequence)


def is_of(subject: str, name: str, *, begins: bool = False) -> bool:
    """Whether a message of the log is an event of this workload, <tenant>/<id>. ``begins``: one
    that its life begins with."""
    if is_decision(subject):
        return False
    try:
        place = parse_workload_event(subject)
    except SubjectError:
        return False
    of_it = f"{place.tenant}/{place.id}" == name
    return of_it and (not begins or place.kind in ("submitted", "recovered"))


def words(gaps: Sequence[Gap], most: int = 5) -> str:
    """The numbers for people, shortened."""
    shown = [str(a) if a == b else f"{a} to {b}" for a, b in gaps[:most]]
    more = f" and {len(gaps) - most} more gaps" if len(gaps) > most else ""
    return ", ".join(shown) + more


def counted(
    stream: str,
    remembered: Iterable[Remembered],
    accepted: LogAccepted | None,
    accepted_at_s: float,
) -> list[tuple[StreamMark, LogMark]]:
    """The marks of a stream that are younger than what a person accepted of it, and by whoever
    knew that; and what was accepted: as far as the stream went when it was looked at for that it
    must go ever since, and hold what it held."""
    marks = [
        (one, kept.mark)
        for kept in remembered
        if accepted is None or kept.at_s > accepted_at_s
        for one in kept.mark.streams
        if one.stream == stream and one.accepted_at_s == accepted_at_s
    ]
    if accepted is not None:
        one = StreamMark(
            stream=stream,
            created=accepted.created,
            sequence=accepted.sequence,
            digests=accepted.digests,
            accepted_at_s=accepted_at_s,
        )
        marks.append((one, LogMark(service=ACCEPTING, at_s=accepted_at_s, streams=(one,))))
    return marks


def own_memory(
    service: str,
    known: Iterable[StreamMark],
    reading: Reading | None,
    last: int,
    stream: str,
    now_s: float,
) -> list[Remembered]:
    """What a service that lives has seen itself, when each stream was in order last, and as far as
    it has followed ``stream`` since, or knows of a ``last`` message: nobody else need remember
    that. At first nobody has kept a mark, and what is put back may have the marks of its own
    time."""

    def now(one: StreamMark) -> StreamMark:
        if one.stream != stream:
            return one
        if reading is not None and reading.last >= one.sequence:
            one = msgspec.structs.replace(one, sequence=reading.last, digests=reading.digests())
        return msgspec.structs.replace(one, sequence=max(one.sequence, last))

    marks = [now(one) for one in known]
    mark = LogMark(service=service, at_s=now_s, streams=tuple(marks))
    return [Remembered(mark, now_s)] if marks else []


def with_what_was(
    mark: StreamMark, service: str, marks: Sequence[tuple[StreamMark, LogMark]]
) -> StreamMark:
    """A mark that is to take the place of what the service remembered (``marks``, as ``counted``
    has them): how far the same stream went, and what it held there, stays until a person has
    accepted its loss, whatever else is found meanwhile and whichever replica keeps the mark.

    For example, the log went up to 193 and ends at 90, in the middle of a commit: that is found by
    reading, and whoever reads the log anew has seen 90. The mark tells of the commit, and of 193.
    """
    before = [
        one
        for one, kept in marks
        if kept.service == service and one.created == mark.created and one.sequence > mark.sequence
    ]
    if not before:
        return mark
    farthest = max(before, key=lambda one: one.sequence)
    digests = {**mark.digests, **farthest.digests}
    return msgspec.structs.replace(mark, sequence=farthest.sequence, digests=digests)


def held_against(
    stream: str,
    seen: Seen | None,
    marks: Sequence[tuple[StreamMark, LogMark]],
    accepted: LogAccepted | None,
) -> list[Damage]:
    """What the marks say against what the server says; nothing is read for that."""
    if seen is None:
        last = max((mark.sequence for mark, _ in marks), default=0)
        return [Damage(stream=stream, what="is not there", missing=_up_to(1, last))]
    found = _against_marks(stream, seen, marks) if marks else []
    if seen.lost_bytes and accepted is None:
        what = f"could not be read whole: the server lost {seen.lost_bytes:,} bytes of its files"
        found.append(Damage(stream=stream, what=what))
    return found


def _against_marks(
    stream: str, seen: Seen, marks: Sequence[tuple[StreamMark, LogMark]]
) -> list[Damage]:
    found: list[Damage] = []
    farthest, by = max(marks, key=lambda pair: pair[0].sequence)
    if others := [mark.sequence for mark, _ in marks if mark.created != seen.making]:
        # Who follows on tells of the new one as far as it had seen the one before.
        last = max(*others, farthest.sequence if farthest.sequence > seen.last else 0)
        what = f"was made anew; the one before went up to {last}"
        found.append(Damage(stream=stream, what=what, missing=_up_to(seen.last + 1, last)))
    elif seen.last < farthest.sequence:
        gap = _up_to(seen.last + 1, farthest.sequence)
        what = (
            f"ends at {seen.last}; {by.service} saw it go up to {farthest.sequence}: "
            f"{count(gap)} messages are missing, {words(gap)}"
        )
        found.append(Damage(stream=stream, what=what, missing=gap))
    for mark, from_ in marks:
        if mark.damage and not found:
            what = mark.damage.removeprefix(f"{stream} ")
            found.append(
                Damage(
                    stream=stream,
                    what=f"{what} (found by {from_.service})",
                    missing=heard(mark.missing),
                )
            )
    return found


class Doubt(NamedTuple):
    """A stream was shorter than it is remembered. That it is as long again does not say that it is
    what it was: anybody may have stored something since. What was remembered then tells, so it is
    kept until what stands behind the shortest end has been read."""

    end: int  # where it ended, at the least
    farthest: int  # how far anybody had seen it go
    digests: Mapping[int, set[str]]

    def also(self, seen: Seen, marks: Sequence[tuple[StreamMark, LogMark]]) -> "Doubt":
        """With what one more look has shown."""
        digests = {number: set(known) for number, known in self.digests.items()}
        for number, known in known_digests(seen.making, marks).items():
            digests.setdefault(number, set()).update(known)
        last = max((mark.sequence for mark, _ in marks), default=0)
        return Doubt(min(self.end, seen.last), max(self.farthest, last), digests)

    @property
    def start(self) -> int:
        """From where it is to be read: the beginning of the first block that may be another."""
        return self.end // BLOCK * BLOCK + 1

    @property
    def can_be_settled(self) -> bool:
        """Whether anything remembers what stood behind its end."""
        return any(number > self.end for number in self.digests)


def first_doubt(seen: Seen, marks: Sequence[tuple[StreamMark, LogMark]]) -> Doubt:
    """The stream has been seen to be shorter than these say."""
    return Doubt(seen.last, 0, {}).also(seen, marks)


def is_short(seen: Seen | None, marks: Sequence[tuple[StreamMark, LogMark]]) -> bool:
    """Whether a mark of this very stream says that it went further."""
    return seen is not None and any(
        mark.created == seen.making and mark.sequence > seen.last for mark, _ in marks
    )


def unsettled(stream: str, doubt: Doubt) -> Damage:
    """A stream that was told to be damaged is as long again, and nothing tells whether it is what
    it was."""
    what = (
        f"ended at {doubt.end}, went up to {doubt.farthest} before, and has grown again: nothing "
        "tells whether it holds what it held"
    )
    return Damage(stream=stream, what=what)


def read_through(
    stream: str, reading: Reading, missing: Sequence[Gap], first_known: int = 0
) -> list[Damage]:
    """What a pass over all of a stream says. ``missing``: its gaps that nothing explains;
    ``first_known``: below it nobody can say any more what was removed on purpose."""
    found: list[Damage] = []
    if missing := [(max(a, first_known), b) for a, b in missing if b >= first_known]:
        gaps = together(missing)
        what = f"has lost {count(gaps)} messages that nobody removed: {words(gaps)}"
        found.append(Damage(stream=stream, what=what, missing=gaps))
    if reading.other:
        what = (
            "is another log than it was: what it holds up to "
            f"{reading.other[0]} has another digest than before"
        )
        found.append(Damage(stream=stream, what=what))
    found += [_torn(stream, each) for each in reading.torn]
    if (unfinished := reading.unfinished) is not None:
        found.append(_unfinished(stream, unfinished))
    return found


def _torn(stream: str, torn: Torn) -> Damage:
    what = f"has lost the rest of a commit: {torn.words}, and under {torn.at} stands another's"
    return Damage(stream=stream, what=what, jobs=torn.jobs)


def _unfinished(stream: str, torn: Torn) -> Damage:
    gap = _up_to(torn.at, torn.last)
    what = f"ends in the middle of a commit: {torn.words}; {words(gap)} is missing"
    return Damage(stream=stream, what=what, missing=gap, jobs=torn.jobs)


class LastCommit:
    """Whether the log that is followed stays where it is in the middle of a commit. A server may
    need a moment for a batch, and tell of its first messages before it has stored the last."""

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._at = 0
        self._since_s = 0.0

    def look(
        self, stream: str, reading: Reading | None, seen: Seen | None, now_s: float
    ) -> Damage | None:
        """What that is, if it has lasted too long."""
        torn = reading.unfinished if reading is not None else None
        if torn is None or seen is None or seen.last != torn.at - 1:
            self._at = 0
            return None
        if self._at != torn.at:
            self._at, self._since_s = torn.at, now_s
        return _unfinished(stream, torn) if now_s - self._since_s >= self._settle_s else None


def changed_at(stream: str, number: int) -> Damage:
    """What was read under this number is not what the stream holds there now."""
    what = f"is another log than it was: under {number} it holds something else than was read there"
    return Damage(stream=stream, what=what)


def known_digests(making: str, marks: Iterable[tuple[StreamMark, LogMark]]) -> dict[int, set[str]]:
    """What a pass over the stream is to be compared with."""
    known: dict[int, set[str]] = {}
    for mark, _ in marks:
        if mark.created == making:
            for number, digest in mark.digests.items():
                known.setdefault(number, set()).add(digest)
    return known


def _up_to(first: int, last: int) -> tuple[Gap, ...]:
    return ((first, last),) if first <= last else ()

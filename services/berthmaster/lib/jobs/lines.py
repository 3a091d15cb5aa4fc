"""Lines of a pod's log and the cursor behind them. Pure.

A kubelet gives each line with the time when it was written: ``2026-11-24T10:00:00.5Z text``. It
knows no offsets, and begins again at a second. So a cursor is the time of the last line and how
many lines of that very time were read: whoever goes on from one asks for that second anew, and
leaves out what it has had. A cursor therefore outlives every process on the way.

Lines are bytes: what a job writes need not be UTF-8. One without a time belongs to the line before
it. One that is too long is cut, and says so: it would be more than an answer may hold.
"""

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final, NamedTuple

MAX_LINE_BYTES: Final = 32 * 1024
_STAMP_CHARS: Final = 40
_NS: Final = 1_000_000_000


class CursorError(ValueError):
    """The text is no cursor."""


class Cursor(NamedTuple):
    """How far a log was read."""

    at_ns: int = 0  # when the last line was written
    lines: int = 0  # so many of that time were read

    def __str__(self) -> str:
        return f"{self.at_ns}.{self.lines}" if self.lines else ""

    @property
    def since_s(self) -> int:
        """The second from which to read again."""
        return self.at_ns // _NS


START: Final = Cursor()


def parse_cursor(text: str) -> Cursor:
    """The reverse of ``str``. Raises CursorError."""
    if not text:
        return START
    at, dot, lines = text.partition(".")
    if not (dot and at.isdecimal() and lines.isdecimal() and text.isascii() and len(text) <= 64):
        raise CursorError(f"{text[:40]!r} is no cursor; right is that of the last answer, or none")
    return Cursor(int(at), int(lines))


@lru_cache(maxsize=4096)
def _seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


def written_ns(line: bytes) -> int | None:
    """When a line was written; None: it does not say."""
    stamp, blank, _ = line[:_STAMP_CHARS].partition(b" ")
    if (not blank and len(line) > len(stamp)) or stamp[4:5] != b"-" or stamp[10:11] != b"T":
        return None
    try:
        text = stamp.rstrip(b"\n").decode("ascii")
        whole, dot, rest = text.partition(".")
        if not dot:
            return _seconds(text) * _NS
        digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
        return _seconds(whole + rest[len(digits) :]) * _NS + int(digits[:9].ljust(9, "0"))
    except ValueError:
        return None


def text_of(line: bytes) -> tuple[str, bytes]:
    """(time, what was written) of a line; without a time "" and all of it."""
    line = line.removesuffix(b"\n")
    if written_ns(line) is None:
        return "", line
    stamp, _, text = line.partition(b" ")
    return stamp.decode("ascii"), text


class Lines:
    """Takes bytes of a log, gives whole lines that were not had before."""

    def __init__(self, after: Cursor = START) -> None:
        self.cursor = after
        self._had = after
        self._seen_ns = 0  # of the last line that was seen, left out or not
        self._passed = 0  # lines of the cursor's own time that were left out so far
        self._rest = b""
        self._lost = 0  # bytes of a line that is too long, beyond what is kept of it

    def feed(self, data: bytes) -> list[bytes]:
        """Lines that are whole now, each with its end."""
        *whole, last = data.split(b"\n")
        found: list[bytes] = []
        for part in whole:
            self._add(part)
            found += self._finish()
        self._add(last)
        return found

    def end(self) -> list[bytes]:
        """The log is over: what is left is a line, too."""
        return self._finish() if self._rest else []

    def _add(self, part: bytes) -> None:
        room = MAX_LINE_BYTES - len(self._rest)
        self._rest += part[:room]
        self._lost += max(0, len(part) - room)

    def _finish(self) -> list[bytes]:
        line, lost = self._rest, self._lost
        self._rest, self._lost = b"", 0
        if lost:
            line += b" [%d more bytes of this line are left out]" % lost
        at_ns = written_ns(line)
        now_ns = self._seen_ns = self._seen_ns if at_ns is None else at_ns
        if now_ns < self._had.at_ns:
            return []
        if now_ns == self._had.at_ns and self._passed < self._had.lines:
            self._passed += 1
            return []
        self.cursor = advanced(self.cursor, [line])
        return [line + b"\n"]


def advanced(cursor: Cursor, lines: Sequence[bytes]) -> Cursor:
    """The cursor behind these lines, which were not had before."""
    for line in lines:
        at_ns = written_ns(line)
        same = at_ns is None or at_ns <= cursor.at_ns
        cursor = Cursor(cursor.at_ns if same else at_ns or 0, cursor.lines + 1 if same else 1)
    return cursor


def beyond(data: bytes, after: Cursor) -> bytes:
    """Of whole lines, those behind a cursor."""
    lines = Lines(after)
    return b"".join([*lines.feed(data), *lines.end()])

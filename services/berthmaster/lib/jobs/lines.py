"""Lines of a pod's log, and the cursor after them. Pure.

A kubelet prefixes each line with its time: ``2026-11-24T10:00:00.5Z text``. The kubelet knows no
offsets, and can only start again at a full second. A cursor therefore holds the time of the last
line, and the number of lines read with exactly this time. A reader resumes by reading that second
again and skipping the lines already read. So a cursor stays valid across restarts of every process
on the path.

Lines are bytes, because a job's output need not be UTF-8. A line without a time belongs to the line
before. A too long line would exceed the limit of an answer, so the line is cut and marked as cut.
"""

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final, NamedTuple

MAX_LINE_BYTES: Final = 32 * 1024
_STAMP_CHARS: Final = 40
_NS: Final = 1_000_000_000


class CursorError(ValueError):
    """The text is not a cursor."""


class Cursor(NamedTuple):
    """The position of a reader in a log."""

    at_ns: int = 0  # time of the last line, in nanoseconds since 1970
    lines: int = 0  # lines read with this time

    def __str__(self) -> str:
        return f"{self.at_ns}.{self.lines}" if self.lines else ""

    @property
    def since_s(self) -> int:
        """The second from which to read again."""
        return self.at_ns // _NS


START: Final = Cursor()


def parse_cursor(text: str) -> Cursor:
    """Parse the text of ``str(cursor)``. Raise CursorError."""
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
    """Return the time of a line in nanoseconds since 1970, or None without a time."""
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
    """Return (time, text) of a line, with "" as the time of a line without one."""
    line = line.removesuffix(b"\n")
    if written_ns(line) is None:
        return "", line
    stamp, _, text = line.partition(b" ")
    return stamp.decode("ascii"), text


class Lines:
    """Turns chunks of a log into whole lines, without the lines before a cursor."""

    def __init__(self, after: Cursor = START) -> None:
        self.cursor = after
        self._had = after
        self._seen_ns = 0  # time of the last line seen, skipped or not
        self._passed = 0  # lines skipped so far with the cursor's time
        self._rest = b""
        self._lost = 0  # bytes cut from a too long line

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines completed by a chunk, each with its line end."""
        *whole, last = data.split(b"\n")
        found: list[bytes] = []
        for part in whole:
            self._add(part)
            found += self._finish()
        self._add(last)
        return found

    def end(self) -> list[bytes]:
        """Return the rest of an ended log as a line."""
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
    """Return the cursor after these new lines."""
    for line in lines:
        at_ns = written_ns(line)
        same = at_ns is None or at_ns <= cursor.at_ns
        cursor = Cursor(cursor.at_ns if same else at_ns or 0, cursor.lines + 1 if same else 1)
    return cursor


def beyond(data: bytes, after: Cursor) -> bytes:
    """Return the lines after a cursor, out of whole lines."""
    lines = Lines(after)
    return b"".join([*lines.feed(data), *lines.end()])

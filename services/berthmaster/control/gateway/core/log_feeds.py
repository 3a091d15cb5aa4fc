"""Logs that tenants follow: the buffered chunks of each, and the open requests to agents. Pure.

All followers of one pod share one feed with the newest chunks. A follower that is behind them gets
a ``cut`` mark and continues from the oldest. Each follower requests its replies, so a slow one
requests seldom and costs the others nothing. Cursors belong to the log itself (lib/jobs/lines.py),
so any gateway can answer.
"""

from collections import OrderedDict, deque
from typing import Final, NamedTuple

from berthmaster.lib.jobs.lines import Cursor, beyond, parse_cursor
from berthmaster.lib.messages.door import MAX_LOG_BYTES, LogChunk

IDLE_S: Final = 30.0


class LogKey(NamedTuple):
    tenant: str
    id: str
    attempt: int
    cluster: str
    pod: int


class Piece(NamedTuple):
    """Whole lines between two cursors."""

    after: Cursor
    cursor: Cursor
    data: bytes


class Read(NamedTuple):
    data: bytes
    cursor: Cursor
    cut: bool


class LogFeed:
    """The newest chunks of one log, without gaps."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._pieces: deque[Piece] = deque()
        self._size = 0
        self.pods = 0
        self.ended = False
        self.asked_at_s = 0.0

    @property
    def cursor(self) -> Cursor | None:
        """Return the end of the newest chunk, or None without chunks."""
        return self._pieces[-1].cursor if self._pieces else None

    def take(self, after: Cursor, chunk: LogChunk) -> None:
        """Add an agent's answer to a request after the cursor ``after``."""
        self.pods = chunk.pods or self.pods
        self.ended = chunk.ended
        if not chunk.data:
            return
        if self._pieces and self._pieces[-1].cursor != after:
            if parse_cursor(chunk.cursor) <= self._pieces[-1].cursor:
                return
            self._pieces.clear()  # a follower of another gateway was ahead
            self._size = 0
        self._pieces.append(Piece(after, parse_cursor(chunk.cursor), chunk.data))
        self._size += len(chunk.data)
        while self._size > self._most and len(self._pieces) > 1:
            self._size -= len(self._pieces.popleft().data)

    def read(self, after: Cursor) -> Read | None:
        """Return the data after a cursor, up to the size of one answer, or None."""
        if not self._pieces or after >= self._pieces[-1].cursor:
            return None
        parts: list[bytes] = []
        cursor, size = after, 0
        for piece in self._pieces:
            if piece.cursor <= after:
                continue
            data = piece.data if piece.after >= after else beyond(piece.data, after)
            if parts and size + len(data) > MAX_LOG_BYTES:
                break
            parts.append(data)
            size += len(data)
            cursor = piece.cursor
        return Read(b"".join(parts), cursor, self._pieces[0].after > after)


class LogFeeds:
    def __init__(self, most: int, feed_bytes: int) -> None:
        self._most = most
        self._feed_bytes = feed_bytes
        self._feeds: OrderedDict[LogKey, LogFeed] = OrderedDict()

    def __len__(self) -> int:
        return len(self._feeds)

    def of(self, key: LogKey, now_s: float) -> LogFeed | None:
        """Return the feed of a log, created if needed. None means too many feeds."""
        self.forget(now_s)
        feed = self._feeds.get(key)
        if feed is None:
            if len(self._feeds) >= self._most:
                return None
            feed = self._feeds[key] = LogFeed(self._feed_bytes)
        feed.asked_at_s = now_s
        self._feeds.move_to_end(key)
        return feed

    def forget(self, now_s: float) -> None:
        """Drop feeds without a request for ``IDLE_S``."""
        while self._feeds:
            key, feed = next(iter(self._feeds.items()))
            if now_s - feed.asked_at_s <= IDLE_S:
                return
            del self._feeds[key]

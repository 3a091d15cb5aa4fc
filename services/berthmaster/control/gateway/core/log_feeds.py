"""Logs that tenants follow: pieces of each, and who has asked an agent for more. Pure.

Each reply is asked for by whoever follows: who reads slowly asks seldom, and costs nobody a thing.
All who follow one pod share one feed. It holds the newest pieces; whoever is behind them is told so
and goes on from the oldest. Cursors are of the log itself (lib/jobs/lines.py), so it does not
matter which gateway is asked.
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
    """The newest pieces of one log, each behind the one before."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._pieces: deque[Piece] = deque()
        self._size = 0
        self.pods = 0
        self.ended = False
        self.asked_at_s = 0.0

    @property
    def cursor(self) -> Cursor | None:
        """Behind the newest piece; None: there is none."""
        return self._pieces[-1].cursor if self._pieces else None

    def take(self, after: Cursor, chunk: LogChunk) -> None:
        """An agent's answer to what was asked behind ``after``."""
        self.pods = chunk.pods or self.pods
        self.ended = chunk.ended
        if not chunk.data:
            return
        if self._pieces and self._pieces[-1].cursor != after:
            if parse_cursor(chunk.cursor) <= self._pieces[-1].cursor:
                return
            self._pieces.clear()  # another gateway's follower was further
            self._size = 0
        self._pieces.append(Piece(after, parse_cursor(chunk.cursor), chunk.data))
        self._size += len(chunk.data)
        while self._size > self._most and len(self._pieces) > 1:
            self._size -= len(self._pieces.popleft().data)

    def read(self, after: Cursor) -> Read | None:
        """What there is behind a cursor, as much as one answer holds; None: nothing yet."""
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
        """The feed of a log, made if need be; None: there are too many."""
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
        """Those whom nobody has asked about for long."""
        while self._feeds:
            key, feed = next(iter(self._feeds.items()))
            if now_s - feed.asked_at_s <= IDLE_S:
                return
            del self._feeds[key]

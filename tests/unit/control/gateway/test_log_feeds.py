"""Feeds of logs: many followers, one reading; who is slow is told, and costs nobody anything."""

from berthmaster.control.gateway.core.log_feeds import IDLE_S, LogFeed, LogFeeds, LogKey, Read
from berthmaster.lib.jobs.lines import START, Cursor, advanced
from berthmaster.lib.messages.door import LogChunk


def line(second: int) -> bytes:
    return b"2026-11-24T10:00:%02dZ %d\n" % (second, second)


def chunk(after: Cursor, *seconds: int) -> tuple[Cursor, LogChunk]:
    lines = [line(second) for second in seconds]
    cursor = advanced(after, lines)
    return cursor, LogChunk(ask="a", reader="r", data=b"".join(lines), cursor=str(cursor), pods=2)


def test_followers_of_one_log_read_what_was_asked_for_once() -> None:
    feed = LogFeed(most_bytes=1000)
    assert feed.read(START) is None

    first, answer = chunk(START, 1, 2)
    feed.take(START, answer)
    second, answer = chunk(first, 3)
    feed.take(first, answer)

    assert feed.read(START) == Read(line(1) + line(2) + line(3), second, False)
    assert feed.read(first) == Read(line(3), second, False)
    between = advanced(START, [line(1)])  # somebody began in the middle of a piece
    assert feed.read(between) == Read(line(2) + line(3), second, False)
    assert feed.read(second) is None
    assert feed.pods == 2

    feed.take(START, chunk(START, 1)[1])  # an answer that came late changes nothing
    assert feed.read(first) == Read(line(3), second, False)


def test_who_is_behind_what_is_kept_is_told_so_and_goes_on_from_there() -> None:
    feed = LogFeed(most_bytes=2 * len(line(1)))
    cursor = START
    behind = advanced(START, [line(1)])
    for second in range(1, 8):
        after, answer = chunk(cursor, second)
        feed.take(cursor, answer)
        cursor = after
    assert feed.read(behind) == Read(line(6) + line(7), cursor, True)


def test_there_are_only_so_many_feeds_and_those_that_nobody_asks_about_go() -> None:
    feeds = LogFeeds(most=2, feed_bytes=1000)
    keys = [LogKey("acme", f"job-{at}", 1, "c1", 0) for at in range(3)]
    assert feeds.of(keys[0], 0.0) is not None
    assert feeds.of(keys[1], IDLE_S) is not None
    assert feeds.of(keys[2], IDLE_S) is None
    assert feeds.of(keys[2], IDLE_S + 1) is not None
    assert len(feeds) == 2

"""Lines of logs and the cursors behind them, over cuts at any byte."""

import random

import pytest

from berthmaster.lib.jobs.lines import (
    MAX_LINE_BYTES,
    START,
    CursorError,
    Lines,
    advanced,
    beyond,
    parse_cursor,
    text_of,
    written_ns,
)

LOG = (
    b"2026-11-24T10:00:00.5Z one\n"
    b"2026-11-24T10:00:00.5Z two\n"
    b"2026-11-24T11:00:00.500000001+01:00 \xff\xfe three\n"
    b"without a time\n"
    b"2026-11-24T10:00:02Z\n"
    b"2026-11-24T10:00:03.25Z half"
)


def test_a_log_that_is_read_on_from_any_line_over_and_over_is_read_once() -> None:
    whole = Lines()
    lines = [*whole.feed(LOG), *whole.end()]
    assert lines == [line + b"\n" for line in LOG.split(b"\n")]
    chance = random.Random(7)
    for _ in range(50):
        cursor = START
        got: list[bytes] = []
        while len(got) < len(lines):
            reading = Lines(parse_cursor(str(cursor)))
            until = chance.randint(1, len(LOG))  # a kubelet begins at the whole second again
            pieces = [LOG[:until], LOG[until:]]
            new = [line for piece in pieces for line in reading.feed(piece)] + reading.end()
            taken = new[: chance.randint(1, 3)]
            got += taken
            cursor = advanced(cursor, taken)
        assert got == lines


def test_what_a_line_says_is_apart_from_when_it_was_written() -> None:
    assert text_of(b"2026-11-24T10:00:00.5Z one two\n") == ("2026-11-24T10:00:00.5Z", b"one two")
    assert text_of(b"2026-11-24T10:00:02Z \xff\n") == ("2026-11-24T10:00:02Z", b"\xff")
    assert text_of(b"no time here\n") == ("", b"no time here")
    same = written_ns(b"2026-11-24T11:00:00.500000001+01:00 x")
    assert same == written_ns(b"2026-11-24T10:00:00.500000001Z x")
    for odd in (b"", b"\n", b"2026-13-24T10:00:00Z x", b"\xff" * 50, b"1" * 40):
        assert written_ns(odd) is None


def test_a_line_of_ten_megabytes_is_cut_and_says_so() -> None:
    lines = Lines()
    got: list[bytes] = []
    for _ in range(10):
        got += lines.feed(b"x" * 1_000_000)
    got += lines.feed(b"\n2026-11-24T10:00:00Z after\n")
    told = b" [%d more bytes of this line are left out]\n" % (10_000_000 - MAX_LINE_BYTES)
    assert got == [b"x" * MAX_LINE_BYTES + told, b"2026-11-24T10:00:00Z after\n"]


def test_what_is_no_cursor_is_refused() -> None:
    assert parse_cursor("") == START
    for odd in ("1", ".", "a.1", "1.-1", "1.1.1", "9" * 70 + ".1", "\u0664.1"):
        with pytest.raises(CursorError):
            parse_cursor(odd)


def test_of_lines_that_are_kept_only_those_behind_a_cursor_are_told() -> None:
    lines = Lines()
    first = lines.feed(LOG)[:2]
    cursor = advanced(START, first)
    assert beyond(LOG, cursor) == LOG.removeprefix(b"".join(first)) + b"\n"

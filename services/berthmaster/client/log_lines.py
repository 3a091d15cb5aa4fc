"""Lines of what a job wrote."""

from collections.abc import Iterator
from typing import NamedTuple

from berthmaster.lib.jobs.lines import text_of
from berthmaster.lib.messages.api import LogsReply


class LogLine(NamedTuple):
    """One line. ``text``: the bytes that were written, without the line's end."""

    at: str  # when, by the clock of the node (RFC 3339); "" = not told
    text: bytes


def lines_of(reply: LogsReply) -> Iterator[LogLine]:
    """Of one piece of a log."""
    for line in _whole(reply.data):
        yield LogLine(*text_of(line))


def _whole(data: bytes) -> list[bytes]:
    """Only a line feed ends a line: progress bars write carriage returns."""
    return data.removesuffix(b"\n").split(b"\n") if data else []

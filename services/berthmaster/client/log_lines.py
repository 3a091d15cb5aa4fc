"""Lines of a job's output."""

from collections.abc import Iterator
from typing import NamedTuple

from berthmaster.lib.jobs.lines import text_of
from berthmaster.lib.messages.api import LogsReply


class LogLine(NamedTuple):
    """One line. ``text`` has the written bytes without the line end."""

    at: str  # time by the node's clock (RFC 3339); "" = unknown
    text: bytes


def lines_of(reply: LogsReply) -> Iterator[LogLine]:
    """Yield the lines of a log chunk."""
    for line in _whole(reply.data):
        yield LogLine(*text_of(line))


def _whole(data: bytes) -> list[bytes]:
    """Split at line feeds only, because progress bars write carriage returns."""
    return data.removesuffix(b"\n").split(b"\n") if data else []

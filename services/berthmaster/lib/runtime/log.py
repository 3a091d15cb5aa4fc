"""Logs one JSON line per event to stderr, or the same as text for humans.

An event has a constant short name and fields, so that lines can be counted and joined. Example:
`log.info("placed", workload=..., cluster=...)`. Lines of other libraries (nats-py among them) come
in the same form through the standard logging module. A log that cannot be written never stops a
service.
"""

import logging
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import BinaryIO, Literal, Protocol

import msgspec

from berthmaster.lib.runtime.redact import HIDDEN, excerpt, names_secret, redact
from berthmaster.lib.runtime.visible_text import dumps, visible

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["json", "text"]

LEVELS: dict[Level, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_OURS = ("time", "level", "service", "event")
MAX_LINE_CHARS = 32_768  # above this, each field is cut
MAX_FIELD_CHARS = 4096


class LogLike(Protocol):
    """The used part of a log. Tests have their own."""

    def info(self, event: str, /, **fields: object) -> None: ...
    def warning(self, event: str, /, **fields: object) -> None: ...
    def error(
        self, event: str, /, *, error: BaseException | None = None, **fields: object
    ) -> None: ...


class Log:
    """Writes events of a service. `bind` returns a log with fields added to each event."""

    def __init__(
        self,
        service: str,
        *,
        level: Level = "info",
        format: Format = "json",
        stream: BinaryIO | None = None,
        clock: Callable[[], float] = time.time,
        fields: Mapping[str, object] | None = None,
    ) -> None:
        self._service = service
        self._level = level
        self._format = format
        self._stream = stream
        self._clock = clock
        self._fields = dict(fields or {})

    def bind(self, **fields: object) -> "Log":
        """Return a log with these fields added to every event."""
        return Log(
            self._service,
            level=self._level,
            format=self._format,
            stream=self._stream,
            clock=self._clock,
            fields={**self._fields, **fields},
        )

    def debug(self, event: str, /, **fields: object) -> None:
        """Log details for debugging; off by default."""
        self.write("debug", event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        """Log a normal event."""
        self.write("info", event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        """Log a problem that the service handles. An operator may want to check."""
        self.write("warning", event, fields)

    def error(self, event: str, /, *, error: BaseException | None = None, **fields: object) -> None:
        """Log a failure. An exception's text and traceback become fields."""
        if error is not None:
            fields["error"] = f"{type(error).__name__}: {error}"
            fields["traceback"] = "".join(traceback.format_exception(error))
        self.write("error", event, fields)

    def write(self, level: Level, event: str, fields: Mapping[str, object]) -> None:
        if LEVELS[level] < LEVELS[self._level]:
            return
        line = self._line(level, event, {**self._fields, **fields})
        stream = self._stream if self._stream is not None else sys.stderr.buffer
        try:
            # a single write per line, so that lines of several threads do not mix
            stream.write(line)
            stream.flush()
        except (OSError, ValueError):
            pass  # no process reads the log any more, which is no reason to stop

    def _line(self, level: Level, event: str, fields: Mapping[str, object]) -> bytes:
        now = datetime.fromtimestamp(self._clock(), UTC)
        stamp = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        shown: dict[str, object] = {
            (f"{key}_" if key in _OURS else key): (HIDDEN if names_secret(key) else value)
            for key, value in fields.items()
        }
        line = self._formatted(stamp, level, event, shown)
        if len(line) > MAX_LINE_CHARS:
            short = {key: _cut(value) for key, value in shown.items()}
            line = self._formatted(stamp, level, excerpt(event, MAX_FIELD_CHARS), short)
        return redact(line).encode(errors="replace")

    def _formatted(self, stamp: str, level: Level, event: str, fields: Mapping[str, object]) -> str:
        shown = dict(fields)
        if self._format == "text":
            trace = shown.pop("traceback", None)
            pairs = " ".join(f"{key}={_plain(value)}" for key, value in shown.items())
            body = f"{visible(event, keep='')} {pairs}".rstrip()
            head = f"{stamp[11:23]} {level:7} {self._service}: {body}"
            return f"{head}\n{visible(trace)}" if isinstance(trace, str) else f"{head}\n"
        whole = {"time": stamp, "level": level, "service": self._service, "event": event, **shown}
        return _json(whole) + "\n"


def _cut(value: object) -> object:
    text = value if isinstance(value, str) else _json(value)
    return excerpt(text, MAX_FIELD_CHARS) if len(text) > MAX_FIELD_CHARS else value


def _json(value: object) -> str:
    try:
        return dumps(value, unknown=_shown).decode()
    except (TypeError, RecursionError):  # a key that JSON lacks, lone surrogates, loops, 2**64
        return dumps({"unprintable": ascii(value)}).decode()


def _shown(value: object) -> object:
    """Return a JSON value for another object, as a struct or else by ``repr``."""
    try:
        return msgspec.to_builtins(value)
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def _plain(value: object) -> str:
    if isinstance(value, str):
        return visible(value, keep="") if value and " " not in value else _json(value)
    return _json(value)


class Bridge(logging.Handler):
    """Passes lines of the standard logging module to this log."""

    def __init__(self, log: Log) -> None:
        super().__init__(level=logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record of a library as the event "library"."""
        level: Level = "error" if record.levelno >= logging.ERROR else "warning"
        fields: dict[str, object] = {"logger": record.name, "text": record.getMessage()}
        if record.exc_info and record.exc_info[1]:
            fields["traceback"] = "".join(traceback.format_exception(record.exc_info[1]))
        self._log.write(level, "library", fields)

"""Points in time and spans of it, as CEL has them: in nanoseconds, and no clock anywhere. Pure.

A time keeps the zone that it was written with, which its text is told in; its parts
(``getHours()``) are those of UTC, as with cel-go, or of a zone that is named: ``UTC`` or hours and
minutes such as ``+02:00``; names of places would need a table that changes.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from berthmaster.placement.cel.errors import EvalError
from berthmaster.placement.cel.values import LEAST, MOST, Duration, Timestamp

SECOND_NS: Final = 10**9
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_S: Final = -62_135_596_800  # 0001-01-01T00:00:00Z
_LAST_S: Final = 253_402_300_799  # 9999-12-31T23:59:59Z
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:[.,](\d+))?(Z|[+-]\d\d:\d\d)", re.ASCII
)
_ZONE: Final = re.compile(r"([+-]?\d{1,2}):(\d{1,2})", re.ASCII)
_SPAN: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_UNITS_NS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": SECOND_NS,
    "m": 60 * SECOND_NS,
    "h": 3600 * SECOND_NS,
}


def time_at(ns: int, zone_s: int = 0) -> Timestamp:
    """A point in time. Raises EvalError outside the years 1 to 9999."""
    if not _FIRST_S <= ns // SECOND_NS <= _LAST_S:
        raise EvalError("a time outside the years 1 to 9999")
    return Timestamp(ns, zone_s)


def span_of(ns: int) -> Duration:
    """A span of time. Raises EvalError beyond 64 bits."""
    if not LEAST <= ns <= MOST:
        raise EvalError("a duration beyond 64 bits of nanoseconds")
    return Duration(ns)


def time_of(text: str) -> Timestamp:
    """A time as RFC 3339 writes it. Raises EvalError."""
    match = _TIME.fullmatch(text) if len(text) <= 64 else None
    try:
        if match is None:
            raise ValueError
        told, part, zone = match.groups()
        zone_s = 0 if zone == "Z" else _offset_s(zone)
        at = datetime.fromisoformat(f"{told}+00:00")
    except ValueError:
        raise EvalError(f"no time such as 2026-01-31T12:00:00Z: {text[:64]!r}") from None
    whole_s = (at - _EPOCH) // timedelta(seconds=1) - zone_s
    return time_at(whole_s * SECOND_NS + int(((part or "") + "0" * 9)[:9]), zone_s)


def _offset_s(zone: str) -> int:
    hours, minutes = int(zone[1:3]), int(zone[4:])
    if hours > 24 or minutes > 60:  # as Go has it
        raise ValueError
    return (hours * 60 + minutes) * (-60 if zone[0] == "-" else 60)


def span_in(text: str) -> Duration:
    """A duration as Go writes it: ``1h30m``, ``1.5s``, ``-100ms``. Raises EvalError."""
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return Duration(0)
    total, at = 0, 0
    while match := _SPAN.match(rest, at):
        number, unit = match.groups()
        whole, _, part = number.partition(".")
        if len(number) > 40:
            break
        total += int(whole or 0) * _UNITS_NS[unit]
        total += int(part or 0) * _UNITS_NS[unit] // 10 ** len(part)
        at = match.end()
    if not rest or at != len(rest):
        raise EvalError(f"no duration such as 1h30m or 1.5s: {text[:64]!r}")
    return span_of(-total if text[0] == "-" else total)


def text_of_time(of: Timestamp) -> str:
    """As RFC 3339 writes it, in its own zone."""
    part = of.ns % SECOND_NS
    told = _local(of, of.zone_s).strftime("%Y-%m-%dT%H:%M:%S").zfill(19)
    fraction = f".{part:09d}".rstrip("0").rstrip(".") if part else ""
    if not of.zone_s:
        return f"{told}{fraction}Z"
    hours, minutes = divmod(abs(of.zone_s) // 60, 60)
    return f"{told}{fraction}{'-' if of.zone_s < 0 else '+'}{hours:02d}:{minutes:02d}"


def text_of_span(of: Duration) -> str:
    """In seconds."""
    seconds, part = divmod(abs(of.ns), SECOND_NS)
    fraction = f".{part:09d}".rstrip("0") if part else ""
    return f"{'-' if of.ns < 0 else ''}{seconds}{fraction}s"


def _zone_s(zone: str) -> int:
    if zone in ("UTC", ""):
        return 0
    if match := _ZONE.fullmatch(zone):
        hours, minutes = int(match[1]), int(match[2])
        return hours * 3600 + (-minutes if match[1].startswith("-") else minutes) * 60
    raise EvalError(f"no zone such as UTC or +02:00: {zone[:64]!r}; places have no names here")


def _local(of: Timestamp, zone_s: int) -> datetime:
    """The same time in a zone, as a datetime that does not know it."""
    try:
        return _EPOCH + timedelta(seconds=of.ns // SECOND_NS + zone_s)
    except OverflowError:
        raise EvalError("a time outside the years 1 to 9999") from None


# What a time is asked for; months and days of the month and the year count from 0, but getDate.
PARTS: Final[Mapping[str, Callable[[datetime], int]]] = {
    "getFullYear": lambda at: at.year,
    "getMonth": lambda at: at.month - 1,
    "getDayOfYear": lambda at: at.timetuple().tm_yday - 1,
    "getDayOfMonth": lambda at: at.day - 1,
    "getDate": lambda at: at.day,
    "getDayOfWeek": lambda at: at.isoweekday() % 7,
    "getHours": lambda at: at.hour,
    "getMinutes": lambda at: at.minute,
    "getSeconds": lambda at: at.second,
}
_SPAN_PARTS_NS: Final = {
    "getHours": 3600 * SECOND_NS,
    "getMinutes": 60 * SECOND_NS,
    "getSeconds": SECOND_NS,
    "getMilliseconds": 1_000_000,
}


def part_of_time(name: str, of: Timestamp, zone: str | None) -> int:
    """One of PARTS, or the milliseconds of its second. Raises EvalError."""
    local = _local(of, _zone_s(zone or ""))
    if name == "getMilliseconds":
        return of.ns % SECOND_NS // 1_000_000
    return PARTS[name](local)


def part_of_span(name: str, of: Duration) -> int | None:
    """The whole span in hours, minutes, seconds or milliseconds, toward zero; None if not asked."""
    unit_ns = _SPAN_PARTS_NS.get(name)
    if unit_ns is None:
        return None
    whole = abs(of.ns) // unit_ns
    return -whole if of.ns < 0 else whole

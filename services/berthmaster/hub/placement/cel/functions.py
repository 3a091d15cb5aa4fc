"""Functions of expressions that CEL's library lacks, or that differ from cel-go's. Pure.

Each function takes and returns CEL's values as Python's: bool, int, float, str, bytearray, None,
list, dict, datetime and timedelta. Functions return a time or a duration as ``Timestamp`` or
``Duration``, because Python's own types have no nanoseconds. Functions raise NoValue and WrongType.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec

from berthmaster.hub.placement.cel.amounts import AMOUNTS, is_quantity
from berthmaster.hub.placement.cel.errors import NoValue, WrongType, integer

Value = Any
Native = Callable[..., Value]  # evaluates an expression over variables a, b, c by CEL alone
MAX_JSON_CHARS: Final = 65_536
JSON_LEVELS: Final = 50
_SECOND_NS: Final = 10**9
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DIGITS: Final = "[0-9](?:_?[0-9]){0,63}"
_NUMBER: Final = re.compile(
    rf"[+-]?(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})?", re.ASCII
)
_NO_NUMBER: Final = re.compile(r"[+-]?(?:inf|infinity)|nan", re.ASCII | re.IGNORECASE)
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:[.,](\d+))?(Z|[+-]\d\d:\d\d)", re.ASCII
)
_SPAN: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_UNITS_NS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": _SECOND_NS,
    "m": 60 * _SECOND_NS,
    "h": 3600 * _SECOND_NS,
}
_CLAUSE: Final = re.compile(r"%(%|(?:\.(\d{1,4}))?([sdfebxXo]))", re.ASCII)


class Timestamp(NamedTuple):
    """A point in time. CEL's library knows the class by its name and the names of its fields."""

    seconds: int
    nanos: int


class Duration(NamedTuple):
    """A duration, known to CEL's library like ``Timestamp``."""

    seconds: int
    nanos: int


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _texts(name: str, *values: Value) -> None:
    if not all(isinstance(value, str) for value in values):
        raise WrongType(f"{name} takes strings")


def _count(name: str, value: Value) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise WrongType(f"{name} takes a whole number")
    return value


# ---- conversions


def _int(of: Value) -> int:
    if isinstance(of, datetime):
        return (of - _EPOCH) // timedelta(seconds=1)
    if isinstance(of, timedelta):
        return of // timedelta(microseconds=1) * 1000
    if _is_number(of):
        if -(2**63) < of < 2**63:
            return int(of)
    elif not isinstance(of, str):
        raise WrongType("int takes a number, a string, a time or a duration")
    elif _WHOLE.fullmatch(of):
        return integer(int(of))
    raise NoValue(f"no whole number: {str(of)[:40]!r}")


def _double(of: Value) -> float:
    if _is_number(of):
        return float(of)
    _texts("double", of)
    if _NUMBER.fullmatch(of) and float(of) not in (float("inf"), float("-inf")):
        return float(of)
    if _NO_NUMBER.fullmatch(of):
        return float(of)
    raise NoValue(f"no number: {of[:40]!r}")


def _string(of: Value) -> str:
    if isinstance(of, bool):
        return "true" if of else "false"
    if isinstance(of, int | str):
        return str(of)
    if isinstance(of, float):
        return _shortest(of)
    if isinstance(of, bytearray):
        try:
            return of.decode()
        except UnicodeDecodeError:
            raise NoValue("bytes that are no text") from None
    raise WrongType("string takes a bool, a number, a string or bytes")


def _bool(of: Value) -> bool:
    if isinstance(of, bool):
        return of
    _texts("bool", of)
    if of in ("true", "True", "TRUE", "t", "T", "1"):
        return True
    if of in ("false", "False", "FALSE", "f", "F", "0"):
        return False
    raise NoValue(f"neither true nor false: {of[:40]!r}")


def _plain(value: float) -> str:
    """Return a double without an exponent, in as few digits as possible."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return format(Decimal(repr(value)), "f").removesuffix(".0")


def _shortest(value: float) -> str:
    """Return a double as Go's %g writes it.

    The exponent appears below -4 and from 6 on: 100000, 1e+06.
    """
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    exact = Decimal(repr(value)).normalize()
    power = exact.adjusted()
    if not value or -4 <= power < 6:
        return _plain(value)
    sign, digits, _ = exact.as_tuple()
    first, *rest = map(str, digits)
    part = f".{''.join(rest)}" if rest else ""
    return f"{'-' if sign else ''}{first}{part}e{'-' if power < 0 else '+'}{abs(power):02d}"


# ---- times


def _timestamp(of: Value) -> Timestamp:
    """Return a time from RFC 3339 text, or from seconds since 1970."""
    if isinstance(of, datetime):
        return Timestamp(_int(of), of.microsecond * 1000)
    if isinstance(of, int) and not isinstance(of, bool):
        return Timestamp(of, 0)
    _texts("timestamp", of)
    match = _TIME.fullmatch(of) if len(of) <= 64 else None
    try:
        if match is None:
            raise ValueError
        told, part, zone = match.groups()
        at = datetime.fromisoformat(f"{told}+00:00")
        seconds = (at - _EPOCH) // timedelta(seconds=1) - (0 if zone == "Z" else _offset_s(zone))
    except ValueError:
        raise NoValue(f"no time such as 2026-01-31T12:00:00Z: {of[:64]!r}") from None
    return Timestamp(seconds, int(((part or "") + "0" * 9)[:9]))


def _offset_s(zone: str) -> int:
    hours, minutes = int(zone[1:3]), int(zone[4:])
    if hours > 24 or minutes > 60:  # Go accepts 24 hours and 60 minutes
        raise ValueError
    return (hours * 60 + minutes) * (-60 if zone[0] == "-" else 60)


def _duration(of: Value) -> Duration:
    """Return a duration from Go's notation: ``1h30m``, ``1.5s``, ``-100ms``."""
    if isinstance(of, timedelta):
        return _span(_int(of))
    _texts("duration", of)
    rest = of[1:] if of[:1] in ("-", "+") else of
    total, at = 0, 0
    while match := _SPAN.match(rest, at):
        number, unit = match.groups()
        whole, _, part = number.partition(".")
        if len(number) > 40:
            break
        total += int(whole or 0) * _UNITS_NS[unit]
        total += int(part or 0) * _UNITS_NS[unit] // 10 ** len(part)
        at = match.end()
    if rest != "0" and (not rest or at != len(rest)):
        raise NoValue(f"no duration such as 1h30m or 1.5s: {of[:64]!r}")
    return _span(integer(-total if of[0] == "-" else total))


def _span(ns: int) -> Duration:
    seconds, nanos = divmod(abs(ns), _SECOND_NS)
    return Duration(-seconds, -nanos) if ns < 0 else Duration(seconds, nanos)


# ---- strings


def _index_of(name: str) -> Callable[..., int]:
    def index(of: Value, wanted: Value, start: Value = None) -> int:
        if isinstance(of, list) and start is None:
            places = range(len(of)) if name == "indexOf" else reversed(range(len(of)))
            return next((at for at in places if _same(of[at], wanted)), -1)
        _texts(name, of, wanted)
        if start is None:
            return int(of.find(wanted) if name == "indexOf" else of.rfind(wanted))
        at = _count(name, start)
        if not wanted:
            return at  # as in Go: an empty text is found at any position
        if at < 0:
            raise NoValue(f"{name}: {at} is before the text")
        if at >= len(of):
            return -1
        if name == "lastIndexOf":
            return int(of.rfind(wanted, 0, at + len(wanted)))
        return int(of.find(wanted, at))

    return index


def _split(of: Value, by: Value, count: Value = -1) -> list[str]:
    _texts("split", of, by)
    most = _count("split", count)
    if most == 0:
        return []
    if not by:
        chars = list(of)
        if most < 0 or most >= len(chars):
            return chars
        return [*chars[: most - 1], "".join(chars[most - 1 :])]
    return list(of.split(by, -1 if most < 0 else most - 1))


def _format(native: Native) -> Callable[..., str]:
    def formatted(of: Value, values: Value) -> str:
        """Check the arguments as cel-go does, and write doubles as Go does."""
        _texts("format", of)
        letters = [match[3] for match in _CLAUSE.finditer(of) if match[3]]
        if "%" in _CLAUSE.sub("", of) or not isinstance(values, list):
            raise WrongType("format knows %s %d %f %e %b %o %x %X %%, and takes a list")
        if len(letters) != len(values):
            raise WrongType(f"format: {len(letters)} clauses for {len(values)} values")
        shown, clauses = [], iter(zip(letters, values, strict=True))

        def clause(match: re.Match[str]) -> str:
            if not match[3]:
                return match[0]
            letter, value = next(clauses)
            if letter in "sd" and isinstance(value, float):
                shown.append(_plain(value))
                return "%s"
            if letter in "ds" and not _has_text(value):
                raise WrongType("format writes no times, types, quantities, lists of doubles")
            shown.append(value)
            return match[0]

        return str(native("a.format(b)", _CLAUSE.sub(clause, of), shown))

    return formatted


def _has_text(value: Value) -> bool:
    """Return whether the library writes a value as cel-go does.

    A Python map treats 1 and true as the same key.
    """
    if isinstance(value, list):
        return all(not isinstance(one, float) and _has_text(one) for one in value)
    if isinstance(value, Mapping):
        named = not is_quantity(value) and all(isinstance(key, str) for key in value)
        return named and _has_text(list(value.values()))
    return value is None or isinstance(value, int | float | str | bytearray)


def _found(native: Native) -> Callable[..., list[str]]:
    """Return a function that finds all matches with the library's own RE2.

    RE2 marks the matches in the text, and Python cuts the text at the marks.
    """

    def find_all(of: Value, pattern: Value, most: Value = -1) -> list[str]:
        _texts("find", of, pattern)
        number = 0
        while (mark := f"\x01{number}\x02") in of:
            number += 1
        marked: str = native("regex.replace(a, b, c)", of, pattern, mark + r"\0" + mark)
        found = marked.split(mark)[1::2]
        return found if _count("findAll", most) < 0 else found[:most]

    return find_all


def _parse_json(of: Value) -> Value:
    _texts("parseJSON", of)
    if len(of) > MAX_JSON_CHARS:
        raise NoValue(f"JSON of {len(of)} characters, at most {MAX_JSON_CHARS}")
    try:
        found = msgspec.json.decode(of)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise NoValue(f"no JSON: {str(error)[:100]}") from None
    return _from_json(found, JSON_LEVELS)


def _from_json(value: Value, levels: int) -> Value:
    if not levels:
        raise NoValue(f"JSON of more than {JSON_LEVELS} levels")
    if isinstance(value, list):
        return [_from_json(one, levels - 1) for one in value]
    if isinstance(value, dict):
        return {key: _from_json(one, levels - 1) for key, one in value.items()}
    return float(value) if _is_number(value) else value  # numbers are doubles, as in Go


# ---- lists


def _same(left: Value, right: Value) -> bool:
    """Return whether two values are equal in CEL: numbers by value, other kinds only within a
    kind."""
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


def _less(left: Value, right: Value) -> bool:
    alike = type(left) is type(right) or (_is_number(left) and _is_number(right))
    if not alike or not isinstance(left, bool | int | float | str | bytearray):
        raise WrongType("no order between two values of a list")
    return bool(left < right)


def _list(of: Value) -> Sequence[Value]:
    if not isinstance(of, list):
        raise WrongType("a list is expected")
    return of


def _sum(of: Value) -> Value:
    total: Value = 0
    for at, one in enumerate(_list(of)):
        if not _is_number(one) or (at and type(one) is not type(total)):
            raise WrongType("sum takes numbers of one type")
        total = total + one if at else one
    return integer(total) if isinstance(total, int) else total


def _extreme(name: str) -> Callable[[Value], Value]:
    def extreme(of: Value) -> Value:
        if not _list(of):
            raise NoValue(f"{name} of nothing")
        best = of[0]
        for one in of[1:]:
            try:
                if _less(one, best) if name == "min" else _less(best, one):
                    best = one
            except WrongType:
                continue  # skip values without an order, as cel-go does
        return best

    return extreme


def functions(native: Native) -> Mapping[str, Callable[..., Value]]:
    """Return all functions by their CEL names. ``native`` raises NoValue."""
    find_all = _found(native)
    return {
        **AMOUNTS,
        "int": _int,
        "double": _double,
        "string": _string,
        "bool": _bool,
        "timestamp": _timestamp,
        "duration": _duration,
        "indexOf": _index_of("indexOf"),
        "lastIndexOf": _index_of("lastIndexOf"),
        "split": _split,
        "format": _format(native),
        "find": lambda of, pattern: next(iter(find_all(of, pattern, 1)), ""),
        "findAll": find_all,
        "parseJSON": _parse_json,
        "sum": _sum,
        "min": _extreme("min"),
        "max": _extreme("max"),
        "isSorted": lambda of: not any(_less(two, one) for one, two in pairwise(_list(of))),
    }

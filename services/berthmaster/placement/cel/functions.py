"""Arithmetic and the functions that expressions may call. Pure.

Each takes the meter and its values, charges for what it looks at or makes, and raises WrongType for
kinds that it has no meaning for. Functions stand before brackets, methods behind a value; one name
may be both. Tables at the end.
"""

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from math import isinf, isnan, nan
from typing import Final

import msgspec

from berthmaster.placement.cel.amounts import QUANTITIES, VERSIONS, AmountMethod, sign
from berthmaster.placement.cel.errors import EvalError, WrongType
from berthmaster.placement.cel.formatting import formatted, quoted, shortest
from berthmaster.placement.cel.patterns import pattern
from berthmaster.placement.cel.times import (
    PARTS,
    SECOND_NS,
    part_of_span,
    part_of_time,
    span_in,
    span_of,
    text_of_span,
    text_of_time,
    time_at,
    time_of,
)
from berthmaster.placement.cel.values import (
    LEAST,
    MOST,
    TYPE_NAMES,
    Duration,
    Kind,
    Meter,
    Quantity,
    Timestamp,
    Value,
    Version,
    equal,
    from_json,
    integer,
    is_number,
    kind_of,
    less,
)

MAX_JSON_CHARS: Final = 65_536
_DIGITS: Final = "[0-9](?:_?[0-9]){0,63}"
_NUMBER: Final = re.compile(
    rf"[+-]?(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})?", re.ASCII
)
_NO_NUMBER: Final = re.compile(r"[+-]?(?:inf|infinity)|nan", re.ASCII | re.IGNORECASE)
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)


Function = Callable[..., Value]  # of the meter and the values, a method's own first


# ---- arithmetic


def arithmetic(sign: str, left: Value, right: Value, meter: Meter) -> Value:
    """``+ - * / %``."""
    if isinstance(left, str) and isinstance(right, str) and sign == "+":
        meter.text(len(left), len(right))
        return left + right
    if isinstance(left, list) and isinstance(right, list) and sign == "+":
        meter.charge(1 + len(left) + len(right))
        return left + right
    if isinstance(left, Timestamp | Duration) and isinstance(right, Timestamp | Duration):
        return _times(sign, left, right)
    if not (is_number(left) and is_number(right) and type(left) is type(right)):
        raise WrongType(f"no {sign} of {kind_of(left)} and {kind_of(right)}")
    if isinstance(left, float):
        return _doubles(sign, left, right)
    match sign:
        case "+":
            return integer(left + right)
        case "-":
            return integer(left - right)
        case "*":
            return integer(left * right)
    if right == 0:
        raise EvalError("division by zero")
    quotient = abs(left) // abs(right)
    if (left < 0) != (right < 0):
        quotient = -quotient  # toward zero, as CEL has it
    return integer(quotient) if sign == "/" else left - quotient * right


def _times(sign: str, left: Timestamp | Duration, right: Timestamp | Duration) -> Value:
    spans = isinstance(left, Duration), isinstance(right, Duration)
    if sign == "+" and all(spans):
        return span_of(left.ns + right.ns)
    if sign == "+" and any(spans):
        at = right if isinstance(right, Timestamp) else left
        return time_at(left.ns + right.ns, at.zone_s if isinstance(at, Timestamp) else 0)
    if sign == "-" and spans[0] == spans[1]:
        return span_of(left.ns - right.ns)
    if sign == "-" and isinstance(left, Timestamp):
        return time_at(left.ns - right.ns, left.zone_s)
    raise WrongType(f"no {sign} of {kind_of(left)} and {kind_of(right)}")


def _doubles(sign: str, left: float, right: float) -> float:
    match sign:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/" if right:
            return left / right
        case "/":
            return float("nan") if not left else left * float("inf")
    raise WrongType("no % of doubles")


def negative(value: Value) -> Value:
    """``-a``."""
    if isinstance(value, float):
        return -value
    if isinstance(value, int) and not isinstance(value, bool):
        return integer(-value)
    raise WrongType(f"- of a {kind_of(value)}")


# ---- kinds into each other


def _size(meter: Meter, of: Value) -> int:
    meter.charge(1)
    if isinstance(of, str | list | Mapping):
        return len(of)
    raise WrongType(f"a {kind_of(of)} has no size")


def _int(meter: Meter, of: Value) -> int:
    meter.charge(1)
    if isinstance(of, int) and not isinstance(of, bool):
        return of
    if isinstance(of, Timestamp):
        return of.ns // SECOND_NS
    if isinstance(of, Duration):
        return of.ns
    if not isinstance(of, float | str):
        raise WrongType(f"no int of a {kind_of(of)}")
    if isinstance(of, float):
        if LEAST < of < MOST:
            return int(of)
    elif _WHOLE.fullmatch(of):
        return integer(int(of))
    raise EvalError(f"no whole number: {str(of)[:40]!r}")


def _double(meter: Meter, of: Value) -> float:
    meter.charge(1)
    if is_number(of):
        return float(of)
    if isinstance(of, str):
        found = float(of) if _NUMBER.fullmatch(of) else nan
        if (isinf(found) or isnan(found)) and not _NO_NUMBER.fullmatch(of):
            raise EvalError(f"no number: {of[:40]!r}")
        return float(of) if isnan(found) else found
    raise WrongType(f"no double of a {kind_of(of)}")


def _string(meter: Meter, of: Value) -> str:
    meter.charge(1)
    if isinstance(of, bool):
        return "true" if of else "false"
    if isinstance(of, str):
        return of
    if isinstance(of, int):
        return str(of)
    if isinstance(of, float):
        return shortest(of)
    if isinstance(of, Timestamp):
        return text_of_time(of)
    if isinstance(of, Duration):
        return text_of_span(of)
    raise WrongType(f"no string of a {kind_of(of)}")


def _bool(meter: Meter, of: Value) -> bool:
    meter.charge(1)
    if isinstance(of, bool):
        return of
    if isinstance(of, str):
        if of in ("true", "True", "TRUE", "t", "T", "1"):
            return True
        if of in ("false", "False", "FALSE", "f", "F", "0"):
            return False
        raise EvalError(f"neither true nor false: {of[:40]!r}")
    raise WrongType(f"no bool of a {kind_of(of)}")


def _timestamp(meter: Meter, of: Value) -> Timestamp:
    meter.charge(1)
    if isinstance(of, Timestamp):
        return of
    if isinstance(of, str):
        return time_of(of)
    if isinstance(of, int) and not isinstance(of, bool):
        return time_at(of * SECOND_NS)
    raise WrongType(f"no timestamp of a {kind_of(of)}")


def _duration(meter: Meter, of: Value) -> Duration:
    meter.charge(1)
    if isinstance(of, Duration):
        return of
    if isinstance(of, str):
        meter.text(len(of))
        return span_in(of)
    raise WrongType(f"no duration of a {kind_of(of)}")


def _part(name: str) -> Callable[..., int]:
    def part(meter: Meter, of: Value, zone: Value = None) -> int:
        meter.charge(1)
        if isinstance(of, Timestamp) and (zone is None or isinstance(zone, str)):
            return part_of_time(name, of, zone)
        found = part_of_span(name, of) if isinstance(of, Duration) and zone is None else None
        if found is None:
            raise WrongType(f"{name} of a {kind_of(of)}")
        return found

    return part


def _type(meter: Meter, of: Value) -> Kind:
    meter.charge(1)
    return Kind(TYPE_NAMES[kind_of(of)])


def _sign(meter: Meter, of: Value) -> int:
    meter.charge(1)
    if not isinstance(of, Quantity):
        raise WrongType(f"sign of a {kind_of(of)}")
    return sign(of)


# ---- strings


def _texts(name: str, *values: Value) -> None:
    for value in values:
        if not isinstance(value, str):
            raise WrongType(f"{name} of a {kind_of(value)}")


def _on_texts(name: str, run: Callable[..., Value]) -> Callable[..., Value]:
    """Of strings only, and charged for their length and that of the answer."""

    def called(meter: Meter, *values: Value) -> Value:
        _texts(name, *values)
        meter.text(*(len(value) for value in values))
        answer = run(*values)
        if isinstance(answer, str):
            meter.text(len(answer))
        return answer

    return called


def _matches(meter: Meter, of: Value, wanted: Value) -> bool:
    _texts("matches", of, wanted)
    meter.text(len(of), len(wanted))
    return pattern(wanted).found_in(of, meter)


def _find(meter: Meter, of: Value, wanted: Value) -> str:
    _texts("find", of, wanted)
    meter.text(len(of), len(wanted))
    return pattern(wanted).first_in(of, meter)


def _find_all(meter: Meter, of: Value, wanted: Value, most: Value = -1) -> list[str]:
    _texts("findAll", of, wanted)
    if not isinstance(most, int) or isinstance(most, bool):
        raise WrongType(f"findAll takes a whole number, not a {kind_of(most)}")
    meter.text(len(of), len(wanted))
    return pattern(wanted).all_in(of, most, meter)


def _format(meter: Meter, of: Value, values: Value) -> str:
    _texts("format", of)
    if not isinstance(values, list):
        raise WrongType(f"format of a {kind_of(values)}")
    return formatted(meter, of, values)


def _place(of: Value, name: str, at: Value, most: int) -> int:
    if not isinstance(at, int) or isinstance(at, bool):
        raise WrongType(f"{name} takes a whole number, not a {kind_of(at)}")
    if not 0 <= at <= most:
        raise EvalError(f"{name}: {at} is beyond a length of {len(of)}")
    return at


def _char_at(meter: Meter, of: Value, at: Value) -> str:
    _texts("charAt", of)
    meter.charge(1)
    place = _place(of, "charAt", at, len(of))
    return str(of[place : place + 1])


def _substring(meter: Meter, of: Value, start: Value, end: Value = None) -> str:
    _texts("substring", of)
    last = _place(of, "substring", len(of) if end is None else end, len(of))
    first = _place(of, "substring", start, last)
    meter.text(last - first)
    return str(of[first:last])


def _index_of(name: str) -> Callable[..., int]:
    def index(meter: Meter, of: Value, wanted: Value, start: Value = None) -> int:
        if isinstance(of, list):
            if start is not None:
                raise WrongType(f"{name} of a list takes one value")
            places = range(len(of)) if name == "indexOf" else reversed(range(len(of)))
            return next((at for at in places if equal(of[at], wanted, meter)), -1)
        _texts(name, of, wanted)
        meter.text(len(of), len(wanted))
        if start is None:
            return int(of.find(wanted) if name == "indexOf" else of.rfind(wanted))
        if not isinstance(start, int) or isinstance(start, bool):
            raise WrongType(f"{name} takes a whole number, not a {kind_of(start)}")
        if not wanted:
            return start  # as in Go, wherever that is
        if start < 0:
            raise EvalError(f"{name}: {start} is before the text")
        if start >= len(of):
            return -1
        if name == "lastIndexOf":
            return int(of.rfind(wanted, 0, start + len(wanted)))
        return int(of.find(wanted, start))

    return index


def _replace(meter: Meter, of: Value, old: Value, new: Value, count: Value = -1) -> str:
    _texts("replace", of, old, new)
    if not isinstance(count, int) or isinstance(count, bool):
        raise WrongType(f"replace takes a whole number, not a {kind_of(count)}")
    most = len(of) // max(len(old), 1) + 1
    times = most if count < 0 else min(count, most)
    meter.text(len(of), times * len(new))
    return str(of.replace(old, new, count))


def _split(meter: Meter, of: Value, by: Value, count: Value = -1) -> list[str]:
    _texts("split", of, by)
    if not isinstance(count, int) or isinstance(count, bool):
        raise WrongType(f"split takes a whole number, not a {kind_of(count)}")
    meter.charge(1 + len(of))
    if count == 0:
        return []
    if not by:
        chars = list(of)
        cut = len(chars) if count < 0 else count - 1
        return chars if count < 0 or count >= len(chars) else [*chars[:cut], "".join(chars[cut:])]
    return list(of.split(by, -1 if count < 0 else count - 1))


def _join(meter: Meter, of: Value, by: Value = "") -> str:
    if not isinstance(of, list):
        raise WrongType(f"join of a {kind_of(of)}")
    _texts("join", by, *of)
    meter.text(sum(len(one) for one in of) + len(by) * len(of))
    return str(by.join(of))


def _parse_json(meter: Meter, of: Value) -> Value:
    _texts("parseJSON", of)
    if len(of) > MAX_JSON_CHARS:
        raise EvalError(f"JSON of {len(of)} characters, at most {MAX_JSON_CHARS}")
    meter.text(len(of))
    try:
        found = msgspec.json.decode(of)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise EvalError(f"no JSON: {str(error)[:100]}") from None
    return from_json(found, meter)


# ---- lists


def _numbers(name: str, of: Value, meter: Meter) -> list[Value]:
    if not isinstance(of, list):
        raise WrongType(f"{name} of a {kind_of(of)}")
    meter.charge(1 + len(of))
    return of


def _sum(meter: Meter, of: Value) -> Value:
    total: Value = None
    for one in _numbers("sum", of, meter):
        if not is_number(one) and not isinstance(one, Duration):
            raise WrongType(f"sum of a {kind_of(one)}")
        total = one if total is None else arithmetic("+", total, one, meter)
    return 0 if total is None else total


def _extreme(name: str) -> Callable[..., Value]:
    def extreme(meter: Meter, of: Value) -> Value:
        numbers = _numbers(name, of, meter)
        if not numbers:
            raise EvalError(f"{name} of nothing")
        best = numbers[0]
        for one in numbers[1:]:
            try:
                if less(one, best, meter) if name == "min" else less(best, one, meter):
                    best = one
            except WrongType:
                continue  # what has no order is passed over, as in cel-go
        return best

    return extreme


def _is_sorted(meter: Meter, of: Value) -> bool:
    numbers = _numbers("isSorted", of, meter)
    return not any(less(two, one, meter) for one, two in pairwise(numbers))


def _reverse(meter: Meter, of: Value) -> str:
    _texts("reverse", of)
    meter.text(len(of))
    return str(of[::-1])


# ---- quantities and versions


def _amounts(name: str) -> Callable[..., Value]:
    """A method that quantities and versions have, each in its own way."""
    of_quantity: AmountMethod | None = QUANTITIES.get(name)
    of_version: AmountMethod | None = VERSIONS.get(name)

    def called(meter: Meter, of: Value, *values: Value) -> Value:
        meter.charge(1)
        if isinstance(of, Quantity) and of_quantity is not None:
            return of_quantity(of, *values)
        if isinstance(of, Version) and of_version is not None:
            return of_version(of, *values)
        raise WrongType(f"{name} of a {kind_of(of)}")

    return called


def _made(name: str, table: Mapping[str, AmountMethod]) -> Callable[..., Value]:
    def called(meter: Meter, of: Value) -> Value:
        _texts(name, of)
        meter.text(len(of))
        return table[name](of)

    return called


_SPACE: Final = " \t\n\v\f\r\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
_LOWER: Final = {code: code + 32 for code in range(65, 91)}
_UPPER: Final = {code: code - 32 for code in range(97, 123)}
FUNCTIONS: Final[Mapping[str, Function]] = {
    "size": _size,
    "int": _int,
    "double": _double,
    "string": _string,
    "bool": _bool,
    "dyn": lambda meter, of: of,
    "type": _type,
    "timestamp": _timestamp,
    "duration": _duration,
    "strings.quote": _on_texts("strings.quote", quoted),
    "sign": _sign,
    "matches": _matches,
    **{name: _made(name, QUANTITIES) for name in ("quantity", "isQuantity")},
    **{name: _made(name, VERSIONS) for name in ("semver", "isSemver")},
}
METHODS: Final[Mapping[str, Function]] = {
    "size": _size,
    "matches": _matches,
    "startsWith": _on_texts("startsWith", str.startswith),
    "endsWith": _on_texts("endsWith", str.endswith),
    "contains": _on_texts("contains", lambda of, what: what in of),
    "charAt": _char_at,
    "substring": _substring,
    "indexOf": _index_of("indexOf"),
    "lastIndexOf": _index_of("lastIndexOf"),
    "replace": _replace,
    "split": _split,
    "join": _join,
    "trim": _on_texts("trim", lambda of: of.strip(_SPACE)),
    "lowerAscii": _on_texts("lowerAscii", lambda of: of.translate(_LOWER)),
    "upperAscii": _on_texts("upperAscii", lambda of: of.translate(_UPPER)),
    "reverse": _reverse,
    "parseJSON": _parse_json,
    "sum": _sum,
    "min": _extreme("min"),
    "max": _extreme("max"),
    "isSorted": _is_sorted,
    **{name: _amounts(name) for name in ("isInteger", "asInteger", "asApproximateFloat")},
    **{name: _amounts(name) for name in ("major", "minor", "patch")},
    **{name: _amounts(name) for name in ("isGreaterThan", "isLessThan", "compareTo", "add", "sub")},
    "format": _format,
    "find": _find,
    "findAll": _find_all,
    **{name: _part(name) for name in (*PARTS, "getMilliseconds")},
}

"""Arithmetic and the functions that expressions may call. Pure.

Each takes the meter and its values, charges for what it looks at or makes, and raises WrongType for
kinds that it has no meaning for. Functions stand before brackets, methods behind a value; one name
may be both. Tables at the end.
"""

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from math import isfinite
from typing import Final, NamedTuple

import msgspec

from berthmaster.placement.cel.amounts import QUANTITIES, VERSIONS, AmountMethod
from berthmaster.placement.cel.errors import EvalError, WrongType
from berthmaster.placement.cel.patterns import pattern
from berthmaster.placement.cel.values import (
    Meter,
    Quantity,
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
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)


class Function(NamedTuple):
    """What is called, and with how many values (a method's own not counted)."""

    run: Callable[..., Value]
    arities: tuple[int, ...]


# ---- arithmetic


def arithmetic(sign: str, left: Value, right: Value, meter: Meter) -> Value:
    """``+ - * / %``."""
    if isinstance(left, str) and isinstance(right, str) and sign == "+":
        meter.text(len(left), len(right))
        return left + right
    if isinstance(left, list) and isinstance(right, list) and sign == "+":
        meter.charge(1 + len(left) + len(right))
        return left + right
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
    if not isinstance(of, float | str):
        raise WrongType(f"no int of a {kind_of(of)}")
    if isinstance(of, float):
        if isfinite(of):
            return integer(int(of))
    elif _WHOLE.fullmatch(of):
        return integer(int(of))
    raise EvalError(f"no whole number: {str(of)[:40]!r}")


def _double(meter: Meter, of: Value) -> float:
    meter.charge(1)
    if is_number(of):
        return float(of)
    if isinstance(of, str):
        try:
            if "_" in of or len(of) > 64 or of != of.strip():
                raise ValueError
            return float(of)
        except ValueError:
            raise EvalError(f"no number: {of[:40]!r}") from None
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
        return str(int(of)) if of.is_integer() and abs(of) < 1e15 else repr(of)
    raise WrongType(f"no string of a {kind_of(of)}")


def _bool(meter: Meter, of: Value) -> bool:
    meter.charge(1)
    if isinstance(of, bool):
        return of
    if isinstance(of, str):
        if of in ("true", "True", "TRUE", "t", "1"):
            return True
        if of in ("false", "False", "FALSE", "f", "0"):
            return False
        raise EvalError(f"neither true nor false: {of[:40]!r}")
    raise WrongType(f"no bool of a {kind_of(of)}")


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
        if name == "lastIndexOf":
            end = len(of) if start is None else _place(of, name, start, len(of))
            return int(of.rfind(wanted, 0, end + len(wanted)))
        return int(of.find(wanted, 0 if start is None else _place(of, name, start, len(of))))

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
        if not is_number(one):
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
            if less(one, best, meter) if name == "min" else less(best, one, meter):
                best = one
        return best

    return extreme


def _is_sorted(meter: Meter, of: Value) -> bool:
    numbers = _numbers("isSorted", of, meter)
    return not any(less(two, one, meter) for one, two in pairwise(numbers))


def _reverse(meter: Meter, of: Value) -> Value:
    meter.charge(1)
    if isinstance(of, str | list):
        meter.charge(len(of))
        return of[::-1]
    raise WrongType(f"reverse of a {kind_of(of)}")


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


_LOWER: Final = {code: code + 32 for code in range(65, 91)}
_UPPER: Final = {code: code - 32 for code in range(97, 123)}
FUNCTIONS: Final[Mapping[str, Function]] = {
    "size": Function(_size, (1,)),
    "int": Function(_int, (1,)),
    "double": Function(_double, (1,)),
    "string": Function(_string, (1,)),
    "bool": Function(_bool, (1,)),
    "dyn": Function(lambda meter, of: of, (1,)),
    "matches": Function(_matches, (2,)),
    **{name: Function(_made(name, QUANTITIES), (1,)) for name in ("quantity", "isQuantity")},
    **{name: Function(_made(name, VERSIONS), (1,)) for name in ("semver", "isSemver")},
}
METHODS: Final[Mapping[str, Function]] = {
    "size": Function(_size, (0,)),
    "matches": Function(_matches, (1,)),
    "startsWith": Function(_on_texts("startsWith", str.startswith), (1,)),
    "endsWith": Function(_on_texts("endsWith", str.endswith), (1,)),
    "contains": Function(_on_texts("contains", lambda of, what: what in of), (1,)),
    "charAt": Function(_char_at, (1,)),
    "substring": Function(_substring, (1, 2)),
    "indexOf": Function(_index_of("indexOf"), (1, 2)),
    "lastIndexOf": Function(_index_of("lastIndexOf"), (1, 2)),
    "replace": Function(_replace, (2, 3)),
    "split": Function(_split, (1, 2)),
    "join": Function(_join, (0, 1)),
    "trim": Function(_on_texts("trim", str.strip), (0,)),
    "lowerAscii": Function(_on_texts("lowerAscii", lambda of: of.translate(_LOWER)), (0,)),
    "upperAscii": Function(_on_texts("upperAscii", lambda of: of.translate(_UPPER)), (0,)),
    "reverse": Function(_reverse, (0,)),
    "parseJSON": Function(_parse_json, (0,)),
    "sum": Function(_sum, (0,)),
    "min": Function(_extreme("min"), (0,)),
    "max": Function(_extreme("max"), (0,)),
    "isSorted": Function(_is_sorted, (0,)),
    **{
        name: Function(_amounts(name), (0,))
        for name in ("sign", "isInteger", "asInteger", "asApproximateFloat")
    },
    **{name: Function(_amounts(name), (0,)) for name in ("major", "minor", "patch")},
    **{
        name: Function(_amounts(name), (1,))
        for name in ("isGreaterThan", "isLessThan", "compareTo", "add", "sub")
    },
}

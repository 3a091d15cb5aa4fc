"""``"%s has %d".format([…])``, and numbers as Go writes them. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from berthmaster.placement.cel.errors import EvalError, Malformed, WrongType
from berthmaster.placement.cel.times import text_of_span, text_of_time
from berthmaster.placement.cel.types import BOOL, DOUBLE, INT, QUANTITY, SEMVER, STRING, Type
from berthmaster.placement.cel.values import (
    Duration,
    Kind,
    Meter,
    Timestamp,
    Value,
    is_number,
    key_value,
    kind_of,
)

MAX_PRECISION: Final = 1000
_CLAUSE: Final = re.compile(r"%(?:(%)|(?:\.(\d{1,4}))?([sdfebxXo]))", re.ASCII)
# What each clause can write, of what has a type before it is run.
_WRITES: Final[Mapping[str, frozenset[Type]]] = {
    "d": frozenset({INT, DOUBLE}),
    "f": frozenset({INT, DOUBLE}),
    "e": frozenset({INT, DOUBLE}),
    "b": frozenset({INT, BOOL}),
    "o": frozenset({INT}),
    "x": frozenset({INT, STRING}),
    "X": frozenset({INT, STRING}),
}


def clauses(text: str) -> list[tuple[str, str, int]]:
    """(text before it, letter, digits) of each clause; the last has no letter. Digits matter to %f
    and %e only. Raises Malformed."""
    found: list[tuple[str, str, int]] = []
    before, at = "", 0
    while (sign := text.find("%", at)) >= 0:
        before += text[at:sign]
        match = _CLAUSE.match(text, sign)
        if match is None or int(match[2] or 0) > MAX_PRECISION:
            told = text[sign : sign + 8]
            raise Malformed(f"format: {told!r} is none of %s %d %f %e %b %o %x %X %%, %.2f or %.2e")
        if match[1]:
            before += "%"
        else:
            found.append((before, match[3], int(match[2]) if match[2] else 6))
            before = ""
        at = match.end()
    return [*found, (before + text[at:], "", 0)]


def checked(text: str, types: Sequence[Type]) -> None:
    """Raises Malformed if a format cannot write what has these types."""
    letters = [letter for _, letter, _ in clauses(text) if letter]
    if len(letters) != len(types):
        raise Malformed(f"format: {len(letters)} clauses for {len(types)} values")
    for letter, one in zip(letters, types, strict=True):
        if one.variable or one.name == "dyn":
            continue
        bad = one in (QUANTITY, SEMVER) if letter == "s" else one not in _WRITES[letter]
        if bad:
            raise Malformed(f"format: %{letter} of a {one}")


def formatted(meter: Meter, text: str, values: list[Value]) -> str:
    """The text with the values in it. Raises EvalError, WrongType."""
    try:
        parts = clauses(text)
    except Malformed as error:
        raise EvalError(str(error)) from None
    if len(parts) - 1 != len(values):
        raise EvalError(f"format: {len(parts) - 1} clauses for {len(values)} values")
    meter.charge(len(text))
    made: list[str] = []
    for (before, letter, digits), value in zip(parts, [*values, None], strict=True):
        made.append(before)
        if letter:
            one = _written(meter, letter, digits, value)
            meter.text(len(one))
            made.append(one)
    return "".join(made)


def _written(meter: Meter, letter: str, digits: int, value: Value) -> str:
    if letter == "s":
        return told(meter, value)
    number = is_number(value)
    whole = number and isinstance(value, int)
    if letter == "d" and number:
        return str(value) if whole else plain(value)
    if letter in "fe" and number:
        return _special(float(value)) or f"{float(value):.{digits}{letter}}"
    if letter in "bo" and whole:
        return format(value, letter)
    if letter == "b" and isinstance(value, bool):
        return "1" if value else "0"
    if letter in "xX" and whole:
        return format(value, letter)
    if letter in "xX" and isinstance(value, str):
        meter.text(2 * len(value))
        hexed = value.encode(errors="surrogatepass").hex()
        return hexed.upper() if letter == "X" else hexed
    raise WrongType(f"format: %{letter} of a {kind_of(value)}")


def told(meter: Meter, value: Value) -> str:
    """What %s writes. Raises WrongType."""
    meter.charge(1)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        meter.text(len(value))
        return value
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return plain(value)
    if value is None:
        return "null"
    if isinstance(value, Kind):
        return value.name
    if isinstance(value, Timestamp):
        return text_of_time(Timestamp(value.ns))
    if isinstance(value, Duration):
        return text_of_span(value)
    if isinstance(value, list):
        return f"[{', '.join(told(meter, one) for one in value)}]"
    if isinstance(value, Mapping):
        pairs = sorted(
            (told(meter, key_value(key)), told(meter, one)) for key, one in value.items()
        )
        return f"{{{', '.join(f'{key}: {one}' for key, one in pairs)}}}"
    raise WrongType(f"format: %s of a {kind_of(value)}")


def _special(value: float) -> str:
    if value != value:
        return "NaN"
    return {float("inf"): "Infinity", float("-inf"): "-Infinity"}.get(value, "")


def plain(value: float) -> str:
    """A double without an exponent, in as few digits as it needs."""
    if special := _special(value):
        return special
    sign, digits, exponent = _digits(value)
    if exponent >= len(digits):
        return sign + digits + "0" * (exponent - len(digits))
    if exponent <= 0:
        return f"{sign}0.{'0' * -exponent}{digits}"
    return f"{sign}{digits[:exponent]}.{digits[exponent:]}"


def shortest(value: float) -> str:
    """A double as Go's %g writes it, with an exponent below -4 and from 6 on: 100000, 1e+06."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    sign, digits, point = _digits(value)
    power = point - 1
    if -4 <= power < 6 or not value:
        return plain(value)
    fraction = f".{digits[1:]}" if digits[1:] else ""
    return f"{sign}{digits[0]}{fraction}e{'-' if power < 0 else '+'}{abs(power):02d}"


def _digits(value: float) -> tuple[str, str, int]:
    """(sign, digits, how many of them stand before the point), as few as mean the value."""
    written = repr(value)
    sign = "-" if written.startswith("-") else ""
    mantissa, _, power = written.removeprefix("-").partition("e")
    whole, _, part = mantissa.partition(".")
    digits = (whole + part).lstrip("0")
    point = len(whole) + int(power or 0) - (len(whole + part) - len(digits))
    return sign, digits.rstrip("0") or "0", point if digits.rstrip("0") else 1


def quoted(value: str) -> str:
    """With quotation marks around it and escapes in it."""
    escapes: dict[str, Any] = {
        "\a": "\\a",
        "\b": "\\b",
        "\f": "\\f",
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
        "\v": "\\v",
        "\\": "\\\\",
        '"': '\\"',
    }
    return '"' + "".join(escapes.get(char, char) for char in value) + '"'

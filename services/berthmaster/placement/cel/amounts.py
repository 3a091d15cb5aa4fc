"""Quantities and semantic versions, as the Kubernetes libraries of CEL have them. Pure."""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Final

from berthmaster.kubernetes.quantity import QuantityError, parse_quantity
from berthmaster.placement.cel.errors import EvalError, WrongType
from berthmaster.placement.cel.values import (
    LEAST,
    MOST,
    Quantity,
    Value,
    Version,
    integer,
    is_number,
    kind_of,
)

AmountMethod = Callable[..., Value]
_PARTS: Final = re.compile(
    r"[+-]?\d*(?:\.(\d*))?(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?\d+))?", re.ASCII
)
_MOST_OF_A_VERSION: Final = 2**64 - 1
_DECIMAL: Final = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_SEMVER: Final = re.compile(
    r"(0|[1-9]\d{0,19})\.(0|[1-9]\d{0,19})\.(0|[1-9]\d{0,19})"
    r"(?:-((?!0\d+(?:[.+]|$))[0-9A-Za-z-]{1,64}"
    r"(?:\.(?!0\d+(?:[.+]|$))[0-9A-Za-z-]{1,64}){0,16}))?(?:\+[0-9A-Za-z.-]{1,128})?",
    re.ASCII,
)


def _parsed(text: str) -> Quantity:
    negative = text.startswith("-")
    amount = parse_quantity(text[1:] if negative else text)
    return Quantity(-amount if negative else amount, _scale(text))


def _scale(text: str) -> int | None:
    """The power of ten that Go keeps it in: what has a fraction there is no integer, even if it is
    one by value (1000m)."""
    match = _PARTS.fullmatch(text)
    if match is None:
        return None
    fraction, suffix, exponent = match[1] or "", match[2] or "", match[3]
    if suffix.endswith("i"):
        return None if fraction else 0
    power = int(exponent) if exponent else 3 * (_DECIMAL.index(suffix) - _DECIMAL.index(""))
    return power - len(fraction)


def _together(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else min(one, other)


def _quantity(text: str) -> Quantity:
    try:
        return _parsed(text)
    except QuantityError as error:
        raise EvalError(str(error)) from None


def _is_quantity(text: str) -> bool:
    try:
        _parsed(text)
    except QuantityError:
        return False
    return True


def _other(value: Value) -> Quantity:
    if isinstance(value, Quantity):
        return value
    if isinstance(value, int) and is_number(value):
        return Quantity(Fraction(value))
    raise WrongType(f"a quantity and a {kind_of(value)}")


def _added(of: Quantity, value: Value, sign: int) -> Quantity:
    other = _other(value)
    if not other.amount:
        return of
    scale = _together(of.scale, other.scale) if of.amount else other.scale
    return Quantity(of.amount + sign * other.amount, scale)


def _is_integer(of: Quantity) -> bool:
    return of.scale is not None and of.scale >= 0 and LEAST <= of.amount <= MOST


def _as_integer(of: Quantity) -> int:
    if not _is_integer(of):
        raise EvalError("a quantity that is no whole number")
    return integer(of.amount.numerator)


def _compare(left: Value, right: Value) -> int:
    return int(left > right) - int(left < right)


QUANTITIES: Final[Mapping[str, AmountMethod]] = {
    "quantity": _quantity,
    "isQuantity": _is_quantity,
    "isInteger": _is_integer,
    "asInteger": _as_integer,
    "asApproximateFloat": lambda of: float(of.amount),
    "isGreaterThan": lambda of, other: of.amount > _other(other).amount,
    "isLessThan": lambda of, other: of.amount < _other(other).amount,
    "compareTo": lambda of, other: _compare(of.amount, _other(other).amount),
    "add": lambda of, other: _added(of, other, 1),
    "sub": lambda of, other: _added(of, other, -1),
}


def sign(of: Value) -> int:
    """Whether a quantity is less than nothing, nothing or more."""
    return _compare(_other(of).amount, 0)


def _semver(text: str) -> Version:
    match = _SEMVER.fullmatch(text)
    if match is None:
        raise EvalError(f"{text[:64]!r} is no semantic version such as 1.2.3")
    major, minor, patch, pre = match.groups()
    numbers = int(major), int(minor), int(patch)
    if max(numbers) > _MOST_OF_A_VERSION:
        raise EvalError(f"{text[:64]!r}: a number beyond 64 bits")
    return Version(*numbers, tuple(pre.split(".")) if pre else ())


def _is_semver(text: str) -> bool:
    try:
        _semver(text)
    except EvalError:
        return False
    return True


def _version(value: Value) -> Version:
    if not isinstance(value, Version):
        raise WrongType(f"a semver and a {kind_of(value)}")
    return value


VERSIONS: Final[Mapping[str, AmountMethod]] = {
    "semver": _semver,
    "isSemver": _is_semver,
    "major": lambda of: integer(of.major),
    "minor": lambda of: integer(of.minor),
    "patch": lambda of: integer(of.patch),
    "isGreaterThan": lambda of, other: of.order() > _version(other).order(),
    "isLessThan": lambda of, other: of.order() < _version(other).order(),
    "compareTo": lambda of, other: _compare(of.order(), _version(other).order()),
}

"""Quantities and semantic versions, as the Kubernetes libraries of CEL have them. Pure."""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Final

from berthmaster.kubernetes.quantity import QuantityError, parse_quantity
from berthmaster.placement.cel.errors import EvalError, WrongType
from berthmaster.placement.cel.values import Quantity, Value, Version, integer, is_number, kind_of

AmountMethod = Callable[..., Value]
_SEMVER: Final = re.compile(
    r"(0|[1-9]\d{0,17})\.(0|[1-9]\d{0,17})\.(0|[1-9]\d{0,17})"
    r"(?:-([0-9A-Za-z-]{1,64}(?:\.[0-9A-Za-z-]{1,64}){0,16}))?(?:\+[0-9A-Za-z.-]{1,128})?",
    re.ASCII,
)


def _parsed(text: str) -> Quantity:
    negative = text.startswith("-")
    amount = parse_quantity(text[1:] if negative else text)
    return Quantity(-amount if negative else amount)


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


def _other(value: Value) -> Fraction:
    if isinstance(value, Quantity):
        return value.amount
    if isinstance(value, int) and is_number(value):
        return Fraction(value)
    raise WrongType(f"a quantity and a {kind_of(value)}")


def _as_integer(of: Quantity) -> int:
    if of.amount.denominator != 1:
        raise EvalError("a quantity that is no whole number")
    return integer(of.amount.numerator)


def _compare(left: Value, right: Value) -> int:
    return int(left > right) - int(left < right)


QUANTITIES: Final[Mapping[str, AmountMethod]] = {
    "quantity": _quantity,
    "isQuantity": _is_quantity,
    "sign": lambda of: _compare(of.amount, 0),
    "isInteger": lambda of: of.amount.denominator == 1,
    "asInteger": _as_integer,
    "asApproximateFloat": lambda of: float(of.amount),
    "isGreaterThan": lambda of, other: of.amount > _other(other),
    "isLessThan": lambda of, other: of.amount < _other(other),
    "compareTo": lambda of, other: _compare(of.amount, _other(other)),
    "add": lambda of, other: Quantity(of.amount + _other(other)),
    "sub": lambda of, other: Quantity(of.amount - _other(other)),
}


def _semver(text: str) -> Version:
    match = _SEMVER.fullmatch(text)
    if match is None:
        raise EvalError(f"{text[:64]!r} is no semantic version such as 1.2.3")
    major, minor, patch, pre = match.groups()
    parts = tuple(pre.split(".")) if pre else ()
    return Version(int(major), int(minor), int(patch), parts)


def _version(value: Value) -> Version:
    if not isinstance(value, Version):
        raise WrongType(f"a semver and a {kind_of(value)}")
    return value


VERSIONS: Final[Mapping[str, AmountMethod]] = {
    "semver": _semver,
    "isSemver": lambda text: _SEMVER.fullmatch(text) is not None,
    "major": lambda of: of.major,
    "minor": lambda of: of.minor,
    "patch": lambda of: of.patch,
    "isGreaterThan": lambda of, other: of.order() > _version(other).order(),
    "isLessThan": lambda of, other: of.order() < _version(other).order(),
    "compareTo": lambda of, other: _compare(of.order(), _version(other).order()),
}

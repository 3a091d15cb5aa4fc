"""Quantities and semantic versions, as in the CEL libraries of Kubernetes. Pure.

CEL's Python library supports no types of its users. The checker knows ``kubernetes.Quantity`` and
``kubernetes.Semver``. An evaluation carries a quantity as a map and a version as a list. Example:
``1`` and ``1000m`` must be equal, although only ``1`` is an integer to Go. So the flag of an
integer is 1 and of a fraction 1.0, because CEL treats 1 and 1.0 as equal.
"""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final, NamedTuple

from berthmaster.hub.placement.cel.errors import NoValue, WrongType, integer
from berthmaster.lib.kube.quantity import QuantityError, parse_quantity

Value = Any
_AMOUNT: Final = "kubernetes.Quantity"
_WHOLE: Final = "whole"
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


class Quantity(NamedTuple):
    """A quantity of Kubernetes."""

    amount: Fraction
    whole: bool  # False if Go keeps a fraction, as for 1000m, which equals 1

    def value(self) -> Value:
        """Return the value that an evaluation carries."""
        return {_AMOUNT: str(self.amount), _WHOLE: 1 if self.whole else 1.0}


class Version(NamedTuple):
    """A semantic version without build metadata."""

    major: int
    minor: int
    patch: int
    pre: tuple[str, ...] = ()

    def order(self) -> tuple[Any, ...]:
        """Return the key by which versions are compared."""
        parts = tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in self.pre)
        return self.major, self.minor, self.patch, not self.pre, parts

    def value(self) -> Value:
        """Return the value that an evaluation carries."""
        return [str(self.major), str(self.minor), str(self.patch), *self.pre]


def is_quantity(value: Value) -> bool:
    """Return whether a value of an evaluation is a quantity."""
    return isinstance(value, Mapping) and value.keys() == {_AMOUNT, _WHOLE}


def _quantity_of(value: Value) -> Quantity:
    if not is_quantity(value):
        raise WrongType("a quantity is expected")
    return Quantity(Fraction(value[_AMOUNT]), isinstance(value[_WHOLE], int))


def _version_of(value: Value) -> Version:
    if not isinstance(value, list) or len(value) < 3:
        raise WrongType("a semver is expected")
    return Version(int(value[0]), int(value[1]), int(value[2]), tuple(value[3:]))


def _parsed(text: Value) -> Quantity:
    if not isinstance(text, str):
        raise WrongType("a quantity is made of a string")
    negative = text.startswith("-")
    try:
        amount = parse_quantity(text[1:] if negative else text)
    except QuantityError as error:
        raise NoValue(str(error)) from None
    return Quantity(-amount if negative else amount, _whole(text))


def _whole(text: str) -> bool:
    match = _PARTS.fullmatch(text)
    if match is None:
        return False
    fraction, suffix, exponent = match[1] or "", match[2] or "", match[3]
    if suffix.endswith("i"):
        return not fraction
    power = int(exponent) if exponent else 3 * (_DECIMAL.index(suffix) - _DECIMAL.index(""))
    return power >= len(fraction)


def _other(value: Value) -> Quantity:
    if isinstance(value, int) and not isinstance(value, bool):
        return Quantity(Fraction(value), True)
    return _quantity_of(value)


def _added(of: Value, value: Value, sign: int) -> Value:
    one, other = _quantity_of(of), _other(value)
    if not other.amount:
        return of
    whole = other.whole and (one.whole or not one.amount)
    return Quantity(one.amount + sign * other.amount, whole).value()


def _is_integer(of: Value) -> bool:
    one = _quantity_of(of)
    return one.whole and -(2**63) <= one.amount < 2**63


def _as_integer(of: Value) -> int:
    if not _is_integer(of):
        raise NoValue("a quantity that is no whole number")
    return integer(_quantity_of(of).amount.numerator)


def _sign(of: Value) -> int:
    return _compare(_quantity_of(of).amount, 0)


def _compare(left: Value, right: Value) -> int:
    return int(left > right) - int(left < right)


def compare(of: Value, other: Value) -> int:
    """Compare two quantities or two versions: return -1, 0 or 1. Raises WrongType."""
    if is_quantity(of):
        return _compare(_quantity_of(of).amount, _quantity_of(other).amount)
    return _compare(_version_of(of).order(), _version_of(other).order())


def _semver(text: Value) -> Version:
    if not isinstance(text, str):
        raise WrongType("a semver is made of a string")
    match = _SEMVER.fullmatch(text)
    if match is None:
        raise NoValue(f"{text[:64]!r} is no semantic version such as 1.2.3")
    major, minor, patch, pre = match.groups()
    numbers = int(major), int(minor), int(patch)
    if max(numbers) > _MOST_OF_A_VERSION:
        raise NoValue(f"{text[:64]!r}: a number beyond 64 bits")
    return Version(*numbers, tuple(pre.split(".")) if pre else ())


def _is(parse: Callable[[Value], Value]) -> Callable[[Value], bool]:
    def parses(text: Value) -> bool:
        try:
            parse(text)
        except NoValue:
            return False
        return True

    return parses


AMOUNTS: Final[Mapping[str, Callable[..., Value]]] = {
    "quantity": lambda text: _parsed(text).value(),
    "isQuantity": _is(_parsed),
    "sign": _sign,
    "isInteger": _is_integer,
    "asInteger": _as_integer,
    "asApproximateFloat": lambda of: float(_quantity_of(of).amount),
    "add": lambda of, other: _added(of, other, 1),
    "sub": lambda of, other: _added(of, other, -1),
    "semver": lambda text: _semver(text).value(),
    "isSemver": _is(_semver),
    "major": lambda of: integer(_version_of(of).major),
    "minor": lambda of: integer(_version_of(of).minor),
    "patch": lambda of: integer(_version_of(of).patch),
    "isGreaterThan": lambda of, other: compare(of, other) > 0,
    "isLessThan": lambda of, other: compare(of, other) < 0,
    "compareTo": compare,
}

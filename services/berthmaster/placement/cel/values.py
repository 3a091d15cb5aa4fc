"""The values of an expression, how they compare, and what looking at them costs. Pure.

CEL's values are Python's: bool, int (64 bits), float, str, None, list, dict (all that JSON has);
and Quantity, Version, Timestamp, Duration and Kind, the type of one. Python's own equality will not
do: ``True == 1`` there, and a comparison of two structures could cost more than a whole evaluation
may. For the same reason a map's keys are Python's only where they are strings; numbers and bools
are wrapped (``Key``).
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, NamedTuple

from berthmaster.placement.cel.errors import EvalError, TooCostly, WrongType

LEAST: Final = -(2**63)
MOST: Final = 2**63 - 1
Value = Any  # one of those that this module names
CHARS_A_STEP: Final = 10
JSON_LEVELS: Final = 50


class Meter:
    """What may still be spent, by whoever shares it."""

    __slots__ = ("left",)

    def __init__(self, limit: int) -> None:
        self.left = limit

    def charge(self, cost: int) -> None:
        """Spend. Raises TooCostly when there is not so much left."""
        self.left -= cost
        if self.left < 0:
            raise TooCostly("it costs more than an evaluation may")

    def text(self, *lengths: int) -> None:
        """Spend for strings of these lengths."""
        self.charge(1 + sum(lengths) // CHARS_A_STEP)


class Quantity(NamedTuple):
    """A quantity of Kubernetes."""

    amount: Fraction
    scale: int | None = 0  # of ten, as Go keeps it; None = kept with a fraction

    def __repr__(self) -> str:
        return f"quantity {float(self.amount):g}"


class Version(NamedTuple):
    """A semantic version; build metadata do not count."""

    major: int
    minor: int
    patch: int
    pre: tuple[str, ...] = ()

    def order(self) -> tuple[Any, ...]:
        """By what versions are compared."""
        parts = tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in self.pre)
        return self.major, self.minor, self.patch, not self.pre, parts


class Timestamp(NamedTuple):
    """A point in time, and the zone that it was written in, which makes it no other."""

    ns: int  # since 1970
    zone_s: int = 0


class Duration(NamedTuple):
    """A span of time."""

    ns: int


class Kind(NamedTuple):
    """What ``type(…)`` gives."""

    name: str


class Key(NamedTuple):
    """A map's key that is no string: Python takes 1, 1.0 and True for the same."""

    kind: str
    value: Any


TYPE_NAMES: Final = {
    "bool": "bool",
    "int": "int",
    "uint": "uint",
    "double": "double",
    "string": "string",
    "bytes": "bytes",
    "list": "list",
    "map": "map",
    "null": "null_type",
    "timestamp": "google.protobuf.Timestamp",
    "duration": "google.protobuf.Duration",
    "type": "type",
    "quantity": "kubernetes.Quantity",
    "semver": "kubernetes.Semver",
}  # by what people call them here


def kind_of(value: Value) -> str:
    """What people call this kind of value."""
    for kind, name in (
        (bool, "bool"),
        (int, "int"),
        (float, "double"),
        (str, "string"),
        (Quantity, "quantity"),
        (Version, "semver"),
        (Timestamp, "timestamp"),
        (Duration, "duration"),
        (Kind, "type"),
        (Mapping, "map"),
        (Sequence, "list"),
    ):
        if isinstance(value, kind):
            return name
    return "null" if value is None else type(value).__name__


def key_of(value: Value) -> Any:
    """What stands for a value as a map's key. Raises WrongType for what can be none."""
    if isinstance(value, str):
        return value
    kind = kind_of(value)
    if kind not in ("bool", "int", "double"):
        raise WrongType(f"only strings, numbers and bools are keys here, not a {kind}")
    return Key(kind, value)


def key_value(key: Any) -> Value:
    """The value that stands behind a map's key."""
    return key.value if isinstance(key, Key) else key


def find(of: Mapping[Any, Value], wanted: Value) -> tuple[bool, Value]:
    """(whether a map has a key, what is there). A double finds the int of its value."""
    if isinstance(wanted, str | bool | int | float):
        key = key_of(wanted)
        if key in of:
            return True, of[key]
        if isinstance(wanted, float) and wanted.is_integer():
            whole = Key("int", int(wanted))
            return whole in of, of.get(whole)
    return False, None


def is_number(value: Value) -> bool:
    """Whether it is an int or a double; a bool is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def integer(value: int) -> int:
    """The value, if 64 bits hold it. Raises EvalError."""
    if not LEAST <= value <= MOST:
        raise EvalError("a whole number beyond 64 bits")
    return value


def equal(left: Value, right: Value, meter: Meter) -> bool:
    """CEL's equality: numbers by value, other kinds only among themselves; never an error."""
    meter.charge(1)
    if is_number(left) and is_number(right):
        return bool(left == right)
    kind = kind_of(left)
    if kind != kind_of(right):
        return False
    if kind == "string":
        meter.text(min(len(left), len(right)))
        return bool(left == right)
    if kind == "list":
        return len(left) == len(right) and all(
            equal(one, other, meter) for one, other in zip(left, right, strict=True)
        )
    if kind == "map":
        return len(left) == len(right) and all(
            there and equal(value, other, meter)
            for (there, other), value in (
                (find(right, key_value(key)), value) for key, value in left.items()
            )
        )
    if kind == "semver":
        return bool(left.order() == right.order())
    if kind == "timestamp":
        return bool(left.ns == right.ns)
    if kind == "quantity":
        return bool(left.amount == right.amount)
    return bool(left == right)


def less(left: Value, right: Value, meter: Meter) -> bool:
    """Whether one comes before the other. Raises WrongType where there is no order."""
    meter.charge(1)
    if is_number(left) and is_number(right):
        return bool(left < right)
    kind = kind_of(left)
    if kind == kind_of(right) and kind in ("timestamp", "duration"):
        return bool(left.ns < right.ns)
    if kind == kind_of(right) and kind in ("string", "bool"):
        if kind == "string":
            meter.text(min(len(left), len(right)))
        return bool(left < right)
    raise WrongType(f"no order between {kind} and {kind_of(right)}")


def from_json(value: Value, meter: Meter, levels: int = JSON_LEVELS) -> Value:
    """What JSON means here: its numbers are doubles, as in Go."""
    meter.charge(1)
    if not levels:
        raise EvalError(f"JSON of more than {JSON_LEVELS} levels")
    if isinstance(value, list):
        return [from_json(one, meter, levels - 1) for one in value]
    if isinstance(value, dict):
        return {key: from_json(one, meter, levels - 1) for key, one in value.items()}
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return value

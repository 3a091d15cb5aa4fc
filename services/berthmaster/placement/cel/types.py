"""The types that an expression's parts have before any cluster is looked at. Pure.

As in cel-go: what is read of a cluster is ``dyn``, which goes with everything; literals and what
functions make of them have types, and a call without an overload for its types is refused. A
variable stands for a type that is not known yet: ``[] == [1]`` makes the first list one of ints.

``fits`` is not symmetric in null: null goes with ``dyn``, timestamps, durations, quantities and
versions, and with nothing else, so that ``1 == null`` is refused and ``quantity("1") == null`` is
false.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple


class Type(NamedTuple):
    """A type, and what it is of: a list's items, a map's keys and values."""

    name: str
    of: tuple["Type", ...] = ()

    def __str__(self) -> str:
        if self.variable:
            return "dyn"
        return f"{self.name}({', '.join(map(str, self.of))})" if self.of else self.name

    @property
    def variable(self) -> bool:
        """Whether it stands for a type that is not known yet."""
        return self.name.startswith("$")


DYN: Final = Type("dyn")
BOOL: Final = Type("bool")
INT: Final = Type("int")
UINT: Final = Type("uint")
DOUBLE: Final = Type("double")
STRING: Final = Type("string")
BYTES: Final = Type("bytes")
NULL: Final = Type("null")
TIMESTAMP: Final = Type("timestamp")
DURATION: Final = Type("duration")
QUANTITY: Final = Type("quantity")
SEMVER: Final = Type("semver")
A: Final = Type("$A")
B: Final = Type("$B")
_NULLABLE: Final = frozenset({NULL, TIMESTAMP, DURATION, QUANTITY, SEMVER})


def list_of(item: Type) -> Type:
    """A list."""
    return Type("list", (item,))


def map_of(key: Type, value: Type) -> Type:
    """A map."""
    return Type("map", (key, value))


def type_of(one: Type) -> Type:
    """The type of a type."""
    return Type("type", (one,))


class Overload(NamedTuple):
    """What a function takes, and what it then gives."""

    takes: tuple[Type, ...]
    gives: Type


class Types:
    """What is known of the variables of one expression."""

    def __init__(self) -> None:
        self._known: dict[Type, Type] = {}
        self._before: list[tuple[Type, Type | None]] = []  # what was known, to be taken back to
        self._made = 0

    def unknown(self) -> Type:
        """A new variable."""
        self._made += 1
        return Type(f"${self._made}")

    def of(self, one: Type) -> Type:
        """The same with all that is known put in."""
        if (known := self._known.get(one)) is not None:
            return self.of(known)
        return Type(one.name, tuple(self.of(part) for part in one.of)) if one.of else one

    def fits(self, ones: Sequence[Type], others: Sequence[Type]) -> bool:
        """Whether these go where those are wanted; variables are known better afterwards."""
        self._before.clear()
        if len(ones) == len(others) and all(map(self._fits, ones, others)):
            return True
        for variable, known in reversed(self._before):
            if known is None:
                del self._known[variable]
            else:
                self._known[variable] = known
        return False

    def call(self, overloads: Iterable[Overload], takes: Sequence[Type]) -> Type | None:
        """What a call gives; None if there is no overload for these types."""
        gives: Type | None = None
        for overload in overloads:
            fresh: dict[Type, Type] = {}
            wanted = [self._renamed(one, fresh) for one in overload.takes]
            if not self.fits(takes, wanted):
                continue
            found = self.of(self._renamed(overload.gives, fresh))
            gives = found if gives is None or gives == found else DYN
        return gives

    def joined(self, one: Type | None, other: Type) -> Type:
        """What both are, in a list; dyn if they have nothing in common."""
        if one is None:
            return other
        if self.fits([one], [other]):
            return one if _less_specific(one, other) else other
        return DYN

    def _renamed(self, one: Type, fresh: dict[Type, Type]) -> Type:
        if one.variable:
            return fresh.setdefault(one, self.unknown()) if one not in fresh else fresh[one]
        return Type(one.name, tuple(self._renamed(part, fresh) for part in one.of))

    def _fits(self, one: Type, other: Type) -> bool:
        if other.variable:
            may, known = self._stands_for(other, one)
            if may or known:
                return may
        if one.variable:
            return self._stands_for(one, other)[0]
        if DYN in (one, other):
            return True
        if NULL in (one, other):
            return one in _NULLABLE and other in _NULLABLE
        if one.name != other.name:
            return False
        return one.name == "type" or all(map(self._fits, one.of, other.of))

    def _stands_for(self, variable: Type, one: Type) -> tuple[bool, bool]:
        """(whether a variable can stand for a type, whether it stands for one already)."""
        known = self._known.get(variable)
        if one in (variable, known):
            return True, True
        if known is not None:
            if not self._fits(one, known):
                return False, True
            wider = one if _less_specific(one, known) else known
            if not self._within(variable, wider):
                self._learn(variable, wider)
            return True, True
        if self._within(variable, one):
            return False, False
        self._learn(variable, one)
        return True, False

    def _learn(self, variable: Type, one: Type) -> None:
        self._before.append((variable, self._known.get(variable)))
        self._known[variable] = one

    def _within(self, variable: Type, one: Type) -> bool:
        if one == variable:
            return True
        if one.variable:
            known = self._known.get(one)
            return known is not None and self._within(variable, known)
        return any(self._within(variable, part) for part in one.of)


def _less_specific(one: Type, other: Type) -> bool:
    """Whether the first says no more than the second."""
    if one == DYN or one.variable:
        return True
    if other == DYN or other.variable or one.name != other.name:
        return False
    return one.name == "type" or all(map(_less_specific, one.of, other.of))

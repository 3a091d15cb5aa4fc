"""What an expression consists of; each part works itself out. Pure.

Rules of this file: every part costs a step when it is run, before it does anything; ``check`` finds
whatever can be found without a cluster.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from berthmaster.placement.cel.errors import EvalError, Malformed, WrongType
from berthmaster.placement.cel.formatting import checked
from berthmaster.placement.cel.functions import FUNCTIONS, METHODS, Function, arithmetic, negative
from berthmaster.placement.cel.overloads import (
    FUNCTION_TYPES,
    METHOD_TYPES,
    NOT_OFFERED,
    OPERATORS,
)
from berthmaster.placement.cel.part import Env, Node, Scope
from berthmaster.placement.cel.patterns import pattern
from berthmaster.placement.cel.times import span_in, time_of
from berthmaster.placement.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    NULL,
    STRING,
    TIMESTAMP,
    UINT,
    Type,
    list_of,
    map_of,
    type_of,
)
from berthmaster.placement.cel.values import (
    TYPE_NAMES,
    Kind,
    Meter,
    Value,
    equal,
    find,
    key_of,
    kind_of,
    less,
)

NO_SUCH_KEY: Final = "no such key: "
_LITERALS: Final = {bool: BOOL, int: INT, float: DOUBLE, str: STRING}
_TYPES: Final[Mapping[str, Type]] = {
    "bool": BOOL,
    "int": INT,
    "uint": UINT,
    "double": DOUBLE,
    "string": STRING,
    "bytes": BYTES,
    "list": list_of(DYN),
    "map": map_of(DYN, DYN),
    "null_type": NULL,
    "type": type_of(DYN),
    TYPE_NAMES["timestamp"]: TIMESTAMP,
    TYPE_NAMES["duration"]: DURATION,
}  # whose names are values of expressions
_KEYS: Final = frozenset({"string", "int", "double", "bool", "dyn"})


def _called(scope: Scope, sign: str, at: int, *parts: Node) -> Type:
    """What an operator gives. Raises Malformed."""
    takes = [part.check(scope) for part in parts]
    gives = scope.types.call(OPERATORS[sign], takes)
    if gives is None:
        told = " and ".join(str(scope.types.of(one)) for one in takes)
        raise Malformed(f"no {sign.removesuffix(' of')} of {told}", at)
    return gives


class Literal(Node):
    """A value that stands in the text."""

    __slots__ = ("value",)

    def __init__(self, at: int, value: Value) -> None:
        super().__init__(at)
        self.value = value

    def check(self, scope: Scope) -> Type:
        return NULL if self.value is None else _LITERALS[type(self.value)]

    def run(self, env: Env) -> Value:
        env.meter.charge(1)
        return self.value


class Name(Node):
    """A variable, or the name of a type."""

    __slots__ = ("kind", "name")

    def __init__(self, at: int, name: str) -> None:
        super().__init__(at)
        self.name = name
        self.kind: Kind | None = None  # if it turns out to be that of a type

    def check(self, scope: Scope) -> Type:
        if (known := scope.names.get(self.name)) is not None:
            return known
        if (one := _TYPES.get(self.name)) is not None:
            self.kind = Kind(self.name)
            return type_of(one)
        if what := NOT_OFFERED.get(self.name):
            raise Malformed(f"{self.name}: {what} not offered here", self.at)
        known_names = ", ".join(sorted(scope.names))
        raise Malformed(f"nothing is named {self.name!r}; there is {known_names}", self.at)

    def run(self, env: Env) -> Value:
        env.meter.charge(1)
        return env.names[self.name] if self.kind is None else self.kind

    @property
    def constant(self) -> bool:
        return self.kind is not None


class Select(Node):
    """``of.field``, or with ``has`` whether it is there."""

    __slots__ = ("asked", "field", "of")

    def __init__(self, at: int, of: Node, field: str, *, asked: bool = False) -> None:
        super().__init__(at)
        self.of, self.field, self.asked = of, field, asked

    def parts(self) -> Sequence[Node]:
        return (self.of,)

    def check(self, scope: Scope) -> Type:
        if (
            self.field == "managedFields"
            and isinstance(self.of, Select)
            and self.of.field == "metadata"
        ):
            raise Malformed("metadata.managedFields are not kept here", self.at)
        of = scope.types.of(self.of.check(scope))
        if of.name == "map":
            one = of.of[1]
        elif of == DYN or of.variable:
            scope.types.fits([DYN], [of])
            one = DYN
        else:
            raise Malformed(f"a {of} has no field {self.field!r}", self.at)
        return BOOL if self.asked else one

    def run(self, env: Env) -> Value:
        env.meter.charge(1)
        of = self.of.run(env)
        if self.asked and not isinstance(of, Mapping | list):
            return False
        if of is None:
            raise EvalError(f"null has no field {self.field!r}")
        if not isinstance(of, Mapping):
            raise WrongType(f"a {kind_of(of)} has no field {self.field!r}")
        if self.asked:
            return self.field in of
        try:
            return of[self.field]
        except KeyError:
            raise EvalError(NO_SUCH_KEY + self.field) from None


class Index(Node):
    """``of[key]``."""

    __slots__ = ("key", "of")

    def __init__(self, at: int, of: Node, key: Node) -> None:
        super().__init__(at)
        self.of, self.key = of, key

    def parts(self) -> Sequence[Node]:
        return (self.of, self.key)

    def check(self, scope: Scope) -> Type:
        return _called(scope, "[]", self.at, self.of, self.key)

    def run(self, env: Env) -> Value:
        env.meter.charge(1)
        of, key = self.of.run(env), self.key.run(env)
        if isinstance(of, Mapping):
            there, value = find(of, key)
            if there:
                return value
            raise EvalError(f"{NO_SUCH_KEY}{str(key)[:80]}")
        if isinstance(of, list):
            if isinstance(key, float):
                if not key.is_integer():
                    raise EvalError(f"index {key} of a list")
                key = int(key)
            if key is None:
                raise EvalError("index null of a list")
            if not isinstance(key, int) or isinstance(key, bool):
                raise WrongType(f"a list is indexed by numbers, not by a {kind_of(key)}")
            if not 0 <= key < len(of):
                raise EvalError(f"index {key} of a list of {len(of)}")
            return of[key]
        if of is None:
            raise EvalError("null has no index")
        raise WrongType(f"a {kind_of(of)} has no index")


class ListOf(Node):
    """``[a, b]``."""

    __slots__ = ("items", "types")

    def __init__(self, at: int, items: Sequence[Node]) -> None:
        super().__init__(at)
        self.items = tuple(items)
        self.types: list[Type] = []  # of the items, once it was checked

    def parts(self) -> Sequence[Node]:
        return self.items

    def check(self, scope: Scope) -> Type:
        joined: Type | None = None
        self.types = [item.check(scope) for item in self.items]
        for one in self.types:
            joined = scope.types.joined(joined, one)
        return list_of(joined or scope.types.unknown())

    def run(self, env: Env) -> Value:
        env.meter.charge(10)
        return [item.run(env) for item in self.items]


class MapOf(Node):
    """``{"a": b}``."""

    __slots__ = ("entries",)

    def __init__(self, at: int, entries: Sequence[tuple[Node, Node]]) -> None:
        super().__init__(at)
        self.entries = tuple(entries)

    def parts(self) -> Sequence[Node]:
        return tuple(part for entry in self.entries for part in entry)

    def check(self, scope: Scope) -> Type:
        types = scope.types
        keys: Type | None = None
        values: Type | None = None
        for key, value in self.entries:
            one = types.of(key.check(scope))
            if not one.variable and one.name not in _KEYS:
                told = f"only strings, numbers and bools are keys here, not a {one}"
                raise Malformed(told, key.at)
            keys = types.joined(keys, one)
            values = types.joined(values, value.check(scope))
        return map_of(keys or types.unknown(), values or types.unknown())

    def run(self, env: Env) -> Value:
        env.meter.charge(30)
        return {key_of(key.run(env)): value.run(env) for key, value in self.entries}


class Not(Node):
    """``!a``."""

    __slots__ = ("of",)

    def __init__(self, at: int, of: Node) -> None:
        super().__init__(at)
        self.of = of

    def parts(self) -> Sequence[Node]:
        return (self.of,)

    def check(self, scope: Scope) -> Type:
        return _called(scope, "!", self.at, self.of)

    def run(self, env: Env) -> Value:
        env.meter.charge(1)
        value = self.of.run(env)
        if value is None:
            raise EvalError("! of null")
        if not isinstance(value, bool):
            raise WrongType(f"! of a {kind_of(value)}")
        return not value


class Minus(Node):
    """``-a``."""

    __slots__ = ("of",)

    def __init__(self, at: int, of: Node) -> None:
        super().__init__(at)
        self.of = of

    def parts(self) -> Sequence[Node]:
        return (self.of,)

    def check(self, scope: Scope) -> Type:
        return _called(scope, "- of", self.at, self.of)

    def run(self, env: Env) -> Value:
        env.meter.charge(1)
        value = self.of.run(env)
        if value is None:
            raise EvalError("- of null")
        return negative(value)


class Binary(Node):
    """``a + b``, ``a == b``, ``a in b`` …"""

    __slots__ = ("left", "right", "sign")

    def __init__(self, at: int, sign: str, left: Node, right: Node) -> None:
        super().__init__(at)
        self.sign, self.left, self.right = sign, left, right

    def parts(self) -> Sequence[Node]:
        return (self.left, self.right)

    def check(self, scope: Scope) -> Type:
        return _called(scope, self.sign, self.at, self.left, self.right)

    def run(self, env: Env) -> Value:
        meter = env.meter
        meter.charge(1)
        left, right = self.left.run(env), self.right.run(env)
        if self.sign not in ("==", "!=") and (
            right is None or (left is None and self.sign != "in")
        ):
            raise EvalError(f"{self.sign} of null")
        match self.sign:
            case "==":
                return equal(left, right, meter)
            case "!=":
                return not equal(left, right, meter)
            case "<":
                return less(left, right, meter)
            case ">":
                return less(right, left, meter)
            case "<=":
                return not less(right, left, meter)
            case ">=":
                return not less(left, right, meter)
            case "in":
                return _contains(right, left, meter)
        return arithmetic(self.sign, left, right, meter)


def _contains(of: Value, wanted: Value, meter: Meter) -> bool:
    if isinstance(of, Mapping):
        return find(of, wanted)[0]
    if isinstance(of, list):
        return any(equal(one, wanted, meter) for one in of)
    raise WrongType(f"nothing is in a {kind_of(of)}")


class Choice(Node):
    """``a ? b : c``."""

    __slots__ = ("no", "when", "yes")

    def __init__(self, at: int, when: Node, yes: Node, no: Node) -> None:
        super().__init__(at)
        self.when, self.yes, self.no = when, yes, no

    def parts(self) -> Sequence[Node]:
        return (self.when, self.yes, self.no)

    def check(self, scope: Scope) -> Type:
        return _called(scope, "?:", self.at, self.when, self.yes, self.no)

    def run(self, env: Env) -> Value:
        env.meter.charge(1)
        when = self.when.run(env)
        if when is None:
            raise EvalError("? after null")
        if not isinstance(when, bool):
            raise WrongType(f"? after a {kind_of(when)}")
        return (self.yes if when else self.no).run(env)


class Call(Node):
    """``f(a)`` or ``of.f(a)``."""

    __slots__ = ("args", "name", "of")

    def __init__(self, at: int, name: str, of: Node | None, args: Sequence[Node]) -> None:
        super().__init__(at)
        self.name, self.of, self.args = name, of, tuple(args)

    def parts(self) -> Sequence[Node]:
        return self.args if self.of is None else (self.of, *self.args)

    def check(self, scope: Scope) -> Type:
        if self.of is None:
            overloads = FUNCTION_TYPES.get(self.name, ())
        else:
            overloads = METHOD_TYPES.get(self.name, ()) or tuple(scope.host.get(self.name, ()))
        if not overloads:
            self._not_offered()
        takes = [part.check(scope) for part in self.parts()]
        own = self.of is not None
        wanted = sorted({len(one.takes) - own for one in overloads})
        if len(self.args) not in wanted:
            right = " or ".join(str(count) for count in wanted)
            raise Malformed(f"{self.name} takes {right}, not {len(self.args)} values", self.at)
        gives = scope.types.call(overloads, takes)
        if gives is None:
            told = ", ".join(str(scope.types.of(one)) for one in takes[own:])
            of = f" of a {scope.types.of(takes[0])}" if own else ""
            raise Malformed(f"no {self.name}({told}){of}", self.at)
        try:
            self._check_literals(scope)
        except (EvalError, Malformed) as error:
            raise Malformed(str(error), self.at) from None
        return gives

    def _not_offered(self) -> None:
        space = self.of.name if isinstance(self.of, Name) else ""
        if what := NOT_OFFERED.get(self.name) or NOT_OFFERED.get(space):
            raise Malformed(f"{self.name}: {what} not offered here", self.at)
        kind = "function" if self.of is None else "method"
        raise Malformed(f"no {kind} {self.name!r} is offered here", self.at)

    def _check_literals(self, scope: Scope) -> None:
        """Raises EvalError, Malformed for a text that is wrong for every cluster."""
        if self.name in ("matches", "find", "findAll"):
            told = self.parts()[1]
            if isinstance(told, Literal):
                pattern(str(told.value))
        elif self.name == "format" and isinstance(self.of, Literal):
            if isinstance(self.args[0], ListOf):
                checked(str(self.of.value), [scope.types.of(one) for one in self.args[0].types])
        elif self.args and isinstance(self.args[0], Literal) and self.of is None:
            told_text = self.args[0].value
            if isinstance(told_text, str) and self.name == "timestamp":
                time_of(told_text)
            if isinstance(told_text, str) and self.name == "duration":
                span_in(told_text)

    @property
    def constant(self) -> bool:
        return self._function() is not None and super().constant

    def _function(self) -> Function | None:
        return (FUNCTIONS if self.of is None else METHODS).get(self.name)

    def run(self, env: Env) -> Value:
        env.meter.charge(1)
        values = [part.run(env) for part in self.parts()]
        function = self._function()
        run = env.host[self.name] if function is None else function
        try:
            return run(env.meter, *values)
        except WrongType:
            if any(value is None for value in values):
                raise EvalError(f"{self.name} of null") from None
            raise

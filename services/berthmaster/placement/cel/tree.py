"""What an expression consists of; each part works itself out. Pure.

Rules of this file: every part costs a step when it is run, before it does anything; ``check`` finds
whatever can be found without a cluster.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from berthmaster.placement.cel.errors import EvalError, Malformed, WrongType
from berthmaster.placement.cel.functions import (
    FUNCTIONS,
    METHODS,
    Function,
    arithmetic,
    negative,
)
from berthmaster.placement.cel.part import Env, Node
from berthmaster.placement.cel.patterns import pattern
from berthmaster.placement.cel.values import Meter, Value, equal, kind_of, less

NO_SUCH_KEY: Final = "no such key: "


class Literal(Node):
    """A value that stands in the text."""

    __slots__ = ("value",)

    def __init__(self, at: int, value: Value) -> None:
        super().__init__(at)
        self.value = value

    def run(self, env: Env) -> Value:
        env.meter.charge(1)
        return self.value


class Name(Node):
    """A variable."""

    __slots__ = ("name",)

    def __init__(self, at: int, name: str) -> None:
        super().__init__(at)
        self.name = name

    def run(self, env: Env) -> Value:
        env.meter.charge(1)
        return env.names[self.name]

    def check(self, scope: frozenset[str], host: frozenset[str]) -> None:
        if self.name not in scope:
            known = ", ".join(sorted(scope))
            raise Malformed(f"nothing is named {self.name!r}; there is {known}", self.at)

    @property
    def constant(self) -> bool:
        return False


class Select(Node):
    """``of.field``, or with ``has`` whether it is there."""

    __slots__ = ("asked", "field", "of")

    def __init__(self, at: int, of: Node, field: str, *, asked: bool = False) -> None:
        super().__init__(at)
        self.of, self.field, self.asked = of, field, asked

    def parts(self) -> Sequence[Node]:
        return (self.of,)

    def run(self, env: Env) -> Value:
        env.meter.charge(1)
        of = self.of.run(env)
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

    def run(self, env: Env) -> Value:
        env.meter.charge(1)
        of, key = self.of.run(env), self.key.run(env)
        if isinstance(of, Mapping):
            if isinstance(key, str) and key in of:
                return of[key]
            raise EvalError(f"{NO_SUCH_KEY}{str(key)[:80]}")
        if isinstance(of, list):
            if isinstance(key, float) and key.is_integer():
                key = int(key)
            if not isinstance(key, int) or isinstance(key, bool):
                raise WrongType(f"a list is indexed by numbers, not by a {kind_of(key)}")
            if not 0 <= key < len(of):
                raise EvalError(f"index {key} of a list of {len(of)}")
            return of[key]
        raise WrongType(f"a {kind_of(of)} has no index")


class ListOf(Node):
    """``[a, b]``."""

    __slots__ = ("items",)

    def __init__(self, at: int, items: Sequence[Node]) -> None:
        super().__init__(at)
        self.items = tuple(items)

    def parts(self) -> Sequence[Node]:
        return self.items

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

    def run(self, env: Env) -> Value:
        env.meter.charge(30)
        found: dict[str, Value] = {}
        for key, value in self.entries:
            name = key.run(env)
            if not isinstance(name, str):
                raise WrongType(f"only strings are keys here, not a {kind_of(name)}")
            if name in found:
                raise EvalError(f"a key that is there twice: {name[:80]}")
            found[name] = value.run(env)
        return found


class Not(Node):
    """``!a``."""

    __slots__ = ("of",)

    def __init__(self, at: int, of: Node) -> None:
        super().__init__(at)
        self.of = of

    def parts(self) -> Sequence[Node]:
        return (self.of,)

    def run(self, env: Env) -> Value:
        env.meter.charge(1)
        value = self.of.run(env)
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

    def run(self, env: Env) -> Value:
        env.meter.charge(1)
        return negative(self.of.run(env))


class Binary(Node):
    """``a + b``, ``a == b``, ``a in b`` …"""

    __slots__ = ("left", "right", "sign")

    def __init__(self, at: int, sign: str, left: Node, right: Node) -> None:
        super().__init__(at)
        self.sign, self.left, self.right = sign, left, right

    def parts(self) -> Sequence[Node]:
        return (self.left, self.right)

    def run(self, env: Env) -> Value:
        meter = env.meter
        meter.charge(1)
        left, right = self.left.run(env), self.right.run(env)
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
        if not isinstance(wanted, str | int | float):
            raise WrongType(f"a {kind_of(wanted)} is no key")
        return isinstance(wanted, str) and wanted in of
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

    def run(self, env: Env) -> Value:
        env.meter.charge(1)
        when = self.when.run(env)
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

    def check(self, scope: frozenset[str], host: frozenset[str]) -> None:
        super().check(scope, host)
        table = FUNCTIONS if self.of is None else METHODS
        if self.of is not None and self.name in host:
            wanted: tuple[int, ...] = (1,)
        elif found := table.get(self.name):
            wanted = found.arities
        else:
            kind = "function" if self.of is None else "method"
            raise Malformed(f"no {kind} {self.name!r} is offered here", self.at)
        if len(self.args) not in wanted:
            right = " or ".join(str(count) for count in wanted)
            raise Malformed(f"{self.name} takes {right}, not {len(self.args)} values", self.at)
        if self.name == "matches" and isinstance(told := self.args[-1], Literal):
            try:
                pattern(str(told.value))
            except EvalError as error:
                raise Malformed(str(error), told.at) from None

    @property
    def constant(self) -> bool:
        return self._function() is not None and super().constant

    def _function(self) -> Function | None:
        return (FUNCTIONS if self.of is None else METHODS).get(self.name)

    def run(self, env: Env) -> Value:
        env.meter.charge(1)
        values = [part.run(env) for part in self.parts()]
        function = self._function()
        if function is None:
            return env.host[self.name](env.meter, *values)
        return function.run(env.meter, *values)

"""One part of an expression, and what it is run with. Pure."""

from collections.abc import Callable, Mapping, Sequence

from berthmaster.placement.cel.types import Overload, Type, Types
from berthmaster.placement.cel.values import Meter, Value


class Env:
    """One evaluation: what names mean, and what may be spent."""

    __slots__ = ("host", "meter", "names")

    def __init__(
        self, names: dict[str, Value], meter: Meter, host: Mapping[str, Callable[..., Value]]
    ) -> None:
        self.names = names
        self.meter = meter
        self.host = host  # methods that only the caller can work out

    def inner(self, name: str) -> "Env":
        """The same, and one more name may be set."""
        return Env({**self.names, name: None}, self.meter, self.host)


class Scope:
    """What is known when an expression is read: names, the caller's methods, types."""

    __slots__ = ("host", "names", "types")

    def __init__(
        self, names: Mapping[str, Type], host: Mapping[str, Sequence[Overload]], types: Types
    ) -> None:
        self.names = names
        self.host = host
        self.types = types

    def inner(self, name: str, one: Type) -> "Scope":
        """The same, and one more name."""
        return Scope({**self.names, name: one}, self.host, self.types)


class Node:
    """A part of an expression."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at

    def run(self, env: Env) -> Value:
        """Its value. Raises EvalError, TooCostly."""
        raise NotImplementedError

    def parts(self) -> Sequence["Node"]:
        """What it consists of."""
        return ()

    def check(self, scope: Scope) -> Type:
        """Its type. Raises Malformed for what is wrong for every input."""
        raise NotImplementedError

    @property
    def constant(self) -> bool:
        """Whether no input is looked at."""
        return all(part.constant for part in self.parts())

    def depth(self) -> int:
        """How many levels it has. Not by recursion: it is asked before that is known to be safe."""
        deepest, open_ = 0, [(self, 1)]
        while open_:
            node, level = open_.pop()
            deepest = max(deepest, level)
            open_.extend((part, level + 1) for part in node.parts())
        return deepest

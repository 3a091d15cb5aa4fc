"""``&&`` and ``||``, and the macros that ask about each element of a list or map. Pure.

An error of one term or element counts only if no other settles the matter, as CEL has it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from berthmaster.placement.cel.errors import EvalError, Malformed, WrongType
from berthmaster.placement.cel.part import Env, Node, Scope
from berthmaster.placement.cel.types import BOOL, DYN, Type, Types, list_of
from berthmaster.placement.cel.values import Value, key_value, kind_of


class Logic(Node):
    """``a && b && c``, or with ``||``."""

    __slots__ = ("settles", "terms")

    def __init__(self, at: int, terms: Sequence[Node], *, settles: bool) -> None:
        super().__init__(at)
        self.terms = tuple(terms)
        self.settles = settles  # true for ||: one that is true settles it

    def parts(self) -> Sequence[Node]:
        return self.terms

    def check(self, scope: Scope) -> Type:
        for term in self.terms:
            one = term.check(scope)
            if not scope.types.fits([one], [BOOL]):
                told = scope.types.of(one)
                raise Malformed(f"{'||' if self.settles else '&&'} of a {told}", term.at)
        return BOOL

    def run(self, env: Env) -> Value:
        trouble: EvalError | None = None
        for term in self.terms:
            env.meter.charge(1)
            try:
                value = term.run(env)
                if value is None:
                    raise EvalError("null is neither true nor false")
                if not isinstance(value, bool):
                    raise WrongType(f"{'||' if self.settles else '&&'} of a {kind_of(value)}")
            except EvalError as error:
                trouble = trouble or error
                continue
            if value is self.settles:
                return value
        if trouble is not None:
            raise trouble
        return not self.settles


class Macro(Node):
    """``of.all(x, …)`` and its like: something for each element, or each key."""

    __slots__ = ("body", "kind", "name", "of", "when")

    def __init__(
        self, at: int, kind: str, of: Node, name: str, body: Node, when: Node | None
    ) -> None:
        super().__init__(at)
        self.kind, self.of, self.name, self.body, self.when = kind, of, name, body, when

    def parts(self) -> Sequence[Node]:
        return (self.of, self.body) if self.when is None else (self.of, self.when, self.body)

    def check(self, scope: Scope) -> Type:
        types = scope.types
        of = types.of(self.of.check(scope))
        if of.name in ("list", "map"):
            one = of.of[0]
        elif of == DYN or of.variable:
            types.fits([DYN], [of])
            one = DYN
        else:
            raise Malformed(f"{self.kind} of a {of}", self.at)
        inner = scope.inner(self.name, one)
        if self.when is not None:
            self._true_or_false(types, self.when.check(inner), self.when.at)
        body = self.body.check(inner)
        if self.kind == "map":
            return list_of(types.of(body))
        self._true_or_false(types, body, self.body.at)
        return list_of(types.of(one)) if self.kind == "filter" else BOOL

    def _true_or_false(self, types: Types, one: Type, at: int) -> None:
        if not types.fits([one], [BOOL]):
            raise Malformed(f"{self.kind} of what is a {types.of(one)}, not true or false", at)

    def run(self, env: Env) -> Value:
        env.meter.charge(1)
        of = self.of.run(env)
        if of is None:
            raise EvalError(f"{self.kind} of null")
        if not isinstance(of, list | Mapping):
            raise WrongType(f"{self.kind} of a {kind_of(of)}")
        if isinstance(of, Mapping):
            of = [key_value(key) for key in of]
        inner = env.inner(self.name)
        if self.kind in ("all", "exists"):
            return self._settled(of, inner, settles=self.kind == "exists")
        kept: list[Value] = []
        for one in of:
            env.meter.charge(1)
            inner.names[self.name] = one
            if self.kind == "map":
                if self.when is None or _truth(self.when.run(inner), self.kind):
                    kept.append(self.body.run(inner))
            elif _truth(self.body.run(inner), self.kind):
                kept.append(one)
        return len(kept) == 1 if self.kind == "exists_one" else kept

    def _settled(self, of: Iterable[Value], inner: Env, *, settles: bool) -> bool:
        trouble: EvalError | None = None
        for one in of:
            inner.meter.charge(1)
            inner.names[self.name] = one
            try:
                if _truth(self.body.run(inner), self.kind) is settles:
                    return settles
            except EvalError as error:
                trouble = trouble or error
        if trouble is not None:
            raise trouble
        return not settles


def _truth(value: Any, kind: str) -> bool:
    if value is None:
        raise EvalError(f"{kind} of null, which is neither true nor false")
    if not isinstance(value, bool):
        raise WrongType(f"{kind} of what is a {kind_of(value)}, not true or false")
    return value

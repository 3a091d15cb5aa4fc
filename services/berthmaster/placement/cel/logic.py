"""``&&`` and ``||``, and the macros that ask about each element of a list or map. Pure.

An error of one term or element counts only if no other settles the matter, as CEL has it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from berthmaster.placement.cel.errors import EvalError, WrongType
from berthmaster.placement.cel.part import Env, Node
from berthmaster.placement.cel.values import Value, kind_of


class Logic(Node):
    """``a && b && c``, or with ``||``."""

    __slots__ = ("settles", "terms")

    def __init__(self, at: int, terms: Sequence[Node], *, settles: bool) -> None:
        super().__init__(at)
        self.terms = tuple(terms)
        self.settles = settles  # true for ||: one that is true settles it

    def parts(self) -> Sequence[Node]:
        return self.terms

    def run(self, env: Env) -> Value:
        trouble: EvalError | None = None
        for term in self.terms:
            env.meter.charge(1)
            try:
                value = term.run(env)
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

    def check(self, scope: frozenset[str], host: frozenset[str]) -> None:
        self.of.check(scope, host)
        inner = scope | {self.name}
        for part in self.parts()[1:]:
            part.check(inner, host)

    def run(self, env: Env) -> Value:
        env.meter.charge(1)
        of = self.of.run(env)
        if not isinstance(of, list | Mapping):
            raise WrongType(f"{self.kind} of a {kind_of(of)}")
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
    if not isinstance(value, bool):
        raise WrongType(f"{kind} of what is a {kind_of(value)}, not true or false")
    return value

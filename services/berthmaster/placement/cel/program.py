"""An expression that was read and checked, ready to be asked about one input after another. Pure.

Checked means: it can be true of something. Names and functions are known, types go together as
cel-go's checker has it, no part without input is an error by itself, and the whole is not surely
something else than true or false.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

from berthmaster.placement.cel.errors import EvalError, Malformed, TooCostly, WrongType
from berthmaster.placement.cel.parser import parse
from berthmaster.placement.cel.part import Env, Node, Scope
from berthmaster.placement.cel.tree import Literal
from berthmaster.placement.cel.types import BOOL, DYN, STRING, Overload, Types, list_of, map_of
from berthmaster.placement.cel.values import Meter, Value, kind_of

MAX_LEVELS: Final = 150
CONSTANT_STEPS: Final = 20_000
NAMED: Final = map_of(STRING, DYN)
METHOD: Final = (Overload((DYN, STRING), list_of(DYN)),)
Host = Mapping[str, Callable[..., Value]]


class Program:
    """One expression over the names that it was compiled for."""

    def __init__(self, text: str, root: Node) -> None:
        self.text = text
        self._root = root

    def holds(self, names: Mapping[str, Value], meter: Meter, host: Host) -> bool:
        """Whether it is true. Raises EvalError, WrongType, TooCostly."""
        try:
            value = self._root.run(Env(dict(names), meter, host))
        except RecursionError:
            raise TooCostly("more levels than an evaluation may have") from None
        if not isinstance(value, bool):
            if value is None:
                raise EvalError("it is null, neither true nor false")
            raise WrongType(f"it is a {kind_of(value)}, not true or false")
        return value


@lru_cache(maxsize=512)
def compiled(text: str, names: frozenset[str], methods: frozenset[str]) -> Program:
    """The program of a text: its names are maps, its methods of a value take a string and give a
    list. Raises Malformed."""
    root = parse(text)
    if root.depth() > MAX_LEVELS:
        raise Malformed(f"more than {MAX_LEVELS} levels; brackets in a long sum or product help")
    types = Types()
    scope = Scope(dict.fromkeys(names, NAMED), dict.fromkeys(methods, METHOD), types)
    found = types.of(root.check(scope))
    if not types.fits([found], [BOOL]):
        raise Malformed(f"it is a {found.name}, not true or false")
    _check_constants(root)
    return Program(text, root)


def _check_constants(root: Node) -> None:
    """Parts that look at no input are worked out now: what is wrong there is wrong for ever."""
    open_ = [(root, True)]
    while open_:
        node, whole = open_.pop()
        if not node.constant:
            open_.extend((part, False) for part in node.parts())
            continue
        if isinstance(node, Literal) and not whole:
            continue
        try:
            value = node.run(Env({}, Meter(CONSTANT_STEPS), {}))
        except (EvalError, TooCostly) as error:
            raise Malformed(str(error), node.at) from None
        if whole and not isinstance(value, bool):
            raise Malformed(f"it is a {kind_of(value)}, not true or false", node.at)

"""Which small changes there are in a module, and the module with some of them behind switches.

Four kinds: comparisons (``<`` becomes ``<=`` and ``>=``), boolean operators, signs of arithmetic,
and negations (of a condition, or one that is left out). ``a < b`` with mutant 3 is compiled as
``(a <= b) if __mutants__[3] else (a < b)``: whether a test reaches the place and whether it notices
the change are then asked of one and the same code.
"""

import ast
import copy
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

SWITCHES = "__mutants__"  # the name by which a woven module reaches its switches

OPPOSITES: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
SIGNS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}
# Joining texts and lists is no arithmetic: with another sign it fails at once and tells nothing.
JOINED = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)


@dataclass(frozen=True)
class Mutant:
    """One change: place is its number among all of its module, in the order of the source."""

    module: str
    place: int
    line: int
    function: str
    was: str
    now: str
    nth: int = 0  # of equal changes in one function

    @property
    def package(self) -> str:
        return self.module.split(".")[1]

    def lot(self, seed: int) -> bytes:
        """Its lot in the draw: the same as long as its function keeps this expression."""
        told = f"{seed}|{self.module}|{self.function}|{self.was}|{self.now}|{self.nth}"
        return hashlib.sha256(told.encode()).digest()


def mutants_in(module: str, source: str) -> list[Mutant]:
    """All changes that could be made to a module."""
    weaver = _Weaver(module, {})
    weaver.visit(ast.parse(source))
    met: dict[tuple[str, str, str], int] = {}
    found = []
    for mutant in weaver.found:
        key = (mutant.function, mutant.was, mutant.now)
        met[key] = nth = met.get(key, -1) + 1
        found.append(replace(mutant, nth=nth))
    return found


def woven(module: str, source: str, switches: Mapping[int, int]) -> ast.Module:
    """The module with a switch at each of these places: {place: number of its switch}."""
    tree = _Weaver(module, switches).visit(ast.parse(source))
    assert isinstance(tree, ast.Module)
    return ast.fix_missing_locations(tree)


class _Weaver(ast.NodeTransformer):
    """Walks a module in order, counts the changes and puts switches where they are asked for."""

    def __init__(self, module: str, switches: Mapping[int, int]) -> None:
        self.found: list[Mutant] = []
        self._module = module
        self._switches = switches
        self._scopes: list[str] = []
        self._conditions: set[int] = set()  # ids of nodes whose truth is asked for

    def visit(self, node: ast.AST) -> ast.AST:
        self._conditions.update(id(each) for each in _conditions_of(node))
        changes: list[tuple[int, ast.AST]] = []
        for changed in _changes(node, asked=id(node) in self._conditions):
            place = len(self.found)
            self.found.append(self._mutant(node, changed))
            if place in self._switches:
                changes.append((self._switches[place], copy.deepcopy(changed)))
        result: ast.AST = super().visit(node)
        for switch, changed in changes:
            result = _switched(switch, changed, result)
        return result

    def _mutant(self, node: ast.AST, changed: ast.AST) -> Mutant:
        line = getattr(node, "lineno", 0)
        where = ".".join(self._scopes)
        return Mutant(
            self._module, len(self.found), line, where, ast.unparse(node), ast.unparse(changed)
        )

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._within(node, ("body",))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._within(node, ("args", "body"))

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._within(node, ("args", "body"))

    def _within(
        self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, fields: Iterable[str]
    ) -> ast.AST:
        self._scopes.append(node.name)
        self._only(node, fields)
        self._scopes.pop()
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """A type is no code."""
        return self._only(node, ("value",))

    def visit_arg(self, node: ast.arg) -> ast.AST:
        """The same."""
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        """A pattern may hold no other expressions than it has."""
        return self._only(node, ("guard", "body"))

    def _only(self, node: ast.AST, fields: Iterable[str]) -> ast.AST:
        """Visit these fields of a node."""
        for name in fields:
            held = getattr(node, name)
            if isinstance(held, list):
                setattr(node, name, [self.visit(each) for each in held])
            elif held is not None:
                setattr(node, name, self.visit(held))
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """It is there for readers and mypy: what it asks is true by then."""
        return node


def _conditions_of(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions of which only the truth matters here."""
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield test
        case ast.BoolOp(values=values):
            yield from values
        case ast.comprehension(ifs=ifs):
            yield from ifs
        case ast.match_case(guard=ast.expr() as guard):
            yield guard
        case _:
            pass


def _changes(node: ast.AST, asked: bool) -> Iterator[ast.AST]:
    """What could stand in a node's stead."""
    match node:
        case ast.Compare(left=left, ops=ops, comparators=others):
            for at, op in enumerate(ops):
                for other in OPPOSITES[type(op)]:
                    yield ast.Compare(left, [*ops[:at], other(), *ops[at + 1 :]], others)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=op, right=right) if type(op) in SIGNS:
            if not (_joins(left) or _joins(right)):
                yield ast.BinOp(left, SIGNS[type(op)](), right)
        case ast.AugAssign(target=target, op=op, value=value) if type(op) in SIGNS:
            if not _joins(value):
                yield ast.AugAssign(target, SIGNS[type(op)](), value)
        case ast.Constant():
            pass  # while True
        case ast.Name(id="TYPE_CHECKING"):
            pass
        case ast.expr() if asked:
            yield ast.UnaryOp(ast.Not(), node)
        case _:
            pass


def _joins(node: ast.expr) -> bool:
    return isinstance(node, JOINED) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _switched(switch: int, changed: ast.AST, node: ast.AST) -> ast.AST:
    """The change if its switch is on, else what stands."""
    test = ast.Subscript(ast.Name(SWITCHES, ast.Load()), ast.Constant(switch), ast.Load())
    if isinstance(node, ast.expr) and isinstance(changed, ast.expr):
        both: ast.AST = ast.IfExp(test, changed, node)
    else:
        assert isinstance(node, ast.stmt)
        assert isinstance(changed, ast.stmt)
        both = ast.If(test, [changed], [node])
    return ast.copy_location(both, node)

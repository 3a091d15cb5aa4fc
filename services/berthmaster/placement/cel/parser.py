"""From words to a tree, by CEL's grammar. Pure.

::

    expr     = or [ "?" or ":" expr ]            relation = sum { (< <= == != >= > in) sum }
    or       = and { "||" and }                  sum      = product { (+ -) product }
    and      = relation { "&&" relation }        product  = unary { (* / %) unary }
    unary    = { "!" | "-" } member
    member   = primary { "." NAME [ "(" args ")" ] | "[" expr "]" }
    primary  = literal | NAME [ "(" args ")" ] | "(" expr ")" | "[" items "]" | "{" entries "}"
"""

from math import isinf
from typing import Final

from berthmaster.placement.cel.errors import Malformed
from berthmaster.placement.cel.functions import FUNCTIONS
from berthmaster.placement.cel.logic import Logic, Macro
from berthmaster.placement.cel.part import Node
from berthmaster.placement.cel.tokens import RESERVED, Token, tokens
from berthmaster.placement.cel.tree import (
    Binary,
    Call,
    Choice,
    Index,
    ListOf,
    Literal,
    MapOf,
    Minus,
    Name,
    Not,
    Select,
)
from berthmaster.placement.cel.values import LEAST, MOST

MAX_DEPTH: Final = 50  # brackets within brackets
_MACROS: Final = {"all": 2, "exists": 2, "exists_one": 2, "filter": 2, "map": 2}
_LITERALS: Final = {"true": True, "false": False, "null": None}
_LEVELS: Final = (
    frozenset({"<", "<=", "==", "!=", ">=", ">", "in"}),
    frozenset({"+", "-"}),
    frozenset({"*", "/", "%"}),
)


def parse(text: str) -> Node:
    """The tree of an expression. Raises Malformed."""
    parser = _Parser(tokens(text))
    found = parser.expression()
    end = parser.word
    if end.kind != "end":
        raise Malformed(f"{end.value!r} where the expression should end", end.at)
    return found


class _Parser:
    def __init__(self, words: list[Token]) -> None:
        self._words = words
        self._next = 0
        self._depth = 0

    @property
    def word(self) -> Token:
        return self._words[self._next]

    def _is(self, *signs: str) -> bool:
        return self.word.kind in ("sign", "name") and self.word.value in signs

    def _take(self, sign: str) -> Token:
        word = self.word
        if not self._is(sign):
            found = repr(word.value) if word.kind != "end" else "the end"
            raise Malformed(f"{sign!r} expected, not {found}", word.at)
        self._next += 1
        return word

    def _accept(self, *signs: str) -> Token | None:
        word = self.word
        if not self._is(*signs):
            return None
        self._next += 1
        return word

    def expression(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Malformed(f"more than {MAX_DEPTH} levels", self.word.at)
        found = self._logic("||")
        if sign := self._accept("?"):
            yes = self._logic("||")
            self._take(":")
            found = Choice(sign.at, found, yes, self.expression())
        self._depth -= 1
        return found

    def _logic(self, sign: str) -> Node:
        at = self.word.at
        terms = [self._term(sign)]
        while self._accept(sign):
            terms.append(self._term(sign))
        return terms[0] if len(terms) == 1 else Logic(at, terms, settles=sign == "||")

    def _term(self, sign: str) -> Node:
        return self._logic("&&") if sign == "||" else self._binary(0)

    def _binary(self, level: int) -> Node:
        if level == len(_LEVELS):
            return self._unary()
        left = self._binary(level + 1)
        while sign := self._accept(*_LEVELS[level]):
            left = Binary(sign.at, sign.value, left, self._binary(level + 1))
        return left

    def _unary(self) -> Node:
        signs: list[Token] = []
        while sign := self._accept("!", "-"):
            signs.append(sign)
        if len(signs) > MAX_DEPTH:
            raise Malformed(f"more than {MAX_DEPTH} signs in a row", signs[0].at)
        if signs and signs[-1].value == "-" and self.word.kind in ("integer", "double"):
            found = self._members(self._number(negative=True))
            signs.pop()
        else:
            found = self._members(self._primary())
        for sign in reversed(signs):
            found = Not(sign.at, found) if sign.value == "!" else Minus(sign.at, found)
        return found

    def _members(self, found: Node) -> Node:
        while True:
            if self._is("{") and isinstance(found, Select | Name):
                raise Malformed("messages are not offered here", self.word.at)
            if sign := self._accept("["):
                found = Index(sign.at, found, self.expression())
                self._take("]")
            elif sign := self._accept("."):
                if self._is("?"):
                    raise Malformed("optional values are not offered here", sign.at)
                name = self._name()
                if self._accept("("):
                    found = self._method(sign.at, found, name.value)
                else:
                    found = _protobuf(found, name.value) or Select(sign.at, found, name.value)
            else:
                return found

    def _name(self) -> Token:
        word = self.word
        if word.kind != "name" or word.value in ("in", *_LITERALS):
            raise Malformed("a name expected", word.at)
        self._next += 1
        return word

    def _method(self, at: int, of: Node, name: str) -> Node:
        args = self._until(")")
        if name not in _MACROS:
            if isinstance(of, Name) and f"{of.name}.{name}" in FUNCTIONS:
                return Call(of.at, f"{of.name}.{name}", None, args)
            return Call(at, name, of, args)
        if len(args) not in ((2, 3) if name == "map" else (2,)):
            raise Malformed(f"{name} takes a variable and an expression", at)
        if not isinstance(args[0], Name):
            raise Malformed(f"{name} begins with the name of a variable", args[0].at)
        when = args[1] if len(args) == 3 else None
        return Macro(at, name, of, args[0].name, args[-1], when)

    def _until(self, closing: str) -> list[Node]:
        found: list[Node] = []
        while not self._is(closing):
            found.append(self.expression())
            if not self._accept(","):
                break
        self._take(closing)
        return found

    def _primary(self) -> Node:
        word = self.word
        if word.kind == "text":
            self._next += 1
            return Literal(word.at, word.value)
        if word.kind in ("integer", "double"):
            return self._number(negative=False)
        if word.kind == "name" and word.value in _LITERALS:
            self._next += 1
            return Literal(word.at, _LITERALS[word.value])
        if self._is("."):
            self._next += 1  # .name is name where there are no containers
            if self.word.kind != "name":
                raise Malformed("a name expected", self.word.at)
            return self._primary()
        if self._accept("("):
            found = self.expression()
            self._take(")")
            return found
        if self._is("?"):
            raise Malformed("optional values are not offered here", word.at)
        if self._accept("["):
            return ListOf(word.at, self._until("]"))
        if self._accept("{"):
            return self._map(word.at)
        if word.kind == "name":
            if word.value in RESERVED:
                raise Malformed(f"{word.value!r} is a reserved word", word.at)
            name = self._name()
            return self._call(name) if self._accept("(") else Name(name.at, name.value)
        found_text = repr(word.value) if word.kind != "end" else "the end"
        raise Malformed(f"a value expected, not {found_text}", word.at)

    def _call(self, name: Token) -> Node:
        args = self._until(")")
        if name.value != "has":
            return Call(name.at, name.value, None, args)
        if len(args) != 1 or not isinstance(args[0], Select):
            raise Malformed("has takes one field, as in has(a.b)", name.at)
        return Select(name.at, args[0].of, args[0].field, asked=True)

    def _map(self, at: int) -> Node:
        entries: list[tuple[Node, Node]] = []
        while not self._is("}"):
            key = self.expression()
            self._take(":")
            entries.append((key, self.expression()))
            if not self._accept(","):
                break
        self._take("}")
        return MapOf(at, entries)

    def _number(self, *, negative: bool) -> Node:
        word = self.word
        self._next += 1
        if word.kind == "double":
            number = float(word.value)
            if isinf(number):
                raise Malformed("a number beyond 64 bits", word.at)
            return Literal(word.at, -number if negative else number)
        value = int(word.value, 16 if word.value.lower().startswith("0x") else 10)
        value = -value if negative else value
        if not LEAST <= value <= MOST:
            raise Malformed("a whole number beyond 64 bits", word.at)
        return Literal(word.at, value)


def _protobuf(of: Node, name: str) -> Node | None:
    """``google.protobuf.Timestamp`` and ``google.protobuf.Duration``, which are types."""
    if name not in ("Timestamp", "Duration") or not isinstance(of, Select):
        return None
    if of.field != "protobuf" or not isinstance(of.of, Name) or of.of.name != "google":
        return None
    return Name(of.of.at, f"google.protobuf.{name}")

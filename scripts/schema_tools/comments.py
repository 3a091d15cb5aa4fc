"""What the comments beside a struct's fields say, for schemas that people read without the source.

A field's words are the description in its Meta. Without one they are the comment at the end of its
lines, or lines of their own below it that begin with its name and a colon. Anything else between
fields is about the code and stays there.
"""

import ast
import functools
import inspect
import io
import sys
import tokenize
from collections.abc import Mapping
from types import MappingProxyType

import msgspec


def field_comments(message: type[msgspec.Struct]) -> Mapping[str, str]:
    """Words by field, inherited fields included."""
    words: dict[str, str] = {}
    for base in reversed(message.__mro__):
        if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
            words |= _of_module(base.__module__).get(base.__qualname__, {})
    return MappingProxyType(words)


@functools.cache
def _of_module(name: str) -> Mapping[str, Mapping[str, str]]:
    return comments_in(inspect.getsource(sys.modules[name]))


def comments_in(source: str) -> dict[str, dict[str, str]]:
    """Words by class and field of one module's source."""
    comments: dict[int, tuple[int, str]] = {}  # line -> column and words
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = (token.start[1], token.string.lstrip("#").strip())
    lines = source.splitlines()
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            fields = [n for n in node.body if isinstance(n, ast.AnnAssign)]
            words = {_name(f): _words(f, comments, lines) for f in fields}
            found[node.name] = {name: text for name, text in words.items() if text}
    return found


def _name(field: ast.AnnAssign) -> str:
    if not isinstance(field.target, ast.Name):
        raise TypeError(f"line {field.lineno}: a struct's field has a plain name")
    return field.target.id


def _words(field: ast.AnnAssign, comments: dict[int, tuple[int, str]], lines: list[str]) -> str:
    last = field.end_lineno or field.lineno
    beside = [comments[line][1] for line in range(field.lineno, last + 1) if line in comments]
    below: list[str] = []
    while (line := last + 1 + len(below)) in comments and _alone(lines[line - 1]):
        below.append(comments[line][1])
    opening = f"{_name(field)}: "
    if below and below[0].startswith(opening):
        below[0] = below[0].removeprefix(opening)
        beside += below
    return " ".join(beside)


def _alone(line: str) -> bool:
    return line.lstrip().startswith("#")

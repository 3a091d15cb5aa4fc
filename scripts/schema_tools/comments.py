"""Descriptions of a struct's fields, for readers of the schemas without the source.

The description in a field's Meta comes first. Next is the comment at the end of the field's lines,
or comment lines of their own below that begin with the field's name and a colon. Fields with the
same meaning in every message, such as ``tenant``, take the text of COMMON and need no comment.
Other comments between fields are about the code.
"""

import ast
import functools
import inspect
import io
import sys
import tokenize
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

COMMON: Final[Mapping[str, str]] = MappingProxyType(
    {
        "attempt": "Number of the attempt, from 1.",
        "cell": "Cell of the decision chain.",
        "changed_at_s": "Server's time of the last event, in seconds since 1970.",
        "claimed_at_s": "Server's time of the claim, in seconds since 1970; 0 = not claimed.",
        "cluster": "Name of the cluster.",
        "decision": "Number of the decision in the chain of its cell.",
        "digest": "Hash of the request.",
        "ended_at_s": "Server's time of the end, in seconds since 1970.",
        "evictions": "Number of evictions that count toward max_evictions.",
        "executor": "Id of the executor, the owner of the attempt.",
        "id": "Id of the job, unique for its tenant.",
        "namespace": "Kubernetes namespace.",
        "node": "Name of the node.",
        "observed_at_s": "Reporter's clock in seconds since 1970, for display only.",
        "placed_at_s": "Server's time of the placement, in seconds since 1970; 0 = not placed.",
        "priority": "Priority of the job; higher goes first.",
        "queue": "Name of the queue.",
        "reason": "Reason given by the requester.",
        "request": "Job as accepted, defaults of its queue included.",
        "running_at_s": "Server's time of the start, in seconds since 1970; 0 = not running.",
        "set_at_s": "Server's time of the setting, in seconds since 1970.",
        "set_by": "Name of the operator.",
        "stamp": "Order among the facts of this subject.",
        "state": "State of the job.",
        "submitted_at_s": "Server's time of the submission, in seconds since 1970.",
        "tenant": "Tenant of the job.",
    }
)


def description(field: str, text: str) -> str:
    """Return the text as a sentence, or the common text of the field."""
    if not text:
        return COMMON.get(field, "")
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def field_comments(message: type[msgspec.Struct]) -> Mapping[str, str]:
    """Return the comment of each field, inherited fields included."""
    words: dict[str, str] = {}
    for base in reversed(message.__mro__):
        if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
            words |= _of_module(base.__module__).get(base.__qualname__, {})
    return MappingProxyType(words)


@functools.cache
def _of_module(name: str) -> Mapping[str, Mapping[str, str]]:
    return comments_in(inspect.getsource(sys.modules[name]))


def comments_in(source: str) -> dict[str, dict[str, str]]:
    """Return the comments of one module's source, by class and field."""
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

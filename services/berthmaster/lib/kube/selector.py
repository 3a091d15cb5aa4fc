"""Label selectors: as text for users and query strings, and as the fields of objects. Pure.

A text is a list of requirements, all of which must hold. As in Kubernetes, ``!=`` and ``notin``
also match a missing label, and an empty selector matches everything.
"""

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

MAX_CHARS: Final = 16_384


class SelectorError(ValueError):
    """An invalid selector. The message names the part and the fault."""


class Operator(Enum):
    """The operators of LabelSelector, and Gt and Lt, which only text can express."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GREATER = "Gt"
    LESS = "Lt"


class Requirement(NamedTuple):
    """One condition on one label."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case Operator.IN:
                return value is not None and value in self.values
            case Operator.NOT_IN:
                return value is None or value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None
            case Operator.GREATER | Operator.LESS:
                if value is None or not _INTEGER.fullmatch(value):
                    return False
                limit = int(self.values[0])
                return (
                    int(value) > limit if self.operator is Operator.GREATER else int(value) < limit
                )

    def __str__(self) -> str:
        values = ",".join(self.values)
        match self.operator:
            case Operator.IN:
                return (
                    f"{self.key}={values}" if len(self.values) == 1 else f"{self.key} in ({values})"
                )
            case Operator.NOT_IN:
                one = len(self.values) == 1
                return f"{self.key}!={values}" if one else f"{self.key} notin ({values})"
            case Operator.EXISTS:
                return self.key
            case Operator.DOES_NOT_EXIST:
                return f"!{self.key}"
            case Operator.GREATER:
                return f"{self.key}>{values}"
            case Operator.LESS:
                return f"{self.key}<{values}"


class Selector(NamedTuple):
    """Requirements that all must hold. An empty selector matches everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)

    def __str__(self) -> str:
        return ",".join(str(requirement) for requirement in self.requirements)


EVERYTHING: Final = Selector()


_INTEGER: Final = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)
_PREFIX: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_TOKEN: Final = re.compile(r"\s*(==|!=|[=!<>(),]|[^\s=!<>(),]+)\s*")


def parse_selector(text: str) -> Selector:
    """Parse a selector such as ``a=b,c in (d,e),!f``. Raise SelectorError."""
    if len(text) > MAX_CHARS:
        raise SelectorError(f"selector: {len(text)} characters, at most {MAX_CHARS}")
    if not text.strip():
        return EVERYTHING
    return Selector(tuple(_requirement(part, tokens) for part, tokens in _parts(text)))


def selector_of(
    match_labels: Mapping[str, str],
    match_expressions: Sequence[tuple[str, str, Sequence[str]]],
) -> Selector:
    """Return the selector of a LabelSelector: labels, and (key, operator, values) expressions.

    Raise SelectorError. As in Kubernetes, In and NotIn need values, the other two allow none.
    """
    found = [
        Requirement(
            _key(key, "matchLabels"), Operator.IN, (_value(value, f"matchLabels {key[:128]!r}"),)
        )
        for key, value in sorted(match_labels.items())
    ]
    for key, operator, values in match_expressions:
        where = f"matchExpressions {key[:128]!r}"
        if operator not in _OFFERED:
            raise SelectorError(f"{where}: operator {operator[:32]!r}, right are {_OFFERED_TEXT}")
        needs_values = operator in ("In", "NotIn")
        if needs_values != bool(values):
            rule = "at least one value" if needs_values else "no values"
            raise SelectorError(f"{where}: {operator} needs {rule}")
        checked = tuple(sorted({_value(value, where) for value in values}))
        found.append(Requirement(_key(key, where), Operator(operator), checked))
    return Selector(tuple(found))


_OFFERED: Final = ("In", "NotIn", "Exists", "DoesNotExist")
_OFFERED_TEXT: Final = ", ".join(_OFFERED)


def _parts(text: str) -> list[tuple[str, list[str]]]:
    """Split at the commas outside parentheses. Return each requirement's text and tokens."""
    parts: list[tuple[str, list[str]]] = []
    tokens: list[str] = []
    depth = start = at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:  # only white space remains
            break
        token = match[1]
        if token == "," and not depth:
            parts.append((text[start : match.start()].strip(), tokens))
            tokens, start = [], match.end()
        else:
            depth += (token == "(") - (token == ")")
            tokens.append(token)
        at = match.end()
    parts.append((text[start:].strip(), tokens))
    return parts


def _requirement(part: str, tokens: list[str]) -> Requirement:
    where = f"selector part {part[:128]!r}"
    match tokens:
        case []:
            raise SelectorError(f"{where}: empty, a comma too many")
        case ["!", key]:
            return Requirement(_key(key, where), Operator.DOES_NOT_EXIST)
        case [key]:
            return Requirement(_key(key, where), Operator.EXISTS)
        case [key, ("=" | "==" | "!=") as sign, *rest] if len(rest) <= 1:
            operator = Operator.NOT_IN if sign == "!=" else Operator.IN
            value = rest[0] if rest else ""
            return Requirement(_key(key, where), operator, (_value(value, where),))
        case [key, (">" | "<") as sign, limit]:
            if not _INTEGER.fullmatch(limit):
                raise SelectorError(f"{where}: {sign} needs a whole number, not {limit[:64]!r}")
            operator = Operator.GREATER if sign == ">" else Operator.LESS
            return Requirement(_key(key, where), operator, (limit,))
        case [key, ("in" | "notin") as word, "(", *inside, ")"]:
            operator = Operator.IN if word == "in" else Operator.NOT_IN
            return Requirement(_key(key, where), operator, _values(inside, where))
        case [_, "in" | "notin", *_]:
            raise SelectorError(f"{where}: in and notin need values in parentheses: a in (b,c)")
    raise SelectorError(f"{where}: none of a, !a, a=b, a!=b, a in (b,c), a notin (b,c), a>1, a<1")


def _values(tokens: list[str], where: str) -> tuple[str, ...]:
    """Return the values between parentheses. As in Kubernetes ``(a,)`` includes an empty value."""
    values = [""]
    empty = True
    for token in tokens:
        if token == ",":
            values.append("")
            empty = True
        elif empty and token not in ("(", ")", "=", "==", "!=", "!", "<", ">"):
            values[-1] = _value(token, where)
            empty = False
        else:
            raise SelectorError(f"{where}: {token[:64]!r} cannot stand between the values")
    return tuple(sorted(set(values)))


def _key(key: str, where: str) -> str:
    prefix, slash, name = key.rpartition("/")
    if slash and (not _PREFIX.fullmatch(prefix) or len(prefix) > 253):
        raise SelectorError(f"{where}: {key[:128]!r} has no DNS name before its /")
    if not _NAME.fullmatch(name):
        raise SelectorError(
            f"{where}: {key[:128]!r} is no label: at most 63 letters, digits, '-', '_' and '.', "
            "beginning and ending with a letter or digit"
        )
    return key


def _value(value: str, where: str) -> str:
    if value and not _NAME.fullmatch(value):
        raise SelectorError(
            f"{where}: {value[:128]!r} is no label value: at most 63 letters, digits, '-', '_' "
            "and '.', beginning and ending with a letter or digit"
        )
    return value

"""From the text of a flag or variable to a value of the setting's type, and back to words.

Pure. Beside each type stands what a person is told when the text does not fit it.
"""

import enum
import math
import types
import typing
from pathlib import Path
from typing import Any, Literal


class EmptyMember(ValueError):
    """A list with an empty member; ``index`` counts from 0."""

    def __init__(self, index: int) -> None:
        super().__init__(f"member [{index}] is empty")
        self.index = index


def members(text: str) -> tuple[str, ...]:
    """Split a list at its commas and trim each member. A blank text is the empty list. Raises
    EmptyMember: ``gpu,`` and ``a,,b`` are slips, and an empty name may stand for every name."""
    if not text.strip():
        return ()
    parts = tuple(part.strip() for part in text.split(","))
    if "" in parts:
        raise EmptyMember(parts.index(""))
    return parts


_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


def parse(kind: Any, text: str) -> Any:
    """The value that the text stands for; ValueError if it stands for none of that type."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is str:
        return text
    if kind is bool:
        return _bool(text)
    if kind is int:
        return int(_plain(text))
    if kind is float:
        return _finite(text)
    if kind is Path:
        if not text:
            raise ValueError("empty path")
        return Path(text).expanduser()
    if origin in (typing.Union, types.UnionType):
        (one,) = (arg for arg in inner if arg is not types.NoneType)
        return parse(one, text) if text else None
    if origin is Literal:
        return _among({str(value): value for value in inner}, text)
    if origin is tuple and inner[1:] == (Ellipsis,):
        return tuple(parse(inner[0], part) for part in members(text))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _among({str(member.value): member for member in kind}, text)
    raise TypeError(f"a setting cannot be of type {kind}")


def expectation(kind: Any, least: float | None = None, most: float | None = None) -> str:
    """What would be right, as it continues the word "expected"."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        (one,) = (arg for arg in inner if arg is not types.NoneType)
        return f"{expectation(one, least, most)}, or nothing"
    if origin is Literal:
        return f"one of {', '.join(str(value) for value in inner)}"
    if origin is tuple:
        return f"{expectation(inner[0], least, most)}, several with commas between them"
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return f"one of {', '.join(str(member.value) for member in kind)}"
    return f"{_WORDS.get(kind, 'text')}{_range(least, most)}"


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}


def _range(least: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f" from {least} to {most}"
    if least is not None:
        return f" of at least {least}"
    return f" of at most {most}" if most is not None else ""


def _bool(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(text)


def _plain(text: str) -> str:
    """The text of a number. Python also reads 1_0 and digits of other scripts."""
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return text


def _finite(text: str) -> float:
    value = float(_plain(text))
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _among(values: dict[str, Any], text: str) -> Any:
    if text not in values:
        raise ValueError(text)
    return values[text]

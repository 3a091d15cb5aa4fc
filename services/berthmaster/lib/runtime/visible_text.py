"""Text and JSON for terminals: characters that could control a terminal are escaped. Pure.

Escaped is every character not printable to Python: controls (U+001B, U+009B), marks of direction
(U+202E), format, private and unassigned characters, separators other than a blank. Names, reasons
and errors come from any client, and such a character forges or hides text.

orjson writes dicts, lists and numpy's arrays and numbers. msgspec writes the messages among them as
on the bus. A message on the bus is encoded by its struct, never here.
"""

import json
from collections.abc import Callable
from typing import Final

import msgspec
import orjson


def visible(text: str, keep: str = "\n") -> str:
    """Return the text with everything unprintable escaped, except the characters in ``keep``."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text
    )


def visible_json(body: bytes) -> bytes:
    """Return JSON of the same values, with everything unprintable in JSON's own escapes."""
    if body.isascii() and b"\x7f" not in body:
        return body  # the encoder has escaped ASCII's controls
    text = body.decode()
    return (
        "".join(
            char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text
        )
        .replace("\x7f", "\\u007f")
        .encode()
    )


_OPTIONS: Final = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


def _builtins(value: object) -> object:
    """Return plain values for a struct, or another type that msgspec knows and orjson does not.
    Raises TypeError.
    """
    return msgspec.to_builtins(value, order="deterministic")


def dumps(value: object, unknown: Callable[[object], object] = _builtins) -> bytes:
    """Return JSON on a single line. ``unknown`` converts types unknown to JSON. Raises
    TypeError.
    """
    return visible_json(orjson.dumps(value, default=unknown, option=_OPTIONS))


def pretty(value: object) -> bytes:
    """Return JSON for humans: indented by two, and identical for equal values. Raises TypeError."""
    options = _OPTIONS | orjson.OPT_INDENT_2
    return visible_json(orjson.dumps(_builtins_of_all(value), option=options))


def _builtins_of_all(value: object) -> object:
    """Return dicts sorted by key, structs in the order of their fields."""
    return msgspec.to_builtins(value, order="deterministic", enc_hook=_same)


def _same(value: object) -> object:
    """Return a list for a type unknown to msgspec, such as an array of numpy."""
    return orjson.loads(dumps(value))

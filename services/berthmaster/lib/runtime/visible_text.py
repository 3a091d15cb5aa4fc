"""Text and JSON for terminals: characters that could steer one are shown as escapes. Pure.

Escaped is every character that Python does not call printable: controls (U+001B, U+009B), marks of
direction (U+202E), format characters, private and unassigned ones, separators other than a blank.
Names, reasons and errors come from anybody, and such a character forges or hides text.

orjson writes dicts, lists and numpy's arrays and numbers. msgspec writes the messages among them as
on the bus. A message on the bus is encoded by its struct, never here.
"""

import json
from collections.abc import Callable
from typing import Final

import msgspec
import orjson


def visible(text: str, keep: str = "\n") -> str:
    """The text with everything unprintable shown as its escape, but for what is in ``keep``."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text
    )


def visible_json(body: bytes) -> bytes:
    """JSON that reads as the same values, with everything unprintable as JSON's own escape."""
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
    """A struct, or whatever else msgspec knows and orjson does not. Raises TypeError."""
    return msgspec.to_builtins(value, order="deterministic")


def dumps(value: object, unknown: Callable[[object], object] = _builtins) -> bytes:
    """On one line. ``unknown`` turns what JSON lacks into something else. Raises TypeError."""
    return visible_json(orjson.dumps(value, default=unknown, option=_OPTIONS))


def pretty(value: object) -> bytes:
    """For people: indented by two, and the same for equal values. Raises TypeError."""
    options = _OPTIONS | orjson.OPT_INDENT_2
    return visible_json(orjson.dumps(_builtins_of_all(value), option=options))


def _builtins_of_all(value: object) -> object:
    """Dicts in the order of their keys, structs in that of their fields."""
    return msgspec.to_builtins(value, order="deterministic", enc_hook=_same)


def _same(value: object) -> object:
    """What msgspec does not know, such as an array of numpy: as a list."""
    return orjson.loads(dumps(value))

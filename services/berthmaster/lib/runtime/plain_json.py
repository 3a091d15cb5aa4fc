"""JSON of values that are no message: what commands print, log lines, pages of health. Pure.

orjson writes dicts, lists and numpy's arrays and numbers; messages that stand among them are
written as msgspec writes them on the bus. What travels on the bus is encoded by its struct, never
here. What could steer a terminal is written as an escape (printable.py).
"""

from collections.abc import Callable
from typing import Final

import msgspec
import orjson

from berthmaster.lib.runtime.printable import visible_json

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

"""Errors of the functions in expressions. Pure.

CEL's Python library turns an exception into an error value: only the text and, roughly, the class
arrive. So ``WrongType`` is recognised by the prefix of its text.
"""

from typing import Final

WRONG: Final = "wrong type: "


class NoValue(ValueError):
    """The input has no value: a missing score, a number out of range."""


class WrongType(TypeError):
    """An operation on a value of a kind without that operation."""

    def __init__(self, problem: str) -> None:
        super().__init__(WRONG + problem)


def integer(value: int) -> int:
    """Return the value if 64 bits hold it. Raises NoValue."""
    if not -(2**63) <= value < 2**63:
        raise NoValue("a whole number beyond 64 bits")
    return value

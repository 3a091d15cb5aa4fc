"""What a function of an expression can fail by. Pure.

CEL's Python library turns an exception into an error value: only its text and, roughly, its class
arrive. A ``WrongType`` is told from other errors by how its text begins.
"""

from typing import Final

WRONG: Final = "wrong type: "


class NoValue(ValueError):
    """No value for this input: a score that is not there, a number out of range."""


class WrongType(TypeError):
    """An operation on a value of a kind that has no such operation."""

    def __init__(self, problem: str) -> None:
        super().__init__(WRONG + problem)


def integer(value: int) -> int:
    """The value, if 64 bits hold it. Raises NoValue."""
    if not -(2**63) <= value < 2**63:
        raise NoValue("a whole number beyond 64 bits")
    return value

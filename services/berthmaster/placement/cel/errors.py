"""What can be wrong with an expression, by whose fault it is. Pure.

::

    CelError
    ├── Malformed     the text is no expression of ours, for no cluster; says where
    ├── TooCostly     it costs more than it may
    └── EvalError     it cannot be worked out for this cluster
        └── WrongType     ... because it treats a value as what it is not
"""


class CelError(Exception):
    """Anything that is wrong with an expression."""


class Malformed(CelError):
    """The text is no expression."""

    def __init__(self, problem: str, at: int = -1) -> None:
        super().__init__(f"at character {at + 1}: {problem}" if at >= 0 else problem)


class TooCostly(CelError):
    """More steps than one evaluation may take."""


class EvalError(CelError):
    """No value for this input: a key that is not there, a number out of range."""


class WrongType(EvalError):
    """An operation on a value of a kind that has no such operation."""

"""Patterns, compiled and matched by RE2, whose time is linear in the text. Pure.

Python's own would go back and forth: one pattern of ten characters can keep it busy for years. RE2
refuses what needs that (looking around, references back) and what would need more memory than it is
given.

A match has a price beforehand, since it cannot be stopped: characters of the text times steps of
the compiled pattern. RE2 looks at a character in a nanosecond where its tables fit into memory, and
in ten for each of its steps where they do not; a step of an evaluation takes about a microsecond,
so a hundred of RE2's cost one. An example: `(a|b)*c` compiles to 8 steps, and a text of 500
characters costs 1 + 500 x 8 / 100 = 41.
"""

import re
from typing import Final

import re2

from berthmaster.placement.cel.errors import EvalError
from berthmaster.placement.cel.values import Meter

MAX_CHARS: Final = 1024  # of a pattern
MAX_BYTES: Final = 256 * 1024  # of memory for one; re2 keeps the last 128 of them
STEPS_A_CHARGE: Final = 100
_HALF: Final = re.compile(r"(?<!\\)(?:\\\\)*\\C")


def _options() -> re2.Options:
    options = re2.Options()
    options.max_mem = MAX_BYTES
    options.log_errors = False  # they are told to whoever wrote the pattern
    options.never_capture = True  # nobody asks what a group has found …
    return options


_OPTIONS: Final = _options()


class Pattern:
    """A pattern that can be looked for."""

    def __init__(self, compiled: re2._Regexp) -> None:
        self._compiled = compiled
        self.steps: int = compiled.programsize

    def first_in(self, text: str, meter: Meter) -> str:
        """What matches first, or "". Raises TooCostly, before it is looked for."""
        return next(iter(self.all_in(text, 1, meter)), "")

    def all_in(self, text: str, most: int, meter: Meter) -> list[str]:
        """What matches one after another; all, if ``most`` is negative. Raises TooCostly.

        Each is looked for from the end of the one before, at the price of what is left; an empty
        one that ends where the one before ended is none, as in Go.
        """
        found: list[str] = []
        at, ended = 0, -1
        while at <= len(text) and len(found) != most:
            meter.text(len(text))
            meter.charge((len(text) - at) * self.steps // STEPS_A_CHARGE)
            match = self._search(text, at)
            if match is None:
                break
            start, end = match
            if start < end or end != ended:
                found.append(text[start:end])
                meter.text(end - start)
            ended = end
            at = end if start < end else end + 1
        return found

    def _search(self, text: str, at: int) -> tuple[int, int] | None:
        try:
            match = self._compiled.search(text, at)
        except UnicodeEncodeError:
            raise EvalError("a pattern looked for in a text with half a character") from None
        return match.span() if match is not None else None

    def found_in(self, text: str, meter: Meter) -> bool:
        """Whether any part of the text matches. Raises TooCostly, before it is looked for."""
        meter.charge(1 + len(text) * self.steps // STEPS_A_CHARGE)
        try:
            return self._compiled.search(text) is not None
        except UnicodeEncodeError:
            raise EvalError("matches of a text with half a character") from None


def pattern(text: str) -> Pattern:
    """The pattern that a text means. Raises EvalError."""
    if len(text) > MAX_CHARS:
        raise EvalError(f"a pattern of {len(text)} characters, at most {MAX_CHARS}")
    if _HALF.search(text):
        raise EvalError(f"pattern {text[:80]!r}: \\C is half a character")
    try:
        return Pattern(re2.compile(text, options=_OPTIONS))
    except re2.error as error:
        why = error.args[0] if error.args else "it cannot be compiled"
        told = why.decode(errors="replace") if isinstance(why, bytes) else str(why)
    except UnicodeEncodeError:
        told = "half a character"
    raise EvalError(f"pattern {text[:80]!r}: {told[:160]}")

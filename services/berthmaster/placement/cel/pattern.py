"""Patterns in RE2's syntax, matched in time linear in the text. Pure.

Python's own would go back and forth: one pattern of ten characters can keep it busy for years. Here
a pattern becomes a list of small steps, and all ways through it are followed at once, a character
at a time; each way costs a step of the evaluation. Not offered, and refused by name: ``\\p{…}``,
``[[:class:]]``, and what RE2 has not either (looking around, references back).
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from berthmaster.placement.cel.errors import EvalError
from berthmaster.placement.cel.values import Meter

MAX_STEPS: Final = 1000
MAX_REPEAT: Final = 200
MAX_CHARS: Final = 1024
MAX_DEPTH: Final = 30
Ranges = tuple[tuple[str, str], ...]
_DIGIT: Final[Ranges] = (("0", "9"),)
_WORD: Final[Ranges] = (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"))
_SPACE: Final[Ranges] = tuple((char, char) for char in "\t\n\f\r ")
_CLASSES: Final = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_CONTROL: Final = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}


class Chars(NamedTuple):
    """One character of a set."""

    ranges: Ranges
    negated: bool = False
    fold: bool = False

    def takes(self, char: str) -> bool:
        """Whether the character is one of them."""
        forms = {char, char.lower(), char.upper()} if self.fold else (char,)
        found = any(low <= form <= high for form in forms for low, high in self.ranges)
        return found is not self.negated


class Fork(NamedTuple):
    """Go on at both places."""

    one: int
    other: int


class Assert(NamedTuple):
    """Go on only at such a place of the text: ``^ $ A z b B``."""

    kind: str


class Match(NamedTuple):
    """The pattern was found."""


Step = Chars | Fork | Assert | Match
Piece = Callable[[list[Step]], None]  # writes its steps at the end of the list


class Pattern:
    """A pattern that can be looked for."""

    def __init__(self, steps: list[Step]) -> None:
        self._steps = steps

    def found_in(self, text: str, meter: Meter) -> bool:
        """Whether any part of the text matches. Raises TooCostly."""
        ways: set[int] = set()
        for at in range(len(text) + 1):
            ways.add(0)  # it may begin anywhere
            here = self._closure(ways, text, at, meter)
            if here is None:
                return True
            if at == len(text):
                break
            char = text[at]
            ways = {
                number + 1
                for number in here
                if isinstance(step := self._steps[number], Chars) and step.takes(char)
            }
        return False

    def _closure(self, ways: set[int], text: str, at: int, meter: Meter) -> set[int] | None:
        """All steps that wait for a character here; None if one way has come to its end."""
        seen: set[int] = set()
        open_ = list(ways)
        while open_:
            number = open_.pop()
            if number in seen:
                continue
            seen.add(number)
            meter.charge(1)
            match self._steps[number]:
                case Fork(one, other):
                    open_ += (one, other)
                case Assert(kind):
                    if _holds(kind, text, at):
                        open_.append(number + 1)
                case Match():
                    return None
                case Chars(ranges):
                    meter.charge(len(ranges) // 4)
        return seen


def _holds(kind: str, text: str, at: int) -> bool:
    match kind:
        case "A" | "^":
            return at == 0
        case "z" | "$":
            return at == len(text)
        case "(?m)^":
            return at == 0 or text[at - 1] == "\n"
        case "(?m)$":
            return at == len(text) or text[at] == "\n"
    word = Chars(_WORD)
    before = at > 0 and word.takes(text[at - 1])
    after = at < len(text) and word.takes(text[at])
    return (before != after) is (kind == "b")


@lru_cache(maxsize=256)
def pattern(text: str) -> Pattern:
    """The pattern that a text means. Raises EvalError."""
    if len(text) > MAX_CHARS:
        raise EvalError(f"a pattern of {len(text)} characters, at most {MAX_CHARS}")
    reader = _Reader(text)
    piece = reader.choice()
    if reader.at < len(text):
        raise EvalError(f"pattern {text[:80]!r}: ) without its (")
    steps: list[Step] = []
    piece(steps)
    steps.append(Match())
    return Pattern(steps)


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._depth = 0
        self._fold = self._lines = self._dot = False

    def _bad(self, problem: str) -> EvalError:
        return EvalError(f"pattern {self.text[:80]!r}: {problem}")

    def _see(self, sign: str) -> bool:
        if not self.text.startswith(sign, self.at):
            return False
        self.at += len(sign)
        return True

    def choice(self) -> Piece:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._bad(f"more than {MAX_DEPTH} levels")
        flags = self._fold, self._lines, self._dot
        pieces = [self._row()]
        while self._see("|"):
            pieces.append(self._row())
        self._depth -= 1
        self._fold, self._lines, self._dot = flags
        found = pieces[-1]
        for piece in reversed(pieces[:-1]):
            found = _either(piece, found)
        return found

    def _row(self) -> Piece:
        pieces: list[Piece] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            piece = self._one()
            if piece is not None:
                pieces.append(self._repeated(piece))

        def write(steps: list[Step]) -> None:
            for piece in pieces:
                piece(steps)

        return write

    def _one(self) -> Piece | None:
        char = self.text[self.at]
        self.at += 1
        match char:
            case "(":
                return self._group()
            case "[":
                return _single(self._set())
            case ".":
                return _single(Chars((("\n", "\n"),) if not self._dot else (), negated=True))
            case "^" | "$":
                return _single(Assert(f"(?m){char}" if self._lines else char))
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise self._bad(f"{char} with nothing before it")
        return _single(Chars(((char, char),), fold=self._fold))

    def _group(self) -> Piece | None:
        flags = self._fold, self._lines, self._dot
        if self._see("?"):
            if self._see("P<") or self._see("<"):
                if self.text[self.at : self.at + 1] in ("=", "!"):
                    raise self._bad("RE2 cannot look behind")
                end = self.text.find(">", self.at)
                if end < 0:
                    raise self._bad("a group's name that is not closed")
                self.at = end + 1
            elif not self._flags():
                return None
        found = self.choice()
        if not self._see(")"):
            raise self._bad("( without its )")
        self._fold, self._lines, self._dot = flags
        return found

    def _flags(self) -> bool:
        """``(?i)`` counts to the end of the group; ``(?i:`` begins one. Whether one begins."""
        on = True
        while self.at < len(self.text):
            char = self.text[self.at]
            self.at += 1
            match char:
                case ":" | ")":
                    return char == ":"
                case "-":
                    on = False
                case "i":
                    self._fold = on
                case "m":
                    self._lines = on
                case "s":
                    self._dot = on
                case _:
                    break
        raise self._bad("after (? only names, : and the flags i, m and s are offered")

    def _escape(self) -> Piece:
        char = self.text[self.at : self.at + 1]
        if char in ("A", "z", "b", "B") and char:
            self.at += 1
            return _single(Assert(char))
        ranges, negated = self._escaped()
        single = len(ranges) == 1 and ranges[0][0] == ranges[0][1]
        return _single(Chars(ranges, negated, self._fold and single))

    def _escaped(self) -> tuple[Ranges, bool]:
        char = self.text[self.at : self.at + 1]
        self.at += 1
        if not char:
            raise self._bad("\\ at its end")
        if char.lower() in _CLASSES:
            return _CLASSES[char.lower()], char.isupper()
        if char in _CONTROL:
            return ((_CONTROL[char], _CONTROL[char]),), False
        if char.isalnum():
            raise self._bad(f"\\{char} is not offered here")
        return ((char, char),), False

    def _set(self) -> Chars:
        negated = self._see("^")
        ranges: list[tuple[str, str]] = []
        first = True
        while first or not self._see("]"):
            first = False
            if self.at >= len(self.text):
                raise self._bad("[ without its ]")
            if self._see("[:"):
                raise self._bad("[[:…:]] is not offered here")
            low, whole = self._member()
            if len(whole) > 1 or not low:
                ranges += whole
                continue
            high = low
            if self.text.startswith("-", self.at) and self.text[self.at + 1 : self.at + 2] != "]":
                self.at += 1
                high, _ = self._member()
                if not high or high < low:
                    raise self._bad(f"no range from {low!r} to {high!r}")
            ranges.append((low, high))
        return Chars(tuple(ranges), negated, self._fold)

    def _member(self) -> tuple[str, Ranges]:
        """(the character, itself as a range); for a class ("", its ranges)."""
        if self.at >= len(self.text):
            raise self._bad("[ without its ]")
        if not self._see("\\"):
            char = self.text[self.at]
            self.at += 1
            return char, ((char, char),)
        ranges, negated = self._escaped()
        if negated:
            raise self._bad("\\D, \\W and \\S are not offered between [ and ]")
        single = len(ranges) == 1 and ranges[0][0] == ranges[0][1]
        return (ranges[0][0] if single else ""), ranges

    def _repeated(self, piece: Piece) -> Piece:
        least, most = 1, 1
        if self._see("*"):
            least, most = 0, -1
        elif self._see("+"):
            least, most = 1, -1
        elif self._see("?"):
            least, most = 0, 1
        elif bounds := self._bounds():
            least, most = bounds
        else:
            return piece
        self._see("?")  # the shortest first: the same, as nobody asks where it ended
        if self.text[self.at : self.at + 1] in ("*", "+", "?"):
            raise self._bad("a repetition of a repetition")
        return _times(piece, least, most)

    def _bounds(self) -> tuple[int, int] | None:
        """``{2}``, ``{2,}``, ``{2,3}``; other braces are plain characters, as in RE2."""
        end = self.text.find("}", self.at)
        if not self.text.startswith("{", self.at) or end < 0:
            return None
        low, comma, high = self.text[self.at + 1 : end].partition(",")
        good = low.isdecimal() and len(low) < 5 and (not high or (high.isdecimal() and comma))
        if not good or len(high) > 4:
            return None
        self.at = end + 1
        least = int(low)
        most = int(high) if high else -1 if comma else least
        if max(least, most) > MAX_REPEAT or 0 <= most < least:
            raise self._bad(f"repetitions from 0 to {MAX_REPEAT}, the lower number first")
        return least, most


def _single(step: Step) -> Piece:
    def write(steps: list[Step]) -> None:
        if len(steps) >= MAX_STEPS:
            raise EvalError(f"a pattern of more than {MAX_STEPS} steps")
        steps.append(step)

    return write


def _either(piece: Piece, other: Piece) -> Piece:
    def write(steps: list[Step]) -> None:
        fork = len(steps)
        _single(Fork(fork, fork))(steps)
        piece(steps)
        jump = len(steps)
        _single(Fork(jump, jump))(steps)
        steps[fork] = Fork(fork + 1, len(steps))
        other(steps)
        steps[jump] = Fork(len(steps), len(steps))

    return write


def _times(piece: Piece, least: int, most: int) -> Piece:
    def write(steps: list[Step]) -> None:
        for _ in range(least):
            begin = len(steps)
            piece(steps)
            if len(steps) == begin:
                return  # nothing, so often as anybody likes, is nothing
        if most < 0:
            fork = len(steps)
            _single(Fork(fork, fork))(steps)
            piece(steps)
            _single(Fork(fork, fork))(steps)
            steps[fork] = Fork(fork + 1, len(steps))
        for _ in range(max(0, most - least)):
            fork = len(steps)
            _single(Fork(fork, fork))(steps)
            piece(steps)
            steps[fork] = Fork(fork + 1, len(steps))

    return write

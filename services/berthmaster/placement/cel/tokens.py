"""The words of an expression. Pure; linear in the length of the text."""

import re
from typing import Final, Literal, NamedTuple

from berthmaster.placement.cel.errors import Malformed

MAX_CHARS: Final = 8192
Kind = Literal["name", "sign", "text", "integer", "double", "end"]
_RESERVED_WORDS: Final = """
    as break const continue else for function if import let loop package namespace return
    var void while
"""
RESERVED: Final = frozenset(_RESERVED_WORDS.split())
_WORD: Final = re.compile(
    r"""
      (?P<space>[ \t\r\n\f]+|//[^\n]*)
    | (?P<text>(?:[rR]?[bB]?|[bB][rR])(?:'''|\"\"\"|'|"))
    | (?P<double>[0-9]+(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)
        |\.[0-9]+(?:[eE][+-]?[0-9]+)?)
    | (?P<integer>(?:0x[0-9a-fA-F]+|[0-9]+)[uU]?)
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<sign>\|\||&&|==|!=|<=|>=|[-+*/%!<>?:.,()\[\]{}])
    """,
    re.VERBOSE | re.ASCII,
)
_SIMPLE: Final = {
    **dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True)),
    **{char: char for char in "\\?\"'`"},
}
_DIGITS: Final = {"x": 2, "X": 2, "u": 4, "U": 8}


class Token(NamedTuple):
    """One word: its kind, its value, and where it begins."""

    kind: Kind
    value: str
    at: int


def tokens(text: str) -> list[Token]:
    """All words of a text, with one of kind "end" behind them. Raises Malformed."""
    if len(text) > MAX_CHARS:
        raise Malformed(f"{len(text)} characters, at most {MAX_CHARS}")
    found: list[Token] = []
    at = 0
    while at < len(text):
        match = _WORD.match(text, at)
        if match is None and text[at] == "`":
            raise Malformed('names in backquotes are not offered here, but a["b"]', at)
        if match is None:
            raise Malformed(f"{text[at]!r} has no meaning here", at)
        kind = match.lastgroup
        if kind == "text":
            value, end = _string(text, at, match[0])
            found.append(Token("text", value, at))
            at = end
            continue
        if kind == "integer" and match[0][-1] in "uU":
            raise Malformed("unsigned numbers are not offered here", at)
        if kind in ("name", "sign", "integer", "double"):
            found.append(Token(kind, match[0], at))  # type: ignore[arg-type]
        at = match.end()
    found.append(Token("end", "", len(text)))
    return found


def _string(text: str, at: int, opening: str) -> tuple[str, int]:
    """The string that begins here, and where it ends."""
    quote = opening.lstrip("rRbB")
    prefix = opening[: len(opening) - len(quote)].lower()
    if "b" in prefix:
        raise Malformed("bytes are not offered here", at)
    raw = "r" in prefix
    parts: list[str] = []
    here = at + len(opening)
    while here < len(text):
        if text.startswith(quote, here):
            return "".join(parts), here + len(quote)
        char = text[here]
        if char == "\n" and len(quote) == 1:
            break
        if char == "\\" and not raw:
            value, here = _escape(text, here)
            parts.append(value)
        else:
            parts.append(char)
            here += 1
    raise Malformed(f"a string that is not closed: {quote} is missing", at)


def _escape(text: str, at: int) -> tuple[str, int]:
    letter = text[at + 1 : at + 2]
    if letter in _SIMPLE and letter:
        return _SIMPLE[letter], at + 2
    if letter in _DIGITS:
        end = at + 2 + _DIGITS[letter]
        return _char(text[at + 2 : end], 16, _DIGITS[letter], at), end
    if letter and letter in "0123":
        return _char(text[at + 1 : at + 4], 8, 3, at), at + 4
    raise Malformed(f"no escape sequence: \\{letter}", at)


def _char(digits: str, base: int, length: int, at: int) -> str:
    good = "0123456789abcdefABCDEF" if base == 16 else "01234567"
    if len(digits) < length or not set(digits) <= set(good):
        raise Malformed(f"an escape sequence needs {length} digits", at)
    code = int(digits, base)
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise Malformed("no character has this code", at)
    return chr(code)

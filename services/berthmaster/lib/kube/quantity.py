"""Kubernetes quantities ("500m", "16Gi", "1e3") as exact numbers. Pure.

Values are Fractions, because with floats three times 100m differs from 300m. A malformed quantity
of a node or pod raises an error with the text, and is never guessed.
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

# The API caps larger quantities at 2**63 - 1. Here they are errors.
MOST: Final = 2**63 - 1
_FORM: Final = re.compile(
    r"([+-]?)(\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?\d{1,3}))?",
    re.ASCII,
)
_FACTORS: Final[dict[str, Fraction]] = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", start=1)},
}


class QuantityError(ValueError):
    """A text that is no quantity, or a quantity impossible for a resource."""


@lru_cache(maxsize=4096)
def parse_quantity(text: str | int) -> Fraction:
    """Return the exact value. Raise QuantityError, which names the text and the fault."""
    if isinstance(text, int):
        text = str(text)
    match = _FORM.fullmatch(text)
    if match is None:
        raise QuantityError(
            f"{text[:64]!r} is no quantity: a number, perhaps with one of n u m k M G T P E "
            "Ki Mi Gi Ti Pi Ei or an exponent"
        )
    sign, number, suffix, exponent = match.groups()
    value = Fraction(number)
    if suffix:
        value *= _FACTORS[suffix]
    elif exponent:
        value *= Fraction(10) ** int(exponent)
    if sign == "-" and value:
        raise QuantityError(f"{text[:64]!r} is negative, which no resource can be")
    if value > MOST:
        raise QuantityError(f"{text[:64]!r} is more than any resource can be ({MOST})")
    return value


@lru_cache(maxsize=4096)
def milli(text: str | int) -> int:
    """Return thousandths, rounded up as Kubernetes does, so that no request shrinks."""
    return _ceil(parse_quantity(text) * 1000)


@lru_cache(maxsize=4096)
def whole(text: str | int) -> int:
    """Return whole units (bytes, devices), rounded up."""
    return _ceil(parse_quantity(text))


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)

"""Values of flags and files: from text such as 2h, 16Gi or key=value to a number or map. Pure."""

import math
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from berthmaster.lib.engine.scoring.profiles import COMPONENTS

_DURATION: Final = re.compile(
    r"(?:(\d+(?:\.\d+)?)w)?(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?"
    r"(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?",
    re.ASCII,
)
_UNITS_S: Final = (604_800, 86_400, 3600, 60, 1, 0.001)  # seconds of the groups, largest unit first
_NUMBER: Final = re.compile(r"\d{1,15}(?:\.\d{1,15})?", re.ASCII)
_MOST_S: Final = 36_525 * 86_400.0  # a century: a longer duration is a typo, and no clock has it
SIZE: Final = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*(?:([KMGT]i?)B?)", re.ASCII)
_MIB: Final = {
    "K": Fraction(1, 1024),
    "M": Fraction(1),
    "G": Fraction(1024),
    "T": Fraction(1024 * 1024),
}


class WrongInput(ValueError):
    """The input cannot be a request. The text says where, and what would be right."""


def parse_duration_s(text: str, *, zero: bool = False) -> float:
    """Return the seconds of 90, 90s, 1.5m, 2h, 1h30m, 1w2d.

    Each number has its unit, the larger first, or a single number counts seconds. ``zero`` allows
    0. Raises WrongInput.
    """
    right = "right are 90s, 1.5m, 2h, 1h30m" + (", 0s" if zero else "")
    text = text.strip()
    wrong = WrongInput(f"{text[:64]!r} is no duration; {right}")
    if _NUMBER.fullmatch(text):
        total = float(text)
    elif text and (found := _DURATION.fullmatch(text)) is not None:
        pairs = zip(found.groups(), _UNITS_S, strict=True)
        total = sum(float(number) * unit_s for number, unit_s in pairs if number is not None)
    else:
        raise wrong
    if total > _MOST_S or (total <= 0 and not zero):
        raise wrong
    return total


def parse_memory_mib(text: str) -> int:
    """Return the MiB of 512, 512Mi, 16Gi, 1.5T, rounded up.

    A positive value never becomes 0, because 0 means no limit. A number without a unit counts whole
    MiB; K, M, G and T mean Ki, Mi, Gi and Ti. Raises WrongInput.
    """
    text = text.strip()
    if _NUMBER.fullmatch(text) and text.isdecimal():
        return int(text)
    found = SIZE.fullmatch(text)
    if found is None:
        raise WrongInput(f"{text!r} is no amount of memory; right are 512 (MiB), 512Mi, 16Gi")
    return math.ceil(Fraction(found[1]) * _MIB[found[2][0]])


def parse_cpu_milli(text: str) -> int:
    """Return the thousandths of 4, 0.5, 250m, rounded up.

    A positive value never becomes 0. Raises WrongInput.
    """
    text = text.strip()
    number = text.removesuffix("m")
    if not _NUMBER.fullmatch(number):
        raise WrongInput(f"{text!r} is no number of CPUs; right are 4, 0.5, 250m")
    return math.ceil(Fraction(number) * (1 if number != text else 1000))


def exactly(text: str, parts: int) -> int | None:
    """Return a number as a whole number of fractions, such as thousandths, or None.

    Example with thousandths: 2.5 is 2500. 0.0005 is None, because it is no whole number.
    """
    text = text.strip()
    if not _NUMBER.fullmatch(text):
        return None
    found = Fraction(text) * parts
    return found.numerator if found.denominator == 1 else None


def parse_pairs(texts: Sequence[str], what: str = "label") -> dict[str, str]:
    """Return the pairs of several key=value texts. Raises WrongInput."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise WrongInput(f"{text!r} is no {what}; right is key=value")
        pairs[name] = value
    return pairs


def parse_weights(texts: Sequence[str]) -> dict[str, float]:
    """Return the score weights of several component=number texts. Raises WrongInput."""
    weights: dict[str, float] = {}
    for text in texts:
        part, _, number = text.partition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if part not in COMPONENTS or not -10 <= weight <= 10:
            what = f"PART=N, N from -10 to 10 and PART one of {', '.join(COMPONENTS)}"
            raise WrongInput(f"{text!r} is no weight; right is {what}")
        weights[part] = weight
    return weights

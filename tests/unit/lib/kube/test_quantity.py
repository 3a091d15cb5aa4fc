"""Quantities: exact, bounded, and refused with the text and the reason."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.lib.kube.quantity import MOST, QuantityError, milli, parse_quantity, whole


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("8", 8),
        ("+8", 8),
        ("500m", Fraction(1, 2)),
        ("1500u", Fraction(3, 2000)),
        ("7n", Fraction(7, 10**9)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("0.1", Fraction(1, 10)),
        ("2k", 2000),
        ("3M", 3 * 10**6),
        ("4G", 4 * 10**9),
        ("5T", 5 * 10**12),
        ("6P", 6 * 10**15),
        ("7E", 7 * 10**18),
        ("1Ki", 1024),
        ("1.5Mi", 3 * 2**19),
        ("80Gi", 80 * 2**30),
        ("2Ti", 2**41),
        ("3Pi", 3 * 2**50),
        ("7Ei", 7 * 2**60),
        ("1e3", 1000),
        ("1E3", 1000),
        ("12e-1", Fraction(6, 5)),
        ("-0", 0),
        (4, 4),
    ],
)
def test_each_form_has_its_exact_value(text: str | int, value: Fraction | int) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is no quantity"),
        ("many", "is no quantity"),
        ("1 Gi", "is no quantity"),
        ("1Zi", "is no quantity"),
        ("1mi", "is no quantity"),
        ("0x10", "is no quantity"),
        ("1e3Ki", "is no quantity"),
        (".", "is no quantity"),
        ("٣", "is no quantity"),  # a digit, but not one of ours
        ("nan", "is no quantity"),
        ("-1", "is negative"),
        ("-250m", "is negative"),
        (-8, "is negative"),
        ("8Ei", "is more than any resource can be"),
        ("1e999", "is more than any resource can be"),
        ("9" * 41, "is no quantity"),
    ],
)
def test_nonsense_is_named_with_its_reason(text: str | int, reason: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_quantity(text)
    assert reason in str(caught.value)
    assert str(text)[:64] in str(caught.value)


def test_an_absurd_text_neither_takes_long_nor_fills_the_error() -> None:
    with pytest.raises(QuantityError) as caught:
        parse_quantity("1e999999999")
    assert "is no quantity" in str(caught.value)
    with pytest.raises(QuantityError) as caught:
        parse_quantity("9" * 1_000_000)
    assert len(str(caught.value)) < 300


def test_what_is_asked_for_is_never_rounded_down() -> None:
    assert [milli("1"), milli("0.5"), milli("1n"), milli("333333u")] == [1000, 500, 1, 334]
    assert [whole("80Gi"), whole("1500m"), whole("0")] == [80 * 2**30, 2, 0]


@given(
    number=st.decimals(min_value=0, max_value=10**6, places=3),
    suffix=st.sampled_from(["", "m", "k", "M", "Ki", "Mi", "Gi"]),
)
def test_any_number_and_suffix_are_worth_what_arithmetic_says(number: Decimal, suffix: str) -> None:
    thousandths = {"": 1000, "m": 1, "k": 10**6, "M": 10**9}
    thousandths |= {"Ki": 1000 * 2**10, "Mi": 1000 * 2**20, "Gi": 1000 * 2**30}
    worth = Fraction(number) * thousandths[suffix] / 1000
    assert parse_quantity(f"{number}{suffix}") == worth


def test_the_largest_is_the_last_that_the_api_keeps() -> None:
    assert parse_quantity(str(MOST)) == MOST
    with pytest.raises(QuantityError):
        parse_quantity(str(MOST + 1))

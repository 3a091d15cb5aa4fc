"""Amounts as they are shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.cli.output import amounts


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-1, "0s"), (0, "0s"), (59.9, "59s"), (61, "1m01s"), (599, "9m59s"), (660, "11m"),
        (3661, "1h01m"), (90_000, "1d01h"),
    ],
)  # fmt: skip
def test_ages(seconds: float, shown: str) -> None:
    assert amounts.age(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 us"), (0.00085, "850 us"), (0.0123, "12.3 ms"), (0.00999, "9.99 ms"),
        (0.85, "850 ms"), (4.56, "4.56 s"), (60, "60.0 s"), (200, "3m20s"),
    ],
)  # fmt: skip
def test_durations(seconds: float, shown: str) -> None:
    assert amounts.duration(seconds) == shown


def test_indices_are_ranges() -> None:
    assert amounts.indices((3, 0, 1, 2, 6)) == "0-3,6"
    assert amounts.indices(()) == ""
    assert amounts.indices((5,)) == "5"


@given(st.floats(-1, 2), st.integers(1, 60), st.booleans())
def test_a_bar_has_its_width_whatever_its_share(share: float, width: int, ascii_only: bool) -> None:
    drawn = amounts.bar(share, width, ascii_only=ascii_only)
    assert len(drawn) == width
    assert not ascii_only or drawn.isascii()


def test_bars() -> None:
    assert amounts.bar(0.5, 4, ascii_only=True) == "##.."
    assert amounts.bar(0.53125, 4) == "██▏░"
    assert amounts.bar(1.5, 4) == "████"


def test_unknown_is_not_zero() -> None:
    assert (amounts.percent(None), amounts.percent(0.0)) == ("?", "0%")


def test_percentiles_are_values_that_were_there() -> None:
    hundred = [float(value) for value in range(1, 101)]
    assert amounts.percentile(hundred, 0.5) == 50
    assert amounts.percentile(hundred, 0.99) == 99
    assert amounts.percentile([7.0], 0.01) == 7

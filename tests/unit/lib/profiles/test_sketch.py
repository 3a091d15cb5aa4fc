"""Spreads in bounded memory: right within a few per cent, and sums of them too."""

import math
import random

import pytest

from berthmaster.lib.profiles.sketch import MAX_BUCKETS, Sketch, total


def sketch_of(values: list[float]) -> Sketch:
    found = Sketch()
    for value in values:
        found.add(value)
    return found


@pytest.mark.parametrize("share", [0.5, 0.95])
def test_sketch_of_percentages_is_right_within_a_few_percent(share: float) -> None:
    chance = random.Random(1)
    values = [chance.uniform(1, 100) for _ in range(5000)]
    found = sketch_of(values).quantile(share)
    assert found == pytest.approx(sorted(values)[math.ceil(share * 5000) - 1], rel=0.05)


def test_sketch_of_any_size_stays_bounded() -> None:
    chance = random.Random(2)
    found = sketch_of([10 ** chance.uniform(-6, 13) for _ in range(20_000)])
    assert len(found.buckets) <= MAX_BUCKETS
    assert found.weight == 20_000


def test_sketch_counts_zeros_and_keeps_the_peak() -> None:
    found = sketch_of([0.0, 0.0, 0.0, 40.0])
    found.add(50.0, weight=1, peak=99.0)
    assert (found.quantile(0.5), found.peak, found.weight) == (0.0, 99.0, 5)
    assert found.quantile(0.8) == pytest.approx(40.0, rel=0.02)


def test_sketch_without_values_has_no_quantile() -> None:
    assert Sketch().quantile(0.5) is None


def test_total_is_the_sketch_of_all_values() -> None:
    chance = random.Random(3)
    small = [chance.uniform(1, 3) for _ in range(500)]
    wide = [10 ** chance.uniform(0, 9) for _ in range(500)]
    both = total([sketch_of(small), sketch_of(wide)])
    again = sketch_of([*wide, *small])
    assert (both.level, both.buckets, both.peak) == (again.level, again.buckets, again.peak)

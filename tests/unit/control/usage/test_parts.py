"""The small parts: periods in pieces, waits in buckets, prices, minutes of trends, requests."""

import itertools
import math
import random
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.control.usage.core import waits
from berthmaster.control.usage.core.prices import Prices, PricesError, parse_prices
from berthmaster.control.usage.core.report import Asked, asked, next_page, trends_of, window_of
from berthmaster.control.usage.core.spans import HOUR_MS, Cut, Size, begin_of, cut, end_of
from berthmaster.control.usage.core.trends import MOST_TENANTS, Collector, Sample
from berthmaster.control.usage.store.reading import JobRow, TrendRow
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.quality import QualityReport
from berthmaster.lib.messages.usage import TrendsRequest, UsageReportRequest

MOMENTS = st.integers(0, 4_102_444_800_000)  # up to the year 2100


@given(MOMENTS, MOMENTS, st.sampled_from(["hour", "day"]), st.sampled_from(["day", "month"]))
def test_a_period_in_pieces_is_the_period(since: int, until: int, small: Size, large: Size) -> None:
    found = cut(since, until, smallest=small, largest=large)
    if since >= until:
        assert found == Cut((), ())
        return
    pieces = [(cells.first_ms, cells.end_ms) for cells in found.cells]
    pieces += [(edge.since_ms, edge.until_ms) for edge in found.edges]
    pieces.sort()
    assert (pieces[0][0], pieces[-1][1]) == (since, until)
    assert all(one[1] == after[0] for one, after in itertools.pairwise(pieces))
    assert len(found.edges) <= 2
    for cells in found.cells:
        assert begin_of(cells.size, cells.first_ms) == cells.first_ms
        assert begin_of(cells.size, cells.end_ms) == cells.end_ms
    for edge in found.edges:
        assert edge.cell_ms <= edge.since_ms < edge.until_ms <= edge.cell_end_ms
        assert (edge.cell_ms, edge.cell_end_ms) == (
            begin_of(small, edge.since_ms),
            end_of(small, edge.since_ms),
        )


def test_the_example_of_a_period_in_pieces() -> None:
    def at(*when: int) -> int:
        return round(datetime(*when, tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc,arg-type]

    found = cut(at(2026, 1, 30, 10, 30), at(2026, 3, 2, 1))
    assert [(cells.size, cells.first_ms, cells.end_ms) for cells in found.cells] == [
        ("hour", at(2026, 1, 30, 11), at(2026, 1, 31)),
        ("day", at(2026, 1, 31), at(2026, 2, 1)),
        ("month", at(2026, 2, 1), at(2026, 3, 1)),
        ("day", at(2026, 3, 1), at(2026, 3, 2)),
        ("hour", at(2026, 3, 2), at(2026, 3, 2, 1)),
    ]
    assert [edge.until_ms - edge.since_ms for edge in found.edges] == [HOUR_MS // 2]


@given(st.lists(st.integers(1, 10**11), min_size=1, max_size=200))
def test_a_percentile_is_right_within_one_percent(values: list[int]) -> None:
    values.sort()
    for share in (0.5, 0.95, 1.0):
        exact = values[max(1, math.ceil(share * len(values))) - 1] / 1000
        told = waits.percentile(waits.unpacked(waits.packed(waits.of(values))), share)
        assert told == pytest.approx(exact, rel=0.0101, abs=0.0011)


def test_no_wait_and_no_jobs() -> None:
    assert waits.percentile({}, 0.5) is None
    assert waits.percentile(waits.of([0, -5]), 0.95) == 0.0
    assert waits.unpacked(None) == {}
    assert waits.sum_of([]) == waits.sum_of([b""]) == {}


@given(st.lists(st.lists(st.integers(0, 10**11), max_size=20), max_size=10))
def test_many_cells_are_added_up_as_one_by_one(cells: list[list[int]]) -> None:
    one_by_one: waits.Buckets = {}
    for cell in cells:
        waits.add(one_by_one, waits.of(cell))
    found = waits.sum_of([waits.packed(waits.of(cell)) for cell in cells])
    assert found == one_by_one


def test_prices_by_model_and_for_the_rest() -> None:
    prices = parse_prices(b'{"currency": "EUR", "gpu_hour": {"H100": 2.9}, "other": 0.5}')
    assert (prices.of("H100"), prices.of("T4")) == (2.9, 0.5)
    assert Prices(currency="EUR", gpu_hour={}).of("T4") is None


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (b"", "truncated"),
        (b"[]", "object"),
        (b'{"currency": "EUR"}', "gpu_hour"),
        (b'{"currency": "", "gpu_hour": {}}', "currency"),
        (b'{"currency": "EUR", "gpu_hour": {"H100": -1}}', "gpu_hour"),
        (b'{"currency": "EUR", "gpu_hour": {"H100": "2"}}', "gpu_hour"),
        (b'{"currency": "EUR", "gpu_hours": {}}', "gpu_hours"),
        (b'{"currency": "\xff", "gpu_hour": {}}', "utf-8"),
        (b"[" * 100_000, "right is"),
    ],
)
def test_a_wrong_file_of_prices_is_told_by_field(text: bytes, field: str) -> None:
    with pytest.raises(PricesError, match=field):
        parse_prices(text)


def test_a_minute_is_told_once_it_is_over() -> None:
    found = Collector()
    for percent in (40.0, 60.0):
        report = QualityReport(
            cell="all", decider="r", observed_at_s=0.0, allocation_percent=percent, waiting=3
        )
        found.quality(report, 610.0)
    found.placed(601.0, "all", "acme", 2.0)
    found.placed(602.0, "all", "acme", None)  # a second attempt: it waited for nothing
    found.ended(603.0, "all", "acme")
    assert found.take(659.9) == []
    told = {(one.name, one.cell, one.tenant): one for one in found.take(660.0)}
    assert told["allocation_percent", "all", ""] == Sample(
        600, "allocation_percent", "all", "", 50.0, 50.0, 50.0
    )
    assert told["placements_per_s", "all", ""].total == 2.0
    assert told["placements_per_s", "", "acme"].high == pytest.approx(2 / 60)
    assert told["wait_p95_s", "", "acme"].total == 2.0
    assert found.take(10_000.0) == []


def test_of_many_tenants_those_with_the_most_have_trends() -> None:
    found, chance = Collector(), random.Random(1)
    for number in chance.sample(range(MOST_TENANTS + 50), MOST_TENANTS + 50):
        for _ in range(1 + number // 50):
            found.ended(1.0, "all", f"t{number:03}")
    shown = {one.tenant for one in found.take(1e6) if one.tenant}
    assert shown == {f"t{number:03}" for number in range(50, MOST_TENANTS + 50)}


def test_trends_have_a_point_a_step_and_zero_only_where_somebody_looked() -> None:
    request = TrendsRequest(span="hour", until_s=7_199.0)
    window = window_of(request, 1e9)
    assert window == (60, 3_600, 7_200)
    of_all = [
        TrendRow(3_660, "waiting", "all", 1, 4.0, 4.0, 4.0),
        TrendRow(3_720, "placements_per_s", "all", 1, 30.0, 0.5, 0.5),
    ]
    own = [TrendRow(3_720, "placements_per_s", "", 1, 6.0, 0.1, 0.1)]
    told = trends_of(None, request, window, of_all, [], 1e9)
    assert [(one.name, one.means[:4]) for one in told.trends] == [
        ("placements_per_s", (None, 0.0, 0.5, None)),
        ("waiting", (None, 4.0, None, None)),
    ]
    assert {len(one.means) for one in told.trends} == {60}
    mine = trends_of("acme", request, window, of_all, own, 1e9)
    assert [(one.name, one.cell, one.means[2]) for one in mine.trends] == [
        ("placements_per_s", "", 0.1)
    ]


def test_a_request_without_anything_is_of_the_last_thirty_days() -> None:
    ask = asked("ann", UsageReportRequest(), 90 * 86_400.0)
    assert isinstance(ask, Asked)
    assert (ask.query.since_ms, ask.query.until_ms) == (60 * 86_400_000, 90 * 86_400_000)
    assert (ask.query.group, dict(ask.query.filters)) == (("queue",), {"tenant": "ann"})
    early = asked(None, UsageReportRequest(until_s=5.0), 90.0)
    assert isinstance(early, Asked)
    assert early.query.since_ms == 0
    none = asked(None, UsageReportRequest(since_s=5.0, until_s=5.0), 90.0)
    assert isinstance(none, Refusal)
    assert none.field == "since_s"


def test_a_page_goes_on_behind_the_one_before() -> None:
    last = JobRow("t", "a", 1, 77, None, None, "failed", "q", "", "", "", 0, 0, 0, "", ())
    ask = asked(None, UsageReportRequest(kind="job", page=next_page(last)), 90.0)
    assert isinstance(ask, Asked)
    assert ask.jobs is not None
    assert ask.jobs.after == (77, "t", "a")

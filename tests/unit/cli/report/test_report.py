"""`berth report`: moments as people write them, and CSV that opens without surprises."""

import csv
import io

import click
import pytest

from berthmaster.cli.report import screen as render
from berthmaster.cli.report.commands import WrongMoment, in_csv, likened, moment, whole
from berthmaster.lib.messages.usage import JobUsage, Trend, Trends, UsageReport, UsageRow
from tests.unit.cli.screens import screen

NOW_S = 1_795_521_600.0  # 2026-11-24 12:00 UTC


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW_S),
        ("12h", NOW_S - 43_200),
        ("7d", NOW_S - 604_800),
        ("0.5w", NOW_S - 302_400),
        ("2026-11-24", NOW_S - 43_200),
        ("2026-11-24T13:30", NOW_S + 5_400),
        ("2026-11", 1_793_491_200.0),
    ],
)
def test_moments(text: str, expected: float) -> None:
    assert moment(text, NOW_S) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13", "2026-02-30", "5", "-5d", "1e9d"])
def test_what_is_no_moment_is_told_with_what_is_one(text: str) -> None:
    with pytest.raises(WrongMoment, match="expected 2026-11"):
        moment(text, NOW_S)


def test_a_period_is_a_whole_day_or_month() -> None:
    assert whole("2026-02-28") == (1_772_236_800.0, 1_772_323_200.0)
    since_s, until_s = whole("2026-12")
    assert (until_s - since_s) / 86_400 == 31
    assert whole("2024-02")[1] - whole("2024-02")[0] == 29 * 86_400
    with pytest.raises(WrongMoment):
        whole("2026")


def test_likened_job_without_a_tenant_is_of_the_operators_own() -> None:
    assert likened("train-1", "", "default") == ("default", "train-1")
    assert likened("train-1", "ann", "default") == ("ann", "train-1")
    assert likened("ann/train-1", "", "default") == ("ann", "train-1")
    assert likened("train-1", "", "") == ("", "train-1")  # a tenant's own credentials
    assert likened("", "", "default") == ("", "")
    with pytest.raises(click.UsageError, match="--of bob or --like ann/train-1, not both"):
        likened("ann/train-1", "bob", "default")


REPORT = UsageReport(
    kind="usage",
    since_s=0.0,
    until_s=86_400.0,
    group=("owner", "day"),
    rows=(
        UsageRow(owner="=1+1", period="1970-01-01", jobs=3, held_gpu_h=2.5, cost=5.0),
        UsageRow(owner='a,"b"\x1b[2J', period="1970-01-01", jobs=1, used_gpu_h=0.5),
    ),
    total=UsageRow(jobs=4, held_gpu_h=2.5, cost=5.0, unpriced_gpu_h=1.0),
    groups=9,
    currency="EUR",
    notes=("something is missing",),
)


def test_csv_has_a_column_a_figure_and_no_formula() -> None:
    names, *rows = list(csv.reader(io.StringIO(in_csv(REPORT))))
    assert names[:3] == ["owner", "period", "jobs"]
    table = [dict(zip(names, row, strict=True)) for row in rows]
    assert [row["owner"] for row in table] == ["'=1+1", 'a,"b"\\x1b[2J']
    assert (table[0]["held_gpu_h"], table[0]["used_gpu_h"], table[1]["cost"]) == ("2.5", "", "")

    job = JobUsage(
        tenant="t", id="a", state="failed", queue="q", models=("H100", "T4"), submitted_at_s=1.0,
        ended_at_s=2.0,
    )  # fmt: skip
    names, row = list(
        csv.reader(
            io.StringIO(in_csv(UsageReport(kind="job", since_s=0.0, until_s=9.0, jobs=(job,))))
        )
    )
    assert dict(zip(names, row, strict=True))["models"] == "H100 T4"


def test_the_table_shows_what_is_unknown_and_what_is_left_out() -> None:
    text = screen(render.report(REPORT), width=120)
    assert "1970-01-01" in text
    assert "\x1b" not in text  # what could steer a terminal is shown, not sent
    assert "In all 4 jobs, 2.5 GPU-hours held" in text
    assert "5.00 EUR, and 1 GPU-hours without a price" in text
    assert "7 more groups: --limit" in text
    assert "something is missing" in text


def test_trends_show_how_a_figure_went_in_one_line() -> None:
    trend = Trend(
        name="waiting", cell="all", means=(None, 0.0, 4.0, 8.0), lows=(0.0,), highs=(9.0,)
    )
    told = Trends(span="hour", since_s=60.0, until_s=300.0, step_s=60.0, trends=(trend,))
    shown = screen(render.trends(told, ascii_only=True)).splitlines()
    assert shown[-1].split() == ["waiting", "all", "0", "8", "9", ".=@"]

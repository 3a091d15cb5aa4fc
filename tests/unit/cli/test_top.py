"""`berth top`: what keys do to what is shown."""

from typing import Any

import pytest

from berthmaster.cli.top_screen import (
    JobRow,
    Screen,
    View,
    column_named,
    in_order,
    job_rows,
    keys_in,
    window,
)
from berthmaster.fleetview.rows import ClusterRow, NodeRow
from berthmaster.messages.api import WorkloadView
from berthmaster.messages.telemetry import GpuUse, JobFigures

CLUSTERS = [
    ClusterRow(cluster="c10", freshness="fresh", seen_s=1.0, gpus=8),
    ClusterRow(cluster="c2", freshness="fresh", seen_s=None, gpus=64),
    ClusterRow(cluster="c1", freshness="stale", seen_s=40.0, gpus=16),
]


def shown(screen: Screen, rows: list[Any]) -> list[str]:
    return [row.cluster for row in screen.view.settle(rows)]


def test_the_cursor_stays_on_its_row_when_the_order_changes() -> None:
    screen = Screen(View("clusters"))
    assert shown(screen, CLUSTERS) == ["c1", "c2", "c10"]  # as people count
    screen.press(b"\x1b[B", CLUSTERS)
    assert screen.view.selected == ("c2",)

    # By what was seen longest ago; what is not known goes last, whichever way round.
    screen.press(b"s", CLUSTERS)
    assert shown(screen, CLUSTERS) == ["c1", "c10", "c2"]
    assert (screen.view.selected, screen.view.at) == (("c2",), 2)
    screen.press(b"r", CLUSTERS)
    assert shown(screen, CLUSTERS) == ["c10", "c1", "c2"]

    # Its row goes away: the cursor stays at its place, as far as there are rows.
    assert shown(screen, CLUSTERS[:1]) == ["c10"]
    assert screen.view.selected == ("c10",)
    assert shown(screen, []) == []
    assert screen.press(b"\r", []) == ""
    assert screen.view.kind == "clusters"


def test_one_goes_into_a_cluster_and_a_job_and_back() -> None:
    screen = Screen(View("clusters"))
    screen.press(b"\x1b[F", CLUSTERS)  # the last
    screen.press(b"\r", CLUSTERS)
    assert (screen.view.kind, screen.view.name) == ("nodes", ("c10",))
    nodes = [NodeRow(node="n1", state="ready")]
    screen.press(b"\r", nodes)  # nothing is inside a node
    assert screen.view.kind == "nodes"
    screen.press(b"\x1b", nodes)
    assert (screen.view.kind, screen.view.selected) == ("clusters", ("c10",))
    screen.press(b"\x1b", CLUSTERS)  # there is nothing outside

    jobs = [
        JobRow(tenant="acme", id="b", state="running"),
        JobRow(tenant="acme", id="a", state="queued"),
    ]
    screen.press(b"j", CLUSTERS)
    screen.press(b"s", jobs)
    screen.press(b"\n", jobs)
    assert (screen.view.kind, screen.view.name) == ("job", ("acme", "a"))
    assert screen.press(b"q", []) == "quit"


def test_keys_come_one_by_one_or_many_at_once() -> None:
    assert keys_in(b"jk\x1b[A\x1b[6~q") == [b"j", b"k", b"\x1b[A", b"\x1b[6~", b"q"]
    assert keys_in(b"\x1b") == [b"\x1b"]
    screen = Screen(View("clusters"))
    for key in keys_in("ä\x00\x1b[Z!".encode()):  # what is no key changes nothing
        assert screen.press(key, CLUSTERS) == ""
    assert screen.view.kind == "clusters"


@pytest.mark.parametrize(
    ("count", "at", "height", "expected"),
    [
        (3, 0, 10, range(3)),
        (100, 0, 10, range(10)),
        (100, 50, 10, range(45, 55)),
        (100, 99, 10, range(90, 100)),
        (0, 0, 10, range(0)),
    ],
)
def test_the_cursor_is_among_the_rows_that_are_shown(
    count: int, at: int, height: int, expected: range
) -> None:
    assert window(count, at, height) == expected


def test_jobs_have_their_figures_and_those_that_nobody_listed_are_there_too() -> None:
    view = WorkloadView(
        tenant="acme",
        id="a",
        state="running",
        queue="q",
        gpus=2.0,
        cluster="c1",
        submitted_at_s=10.0,
    )
    told = {
        ("acme", "a"): figures("acme", "a", 75.0),
        ("", "ns/Job/other"): figures("", "", 5.0, idle_since_s=70.0),
    }
    mine, other = job_rows([view], told, now_s=110.0)
    assert (mine.utilization_percent, mine.age_s, mine.idle_s) == (75.0, 100.0, None)
    assert (other.id, other.state, other.gpus, other.idle_s) == (
        "ns/Job/other",
        "running",
        2.0,
        30.0,
    )
    assert [row.id for row in in_order("jobs", [mine, other], 5, reverse=False)] == [
        "a",
        "ns/Job/other",
    ]
    assert (column_named("jobs", "util"), column_named("jobs", "cow")) == (5, None)


def figures(
    tenant: str, workload: str, percent: float, *, idle_since_s: float | None = None
) -> JobFigures:
    return JobFigures(
        cluster="c1",
        tenant=tenant,
        id=workload,
        epoch=1,
        counter=1,
        observed_at_s=100.0,
        use=GpuUse(gpus=2, measured=2, utilization_percent=percent),
        idle_since_s=idle_since_s,
    )

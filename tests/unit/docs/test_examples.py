"""The examples of docs/reference/job-order.md by the engine: each figure is in the text."""

from pathlib import Path

import pytest

from berthmaster.control.resolver.core.deciding.reservations import ends_in_time
from berthmaster.lib.engine.queueing.expectations import expected_from, left_s
from berthmaster.lib.engine.queueing.lines import STATED, Outlook, outlook, place
from berthmaster.lib.messages.placement import Reservation

TEXT = (Path(__file__).parents[3] / "docs" / "reference" / "job-order.md").read_text()
HOUR: Outlook = outlook(64 * 3600.0, 64.0)


def _seconds(value: float) -> str:
    return f"{value:,.0f} s"


@pytest.mark.parametrize(
    ("name", "gpus", "lasts_s"), [("sweep", 1, 600), ("tune", 8, 7200), ("train", 32, 7200)]
)
def test_due_times(name: str, gpus: int, lasts_s: int) -> None:
    service, width = gpus * lasts_s, gpus / 64
    by_size, by_backlog = STATED.stretch * service, STATED.patience * HOUR.patience_s
    lesser = (1 - width) ** 2 * min(by_size, by_backlog)
    due_s = place(service, 0.0, gpus, HOUR).due_at_s
    assert due_s == pytest.approx(lesser - STATED.ahead * width * HOUR.patience_s)

    [row] = [line for line in TEXT.splitlines() if line.startswith(f"| {name} |")]
    for figure in (by_size, by_backlog, lesser, STATED.ahead * width * HOUR.patience_s, due_s):
        assert _seconds(figure) in row


def test_later_sweeps() -> None:
    tune = place(8 * 7200, 0.0, 8, HOUR).due_at_s
    half_an_hour_later = place(600, 1800.0, 1, HOUR).due_at_s
    assert _seconds(half_an_hour_later) in TEXT
    assert half_an_hour_later < tune < place(600, 3600.0, 1, HOUR).due_at_s


def test_who_may_use_room_that_is_kept() -> None:
    kept = Reservation(tenant="t", id="wide", cluster="c", held=(), expected_at_s=100.0)
    may = {lasts_s: ends_in_time(kept, 0.0, lasts_s, 0.8) for lasts_s in (50, 120, 200)}
    assert may == {50: True, 120: True, 200: False}


def test_an_expectation() -> None:
    expected_s = expected_from([(0, 600), (600, 1200), (1800, 3000)], 2100.0)
    assert _seconds(expected_s) in TEXT
    assert left_s(expected_s, 3000.0) == 1500.0

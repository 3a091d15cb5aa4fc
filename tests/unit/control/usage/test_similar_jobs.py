"""Reports of similar jobs, of the load by hour and weekday, and the forecast of the next day."""

import msgspec
import pytest

from berthmaster.control.usage.core.forecast import forecast
from berthmaster.control.usage.core.load import HourRow, load_report
from berthmaster.control.usage.core.similar import Outcome, cause_of, jobs_report, likeness_of
from berthmaster.lib.messages.usage import JobsReport
from berthmaster.lib.messages.workload import RunSpec
from tests.support.builders import job

HOUR_S = 3600
MONDAY_S = 1_699_833_600  # 2023-11-13 00:00 UTC


def ended(state: str, ran_s: float | None, waited_s: float = 1.0, reason: str = "") -> Outcome:
    begun = round(1000 * waited_s)
    return Outcome(
        state,
        reason,
        0,
        begun,
        begun if ran_s is not None else None,
        begun + round(1000 * (ran_s or 0.0)),
    )


def test_report_of_jobs_has_run_times_waits_and_why_they_failed() -> None:
    outcomes = [ended("succeeded", float(s)) for s in range(100, 201)]
    outcomes += [ended("failed", 5.0, reason=f"exit code 137 in pod main-{n}") for n in range(3)]
    outcomes += [ended("failed", 5.0, reason="out of memory: pod main-0 had 4 GiB")]
    outcomes += [ended("cancelled", None, waited_s=60.0)]
    told = jobs_report("program", outcomes, capped=False)
    assert (told.by, told.jobs, told.succeeded, told.failed, told.cancelled) == (
        "program",
        106,
        101,
        4,
        1,
    )
    assert told.causes == {"exit code 137 in pod main-N": 3, "out of memory": 1}
    ran = (told.ran_low_s or 0.0, told.ran_s or 0.0, told.ran_high_s or 0.0)
    assert ran == pytest.approx((110.0, 150.0, 190.0), rel=0.02)
    assert told.wait_p50_s == pytest.approx(1.0, rel=0.02)


def test_report_of_no_jobs_says_nothing_of_times() -> None:
    assert jobs_report("all", [], capped=False) == JobsReport()


def test_cause_of_keeps_exit_codes_and_drops_what_differs() -> None:
    assert cause_of("exit code 1: Traceback of 12 lines") == "exit code 1"
    assert cause_of("node n17 lost after 3.5 s") == "node nN lost after N s"
    assert cause_of("") == "no reason given"


def test_likeness_of_jobs_differs_by_what_differs() -> None:
    one = msgspec.structs.replace(
        job("one"), labels={"model": "bert"}, run=RunSpec(image="train", command=("a",))
    )
    again = msgspec.structs.replace(one, id="two", priority=5)
    other = msgspec.structs.replace(one, labels={"model": "mlp"})
    wider = msgspec.structs.replace(one, pod_sets=job("x", gpus=8).pod_sets)
    assert likeness_of("team", one) == likeness_of("team", again)
    assert likeness_of("team", one)[1:] == likeness_of("team", other)[1:]
    assert likeness_of("team", one).labels != likeness_of("team", other).labels
    assert likeness_of("team", one).program == likeness_of("team", wider).program
    assert likeness_of("team", one).shape != likeness_of("team", wider).shape
    assert likeness_of("team", one) != likeness_of("others", one)
    assert likeness_of("team", job("plain")).program == ""


def test_load_report_knows_the_busy_hour_and_the_calm_ones() -> None:
    """Four weeks with 20 jobs at 09:00 from Monday to Friday and one an hour from 10 to 20."""
    hours = []
    for day in range(28):
        hours += [(24 * day + hour, 1) for hour in range(10, 20)]
        if day % 7 < 5:
            hours.append((24 * day + 9, 20))
    first = MONDAY_S // HOUR_S
    rows = [HourRow(first + at, jobs, 1000 * jobs, jobs, 2000 * jobs) for at, jobs in hours]
    told = load_report(rows, MONDAY_S, MONDAY_S + 28 * 24 * HOUR_S)
    by = {(one.weekday, one.hour): one for one in told.week}
    assert len(by) == 7 * 24
    assert (by[0, 9].jobs, by[0, 9].gpus, by[0, 9].wait_s) == (20.0, 20.0, 2.0)
    assert (by[6, 9].jobs, by[6, 9].wait_s) == (0.0, None)
    assert (by[6, 10].jobs, by[2, 3].jobs) == (1.0, 0.0)
    assert [one.at_s for one in told.forecast] == [
        MONDAY_S + (28 * 24 + at) * HOUR_S for at in range(24)
    ]
    assert max(told.forecast, key=lambda one: one.jobs_high).at_s % 86400 in (
        8 * HOUR_S,
        9 * HOUR_S,
        10 * HOUR_S,
    )
    assert told.calm_at_s is not None
    assert not 5 * HOUR_S < told.calm_at_s % 86400 < 20 * HOUR_S


def test_forecast_goes_from_the_level_to_the_time_of_day() -> None:
    counts = [10.0 if at % 24 < 12 else 2.0 for at in range(24 * 10)] + [40.0] * 3
    made = forecast(counts, 24, 24)
    assert len(made) == 24
    assert made[0].middle > 25.0  # the level, which is far above what is usual
    assert 9.0 < made[8].middle < 20.0
    assert 1.5 < made[20].middle < 3.5
    assert all(one.low <= one.middle <= one.high for one in made)


def test_forecast_of_little_or_no_history_goes_by_the_level_alone() -> None:
    assert forecast([], 24, 24) == []
    assert [round(one.middle, 2) for one in forecast([4.0, 4.0], 24, 3)] == [3.5, 3.5, 3.5]

"""The load by hour and weekday, and the forecast of the next day, from arrivals by the hour. Pure.

Example: 20 jobs arrive each Monday at 09:00 and one each night. At 20:00 on a Sunday the forecast
has about 20 jobs for 09:00, and the calmest three hours begin in the night.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from berthmaster.control.usage.core.forecast import DAYS, forecast
from berthmaster.lib.messages.usage import HourForecast, LoadReport, WeekHour

HOUR_S: Final = 3600
DAY_HOURS: Final = 24
CALM_HOURS: Final = 3
PAST_S: Final = (DAYS + 1) * DAY_HOURS * HOUR_S  # history of the forecast
_EPOCH_WEEKDAY: Final = 3  # 1970-01-01 was a Thursday


class HourRow(NamedTuple):
    """Jobs submitted in one hour."""

    hour: int  # hours since 1970
    jobs: int
    asked_milli: int
    placed: int
    waited_ms: int  # sum over placed jobs


def merged(rows: Iterable[HourRow]) -> dict[int, HourRow]:
    """Return one row per hour, with the sums of its rows."""
    found: dict[int, HourRow] = {}
    for row in rows:
        known = found.get(row.hour, HourRow(row.hour, 0, 0, 0, 0))
        sums = (a + b for a, b in zip(known[1:], row[1:], strict=True))
        found[row.hour] = HourRow(row.hour, *sums)
    return found


def load_report(rows: Iterable[HourRow], since_s: float, until_s: float) -> LoadReport:
    """Report the whole hours of a period, and forecast the day after it."""
    hours = merged(rows)
    last = int(until_s) // HOUR_S  # the current hour
    first = max(-(-int(since_s) // HOUR_S), min(hours, default=last))
    span = range(first, last)
    week: dict[tuple[int, int], list[HourRow]] = defaultdict(list)
    for hour in span:
        at = (hour // DAY_HOURS + _EPOCH_WEEKDAY) % 7, hour % DAY_HOURS
        week[at].append(hours.get(hour, HourRow(hour, 0, 0, 0, 0)))
    counts = [float(hours[hour].jobs) if hour in hours else 0.0 for hour in span]
    foretold = [
        HourForecast(
            at_s=float((last + step) * HOUR_S),
            jobs=round(one.middle, 3),
            jobs_low=round(one.low, 3),
            jobs_high=round(one.high, 3),
        )
        for step, one in enumerate(forecast(counts, DAY_HOURS, DAY_HOURS))
    ]
    return LoadReport(
        week=tuple(_week_hour(at, each) for at, each in sorted(week.items())),
        forecast=tuple(foretold),
        calm_at_s=_calmest_s(foretold),
    )


def _week_hour(at: tuple[int, int], rows: list[HourRow]) -> WeekHour:
    placed = sum(row.placed for row in rows)
    return WeekHour(
        weekday=at[0],
        hour=at[1],
        jobs=round(sum(row.jobs for row in rows) / len(rows), 3),
        gpus=round(sum(row.asked_milli for row in rows) / 1000 / len(rows), 3),
        wait_s=round(sum(row.waited_ms for row in rows) / 1000 / placed, 3) if placed else None,
    )


def _calmest_s(foretold: list[HourForecast]) -> float | None:
    """Return when the calmest hours in a row begin, or None without a forecast."""
    starts = range(len(foretold) - CALM_HOURS + 1)
    if not starts:
        return None
    calm = min(starts, key=lambda at: sum(one.jobs for one in foretold[at : at + CALM_HOURS]))
    return foretold[calm].at_s

"""How well arrivals are foretold, on Lucid's list of Venus: jobs with GPUs per ten minutes.

Learned from April on, tested in September 2020. Mean absolute errors, in jobs per ten minutes:

- ``next``: the next ten minutes. The baseline is the last value.
- ``day``: the next day, made at each midnight. The baselines are the value at midnight, held for
  the day, and the values of the day before. Lucid's own forecast is in the list.
"""

import csv
from collections.abc import Sequence
from typing import Final

from berthmaster.control.usage.core.forecast import forecast
from scripts.benchmarks.trace_files import traces_folder

ARRIVALS: Final = "lucid/venus_arrivals.csv"
LUCID: Final = "lucid/venus_arrivals_forecast.csv"
TESTED: Final = "2020-09"
A_DAY: Final = 144
KEPT: Final = 29 * A_DAY  # the service reads so much
BUDGETS: Final = {
    "arrivals_next_to_last_value_ratio": ("<=", 1.0),
    "arrivals_day_to_last_value_ratio": ("<=", 1.0),
}
NOTES: list[str] = []


def mean_error(pairs: Sequence[tuple[float, float]]) -> float:
    return sum(abs(a - b) for a, b in pairs) / len(pairs)


def errors(counts: Sequence[float], first: int) -> dict[str, float]:
    """Errors of the forecast and of the baselines, from the slot ``first`` on."""
    held, day, before = [], [], []
    following = [
        (forecast(counts[max(0, at - KEPT) : at], A_DAY, 1)[0].middle, counts[at])
        for at in range(first, len(counts))
    ]
    for midnight in range(first, len(counts) - A_DAY + 1, A_DAY):
        made = forecast(counts[max(0, midnight - KEPT) : midnight], A_DAY, A_DAY)
        for ahead, one in enumerate(made):
            truth = counts[midnight + ahead]
            day.append((one.middle, truth))
            held.append((counts[midnight - 1], truth))
            before.append((counts[midnight + ahead - A_DAY], truth))
    last = list(zip(counts[first - 1 : -1], counts[first:], strict=True))
    figures = {
        "arrivals_next_error_jobs": mean_error(following),
        "arrivals_next_last_value_error_jobs": mean_error(last),
        "arrivals_day_error_jobs": mean_error(day),
        "arrivals_day_last_value_error_jobs": mean_error(held),
        "arrivals_day_before_error_jobs": mean_error(before),
    }
    next_, day_ = figures["arrivals_next_error_jobs"], figures["arrivals_day_error_jobs"]
    return figures | {
        "arrivals_next_to_last_value_ratio": next_ / mean_error(last),
        "arrivals_day_to_last_value_ratio": day_ / min(mean_error(held), mean_error(before)),
    }


def measure() -> dict[str, float]:
    """All figures; nothing where the list is missing."""
    NOTES.clear()
    folder = traces_folder(ARRIVALS)
    if folder is None:
        NOTES.append(f"no {ARRIVALS}: set BERTH_TRACES to a folder with it")
        return {}
    rows = list(csv.DictReader((folder / ARRIVALS).read_text().splitlines()))
    counts = [float(row["submit_gpu_job"]) for row in rows]
    first = next(at for at, row in enumerate(rows) if row["time"].startswith(TESTED))
    figures = errors(counts, first)
    if (folder / LUCID).is_file():
        own = csv.DictReader((folder / LUCID).read_text().splitlines())
        pairs = [(float(row["pred_gpu_job"]), float(row["submit_gpu_job"])) for row in own]
        figures["arrivals_lucid_error_jobs"] = mean_error(pairs)
    return figures

"""Usage reports as tables; trends as rows of bars."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from rich.console import Group, RenderableType

from berthmaster.cli.output.amounts import duration, moment, number
from berthmaster.cli.output.terminal import plain_table, safe
from berthmaster.cli.report.interference import Interference
from berthmaster.cli.report.sharing import SharingRow
from berthmaster.lib.messages.usage import (
    AttemptUsage,
    JobsReport,
    JobUsage,
    LoadReport,
    Trend,
    Trends,
    UsageReport,
    UsageRow,
)

FIGURES: Final = ("JOBS", "FAIL", "EVICT", "ASKED h", "HELD h", "USED h", "WAIT p50", "p95", "COST")
_LEVELS: Final = " ▁▂▃▄▅▆▇█"
_ASCII_LEVELS: Final = " .:-=+*#@"


def report(reply: UsageReport) -> RenderableType:
    head = safe(
        f"{moment(reply.since_s)} to {moment(reply.until_s)}, of jobs that have ended",
        style="bold",
    )
    if reply.summary is not None:
        body = _summary(reply.summary)
    elif reply.load is not None:
        body = _load(reply.load)
    elif reply.kind == "job":
        body = _jobs(reply)
    else:
        body = _rows(reply)
    notes = [safe(note, style="yellow") for note in reply.notes]
    return Group(head, *body, *notes)


SIMILAR: Final = {
    "all": "All jobs",
    "labels": "Jobs with the same labels and shape",
    "program": "Jobs with the same program",
    "shape": "Jobs of the same shape",
}
DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def _summary(told: JobsReport) -> list[RenderableType]:
    """Return run times, waits, and reasons of failures."""
    capped = ", the newest only" if told.capped else ""
    parts: list[RenderableType] = [
        safe(
            f"{SIMILAR[told.by]}{capped}: {told.jobs:,} ended, {told.succeeded:,} succeeded, "
            f"{told.failed:,} failed, {told.cancelled:,} were cancelled."
        )
    ]
    if told.ran_s is not None:
        interval = f"{_span(told.ran_low_s)} to {_span(told.ran_high_s)}"
        parts.append(safe(f"Run time {_span(told.ran_s)} ({interval}, 8 of 10 that succeeded)."))
    if told.wait_p50_s is not None:
        parts.append(safe(f"Wait {_span(told.wait_p50_s)}, p95 {_span(told.wait_p95_s)}."))
    if told.causes:
        table = plain_table("FAILED", "WHY", right=("FAILED",))
        for cause, count in told.causes.items():
            table.add_row(f"{count:,}", safe(cause))
        parts += [safe(), table]
    return parts


def _load(told: LoadReport) -> list[RenderableType]:
    """Return jobs by hour and weekday, and the next hours."""
    parts: list[RenderableType] = []
    if told.calm_at_s is not None:
        parts += [safe(f"Calmest three hours: from {moment(told.calm_at_s)}.", style="bold")]
    if told.week:
        table = plain_table("HOUR", *DAYS, "WAIT", right=("HOUR", *DAYS, "WAIT"))
        by = {(one.weekday, one.hour): one for one in told.week}
        for hour in range(24):
            row = [by.get((day, hour)) for day in range(7)]
            waits = [one.wait_s for one in row if one is not None and one.wait_s is not None]
            wait = _span(sum(waits) / len(waits)) if waits else "-"
            jobs = [number(round(one.jobs, 1)) if one is not None else "-" for one in row]
            table.add_row(f"{hour:02}:00", *jobs, wait)
        parts += [safe("Jobs submitted, by hour (UTC) and weekday:"), table]
    if told.forecast:
        table = plain_table("NEXT HOURS", "JOBS", "8 OF 10", right=("JOBS", "8 OF 10"))
        for one in told.forecast:
            interval = f"{number(round(one.jobs_low, 1))} to {number(round(one.jobs_high, 1))}"
            table.add_row(_short(one.at_s), number(round(one.jobs, 1)), interval)
        parts += [safe(), table]
    return parts or [safe("No job was submitted.")]


def _rows(reply: UsageReport) -> list[RenderableType]:
    if not reply.rows:
        return [safe("Nothing was used and no job ended.")]
    names = ["period" if name in ("day", "month") else name for name in reply.group]
    figures = list(FIGURES) if reply.currency else list(FIGURES[:-1])
    table = plain_table(*(name.upper() for name in names), *figures, right=figures)
    for name, column in zip(names, table.columns, strict=False):
        column.min_width = len("2026-11-24") if name == "period" else 6
    for row in reply.rows:
        table.add_row(*(safe(getattr(row, name) or "-") for name in names), *_figures(row, reply))
    parts: list[RenderableType] = [table, safe(), safe(_total(reply), style="bold")]
    if reply.groups > len(reply.rows):
        parts.append(safe(f"{reply.groups - len(reply.rows):,} more groups: --limit"))
    return parts


def _figures(row: UsageRow, reply: UsageReport) -> list[str]:
    cells = [
        f"{row.jobs:,}",
        f"{row.failed:,}",
        f"{row.evictions:,}",
        _hours(row.asked_gpu_h),
        _hours(row.held_gpu_h),
        _hours(row.used_gpu_h),
        *(_span(value) for value in (row.wait_p50_s, row.wait_p95_s)),
    ]
    return [*cells, _cost(row.cost)] if reply.currency else cells


def _total(reply: UsageReport) -> str:
    total = reply.total
    text = (
        f"In all {total.jobs:,} jobs, {_hours(total.held_gpu_h)} GPU-hours held"
        f", {_hours(total.asked_gpu_h)} asked"
    )
    if total.used_gpu_h is not None and total.measured_gpu_h:
        share = total.used_gpu_h / total.measured_gpu_h
        text += f"; {share:.0%} of the {_hours(total.measured_gpu_h)} measured were used"
    if total.cost is not None:
        text += f"; {_cost(total.cost)} {reply.currency}"
    if total.unpriced_gpu_h:
        text += f", and {_hours(total.unpriced_gpu_h)} GPU-hours without a price"
    return text


def _jobs(reply: UsageReport) -> list[RenderableType]:
    if not reply.jobs:
        return [safe("No job ended.")]
    if len(reply.jobs) == 1 and reply.jobs[0].each:
        return _job(reply.jobs[0], reply)
    figures = ["GPUS", "WAIT", "HELD h", "USED h", *(["COST"] if reply.currency else [])]
    table = plain_table(
        "ENDED", "JOB", "STATE", "QUEUE", "OWNER", "CLUSTER", *figures, right=figures
    )
    table.columns[0].min_width, table.columns[2].min_width = len("11-24 12:53"), len("succeeded")
    several = len({job.tenant for job in reply.jobs}) > 1
    for job in reply.jobs:
        cells = [
            _short(job.ended_at_s),
            f"{job.tenant}/{job.id}" if several else job.id,
            job.state,
            job.queue,
            job.owner or "-",
            f"{job.cluster} ({', '.join(job.models)})" if job.models else job.cluster or "-",
        ]
        numbers = [f"{job.gpus_asked:g}", _span(job.wait_s)]
        numbers += [_hours(job.held_gpu_h), _hours(job.used_gpu_h)]
        if reply.currency:
            numbers.append(_cost(job.cost))
        table.add_row(*(safe(cell) for cell in cells), *numbers)
    parts: list[RenderableType] = [table]
    if reply.next_page:
        parts.append(safe(f"There are more: --page {reply.next_page}"))
    return parts


def _job(job: JobUsage, reply: UsageReport) -> list[RenderableType]:
    cost = f", {_cost(job.cost)} {reply.currency}" if job.cost is not None else ""
    came = f", by way of hub {job.hub}" if job.hub else ""
    head = safe(f"{job.tenant}/{job.id}  {job.state}" + (f": {job.reason}" if job.reason else ""))
    about = safe(
        f"queue {job.queue}, owner {job.owner or '-'}{came}; submitted "
        f"{moment(job.submitted_at_s)}, waited {_span(job.wait_s)}, ran after"
        f" {_span(job.start_s)}, ended {moment(job.ended_at_s)};"
        f" {_hours(job.held_gpu_h)} GPU-hours held, {_hours(job.used_gpu_h)} used{cost}"
    )
    return [head, about, _attempts(job.each)]


def _attempts(each: Sequence[AttemptUsage]) -> RenderableType:
    numbers = ("GPUS", "HELD h", "USED h")
    table = plain_table("ATTEMPT", "CLUSTER", "MODEL", *numbers, "END", "WHY", right=numbers)
    for one in each:
        table.add_row(
            str(one.attempt),
            safe(one.cluster),
            safe(one.model or "-"),
            f"{one.gpus_held:g}",
            _hours(one.held_gpu_h),
            _hours(one.used_gpu_h),
            safe(f"{one.end} {_short(one.ended_at_s)}"),
            safe(one.reason or "-"),
        )
    return table


def trends(reply: Trends, *, ascii_only: bool = False) -> RenderableType:
    """Return a row per metric: minimum, newest, maximum, and the course."""
    head = safe(
        f"{moment(reply.since_s)} to {moment(reply.until_s)}, a point {duration(reply.step_s)}",
        style="bold",
    )
    notes = [safe(note, style="yellow") for note in reply.notes]
    if not reply.trends:
        return Group(head, *notes, safe("Nothing to show."))
    numbers = ("LOW", "LAST", "HIGH")
    table = plain_table("FIGURE", "CELL", *numbers, "COURSE", right=numbers)
    for trend in reply.trends:
        known = [value for value in trend.means if value is not None]
        if not known:
            continue
        lows = [value for value in trend.lows if value is not None]
        highs = [value for value in trend.highs if value is not None]
        table.add_row(
            safe(trend.name),
            safe(trend.cell or "-"),
            *(number(round(value, 3)) for value in (min(lows), known[-1], max(highs))),
            _course(trend, ascii_only),
        )
    return Group(head, table, *notes)


def _course(trend: Trend, ascii_only: bool) -> str:
    """Return one character per point, or per several points, at most 32 characters."""
    scale = _ASCII_LEVELS if ascii_only else _LEVELS
    step = -(-len(trend.means) // 32)
    most = max((value for value in trend.means if value is not None), default=0.0)
    marks = []
    for at in range(0, len(trend.means), step):
        some = [value for value in trend.means[at : at + step] if value is not None]
        mean = sum(some) / len(some) if some else 0.0
        top = len(scale) - 1
        level = 0 if not some else max(1, round(mean / most * top)) if most else 1
        marks.append(scale[min(top, level)])
    return "".join(marks)


def _short(at_s: float) -> str:
    """Return a time to the minute, without the year."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%m-%d %H:%M")


def _hours(value: float | None) -> str:
    return "?" if value is None else number(round(value, 2))


def _span(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


def _cost(value: float | None) -> str:
    return "?" if value is None else f"{value:,.2f}"


def interference(reply: Interference) -> RenderableType:
    """Return the pairs on one GPU, and the pairs that could be."""
    parts: list[RenderableType] = []
    if reply.shared:
        table = plain_table("GPU", "JOBS", "BUSY", "EXPECTED", "MEASURED", "")
        for one in reply.shared:
            table.add_row(
                safe(f"{one.cluster}/{one.node}/{one.gpu}"),
                safe(" + ".join(one.jobs)),
                " + ".join(map(_share, one.utilizations)),
                _share(one.expected_speed),
                " + ".join(map(_share, one.speeds)),
                safe("hurts" if one.hurts else "", style="red"),
            )
        parts.append(table)
    else:
        parts.append(safe("No two running jobs share a GPU."))
    jobs, pairs = reply.whole_gpu_jobs, len(reply.could_share)
    text = (
        f"Of {jobs} jobs with one whole GPU, {2 * pairs} could share: {pairs} GPUs would be free."
    )
    parts += [safe(), safe(text if jobs else "No job with one whole GPU is measured.")]
    if pairs:
        table = plain_table("CLUSTER", "COULD SHARE", "BUSY", "EXPECTED")
        for pair in reply.could_share:
            busy = " + ".join(map(_share, pair.utilizations))
            jobs_of = safe(" + ".join(pair.jobs))
            table.add_row(safe(pair.cluster), jobs_of, busy, _share(pair.expected_speed))
        parts.append(table)
    return Group(*parts)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}%"


def sharing(rows: Sequence[SharingRow]) -> RenderableType:
    """Return one line per job: granted and measured use."""
    if not rows:
        return safe("No running job has a fraction of a GPU.")
    table = plain_table("JOB", "CLUSTER", "GPU MILLI", "GRANTED", "MIB", "GRANTED", "EXCEEDS")
    for row in rows:
        table.add_row(
            safe(row.id),
            safe(row.cluster),
            *("-" if each is None else f"{each:,}" for each in (row.used_milli, row.granted_milli)),
            *("-" if each is None else f"{each:,}" for each in (row.used_mib, row.granted_mib)),
            safe(", ".join(row.exceeds) or "-", style="red" if row.exceeds else ""),
        )
    return table

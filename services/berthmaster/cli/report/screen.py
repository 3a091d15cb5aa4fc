"""Reports of what was used, as tables; trends as rows of bars."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from rich.console import Group, RenderableType

from berthmaster.cli.output.amounts import duration, moment, number
from berthmaster.cli.output.terminal import plain_table, safe
from berthmaster.cli.report.sharing import SharingRow
from berthmaster.lib.messages.usage import (
    AttemptUsage,
    JobUsage,
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
    if reply.kind == "job":
        body = _jobs(reply)
    else:
        body = _rows(reply)
    notes = [safe(note, style="yellow") for note in reply.notes]
    return Group(head, *body, *notes)


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
    """A row a figure: its lowest, its newest, its highest, and how it went."""
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
    """One character for each point, or for several, so that a row is at most 32 wide."""
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
    """A moment of this year or the last, to the minute."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%m-%d %H:%M")


def _hours(value: float | None) -> str:
    return "?" if value is None else number(round(value, 2))


def _span(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


def _cost(value: float | None) -> str:
    return "?" if value is None else f"{value:,.2f}"


def sharing(rows: Sequence[SharingRow]) -> RenderableType:
    """One job a line: what it was granted, and what was measured."""
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

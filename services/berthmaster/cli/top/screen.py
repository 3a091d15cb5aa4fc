"""The tables of `berth top` for jobs and queues."""

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from berthmaster.cli.job.screen import STATE_STYLES
from berthmaster.cli.output import amounts
from berthmaster.cli.output.terminal import plain_table, safe
from berthmaster.cli.top.rows import JobRow
from berthmaster.lib.messages.quality import QualityReport

WORDS: Final = ("JOB", "STATE", "CLUSTER")
NUMBERS: Final = ("GPUS", "UTIL", "MEM", "IDLE", "STEP", "LEFT", "AGE")
# Maximum characters of a name, so that all columns fit in 80.
NAMES: Final = {"CLUSTER": 8, "JOB": 14}


def jobs(rows: Sequence[JobRow], *, wide: bool = False) -> RenderableType:
    """Return one line per job. ``wide``: whole names, and the fraction of SMs with work."""
    if not rows:
        return safe("No job is open, and no GPU is told of.")
    numbers = (*NUMBERS, *("SM",) * wide)
    titles = (*WORDS, *numbers)
    found = plain_table(*titles, right=numbers)
    for title, column in zip(titles, found.columns, strict=True):
        column.no_wrap = True
        if title in NAMES and not wide:
            column.overflow, column.max_width = "ellipsis", NAMES[title]
    for row in rows:
        found.add_row(*_cells(row), *((_percent(row.sm_active_percent),) * wide))
    return found


def _cells(row: JobRow) -> list[Text | str]:
    name = f"{row.tenant}/{row.id}" if row.tenant else row.id
    return [
        safe(name),
        safe(row.state, style=STATE_STYLES.get(row.state, "")),
        safe(row.cluster or "-"),
        amounts.number(row.gpus),
        _percent(row.utilization_percent),
        _memory(row),
        "-" if row.idle_s is None else amounts.age(row.idle_s),
        "-" if row.step is None else str(row.step),
        "-" if row.left_s is None else amounts.age(row.left_s),
        "-" if row.age_s is None else amounts.age(row.age_s),
    ]


def _memory(row: JobRow) -> str:
    if row.memory_used_mib is None:
        return "?"
    total = "" if row.memory_total_mib is None else f"/{row.memory_total_mib / 1024:.0f}"
    return f"{row.memory_used_mib / 1024:.0f}{total}G"


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}%"


SHOWN = 20


def quality(report: QualityReport) -> RenderableType:
    """Return one report: the total, then the queues."""
    deciding = f", {report.decide_ms:.2g} ms each" if report.decide_ms is not None else ""
    at = f"{amounts.clock(report.observed_at_s)[:8]} {amounts.zone(report.observed_at_s)}"
    lines: list[RenderableType] = [
        safe(f"{report.decider} at {at}", style="bold"),
        safe(
            f"{report.live:,} placed, {report.waiting:,} wait; "
            f"GPUs {_share(report.allocation_percent)} taken, "
            f"{_share(report.fragmentation_percent)} of the rest fragmented;"
            f" fairness {report.fairness:.2f}; {report.placements_per_s:,g} placements/s{deciding}"
        ),
    ]
    if report.queues:
        columns = ("PLACED", "WAIT", "GPUS", "MEAN WAIT", "DONE", "MEAN TIME", "EVICTED")
        table = plain_table("QUEUE", *columns, right=columns)
        for queue in report.queues[:SHOWN]:
            table.add_row(
                safe(queue.queue),
                f"{queue.live:,}",
                f"{queue.waiting:,}",
                f"{queue.used_gpu_milli / 1000:g}",
                _span(queue.mean_wait_s),
                f"{queue.succeeded:,}",
                _span(queue.mean_completion_s),
                f"{queue.evicted:,}",
            )
        lines.append(table)
        if len(report.queues) > SHOWN:
            lines.append(safe(f"and {len(report.queues) - SHOWN:,} more queues"))
    return Group(*lines)


def _span(seconds: float | None) -> str:
    return amounts.duration(seconds) if seconds is not None else "-"


def _share(value: float | None) -> str:
    return f"{value:.1f}%" if value is not None else "?%"

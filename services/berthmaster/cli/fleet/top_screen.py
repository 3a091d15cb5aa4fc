"""The jobs of `berth top` as a table."""

from collections.abc import Sequence
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from berthmaster.cli.fleet.top_rows import JobRow
from berthmaster.cli.job import screen as workloads
from berthmaster.cli.output import amounts
from berthmaster.cli.output.terminal import plain_table, safe

WORDS: Final = ("JOB", "STATE", "CLUSTER")
NUMBERS: Final = ("GPUS", "UTIL", "MEM", "IDLE", "STEP", "LEFT", "AGE")
# The most characters of a name, so that all columns fit in 80.
NAMES: Final = {"CLUSTER": 8, "JOB": 14}


def jobs(rows: Sequence[JobRow], *, wide: bool = False) -> RenderableType:
    """Return one line a job. ``wide``: whole names, and how many SMs had work."""
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
        safe(row.state, style=workloads.STATE_STYLES.get(row.state, "")),
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
